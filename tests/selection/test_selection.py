"""Conditions, splits and selected sets: which samples come, that each comes once, and what is refused."""

import io
import json
import pickle
import tarfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError, UsageError
from smallfiles.loading import LoaderConfig, PackedFolder, make_loader
from smallfiles.loading.dataset import name_of_data
from smallfiles.loading.makers import Ragged
from smallfiles.measure import ranks
from smallfiles.pack import PackConfig, pack, split, verify
from smallfiles.samples import Sample, Schema
from smallfiles.selection import Choice, parse_rule
from smallfiles.selection.conditions import reported
from smallfiles.selection.reader import choose, select
from smallfiles.sources import SourceOptions

COUNT = 97
CLASSES = ("cat", "dog", "cow")
RULE = {"train": 0.75, "val": 0.25}
HALF = "label == 'cat' or age is not None and age > 40"
KNOWN = "age is not None and age >= 0"
OTHER = "other.arrow"
NAMES = ("a.arrow", "a.h5", "a.tars", "a.sqfs", "a.files")


def row(number):
    """The values of a sample, as this test knows them."""
    age = None if number % 10 == 9 else number
    who = f"p{number % 13}"
    return {"label": number % 3, "age": age, "height": number / 4, "who": who, "ok": number % 2 == 0}


ROWS = [row(number) for number in range(COUNT)]
CHOSEN = {
    n for n, each in enumerate(ROWS) if each["label"] == 0 or (each["age"] is not None and each["age"] > 40)
}


def write(out, count=COUNT, first=0, classes=CLASSES, without=(), **options):
    numbers = range(first, first + count)
    samples = [
        Sample(f"d{n % 3}/{n:04}.jpg", (n.to_bytes(3, "big") + bytes(n % 20),), n - first) for n in numbers
    ]
    names = [name for name in ROWS[0] if name not in without]
    values = pa.table({name: pa.array([row(n)[name] for n in numbers]) for name in names})
    module = formats.get(formats.name_of(out))
    schema = Schema.of(samples, values, classes=classes)
    module.write(samples, out, schema=schema, options=module.Options(**options), digest=False)
    return out


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets")
    write(folder / OTHER, 40, first=COUNT)
    return {name: write(folder / name, **{"max_count": 30} if name == "a.tars" else {}) for name in NAMES}


@pytest.fixture(scope="module")
def arrow(sets):
    return sets["a.arrow"]


def numbers_of(reader):
    return [int.from_bytes(bytes(each.data)[:3], "big") for each in reader]


def chosen_by(path, where):
    return set(numbers_of(choose(formats.open(path), where=where)))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("label == 'cat'", lambda r: r["label"] == 0),
        ("label != 0 and not ok", lambda r: r["label"] and not r["ok"]),
        ("label in ('cat', 'cow')", lambda r: r["label"] != 1),
        ("age is None", lambda r: r["age"] is None),
        ("age is not None and 10 < age <= 20", lambda r: r["age"] is not None and 10 < r["age"] <= 20),
        ("age is not None and age not in [1, 2]", lambda r: r["age"] not in (None, 1, 2)),
        ("height >= 12.25", lambda r: r["height"] >= 12.25),
        ("age is not None and age >= 40.5", lambda r: r["age"] is not None and r["age"] >= 40.5),
        ("who < 'p3'", lambda r: r["who"] < "p3"),
        ("-1 < height and 3 > height", lambda r: r["height"] < 3),
        ("height in [1, 2.5]", lambda r: r["height"] in (1, 2.5)),
        ("ok == True", lambda r: r["ok"]),
        ("ok and (who == 'p1' or who == 'p2')", lambda r: r["ok"] and r["who"] in ("p1", "p2")),
        ("who.startswith('p1') and not who.endswith('1')", lambda r: r["who"] in ("p10", "p12")),
        ("'1' in who", lambda r: "1" in r["who"]),
        ("who not in ['p3']", lambda r: r["who"] != "p3"),
        ("label < height", lambda r: r["label"] < r["height"]),
        (HALF, lambda r: r["label"] == 0 or (r["age"] or 0) > 40),
    ],
)
def test_a_condition_means_what_it_means_in_python(arrow, where, wanted):
    assert chosen_by(arrow, where) == {n for n, each in enumerate(ROWS) if wanted(each)}


