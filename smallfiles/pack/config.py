"""What a pack run is asked to do, and what it did: two frozen records.

A configuration prints its own command line (`to_cli`), so that a notebook can say "the same run as
a job is …" and never be wrong. Notebook 03 uses it first.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smallfiles import formats
from smallfiles.errors import UsageError
from smallfiles.pack.scaling import Rescaled, Scaling

if TYPE_CHECKING:
    from smallfiles.images.downscaling import Store

Verify = Literal["full", "sample", "none"]
OnError = Literal["stop", "skip"]
Check = Literal["none", "header", "decode"]


@dataclass(frozen=True)
class PackConfig:
    """How to pack.

    Args:
        format: Name of the format; None takes it from the output's suffix.
        options: The format's `Options`; None means its defaults.
        in_flight: How many files are opened at once; None chooses: many where files must be waited for.
        verify: Read back everything, a sample, or nothing before publishing.
        on_error: Stop at sources that cannot be packed, or leave them out and report them.
        check: How a source's bytes are examined: not at all, by header and end, or decoded.
        shuffle: Seed of a full shuffle; None keeps the manifest's order.
        part: (k, n): pack part k of n, counted from 1; None packs everything.
        merge: Join the parts instead of packing.
        digest: Take the content digest while writing.
        resize: Scale pictures down until their shorter side has so many pixels; None leaves them.
        store: Scaled pictures as `jpeg`, encoded again, or `raw`, as pixels.
        quality: Of JPEGs that are encoded again, 1 to 100.
        upright: Turn pictures as their EXIF says, and encode only those again; scaling does it anyway.
    """

    format: str | None = None
    options: Any = None
    in_flight: int | None = None
    verify: Verify = "sample"
    on_error: OnError = "stop"
    check: Check = "header"
    shuffle: int | None = None
    part: tuple[int, int] | None = None
    merge: bool = False
    digest: bool = True
    resize: int | None = None
    store: Store = "jpeg"
    quality: int = 90
    upright: bool = False

    def __post_init__(self) -> None:
        _one_of("verify", self.verify, ("full", "sample", "none"))
        _one_of("on_error", self.on_error, ("stop", "skip"))
        _one_of("check", self.check, ("none", "header", "decode"))
        if self.in_flight is not None and not 1 <= self.in_flight <= 1024:
            raise UsageError(
                f"{self.in_flight} files in flight were asked for",
                expected="1 to 1024",
                next_step="Start with 32 on a parallel file system",
            )
        if self.shuffle is not None and self.shuffle < 0:
            raise UsageError(
                f"the shuffle seed is {self.shuffle}",
                expected="a seed of 0 or more",
                next_step="Choose another seed",
            )
        if self.part is not None and self.merge:
            raise UsageError(
                "a part and a merge were asked for at once",
                expected="one of the two",
                next_step="Pack all parts first, then merge in a job that depends on them",
            )
        self._check_scaling()

    def _check_scaling(self) -> None:
        _one_of("store", self.store, ("jpeg", "raw"))
        if self.upright and (self.resize is not None or self.store != "jpeg"):
            raise UsageError(
                "upright is asked for together with resize or store",
                expected="one of them, since pictures that are scaled are turned upright anyway",
                next_step="Leave --upright out, or --resize and --store",
            )
        if self.resize is None and not self.upright and (self.store, self.quality) != ("jpeg", 90):
            raise UsageError(
                f"pictures are to be stored as {self.store} of quality {self.quality}, and not resized",
                expected="resize with it, since bytes are kept as they are otherwise",
                next_step="Say --resize 256, or leave the others out",
            )
        if (self.resize is not None and self.resize < 1) or not 1 <= self.quality <= 100:
            raise UsageError(
                f"a shorter side of {self.resize} pixels and a JPEG quality of {self.quality} are asked for",
                expected="1 pixel or more, and a quality of 1 to 100",
                next_step="Start with --resize 256",
            )

    @property
    def scaling(self) -> Scaling | None:
        """How pictures are scaled or turned; None leaves them."""
        if self.resize is None and not self.upright:
            return None
        return Scaling(self.resize, self.store, self.quality)

    def to_cli(self, source: str, out: str) -> str:
        """The command that does the same run, to be pasted into a job script."""
        words = ["smallfiles", "pack", source, out]
        for flag, value, default in (
            ("--format", self.format, None),
            ("--in-flight", self.in_flight, None),
            ("--verify", self.verify, "sample"),
            ("--on-error", self.on_error, "stop"),
            ("--check", self.check, "header"),
            ("--shuffle", self.shuffle, None),
            ("--resize", self.resize, None),
            ("--store", self.store, "jpeg"),
            ("--quality", self.quality, 90),
        ):
            if value != default:
                words += [flag, str(value)]
        if self.part is not None:
            words += ["--part", "{}/{}".format(*self.part)]
        words += ["--upright"] * self.upright + ["--merge"] * self.merge + ["--no-digest"] * (not self.digest)
        for name, value in _changed_options(self.options):
            words += ["-O", f"{name}={value}"]
        return shlex.join(words)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(
            f"{name} is {value!r}", expected=f"one of {', '.join(allowed)}", next_step="Choose one of these"
        )


def _changed_options(options: Any) -> list[tuple[str, Any]]:
    if options is None:
        return []
    default = type(options)()
    return [
        (f.name, getattr(options, f.name))
        for f in dataclasses.fields(options)
        if getattr(options, f.name) != getattr(default, f.name)
    ]


def parse_part(text: str) -> tuple[int, int]:
    """Read `k/n` as it stands on the command line or comes from a job array.

    Raises:
        UsageError: Not of that form, or k outside 1..n.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise UsageError(
        f"the part is {text!r}",
        expected="k/n with k from 1 to n, such as 3/8",
        next_step='In a job array from 1 to n write --part "$SLURM_ARRAY_TASK_ID/n"',
    )


