"""ImageNet as it is downloaded: a tar of 1000 tars for training, a flat tar and a devkit for validation.

Both are read in place, so that neither 1.28 million inodes nor hours of unpacking are spent.

The trap: the flat validation tar holds no labels. They come from the devkit, whose ids are not the
labels of PyTorch models (see `order`). Notebook 05 packs shards straight from the tar of tars.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.errors import SourceError, first_few
from smallfiles.folders import canonical_split, choose_split
from smallfiles.manifest import Manifest
from smallfiles.manifest.arrays import as_mask, column, to_numpy
from smallfiles.progress import plural
from smallfiles.samples import UNLABELLED
from smallfiles.sources.imagenet.order import refuse_other_order
from smallfiles.sources.imagenet.truth import Beside, in_order, look_beside
from smallfiles.sources.record import Options, Source
from smallfiles.sources.tarball import Archive, open_store, samples_of

TARS = {
    "train": "ILSVRC2012_img_train.tar",
    "val": "ILSVRC2012_img_val.tar",
    "test": "ILSVRC2012_img_test*.tar",
}
_ROLES = {
    "train": r"^(train/)?n\d{8}/n\d{8}_\d+\.JPEG$",
    "val": r"^(val/)?(n\d{8}/)?ILSVRC2012_val_\d{8}\.JPEG$",
    "test": r"^(test/)?ILSVRC2012_test_\d{8}\.JPEG$",
}
_WNID = r"(?s)^(?:.*/)?(n\d{8})[_/].*$"
_LOOK_AT = 200


def find_tars(folder: Path) -> dict[str, Path]:
    """The official tars in a folder, by split."""
    found = {split: sorted(folder.glob(pattern)) for split, pattern in TARS.items()}
    return {split: paths[0] for split, paths in found.items() if paths and paths[0].is_file()}


def choose_tar(folder: Path, options: Options) -> tuple[Path, tuple[str, ...]]:
    """The tar of the split that was asked for, and notes."""
    found = find_tars(folder)
    split, notes = choose_split(list(found), options.split, folder)
    return found[split], notes


def role_of(archive: Archive) -> str | None:
    """Which split of ImageNet an archive is, by the names in it; None if it is something else."""
    names = archive.take(np.flatnonzero(archive.having((".jpeg",)))[:_LOOK_AT]).names.to_pylist()
    for split, pattern in _ROLES.items():
        if names and all(re.match(pattern, name) for name in names):
            return split
    return None


def from_archive(archive: Archive, options: Options, notes: tuple[str, ...] = ()) -> Source:
    """Label the files of an official tar.

    Args:
        archive: Index of the tar.
        options: `split`, `labels`, `label_order`, `strict` and `unlabelled` count here.
        notes: What is known about the choice already.

    Raises:
        SourceError: It is no ImageNet tar, or nothing labels the validation images.
    """
    split = role_of(archive)
    if split is None:
        raise SourceError(
            f"{archive.path} is no tar of ImageNet: it holds {archive.contents_in_words()}",
            expected=f"{' or '.join(TARS.values())}",
            next_step="Check the path, or read it as any tar (kind tarball)",
        )
    if options.split is not None and canonical_split(options.split) != split:
        raise SourceError(
            f"{archive.path} is the {split} split, and {options.split!r} was asked for",
            expected="the tar of this split",
            next_step=f"Give {TARS.get(canonical_split(options.split) or '', 'another tar')}",
        )
    samples = samples_of(archive, options)
    beside = look_beside([archive.path.absolute().parent], options.labels)
    labels, classes, more = _labels(samples.names, split, beside, options)
    if split != "test":
        keep = labels != UNLABELLED
        samples, labels = samples.select(keep), labels[keep]
    manifest = Manifest.from_columns(
        samples.names, labels, name="imagenet", split=split, classes=tuple(classes), sizes=samples.sizes
    )
    refuse_other_order(manifest, options.label_order)
    kind = "imagenet, official tar"
    return Source(manifest, open_store(archive), kind, notes + archive.notes + more, archive.path)


def _labels(
    names: pa.StringArray, split: str, beside: Beside, options: Options
) -> tuple[npt.NDArray[np.int32], list[str], tuple[str, ...]]:
    if split == "test" or options.unlabelled:
        note = f"{plural(len(names), 'image')} without a class: label {UNLABELLED}"
        return np.full(len(names), UNLABELLED, np.int32), beside.classes(), (note,)
    in_folders = split == "train" or pc.all(pc.match_substring_regex(names, _WNID)).as_py()
    if in_folders:
        wnids: pa.Array = pc.replace_substring_regex(names, _WNID, r"\1")
        notes: tuple[str, ...] = ()
    else:
        found, origin = beside.wnids_of_val(names.to_pylist())
        wnids, notes = column(found, pa.string()), (f"labels read from {origin}",)
    occurring = [wnid for wnid in wnids.unique().to_pylist() if wnid is not None]
    classes = in_order(beside.classes() or occurring, options.label_order, beside)
    labels = pc.index_in(wnids, column(classes, pa.string()))
    if labels.null_count:
        notes += _without_label(names.filter(labels.is_null()).to_pylist(), len(names), options)
    return np.where(as_mask(labels.is_valid()), to_numpy(labels), np.int32(UNLABELLED)), classes, notes


def _without_label(names: list[str], total: int, options: Options) -> tuple[str, ...]:
    told = f"{plural(len(names), 'image')} without a label: {first_few(names, len(names))}"
    if options.strict or len(names) == total:
        raise SourceError(
            told,
            expected="a label for each image",
            next_step="Check that the devkit or class list belongs to this tar (ILSVRC2012)",
        )
    return (f"left aside: {told}",)
