"""The two programs of cortx_pytorch's example, with only the import changed."""

import contextlib
import gc
import os
import random
import runpy
import secrets
from collections import Counter

import pytest
import torch
from PIL import Image
from programs import Program, imported
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from helpers import cortx
from smallfiles.cli import main
from smallfiles.errors import UsageError

COUNT, CLASSES = 90, 5
UPLOAD = """
from helpers.cortx import upload_cv_dataset, make_client
from torchvision import datasets

if __name__ == '__main__':
    client = make_client(URL, ACCESS_KEY, SECRET_KEY)
    bucket = 'BUCKET'
    folder = 'FOLDER'
    ds = ds = datasets.ImageFolder(TREE)
    upload_cv_dataset(ds, client=client, bucket=bucket,
                      base_folder=folder, maxsize=2e4,
                      maxcount=100000, workers=30)
"""
TRAIN = """
import torch as ch
from tqdm import tqdm
from helpers.cortx import RemoteDataset, make_client
from torchvision import transforms

preproc = transforms.Compose([
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
])

if __name__ == '__main__':
    client = make_client(URL, ACCESS_KEY, SECRET_KEY)
    bucket = 'BUCKET'
    folder = 'FOLDER'
    dataset = (RemoteDataset(client, bucket, folder)
        .decode("pil")
        .to_tuple("jpg;png", "cls")
        .map_tuple(preproc, lambda x: x)
        .batched(64)
    )
    dataloader = ch.utils.data.DataLoader(dataset, num_workers=3, batch_size=None)
    for image, label in tqdm((x for x in dataloader), total = 100000 / 60):
        print(tuple(image.shape), label.tolist())
"""


@pytest.fixture(scope="module", autouse=True)
def workers_begin_at_once():
    with imported("torchvision", "helpers.cortx", environment=dict(os.environ)):
        yield


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree") / "val"
    for number in range(COUNT):
        path = root / f"c{number % CLASSES}" / f"{number:03}.{'png' if number % 9 == 0 else 'JPEG'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number % 7, 18), (number, 100, 200 - number)).save(path)
    return root


@pytest.fixture(scope="module")
def uploaded(servers, tree):
    server = servers("rclone")
    folder = secrets.token_hex(6)
    client = cortx.make_client(server.url, server.keys.key_id, server.keys.secret)
    cortx.upload_cv_dataset(datasets.ImageFolder(tree), client, "first", folder, maxsize=2e4, workers=4)
    return client, "first", folder


def as_program(path):
    runpy.run_path(path, run_name="__main__")


def run(program, server, folder, tree, path):
    """What it printed, in a process that has imported PyTorch."""
    for name, value in (("URL", server.url), ("ACCESS_KEY", server.keys.key_id), ("TREE", str(tree))):
        program = program.replace(name, repr(value), 1)
    program = program.replace("SECRET_KEY", repr(server.keys.secret), 1)
    path.write_text(program.replace("BUCKET", "first").replace("FOLDER", folder))
    done = Program(as_program, str(path))
    assert done.wait() == 0, done.errors
    printed = done.out
    done.end()
    return printed


def test_its_two_programs_run_with_only_the_import_changed(servers, tree, tmp_path):
    server, folder = servers("rclone"), secrets.token_hex(6)
    run(UPLOAD, server, folder, tree, tmp_path / "upload.py")
    printed = run(TRAIN, server, folder, tree, tmp_path / "train.py")
    rows = [eval(line.replace(") [", "), [")) for line in printed.splitlines()]
    assert {shape[1:] for shape, _ in rows} == {(3, 224, 224)}
    assert Counter(label for _, labels in rows for label in labels) == dict.fromkeys(
        range(CLASSES), COUNT // CLASSES
    )


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_a_lambda_that_cannot_be_sent_is_an_error_that_names_it(uploaded, method):
    dataset = cortx.RemoteDataset(*uploaded).to_tuple("jpg;png", "cls").map_tuple(len, lambda x: x)
    loader = DataLoader(dataset, num_workers=3, batch_size=None, multiprocessing_context=method)
    with pytest.raises(UsageError, match="<lambda>, given to map_tuple, cannot be sent to a new worker"):
        iter(loader)
    dataset.reader.close()


def same(value):
    return value


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_each_sample_comes_once_an_epoch_in_another_order(uploaded, method):
    dataset = cortx.RemoteDataset(*uploaded).decode("pil").to_tuple("jpg;png", "cls", "__key__")
    dataset = dataset.map_tuple(
        transforms.Compose([transforms.Resize((8, 8)), transforms.ToTensor()]), same, same
    )
    settings = {"num_workers": 3, "multiprocessing_context": method, "persistent_workers": method != "fork"}
    loader = DataLoader(dataset.batched(7), batch_size=None, **settings)
    epochs = [list(loader) for _ in range(2)]
    keys = [[key for _, _, some in epoch for key in some] for epoch in epochs]
    assert sorted(keys[0]) == sorted(keys[1]) and len(set(keys[0])) == COUNT
    assert keys[0] != keys[1]
    for images, labels, names in epochs[0]:
        assert images.shape == (len(names), 3, 8, 8) and labels.dtype == torch.int64
        assert [int(name[1]) for name in names] == labels.tolist()
    dataset.reader.close()


