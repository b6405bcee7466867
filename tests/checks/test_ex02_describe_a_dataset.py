"""Exercise 02: each known wrong answer gets its own diagnosis, and every right way passes."""

import re
from pathlib import Path, PurePosixPath

import numpy as np
from telling import judged

from exercises.checks import ex02_describe_a_dataset as ex02
from smallfiles.manifest import Manifest
from smallfiles.sources import imagenet, synthetic


def number_of(path):
    return int(re.findall(r"\d{8}", path)[-1])


def ranks(classes):
    return {wnid: rank for rank, wnid in enumerate(sorted(wnid for wnid, _ in classes.values()))}


def numbered(number):
    """An answer that takes the line of truth by `number(path)`."""

    def answer(classes, truth, paths):
        label_of = ranks(classes)
        return {path: label_of[classes[truth[number(path) - 1]][0]] for path in paths}

    return answer


right = numbered(number_of)


def labelled(label):
    """The right line for each path, labelled by `label(classes, truth, id)`."""
    return lambda c, t, paths: {path: label(c, t, t[number_of(path) - 1]) for path in paths}


def changed(change):
    return lambda classes, truth, paths: {
        key: value
        for path, label in right(classes, truth, paths).items()
        for key, value in [change(path, label)]
    }


def sorting_in_place(classes, truth, paths):
    paths.sort()
    return right(classes, truth, paths)


def listed(classes, truth, paths):
    return {path: ranks(classes)[classes[truth[n % len(truth)]][0]] for n, path in enumerate(paths)}


WRONG_MANIFESTS = [
    (labelled(lambda c, t, i: i - 1), "ID - 1 counts from 0 and keeps the devkit's order"),
    (labelled(lambda c, t, i: i), "this is the ILSVRC2012_ID itself"),
    (labelled(lambda c, t, i: sorted(c, key=lambda k: c[k][1]).index(i)), "you sorted by the words"),
    (labelled(lambda c, t, i: ranks(c)[c[i][0]] + 1), "your ranks count from 1"),
    (labelled(lambda c, t, i: sorted({c[k][0] for k in t}).index(c[i][0])), "only those classes that occur"),
    (lambda c, t, p: right(c, [*t[1:], t[0]], p), "the label of the next one"),
    (listed, "in any order or have gaps"),
    (numbered(lambda path: int(re.search(r"\d+", path)[0])), "2012 is the year"),
    (numbered(lambda path: int(path[:-5])), "the eight digits before the suffix"),
    (changed(lambda path, label: (path, str(label))), "no text"),
    (changed(lambda path, label: (path, np.int64(label))), "none of NumPy's"),
    (changed(lambda path, label: (f"/data/{path}", label)), "these paths are absolute"),
    (changed(lambda path, label: (Path(path), label)), "the paths as text"),
    (changed(lambda path, label: (path.rpartition("/")[2], label)), "exactly as it was given"),
    (lambda c, t, p: list(right(c, t, p).items()), "which is a dict in Python"),
    (sorting_in_place, "work on a copy"),
    (changed(lambda path, label: (path, 0)), "line n holds the id of image n"),
]


RIGHT_MANIFESTS = [
    right,
    lambda c, t, p: dict(sorted(right(c, t, p).items())),
    labelled(lambda c, t, i: sum(wnid < c[i][0] for wnid, _ in c.values())),
]
TestManifest = judged(ex02.val_manifest, WRONG_MANIFESTS, RIGHT_MANIFESTS)


def test_two_mistakes_at_once_are_both_named():
    def answer(classes, truth, paths):
        return {path: truth[place] - 1 for place, path in enumerate(paths[::-1])}

    because = ex02.val_manifest(lambda c, t, p: {path: t[number_of(path) % len(t)] - 1 for path in p}).because
    assert "ID - 1" in because and "; and: each image got the label of the next one" in because
    assert ex02.val_manifest(answer).because.startswith("line n holds")


def stem(path):
    return PurePosixPath(path).stem


def found(manifest, known):
    labels = {stem(path): label for path, label in manifest.items()}
    return [labels[name] == label for name, label in known.items() if name in labels]


def word(right):
    return "sorted" if right else "other"


def guarded(manifest, known):
    return word(all(found(manifest, known))) if found(manifest, known) else "unknown"


def by_truth(manifest, known):
    labels = {stem(path): label for path, label in manifest.items()}
    seen = [labels[name] == label for name, label in known.items() if labels.get(name)]
    return word(all(seen)) if seen else "unknown"


def whole_paths(manifest, known):
    seen = [manifest[f"{name}.JPEG"] == label for name, label in known.items() if f"{name}.JPEG" in manifest]
    return word(all(seen)) if seen else "unknown"


WRONG_GUARDS = [
    (lambda m, k: word(any(found(m, k))) if found(m, k) else "unknown", "one is enough"),
    (lambda m, k: word(all(found(m, k))), "none of the known images"),
    (by_truth, "is false in a condition"),
    (whole_paths, "the paths have folders"),
    (lambda m, k: word(k.items() <= {stem(p): v for p, v in m.items()}.items()), "skip names"),
    (lambda m, k: word(all(m[f"{n}.JPEG"] == v for n, v in k.items())), "not every known image"),
    (lambda m, k: word(490 not in m.values()), "labels are ID - 1"),
    (lambda m, k: all(found(m, k)), "one of these three words"),
]


TestGuard = judged(ex02.label_order, WRONG_GUARDS, [guarded])


def test_the_expected_words_are_those_of_a_right_guard():
    assert [guarded(s[0], ex02.KNOWN) for s in ex02.STRANGERS] == [s[1] for s in ex02.STRANGERS]


def test_the_known_labels_are_those_of_the_package():
    paths = [f"{name}.JPEG" for name in ex02.KNOWN]
    manifest = Manifest.from_columns(paths, list(ex02.KNOWN.values()))
    assert imagenet.check_label_order(manifest) == "sorted"


def test_a_devkit_on_disk_is_read_in_the_form_of_the_exercise(tmp_path):
    made = synthetic.make(tmp_path / "o", "official", count=40, classes=9, size=(48, 32))
    kit = tmp_path / "o/ILSVRC2012_devkit_t12"
    classes = ex02.devkit_classes(kit)
    truth = imagenet.load_devkit(kit).ground_truth.tolist()
    assert {number: wnid for number, (wnid, _) in classes.items()} == imagenet.load_devkit(kit).wnid_of_id
    assert classes[truth[0]][1]
    names = [name for name in made.truth if "_val_" in name]
    assert right(classes, truth, names) == {name: made.truth[name] for name in names}
