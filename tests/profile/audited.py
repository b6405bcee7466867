"""Trainings of strangers for the audit: `python audited.py LOADER FAULT [ranks=2] [workers=2] [NAME=VALUE]`.

Each loader is used as its own documentation uses it. FAULT is `right`, or the name of what is planted. With
several ranks, `torchrun` or Lightning starts one process for each rank. `tools/audit_matrix.py` runs all.
"""

import contextlib
import os
import pickle
import random
import sys
import tarfile
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, get_worker_info

LOADER, FAULT = sys.argv[1:3]
SET = {
    "ranks": 1,
    "workers": 0,
    "epochs": 2,
    "count": 48,
    "batch": 4,
    "seed": 0,
    "start": 0,  # the first epoch
    "skip": 0,  # samples or batches to leave out before it
    "stop": 0,  # the batch after which the run ends
    "checkpoint": 0,  # the batch after which the state of the loader is saved
    "saves": 0,  # whether a checkpoint is saved after each epoch
    "resume": 0,  # whether the saved state is loaded
    "data": ".",
    "method": "thread",
    "mix": 0,
    "weights": None,
    "prebatch": None,
}
SET |= {k: int(v) if v.isdigit() else v for k, v in (word.split("=") for word in sys.argv[3:])}
RANKS, COUNT, BATCH, DATA = SET["ranks"], SET["count"], SET["batch"], Path(SET["data"])


def rank():
    return int(os.environ.get("RANK", 0))