def test_keys_are_a_field(arrow):
    assert chosen_by(arrow, "key == 'd1/0001.jpg' or key.endswith('2.jpg')") == {1, *range(2, COUNT, 10)}


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("age > 40", "undecided for 9 samples without age: d0/0009.jpg.*age is not None and"),
        ("who == 'p1' or age in [3]", "undecided for 8 samples"),
        (
            "years > 1",
            r"names the field 'years', which the set does not have; expected one of key \(string\), label",
        ),
        ("heights > 1", "did you mean height"),
        ("label == 'cot'", "names the class 'cot', which the set does not have; expected c"),
        ("label < 'dog'", "compares classes by < or >"),
        ("age == 'old'", r"compares age \(int64\) with 'old'"),
        ("who == 3", r"compares who \(string\) with 3"),
        ("ok == 1", r"compares ok \(bool\) with 1"),
        ("height > True", r"compares height \(double\) with True"),
        ("who < height", "with field height"),
        ("age < 99999999999999999999", "more than 64 bits"),
        ("age == None", "is None"),
        ("age is 3", "compare a field with None"),
        ("image == 'x'", r"compares image \(.jpg\)"),
        ("height", "needs a truth value"),
        ("height.startswith('1')", "with a part of a text"),
        ("who in []", "in needs a field and a list"),
        ("1 < 2", "names no field"),
        ("height + 1 > 2", "contains 'height [+] 1'"),
        ("height == who + 'x'", "contains"),
        ("height = 1", "cannot be read"),
        ("", "cannot be read"),
        ("who == '\0'", "null byte"),
        ("(" * 5000 + "ok" + ")" * 5000, "cannot be read"),
        ("not " * 2400 + "ok", "cannot be read"),
        ("ok and not ok", "no sample of .* fits where 'ok and not ok'"),
        *(
            (text, "contains")
            for text in (
                "__import__('os').system('true')",
                "(lambda: ok)()",
                "who.upper() == 'P1'",
                "who.age > 1",
            )
        ),
    ],
)
def test_what_a_condition_cannot_say_is_refused_in_a_sentence(arrow, where, said):
    with pytest.raises(UsageError, match=said) as raised:
        chosen_by(arrow, where)
    assert len(str(raised.value)) < 900


@pytest.mark.parametrize("name", NAMES)
def test_a_selection_is_a_set_of_its_own_in_every_format(sets, name):
    reader = choose(formats.open(sets[name]), where=HALF)
    numbers = numbers_of(reader)
    assert numbers == sorted(CHOSEN) and len(reader) == len(CHOSEN)
    for other in (reader, pickle.loads(pickle.dumps(reader))):
        assert [other.key(at) for at in (0, 5, -1)] == [other.keys()[at].as_py() for at in (0, 5, -1)]
        assert other.table(["height"])["height"].to_pylist() == [n / 4 for n in numbers]
        assert other.table(["who"], [3, -2])["who"].to_pylist() == [f"p{numbers[at] % 13}" for at in (3, -2)]
        assert [bytes(each)[2] for each in other.read_many([4, 1, 4])] == [numbers[at] for at in (4, 1, 4)]
        assert bytes(other.blob("image").read(-1))[2] == numbers[-1] and other.target(1) == numbers[1] % 3
        assert [other.size(at) for at in range(3)] == [3 + n % 20 for n in numbers[:3]]
    assert reader.info()["bytes"] == sum(3 + n % 20 for n in numbers)
    assert sum(reader.shard_sizes()) in (0, len(reader))
    assert [reader[at] for at in (0, -1)] == [reader.base[int(reader.rows[at])] for at in (0, -1)]
    assert reader.read_fields([], ["image"]) == [[]]
    assert reader.set_digest is None and not hasattr(reader, "following")
    for wrong in (len(reader), -len(reader) - 1):
        with pytest.raises(IndexError, match="selected samples"):
            reader.key(wrong)
    assert select(reader, Choice(where=HALF)) is reader  # the same choice is not made twice