@dataclass(frozen=True)
class Skipped:
    """A sample that was left out, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a run would write: the answer of a dry run.

    Args:
        samples: Samples to pack.
        payload_bytes: Their encoded bytes; an estimate where pictures are scaled.
        files: Data files that would be written, indexes and digests not counted.
        inodes_now: Files and folders that the samples occupy now (0 when they are in an archive).
        inodes_then: Files and folders afterwards, indexes and digests included.
        free_bytes: Free space where the output goes.
        to_do: Index ranges of the samples, one a data file.
        resize: What scaling would cost and lose; None if pictures stay as they are.
    """

    samples: int
    payload_bytes: int
    files: int
    inodes_now: int
    inodes_then: int
    free_bytes: int
    to_do: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    resize: Rescaled | None = None


@dataclass(frozen=True)
class PackReport:
    """What a run did.

    Args:
        path: What was published.
        format: Name of the format.
        samples: Samples inside.
        payload_bytes: Their encoded bytes.
        file_bytes: Size of everything published.
        files: Number of files published.
        seconds: From the first read to the publication.
        write_s: The part of it until the last byte was written, before verification.
        verified: How many samples were read back and compared.
        resumed: How many samples had been packed by an earlier, interrupted run.
        skipped: Samples left out (only with `on_error="skip"`).
        in_flight: How many files were opened at once.
        resize: What scaling cost and lost; None if pictures are as they were.
        reused: Whether it was there already: the same part, packed by an earlier run.
        turned: How many pictures say in EXIF that viewers should turn them (0 with `check="none"`).
    """

    path: Path
    format: str
    samples: int
    payload_bytes: int
    file_bytes: int
    files: int
    seconds: float
    write_s: float
    verified: int
    resumed: int
    in_flight: int
    skipped: tuple[Skipped, ...] = ()
    resize: Rescaled | None = None
    reused: bool = False
    turned: int = 0

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, with the names that all verbs share."""
        return {
            "path": str(self.path),
            "format": self.format,
            "samples": self.samples,
            "bytes": self.payload_bytes,
            "file_bytes": self.file_bytes,
            "files": self.files,
            "seconds": round(self.seconds, 3),
            "write_s": round(self.write_s, 3),
            "samples_per_s": round(self.samples / self.seconds, 1) if self.seconds else 0.0,
            "verified": self.verified,
            "resumed": self.resumed,
            "reused": self.reused,
            "in_flight": self.in_flight,
            "skipped": [dataclasses.asdict(s) for s in self.skipped],
            "turned": self.turned,
            **({} if self.resize is None else {"resize": self.resize.as_json()}),
        }


def format_and_options(config: PackConfig, out: Path) -> tuple[str, Any]:
    """The format's name and options, with defaults filled in and the type checked."""
    name = formats.name_of(out, config.format)
    options_type = formats.get(name).Options
    options = config.options if config.options is not None else options_type()
    if not isinstance(options, options_type):
        raise UsageError(
            f"the options are {type(options).__qualname__} of another format",
            expected=f"smallfiles.formats.{name}.Options for {out.name}",
            next_step="Give the options of the format that the suffix names",
        )
    return name, options
