"""Simulate one to ten thousand nodes: time of an epoch and waiting of GPUs, for each way to read.

    forecast = scaling.simulate(Work(), Storage(), WAYS["files"], nodes=64)
    forecast.waiting                                       # 0.90: the share of time in which GPUs wait
    scaling.saturation(Work(), Storage(), WAYS["files"])   # nodes at which each part of the storage is full

Batches pass through queues: metadata server, storage targets, the network of their node, their worker.

The traps: it is a model, and you choose its numbers: take them from `smallfiles bench` on your cluster. The
result that carries over is which part saturates first, and at how many nodes. `python -m benchmarks scaling`
compares it with real runs. And a packed file is on one storage target unless it is striped (`lfs setstripe
-c -1`). Then all nodes of the cluster read from the same few disks.

Here are the simulated training, its storage, and the ways to read from the storage.
The defaults of `Storage` are those of a middle-sized Lustre of 24 hard-disk targets, in orders of magnitude.
Dell's white paper "HPC Lustre Storage solution with Mellanox InfiniBand EDR" (mdtest and IOzone) gives up to
544,000 stat calls per second, 29,000 creations and 160,000 removals; an open lies between the last two. The
time of a read request is assumed. Measure your own: `smallfiles bench read` on your file system gives latency
and bytes per second of one node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smallfiles import lazy
from smallfiles.options import Settings, option

if TYPE_CHECKING:
    from smallfiles.scaling.simulation import Forecast as Forecast
    from smallfiles.scaling.simulation import saturation as saturation
    from smallfiles.scaling.simulation import simulate as simulate

__getattr__ = lazy.names(__name__)


def _milliseconds(default_s: float, help: str, flag: str, least: float = 0.0) -> Any:
    return option(default_s, f"milliseconds {help}", flag=flag, scale=1e-3, least=least, metavar="T")


def _megabytes(default: float, help: str, flag: str) -> Any:
    return option(default, f"megabytes per second of {help}", flag=flag, scale=1e6, least=1, metavar="B")


@dataclass(frozen=True)
class Work(Settings):
    """A synchronous data-parallel training.

    Args:
        samples: Samples per epoch.
        sample_bytes: Encoded bytes per sample.
        batch: Samples per GPU and step.
        gpus: Per node.
        workers: DataLoader workers per GPU.
        prefetch: Batches that each worker makes ahead.
        step_s: Seconds per training step.
        decode_s: Seconds of a worker to decode and augment one sample.
    """

    samples: int = option(1_281_167, "per epoch", least=1)
    sample_bytes: int = option(110_000, "encoded bytes per sample", least=1)
    batch: int = option(64, "samples per GPU and step", least=1)
    gpus: int = option(4, "per node", least=1)
    workers: int = option(8, "per GPU", least=1)
    prefetch: int = option(2, "batches that each worker makes ahead", least=1)
    step_s: float = _milliseconds(0.05, "per training step", "step-ms")
    decode_s: float = _milliseconds(0.003, "to decode one sample", "decode-ms")

    @property
    def node_samples_s(self) -> float:
        """Samples per second that the GPUs of a node process when they never wait."""
        return self.gpus * self.batch / self.step_s if self.step_s else float("inf")


@dataclass(frozen=True)
class Storage(Settings):
    """A parallel file system and what connects it.

    Args:
        metadata_ops_s: Operations per second of all metadata servers together.
        metadata_threads: How many they work on at once.
        latency_s: Round trip of an operation without other load.
        targets: Storage targets.
        target_bytes_s: Bytes per second of one.
        request_s: Seconds that a target takes for a read request besides its bytes (a seek).
        stripes: Targets that a packed file is spread over.
        node_bytes_s: Bytes per second of the network of a node.
        local_bytes_s: Bytes per second that a node reads from its own memory or disk.
        cache_bytes: Memory of a node that keeps what this node has read: with orders drawn anew, one of N
            nodes reads an Nth of the set per epoch, and needs room for all of it.
    """

    metadata_ops_s: float = option(100_000, "metadata operations per second", flag="metadata-ops", least=1)
    metadata_threads: int = option(64, "operations worked on at once", least=1)
    latency_s: float = _milliseconds(0.0005, "of a round trip", "latency-ms")
    targets: int = option(24, "storage targets", least=1)
    target_bytes_s: float = _megabytes(0.7e9, "a target", "target-mb")
    request_s: float = _milliseconds(0.0005, "of a read request", "request-ms")
    stripes: int = option(24, "targets that a packed file is spread over", least=1)
    node_bytes_s: float = _megabytes(12e9, "a node's network", "node-mb")
    local_bytes_s: float = _megabytes(5e9, "a node's own copy", "local-mb")
    cache_bytes: float = option(
        0.0, "gigabytes of a node's memory that keep what it has read", flag="cache-gb", scale=1e9, least=0
    )


@dataclass(frozen=True)
class Way:
    """A way to read samples.

    Args:
        operations: Metadata operations per sample.
        requests: Requests to storage targets per sample.
        striped: Whether the files are spread over `Storage.stripes` targets, or over all of them.
        staged: Whether each node copies everything first.
        broadcast: Whether one node copies instead, and the others receive it from there.
    """

    operations: float
    requests: float
    striped: bool = False
    staged: bool = False
    broadcast: bool = False


WAYS = {
    "files": Way(operations=2, requests=1),  # a look-up and an open; the size comes with the first read
    "packed": Way(operations=0, requests=1, striped=True),
    "shards": Way(operations=0.002, requests=0.1),  # 1,000 samples of 100 kB a shard, read in pieces of 1 MB
    "staged": Way(operations=0, requests=0, staged=True),
}
"""One file per sample; one packed file, read at random; shards of 100 MB, read in order; a copy on each node.
For samples of 100 kB; `ways_of` has the shards of others."""

BROADCAST = {"broadcast": Way(operations=0, requests=0, staged=True, broadcast=True)}
"""The same copies, read once by one node and sent to the others by `sbcast`."""


def ways_of(sample_bytes: float) -> dict[str, Way]:
    """Return all ways to read samples of this size.

    A read of 1 MB from a shard contains a hundred samples of 10 kB, or a tenth of a sample of 10 MB. In
    random order, each sample needs a request of its own.

    Args:
        sample_bytes: Mean size of a sample.
    """
    shards, times = WAYS["shards"], sample_bytes / 100_000
    fitting = replace(shards, operations=times * shards.operations, requests=times * shards.requests)
    return {**WAYS, "shards": fitting, **BROADCAST}


@dataclass(frozen=True)
class TrainingPlan(Settings):
    """The planned training.

    Args:
        nodes: Number of nodes.
        epochs: Number of epochs.
        gpus: Per node.
        batch: Samples per GPU and step.
        step_s: Seconds of one training step.
        metadata_ops_s: Metadata operations per second for all users; None for the default of the model.
        workers: Per GPU; None for as many as decoding needs.
    """

    nodes: int = option(1, "of the training", least=1)
    epochs: int = option(90, "of the training", least=1)
    gpus: int = option(4, "per node", least=1)
    batch: int = option(64, "samples per GPU and step", least=1)
    step_s: float = _milliseconds(0.05, "of a training step", "step-ms", least=0.1e-3)
    metadata_ops_s: float | None = option(
        None, "operations per second that the servers do for all; ask your site", flag="metadata-ops", least=1
    )
    workers: int | None = option(None, "per GPU; without it as many as decoding needs", least=1)

    def to_cli(self, data: str) -> str:
        """Return the command that advises on the same training."""
        return self.command("advise", data)
