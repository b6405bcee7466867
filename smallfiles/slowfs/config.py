"""The emulated storage: time per operation, concurrent operations, bytes per second, jitter."""

from __future__ import annotations

from dataclasses import dataclass

from smallfiles.options import Settings, option


@dataclass(frozen=True)
class SlowConfig(Settings):
    """The storage to emulate.

    Args:
        latency_s: Seconds per metadata operation.
        servers: Maximum number of concurrent operations; others queue. None for no limit.
        bandwidth_bytes_s: Bytes per second of all reads together; None for no limit.
        jitter: Standard deviation of the latency relative to its mean, with a long tail.
    """

    latency_s: float = option(
        0.002,
        "milliseconds per metadata operation",
        flag="latency-ms",
        scale=1e-3,
        least=0,
        most=60,
        metavar="T",
    )
    servers: int | None = option(None, "concurrent operations; no limit if not given", least=1)
    bandwidth_bytes_s: float | None = option(
        None,
        "megabytes per second of all reads together",
        flag="bandwidth-mb",
        scale=1e6,
        least=1,
        metavar="B",
    )
    jitter: float = option(0.0, "relative standard deviation of the latency", least=0, most=10, metavar="J")

    def summary(self) -> str:
        """The storage in a few words: `2 ms an operation, 8 at once, 500 MB/s`."""
        parts = [f"{1e3 * self.latency_s:g} ms an operation"]  # as in the records of results/
        parts += [f"{self.servers} at once"] if self.servers is not None else []
        parts += [f"{self.bandwidth_bytes_s / 1e6:g} MB/s"] if self.bandwidth_bytes_s is not None else []
        parts += [f"jitter {self.jitter:g}"] if self.jitter else []
        return ", ".join(parts)

    def to_cli(self, folder: str, mountpoint: str) -> str:
        """The equivalent command."""
        return self.command("slowfs", folder, mountpoint)
