"""Exercise 13: each known wrong answer gets its own diagnosis, and every right way passes."""

import random
import zlib
from hashlib import md5
from pathlib import PurePosixPath

import torch
from PIL import Image
from telling import assert_told, judged, known_mistakes

from exercises.checks import ex13_bring_your_own_data as ex13

# Task 1


def by_parts(images, masks):
    named = {str(PurePosixPath(m).relative_to("masks").with_suffix("")): m for m in masks}
    stems = {i: str(PurePosixPath(i).relative_to("images").with_suffix("")) for i in images}
    return {image: named[stem] for image, stem in stems.items() if stem in named}


def replaced(images, masks):
    guess = {image: image.replace("images", "masks").replace("jpg", "png") for image in images}
    return {image: mask for image, mask in guess.items() if mask in masks}


def stem(path):
    return PurePosixPath(path).stem


def by_stem(images, masks):
    found = {stem(mask): mask for mask in masks}
    return {image: found[stem(image)] for image in images if stem(image) in found}


WRONG_PAIRS = [
    (lambda i, m: dict(zip(sorted(i), sorted(m), strict=True)), "files without a partner"),
    (lambda i, m: {a: next(b for b in m if stem(a) == stem(b)) for a in i}, "an image has no mask"),
    (by_stem, "1.jpg is in two folders"),
    (replaced, "change only the first folder and the suffix"),
    (lambda i, m: list(by_parts(i, m).items()), "return a dict"),
    (lambda i, m: {PurePosixPath(k): v for k, v in by_parts(i, m).items()}, "the lists contain texts"),
    (lambda i, m: {a: m[0] for a in i if m}, "does not belong to it"),
    (lambda i, m: {a: next((b for b in m if stem(a) == stem(b)), "") for a in i}, "does not belong to it"),
    (lambda i, m: by_stem(i, m[::-1]), "1.jpg is in two folders"),
]
TestKnownPairs = known_mistakes(ex13.pairs, ex13.PAIR_MISTAKES, ex13.FOLDERS)
TestPairs = judged(ex13.pairs, WRONG_PAIRS, [ex13.right_pairs, by_parts])


def test_pairs_of_ones_own_are_judged_by_what_they_show(tmp_path):
    for name, size in {"1.jpg": (4, 3), "2.jpg": (3, 4), "1.png": (4, 3), "2.png": (3, 4)}.items():
        Image.new("L", size).save(tmp_path / name)
    one, two, first, second = (tmp_path / name for name in ("1.jpg", "2.jpg", "1.png", "2.png"))
    assert ex13.own_pairs({one: first, two: second}, tmp_path)
    for wrong, told in (
        ({}, "no mask was found"),
        ({one: first, two: first}, "a mask belongs to one image"),
        ({one: second, two: first}, "a mask of another size"),
        ({one: tmp_path / "3.png"}, "the file does not exist"),
    ):
        assert_told(ex13.own_pairs(wrong, tmp_path), told)


# Task 2


def right_join(paths, rows, name):
    values = {}
    for row in rows:
        if values.setdefault(row["filename"], row[name]) != row[name]:
            raise ValueError(row["filename"])
    return [values.get(path) for path in paths]


def last_wins(paths, rows, name):
    values = {row["filename"]: row[name] for row in rows}
    return [values.get(path) for path in paths]


def column(rows, name):
    return [row[name] for row in rows]


def in_rows(paths, rows, name):
    return [row[name] for row in rows if row["filename"] in paths]


WRONG_JOINS = [
    (lambda p, r, n: column(r, n), "in another order than the files"),
    (in_rows, "in another order than the files"),
    (lambda p, r, n: right_join(sorted(p), r, n), "keep the order of `paths`"),
    (lambda p, r, n: [v for v in last_wins(p, r, n) if v is not None], "b has no row"),
    (lambda p, r, n: [{x["filename"]: x[n] for x in r}[path] for path in p], "a path has no row"),
    (lambda p, r, n: [v or None for v in last_wins(p, r, n)], "0.0 is a value"),
    (last_wins, "nobody knows which"),
    (lambda p, r, n: tuple(last_wins(p, r, n)), "return a list"),
    (lambda p, r, n: last_wins(p, r, "n"), "the values of column `name`"),
]
TestJoin = judged(ex13.joined, WRONG_JOINS, [right_join])


def test_a_double_row_that_contradicts_nothing_is_no_error():
    def strict(paths, rows, name):
        names = column(rows, "filename")
        if len(set(names)) < len(names):
            raise ValueError("twice")
        return right_join(paths, rows, name)

    verdict = ex13.joined(strict)
    assert verdict.state == "not yet" and "ValueError: twice" in str(verdict)


