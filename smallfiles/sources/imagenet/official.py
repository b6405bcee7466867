"""ImageNet as downloaded: a tar of 1000 tars for training, a flat tar and a devkit for validation.

Both are read in place, which saves 1.28 million inodes and hours of unpacking.

The trap: the flat validation tar contains no labels. They come from the devkit, whose ids are not the
labels of PyTorch models (see `order`). Notebook 05 packs shards straight from the tar of tars.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from smallfiles.errors import SourceError
from smallfiles.folders import SourceOptions, by_suffix, canonical_split, choose_split, in_words
from smallfiles.formats.tar.archive import Archive
from smallfiles.sources.imagenet.labels import find_label_files, label, manifest_of
from smallfiles.sources.record import Source
from smallfiles.sources.tarball import TarStore, samples_of

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
_LOOK_AT = 200


def find_tars(folder: Path) -> dict[str, Path]:
    """The official tars in a folder, by split."""
    found = {split: sorted(folder.glob(pattern)) for split, pattern in TARS.items()}
    return {split: paths[0] for split, paths in found.items() if paths and paths[0].is_file()}


def choose_tar(folder: Path, options: SourceOptions) -> tuple[Path, tuple[str, ...]]:
    """The tar of the requested split, and notes."""
    found = find_tars(folder)
    split, notes = choose_split(list(found), options.split, folder)
    return found[split], notes


def role_of(archive: Archive) -> str | None:
    """The split of ImageNet that an archive is, by its member names; None if it is something else."""
    names = archive.take(np.flatnonzero(archive.having((".jpeg",)))[:_LOOK_AT]).names.to_pylist()
    for split, pattern in _ROLES.items():
        if names and all(re.match(pattern, name) for name in names):
            return split
    return None


def from_archive(archive: Archive, options: SourceOptions, notes: tuple[str, ...] = ()) -> Source:
    """Label the files of an official tar.

    Args:
        archive: Index of the tar.
        options: `split`, `labels`, `strict` and `unlabelled` are used.
        notes: On the choice of the tar.

    Raises:
        SourceError: It is no ImageNet tar, or there are no labels for the validation images.
    """
    options.refuse_unsupported("ImageNet in tars", archive.path)
    split = role_of(archive)
    if split is None:
        there = in_words(by_suffix(archive.names.to_pylist()))
        raise SourceError(
            f"{archive.path} is no tar of ImageNet: it contains {there}",
            expected=f"{' or '.join(TARS.values())}",
            next_step="Check the path, or read it as any tar (--source tarball)",
        )
    if options.split is not None and canonical_split(options.split) != split:
        raise SourceError(
            f"{archive.path} is the {split} split, and {options.split!r} was requested",
            expected="the tar of this split",
            next_step=f"Give {TARS.get(canonical_split(options.split) or '', 'another tar')}",
        )
    samples = samples_of(archive, options)
    label_files = find_label_files([archive.path.absolute().parent], options.labels)
    found = label(samples.names, split, label_files, options)
    samples = samples.select(found.keep)
    manifest = manifest_of(found, samples.names, split, samples.sizes)
    notes += archive.notes + found.notes
    return Source(manifest, TarStore(archive), "imagenet, official tar", notes, archive.path)
