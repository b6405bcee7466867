"""Shards of others, kind by kind: each way to read them gives the right targets or one sentence."""

import json
import tarfile
import warnings
from io import BytesIO

import pytest
import webdataset as wds
from given import of_reader

from smallfiles import formats, sources
from smallfiles.errors import SmallfilesError, SourceError
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack


def obj(**facts):
    return json.dumps(facts)


def unknown(number):
    return -1


BOXES = "0 0.5 0.5 0.25 0.25\n3 0.1 0.2 0.05 1e-3\n"
# What each sample holds ({} is its number), and its key and target; or what the sentence says.
KINDS = {
    "jpg+cls": ({"jpg": "x", "cls": "{}"}, ("jpg", int)),
    "jpg+json with a label": ({"jpg": "x", "json": '{{"label": {}}}'}, ("jpg", int)),
    "jpg+txt+json": (
        {"jpg": "x", "txt": "c{}", "json": '{{"caption": "c{}", "url": "u"}}'},
        ("jpg", "c{}".format),
    ),
    "jpg+txt": ({"jpg": "x", "txt": "c{}"}, ("jpg", "c{}".format)),
    "image.jpg+label.cls": ({"image.jpg": "x", "label.cls": "{}"}, ("image.jpg", int)),
    "jpg+seg.png+cls": ({"jpg": "x", "seg.png": "m", "cls": "{}"}, ("jpg", int)),
    "jpg+png": ({"jpg": "x", "png": "m"}, ("jpg", unknown)),  # the further picture is the target
    "jpg+png+cls": ({"jpg": "x", "png": "m", "cls": "{}"}, ("jpg", int)),
    "input.jpg+seg.png": ({"input.jpg": "x", "seg.png": "m"}, ("input.jpg", unknown)),
    "jpg+seg.png": ({"jpg": "x", "seg.png": "m"}, ("jpg", unknown)),
    "left.jpg+right.jpg": ({"left.jpg": "x", "right.jpg": "m"}, "share one stem"),
    "png+webp+cls": ({"png": "x", "webp": "m", "cls": "{}"}, "share one stem"),
    "jpg+id": ({"jpg": "x", "id": "{}"}, "id beside"),
    "jpg+npy": ({"jpg": "x", "npy": "{}"}, "npy beside"),
    "jpg+xml": ({"jpg": "x", "xml": "<a/>"}, "xml beside"),
    "jpg+idx": ({"jpg": "x", "idx": "{}"}, "idx beside"),
    "jpg+cls in words": ({"jpg": "x", "cls": "dog"}, "expected a class number. Number the classes"),
    "jpg+json in words": (
        {"jpg": "x", "json": obj(label="dog").replace("{", "{{").replace("}", "}}")},
        "'dog'",
    ),
    "jpg+coarse.cls+fine.cls": ({"jpg": "x", "coarse.cls": "1", "fine.cls": "{}"}, "come twice for one stem"),
    "jpg+txt of YOLO": ({"jpg": "x", "txt": BOXES}, "boxes as YOLO writes them"),
    "jpg+txt of numbers": ({"jpg": "x", "txt": "{}"}, "which is a number"),
    "jpg+json without a target": ({"jpg": "x", "json": '{{"n": {}}}'}, None),
    "jpg alone": ({"jpg": "x"}, None),
}


def put(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data.encode())
            archive.addfile(info, BytesIO(data.encode()))
    return path


def shards(folder, kind):
    """Two shards of three samples each."""
    for shard in (0, 1):
        stems = [3 * shard + number for number in range(3)]
        held = [(f"{n}.{suffix}", text.format(n)) for n in stems for suffix, text in KINDS[kind][0].items()]
        put(folder / f"{shard:05}.tar", held)
    return folder


def by_sources(path, **options):
    manifest = sources.load(path, **options).manifest
    return {
        manifest.path(row).removeprefix(f"{row // 3:05}/"): manifest.target(row)
        for row in range(len(manifest))
    }


def by_formats(path):
    with warnings.catch_warnings(record=True, action="always") as said:
        reader = formats.open(path)
        found = {sample.key: sample.target for sample in of_reader(reader)}
    assert -1 not in found.values() or "without a target" in str(said[0].message)
    return found


