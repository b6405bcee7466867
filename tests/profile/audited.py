"""Trainings of strangers for the audit: `python audited.py LOADER FAULT [ranks=2] [workers=2] [NAME=VALUE]`.

Each loader is used as its own documentation uses it. FAULT is `right`, or the name of what is planted. The
ranks are forked processes with the variables of torchrun. Each prints what it received, for comparison.
"""

import contextlib
import os
import pickle
import random
import socket
import sys
import tarfile
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

LOADER, FAULT = sys.argv[1:3]
SET = {
    "ranks": 1,
    "workers": 0,
    "epochs": 2,
    "count": 48,
    "batch": 4,
    "stop": 0,
    "start": 0,
    "skip": 0,
    "data": ".",
    "mix": 0,
    "weights": None,
    "prebatch": None,
    "checkpoint": 0,
    "resume": 0,
}
SET |= {k: int(v) if v.isdigit() else v for k, v in (word.split("=") for word in sys.argv[3:])}
RANKS, COUNT, BATCH, DATA = SET["ranks"], SET["count"], SET["batch"], Path(SET["data"])


with socket.create_server(("localhost", 0)) as free:
    PORT = str(free.getsockname()[1])


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


def run(loader, set_epoch=lambda epoch: None, value=lambda batch: batch[:, 0].tolist()):
    """The loop: prints a number that depends on the order."""
    total = 0
    for epoch in range(SET["start"], SET["epochs"]):
        set_epoch(epoch)
        for number, batch in enumerate(loader, 1):
            for each in value(batch):
                total = (total * 31 + int(each)) % 1_000_003
            if SET["stop"] and number == SET["stop"]:
                return total
    return total


def map_style():
    sampler = None
    if FAULT == "order":
        sampler = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist()
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
    sampler = torch.utils.data.DistributedSampler(
        data, ranks, at, shuffle=FAULT != "dropped_last", drop_last=FAULT.startswith("dropped")
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
    data = data.to_tuple("txt").map_tuple(int).batched(BATCH)
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
    if FAULT != "several" and RANKS > 1:
        data = datasets.distributed.split_dataset_by_node(data, rank(), RANKS)
    if FAULT == "order":
        loader = DataLoader(
            data.shuffle(seed=1), BATCH, num_workers=SET["workers"], sampler=[*range(len(data))][::-1]
        )
        return run(loader, value=lambda batch: batch["x"])
    return run(loader_of(data), value=lambda batch: batch["x"])


def rows(shards):
    for shard in shards:
        for index in range(shard * COUNT // 4, (shard + 1) * COUNT // 4):
            yield {"x": index}


def hf_stream():
    import datasets
    import datasets.distributed

    data = datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": [0, 1, 2, 3]})
    data = data.shuffle(seed=1, buffer_size=16)
    if FAULT != "several" and RANKS > 1:
        data = datasets.distributed.split_dataset_by_node(data, rank(), RANKS)
    loader = DataLoader(data, BATCH, num_workers=SET["workers"])
    return run(loader, (lambda epoch: None) if FAULT == "order" else data.set_epoch, lambda batch: batch["x"])


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
    model = Model()
    data = Stream() if FAULT in ("twice", "iterable") else Samples()
    sampler = (
        torch.utils.data.DistributedSampler(data, RANKS, rank()) if RANKS > 1 and FAULT != "several" else None
    )
    sampler = [*range(COUNT)][::-1] if FAULT == "order" else sampler
    trainer = L.Trainer(
        max_epochs=SET["epochs"], accelerator="cpu", devices=1, use_distributed_sampler=False, **quiet
    )
    trainer.fit(model, loader_of(data, sampler), DataLoader(Samples(), BATCH))
    return model.total


def accelerate():
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    data = Stream() if FAULT in ("twice", "iterable") else Samples()
    sampler = [*range(COUNT)][::-1] if FAULT == "order" else None
    generator = torch.Generator()
    more = {"generator": generator} if sampler is None and not isinstance(data, IterableDataset) else {}
    loader = prepare_data_loader(
        loader_of(data, sampler, **more),
        num_processes=1 if FAULT == "several" else RANKS,
        process_index=0 if FAULT == "several" else rank(),
        put_on_device=False,
        rng_types=[],
    )
    if SET["skip"]:
        loader = skip_first_batches(loader, SET["skip"])
    return run(loader, lambda epoch: generator.manual_seed(epoch))


def mosaic():
    from streaming import StreamingDataset

    os.environ.update(
        LOCAL_WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank()), MASTER_ADDR="localhost", MASTER_PORT=PORT
    )
    data = StreamingDataset(
        local=str(DATA / "mds"), shuffle=True, shuffle_seed=7, batch_size=BATCH, num_canonical_nodes=1
    )
    loader = DataLoader(data, BATCH, num_workers=SET["workers"], drop_last=FAULT == "dropped")
    return run(loader, value=lambda batch: batch["x"])


def litdata():
    from litdata import StreamingDataLoader, StreamingDataset

    if FAULT != "several":  # without torch.distributed, LitData reads its rank from this variable alone
        os.environ["GLOBAL_RANK"] = str(rank())
    data = StreamingDataset(str(DATA / "lit"), shuffle=FAULT != "order", drop_last=False, seed=3)
    if FAULT == "order":
        loader = DataLoader(data, BATCH, num_workers=SET["workers"])
    else:
        loader = StreamingDataLoader(data, batch_size=BATCH, num_workers=SET["workers"])
    return run(loader, value=lambda batch: batch["x"])


def grain():
    import grain.python as pygrain

    class Source:
        def __len__(self):
            return COUNT

        def __getitem__(self, index):
            return np.array([index, 0])

        def __repr__(self):
            return "Source"

    seen = 0
    shard = (
        pygrain.NoSharding()
        if FAULT == "several"
        else pygrain.ShardOptions(rank(), RANKS, drop_remainder=FAULT == "dropped")
    )
    sampler = pygrain.IndexSampler(COUNT, shard_options=shard, shuffle=True, num_epochs=SET["epochs"], seed=1)
    loader = pygrain.DataLoader(
        data_source=Source(), sampler=sampler, worker_count=SET["workers"], operations=[pygrain.Batch(BATCH)]
    )
    if FAULT == "plan":
        plan = pygrain.MapDataset.source(Source()).shuffle(seed=1)[rank() :: RANKS].repeat(SET["epochs"])
        options = pygrain.MultiprocessingOptions(num_workers=SET["workers"])
        loader = plan.to_iter_dataset().batch(BATCH).mp_prefetch(options)
    for batch in loader:
        for each in batch[:, 0].tolist():
            seen = (seen * 31 + int(each)) % 1_000_003
    return seen


def nodes():
    from torchdata import nodes

    data = Samples()
    ranks, at = (1, 0) if FAULT == "several" else (RANKS, rank())
    sampler = torch.utils.data.DistributedSampler(data, ranks, at, drop_last=FAULT == "dropped")
    if FAULT == "order":  # of an epoch that the sampler does not learn
        sampler = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1)).tolist()
    elif FAULT == "twice":
        sampler = [*range(COUNT), 3, 4, 5]
    first = nodes.IterableWrapper(Stream()) if FAULT == "iterable" else nodes.SamplerWrapper(sampler)
    step = (lambda sample: sample) if FAULT == "iterable" else data.__getitem__
    more = {"num_workers": SET["workers"], "in_order": FAULT != "unordered", "prebatch": SET["prebatch"]}
    made = nodes.ParallelMapper(first, step, **more, snapshot_frequency=3)
    made = nodes.Batcher(made, BATCH, drop_last=FAULT == "dropped")
    made = nodes.Mapper(made, torch.stack)
    if SET["workers"]:
        made = nodes.Prefetcher(made, prefetch_factor=2, snapshot_frequency=2)
    return resumed(nodes.Loader(made))


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
    return run(nodes.Loader(nodes.Batcher(mixed, BATCH, drop_last=False)), value=lambda batch: batch)


def stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    data = Stream() if FAULT == "iterable" else Samples()
    ranks = {"sampler": torch.utils.data.DistributedSampler(data, RANKS, rank())} if RANKS > 1 else {}
    more = ranks or {"shuffle": FAULT != "iterable"}
    return resumed(StatefulDataLoader(data, BATCH, num_workers=SET["workers"], **more))


def resumed(loader):
    """Save the state of the loader at one batch and stop at another, or go on from there."""
    path = DATA / f"state-{LOADER}-{FAULT}-{RANKS}-{rank()}"
    if SET["resume"] and FAULT != "forgotten":
        loader.load_state_dict(pickle.loads(path.read_bytes()))

    numbers = count(1)

    def value(batch):
        at = next(numbers)
        if not SET["resume"] and at == SET["checkpoint"]:
            torch.save({}, path.with_suffix(".weights"))
        if not SET["resume"] and at == (SET["stop"] if FAULT == "late" else SET["checkpoint"]):
            path.write_bytes(pickle.dumps(loader.state_dict()))
        return batch[:, 0].tolist()

    return run(loader, value=value)


def ours():
    from smallfiles.loading import LoaderConfig, make_loader

    config = LoaderConfig(
        batch=BATCH,
        workers=SET["workers"],
        rank=0 if FAULT == "several" else rank(),
        world_size=1 if FAULT == "several" else RANKS,
        weights=SET["weights"],
    )
    packed = DATA / "set.arrow"
    if SET["mix"]:  # as two sets
        loader = make_loader(mix={packed: 0.6, str(packed): 0.4}, config=config)
    else:
        loader = make_loader(packed, config)
    return run(
        loader,
        (lambda epoch: loader.set_epoch(0)) if FAULT == "order" else loader.set_epoch,
        lambda batch: batch["index"].tolist(),
    )


def train():
    torch.manual_seed(0)
    total = globals()[{"map": "map_style"}.get(LOADER, LOADER)]()
    os.write(1, f"total {rank()} {total}\n".encode())  # at once, since ranks share the pipe


if __name__ == "__main__":
    if RANKS == 1:
        train()
    children = []
    for number in range(RANKS if RANKS > 1 else 0):
        if (child := os.fork()) == 0:
            os.environ.update(
                RANK=str(number),
                WORLD_SIZE=str(RANKS),
                LOCAL_RANK=str(number),
                MASTER_ADDR="localhost",
                MASTER_PORT=PORT,
            )
            train()
            sys.exit()
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(max(codes, default=0))
