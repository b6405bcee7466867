"""Measure whether a sample costs the same in a small set and in a large one: packing, and opening.

A tool whose cost per sample grows with the set is fast in a test and slow on the real data. So equal tiny
samples are packed by the ten thousand, the hundred thousand, and the million, and processor time and system
calls are counted per sample. These depend little on how busy the machine is, unlike seconds.

The trap: starting Python and importing libraries costs as much as packing ten thousand samples, and hides any
growth. So each program packs or opens a set of a hundred samples first, before its counts begin.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.opening import opened, said
from smallfiles import slowfs
from smallfiles.errors import ResourceError
from smallfiles.measure import BenchConfig
from smallfiles.measure.bench import Bench
from smallfiles.measure.protocol import Case, Outcome
from smallfiles.measure.record import Record, Result
from smallfiles.options import option
from smallfiles.slowfs import SlowConfig, SlowFolder

SUFFIXES = {"arrow": "arrow", "tar": "tars"}
CONTENT = bytes(range(250)) * 2
WARM = 100
COSTS = """
import json, sys, time
from pathlib import Path

def costs():
    lines = (line.split() for line in Path("/proc/self/io").read_text().splitlines())
    return time.process_time(), sum(int(count) for name, count in lines if name in ("syscr:", "syscw:"))

def counted(work, warm, real):
    work(warm)
    before = costs()
    work(real)
    after = costs()
    print(json.dumps({"cpu_s": after[0] - before[0], "calls": after[1] - before[1]}))
"""
PACK = """
import contextlib, io
from smallfiles.cli import main

def pack(paths):
    source, out = paths.split("|")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["pack", source, out, "--suffix", ".bin"]) == 0

counted(pack, *sys.argv[1:])
"""
OPEN = """
from smallfiles import formats

def open_one(path):
    reader = formats.open(path)
    len(reader), bytes(reader.read(len(reader) // 2))

counted(open_one, *sys.argv[1:])
"""


@dataclass(frozen=True)
class GrowthConfig(BenchConfig):
    """How to measure, in sets of which sizes."""

    repeats: int = option(3, "rounds", least=1)
    counts: tuple[int, ...] = option((10_000, 100_000, 1_000_000), "samples of a set", least=1, metavar="N,N")


def bench_growth(place: Path, config: GrowthConfig | None = None) -> Result:
    """Measure packing and opening of small and large sets of tiny samples, per sample.

    Args:
        place: A folder on a disk with room for some gigabytes; its content stays as it is.
        config: Rounds and sizes.

    Returns:
        For each format and size, a record of packing a tar file, and one of opening and reading a sample. In
        `extra`: processor time, system calls, and the requests of opening per data file. Rates are samples
        per second of processor time.

    Raises:
        ResourceError: No slow folder can be mounted here.
    """
    config = config or GrowthConfig()
    if reason := slowfs.why_not():
        raise ResourceError(
            f"requests cannot be counted here: {reason}",
            expected="FUSE, with which a slow folder counts them",
            next_step="Measure on a machine or in a container with /dev/fuse",
        )
    bench = Bench(config, ("smallfiles", "pyarrow", "numpy"))
    with TemporaryDirectory(dir=place, prefix="growth-") as folder:
        home = Path(folder)
        for count in (WARM, *config.counts):
            _make(home / f"{count}.tar", count)
        for count in config.counts:
            whole = (count, count * len(CONTENT))
            packing = [
                Case(name, partial(_pack, home, name, count), format=name, warm_up=False) for name in SUFFIXES
            ]
            bench.measure(
                f"packing {count:,} samples", packing, place=home, whole=whole, touched="all packed"
            )
        with slowfs.mounted(home, SlowConfig(latency_s=0)) as shown:
            for count in config.counts:
                opening = [
                    Case(name, partial(_open, shown, home, name, count), format=name, warm_up=False)
                    for name in SUFFIXES
                ]
                bench.measure(
                    f"opening {count:,} samples",
                    opening,
                    place=home,
                    whole=(count, count * len(CONTENT)),
                    touched="one sample read",
                )
    bench.notes.extend(_in_words(bench.records))
    return bench.result()


def _in_words(records: Sequence[Record]) -> Iterator[str]:
    """Yield a sentence for each format: what a sample costs in sets of each size."""
    for name in SUFFIXES:
        packed, opened = (
            [each for each in records if each.name == name and each.what.startswith(what)]
            for what in ("packing", "opening")
        )
        sizes = " / ".join(f"{each.set_samples:,}" for each in packed)
        cpu = " / ".join(f"{1e6 * each.extra['cpu_s'] / each.set_samples:.0f}" for each in packed)
        calls = " / ".join(f"{each.extra['calls'] / each.set_samples:.2f}" for each in packed)
        yield f"{name}, {sizes} samples: packing takes {cpu} µs and {calls} system calls per sample"
        cpu = " / ".join(f"{1e3 * each.extra['cpu_s'] / each.extra['data_files']:.1f}" for each in opened)
        asked = " / ".join(f"{each.extra['requests_per_file']:.0f}" for each in opened)
        yield f"{name}: opening takes {cpu} ms and {asked} requests per data file"


def _make(path: Path, count: int) -> None:
    """Write a tar file of tiny samples in ten classes."""
    with path.open("wb", buffering=1 << 20) as out:
        for number in range(count):
            info = tarfile.TarInfo(f"class{10 * number // count}/{number:07}.bin")
            info.size = len(CONTENT)
            out.write(info.tobuf(tarfile.USTAR_FORMAT))
            out.write(CONTENT.ljust(512, b"\0"))
        out.write(bytes(1024))


def _out(home: Path, name: str, count: int) -> Path:
    return home / f"{count}.{SUFFIXES[name]}"


def _pack(home: Path, name: str, count: int) -> Outcome:
    for each in (WARM, count):
        for path in home.glob(f"{_out(home, name, each).name}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = said(COSTS + PACK, *(f"{home}/{each}.tar|{_out(home, name, each)}" for each in (WARM, count)))
    return Outcome(count, count * len(CONTENT), found["cpu_s"], found)


def _open(shown: SlowFolder, home: Path, name: str, count: int) -> Outcome:
    warm, real = (_out(home, name, each) for each in (WARM, count))
    data_files = len(list(real.glob("*.tar"))) or 1
    found = said(COSTS + OPEN, str(warm), str(real))
    asked = opened(shown, real.name, data_files).extra
    return Outcome(1, len(CONTENT), found["cpu_s"], {**asked, **found})