# Task 3


def numbered(values, order=sorted):
    rank = {name: number for number, name in enumerate(order(set(values)))}
    return torch.tensor([rank[value] for value in values])


def as_floats(values):
    return torch.tensor([float("nan") if value is None else value for value in values])


def right_target(values, floats=as_floats, texts=numbered):
    if any(isinstance(value, float) for value in values):
        return floats(values)
    return texts(values) if isinstance(values[0], str) else torch.tensor(values)


def seen(values):
    return list(dict.fromkeys(values))


def whole(values):
    known = [value for value in values if value is not None]
    return torch.tensor([int(v) for v in values]) if known == list(map(int, known)) else as_floats(values)


WRONG_TARGETS = [
    (lambda v: right_target(v, floats=lambda f: torch.tensor([int(x or 0) for x in f])), "would cut 36.99"),
    (lambda v: right_target(v, floats=lambda f: numbered([x or 0.0 for x in f])), "numbered like classes"),
    (lambda v: right_target(v, floats=whole), "whole by chance"),
    (lambda v: right_target(v, floats=lambda f: as_floats(f).double()), "int64 for classes and float32"),
    (lambda v: right_target(v, floats=lambda f: torch.tensor([x or 0.0 for x in f])), "missing value: NaN"),
    (lambda v: right_target(v, floats=torch.tensor), "None is not a number"),
    (lambda v: right_target(v, texts=lambda t: numbered(t, lambda s: sorted(s)[::-1])), "cat is 0"),
    (lambda v: right_target(v, texts=lambda t: torch.tensor([seen(t).index(x) for x in t])), "cat is 0"),
    (lambda v: right_target(v, texts=lambda t: numbered(t).float()), "classes are int64"),
    (lambda v: right_target(v, texts=lambda t: torch.tensor([int(x) for x in t])), "a text is not a number"),
    (lambda v: right_target(v) if isinstance(v[0], str | float) else numbered(v), "7 stays 7"),
    (lambda v: right_target(v).tolist(), "return one tensor"),
    (
        lambda v: torch.tensor([int(x) for x in v]) if isinstance(v[0], int) else right_target(v),
        "if one element is a float",
    ),
]
TestTarget = judged(ex13.target, WRONG_TARGETS, [right_target])


# Task 4


def by_name(number):
    return lambda patients, share: [number(name) < share for name in patients]


def crc(name):
    return zlib.crc32(name.encode()) / 2**32


def drawn(patients, share, names=sorted):
    every = names(set(patients))
    chosen = set(random.Random(0).sample(every, round(share * len(every))))
    return [name in chosen for name in patients]


def of_images(patients, share):
    rng = random.Random(0)
    return [rng.random() < share for _ in patients]


def of_patients(patients, share):
    return [crc(name) < share for name in dict.fromkeys(patients)]


WRONG_SPLITS = [
    (of_images, "images of one patient are on both sides"),
    (lambda p, s: [n < s * len(p) for n in range(len(p))], "images of one patient are on both sides"),
    (lambda p, s: [crc(f"{n}{x}") < s for n, x in enumerate(p)], "on both sides"),
    (drawn, "because others were added"),
    (lambda p, s: [sorted(set(p)).index(x) < s * len(set(p)) for x in p], "because others were added"),
    (lambda p, s: [x in sorted(set(p))[: int(s * len(set(p)))] for x in p], "because others were added"),
    (lambda p, s: by_name({x: random.random() for x in p}.get)(p, s), "something random decides"),
    (by_name(lambda name: hash(name) % 1000 / 1000), "differs from process to process"),
    (lambda p, s: [not side for side in by_name(crc)(p, s)], "this is the share of the training set"),
    (lambda p, s: by_name(crc)(p, 0.2), "differs from `share`"),
    (lambda p, s: by_name(crc)(p, 0.1), "differs from `share`"),
    (of_patients, "not one per patient"),
    (lambda p, s: ["val" if side else "train" for side in by_name(crc)(p, s)], "True or False"),
    (lambda p, s: {name for name in p if crc(name) < s}, "True or False"),
]
RIGHT_SPLITS = [
    by_name(crc),
    by_name(lambda name: int(md5(name.encode()).hexdigest(), 16) / 2**128),
    by_name(lambda name: random.Random(name).random()),
]
TestSplit = judged(ex13.in_validation, WRONG_SPLITS, RIGHT_SPLITS)
