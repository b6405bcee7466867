"""Faithful small copies of real data sets, made from a seed without a download or a licence.

    folder        ImageFolder: one folder per class, named after what it shows
    prepared      ImageNet in train/<wnid>/ and val/<wnid>/
    kaggle        ImageNet as on Kaggle: flat val, LOC_*.csv, ImageSets
    official      ImageNet as distributed: tar of tars, flat tar, devkit with meta.mat
    flickr30k     Flickr30K: nested folders, results.csv with its bad row, tokens, Karpathy's JSON
    segmentation  images/ and masks/ with the class number of each pixel
    table         images/ and labels.csv with a class and a number for each

Equal arguments give equal bytes in one locked environment on one platform, for any number of threads. The
trap: another build of the JPEG encoder may give other bytes, so digests of these pictures are not constants.
All notebooks use it from 01 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import Any

from smallfiles.atomic import check_room, drafted
from smallfiles.errors import OutputExistsError, UsageError, writing
from smallfiles.machine import usable_cpus
from smallfiles.progress import progress
from smallfiles.samples import UNLABELLED
from smallfiles.sources.synthetic import layouts
from smallfiles.sources.synthetic.pictures import SyntheticPlan

__all__ = ["LAYOUTS", "Made", "make"]

_AHEAD = 64
"""Number of pictures that are drawn ahead of writing, which bounds memory."""


@dataclass(frozen=True)
class Made:
    """A synthetic data set that was made, with the truth to check a loader against.

    Args:
        path: The folder.
        layout: One of `LAYOUTS`.
        images: Number of pictures in all splits.
        bytes: Total size of their files in bytes.
        seconds: Time that making them took.
        files: Relative path of each picture. For a member of a tar, it follows the name of the tar.
        targets: For each file, the label (rank of the sorted wnid or folder name) or the captions. Test
            pictures have a target too, although no file states their class.
        splits: For each file `train`, `val` or `test`.
        classes: wnids or folder names in label order. It is empty for captions and masks.
    """

    path: Path
    layout: str
    images: int
    bytes: int
    seconds: float
    files: tuple[str, ...] = field(default=(), repr=False)
    targets: tuple[Any, ...] = field(default=(), repr=False)
    splits: tuple[str, ...] = field(default=(), repr=False)
    classes: tuple[str, ...] = ()

    @property
    def truth(self) -> dict[str, Any]:
        """The target of each picture by its file name without folders.

        These names are unique in every layout.
        """
        return {PurePosixPath(f).name: target for f, target in zip(self.files, self.targets, strict=True)}


@dataclass(frozen=True)
class _Layout:
    splits: tuple[str, ...]
    paths: Callable[[SyntheticPlan], list[str]]
    tables: Callable[[SyntheticPlan, Path], None] | None = None  # writes the label files


LAYOUTS: dict[str, _Layout] = {
    "folder": _Layout(("train",), layouts.folder_paths),
    "prepared": _Layout(("train", "val"), layouts.prepared_paths),
    "kaggle": _Layout(("train", "val", "test"), layouts.kaggle_paths, layouts.write_kaggle_tables),
    "official": _Layout(("train", "val"), layouts.official_paths, layouts.write_devkit),
    "flickr30k": _Layout(("train",), layouts.flickr_paths, layouts.write_flickr_tables),
    "segmentation": _Layout(("train",), layouts.numbered_paths, layouts.write_masks),
    "table": _Layout(("train",), layouts.numbered_paths, layouts.write_labels),
}


def make(
    out: Path,
    layout: str,
    *,
    count: int,
    seed: int = 0,
    classes: int = 10,
    val: int | None = None,
    size: tuple[int, int] = (500, 375),
) -> Made:
    """Make a small data set in one of the layouts that are common on disks.

    This gives the course thousands of small files of realistic sizes on any machine.

    Args:
        out: The folder to create. It must not exist.
        layout: One of `LAYOUTS`.
        count: Number of pictures in all splits. In Kaggle's layout, a twentieth of them are for testing.
        seed: Another seed gives other pictures.
        classes: Number of classes, at most 1,000.
        val: How many of `count` are for validation. The default is a tenth if the layout has such a split.
        size: Typical width and height in pixels. Smaller pictures suit quick tests.

    Returns:
        What was made.

    Raises:
        UsageError: The numbers make no sense.
        OutputExistsError: `out` exists.
        ResourceError: There is not enough space. Nothing is left behind.
    """
    started = monotonic()
    plan = SyntheticPlan(seed, *_parts(layout, count, val), classes, size)
    plan.check()
    out = Path.cwd() / out
    drawn_bytes = 0
    with (
        drafted(out, "drawing") as draft,
        ThreadPoolExecutor(usable_cpus(), "draw") as pool,
        progress(count, "drawing", unit="images") as bar,
    ):
        check_room(out, round(count * size[0] * size[1] * 0.62) + (1 << 20), count + 64)
        draft.clear()

        def draw(indices: Iterable[int]) -> Iterator[bytes]:
            nonlocal drawn_bytes
            waiting = iter(indices)
            while some := list(islice(waiting, _AHEAD)):
                for data in pool.map(plan.file_bytes, some):
                    drawn_bytes += len(data)
                    bar.advance(1, bytes=len(data))
                    yield data

        with writing(out):
            drawn = draft.partial / out.name  # never used by another run
            drawn.mkdir()
            _write(plan, layout, drawn, draw)
            draft.finish([out.name], draft.data)
            try:
                draft.publish(durable=False)  # it can be drawn again
            except OutputExistsError:
                draft.discard()
                raise
    return _made(plan, out, layout, drawn_bytes, monotonic() - started)


def _parts(layout: str, count: int, val: int | None) -> tuple[int, int, int]:
    """Return the number of training, validation and test pictures."""
    if layout not in LAYOUTS:
        raise UsageError(
            f"the layout {layout!r} is unknown",
            expected=f"one of {', '.join(LAYOUTS)}",
            next_step="Choose one of these",
        )
    splits = LAYOUTS[layout].splits
    if val and "val" not in splits:
        raise UsageError(
            f"{val} val pictures were requested of the layout {layout}",
            expected=f"none: it has {' and '.join(splits)} only",
            next_step="Leave val out, or choose another layout",
        )
    val_count = (count // 10 if "val" in splits else 0) if val is None else val
    test_count = count // 20 if "test" in splits else 0
    return count - val_count - test_count, val_count, test_count


def _write(plan: SyntheticPlan, layout: str, root: Path, draw: layouts.Draw) -> None:
    kind = LAYOUTS[layout]
    if layout == "official":
        layouts.write_official_tars(plan, root, draw)
    else:
        _write_files(root, kind.paths(plan), draw)
    if kind.tables:
        kind.tables(plan, root)


def _write_files(root: Path, paths: Sequence[str], draw: layouts.Draw) -> None:
    for folder in {str(Path(path).parent) for path in paths}:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path, data in zip(paths, draw(range(len(paths))), strict=True):
        (root / path).write_bytes(data)


def _made(plan: SyntheticPlan, out: Path, layout: str, drawn_bytes: int, seconds: float) -> Made:
    files = LAYOUTS[layout].paths(plan)
    targets, classes = _targets(plan, layout)
    return Made(
        *(out, layout, plan.count, drawn_bytes, seconds),
        files=tuple(files),
        targets=tuple(targets),
        splits=("train",) * plan.train + ("val",) * plan.val + ("test",) * plan.test,
        classes=classes,
    )


def _targets(plan: SyntheticPlan, layout: str) -> tuple[Sequence[Any], tuple[str, ...]]:
    if layout == "flickr30k":
        return layouts.flickr_captions(plan), ()
    if layout == "segmentation":
        return [UNLABELLED] * plan.count, ()
    if layout in ("folder", "table"):
        return layouts.folder_labels(plan), tuple(sorted(layouts.folder_names(plan)))
    return [plan.label(index) for index in range(plan.count)], layouts.wnids(plan.classes)
