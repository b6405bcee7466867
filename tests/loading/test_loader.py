"""One loader, whatever makes its batches: processes, threads, or neither."""

import itertools
import multiprocessing
import random
import threading
import time
from collections import Counter
from dataclasses import replace

import loading_sets as sets
import numpy as np
import pytest
import torch
from given import Given, bare, schema_of
from torch.utils.data import ConcatDataset, DataLoader
from torchvision import transforms as v1
from torchvision.transforms import v2

from smallfiles import formats, sources
from smallfiles.errors import FormatError, UsageError
from smallfiles.loading import BadSampleError, LoaderConfig, SampleDataset, make_loader
from smallfiles.loading.dataset import maker_of
from smallfiles.loading.fields import field_batches
from smallfiles.loading.loader import InThreads
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic

COUNT = 101
METHODS = multiprocessing.get_all_start_methods()
MODES = [
    LoaderConfig(mode="main"),
    LoaderConfig(mode="threads", workers=3),
    LoaderConfig(mode="processes", workers=2),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return sets.write(sets.stub_samples(COUNT), tmp_path_factory.mktemp("set") / "x.arrow")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards") / "x.tars"
    return sets.write(sets.stub_samples(COUNT), folder, max_count=17)


def loader(path, config, **changes):
    changes = {"batch": 8, "seed": 3} | changes
    return make_loader(path, replace(config, **changes), transform=sets.Stub())


@pytest.fixture(scope="module")
def expected(path):
    """Batches of two epochs, made in the main thread."""
    made = loader(path, MODES[0])
    return [sets.digest(made) for _ in range(2)]


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_all_modes_give_equal_batches_of_tensors_and_torch_gets_its_threads_back(path, expected, config):
    before = torch.get_num_threads()
    made = loader(path, config)
    assert isinstance(made, DataLoader) and len(made) == 13
    batches = list(made)
    assert [sets.digest(batches), sets.digest(made)] == expected
    assert batches[0]["image"].shape == (8, 3, 8, 8) and batches[0]["image"].dtype == torch.uint8
    assert batches[0]["image"].is_contiguous(memory_format=torch.channels_last)
    assert batches[0]["target"].dtype == batches[0]["index"].dtype == torch.int64
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("method", METHODS)
def test_all_start_methods_give_equal_batches(path, expected, method):
    made = loader(path, MODES[2], workers=1, start_method=method)
    assert sets.digest(made) == expected[0]


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_a_loader_stopped_at_batch_5_goes_on_at_batch_5(path, config, order):
    whole = loader(path, config, order=order)
    later = [sets.digest(whole), sets.digest(whole)]
    stopped = loader(path, config, order=order)
    assert len(list(itertools.islice(stopped, 5))) == 5
    state = stopped.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 5)
    again = loader(path, config, order=order)
    again.load_state_dict(state)
    again.set_epoch(0)  # as trainers do; must not go back to the beginning
    assert sets.digest(again) == later[0][5:]
    assert sets.digest(again) == later[1]


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_an_epoch_begun_on_two_ranks_is_finished_by_three_then_by_one(path, config, order):
    """Each sample once, the next epoch whole again, and a stop in the rest of an epoch is a stop too."""
    seen, state = Counter(), None
    for world, stop in ((2, 3), (3, 2), (1, 10**6)):
        for rank in range(world):
            made = loader(path, config, order=order, rank=rank, world_size=world)
            if state is not None:
                made.load_state_dict(state)
                made.set_epoch(0)
            for batch in itertools.islice(made, stop):
                seen.update(batch["index"].tolist())
            kept = made.state_dict()
        state = kept
    assert set(seen.values()) == {1} and len(seen) == len(formats.open(path))
    assert (state["epoch"], state["earlier"]) == (1, [])
    assert sets.digest(made) == sets.digest(skipped(loader(path, config, order=order)))


def skipped(made):
    """A loader before its second epoch."""
    made.set_epoch(1)
    return made


def test_a_state_says_where_the_loader_is(path):
    made = loader(path, MODES[0])
    at = [made.state_dict()]
    for number, _ in enumerate(made):
        if number in (0, 12):
            at.append(made.state_dict())
    made.set_epoch(7)
    at.append(made.state_dict())
    assert [(s["epoch"], s["batch"]) for s in at] == [(0, 0), (0, 1), (1, 0), (7, 0)]


