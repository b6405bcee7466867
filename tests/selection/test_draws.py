"""Balanced, weighted and mixed sets: what an epoch has, what a loader says of it, and what is refused."""

import io
import json
import pickle
import tarfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from test_selection import COUNT, FEW_COWS, ROWS, UNEQUAL, epoch, write

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.loading.dataset import mixture_of
from smallfiles.pack import annotate
from smallfiles.samples import Sample, Schema
from smallfiles.selection import Draw

MAIN = {"mode": "main", "batch": 8}
CHOICE = {"balance": "label", "where": FEW_COWS}
KNOWN = f"({FEW_COWS}) and age is not None"


@pytest.fixture(scope="module")
def arrow(tmp_path_factory):
    return write(tmp_path_factory.mktemp("draws") / "a.arrow")


@pytest.mark.parametrize("order", ["random", "stream"])
def test_all_samples_of_a_class_have_their_turn_for_the_extra_repeats(arrow, order):
    cows, seen = [n for n in UNEQUAL if n % 3 == 2], Counter()
    for number in range(len(cows)):  # 33 = 5 x 6 + 3: a turn lasts 2 epochs
        seen += Counter(epoch(arrow, MAIN | CHOICE | {"order": order}, 1, number=number)[0])
    assert len(cows) == 6 and {seen[n] for n in cows} == {33}
    assert {seen[n] for n in UNEQUAL if n % 3 == 1} == {6, 7}  # 33 = 32 + 1


@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_workers_make_the_same_batches(arrow, mode):
    alone = epoch(arrow, MAIN | CHOICE, 1)[0]
    assert epoch(arrow, {"batch": 8, "mode": mode, "workers": 2} | CHOICE, 1)[0] == alone


def test_a_repeat_gets_another_crop(arrow):
    class Drawing:
        shape, dtype = (2, 2, 3), np.dtype(np.uint8)

        def into(self, data, rng, out):
            out[...] = rng.integers(0, 256, self.shape, np.uint8)
            out[0, 0, :] = np.frombuffer(bytes(data)[:3], np.uint8)

    loader = make_loader(arrow, LoaderConfig(**MAIN, **CHOICE), transform=Drawing(), fields={"age": None})
    images = np.concatenate([batch["image"].permute(0, 2, 3, 1).numpy() for batch in loader])
    cow = images[images[:, 0, 0, 2] == 2]
    assert len(cow) in (5, 6) and len({each.tobytes() for each in cow}) == len(cow)


def test_a_number_of_a_batch_is_that_of_a_sample_of_the_readers(arrow):
    loader = make_loader(arrow, LoaderConfig(**MAIN, **CHOICE), fields={"age": None})
    for batch in loader:
        data, starts = batch["data"].numpy().tobytes(), batch["offsets"].tolist()[:-1]
        numbers = [int.from_bytes(data[start : start + 3], "big") for start in starts]
        assert [loader.reader.key(n) for n in batch["index"].tolist()] == [
            f"d{n % 3}/{n:04}.jpg" for n in numbers
        ]


