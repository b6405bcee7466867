"""How slow a folder shall be: time for an operation, operations at once, bytes per second, jitter."""

from __future__ import annotations

from dataclasses import dataclass

from smallfiles.options import Settings, option


@dataclass(frozen=True)
class SlowConfig(Settings):
    """The storage to imitate.

    Args:
        latency_s: Seconds that the server takes for each metadata operation.
        servers: How many operations it works on at once, the others queue; None has no such limit.
        bandwidth_bytes_s: Bytes per second of all reads together; None has no limit.
        jitter: Standard deviation of the latency as a share of it; times then vary, with a long tail.
        seed: Of the jitter.
    """

    latency_s: float = option(
        0.002,
        "milliseconds of a metadata operation",
        flag="latency-ms",
        scale=1e-3,
        least=0,
        most=60,
        metavar="T",
    )
    servers: int | None = option(None, "operations worked on at once; no limit if not given", least=1)
    bandwidth_bytes_s: float | None = option(
        None,
        "megabytes per second of all reads together",
        flag="bandwidth-mb",
        scale=1e6,
        least=1,
        metavar="B",
    )
    jitter: float = option(0.0, "standard deviation of the latency, a share", least=0, most=10, metavar="J")
    seed: int = option(0, "of the jitter", least=0, metavar="S")

    def summary(self) -> str:
        """The storage in a few words: `2 ms an operation, 8 at once, 500 MB/s`."""
        told = [f"{1e3 * self.latency_s:g} ms an operation"]
        told += [f"{self.servers} at once"] if self.servers is not None else []
        told += [f"{self.bandwidth_bytes_s / 1e6:g} MB/s"] if self.bandwidth_bytes_s is not None else []
        told += [f"jitter {self.jitter:g}"] if self.jitter else []
        return ", ".join(told)

    def to_cli(self, folder: str, mountpoint: str) -> str:
        """The command that mounts the same storage."""
        return self.command("slowfs", folder, mountpoint)
