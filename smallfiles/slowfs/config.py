"""How slow a folder shall be: time for an operation, operations at once, bytes per second, jitter."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from smallfiles.errors import UsageError


@dataclass(frozen=True)
class SlowConfig:
    """The storage to imitate.

    Args:
        latency_s: Seconds that the server takes for each metadata operation.
        servers: How many operations it works on at once, the others queue; None has no such limit.
        bandwidth_bytes_s: Bytes per second of all reads together; None has no limit.
        jitter: Standard deviation of the latency as a share of it; times then vary, with a long tail.
        seed: Of the jitter.
    """

    latency_s: float = 0.002
    servers: int | None = None
    bandwidth_bytes_s: float | None = None
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {getattr(self, name)}"
            for name, good in (
                ("latency_s", 0 <= self.latency_s <= 60),
                ("servers", self.servers is None or self.servers >= 1),
                ("bandwidth_bytes_s", self.bandwidth_bytes_s is None or self.bandwidth_bytes_s > 0),
                ("jitter", 0 <= self.jitter <= 10),
                ("seed", self.seed >= 0),
            )
            if not good
        ]
        if wrong:
            raise UsageError(
                f"the slow folder's {' and '.join(wrong)}",
                expected="a latency of 0 to 60 s, 1 server or more, more than 0 bytes/s, a jitter of 0 to 10 "
                "and a seed of 0 or more",
                next_step="Try a latency of 2 ms",
            )

    @property
    def capacity_per_s(self) -> float | None:
        """Operations that the server answers per second at most; None without a limit."""
        return None if self.servers is None or not self.latency_s else self.servers / self.latency_s

    def summary(self) -> str:
        """The storage in a few words: `2 ms an operation, 8 at once, 500 MB/s`."""
        words = [f"{1e3 * self.latency_s:g} ms an operation"]
        words += [f"{self.servers} at once"] if self.servers is not None else []
        words += [f"{self.bandwidth_bytes_s / 1e6:g} MB/s"] if self.bandwidth_bytes_s is not None else []
        words += [f"jitter {self.jitter:g}"] if self.jitter else []
        return ", ".join(words)

    def to_cli(self, folder: str, mountpoint: str) -> str:
        """The command that mounts the same storage."""
        words = ["smallfiles", "slowfs", folder, mountpoint]
        words += ["--latency-ms", f"{1e3 * self.latency_s:g}"]
        words += ["--servers", str(self.servers)] if self.servers is not None else []
        if self.bandwidth_bytes_s is not None:
            words += ["--bandwidth-mb", f"{self.bandwidth_bytes_s / 1e6:g}"]
        words += ["--jitter", f"{self.jitter:g}"] if self.jitter else []
        words += ["--seed", str(self.seed)] if self.seed else []
        return shlex.join(words)
