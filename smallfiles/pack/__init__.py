"""From a manifest to a packed file: many opens in flight, one sequential write, nothing faked.

    report = pack(sources.load(Path("imagenet")), Path("imagenet.tars"), PackConfig(shuffle=0))

`verify` finds every changed byte later. Notebooks 03, 04 and 05 teach it.

Here is what a run is asked to do, and what it did: frozen records. A configuration prints its own command
line (`to_cli`), so that a notebook can say "the same run as a job is …" and never be wrong. The trap: this
module is imported whenever the command line starts, so it imports nothing that is slow.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from smallfiles import lazy
from smallfiles.errors import PackError, UsageError, first_few
from smallfiles.options import check, option, to_argv
from smallfiles.storage import timeout_option

if TYPE_CHECKING:
    from smallfiles.pack.annotating import Annotated as Annotated
    from smallfiles.pack.annotating import annotate as annotate
    from smallfiles.pack.annotating import split as split
    from smallfiles.pack.run import pack as pack
    from smallfiles.pack.run import plan as plan
    from smallfiles.pack.run import refuse_finished as refuse_finished
    from smallfiles.pack.verifying import VerifyReport as VerifyReport
    from smallfiles.pack.verifying import verify as verify

__getattr__ = lazy.names(__name__)


Verify = Literal["full", "sample", "none"]
OnError = Literal["stop", "skip"]
Check = Literal["none", "header", "decode"]


def parse_part(text: str) -> tuple[int, int]:
    """Parse `k/n`, the part of a job array to pack, as given on the command line.

    Raises:
        UsageError: The text does not have this form, or k is not in 1..n.
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
class Scaling:
    """How images are scaled before they are packed as JPEGs.

    Args:
        short_side: The shorter side of a scaled image in pixels. Smaller images are not enlarged.
        quality: JPEG quality from 1 to 100. It is lowered for a JPEG that would be larger than its source.
    """

    short_side: int
    quality: int

    def record(self) -> dict[str, Any]:
        """Return the parameters that determine the new bytes, for the provenance."""
        return {"short_side": self.short_side, "store": "jpeg", "quality": self.quality}


def described(record: Mapping[str, Any]) -> str:
    """Describe a record of scaling in words. Records come from files, so any entry may be missing."""
    quality = f" of quality {record['quality']} at most" if "quality" in record else ""
    if record.get("upright"):  # an option of version 0.1.0
        return f"turned upright as EXIF says, as jpeg{quality}"
    short_side, store = record.get("short_side", "?"), record.get("store", "?")
    return f"scaled to a shorter side of {short_side} pixels as {store}{quality}"