def test_the_loader_and_epoch_say_what_is_repeated(arrow, tmp_path, capsys):
    said = make_loader(arrow, LoaderConfig(**MAIN, **CHOICE)).drawn
    assert said == (
        "an epoch has 99 samples, 33 of each of 3 values of label; each of 71 different samples comes "
        "1 to 6 times (28 repeats)"
    )
    for rank in ("0", "1"):
        flags = ("--balance", "label", "--where", KNOWN, "--mode", "main", "--rank", rank)
        assert main(["epoch", str(arrow), str(tmp_path), *flags, "--world-size", "2"]) == 0
    capsys.readouterr()
    assert main(["epoch", "--count", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 90 and found["exactly_once"] and "(25 repeats)" in found["drawn"]
    seen = np.load(tmp_path / "rank-00000.npy")
    np.save(tmp_path / "rank-00000.npy", np.append(seen[1:], seen[1]))
    assert main(["epoch", "--count", str(tmp_path)]) == 1
    assert "1 did not come" in capsys.readouterr().out


def test_a_state_of_other_counts_is_refused(arrow):
    state = make_loader(arrow, LoaderConfig(**MAIN, **CHOICE)).state_dict()
    make_loader(arrow, LoaderConfig(**MAIN, **CHOICE)).load_state_dict(json.loads(json.dumps(state)))
    for other in ({"where": FEW_COWS}, CHOICE | {"balance": "who"}, {"weights": "label"}):
        with pytest.raises(UsageError, match="the state is of a loader with"):
            make_loader(arrow, LoaderConfig(**MAIN, **other)).load_state_dict(state)


def test_a_balanced_reader_is_not_balanced_again(arrow):
    config = LoaderConfig(**MAIN, **CHOICE)
    reader = make_loader(arrow, config).reader
    assert make_loader(reader, config).plan == make_loader(reader, LoaderConfig(**MAIN)).plan
    with pytest.raises(UsageError, match="was drawn before, with other settings"):
        make_loader(reader, LoaderConfig(**MAIN, balance="who"))


@pytest.mark.parametrize(("where", "repeats"), [("key != 'd0/0096.jpg'", 0), (FEW_COWS, 28)])
def test_samples_that_repeat_are_not_streamed_from_a_store_which_reads_each_once(arrow, where, repeats):
    base = formats.open(arrow)
    base.following = lambda order: base  # as the reader of an object store has it
    drawn = make_loader(base, LoaderConfig(**MAIN, balance="label", where=where)).reader
    assert drawn.repeats == repeats and hasattr(drawn, "following") == (not repeats)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A set with samples without a label, and fields that are no weights."""
    out = tmp_path_factory.mktemp("odd") / "odd.arrow"
    samples = [Sample(f"{n}.jpg", (b"x",), n) for n in range(6)]
    values = {
        "label": [0, 0, 1, -1, 1, 1],
        "none": [0.0] * 6,
        "holes": [1.0, None, 2.0, -1.0, 1.0, 1.0],
        "text": [*"abcdef"],
        "bin": [-1, 0, 0, -1, 1, 1],
    }
    module = formats.get("arrow")
    schema = Schema.of(samples, pa.table(values))
    module.write(samples, out, schema=schema, options=module.Options(), digest=False)
    return out


def test_only_a_label_of_minus_one_means_that_a_sample_has_none(odd):
    drawn = make_loader(odd, LoaderConfig(mode="main", balance="bin")).drawn
    assert drawn.startswith("an epoch has 6 samples, 2 of each of 3 values of bin; each of 6 different")


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        ({"balance": "label"}, "1 sample of .* have no label.*where='label != -1'"),
        ({"balance": "tag"}, "has no field 'tag' to balance"),
        ({"balance": "none"}, "the double 'none' to balance"),
        ({"weights": "none"}, "the none of all samples of .* is 0"),
        ({"weights": "holes"}, "2 samples of .* have a holes below 0, or none"),
        ({"weights": "text"}, "has the string 'text' for weights; expected a field of numbers; it has label"),
        ({"weights": "year"}, "has no field 'year' for weights"),
        ({"weights": "label", "balance": "label"}, "balanced by label and also weighted by label"),
    ],
)
def test_what_cannot_be_balanced_is_refused(odd, draw, said):
    with pytest.raises(UsageError, match=said):
        make_loader(odd, LoaderConfig(mode="main", **draw))


def test_weights_beyond_a_number_of_values_are_refused(tmp_path):
    for count, wanted in ((4096, None), (4097, "4,097 different values of w; expected at most 4,096")):
        out = write(tmp_path / f"{count}.arrow", count)
        table = tmp_path / f"{count}.csv"
        keys = formats.open(out).keys().to_pylist()
        table.write_text("key,w\n" + "".join(f"{key},{n}.5\n" for n, key in enumerate(keys)))
        annotate(out, table, key="key")
        config = LoaderConfig(mode="main", weights="w")
        if wanted is None:
            assert make_loader(out, config).plan.epoch_samples == count
            continue
        with pytest.raises(UsageError, match=wanted):
            make_loader(out, config)


def other_set(folder, name, **options):
    return write(folder / name, 40, first=COUNT, **options)


def test_a_mixture_continues_with_the_other_samples_of_the_larger_set(arrow, tmp_path):
    few, seen = other_set(tmp_path, "few.arrow"), Counter()
    for number in range(2):  # 40 and 40 of 97
        loader = make_loader(None, LoaderConfig(**MAIN), mix={arrow: 0.5, few: 0.5}, fields={"age": None})
        loader.set_epoch(number)
        seen += Counter(int(n) for batch in loader for n in batch["index"])
    assert Counter(seen[n] for n in range(COUNT)) == {1: 80, 0: 17}
    assert {seen[n] for n in range(COUNT, COUNT + 40)} == {2}
    assert loader.drawn == (
        f"an epoch has 80 samples, 40 of 97 of {arrow}, 40 of 40 of {few}; each of 137 different samples "
        "comes at most once"
    )


def test_a_mixture_is_a_set_of_its_own(arrow, tmp_path):
    few = other_set(tmp_path, "few.tars", max_count=15)
    reader = pickle.loads(pickle.dumps(mixture_of({arrow: 0.5, few: 0.5})))
    numbers = [*range(COUNT + 40)]
    assert [int.from_bytes(bytes(each.data)[:3], "big") for each in reader] == numbers
    assert reader.table(["height"])["height"].to_pylist() == [n / 4 for n in numbers]
    assert reader.table(["who"], [130, 2, 99])["who"].to_pylist() == ["p0", "p2", "p8"]
    assert [bytes(each)[2] for each in reader.read_many([120, 4, 120])] == [120, 4, 120]
    assert reader.keys().to_pylist() == [reader.key(n) for n in numbers]
    assert reader.target(100) == 1 and reader.size(101) == 4 and len(reader.added()) == 0
    assert sum(reader.shard_sizes()) == COUNT + 40 and reader.info()["samples"] == COUNT + 40
    assert reader.table([], []).num_rows == 0 and reader.read_fields([], ["image"]) == [[]]
    reader.close()


def test_a_sample_without_a_class_has_none_in_a_mixture(arrow, tmp_path):
    samples, out = [Sample(f"{n}.jpg", (b"x",), n) for n in range(2)], tmp_path / "some.arrow"
    values = pa.table({name: [ROWS[n][name] for n in range(2)] for name in ROWS[0]})
    schema = Schema.of(samples, values.set_column(0, "label", pa.array([-1, 0])), classes=("cow",))
    formats.get("arrow").write(samples, out, schema=schema, digest=False)
    names = mixture_of({arrow: 0.5, out: 0.5}, Draw(mix_classes="names"))
    assert names.table(["label"], [97, 98])["label"].to_pylist() == [-1, 2]
    assert [names.target(n) for n in (97, 98)] == [-1, 2]


def test_classes_of_a_mixture_are_joined_as_declared(arrow, tmp_path):
    few = other_set(tmp_path, "few.arrow", classes=("dog", "cat", "pig"))
    with pytest.raises(UsageError, match=r"different names of classes: .*cat, dog, cow; .*dog, cat, pig"):
        mixture_of({arrow: 0.5, few: 0.5})
    numbers = mixture_of({arrow: 0.5, few: 0.5}, Draw(mix_classes="numbers"))
    assert numbers.classes == ("cat", "dog", "cow") and numbers.target(COUNT) == COUNT % 3
    names = mixture_of({arrow: 0.5, few: 0.5}, Draw(mix_classes="names"))
    assert names.classes == ("cat", "dog", "cow", "pig")
    labels = names.table(["label"])["label"].to_pylist()
    assert labels[:COUNT] == [n % 3 for n in range(COUNT)]
    assert labels[COUNT:] == [(1, 0, 3)[n % 3] for n in range(COUNT, COUNT + 40)]
    assert [names.target(n) for n in (96, 97, 98)] == labels[96:99]
    unnamed = other_set(tmp_path, "unnamed.arrow", classes=())
    with pytest.raises(UsageError, match=r"unnamed.arrow has none; expected names of the classes"):
        mixture_of({arrow: 0.5, unnamed: 0.5}, Draw(mix_classes="names"))


@pytest.mark.parametrize(
    ("shares", "draw", "said"),
    [
        ((0.5, 0.4), {}, "few.arrow=0.4; expected positive shares whose sum is 1"),
        ((1.5, -0.5), {}, "expected positive shares"),
        ((0.5, 0.5), {"balance": "label"}, "balance or weights was given together with a mixture"),
        ((0.999, 0.001), {}, "an epoch of 97 samples has none of .*few.arrow"),
        ((0.5, 0.5), {"where": "height > 1000"}, "no sample of .*a.arrow fits"),
    ],
)
def test_what_cannot_be_mixed_is_refused(arrow, tmp_path, shares, draw, said):
    few = other_set(tmp_path, "few.arrow")
    with pytest.raises(UsageError, match=said):
        make_loader(None, LoaderConfig(**draw), mix=dict(zip((arrow, few), shares, strict=True)))


def test_sets_with_other_fields_are_refused_by_name(arrow, tmp_path):
    few = other_set(tmp_path, "few.arrow", without=("age", "who"))
    said = "different fields: age is int64 and missing, who is string and missing.*fields={'age': None, 'who'"
    with pytest.raises(UsageError, match=said):
        make_loader(None, mix={arrow: 0.5, few: 0.5})
    both = make_loader(None, mix={arrow: 0.5, few: 0.5}, fields={"age": None, "who": None})
    assert {*next(iter(both))} == {"index", "target", "height", "ok", "data", "offsets"}


def test_a_source_is_one_set_or_a_mixture(arrow):
    with pytest.raises(UsageError, match="neither a source nor a mixture"):
        make_loader()
    with pytest.raises(UsageError, match="a source and a mixture were given together"):
        make_loader(arrow, mix={arrow: 1.0})
    for alone in ({"mix_samples": 5}, {"mix_classes": "names"}):
        with pytest.raises(UsageError, match="without a mixture"):
            make_loader(arrow, LoaderConfig(**alone))


def test_sets_of_other_programs_are_balanced_and_mixed_in_place(tmp_path):
    shard, table = tmp_path / "theirs.tar", tmp_path / "theirs.arrow"
    pictures = [b"\xff\xd8\xff" + bytes([n]) for n in range(12)]
    with tarfile.open(shard, "w") as tar:
        for n, data in enumerate(pictures):
            for suffix, content in ((".jpg", data), (".cls", b"1" if n % 4 else b"0")):
                info = tarfile.TarInfo(f"{n:03}{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    image = pa.array([{"bytes": data, "path": f"{n}.jpg"} for n, data in enumerate(pictures)])
    with pa.OSFile(str(table), "wb") as file:
        batch = pa.table({"image": image, "label": pa.array([n % 2 for n in range(12)], pa.int64())})
        with pa.ipc.new_stream(file, batch.schema) as writer:
            writer.write_table(batch)
    balanced = make_loader(shard, LoaderConfig(**MAIN, balance="label"))
    assert Counter(int(n) for batch in balanced for n in batch["target"]) == {0: 9, 1: 9}
    both = make_loader(None, LoaderConfig(**MAIN, mix_classes="numbers"), mix={shard: 0.25, table: 0.75})
    rows = [int(n) for batch in both for n in batch["index"]]
    assert len(rows) == len({*rows}) == 16 and sum(n < 12 for n in rows) == 4


def test_epoch_and_train_take_a_mixture(arrow, tmp_path, capsys):
    few, folder = other_set(tmp_path, "few.arrow"), tmp_path / "seen"
    mix = ("--mix", f"{arrow}=0.6", "--mix", f"{few}=0.4", "--where", "age is not None", "--mode", "main")
    for rank in ("0", "1", "2"):
        assert main(["epoch", *mix, str(folder), "--rank", rank, "--world-size", "3"]) == 0
    capsys.readouterr()
    assert main(["epoch", "--count", str(folder)]) == 0
    assert "3 ranks on 1 node read the epoch exactly" in (out := capsys.readouterr().out)
    assert f"54 of 88 of {arrow}, 36 of 36 of {few}" in out
    for words in (["train", str(arrow), *mix], ["train"]):
        assert main(words) == 2
        assert "expected one packed file, or --mix PATH=SHARE" in capsys.readouterr().err
    assert main(["epoch", "--mix", "a.arrow", str(folder)]) == 2
    assert main(["epoch", "--mix", "a.arrow=0.5", "--mix", "a.arrow=1", str(folder)]) == 2
    assert "expected PATH=SHARE, such as a.arrow=0.7" in (said := capsys.readouterr().err)
    assert "--mix names a.arrow twice; expected each set once" in said


def test_flags_are_printed_and_read_back():
    assert LoaderConfig(balance="label").to_cli() == "--balance label"
    assert LoaderConfig(weights="score").to_cli() == "--weights score"