def test_a_selection_is_identified_by_its_set_and_its_rows(arrow, sets):
    def name(path, **choice):
        return name_of_data(choose(formats.open(path), **choice))

    assert (
        name(arrow, where="ok")
        == name(arrow, where="ok == True")
        != name(arrow)
        != name(arrow, where="not ok")
    )
    assert name(sets["a.tars"], where="ok") != name(sets["a.tars"], where="not ok")


def groups(numbers, value):
    """The samples of each value, as this test knows them."""
    return [{n for n in numbers if value(n) == each} for each in {value(n) for n in numbers}]


FEW_COWS = "label != 2 or height < 5"
UNEQUAL = {n for n in range(COUNT) if n % 3 != 2 or n < 20}
GRID = [
    ({}, [(set(range(COUNT)), COUNT)]),
    ({"where": HALF}, [(CHOSEN, len(CHOSEN))]),
    ({"split": "val", "split_rule": RULE, "split_by": "who"}, None),
    ({"balance": "label", "where": FEW_COWS}, [(each, 33) for each in groups(UNEQUAL, lambda n: n % 3)]),
    ({"balance": "who"}, [(each, 8) for each in groups(range(COUNT), lambda n: n % 13)]),
    ({"weights": "label"}, [({*range(1, COUNT, 3)}, 32), ({*range(2, COUNT, 3)}, 65)]),
    ({"mix": (0.7, 0.3)}, [({*range(COUNT)}, 93), ({*range(COUNT, COUNT + 40)}, 40)]),
    ({"mix": (0.5, 0.5), "where": "ok"}, [({*range(0, COUNT, 2)}, 20), ({*range(98, COUNT + 40, 2)}, 20)]),
    ({"mix": (0.4, 0.6), "mix_samples": 200}, [({*range(COUNT)}, 80), ({*range(COUNT, COUNT + 40)}, 120)]),
]
"""Settings, and groups of samples with the number of samples of each in an epoch."""