@dataclass(frozen=True)
class Rescaled:
    """The effect of scaling in a whole run.

    Args:
        scaling: How images were scaled.
        bytes_before: Total size of the encoded sources in bytes.
        bytes_after: Total size of the packed images in bytes.
    """

    scaling: Scaling
    bytes_before: int
    bytes_after: int

    def as_json(self) -> dict[str, Any]:
        """Return the report as a dictionary that JSON can store."""
        return {
            **self.scaling.record(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }

    def sentence(self, *, planned: bool = False) -> str:
        """Return a sentence on the cost of scaling, for people. `planned` marks the cost as an estimate."""
        about = "at most " if planned else ""
        times = self.bytes_after / max(1, self.bytes_before)
        return f"{described(self.scaling.record())}: {about}{times:.2f} times the bytes of the source"


@dataclass(frozen=True)
class PackConfig:
    """How to pack.

    Args:
        format: Name of the format. If it is None, the output's suffix determines the format.
        options: The format's `Options`. None means its defaults.
        in_flight: How many files are opened at once. If it is None, a number is chosen, which is large if
            files must be waited for.
        verify: Whether to read back everything, a sample, or nothing before publishing.
        on_error: Whether to stop at sources that cannot be packed, or to leave them out and report them.
        check: How a source's bytes are examined: not at all, by header and end, or by decoding.
        shuffle: Seed of a full shuffle. None keeps the manifest's order.
        part: (k, n) packs part k of n, counted from 1. None packs everything.
        merge: Whether to join the parts instead of packing.
        digest: Whether to compute the content digest while writing.
        resize: The number of pixels to which the shorter side of larger images is scaled down. If it is None,
            images are not scaled.
        pixels: Whether to store the scaled images as `.npy` files of pixels, which are never decoded again.
        quality: JPEG quality of images that are encoded again, from 1 to 100.
        storage_timeout_s: How long to wait for storage that does not answer, in seconds. This is not the
            fault of a sample. So `on_error` does not apply: the run stops, and the same command resumes it or
            starts over.
    """

    format: str | None = option(
        None,
        "overrides the suffix of OUT: files, arrow, hdf5, tar, squashfs, or one of an installed package",
    )
    options: Any = None
    in_flight: int | None = option(
        None, "files opened (and scaled) at once; chosen by file system if not given", least=1, most=1024
    )
    verify: Verify = option("sample", "what to read back before publishing")
    on_error: OnError = option("stop", "at a file that cannot be packed: stop, or leave it out and report it")
    check: Check = option("header", "how to examine each file's bytes; decode: images and .npy")
    shuffle: int | None = option(None, "full shuffle from this seed", least=0, metavar="SEED")
    part: tuple[int, int] | None = option(
        None,
        "pack part k of n (for job arrays)",
        parse=parse_part,
        show="{0[0]}/{0[1]}".format,
        metavar="K/N",
    )
    merge: bool = option(False, "join the parts, the same bytes as one run")
    digest: bool = option(True, "take no content digest while writing")
    resize: int | None = option(
        None, "scale images down until their shorter side is this", least=1, metavar="PIXELS"
    )
    pixels: bool = option(False, "store scaled images as pixels in .npy files (larger, never decoded again)")
    quality: int = option(
        90,
        "of JPEGs that are encoded again, 1 to 100; lower where a file would grow",
        least=1,
        most=100,
        metavar="Q",
    )
    storage_timeout_s: float = timeout_option()

    def __post_init__(self) -> None:
        check(self)
        if self.part is not None and self.merge:
            raise UsageError(
                "a part and a merge were asked for at once",
                expected="one of the two",
                next_step="Pack all parts first, then merge in a job that depends on them",
            )
        if self.resize is None and (self.pixels, self.quality) != (False, 90):
            stored = "as pixels" if self.pixels else f"with quality {self.quality}"
            raise UsageError(
                f"images are to be stored {stored}, and not resized",
                expected="resize with it, since bytes are kept as they are otherwise",
                next_step="Say --resize 256, or leave the others out",
            )

    @property
    def scaling(self) -> Scaling | None:
        """How images are scaled and encoded again.

        It is None if they are not, or if they are stored as pixels.
        """
        return None if self.resize is None or self.pixels else Scaling(self.resize, self.quality)

    def to_cli(self, source: str, out: str) -> str:
        """Return the command that does the same run, to be pasted into a job script."""
        more = [word for name, value in _changed_options(self.options) for word in ("-O", f"{name}={value}")]
        return shlex.join(["smallfiles", "pack", source, out, *to_argv(self), *more])


def _changed_options(options: Any) -> list[tuple[str, Any]]:
    if options is None:
        return []
    default = vars(type(options)())
    return [(name, value) for name, value in vars(options).items() if value != default[name]]


@dataclass(frozen=True)
class Skipped:
    """A sample that was left out, and why."""

    key: str
    reason: str


def unpackable(faults: Sequence[Skipped], total: int, where: str) -> PackError:
    """Return the error for sources that cannot be packed. Its attribute `faults` holds the whole list."""
    listed = first_few((fault.reason for fault in faults), len(faults))
    error = PackError(
        f"{len(faults):,} of {total:,} samples from {where} cannot be packed: {listed}",
        expected="samples that can all be read",
        next_step="Repair or remove them, or leave them out with --on-error skip"
        if len(faults) < total
        else "Check that this is where the files are (--root says it), or repair them",
    )
    error.faults = tuple(faults)
    return error


@dataclass(frozen=True)
class PackPlan:
    """The output that a run would write, as a dry run reports it.

    Args:
        samples: Number of samples to pack.
        payload_bytes: Total size of the encoded samples in bytes. If images are scaled, it is an upper bound
            or an estimate.
        files: Number of data files that would be written, without indexes and digests.
        inodes_now: Number of files and folders that the samples occupy now (1 if they are in an archive).
        inodes_then: Number of files and folders afterwards, including indexes and digests.
        free_bytes: Free space in bytes where the output goes.
        to_do: Index ranges of the samples, one per data file.
        resize: What scaling would cost. It is None if images are not scaled.
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
    """The report of a run.

    Args:
        path: The file or folder that was published.
        format: Name of the format.
        samples: Number of samples in the output.
        payload_bytes: Total size of the encoded samples in bytes.
        file_bytes: Total size of all published files in bytes.
        files: Number of files that were published.
        seconds: Time from the first read to the publication.
        write_s: The part of this time until the last byte was written, before verification.
        verified: Number of samples that were read back and compared.
        resumed: Number of samples that an earlier, interrupted run had packed.
        skipped: Samples that were left out (only with `on_error="skip"`).
        in_flight: How many files were opened at once.
        resize: What scaling cost. It is None if images were not scaled.
        reused: Whether the same part had already been packed by an earlier run.
        exif_rotated: Number of images that say in EXIF that viewers should turn them (0 with `check="none"`).
        undecoded: Number of samples that `check="decode"` could not decode, because it decodes only images
            and .npy files.
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
    exif_rotated: int = 0
    undecoded: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the report as a dictionary that can be written as JSON.

        Its names are those that all verbs share.
        """
        record = dataclasses.asdict(self)
        record |= {"path": str(self.path), "bytes": record.pop("payload_bytes")}
        record |= {name: round(record[name], 3) for name in ("seconds", "write_s")}
        record["samples_per_s"] = round(self.samples / self.seconds, 1) if self.seconds else 0.0
        del record["resize"]
        return record | ({} if self.resize is None else {"resize": self.resize.as_json()})


def format_and_options(config: PackConfig, out: Path) -> tuple[str, Any]:
    """Return the name and the options of the format. Defaults are filled in, and the type is checked."""
    from smallfiles import formats

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
