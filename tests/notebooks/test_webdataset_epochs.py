"""What notebooks 05 and 10 say about the epochs of webdataset, where no cell of them shows it."""

from collections import Counter

import numpy as np
import pytest
import webdataset as wds

KEY = wds.map(lambda sample: sample["__key__"])
TENS = wds.batched(10, collation_fn=list)
SPLIT = wds.split_by_node, wds.split_by_worker


@pytest.fixture
def shards(tmp_path):
    """400 samples of 10 classes in 4 shards, in class order."""
    with wds.ShardWriter(f"{tmp_path}/%06d.tar", maxcount=100, verbose=0) as writer:
        for number in range(400):
            writer.write({"__key__": f"{number:04}", "cls": number // 40})
    return sorted(map(str, tmp_path.glob("*.tar")))


def loader(dataset, workers=1):
    settings = {"num_workers": workers, "multiprocessing_context": "fork", "persistent_workers": True}
    return wds.WebLoader(dataset, batch_size=None, **settings)


def reader(sample):
    """The worker that read it, and the shard."""
    return f"{wds.utils.pytorch_worker_info()[2]} {sample['__url__']}"


def three_epochs(dataset, batches, monkeypatch):
    """Reads and different samples in each, of 3 ranks that end after equally many batches."""
    epochs = [Counter() for _ in range(3)]
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in "012":
        monkeypatch.setenv("RANK", rank)
        reading = loader(dataset()).repeat().with_epoch(batches)
        for counts in epochs:
            counts.update(key for batch in reading for key in batch)
    return [(counts.total(), len(counts)) for counts in epochs]


def before_the_splits(shards):
    stages = wds.SimpleShardList(shards), wds.detshuffle(10_000, 10_000), *SPLIT
    return wds.DataPipeline(*stages, wds.tarfile_to_samples())


def behind_the_splits(shards):
    return wds.WebDataset(shards, shardshuffle=100, detshuffle=True, seed=0, nodesplitter=wds.split_by_node)


@pytest.mark.parametrize("make", [before_the_splits, behind_the_splits])
def test_ranks_that_end_after_equally_many_batches_read_no_sample_twice(make, shards, monkeypatch):
    assert three_epochs(lambda: make(shards).compose(KEY, TENS), 10, monkeypatch) == 3 * [(300, 300)]


def test_a_second_pass_counts_as_an_epoch_and_parts_the_ranks(shards, monkeypatch):
    found = three_epochs(lambda: before_the_splits(shards).compose(KEY, TENS), 14, monkeypatch)
    assert found == [(420, 340), (420, 340), (420, 240)]
    kept = three_epochs(lambda: behind_the_splits(shards).compose(KEY, TENS), 14, monkeypatch)
    assert kept == 3 * [(420, 340)], "each rank shuffles only what is its own"


@pytest.mark.parametrize(("make", "change"), [(before_the_splits, True), (behind_the_splits, False)])
def test_shards_change_workers_only_if_they_are_shuffled_before_the_splits(make, change, shards):
    reading = loader(make(shards).compose(wds.map(reader)), 2)
    epochs = [frozenset(reading) for _ in range(5)]
    assert (len(set(epochs)) > 1) is change


def test_a_second_buffer_behind_the_workers_mixes_their_shards(shards):
    labels = wds.map(lambda sample: (int(sample["cls"]),))
    parts = wds.batched(16, collation_fn=lambda batch: ([label for (label,) in batch],))

    def classes(reading):
        return np.mean([len(set(np.array(labels).tolist())) for (labels,) in reading])

    def workers():
        return loader(wds.WebDataset(shards, shardshuffle=100).shuffle(1000).compose(labels, parts), 2)

    assert classes(workers()) < 6.5
    assert classes(workers().unbatched().shuffle(1000).batched(16)) > 7
