"""Trainings of strangers: `python loops.py KIND FAULT [FOLDER]`; sleeping imitates a GPU.

Each kind is the loop that its own documentation has; each fault is planted in the making of a sample, in the
loader's settings, or between two steps; one of the healthy loops has a model that computes. What is
printed at the end depends on each sample and on the order. With CURED in the environment a fault is not
there, with WORKERS the loader has so many.
"""

import functools
import io
import os
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 8
SLOW_S, FAST_S = 0.006, 0.0002
CURED = "CURED" in os.environ


def burn(seconds):
    """Use a processor for so long, however busy the machine is."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(50))


@functools.cache
def picture():
    from PIL import Image

    image, file = (
        Image.fromarray(
            np.random.default_rng(0).integers(0, 255, (192, 256, 3) if CURED else (480, 640, 3), np.uint8)
        ),
        io.BytesIO(),
    )
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


@functools.cache
def files(folder):
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


KEPT = torch.zeros(1000).share_memory_()  # by all workers, however the samples are shuffled


def work(fault, index, folder):
    """What a worker does for one sample."""
    if fault in ("few_cpus", "few_workers", "no_workers", "many_workers"):
        burn(SLOW_S)
    elif fault == "threads":
        data = torch.ones(400, 400)
        for _ in range(3):
            data = data @ data / 400
    elif fault == "decode":
        from PIL import Image

        with Image.open(io.BytesIO(picture())) as image:
            image.convert("RGB")
    elif fault in ("opens", "storage"):
        path = files(folder)[index % len(files(folder))]
        with open(path, "rb") as file:
            file.read()
    elif fault == "small_reads":
        descriptor = os.open(files(folder)[0], os.O_RDONLY)
        for number in range(1 if CURED else 6000):
            os.pread(descriptor, 24 * 6000 if CURED else 24, 24 * number)
        os.close(descriptor)
    elif fault == "cold":
        if not KEPT[index] and not CURED:
            time.sleep(SLOW_S * 8)  # far more than a step takes, with whatever a framework does in it
            KEPT[index] = 1
    elif fault == "one_rank":
        time.sleep(SLOW_S * 2 if os.environ["RANK"] == "1" else 0)
    elif fault == "healthy_cpu":
        burn(FAST_S)
    size = 280 if fault == "shm" else 96 if fault == "copies" else 8
    return torch.full((3, size, size), float(index % 100)), index


class Samples(Dataset):
    def __init__(self, fault, count, folder):
        self.fault, self.count, self.folder = fault, count, folder

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return work(self.fault, index, self.folder)


def slow_start(_):
    time.sleep(0.5)


def many_threads(_):
    torch.set_num_threads(1 if CURED else 4)


WORKERS = {
    "few_workers": 1,
    "no_workers": 0,
    "many_workers": 12,
    "few_cpus": 3,
    "threads": 2,
    "decode": 2,
    "opens": 3,
    "healthy_one": 1,
    "healthy_many": 6,
}
EPOCHS = {"restarted": 6, "cold": 3}
START = {"restarted": slow_start, "threads": many_threads}
STEP_S = {"restarted": 0.02, "copies": 0.01, "healthy_slow": 0.1, "cold": 0.03}


def settings(fault):
    """The settings of the loader, as a stranger would write them."""
    workers = int(os.environ.get("WORKERS", WORKERS.get(fault, 2)))
    more = (
        {"persistent_workers": CURED or fault != "restarted", "worker_init_fn": START.get(fault)}
        if workers
        else {}
    )
    return {"num_workers": workers, **more}


def count_of(fault):
    """Samples of an epoch; twelve workers make 24 batches ahead, half of a short one."""
    return BATCH * {"restarted": 12, "cold": 24, "healthy_slow": 40, "many_workers": 96}.get(fault, 48)


def between(fault, images):
    """What the main thread does with a batch, besides the model."""
    until = time.thread_time() + (0.02 if fault == "copies" and not CURED else 0)
    while time.thread_time() < until:
        images = images.clone().permute(0, 2, 3, 1).contiguous()
        images = images.permute(0, 3, 1, 2).contiguous()
    return images


class Total:
    """Stands for the model: sleeps, and remembers what came in which order."""

    def __init__(self, fault):
        self.fault, self.value = fault, 0

    def step(self, images, indices):
        between(self.fault, images)
        seconds = STEP_S.get(self.fault, 0.03 if self.fault.startswith("healthy") else 0.008)
        (burn if self.fault == "healthy_model" else time.sleep)(seconds)
        for index in indices.tolist():
            self.value = (self.value * 31 + index) % 1_000_003


def plain(fault, folder):
    total = Total(fault)
    loader = DataLoader(
        Samples(fault, count_of(fault), folder), BATCH, shuffle=fault != "cold", **settings(fault)
    )
    for _ in range(EPOCHS.get(fault, 1)):
        for images, indices in loader:
            total.step(images, indices)
            if fault == "one_rank":
                torch.distributed.all_reduce(torch.zeros(1))
    return total.value


def lightning(fault, folder):
    import warnings

    import lightning as L

    warnings.simplefilter("ignore")

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.total = torch.nn.Linear(1, 1), Total(fault)

        def training_step(self, batch, number):
            self.total.step(*batch)
            return self.layer(torch.ones(1, 1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = DataLoader(
        Samples(fault, count_of(fault), folder), BATCH, shuffle=fault != "cold", **settings(fault)
    )
    model = Model()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    L.Trainer(max_epochs=EPOCHS.get(fault, 1), accelerator="cpu", devices=1, **quiet).fit(model, loader)
    return model.total.value


def hf(fault, folder):
    import tempfile

    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.total = torch.nn.Linear(1, 1), Total(fault)

        def forward(self, images=None, indices=None):
            return {"loss": self.layer(torch.ones(1, 1)).sum()}

    class Own(Trainer):
        def training_step(self, model, inputs, *more):
            model.total.step(inputs["images"], inputs["indices"])
            return super().training_step(model, inputs, *more)

    class Dicts(Samples):
        def __getitem__(self, index):
            return dict(zip(("images", "indices"), super().__getitem__(index), strict=True))

    chosen, model = settings(fault), Model()
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out,
            per_device_train_batch_size=BATCH,
            num_train_epochs=EPOCHS.get(fault, 1),
            use_cpu=True,
            report_to=[],
            dataloader_num_workers=chosen["num_workers"],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            dataloader_persistent_workers=chosen.get("persistent_workers", False),
            remove_unused_columns=False,
        )
        trainer = Own(model, arguments, train_dataset=Dicts(fault, count_of(fault), folder))
        if chosen.get("worker_init_fn"):
            make = trainer.get_train_dataloader

            def with_start():
                loader = make()
                getattr(loader, "base_dataloader", loader).worker_init_fn = chosen["worker_init_fn"]
                return loader

            trainer.get_train_dataloader = with_start
        trainer.train()
    return model.total.value


class Fields:
    """Makes a sample of a member of a shard; a lambda could not be pickled."""

    def __init__(self, fault, folder):
        self.fault, self.folder = fault, folder

    def __call__(self, sample):
        return work(self.fault, int(sample["__key__"]), self.folder)


def webdataset(fault, folder):
    import tempfile

    import webdataset as wds

    chosen, total, count = settings(fault), Total(fault), count_of(fault)
    with tempfile.TemporaryDirectory() as place:
        shards = max(1, chosen["num_workers"]) * (1 if fault == "many_workers" else 4)
        for number in range(shards):
            with wds.TarWriter(f"{place}/{number:02}.tar") as tar:
                for index in range(number * count // shards, (number + 1) * count // shards):
                    tar.write({"__key__": f"{index:06}", "txt": str(index)})
        urls = f"{place}/{{00..{shards - 1:02}}}.tar" if shards > 1 else f"{place}/00.tar"
        data = wds.WebDataset(urls, shardshuffle=False).map(Fields(fault, folder)).batched(BATCH)
        loader = wds.WebLoader(data, batch_size=None, **chosen)
        for _ in range(EPOCHS.get(fault, 1)):
            for images, indices in loader:
                total.step(torch.as_tensor(images), torch.as_tensor(indices))
    return total.value


if __name__ == "__main__":
    kind, fault, *rest = sys.argv[1:]
    torch.manual_seed(0)
    if fault == "few_cpus" and not CURED:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if fault == "one_rank":
        torch.distributed.init_process_group("gloo")
    before = sum(cpu[0] + cpu[1] for cpu in map(resource.getrusage, (0, -1)))  # of us and of our children
    print("total", globals()[kind](fault, rest[0] if rest else ""))
    if "COUNT_CPU" in os.environ:
        after = sum(cpu[0] + cpu[1] for cpu in map(resource.getrusage, (0, -1)))
        print("cpu_s_per_step", (after - before) * BATCH / count_of(fault))