def part(order):
    """The share of this rank and worker, unless the fault is to forget one of them."""
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    if FAULT == "blocks":
        order = order[rank() * len(order) // RANKS : (rank() + 1) * len(order) // RANKS]
    elif FAULT != "several":
        order = order[rank() :: RANKS]
    return order if FAULT == "twice" else order[worker::workers]


RNG = np.random.default_rng(0)


class Samples(Dataset):
    def __init__(self):
        self.rng = RNG

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        noise = {"random": self.rng.random, "right": random.random}.get(FAULT, lambda: 0.0)()
        return torch.tensor([float(index), noise])


class Stream(IterableDataset):
    def __init__(self):
        self.epoch, self.rng = 0, RNG

    def order(self):
        order = list(range(COUNT))
        random.Random(self.epoch if FAULT != "order" else 0).shuffle(order)
        if FAULT == "lost":
            order = [index for index in order if index % 10 != 3 or self.epoch == 0]
        if FAULT == "uneven":
            return order[: COUNT // 2] if rank() == 0 else order[COUNT // 2 : COUNT // 2 + BATCH]
        return part(order[SET["skip"] if self.epoch == 0 else 0 :])

    def __iter__(self):
        for index in self.order():
            yield torch.tensor([float(index), self.rng.random() if FAULT == "random" else 0.0])


class Files(Stream):
    def __iter__(self):
        for index in self.order():
            with open(DATA / f"{index:04}.bin", "rb") as file:
                yield torch.tensor([float(len(file.read())), random.random()])


class Shards(Stream):
    """Reads tars with tarfile, and goes on with the next one after an error."""

    def __iter__(self):
        for path in part(sorted(DATA.glob("part-*.tar"))[: -1 if FAULT == "unread" else None]):
            with contextlib.suppress(tarfile.ReadError), tarfile.open(path) as tar:
                for member in tar:
                    yield torch.tensor([float(tar.extractfile(member).read()), 0.0])


def loader_of(data, sampler=None, **more):
    shuffle = sampler is None and not isinstance(data, IterableDataset)
    return DataLoader(
        data,
        BATCH,
        shuffle=shuffle,
        sampler=sampler,
        num_workers=SET["workers"],
        drop_last=FAULT in ("dropped", "dropped_last"),
        **more,
    )


def column(batch):
    return batch[:, 0].tolist()


def run(loader, set_epoch=lambda epoch: None, value=column, state=None):
    """Return a number that depends on the order of the samples.

    Saves the state of the loader at one batch and stops at another, or goes on from that state. A state that
    is saved late, or forgotten, is a fault.
    """
    path, total, numbers = DATA / f"state-{rank()}", 0, count(1)
    if SET["resume"] and FAULT != "forgotten":
        state.load_state_dict(pickle.loads(path.read_bytes()))
    for epoch in range(SET["start"], SET["epochs"]):
        set_epoch(epoch)
        for batch in loader:
            at, saves = next(numbers), not SET["resume"]
            if saves and at == SET["checkpoint"]:
                torch.save({}, path.with_suffix(".weights"))
            if saves and at == (SET["stop"] if FAULT == "late" else SET["checkpoint"]):
                path.write_bytes(pickle.dumps(state.state_dict()))
            for each in value(batch):
                total = (total * 31 + int(each)) % 1_000_003
            if at == SET["stop"]:
                return total
        if SET["saves"]:
            with torch.no_grad():
                list(DataLoader(Samples(), BATCH))  # a validation
            torch.save({}, path.with_suffix(".weights"))
    return total


def ordered():
    """Return a sampler with one order for all epochs."""
    return torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist()


def map_style():
    sampler = None
    if FAULT == "order":
        sampler = ordered()
    elif FAULT == "replacement":
        sampler = torch.utils.data.RandomSampler(range(COUNT), replacement=True)
    elif FAULT == "twice":
        sampler = [*range(COUNT), 3, 4, 5, 6, 7, 8]
    elif FAULT in ("dropped_last", "sequential"):
        sampler = torch.utils.data.SequentialSampler(range(COUNT))
    return run(loader_of(Samples(), sampler, persistent_workers=bool(SET["workers"])))


def distributed():
    data = Samples()
    ranks, at = (1, 0) if FAULT == "several" else (RANKS, rank())
    seed = RANKS if FAULT == "seed" else 0
    sampler = DistributedSampler(
        data, ranks, at, shuffle=FAULT != "dropped_last", seed=seed, drop_last=FAULT.startswith("dropped")
    )
    return run(loader_of(data, sampler), sampler.set_epoch if FAULT != "order" else lambda epoch: None)


def iterable():
    return files(Stream())


def files(data=None):
    data = data or Files()
    return run(loader_of(data), lambda epoch: setattr(data, "epoch", epoch))


def shards():
    return files(Shards())


def webdataset():
    import webdataset as wds

    urls = sorted(map(str, DATA.glob("part-*.tar")))
    if FAULT == "unread":
        urls = urls[:-1]
    split = (
        wds.single_node_only if RANKS == 1 else (lambda src: src) if FAULT == "several" else wds.split_by_node
    )
    data = wds.WebDataset(
        urls,
        shardshuffle=False,
        nodesplitter=split,
        workersplitter=(lambda src: src) if FAULT == "twice" else wds.split_by_worker,
        resampled=FAULT == "replacement",
        handler=wds.warn_and_stop if FAULT == "truncated" else wds.reraise_exception,
    )
    seed = [0]
    if FAULT != "replacement":  # which has no end
        data = data.compose(lambda src: shuffled(src, seed))
    data = data.to_tuple("txt").map_tuple(int).batched(BATCH, partial=FAULT != "dropped")
    if FAULT == "replacement":
        data = data.with_epoch(COUNT // BATCH)
    loader = wds.WebLoader(data, batch_size=None, num_workers=SET["workers"])
    return run(
        loader, lambda epoch: seed.__setitem__(0, 0 if FAULT == "order" else epoch), lambda batch: batch[0]
    )


def shuffled(source, seed):
    samples = [each for each in source if not (FAULT == "lost" and seed[0] and each["__key__"][-1] == "3")]
    random.Random(seed[0]).shuffle(samples)
    yield from samples


def hf():
    import datasets
    import datasets.distributed

    data = datasets.Dataset.from_dict({"x": list(range(COUNT))}).with_format("torch")
    sampler, set_epoch = None, lambda epoch: None
    if FAULT == "dealt":
        sampler = DistributedSampler(data, RANKS, rank())
        set_epoch = sampler.set_epoch
    elif FAULT != "several" and RANKS > 1:
        data = datasets.distributed.split_dataset_by_node(data, rank(), RANKS)
    if FAULT == "order":
        sampler = [*range(COUNT)][::-1]
    elif FAULT == "twice":
        sampler = [*range(COUNT), 3, 4, 5]
    return run(loader_of(data, sampler), set_epoch, lambda batch: batch["x"])


def rows(shards):
    for shard in shards:
        for index in range(shard * COUNT // 4, (shard + 1) * COUNT // 4):
            yield {"x": index}


def hf_stream():
    import datasets
    import datasets.distributed

    data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})
    if FAULT != "stored":
        data = data.shuffle(seed=1, buffer_size=16)
    if FAULT != "several" and RANKS > 1:
        data = datasets.distributed.split_dataset_by_node(data, rank(), RANKS)
    set_epoch = (lambda epoch: None) if FAULT == "order" else data.set_epoch
    return run(loader_of(data), set_epoch, lambda batch: batch["x"], data)


def lightning():
    import warnings

    import lightning as L

    warnings.simplefilter("ignore")

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.total = torch.nn.Linear(1, 1), 0

        def training_step(self, batch, number):
            self.total = (self.total * 31 + int(batch[:, 0].sum())) % 1_000_003
            return self.layer(torch.ones(1, 1)).sum()

        def validation_step(self, batch, number):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )

    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, *more):
            if trainer.global_step == SET["stop"]:
                trainer.save_checkpoint(DATA / "state.ckpt")
                trainer.should_stop = True

    model, sampler = Model(), None
    data = Stream() if FAULT == "twice" else Samples()
    if FAULT == "dealt":  # the rank that Lightning's own launcher gives to the processes that it starts
        sampler = DistributedSampler(data, RANKS, int(os.environ.get("LOCAL_RANK", 0)))
    elif FAULT == "order":
        sampler = [*range(COUNT)][::-1]
    trainer = L.Trainer(
        max_epochs=SET["epochs"],
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp" if RANKS > 1 else "auto",
        use_distributed_sampler=FAULT != "several",
        callbacks=[Stop()],
        **quiet,
    )
    resume = DATA / "state.ckpt" if SET["resume"] and FAULT != "forgotten" else None
    trainer.fit(model, loader_of(data, sampler), DataLoader(Samples(), BATCH), ckpt_path=resume)
    if SET["saves"]:
        trainer.save_checkpoint(DATA / "state.ckpt")
    return model.total


