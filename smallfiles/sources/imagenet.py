"""ImageNet-1k in every form that is found on clusters.

    ILSVRC/Data/CLS-LOC/{train/<wnid>/, val/ (flat), test/ (flat)}   Kaggle, LOC_* files next to ILSVRC
    train/<wnid>/  val/<wnid>/                                       prepared
    ILSVRC2012_img_train.tar (a tar of 1000 tars), ILSVRC2012_img_val.tar (flat), and the development kit

Classes are keyed by wnid, and the label is the rank of the sorted wnid. The official tars are read in place,
which saves 1.28 million inodes. Keys of the Kaggle tree begin with `ILSVRC/Data/CLS-LOC/`, as in the Jülich
manifests, whichever level of the tree is given.

The first trap: a tree whose extraction was interrupted looks like a complete one. So it is compared with the
lists in `ImageSets`, where they exist. `check_label_order` says which of two label orders a manifest has.
Notebook 02 builds these manifests, and notebook 05 packs shards from the tar of tars.

The class of a picture comes from its name, from the label files, or from the development kit:

    LOC_synset_mapping.txt   n01440764 tench, Tinca tinca        (first blank splits)
    LOC_val_solution.csv     ILSVRC2012_val_00048981,n03995372 85 1 499 272   (class, then boxes)

In the development kit, `data/meta.mat` lists the synsets, and the classes are those without children.
Line i of its ground truth is the ILSVRC2012_ID of validation image i, counted from 1.

The second trap: there are two label orders. The label of PyTorch models is the rank of the wnid among all
sorted wnids, and not ILSVRC2012_ID - 1: image 1 has the id 490 and the label 65. Both train without an error,
and a model trained with one order is no better than guessing on the other. So a few images of known labels
decide. Class names are not unique ("crane" and "maillot" occur twice), wnids are. Notebook 02 catches the
mistake.

Source: readme.txt of ILSVRC2012_devkit_t12.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from smallfiles.arrays import column
from smallfiles.errors import SourceError, first_few, refuse_shortage
from smallfiles.folders import SourceOptions, by_suffix, canonical_split, choose_split, in_words
from smallfiles.formats.tar.archive import Archive
from smallfiles.manifest import Manifest
from smallfiles.manifest.class_folders import Labelled, by_class, unlabelled
from smallfiles.manifest.listing import Files
from smallfiles.progress import plural
from smallfiles.sources import declarations, folder
from smallfiles.sources.record import FolderStore, Samples, Source, chosen_split, source_of
from smallfiles.sources.scanning import Look, Notes, Tree, bad_line, lines_of, list_folder, read_text, tree_of
from smallfiles.sources.tarball import TarStore, open_archive, samples_of


def load(path: Path, options: SourceOptions) -> Source:
    """Read ImageNet from a tree at any of its levels, a folder with the official tars, or one official tar.

    Args:
        path: The tree, folder or tar.
        options: See `SourceOptions`.

    Raises:
        SourceError: The path is not ImageNet, lacks the split or its labels, or has labels in another order.
    """
    if path.is_file():
        return from_official(open_archive(path), options)
    if tars := find_tars(path):
        split, notes = choose_split(list(tars), options.split, path)
        return from_official(open_archive(tars[split]), options, notes)
    if not find_kaggle(path) and _is_tiny(path):
        return replace(folder.load(path, options), kind="tiny-imagenet")
    return load_tree(path, options)


def recognises(look: Look) -> bool:
    """Check whether a folder looks like ImageNet."""
    if find_tars(look.path) or find_kaggle(look.path) or _is_tiny(look.path):
        return True
    if splits := look.splits():
        return any(_are_wnids(look.at(name).folders) for name in splits)
    flat_val = any(name.startswith("ILSVRC2012_val_") for name in look.at().files[:100])
    return _are_wnids(look.at().folders) or flat_val


def _are_wnids(names: list[str]) -> bool:
    return bool(names) and all(WNID.fullmatch(name) for name in names)


def _is_tiny(path: Path) -> bool:
    """Check whether this is tiny-imagenet or one of its splits.

    Its validation set has a separate annotations file.
    """
    if any(path.glob("*_annotations.txt")) or (path / "wnids.txt").is_file():
        return True
    return (path.absolute().parent / "wnids.txt").is_file() and canonical_split(
        path.absolute().name
    ) is not None


_TARS = {
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
    """Return the official tars in a folder, by split."""
    found = {split: sorted(folder.glob(pattern)) for split, pattern in _TARS.items()}
    return {split: paths[0] for split, paths in found.items() if paths and paths[0].is_file()}


def role_of(archive: Archive) -> str | None:
    """Return the split of ImageNet that an archive contains, judging by the names of its members.

    Return None if the archive is something else.
    """
    names = archive.take(np.flatnonzero(archive.having((".jpeg",)))[:_LOOK_AT]).names.to_pylist()
    for split, pattern in _ROLES.items():
        if names and all(re.match(pattern, name) for name in names):
            return split
    return None


def from_official(archive: Archive, options: SourceOptions, notes: Notes = ()) -> Source:
    """Label the files of an official tar, and make a source of them.

    Args:
        archive: Index of the tar.
        options: `split`, `labels`, `strict` and `unlabelled` are used.
        notes: Notes on the choice of the tar.

    Raises:
        SourceError: The archive is not a tar of ImageNet, or there are no labels for the validation images.
    """
    options.refuse_unsupported("ImageNet in tars", archive.path)
    split = role_of(archive)
    if split is None:
        there = in_words(by_suffix(archive.names.to_pylist()))
        raise SourceError(
            f"{archive.path} is no tar of ImageNet: it contains {there}",
            expected=f"{' or '.join(_TARS.values())}",
            next_step="Check the path, or read it as any tar (--source tarball)",
        )
    if options.split is not None and canonical_split(options.split) != split:
        raise SourceError(
            f"{archive.path} is the {split} split, and {options.split!r} was requested",
            expected="the tar of this split",
            next_step=f"Give {_TARS.get(canonical_split(options.split) or '', 'another tar')}",
        )
    samples = samples_of(archive, options)
    label_files = find_label_files([archive.path.absolute().parent], options.labels)
    found = label(samples.names, split, label_files, options)
    files = Files(archive.path, samples.names, store=TarStore(archive), sizes=samples.sizes)
    notes += archive.notes + found.notes
    return labelled_source(files, found, split, "imagenet, official tar", notes, options)


_BOXES = "ILSVRC/Annotations"
_DATA = ("ILSVRC", "Data", "CLS-LOC")
_LISTS = {"train": "train_cls.txt", "val": "val.txt", "test": "test.txt"}


def find_kaggle(path: Path) -> tuple[Path, str | None] | None:
    """Return the root of Kaggle's tree if `path` is at any of its levels. Otherwise, return None.

    The second value is the split that `path` itself is. It is None if `path` is above the splits.
    """
    path = path.absolute()
    if path.joinpath(*_DATA).is_dir():
        return path, None
    for depth in range(1, 5):
        inner = path.parts[-depth:]
        if inner[:3] == _DATA[:depth] and path.joinpath(*_DATA[depth:]).is_dir():
            return path.parents[depth - 1], inner[3] if depth == 4 else None
    return None


def load_tree(path: Path, options: SourceOptions) -> Source:
    """Read one split of an ImageNet tree.

    Raises:
        SourceError: The split does not exist, has no images, or has no labels for its images.
    """
    options.refuse_unsupported("ImageNet in folders", path)
    kaggle = find_kaggle(path)
    root, own = kaggle or (path, None)
    below, split, notes = _find_split(root, "/".join(_DATA) if kaggle else "", own, options)
    tree = tree_of(root, options, below)
    if not len(tree):
        raise folder.no_images(tree, options)
    above = tree.root.absolute()
    label_files = find_label_files([root, above.parent, above.parent.parent, above], options.labels)
    names = tree.paths(f"{below}/" if below else "")
    found = label(names, split, label_files, options, _classes_of_train(above))
    notes += found.notes + tree.notes() + declarations.ignored_note(tree.root, tree.ignored(), options)
    beside = [f"{below}/{name}".lstrip("/") for name in tree.other_paths().to_pylist()]
    beside += [name for name in list_folder(root, options.ignore).files if not name.startswith("LOC_")]
    others = column([name for name in beside if not name.lower().endswith(options.suffixes)], pa.string())
    if kaggle and (root / _BOXES).is_dir():
        notes += (f"{_BOXES} has boxes, which are not read",)
    if kaggle:
        notes += _compared_with_list(root / "ILSVRC/ImageSets/CLS-LOC" / _LISTS.get(split, ""), tree)
    kind = "imagenet, Kaggle tree" if kaggle else "imagenet, prepared tree"
    files = Files(root, names, others, store=FolderStore(root, follow_links=options.follow_links))
    return labelled_source(files, found, split, kind, notes, options)


def _find_split(root: Path, below: str, own: str | None, options: SourceOptions) -> tuple[str, str, Notes]:
    """Return the folder of the split, its canonical name, and notes. There may be other folders too."""
    found = [name for name in list_folder(root / below).folders if canonical_split(name)]
    name, split, notes = chosen_split(found, options.split or own, root / below if found else root)
    return f"{below}/{name}".lstrip("/") if name else "", split, notes


def _classes_of_train(split: Path) -> list[str]:
    """Return the class folders of the train split, so that the labels of all splits agree."""
    train = split.parent / "train"
    names = list_folder(train).folders if train != split and train.is_dir() else []
    return [name for name in names if WNID.fullmatch(name)]


def _compared_with_list(listing: Path, tree: Tree) -> Notes:
    """Return a note if the number of images differs from the list in `ImageSets/CLS-LOC`.

    The note names images that the list has and the tree lacks.
    """
    if not listing.is_file():
        return ()
    listed = [line.partition(" ")[0] for _, line in lines_of(read_text(listing))]
    if len(listed) == len(tree):
        return ()
    there = {path.as_py().rpartition(".")[0] for path in tree.paths()}
    missing = sorted(set(listed) - there)
    return (
        f"{listing.name} lists {plural(len(listed), 'image')} and {len(tree):,} are there"
        + (f"; missing: {first_few(missing)}" if missing else ""),
    )


MAPPING = "LOC_synset_mapping.txt"
VAL_SOLUTION = "LOC_val_solution.csv"
DEVKIT = "ILSVRC2012_devkit_t12"
WNID = re.compile(r"n\d{8}")
_IN_NAME = r"^(?:.*?/)?(?P<wnid>n\d{8})[_/]"  # a folder takes precedence over the name of the file
_VAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


@dataclass(frozen=True)
class LabelFiles:
    """The label files that were found. Each is read when it is first needed.

    Args:
        mapping: Path of `LOC_synset_mapping.txt`, or None.
        solution: Path of `LOC_val_solution.csv`, or None.
        kit: Path of the development kit, or None.
        searched: The folders and files that were searched.
    """

    mapping: Path | None
    solution: Path | None
    kit: Path | None
    searched: tuple[Path, ...]

    @cached_property
    def devkit(self) -> Devkit | None:
        """The contents of the development kit. It is None if there is no kit."""
        return None if self.kit is None else load_devkit(self.kit)

    def classes(self) -> list[str]:
        """Return all wnids, sorted. The list is empty if no file lists them."""
        if self.mapping is not None:
            return sorted(read_mapping(self.mapping))
        return sorted(self.devkit.wnid_of_id.values()) if self.devkit else []

    def wnids_of_val(self, names: Iterable[str]) -> tuple[list[str | None], str]:
        """Return the class of each validation image by the image's name, and where the classes come from.

        The second value is the name of a file or `the devkit`.

        Raises:
            SourceError: No file lists the classes of the validation images.
        """
        if self.solution is not None:
            found = read_solution(self.solution)
            return [found.get(_stem(name)) for name in names], self.solution.name
        if self.devkit is not None:
            numbers = (_VAL_NUMBER.match(_stem(name)) for name in names)
            return [self.devkit.wnid_of_val(int(n[1])) if n else None for n in numbers], "the devkit"
        raise SourceError(
            f"no file lists the classes of the validation images (searched {first_few(self.searched)})",
            expected=f"{VAL_SOLUTION} (Kaggle) or the folder {DEVKIT} (official) next to the images",
            next_step="Put it there, or give its path (--labels PATH)",
        )


def label(
    names: pa.StringArray, split: str, files: LabelFiles, options: SourceOptions, more: Iterable[str] = ()
) -> Labelled:
    """Find the class of each picture.

    Args:
        names: Paths of the pictures.
        split: Canonical name of the split. Pictures of `test` may have no class.
        files: The label files.
        options: `unlabelled` and `strict` are used.
        more: Classes that occur in other splits.

    Raises:
        SourceError: There are no classes, or an image has a class that no class list names.
    """
    wnids: pa.Array = pc.struct_field(pc.extract_regex(names, _IN_NAME), 0)
    in_names = wnids.null_count < len(wnids)
    if options.unlabelled or (split == "test" and not in_names):
        return unlabelled(names, files.classes() or sorted(more))
    origin, notes = "a class folder", tuple[str, ...]()
    if not in_names:
        found, origin = files.wnids_of_val(names.to_pylist())
        wnids, notes = column(found, pa.string()), (f"labels read from {origin}",)
    occurring = set(wnids.drop_null().unique().to_pylist())
    classes = files.classes() or sorted(occurring.union(more))
    if unlisted := sorted(occurring - set(classes)):
        raise SourceError(
            f"there are images of classes that no class list names: {first_few(unlisted)}",
            expected="classes of ILSVRC2012, and label files that belong to these images",
            next_step="Move them away, or read the tree as a plain folder (--source folder)",
        )
    labelled = by_class(names, wnids, classes, origin, strict=options.strict)
    return replace(labelled, notes=notes + labelled.notes)


def labelled_source(
    files: Files, labelled: Labelled, split: str, kind: str, notes: Notes, options: SourceOptions
) -> Source:
    """Make a source of the pictures that have a label.

    Refuse labels in another order of the 1,000 classes.
    """
    columns = {"targets": labelled.labels, "name": "imagenet", "split": split, "classes": labelled.classes}
    if files.sizes is not None:
        columns["sizes"] = files.sizes[labelled.keep]
    source = source_of(files, Samples(labelled.kept(files.samples), kind, columns, notes), options)
    refuse_other_order(source.manifest)
    return source


def find_label_files(folders: Iterable[Path], labels: Path | None) -> LabelFiles:
    """Find the label files: first at the path that the user specifies, then in `folders`.

    Raises:
        SourceError: The user's path does not exist or is not a label file.
    """
    searched = tuple(dict.fromkeys([*([labels] if labels else []), *folders]))
    mapping, solution = (
        next((path for each in searched for path in (each, each / name) if _is_file_called(name, path)), None)
        for name in (MAPPING, VAL_SOLUTION)
    )
    kits = (each / name for each in searched for name in ("", DEVKIT, f"{DEVKIT}.tar.gz", f"{DEVKIT}.tar"))
    kit = next(filter(is_devkit, kits), None)
    used = [path for path in (mapping, solution, kit) if path is not None]
    if labels is not None and not any(path == labels or labels in path.parents for path in used):
        raise SourceError(
            f"{labels} contains no labels of ImageNet" if labels.exists() else f"{labels} does not exist",
            expected=f"{MAPPING}, {VAL_SOLUTION}, {DEVKIT} or a folder with these",
            next_step="Check the path",
        )
    return LabelFiles(mapping, solution, kit, searched)


def _is_file_called(name: str, path: Path) -> bool:
    return path.name == name and path.is_file()


def read_mapping(path: Path) -> dict[str, str]:
    """Read the names of the classes by wnid from `LOC_synset_mapping.txt`.

    Raises:
        SourceError: A line does not begin with a wnid.
    """
    names = {}
    for number, line in lines_of(read_text(path)):
        wnid, _, words = line.strip().partition(" ")
        if not WNID.fullmatch(wnid):
            raise bad_line(path, number, line, "a line such as: n01440764 tench, Tinca tinca")
        names[wnid] = words
    return names


def read_solution(path: Path) -> dict[str, str]:
    """Read the class of each image by its id from `LOC_val_solution.csv` or `LOC_train_solution.csv`.

    Raises:
        SourceError: The header or a row is malformed.
    """
    (_, header), *rows = lines_of(read_text(path)) or [(1, "")]
    if header.strip() != "ImageId,PredictionString":
        raise bad_line(path, 1, header, "the header ImageId,PredictionString")
    found = {}
    for number, line in rows:
        image, _, prediction = line.partition(",")
        wnid = prediction.strip().partition(" ")[0]
        if not image or not WNID.fullmatch(wnid):
            raise bad_line(path, number, line, "a row such as: ILSVRC2012_val_00048981,n03995372 85 1 499")
        found[image] = wnid
    return found


def _stem(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[0]


META = "meta.mat"
TRUTH = "ILSVRC2012_validation_ground_truth.txt"


@dataclass(frozen=True)
class Devkit:
    """The contents of a development kit.

    Args:
        wnid_of_id: Class of each ILSVRC2012_ID, in the order of the ids.
        ground_truth: ILSVRC2012_ID of each validation image, in the order of their numbers.
    """

    wnid_of_id: dict[int, str]
    ground_truth: npt.NDArray[np.int64]

    def wnid_of_val(self, number: int) -> str | None:
        """Return the class of a validation image by its number, counted from 1.

        Return None if it is not listed.
        """
        if not 1 <= number <= len(self.ground_truth):
            return None
        return self.wnid_of_id[int(self.ground_truth[number - 1])]


def is_devkit(path: Path) -> bool:
    """Check whether a path is a development kit: its folder, the folder `data` in it, or the tar.gz."""
    if path.is_file():
        return "devkit" in path.name and ".tar" in path.name
    return (path / "data" / META).is_file() or (path / META).is_file()


def load_devkit(path: Path) -> Devkit:
    """Read a development kit.

    Args:
        path: The folder `ILSVRC2012_devkit_t12`, the folder `data` in it, or the tar.gz.

    Raises:
        SourceError: A file is missing, or does not have the expected contents.
    """
    meta, truth = _files(path)
    wnid_of_id = _classes(meta, path)
    try:
        ground_truth = np.array(truth.split(), np.int64)
    except ValueError as error:
        raise _bad(path, f"has a line in {TRUTH} that is not a number ({error})") from error
    unknown = sorted(set(ground_truth.tolist()) - wnid_of_id.keys())
    if unknown:
        raise _bad(path, f"has ids in {TRUTH} that {META} does not list ({unknown[:5]})")
    return Devkit(wnid_of_id, ground_truth)


def _files(path: Path) -> tuple[bytes, bytes]:
    try:
        if path.is_dir():
            folder = path if (path / META).is_file() else path / "data"
            return (folder / META).read_bytes(), (folder / TRUTH).read_bytes()
        with tarfile.open(path) as archive:
            found = {member.name.rpartition("/")[2]: member for member in archive if member.isfile()}
            meta, truth = (archive.extractfile(found[name]) for name in (META, TRUTH))
            return (meta.read() if meta else b""), (truth.read() if truth else b"")
    except KeyError as error:
        raise _bad(path, f"has no {error.args[0]}") from error
    except (OSError, EOFError, tarfile.TarError) as error:
        refuse_shortage(error, path)
        raise _bad(path, f"cannot be read ({error})") from error


def _classes(data: bytes, path: Path) -> dict[int, str]:
    from scipy.io import loadmat  # a second to import

    stream: Any = io.BytesIO(data)
    try:
        synsets: Any = np.atleast_1d(loadmat(stream, squeeze_me=True, variable_names=["synsets"])["synsets"])
        leaves = sorted(
            (int(row["ILSVRC2012_ID"]), str(row["WNID"])) for row in synsets if int(row["num_children"]) == 0
        )
    except Exception as error:  # on damaged input scipy may raise anything
        raise _bad(path, f"has a {META} that cannot be read ({error})") from error
    if not leaves or len({number for number, _ in leaves}) != len(leaves):
        raise _bad(path, f"has {len(leaves)} classes in {META}, or one id twice")
    return dict(leaves)


def _bad(path: Path, what: str) -> SourceError:
    return SourceError(
        f"the development kit {path} {what}",
        expected=f"data/{META} and data/{TRUTH} as ILSVRC2012_devkit_t12 has them",
        next_step="Download ILSVRC2012_devkit_t12.tar.gz again",
    )


LabelOrder: TypeAlias = Literal["sorted", "devkit", "devkit, counted from 1", "unknown"]

_RANKS = {"n01440764": 0, "n01751748": 65, "n03146219": 524}
_SORTED = {
    **_RANKS,
    **{
        f"ILSVRC2012_val_{n:08}": label
        for n, label in zip(range(1, 7), (65, 970, 230, 809, 516, 57), strict=True)
    },
    "ILSVRC2012_val_00000293": 0,
}
_DEVKIT_IDS = {
    "n01751748": 490,
    **{f"ILSVRC2012_val_{n:08}": number for n, number in zip(range(1, 5), (490, 361, 171, 822), strict=True)},
}
CLASSES = 1000


def check_label_order(manifest: Manifest) -> LabelOrder:
    """Determine the order of the labels in an ImageNet manifest.

    A few images whose labels are known are compared. 1.28 million rows take about a second.

    Args:
        manifest: A manifest with labels of the 1000 classes.

    Returns:
        `sorted`, `devkit`, `devkit, counted from 1`, or `unknown` if the manifest contains no known image.

    Raises:
        SourceError: The labels of known images contradict each other, or fit no order.
    """
    found = _known_labels(manifest)
    expected: dict[LabelOrder, dict[str, int]] = {
        "sorted": _SORTED,
        "devkit": {key: number - 1 for key, number in _DEVKIT_IDS.items()},
        "devkit, counted from 1": _DEVKIT_IDS,
    }
    known = {order: found.keys() & table.keys() for order, table in expected.items()}
    for order, table in expected.items():
        if known[order] and all(found[key] == {table[key]} for key in known[order]):
            return order
    if not any(known.values()):
        return "unknown"
    got = ", ".join(f"{key} = {sorted(labels)}" for key, labels in sorted(found.items()))
    right = ", ".join(f"{key} = {_SORTED[key]}" for key in sorted(found))
    raise SourceError(
        f"the labels of manifest {manifest.name!r} fit no label order ({got})",
        expected=f"in sorted order {right}",
        next_step="Make the manifest again from the class folders, LOC_val_solution.csv or the devkit",
    )


def refuse_other_order(manifest: Manifest) -> None:
    """Raise SourceError if the labels of the 1000 classes are not ranks of the sorted wnids."""
    ranks = sorted(manifest.classes)
    is_real = len(ranks) == CLASSES and all(ranks[rank] == wnid for wnid, rank in _RANKS.items())
    order = check_label_order(manifest) if is_real else "unknown"
    if order not in ("sorted", "unknown"):
        raise SourceError(
            f"the labels of {manifest.name!r} are in the order {order!r}",
            expected="the order 'sorted'",
            next_step="Check that the solution file or devkit belongs to ILSVRC2012",
        )


def _known_labels(manifest: Manifest) -> dict[str, set[int]]:
    """Return the labels that occur for each known key. The label -1 (unknown) is not included."""
    found = {}
    for key in _SORTED:
        rows = pc.match_substring(manifest.paths, key)
        labels = {label for label in manifest.targets.filter(rows).unique().to_pylist() if label >= 0}
        if labels:
            found[key] = labels
    return found