def test_a_state_of_another_loader_is_refused(path):
    state = loader(path, MODES[0]).state_dict()
    with pytest.raises(UsageError, match=r"'seed': 3.*'seed': 1"):
        loader(path, MODES[0], seed=1).load_state_dict(state)
    with pytest.raises(UsageError, match=r"'streams': 0.*'streams': 1"):
        loader(path, MODES[0], order="stream").load_state_dict(state)
    plans = [{"plan": odd} for odd in (None, {"world_size": "x"}, state["plan"] | {"batch": []})]
    for odd in (*plans, {"earlier": [["x"]]}):
        with pytest.raises(UsageError, match="the state is of a loader with"):
            loader(path, MODES[0]).load_state_dict(state | odd)
    many = [{"earlier": [grid]} for grid in ([10**9, 1, 1, 1], [1, 1, 10**9, 1], [1, 0, 0, 1], [1, 1, 0, -1])]
    sizes = [{"plan": state["plan"] | {"world_size": 10**9}}, {"earlier": [[1, 1, 0, 0]] * 10**4}]
    for odd in (*many, *sizes):
        with pytest.raises(UsageError, match=r"the state says that .*expected numbers that a set of"):
            loader(path, MODES[0]).load_state_dict(state | odd)
    with pytest.raises(UsageError, match="batch from 0 to 13"):
        loader(path, MODES[0]).load_state_dict(state | {"batch": 14})
    with pytest.raises(UsageError, match="unknown"):
        loader(path, MODES[0]).load_state_dict({"epoch": 0, "batch": 0})