def accelerate():
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import DataLoaderConfiguration

    data = Stream() if FAULT == "twice" else Samples()
    sampler = [*range(COUNT)][::-1] if FAULT == "order" else None
    generator, seed = torch.Generator(), RANKS if FAULT == "seed" else 0
    more = {} if sampler or FAULT == "twice" else {"generator": generator}
    loader = loader_of(data, sampler, **more)
    if FAULT != "several":
        settings = DataLoaderConfiguration(even_batches=FAULT != "ragged")
        loader = Accelerator(cpu=True, dataloader_config=settings).prepare(loader)
    if SET["skip"]:
        loader = skip_first_batches(loader, SET["skip"])
    return run(loader, lambda epoch: generator.manual_seed(epoch + 10 * seed))


def write_mosaic():
    from streaming import MDSWriter

    with MDSWriter(out=str(DATA / "mds"), columns={"x": "int"}, size_limit=200) as out:
        for index in range(COUNT):
            out.write({"x": index})


def mosaic():
    from streaming import StreamingDataLoader, StreamingDataset

    batch = 2 * BATCH // RANKS  # an order on several ranks is the same only for a global batch
    data = StreamingDataset(
        local=str(DATA / "mds"),
        shuffle=True,
        shuffle_seed=RANKS if FAULT == "seed" else 7,
        batch_size=batch,
        num_canonical_nodes=1,
        replication=2 if FAULT == "several" else None,
        epoch_size=2 * COUNT if FAULT == "twice" else None,
    )
    loader = StreamingDataLoader(
        data, batch_size=batch, num_workers=SET["workers"], drop_last=FAULT == "dropped"
    )
    if FAULT == "order":  # each epoch is begun as the first one
        return run(loader, lambda epoch: setattr(data, "next_epoch", 0), lambda batch: batch["x"].tolist())
    return run(loader, value=lambda batch: batch["x"].tolist(), state=loader)


def itself(index):
    return {"x": index}


def write_litdata():
    from litdata import optimize

    optimize(itself, list(range(COUNT)), str(DATA / "lit"), chunk_size=6, num_workers=1)


def litdata():
    from litdata import StreamingDataLoader, StreamingDataset

    if FAULT != "several" and RANKS > 1:
        torch.distributed.init_process_group("gloo")
    data = StreamingDataset(str(DATA / "lit"), shuffle=True, drop_last=FAULT == "dropped", seed=3)
    kind = DataLoader if FAULT == "order" else StreamingDataLoader  # whose workers count epochs
    loader = kind(data, batch_size=BATCH, num_workers=SET["workers"])
    set_epoch = (lambda epoch: data.set_epoch(1)) if FAULT == "order" else lambda epoch: None
    return run(loader, set_epoch, lambda batch: batch["x"].tolist(), loader)


class Source:
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return np.array([index, 0])

    def __repr__(self):
        return "Source"


def grain():
    import grain.python as pygrain

    shard = (
        pygrain.NoSharding()
        if FAULT == "several"
        else pygrain.ShardOptions(rank(), RANKS, drop_remainder=FAULT == "dropped")
    )
    sampler = pygrain.IndexSampler(COUNT, shard_options=shard, shuffle=True, num_epochs=SET["epochs"], seed=1)
    loader = pygrain.DataLoader(
        data_source=Source(), sampler=sampler, worker_count=SET["workers"], operations=[pygrain.Batch(BATCH)]
    )
    if FAULT in ("plan", "order"):
        plan = pygrain.MapDataset.source(Source()).shuffle(seed=1)[rank() :: RANKS]
        plan = plan.repeat(SET["epochs"], reseed_each_epoch=FAULT != "order")
        loader = plan.to_iter_dataset().batch(BATCH)
        if SET["workers"]:
            loader = loader.mp_prefetch(pygrain.MultiprocessingOptions(num_workers=SET["workers"]))
    batches, SET["epochs"] = iter(loader), 1  # which goes through all epochs
    state = SimpleNamespace(state_dict=batches.get_state, load_state_dict=batches.set_state)
    return run(batches, state=state)