WAYS = {
    "one shard as a source": (by_sources, "in/00000.tar", 3),
    "a folder of shards as a source": (by_sources, "in", 6),
    "packed shards as a source": (by_sources, "in.tars", 6),
    "one shard as a format": (by_formats, "in/00000.tar", 3),
    "shards as a format": (by_formats, "in.tars", 6),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_shards_is_read_rightly_or_refused_whichever_way_it_is_opened(tmp_path, kind, way):
    for name in ("in", "in.tars"):
        shards(tmp_path / name, kind)
    read, name, count = WAYS[way]
    expected = KINDS[kind][1]
    if expected is None:  # without any target; who packs it has to say that this is meant
        unlabelled = dict.fromkeys([f"{n}.jpg" for n in range(count)], -1)
        if read is by_formats:
            assert read(tmp_path / name) == unlabelled
            return
        assert by_sources(tmp_path / name, unlabelled=True) == unlabelled
        expected = "--unlabelled|unlabelled samples"
    if isinstance(expected, str):
        with pytest.raises(SmallfilesError, match=expected):
            read(tmp_path / name)
        return
    suffix, target = expected
    found = {key: one[0] if isinstance(one, list) else one for key, one in read(tmp_path / name).items()}
    assert found == {f"{n}.{suffix}": target(n) for n in range(count)}


@pytest.mark.parametrize("name", ["in", "in.tars", "in/00000.tar"])
@pytest.mark.parametrize(
    ("kind", "options", "suffix"),
    [
        ("jpg+png", {"suffixes": (".png",)}, "png"),
        ("input.jpg+seg.png", {"suffixes": (".input.jpg",)}, "input.jpg"),
        ("jpg+cls in words", {}, "jpg"),
        ("jpg+txt of YOLO", {}, "jpg"),
    ],
)
def test_what_a_refusal_names_is_a_way_out(tmp_path, kind, options, suffix, name):
    shards(tmp_path / name.partition("/")[0], kind)
    found = by_sources(tmp_path / name, unlabelled=True, **options)
    assert found == {f"{n}.{suffix}": -1 for n in range(3 if name.endswith(".tar") else 6)}


def test_classes_in_words_are_numbered_by_a_manifest(tmp_path):
    path = shards(tmp_path / "in", "jpg+cls in words") / "00000.tar"
    (tmp_path / "m.json").write_text(obj(**{"0.jpg": 1, "2.jpg": 0}))
    assert by_sources(tmp_path / "m.json", root=path) == {"0.jpg": 1, "2.jpg": 0}


def one(**members):
    """The members of the sample `a`."""
    return [(f"a.{suffix}", text) for suffix, text in members.items()]


OTHER = [("b.jpg", "x"), ("b.txt", "1 dog")]
MEMBERS = {  # of one tar: what they are, and what both ways tell
    "only some have a mask": ([("a.jpg", "x"), ("a.png", "m"), ("b.jpg", "y")], "has png beside"),
    "a mask without its image": (
        [("a.jpg", "x"), ("a.png", "m"), ("a.cls", "1"), ("b.png", "m"), ("b.cls", "2")],
        "share one stem",
    ),
    "a few names come in two kinds": (
        [("c/1.jpg", "x"), ("c/1.png", "m"), *((f"d/{n}.jpg", "y") for n in range(9))],
        {"c/1.jpg": 0, "c/1.png": 0, **{f"d/{n}.jpg": 1 for n in range(9)}},
    ),
    "nearly half of the names come in two kinds": (
        [(f"c/{n}.{kind}", "x") for n in (1, 2) for kind in ("jpg", "png")]
        + [(f"d/{n}.jpg", "y") for n in (1, 2, 3)],
        {f"c/{n}.{kind}": 0 for n in (1, 2) for kind in ("jpg", "png")}
        | {f"d/{n}.jpg": 1 for n in (1, 2, 3)},
    ),
    "counted names in class folders": (
        [("c/IMG.1.jpg", "x"), ("c/IMG.2.jpg", "x"), ("d/IMG.1.jpg", "x"), ("d/IMG.2.jpg", "x")],
        {"c/IMG.1.jpg": 0, "c/IMG.2.jpg": 0, "d/IMG.1.jpg": 1, "d/IMG.2.jpg": 1},
    ),
    "an empty txt": (one(jpg="x", txt="") + OTHER, {"a.jpg": [], "b.jpg": ["1 dog"]}),
    "nothing but empty txt": (one(jpg="x", txt="\n"), {"a.jpg": []}),
    "txt beside a list": (one(jpg="x", txt="t", json='["j"]'), {"a.jpg": ["j"]}),
    "txt beside an object without captions": (one(jpg="x", txt="t", json="{}"), {"a.jpg": ["t"]}),
    "lines that end in CR": (one(jpg="x", txt="p\r\nq\r\n"), {"a.jpg": ["p", "q"]}),
    "a label that ends in CR": (one(jpg="x", cls="7\r\n"), {"a.jpg": 7}),
    "true as a label": (
        [*one(jpg="x", json=obj(label=True)), ("b.jpg", "x"), ("b.cls", "1")],
        {"a.jpg": -1, "b.jpg": 1},
    ),
    "captions for some": ([*one(jpg="x", txt="c"), ("b.jpg", "x")], {"a.jpg": ["c"], "b.jpg": []}),
    "an idx beside a label": (one(jpg="x", idx="9", cls="1"), {"a.jpg": 1}),
    "several images for a stem": (one(jpg="x", jpeg="x", cls="1"), "share one stem"),
    "a side file that comes twice": (one(jpg="x", cls="1", CLS="2"), "come twice for one stem"),
    "a label beside an empty txt, and captions": (
        [*one(jpg="x", cls="1", txt=""), *OTHER, ("c.jpg", "x"), ("c.cls", "2")],
        "samples with labels and samples with captions",
    ),
    "boxes before their image": ([("a.txt", BOXES), ("a.jpg", "x")], "boxes as YOLO"),
    "boxes among captions": (
        one(jpg="x", txt=BOXES) + OTHER,
        {"a.jpg": BOXES.splitlines(), "b.jpg": ["1 dog"]},
    ),
    "boxes beside the names of classes": (
        [*one(jpg="x", txt=BOXES), ("classes.txt", "dog\ncat")],
        "boxes as YOLO",
    ),
}


@pytest.mark.parametrize("what", MEMBERS)
def test_members_of_a_tar_give_both_ways_the_same_targets_or_sentence(tmp_path, what):
    members, expected = MEMBERS[what]
    path = put(tmp_path / "x.tar", members)
    for read in (by_sources, by_formats):
        if isinstance(expected, str):
            with pytest.raises(SmallfilesError, match=expected):
                read(path)
        else:
            assert read(path) == expected


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([*one(jpg="x", cls="1", idx="9"), ("README", "r")], "x.tar: left aside: 2 other files"),
        ([*one(jpg="x", cls="1"), ("b.jpg", "x")], "x.tar: 1 sample without a target: label -1 (b.jpg)"),
        ([*one(jpg="x", txt="c"), ("b.jpg", "x")], "x.tar: 1 sample without a target: no captions (b.jpg)"),
        (one(jpg="x", cls="1"), ""),
    ],
)
def test_members_without_a_meaning_and_samples_without_a_target_are_counted(tmp_path, members, said):
    path = put(tmp_path / "x.tar", members)
    with warnings.catch_warnings(record=True, action="always") as noted:
        assert len(tar.open(path)) in (1, 2)
    assert "".join(str(note.message).removeprefix(f"{tmp_path}/") for note in noted) == said


