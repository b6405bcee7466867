"""Labels from names, if no member of a tar has any: from class folders, or from tars inside the tar.

The trap: shards are tars too. Training on the "classes" `00000` and `00001` gives nothing. So a tar is a
class only if its name can be that of a class (ImageNet's `n01440764.tar`, `cat.tar`) and it contains only
images; in all other cases the user must say so. Short, since sources and formats share it.
Notebook 05 reads ImageNet's tar of tars.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from smallfiles.errors import FormatError, SourceError, first_few, raised_as
from smallfiles.formats.tar import grouping
from smallfiles.formats.tar.fields import Annotated
from smallfiles.manifest.class_folders import Labelled, by_folder
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural

_WNID = re.compile(r"n\d{8}")
_COUNTED = re.compile(r"[0-9a-f-]{16,}|\d+")  # hashes too


def label(
    files: Files,
    annotated: Sequence[Annotated],
    split: str | None = None,
    *,
    named_by_tars: bool = False,
    strict: bool = False,
) -> Labelled:
    """Label the samples of archives by their folders.

    Args:
        files: The names in all archives.
        annotated: The archives; none has targets.
        split: The requested split; None takes the only one, or train.
        named_by_tars: Whether the user said that each tar, and each folder, is a class.
        strict: Ignore no sample.

    Returns:
        Labels, -1 if there are no folders.

    Raises:
        SourceError: Other members may be the targets, the tars may be shards, the folders contain parts
            of samples, several images share a stem, or the split is not there.
    """
    path, more = files.where, _unknown(annotated)
    tars = sorted({name for one in annotated for name in one.data.inside})
    shards = len(tars) > 1 and not _are_names(tars)
    found = (
        None
        if shards and not named_by_tars
        else by_folder(files, split, strict=strict, trusted=named_by_tars)
    )
    tars = tars if found is None else [name for name in tars if name in found.classes]
    if found is None and _are_pictured(annotated):
        return by_folder(files, split, no_classes=True, strict=strict)
    if found is None or (tars and not named_by_tars and (more or len(found.classes) < 2)):
        why = f"{more} beside the images" if more else "nothing that labels the images"
        raise SourceError(
            f"{path} holds {plural(len(tars), 'tar')} ({first_few(tars, len(tars), 3)}) with {why}",
            expected="a .cls, .txt or .json member for each image, or tars of only images that are named "
            "as classes",
            next_step="If each tar is one class, say so with --source tarball; if these are shards without "
            "labels, take them with --unlabelled",
        )
    if not found.classes and found.split != "test":
        refuse_unknown(annotated, path)
    if found.classes and (rivals := next((one for one in annotated if one.rivals), None)):
        with raised_as(FormatError, SourceError):  # each may be a picture of the class
            raise grouping.shared_stem(rivals.data, rivals.rivals)
    return found


def refuse_unknown(annotated: Sequence[Annotated], path: Path) -> None:
    """Raise SourceError if members without a known meaning may be the targets of the samples."""
    further = not _are_pictured(annotated)
    if kinds := [kind for one in annotated for kind in sorted(one.beside if further else one.unknown)]:
        found = list(dict.fromkeys(kinds))
        raise SourceError(
            f"{path} has {first_few(found, len(found), 3)} beside its images, which is no target here",
            expected="a class number in a .cls, captions in a .txt, or either in a .json",
            next_step="Number the classes in a manifest and pack that with --root and this tar, or take the "
            "images without targets (--unlabelled)",
        )


def ignored_folders(annotated: Sequence[Annotated], kind: str, path: Path) -> tuple[str, ...]:
    """A note on folders that look like classes although captions are the targets."""
    if kind == "label" or any(one.data.is_ours for one in annotated):
        return ()
    found = by_folder(Files(path, pa.concat_arrays([one.data.names for one in annotated])), trusted=True)
    tars = {name for one in annotated for name in one.data.inside}
    folders = [name for name in found.classes if name not in tars]
    if len(folders) < 2:
        return ()
    return (f"captions are the targets: the folders {first_few(folders, len(folders))} are not classes",)


def _are_pictured(annotated: Sequence[Annotated]) -> bool:
    """Whether each sample has a further picture, a mask for example: then it need not have another target."""
    return all(one.pictured for one in annotated if len(one.data.names))


def _unknown(annotated: Sequence[Annotated]) -> str:
    kinds = {kind for one in annotated for kind in one.beside}
    kinds |= {"json" for one in annotated if any(one.metas)}
    return first_few(sorted(kinds), len(kinds), 3)


def _are_names(tars: Sequence[str]) -> bool:
    """Whether the names of tars can be those of classes: names of shards differ only in a number."""
    if all(map(_WNID.fullmatch, tars)):
        return True
    kinds = {_COUNTED.sub("#", name) for name in tars}
    return len(kinds) > 1 or not any("#" in kind for kind in kinds)