def loader_of(dataset, workers, **more):
    more |= {"multiprocessing_context": "fork"} if workers else {}
    return DataLoader(dataset, batch_size=None, num_workers=workers, **more)


def broken_off(dataset, workers):
    some = iter(loader_of(dataset, workers))
    return [next(some) for _ in range(5)]


LOOKS = {
    "at one sample": lambda dataset: next(iter(dataset)),
    "at a derived set": lambda dataset: next(iter(dataset.map_tuple(len))),
    "by one worker": lambda dataset: next(iter(loader_of(dataset, 1))),
    "by three workers": lambda dataset: broken_off(dataset, 3),
    "at all of it": lambda dataset: list(dataset),
}


@pytest.mark.parametrize(("workers", "seed"), [(0, 0), (2, 1)])
def test_whatever_is_looked_at_in_between_each_pass_has_each_sample_once(uploaded, workers, seed):
    dataset, draw = cortx.RemoteDataset(*uploaded).to_tuple("__key__"), random.Random(seed)
    loader = loader_of(dataset, workers, persistent_workers=bool(workers and seed % 2))
    passes = []
    for _ in range(3):
        for look in draw.choices(list(LOOKS), k=2):
            LOOKS[look](dataset)
        passes.append([key for (key,) in loader])
        assert len(passes[-1]) == len(set(passes[-1])) == COUNT
    assert len(set(map(tuple, passes))) == 3
    for epoch in (4, 4, 5):
        dataset.set_epoch(epoch)
        LOOKS["at a derived set"](dataset)
        passes.append([key for (key,) in loader])
    assert passes[3] == passes[4] != passes[5]
    dataset.reader.close()


@pytest.mark.parametrize(("world", "epoch"), [(2, None), (3, 1)])
def test_ranks_share_the_samples_also_if_one_of_them_looks_at_some(uploaded, world, epoch, monkeypatch):
    found = []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        dataset = cortx.RemoteDataset(*uploaded).to_tuple("__key__", "jpg;png")
        with pytest.warns(UserWarning, match="set_epoch") if epoch is None else contextlib.nullcontext():
            if epoch is not None:
                dataset.set_epoch(epoch)
            if rank == 1:
                next(iter(dataset))
            found += list(dataset)
        dataset.reader.close()
    assert len(found) == len({key for key, _ in found}) == COUNT


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_for_the_rank_of_their_trainer(uploaded, method):
    """A spawned worker has no process group; it gets the rank from the process that started it."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dataset = cortx.RemoteDataset(*uploaded).to_tuple("__key__")
    dataset.set_epoch(0)
    found = []
    for rank in range(2):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=method)
            found += [key for (key,) in loader]
        finally:
            dist.destroy_process_group()
    assert len(found) == len(set(found)) == COUNT
    dataset.reader.close()


def test_a_second_set_reads_on_when_the_first_is_freed(uploaded):
    """As when the cell of a notebook is run twice."""
    dataset = cortx.RemoteDataset(*uploaded).to_tuple("__key__")
    for _ in range(2):
        dataset = cortx.RemoteDataset(*uploaded).to_tuple("__key__")
        gc.collect()
        assert len({key for (key,) in loader_of(dataset, 2)}) == COUNT
    dataset.reader.close()


def test_the_verbs_of_a_job_stream_what_was_pushed(servers, uploaded, as_user, tmp_path, monkeypatch, capsys):
    as_user(servers("rclone"))
    url, seen = f"s3://first/{uploaded[2]}", str(tmp_path / "seen")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert main(["epoch", url, seen, "--order", "stream", "--workers", "2", "--batch", "8"]) == 0
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert main(["epoch", "--count", seen]) == 0
    few = ["--size", "32", "--epochs", "1", "--max-steps", "2", "--workers", "2", "--batch", "8"]
    assert main(["train", url, "--order", "stream", *few]) == 0
    printed = capsys.readouterr().out
    assert f"{COUNT} samples" in printed and "epoch 0: 16 samples" in printed


def test_files_keep_their_bytes(uploaded, tree):
    dataset = cortx.RemoteDataset(*uploaded)
    for sample in dataset:
        data = sample.get("jpg") or sample.get("png")
        assert bytes(data) == (tree / sample["__key__"]).read_bytes()
    assert len(dataset.reader.shard_sizes()) > 3
    dataset.reader.close()


def test_senseless_arguments_are_refused(uploaded):
    with pytest.raises(UsageError, match="one of access_key and secret_key"):
        cortx.make_client("http://127.0.0.1:1", "only one")
    dataset = cortx.RemoteDataset(*uploaded)
    with pytest.raises(UsageError, match="has no jpg;webp; expected one of"):
        list(dataset.to_tuple("jpg;webp"))
    with pytest.raises(UsageError, match="decode got 'torchrgb'"):
        dataset.decode("torchrgb")
    with pytest.raises(UsageError, match="another step follows batched"):
        dataset.batched(3).to_tuple("cls")
    dataset.reader.close()