TARS = {  # names of tars, more in each, and the classes of a folder of them; or what the sentence says
    "ImageNet": (("n02084071", "n01440764"), {}, ("n01440764", "n02084071")),
    "words": (("cat", "dog"), {}, ("cat", "dog")),
    "birds": (("001.Albatross", "002.Crow"), {}, ("001.Albatross", "002.Crow")),
    "numbers": (("00000", "00001"), {}, "2 tars .* with nothing that labels"),
    "named shards": (("train-000000", "train-000007"), {}, "2 tars .* with nothing that labels"),
    "hashes": (("0123456789abcdef", "f123456789abcdef"), {}, "2 tars .* with nothing that labels"),
    "one": (("cat",), {}, "1 tar .* with nothing that labels"),
    "words with objects": (("cat", "dog"), {"json": '{"n": 1}'}, "with json beside the images"),
    "words with masks": (("cat", "dog"), {"seg.png": "m"}, "with seg.png beside the images"),
}


@pytest.mark.parametrize("around", ["folder", "tar"])
@pytest.mark.parametrize("names", TARS)
def test_tars_are_classes_only_where_names_and_content_fit_or_somebody_says_so(tmp_path, names, around):
    stems, more, expected = TARS[names]
    for stem in stems:
        suffixes = {"jpg": "x"} | more
        put(
            tmp_path / f"in/{stem}.tar",
            [(f"{stem[-3:]}_1.{suffix}", text) for suffix, text in suffixes.items()],
        )
    path = tmp_path / "in"
    if around == "tar":
        path = tmp_path / "t.tar"
        with tarfile.open(path, "w") as archive:
            for stem in stems:
                archive.add(tmp_path / f"in/{stem}.tar", f"{stem}.tar")
    if isinstance(expected, str):
        with pytest.raises(SmallfilesError, match=expected):
            sources.load(path)
        if around == "tar":
            with pytest.raises(SmallfilesError, match=expected):
                by_formats(path)
        expected = tuple(sorted(stems))
        assert set(by_sources(path, unlabelled=True).values()) == {-1}
    else:
        assert sources.load(path).manifest.classes == expected
    assert sources.load(path, kind="tarball").manifest.classes == expected