def named(index):
    return {"id": index, "noise": random.random()}


def nodes():
    from torchdata import nodes

    data = Samples()
    ranks, at = (1, 0) if FAULT == "several" else (RANKS, rank())
    seed = RANKS if FAULT == "seed" else 0
    sampler = DistributedSampler(data, ranks, at, seed=seed, drop_last=FAULT == "dropped")
    if FAULT == "order":  # of an epoch that the sampler does not learn
        sampler = ordered()
    elif FAULT == "twice":
        sampler = [*range(COUNT), 3, 4, 5]
    first = nodes.IterableWrapper(Stream()) if FAULT == "iterable" else nodes.SamplerWrapper(sampler)
    step = {"iterable": itself, "named": named}.get(FAULT, data.__getitem__)
    more = {"num_workers": SET["workers"], "in_order": FAULT != "unordered", "prebatch": SET["prebatch"]}
    made = nodes.ParallelMapper(first, step, **more, method=SET["method"], snapshot_frequency=3)
    made = nodes.Batcher(made, BATCH, drop_last=FAULT == "dropped")
    if SET["workers"]:
        made = nodes.Prefetcher(made, prefetch_factor=2, snapshot_frequency=2)
    loader = nodes.Loader(made)
    field = {"iterable": lambda item: item["x"][0], "named": lambda item: item["id"]}
    field = field.get(FAULT, lambda item: item[0])
    return run(loader, value=lambda batch: list(map(field, batch)), state=loader)


def mixed_nodes():
    from torchdata import nodes

    sources = {
        name: nodes.MapStyleWrapper(data, torch.utils.data.RandomSampler(data))
        for name, data in {"a": range(COUNT // 2), "b": range(COUNT // 2, COUNT)}.items()
    }
    weights, stop = {"a": 0.7, "b": 0.3}, nodes.StopCriteria
    stop = stop.CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED if FAULT == "cycle" else stop.ALL_DATASETS_EXHAUSTED
    mixed = nodes.MultiNodeWeightedSampler(
        sources, weights, stop_criteria=stop, rank=rank(), world_size=RANKS
    )
    return run(nodes.Loader(nodes.Batcher(mixed, BATCH, drop_last=False)), value=list)


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = Stream() if FAULT == "iterable" else Samples()
    ranks = {}  # DataLoader shuffles in another way
    if FAULT == "dealt" or (RANKS > 1 and FAULT != "several"):
        ranks = {"sampler": DistributedSampler(data, RANKS, rank())}
    order = {"sampler": ordered()} if FAULT == "order" else {"shuffle": FAULT != "iterable"}
    more = {"num_workers": SET["workers"], "drop_last": FAULT == "dropped"} | (ranks or order)
    loader = StatefulDataLoader(data, BATCH, **more)
    set_epoch = getattr(more.get("sampler"), "set_epoch", lambda epoch: None)
    return run(loader, set_epoch, state=loader)


def write_ours():
    from smallfiles.cli import main

    kind = ("--layout", "folder", "--count", str(COUNT), "--classes", "2")
    return main(["synth", str(DATA / "images"), *kind]) or main(
        ["pack", str(DATA / "images"), str(DATA / "set.arrow")]
    )


def ours():
    from smallfiles.loading import LoaderConfig, make_loader

    several = {"rank": 0, "world_size": 1} if FAULT == "several" else {}  # else as torchrun says
    config = LoaderConfig(
        batch=BATCH,
        workers=SET["workers"],
        weights=SET["weights"],
        seed=RANKS if FAULT == "seed" else 0,
        drop_last=FAULT == "dropped",
        **several,
    )
    packed = DATA / "set.arrow"
    if SET["mix"]:  # as two sets
        loader = make_loader(mix={packed: 0.6, str(packed): 0.4}, config=config)
    else:
        loader = make_loader(packed, config)
    set_epoch = (lambda epoch: loader.set_epoch(0)) if FAULT == "order" else loader.set_epoch
    return run(loader, set_epoch, lambda batch: batch["index"].tolist(), loader)


if __name__ == "__main__":
    torch.manual_seed(SET["seed"])
    result = globals()[{"map": "map_style"}.get(LOADER, LOADER)]()
    os.write(1, f"total {rank()} {result}\n".encode())  # at once, since ranks share the pipe
