"""Faithful small copies of real data sets, from a seed: no download, no licence, no waiting.

    folder      ImageFolder: one folder a class, named by what it shows
    prepared    ImageNet in train/<wnid>/ and val/<wnid>/
    kaggle      ImageNet as on Kaggle: flat val, LOC_*.csv, ImageSets
    official    ImageNet as handed out: tar of tars, flat tar, devkit with meta.mat
    flickr30k   Flickr30K: nested folders, results.csv with its bad row, tokens, Karpathy's JSON

Equal arguments give equal bytes for one lock of the environment on one platform, whatever the number
of processes. The trap: another build of the JPEG encoder may give other bytes, so digests of these
pictures are not constants to write down. All notebooks use it from 01 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from time import monotonic

from smallfiles.atomic import check_room, drafted
from smallfiles.errors import OutputExistsError, UsageError, writing
from smallfiles.machine import usable_cpus
from smallfiles.progress import progress
from smallfiles.samples import Target
from smallfiles.sources.synthetic import flickr, official, trees, wordnet
from smallfiles.sources.synthetic.plans import Plan, check, oddities
from smallfiles.sources.synthetic.pool import WorkerPool
from smallfiles.sources.synthetic.trees import Draw

__all__ = ["LAYOUTS", "Made", "OddFile", "make"]


@dataclass(frozen=True)
class OddFile:
    """A file that is not an ordinary JPEG: its path as in `Made.files`, and what is odd about it."""

    path: str
    kind: str


@dataclass(frozen=True)
class Made:
    """What was made, with the truth that a loader can be held against.

    Args:
        path: The folder.
        layout: One of `LAYOUTS`.
        images: Number of pictures in all splits.
        bytes: Sum of their files.
        seconds: Time it took.
        odd: The odd and broken files, with their kind.
        files: Relative path of each picture; a member of a tar follows the tar's name.
        targets: For each file the label (rank of the sorted wnid or folder name) or the captions;
            also for test pictures, whose class no file tells.
        splits: For each file `train`, `val` or `test`.
        classes: wnids or folder names in label order; empty for captions.
    """

    path: Path
    layout: str
    images: int
    bytes: int
    seconds: float
    odd: tuple[OddFile, ...] = ()
    files: tuple[str, ...] = field(default=(), repr=False)
    targets: tuple[Target, ...] = field(default=(), repr=False)
    splits: tuple[str, ...] = field(default=(), repr=False)
    classes: tuple[str, ...] = ()

    @property
    def truth(self) -> dict[str, Target]:
        """Target by file name without folders; names are unique in every layout."""
        return {PurePosixPath(f).name: target for f, target in zip(self.files, self.targets, strict=True)}


@dataclass(frozen=True)
class _Layout:
    paths: Callable[[Plan], list[str]]
    write: Callable[[Plan, Path, Draw], None]
    splits: tuple[str, ...]  # those that it has


LAYOUTS: dict[str, _Layout] = {
    "folder": _Layout(trees.folder_paths, trees.write_folder, ("train",)),
    "prepared": _Layout(trees.prepared_paths, trees.write_prepared, ("train", "val")),
    "kaggle": _Layout(trees.kaggle_paths, trees.write_kaggle, ("train", "val", "test")),
    "official": _Layout(official.paths, official.write, ("train", "val")),
    "flickr30k": _Layout(flickr.paths, flickr.write, ("train",)),
}


def make(
    out: Path,
    layout: str,
    *,
    count: int,
    seed: int = 0,
    classes: int = 10,
    val: int | None = None,
    test: int | None = None,
    odd: bool = False,
    broken: int = 0,
    workers: int | None = None,
    size: tuple[int, int] = (500, 375),
    show_progress: bool | None = None,
) -> Made:
    """Make a small data set in one of the layouts that people have on their disks.

    A course on small files needs small files: thousands, of real sizes, on any machine.

    Args:
        out: The folder to be; must not exist.
        layout: One of `LAYOUTS`.
        count: Number of pictures in all splits.
        seed: Another seed gives other pictures.
        classes: Number of classes, at most 1,000.
        val: How many of `count` are for validation; a tenth by default where the layout has them.
        test: How many of `count` are for testing; a twentieth by default where the layout has them.
        odd: Put a few odd but readable files among the training pictures, as in ImageNet.
        broken: Make this many training files zero bytes long or cut off, in turn.
        workers: Processes that draw; as many as usable CPUs by default.
        size: Typical width and height in pixels; smaller ones for quick tests.
        show_progress: As in `smallfiles.progress.progress`.

    Returns:
        What was made.

    Raises:
        UsageError: The numbers make no sense.
        OutputExistsError: `out` exists.
        ResourceError: Not enough space, or a process was killed; nothing is left behind.
    """
    started = monotonic()
    kind = _layout(layout)
    parts = _parts(layout, kind.splits, count, val, test)
    plan = Plan(seed, *parts, classes, size, odd, broken)
    check(plan)
    pool_size = _pool_size(workers, count)
    out = Path.cwd() / out
    drawn_bytes = 0
    with (
        drafted(out, "drawing") as draft,
        WorkerPool(plan, pool_size) as pool,
        progress(count, "drawing", unit="images", enabled=show_progress) as bar,
    ):
        check_room(out, _estimated_bytes(plan), count + 64)
        draft.clear()

        def draw(indices: Iterable[int]) -> Iterator[bytes]:
            nonlocal drawn_bytes
            for data in pool.draw(indices):
                drawn_bytes += len(data)
                bar.advance(1, bytes=len(data))
                yield data

        with writing(out):
            drawn = draft.partial / out.name  # never used by another run
            drawn.mkdir()
            kind.write(plan, drawn, draw)
            draft.finish([out.name], draft.data)
            try:
                draft.publish(durable=False)  # a seed draws it again
            except OutputExistsError:
                draft.discard()
                raise
    return _made(plan, out, layout, drawn_bytes, monotonic() - started)


def _layout(name: str) -> _Layout:
    if name not in LAYOUTS:
        raise UsageError(
            f"the layout {name!r} is unknown",
            expected=f"one of {', '.join(LAYOUTS)}",
            next_step="Choose one of these",
        )
    return LAYOUTS[name]


def _parts(
    layout: str, has: tuple[str, ...], count: int, val: int | None, test: int | None
) -> tuple[int, int, int]:
    """Number of training, validation and test pictures."""
    for split, asked in (("val", val), ("test", test)):
        if asked and split not in has:
            raise UsageError(
                f"{asked} {split} pictures were asked of the layout {layout}",
                expected=f"none: it has {' and '.join(has)} only",
                next_step=f"Leave {split} out, or choose another layout",
            )
    val_count = (count // 10 if "val" in has else 0) if val is None else val
    test_count = (count // 20 if "test" in has else 0) if test is None else test
    return count - val_count - test_count, val_count, test_count


def _pool_size(workers: int | None, count: int) -> int:
    if workers is not None and workers < 1:
        raise UsageError(
            f"{workers} workers were asked for", expected="at least 1", next_step="Leave workers out"
        )
    few = 1 + count // 40  # a process costs as much as some forty pictures
    return min(few, usable_cpus()) if workers is None else min(workers, max(1, count))


def _estimated_bytes(plan: Plan) -> int:
    return round(plan.count * plan.size[0] * plan.size[1] * 0.62) + (1 << 20)


def _made(plan: Plan, out: Path, layout: str, drawn_bytes: int, seconds: float) -> Made:
    files = LAYOUTS[layout].paths(plan)
    targets, classes = _targets(plan, layout)
    return Made(
        *(out, layout, plan.count, drawn_bytes, seconds),
        odd=tuple(OddFile(files[index], kind) for index, kind in sorted(oddities(plan).items())),
        files=tuple(files),
        targets=tuple(targets),
        splits=("train",) * plan.train + ("val",) * plan.val + ("test",) * plan.test,
        classes=classes,
    )


def _targets(plan: Plan, layout: str) -> tuple[Sequence[Target], tuple[str, ...]]:
    if layout == "flickr30k":
        return flickr.targets(plan), ()
    if layout == "folder":
        return trees.folder_labels(plan), tuple(sorted(trees.folder_names(plan)))
    return [plan.label(index) for index in range(plan.count)], wordnet.wnids(plan.classes)