def test_a_state_of_shards_cut_elsewhere_is_refused(tmp_path):
    """Four shards both, and other samples in each."""
    first, second = (
        loader(
            sets.write(sets.stub_samples(100), tmp_path / f"{n}.tars", max_count=n), MODES[0], order="stream"
        )
        for n in (26, 33)
    )
    with pytest.raises(UsageError, match="'shards': '4 of sizes"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("count", [100, 5000])
@pytest.mark.parametrize("suffix", ["arrow", "h5", "tar", "sqfs", "lmdb"])
def test_a_state_of_another_stored_order_is_refused_though_sizes_and_labels_are_equal(
    tmp_path, count, suffix
):
    rows = [Given(f"{n:04}.jpg", b"good" + bytes(3), 0) for n in range(count)]
    other = rows[3::-1] + rows[4:] if count == 100 else rows[9:] + rows[:9]
    schema = schema_of(rows, manifest_digest="of the set")
    module, made = formats.get(formats.name_of(tmp_path / f"x.{suffix}")), []
    for name, order in (("a", rows), ("b", other), ("c", rows)):
        out = tmp_path / f"{name}.{suffix}"
        module.write(bare(order), out, schema=schema, options=module.Options(), digest=False)
        made.append(loader(out, MODES[0]))
    state = made[0].state_dict()
    with pytest.raises(UsageError, match=r"the state is of a loader with \{'data'"):
        made[1].load_state_dict(state)
    made[2].load_state_dict(state)


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_epochs_differ_though_nobody_calls_set_epoch_and_may_be_left_in_the_middle(path, config, order):
    made = loader(path, config, order=order)
    first, second = sets.numbers(made), sets.numbers(made)
    assert first != second
    made.set_epoch(0)
    assert [next(iter(made))["index"].tolist()] == first[:1]
    made.set_epoch(0)
    assert sets.numbers(made) == first
    assert sets.numbers(made) == second


@pytest.mark.parametrize("order", ["random", "stream"])
@pytest.mark.parametrize("mode", ["processes", "threads"])
def test_real_ranks_and_workers_read_every_sample_once(shards, mode, order):
    assert len(formats.open(shards).shard_sizes()) > 2
    for world, workers in ((1, 3), (2, 2), (3, 1)):
        seen = Counter()
        for rank in range(world):
            config = LoaderConfig(mode=mode, workers=workers, order=order, rank=rank, world_size=world)
            made = loader(shards, config, buffer=9)
            batches = sets.numbers(made)
            assert len(batches) == len(made) == made.plan.batches_per_rank()[rank]
            seen.update(sets.flat(batches))
        assert seen == Counter(range(COUNT)), (world, workers)


def test_streams_of_two_workers_are_those_of_one_thread_for_each(shards):
    made = [loader(shards, config, order="stream", workers=2, buffer=9) for config in MODES[1:]]
    assert sets.digest(made[0]) == sets.digest(made[1])


def test_a_stream_reads_each_sample_once_and_holds_no_more_than_its_buffer(shards):
    made = loader(shards, MODES[0], order="stream", buffer=10)
    dataset = made.dataset
    maker, emits = dataset._open(0, 0, 0, True)
    window, most = maker.reader, 0
    for start in range(0, COUNT, 8):
        assert len(maker.make(emits[start : start + 8], 0)) == len(emits[start : start + 8])
        most = max(most, len(window._held))
    assert most <= 10 + 64
    assert not window._held


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
@pytest.mark.parametrize("order", ["random", "stream"])
def test_corrupt_images_stop_are_skipped_or_repeated_in_all_modes(tmp_path, config, order):
    path = sets.write(sets.stub_samples(60, bad=(7, 30)), tmp_path / "x.arrow")
    skipping = loader(path, config, order=order, on_error="skip")
    assert sorted(sets.flat(sets.numbers(skipping))) == sorted(set(range(60)) - {7, 30})
    assert skipping.fault_count == 2
    assert {fault.key for fault in skipping.faults} == {"d1/0007.jpg", "d0/0030.jpg"}
    repeating = loader(path, config, order=order, on_error="repeat")
    seen = Counter(sets.flat(sets.numbers(repeating)))
    assert sum(seen.values()) == 60
    assert seen.keys() == set(range(60)) - {7, 30}
    stopping = loader(path, config, order=order)
    stopping.set_epoch(7)
    with pytest.raises(BadSampleError, match=r"sample 'd[01]/00(07|30).jpg' .* in epoch 7"):
        list(stopping)


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
@pytest.mark.parametrize("order", ["random", "stream"])
def test_a_batch_that_was_left_out_whole_does_not_end_the_epoch(tmp_path, config, order):
    """33 samples in batches of 32, the last of which is bad; on several ranks it comes empty."""
    path = sets.write(sets.stub_samples(33, bad=(32,)), tmp_path / "x.arrow")
    settings = {"order": order, "on_error": "skip", "batch": 32, "shuffle": False}
    alone = loader(path, config, **settings)
    assert sets.numbers(alone) == [list(range(32))] and alone.state_dict()["epoch"] == 1
    assert [fault.index for fault in alone.faults] == [32]
    settings |= {"batch": 16, "world_size": 2}  # the first rank has one sample more: its last one is bad
    path = sets.write(sets.stub_samples(33, bad=(32 if order == "random" else 16,)), tmp_path / "z.arrow")
    ranks = [sets.numbers(loader(path, config, **settings, rank=rank)) for rank in (0, 1)]
    assert [list(map(len, numbers)) for numbers in ranks] == [[16, 0], [16]]
    path = sets.write(sets.stub_samples(9, bad=range(9)), tmp_path / "y.arrow")
    nothing = loader(path, config, order=order, on_error="skip")
    with pytest.raises(BadSampleError, match=r"all 9 samples of .*y\.arrow failed in epoch 0"):
        list(nothing)


@pytest.mark.parametrize("config", MODES, ids=lambda config: config.mode)
def test_raw_batches_travel_too(path, config):
    raw = make_loader(path, replace(config, batch=8))
    reader = formats.open(path)
    for batch in raw:
        offsets = batch["offsets"].tolist()
        for row, index in enumerate(batch["index"].tolist()):
            assert bytes(batch["data"][offsets[row] : offsets[row + 1]].numpy()) == bytes(reader.read(index))


def test_a_plain_dataloader_takes_the_data_set(path):
    plain = DataLoader(SampleDataset(maker_of(path, sets.Stub())), batch_size=8, num_workers=2)
    batches = list(plain)
    assert sets.flat(sets.numbers(batches)) == list(range(COUNT))
    assert batches[0]["image"].shape == (8, 3, 8, 8)
    raw = DataLoader(SampleDataset(maker_of(path)), batch_size=None)
    reader = formats.open(path)
    for index, item in enumerate(raw):
        assert bytes(item["data"].numpy()) == bytes(reader.read(index))
        assert item["index"] == index


@pytest.mark.timeout(100)
@pytest.mark.parametrize("method", METHODS)
def test_a_data_set_of_ones_own_may_return_the_views_that_a_reader_gives(path, tmp_path, method):
    """Its workers sent nothing, and the trainer waited for ever."""
    packed = (path, sets.write(sets.stub_samples(COUNT), tmp_path / "x.files"))
    views = ConcatDataset(map(sets.Views, packed))
    sent = DataLoader(views, batch_size=3, collate_fn=list, num_workers=1, multiprocessing_context=method)
    assert sets.flat(sent) == [views[number] for number in range(2 * COUNT)]


def test_a_data_set_counts_from_the_end_and_refuses_numbers_outside(path):
    dataset = SampleDataset(maker_of(path, sets.Stub()))
    assert dataset[-1]["index"] == COUNT - 1
    assert len(dataset) == COUNT
    with pytest.raises(IndexError):
        dataset[COUNT]
    with pytest.raises(UsageError, match=r"epochs \[0, 1\]"):
        dataset.__getitems__([1, 2 | 1 << 40])


def compose(v, *last):
    """What people write, of torchvision's old transforms or its new ones."""
    return v.Compose(
        [v.RandomResizedCrop(16), v.RandomChoice([v.ColorJitter(0.5), v.RandomRotation(9)]), *last]
    )


def by_hand(picture):
    """A function that draws from NumPy, and makes a picture."""
    return picture.resize((9, 7)).rotate(np.random.randint(360))


FOREIGN = {
    "v1": (compose(v1, v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)), (torch.float32, 16, 16)),
    "v2": (compose(v2, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)), (torch.float32, 16, 16)),
    "v2 bytes": (compose(v2, v2.ToImage()), (torch.uint8, 16, 16)),
    "takes tensors": (v1.Compose([v1.ConvertImageDtype(torch.half), v1.CenterCrop(8)]), (torch.half, 8, 8)),
    "function": (by_hand, (torch.uint8, 7, 9)),
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    place = tmp_path_factory.mktemp("pictures")
    synthetic.make(place / "tree", "folder", count=20, classes=2, size=(48, 36))
    pack(sources.load(place / "tree"), place / "x.arrow", PackConfig(verify="none"))
    return place / "x.arrow"


