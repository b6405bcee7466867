"""The record of one finished data file: what a run that resumes, a merge and the read-back know of it.

The trap: a record that a killed run left half written must not be believed; so its JSON file is removed first
and written last. Notebook 03 shows a killed run.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from smallfiles.atomic import sync, write_json
from smallfiles.digests import hash_block
from smallfiles.pack.compare import Expected
from smallfiles.pack.config import Skipped
from smallfiles.pack.job import Job


@dataclass(frozen=True)
class Written:
    """The record of one finished data file.

    Args:
        name: File name.
        start: Its first sample in the order of packing.
        payload_bytes: Encoded bytes inside.
        skipped: Samples that were left out.
        checksums: xxh3 of each sample from `start` on, uint64 (0 for one that was left out).
        kept: Whether each of them is inside, bool.
        sidecars: Hash of each small file that was written with it, by name.
        exif_rotated: How many say in EXIF that viewers should turn them.
    """

    name: str
    start: int
    payload_bytes: int
    skipped: tuple[Skipped, ...]
    checksums: np.ndarray
    kept: np.ndarray
    sidecars: dict[str, str] = field(default_factory=dict)
    exif_rotated: int = 0

    @property
    def samples(self) -> int:
        """How many are inside."""
        return int(self.kept.sum())

    @property
    def span(self) -> slice:
        """Its samples in the order of packing."""
        return slice(self.start, self.start + len(self.kept))

    def inside(self, values: np.ndarray) -> np.ndarray:
        """Of one value per sample of `span` those of the samples inside; no copy where all are."""
        return values if self.kept.all() else values[self.kept]

    def save(self, folder: Path) -> None:
        """Write the record; the JSON file comes last and says that it is whole."""
        (folder / f"{self.name}.json").unlink(missing_ok=True)  # of a run that was killed after this point
        arrays = {"checksums": self.checksums, "kept": self.kept}
        for name, array in arrays.items():
            np.save(folder / f"{self.name}.{name}.npy", array, allow_pickle=False)
        sync(folder / f"{self.name}.{name}.npy" for name in arrays)
        facts = {
            "start": self.start,
            "payload_bytes": self.payload_bytes,
            "exif_rotated": self.exif_rotated,
            "skipped": [asdict(fault) for fault in self.skipped],
            "sidecars": self.sidecars,
        }
        write_json(folder / f"{self.name}.json", facts)

    @classmethod
    def load(cls, folder: Path, name: str) -> Written | None:
        """The record of a finished file, or None."""
        try:
            facts = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            return cls(
                name=name,
                start=int(facts["start"]),
                payload_bytes=int(facts["payload_bytes"]),
                skipped=tuple(Skipped(**fault) for fault in facts["skipped"]),
                checksums=np.load(folder / f"{name}.checksums.npy", allow_pickle=False),
                kept=np.load(folder / f"{name}.kept.npy", allow_pickle=False),
                sidecars=dict(facts["sidecars"]),
                exif_rotated=int(facts["exif_rotated"]),
            )
        except (OSError, ValueError, KeyError, TypeError, EOFError):
            return None


def expected_of(job: Job, records: Sequence[Written]) -> Expected:
    """What the data files of these records must give back."""
    return Expected(
        rows=_joined([record.inside(job.order[record.span]) for record in records]),
        checksums=_joined([record.inside(record.checksums) for record in records]),
        manifest=job.source.manifest,
        scaled=job.config.scaling is not None,
    )


def _joined(values: list[np.ndarray]) -> np.ndarray:
    return values[0] if len(values) == 1 else np.concatenate(values)


def sidecar_hashes(path: Path) -> dict[str, str]:
    """Hash of each small file that lies next to a data file, by name."""
    small_files = sorted(path.parent.glob(f"{glob.escape(path.name)}.*"))
    return {small.name: hash_block(small.read_bytes()) for small in small_files}