def check_counts(seen, wanted):
    """Each group comes as often as it should, and its samples as evenly as possible; nothing else comes."""
    times = Counter(seen)
    for group, count in wanted:
        found = [times[n] for n in group]
        assert sum(found) == count and {*found} <= {count // len(group), -(-count // len(group))}
    assert len(seen) == sum(count for _, count in wanted)


def epoch(path, config, world_size, stop=None, state=None, number=0):
    """The samples that all ranks receive until they stop, read from their bytes, and a state at the stop."""
    seen, states, mix = [], [], None
    if shares := config.get("mix"):
        config = {name: value for name, value in config.items() if name != "mix"}
        mix = dict(zip((path, path.with_name(OTHER)), shares, strict=True))
    for rank in range(world_size):
        settings = LoaderConfig(rank=rank, world_size=world_size, **config)
        fields = {"image": Ragged(), "age": None}
        loader = make_loader(None if mix else path, settings, mix=mix, fields=fields)
        loader.set_epoch(number)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        for at, batch in enumerate(batches):
            if at == stop:
                break
            offsets = batch["image_offsets"].tolist()
            data = batch["image"].numpy().tobytes()
            seen += [int.from_bytes(data[start : start + 3], "big") for start in offsets[:-1]]
            states = [*states[:rank], loader.state_dict()]
    return seen, states[0] if states else None


def check_epochs(path, choice, wanted, numbers, **config):
    """Each sample comes as often as it should, for any ranks, also if the epoch goes on with others."""
    for number, world_size, others in numbers:
        config["seed"] = number % 7
        whole, _ = epoch(path, config | choice, world_size, number=number)
        check_counts(whole, wanted)
        before, state = epoch(path, config | choice, world_size, stop=1, number=number)
        after, _ = epoch(path, config | choice, others, state=state, number=number)
        assert Counter(before + after) == Counter(whole), (number, world_size, others)


def wanted_by(path, choice, known):
    if known is not None:
        return known
    whole = {n % 13 for n in numbers_of(choose(formats.open(path), **choice))}
    chosen = {n for n in range(COUNT) if n % 13 in whole}
    return [(chosen, len(chosen))]


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", range(len(GRID)))
def test_each_sample_comes_as_often_as_it_should_for_any_ranks_workers_and_resumption(
    sets, at, workers, order
):
    choice, known = GRID[at]
    for name in ("a.arrow", "a.tars"):
        wanted = wanted_by(sets[name], choice, known)
        more = {"mode": "threads" if workers else "main", "workers": workers, "order": order, "batch": 3}
        check_epochs(sets[name], choice, wanted, [(0, 1, 2), (1, 3, 2), (2, 2, 1)], **more)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("name", ["a.arrow", "a.tars"])
@pytest.mark.parametrize("at", range(len(GRID)))
def test_nothing_is_lost_doubled_or_leaked_in_thousands_of_epochs(sets, at, name, order):
    grid = [(n, 1 + n % 4, 1 + (n + n // 4) % 3) for n in range(84)]
    choice, known = GRID[at]
    check_epochs(
        sets[name], choice, wanted_by(sets[name], choice, known), grid, mode="main", order=order, batch=2
    )


def test_worker_processes_read_the_selection(arrow):
    config = {"mode": "processes", "workers": 2, "batch": 8, "where": HALF}
    assert Counter(epoch(arrow, config, 1)[0]) == Counter(CHOSEN)


def test_a_state_of_another_condition_is_refused(arrow):
    loader = make_loader(arrow, LoaderConfig(mode="main", where=HALF))
    state = loader.state_dict()
    for choice in ({"where": "ok"}, {"split": "val", "split_rule": RULE}, {}):
        with pytest.raises(UsageError, match="the state is of a loader with"):
            make_loader(arrow, LoaderConfig(mode="main", **choice)).load_state_dict(state)
    make_loader(arrow, LoaderConfig(mode="main", where=HALF)).load_state_dict(state)


def test_flags_of_a_choice_are_printed_and_read_back():
    config = LoaderConfig(where="ok", split="val", split_rule=RULE, split_by="who")
    assert config.to_cli() == "--where ok --split val --split-rule train=0.75,val=0.25 --split-by who"
    assert parse_rule("train=0.75, val=0.25") == RULE


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"split": "val"}, "has no field split"),
        ({"split": "test", "split_rule": RULE}, "'test' is not in the rule train=0.75,val=0.25"),
        ({"split": "val", "split_rule": {"train": 0.8, "val": 0.3}}, "sum is 1"),
        ({"split": "val", "split_rule": {"train": 1.2, "val": -0.2}}, "sum is 1"),
        ({"split": "val", "split_rule": {}}, "is empty"),
        ({"split_by": "who"}, "without a rule"),
        (
            {"split": "val", "split_rule": RULE, "split_by": "who", "stratify": "label"},
            "one of split-by and stratify",
        ),
        ({"split": "val", "split_rule": RULE, "split_by": "age"}, "9 samples .* have no age"),
        ({"split": "val", "split_rule": RULE, "split_by": "height"}, "the double 'height' to split by"),
        ({"split": "val", "split_rule": RULE, "split_by": "nurse"}, "no field 'nurse' to split by"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(arrow, choice, said):
    with pytest.raises(UsageError, match=said):
        choose(formats.open(arrow), **choice)


@pytest.mark.parametrize("text", ["train", "train=x", "train=0.5,train=0.5", ""])
def test_a_rule_that_cannot_be_read_is_a_wrong_command_line(arrow, text, capsys):
    assert main(["split", str(arrow), "--rule", text]) == 2
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("more", [{}, {"split_by": "who"}, {"stratify": "label"}])
def test_a_sample_stays_in_its_split_when_others_are_added(tmp_path, more):
    found = []
    for count in (300, 700):
        reader = formats.open(write(tmp_path / f"{count}.arrow", count))
        parts = {name: choose(reader, split=name, split_rule=RULE, **more) for name in RULE}
        found.append({key: name for name, part in parts.items() for key in part.keys().to_pylist()})
        assert len(found[-1]) == count == sum(map(len, parts.values()))
    assert found[0].items() <= found[1].items()
    if "split_by" not in more:
        assert 0.68 < Counter(found[1].values())["train"] / 700 < 0.82
    other = choose(reader, split="val", split_rule=RULE, split_seed=1, **more)
    assert set(other.keys().to_pylist()) != {key for key, name in found[1].items() if name == "val"}


def test_a_written_split_serves_all_programs(tmp_path, capsys):
    out = write(tmp_path / "all.arrow")
    assert main(["split", str(out), "--rule", "train=0.75,val=0.25", "--split-by", "who", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    val = choose(formats.open(out), split="val")
    groups = {n % 13 for n in numbers_of(val)}
    assert said["samples"]["val"] == len(val) and said["groups"]["val"] == len(groups)
    assert said["in_several"] == 0 and not groups & {
        n % 13 for n in numbers_of(choose(formats.open(out), split="train"))
    }
    assert set(val.keys().to_pylist()) == set(
        choose(formats.open(out), split="val", split_rule=RULE, split_by="who").keys().to_pylist()
    )
    assert Counter(epoch(out, {"mode": "main", "split": "val"}, 2)[0]) == Counter(numbers_of(val))
    assert main(["inspect", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["split_rule"], facts["split_by"], facts["split_seed"]) == (RULE, "who", 0)
    with pytest.raises(UsageError, match="no sample of the split 'test'; expected one of"):
        choose(formats.open(out), split="test")
    assert main(["split", str(out), "--rule", "train=0.5,val=0.5"]) == 1
    assert "exists" in capsys.readouterr().err
    pack(sources.load(out, split="val"), tmp_path / "val.tars", PackConfig(check="none"))
    assert numbers_of(formats.open(tmp_path / "val.tars")) == numbers_of(val)
    assert verify(out).verdict == "unproven"  # the samples have no digest, the split has one


def test_a_report_counts_the_groups_of_each_split_and_those_in_several(arrow):
    places = ["test" if n < 2 else "val" if n % 13 < 3 else "train" for n in range(COUNT)]
    rule = Choice(split_rule={"train": 0.5, "val": 0.3, "test": 0.2}, split_by="who")
    found = reported(formats.open(arrow), rule, pa.array(places))
    assert (found.groups, found.in_several) == ({"train": 10, "val": 3, "test": 2}, 2)
    assert found.samples == {name: places.count(name) for name in rule.split_rule}


def test_a_stratified_split_tells_the_shares_of_each_class(tmp_path, capsys):
    out = write(tmp_path / "all.arrow", 600)
    _, found = split(out, RULE, stratify="label")
    assert set(found.classes) == set(CLASSES) and not found.groups
    for name, shares in found.classes.items():
        mine = choose(formats.open(out), split="val", where=f"label == {name!r}")
        assert shares["val"] == pytest.approx(len(mine) / 200) and abs(shares["val"] - 0.25) < 0.12


def test_packing_a_part_of_a_packed_set(sets, tmp_path, capsys):
    for name in ("a.arrow", "a.tars", "a.files"):
        out = tmp_path / f"part-{name}"
        assert main(["pack", str(sets[name]), str(out), "--where", HALF, "--check", "none"]) == 0
        assert set(numbers_of(formats.open(out))) == CHOSEN
        assert main(["verify", str(out), "--against", str(sets[name]), "--where", HALF]) == 0
    with pytest.raises(SmallfilesError, match=r"no sample of .*a\.files fits where"):
        sources.load(sets["a.files"], where="ok and not ok")
    assert SourceOptions(where=HALF).where == HALF


def test_inspect_and_epoch_take_a_condition(arrow, tmp_path, capsys):
    assert main(["inspect", str(arrow), "--where", HALF, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["samples"] == len(CHOSEN) and facts["selected"] == {"where": HALF, "of": COUNT}
    assert (
        main(["inspect", str(arrow), "--where", "label == 'cat'", "--picture", str(tmp_path / "a.html")]) == 0
    )
    assert main(["epoch", str(arrow), str(tmp_path / "seen"), "--where", KNOWN, "--mode", "main"]) == 0
    found = ranks.count(tmp_path / "seen")
    assert found.exact and found.shares[0].samples == 88


def test_a_packed_folder_of_a_selection(arrow):
    data = PackedFolder(arrow, loader=lambda path: Path(path).read_bytes(), where=HALF)
    assert [int.from_bytes(image[:3], "big") for image, _ in data] == sorted(CHOSEN) and len(data) == len(
        CHOSEN
    )
    assert data.targets == [n % 3 for n in sorted(CHOSEN)] and data.classes == [*CLASSES]
    path, label = data.samples[5]
    assert path.endswith(f"{sorted(CHOSEN)[5]:04}.jpg") and label == sorted(CHOSEN)[5] % 3
    with pytest.raises(TypeError, match="when"):
        PackedFolder(arrow, when=HALF)


def test_a_batch_maker_takes_no_choice(arrow):
    maker = make_loader(arrow, LoaderConfig(mode="main")).dataset.maker
    with pytest.raises(UsageError, match="a choice of samples"):
        make_loader(maker, LoaderConfig(mode="main", where=HALF))


def write_shards(out):
    """Shards of another program: an image, a class, and a JSON object for each sample."""
    out.mkdir()
    for shard in range(0, COUNT, 40):
        with tarfile.open(out / f"{shard:05}.tar", "w") as file:
            for n in range(shard, min(shard + 40, COUNT)):
                facts = {"age": n, "who": f"p{n % 13}", "odd name": [n]} | ({"rare": True} if n == 60 else {})
                parts = {"jpg": n.to_bytes(3, "big") + bytes(n % 20), "cls": str(n % 3).encode()}
                for suffix, data in (parts | {"json": json.dumps(facts, indent=n % 2).encode()}).items():
                    member = tarfile.TarInfo(f"{n:04}.{suffix}")
                    member.size = len(data)
                    file.addfile(member, io.BytesIO(data))


def save_with_datasets(out):
    """A folder of Hugging Face `datasets` with three Arrow files."""
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": n.to_bytes(3, "big") + bytes(n % 20), "path": None} for n in range(COUNT)]
    columns = {"image": images, "label": [n % 3 for n in range(COUNT)], "age": [*range(COUNT)]}
    kinds = {"image": datasets.Image(decode=False), "label": datasets.ClassLabel(names=list(CLASSES))}
    features = datasets.Features(kinds | {"age": datasets.Value("int64"), "who": datasets.Value("string")})
    columns["who"] = [f"p{n % 13}" for n in range(COUNT)]
    datasets.Dataset.from_dict(columns, features=features).save_to_disk(str(out), num_shards=3)


def of_all_ranks(path, **config):
    """The samples of an epoch of two ranks, by their bytes."""
    found = []
    for rank in range(2):
        loader = make_loader(path, LoaderConfig(rank=rank, world_size=2, mode="main", batch=4, **config))
        for batch in loader:
            data = batch["data"].numpy().tobytes()
            found += [int.from_bytes(data[at : at + 3], "big") for at in batch["offsets"][:-1].tolist()]
    return found


@pytest.mark.parametrize(
    ("write_others", "name", "of"), [(write_shards, "a.tars", "meta."), (save_with_datasets, "saved", "")]
)
def test_sets_of_other_programs_are_selected_and_split_in_place(tmp_path, write_others, name, of, capsys):
    write_others(out := tmp_path / name)
    before = {path: path.read_bytes() for path in out.iterdir()}
    old = {n for n in range(COUNT) if n > 40 and n % 13 not in (1, 10, 11, 12)}
    where = f"{of}age > 40 and not {of}who.startswith('p1')"
    words = ["split", str(out), "--rule", "train=0.75,val=0.25", "--split-by", f"{of}who"]
    assert main([*words, "--json"]) == 0 and json.loads(capsys.readouterr().out)["in_several"] == 0
    parts = [{n % 13 for n in of_all_ranks(out, split=split)} for split in RULE]
    assert not parts[0] & parts[1] and parts[0] | parts[1] == {*range(13)}
    for order in ("random", "stream"):
        assert Counter(of_all_ranks(out, order=order)) == Counter(range(COUNT))
        assert Counter(of_all_ranks(out, order=order, where=where)) == Counter(old)
        val = [n for n in range(COUNT) if n % 13 in parts[1]]
        assert Counter(of_all_ranks(out, order=order, split="val")) == Counter(val)
    assert before == {path: path.read_bytes() for path in out.iterdir()}
    assert verify(out).verdict == "unproven"  # only the split has a digest
    if of:
        assert chosen_by(out, "meta.rare is not None and meta.rare") == {60}
        for wrong, said in (("meta.none == 1", "names the field 'meta.none'"), ("meta.age == 'x'", "int64")):
            with pytest.raises(UsageError, match=said):
                chosen_by(out, wrong)