@pytest.mark.parametrize("name", FOREIGN)
def test_transforms_of_others_make_the_same_pictures_for_any_number_of_workers(pictures, name):
    transform, (dtype, rows, columns) = FOREIGN[name]
    made = make_loader(pictures, MODES[0], transform=transform)
    first, second = (torch.cat([batch["image"] for batch in made]) for _ in range(2))
    assert (first.dtype, *first.shape) == (dtype, 20, 3, rows, columns)
    states = (torch.get_rng_state, random.getstate, np.random.get_state)
    before = [str(state()) for state in states]
    made.dataset.maker.make([3, 1], 0)
    assert [str(state()) for state in states] == before  # the trainer's own numbers go on
    if name != "takes tensors":
        assert not torch.equal(first, second)  # another epoch
    for workers in (1, 2):
        config = LoaderConfig(workers=workers, batch=6)
        assert torch.equal(
            torch.cat([batch["image"] for batch in make_loader(pictures, config, transform=transform)]), first
        )


@pytest.mark.parametrize(
    ("transform", "config", "message"),
    [
        (7, {}, "the transform is int; expected a transform of"),
        (lambda picture: "cat", {}, "the transform made str from a picture"),
        (by_hand, {"mode": "threads", "workers": 2}, "mode threads was given for a transform that is not of"),
        (
            lambda picture: picture.resize((random.randint(1, 99), 2)),
            {"mode": "main"},
            "made uint8 .* from another",
        ),
    ],
)
def test_what_is_no_transform_or_makes_pictures_of_several_sizes_is_a_sentence(
    pictures, transform, config, message
):
    with pytest.raises(UsageError, match=message):
        list(make_loader(pictures, LoaderConfig(**config), transform=transform))


def test_a_transform_together_with_a_maker_is_refused(path):
    with pytest.raises(UsageError, match="a choice of samples were given together with FieldBatches"):
        make_loader(field_batches(formats.open(path)), transform=sets.Stub())


def test_an_empty_set_is_refused(tmp_path):
    path = sets.write([], tmp_path / "x.arrow")
    for config in MODES:
        for order in ("random", "stream"):
            with pytest.raises(FormatError, match="holds no samples"):
                loader(path, config, order=order)


def test_threads_that_are_dropped_by_what_they_wait_for_do_not_wait_for_ever():
    """Garbage is collected in any thread: also in one that fetches what a thread of the loader waits for."""
    held, went_on = [], threading.Event()

    def waits():
        went_on.wait()
        yield 0

    def drops():
        while not held:
            time.sleep(0.001)
        held.clear()
        went_on.set()
        yield 1

    held.append(InThreads([waits(), drops()], 1))
    assert went_on.wait(20)
