"""All steps once: data, manifest, every format, measurement, one page.

    result = steps.run(DemoConfig(count=500), print)

Everything is done by the same functions as the single verbs; the demo only puts them in a row. The
trap: numbers of a demo on a laptop say nothing about a parallel file system. Run it there, on your
own data, before you decide. Notebook 00 points here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from smallfiles.errors import UsageError
from smallfiles.folders import SourceOptions
from smallfiles.options import Settings, option, to_argv


@dataclass(frozen=True)
class DemoConfig(Settings):
    """How to run the demo; imports nothing else, since every command loads it."""

    data: Path | None = option(None, "your own data set; it is only read", metavar="DIR")
    count: int = option(3000, "samples to make, or to take from --data at most", least=1)
    out: Path = option(Path("demo_output"), "where everything goes", metavar="DIR")
    repeats: int = option(5, "rounds of measurement", least=1)
    seed: int = option(0, "of the images and the order of reads", least=0, metavar="S")
    reading: SourceOptions = field(default_factory=SourceOptions)  # of `data`, with flags of its own

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is None and (ignored := to_argv(self.reading)):
            raise UsageError(
                f"{ignored[0]} is given without --data",
                expected="it together with --data, since it describes your data set",
                next_step="Give --data DIR too, or leave it out",
            )

    def to_cli(self) -> str:
        """Return the equivalent command."""
        return self.command("demo", more=to_argv(self.reading))
