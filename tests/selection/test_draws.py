"""Balanced, weighted and mixed sets: what an epoch has, what a loader says of it, and what is refused."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from test_selection import FEW_COWS, UNEQUAL, epoch, write

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.pack import annotate
from smallfiles.samples import Sample, Schema

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
    }
    module = formats.get("arrow")
    schema = Schema.of(samples, pa.table(values))
    module.write(samples, out, schema=schema, options=module.Options(), digest=False)
    return out


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


def test_flags_are_printed_and_read_back():
    assert LoaderConfig(balance="label").to_cli() == "--balance label"
    assert LoaderConfig(weights="score").to_cli() == "--weights score"
