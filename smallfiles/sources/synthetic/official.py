"""ImageNet as its authors hand it out: a tar of tars, a flat tar, and the development kit.

The trap that everybody meets once: the ground truth counts classes by ILSVRC2012_ID, which is not the
order of the sorted wnids, and `ID - 1` trains well on labels that mean nothing. Notebook 02 teaches it.

Source of the formats: `readme.txt` of ILSVRC2012_devkit_t12 and torchvision.datasets.imagenet.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from smallfiles.sources.synthetic import wordnet
from smallfiles.sources.synthetic.plans import Plan
from smallfiles.sources.synthetic.scenes import look_of
from smallfiles.sources.synthetic.trees import Draw, train_name, val_name

_TRAIN, _VAL = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_DEVKIT = "ILSVRC2012_devkit_t12/data"
_MTIME_S = 1_340_000_000  # June 2012; never now, for equal plans give equal bytes
_IN_MEMORY_BYTES = 64 << 20
_MAT_TITLE = b"MATLAB 5.0 MAT-file, synsets of ILSVRC2012"
_FIELDS = (
    *("ILSVRC2012_ID", "WNID", "words", "gloss"),
    *("num_children", "children", "wordnet_height", "num_train_images"),
)


def paths(plan: Plan) -> list[str]:
    """Where picture `i` is: the tar, the tar inside it, the member."""
    wnids = wordnet.wnids(plan.classes)
    train = [f"{_TRAIN}/{wnids[plan.label(i)]}.tar/{train_name(plan, i)}" for i in plan.train_indices]
    return train + [f"{_VAL}/{val_name(plan, i)}" for i in plan.val_indices]


def write(plan: Plan, root: Path, draw: Draw) -> None:
    """Write both tars and the development kit."""
    _write_train(plan, root / _TRAIN, draw)
    with tarfile.open(root / _VAL, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index, data in zip(plan.val_indices, draw(plan.val_indices), strict=True):
            tar.addfile(_member(val_name(plan, index), len(data)), io.BytesIO(data))
    (root / _DEVKIT).mkdir(parents=True)
    _write_meta(plan, root / _DEVKIT / "meta.mat")
    ids = wordnet.ilsvrc_ids(plan.classes, plan.seed)
    truth = "".join(f"{ids[plan.label(index)]}\n" for index in plan.val_indices)
    (root / _DEVKIT / "ILSVRC2012_validation_ground_truth.txt").write_text(truth, encoding="ascii")


def _write_train(plan: Plan, path: Path, draw: Draw) -> None:
    members: list[list[int]] = [[] for _ in range(plan.classes)]
    for index in plan.train_indices:
        members[plan.label(index)].append(index)
    files = draw(index for indices in members for index in indices)
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as outer:
        for wnid, indices in zip(wordnet.wnids(plan.classes), members, strict=True):
            # A member's header comes before its bytes and holds their number, so each inner tar is
            # finished before it goes in; large ones wait on disk, beside the result.
            with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES, dir=str(path.parent)) as inner:
                with tarfile.open(fileobj=inner, mode="w", format=tarfile.USTAR_FORMAT) as tar:
                    for index in indices:
                        data = next(files)
                        tar.addfile(_member(train_name(plan, index), len(data)), io.BytesIO(data))
                size = inner.tell()
                inner.seek(0)
                outer.addfile(_member(f"{wnid}.tar", size), inner)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, _MTIME_S, 0o644
    return member


def _write_meta(plan: Plan, path: Path) -> None:
    """Write the struct array `synsets`: one row a node, the leaves are the classes."""
    import scipy.io  # here, for it takes longer to import than a hundred pictures to draw

    nodes = wordnet.synsets(plan.classes, plan.seed)
    label_of_id = {number: label for label, number in enumerate(wordnet.ilsvrc_ids(plan.classes, plan.seed))}
    counts = np.bincount([plan.label(index) for index in plan.train_indices], minlength=plan.classes)
    table = np.zeros((len(nodes), 1), [(field, object) for field in _FIELDS])
    for row, node in enumerate(nodes):
        label = label_of_id.get(node.ilsvrc_id)
        gloss = "several classes" if label is None else _gloss(label)
        images = 0 if label is None else int(counts[label])
        table[row, 0] = _matlab_row(node, gloss, images)
    scipy.io.savemat(str(path), {"synsets": table})
    with path.open("r+b") as file:  # the first 116 bytes are free text, where scipy writes the time of day
        file.write(_MAT_TITLE.ljust(116))


def _gloss(label: int) -> str:
    shape, texture, colour = look_of(label)
    return f"drawn as a {colour} {texture} {shape}"


def _matlab_row(node: wordnet.Synset, gloss: str, images: int) -> tuple[object, ...]:
    return (
        np.uint16(node.ilsvrc_id),
        node.wnid,
        node.words,
        gloss,
        np.uint8(len(node.children)),
        np.array([node.children], np.uint16).reshape(1, -1),
        np.uint8(node.height),
        np.uint16(images) if images < 1 << 16 else np.uint32(images),
    )