def test_captions_in_class_folders_say_that_these_are_no_classes(tmp_path):
    members = [(f"{name}/1.{suffix}", "c") for name in ("cat", "dog") for suffix in ("jpg", "txt")]
    path = put(tmp_path / "x.tar", members)
    said = "captions are the targets: the folders cat, dog are not classes"
    with pytest.raises(SourceError, match="class folders contain texts with the names"):
        sources.load(path)
    with pytest.warns(UserWarning, match=said):
        assert [sample.target for sample in of_reader(tar.open(path))] == [["c"], ["c"]]


def suffixes_of(path):
    """What webdataset finds for each sample."""
    return [
        {name: value for name, value in sample.items() if name[0] != "_"}
        for sample in wds.WebDataset(str(path), shardshuffle=False)
    ]


LINES = {"jpg": b"x", "txt": b"a dog\n", "json": b'{"caption":"a dog","url":"u"}'}
KEPT = {  # members of a sample: those of the same sample packed again
    "as img2dataset": (LINES, LINES),
    "a label and an object": ({"jpg": b"x", "cls": b"3", "json": b'{"n":1}'},) * 2,
    "a label, and captions left aside": ({"jpg": b"x", "cls": b"3", "txt": b"a"}, {"jpg": b"x", "cls": b"3"}),
    "a list of captions": ({"jpg": b"x", "json": b'["a","b"]'},) * 2,
    "captions of two lines": (
        {"jpg": b"x", "txt": b"a", "json": b'{"caption":"a\\nb"}'},
        {"jpg": b"x", "json": b'["a\\nb"]', "meta": b'{"caption":"a\\nb"}'},
    ),
    "ours": ({"jpg": b"x", "cls": b"3", "meta": b'{"n":1}'},) * 2,
}


@pytest.mark.parametrize("through", ["", "x.tars", "x.arrow", "x.sqfs", "x.h5"])
@pytest.mark.parametrize("what", KEPT)
def test_a_webdataset_that_is_packed_again_keeps_the_names_of_its_members(tmp_path, what, through):
    came, expected = KEPT[what]
    path = put(tmp_path / "in.tar", [(f"a.{suffix}", data.decode()) for suffix, data in came.items()])
    targets = sources.load(path).manifest.targets.to_pylist()
    for out in filter(None, (through, "y.tar")):
        path = pack(sources.load(path), tmp_path / out, PackConfig(check="none")).path
    assert suffixes_of(path) == [expected]
    indexed = [(sample.key, sample.target, sample.meta) for sample in of_reader(tar.open(path))]
    assert [target for _, target, _ in indexed] == targets
    (tmp_path / "y.tar.index.arrow").unlink()
    assert [(sample.key, sample.target, sample.meta) for sample in of_reader(tar.open(path))] == indexed
