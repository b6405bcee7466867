"""A training of a stranger is audited: it stays what it is, and the report says what arrived how often."""

import importlib.util
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from smallfiles.cli import main

LOOPS = Path(__file__).with_name("audited.py")
ROOT = LOOPS.parents[2]
COUNT = 48
PACKAGES = {
    "hf": "datasets",
    "hf_stream": "datasets",
    "mosaic": "streaming",
    "litdata": "litdata",
    "grain": "grain",
    "nodes": "torchdata",
    "mixed_nodes": "torchdata",
    "stateful": "torchdata",
}


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )


def audit(tmp_path, *program, options=(), **environment):
    """What the audit of a program printed, and its record; it must leave nothing else."""
    record = tmp_path / "a record.json"
    command = ("-m", "smallfiles", "audit", "--save", record, *options, "--", *program)
    with tempfile.TemporaryDirectory(prefix="sf-") as folder:  # short: the path of a socket ends at 107 bytes
        done = run(*command, TMPDIR=folder, **environment)
        left = [name for name in os.listdir(folder) if name.startswith("smallfiles-")]
    assert left == [], "files of the audit stayed behind"
    done.record = json.loads(record.read_text()) if record.exists() else None
    return done


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Shards, files, and a packed set of the same 48 samples."""
    folder = tmp_path_factory.mktemp("data")
    for shard in range(4):
        with tarfile.open(folder / f"part-{shard:03}.tar", "w") as tar:
            for index in range(shard * 12, (shard + 1) * 12):
                member = tarfile.TarInfo(f"{index:06}.txt")
                member.size = len(text := str(index).encode())
                tar.addfile(member, io.BytesIO(text))
    for index in range(COUNT):
        (folder / f"{index:04}.bin").write_bytes(bytes(index))
    return folder


def loop(data, loader, *words):
    package = PACKAGES.get(loader, loader if loader in ("webdataset", "lightning", "accelerate") else "torch")
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package}: not installed")
    if loader == "ours" and not (data / "set.arrow").exists():
        assert (
            main(
                ["synth", str(data / "images"), "--layout", "folder", "--count", str(COUNT), "--classes", "2"]
            )
            == 0
        )
        assert main(["pack", str(data / "images"), str(data / "set.arrow")]) == 0
    if "truncated" in words and not (cut := data / "cut").exists():
        shutil.copytree(
            data, cut, ignore=lambda folder, names: {*names} - {f"part-{n:03}.tar" for n in range(4)}
        )
        os.truncate(cut / "part-002.tar", 2_000)
    data = data / "cut" if "truncated" in words else data
    return sys.executable, LOOPS, loader, *words, f"data={data}"


ONCE = "exactly once"
SEVERAL, TWICE, LOST = (
    "samples are seen by several ranks",
    "samples arrive twice in an epoch",
    "samples are lost",
)
ORDER, DRAWN = "the same order in every epoch", "samples are drawn with replacement"
DROPPED, LAST = "the last samples are dropped", "the same last samples are dropped in every epoch"
PADDED, UNEVEN = "padding by repetition", "ranks have different numbers of batches"
RANDOM = "equal random numbers in several workers"
TWO = "ranks=2"
UNREAD, CUT = "shards that no worker read", "a shard is truncated"
AGAIN, SKIPPED = "a resume repeats samples", "a resume skips samples"
OTHER = "another order on another number of ranks"
FAULTS = {
    LOST: "iterable lost | webdataset lost | grain right ranks=2 count=47 epochs=1",
    TWICE: "map twice workers=2 | iterable twice workers=2 | files twice workers=2 | "
    "webdataset twice workers=2 | lightning twice workers=2 | accelerate twice workers=2 | "
    "nodes twice workers=2",
    SEVERAL: "distributed several ranks=2 | iterable several ranks=2 | webdataset several ranks=2 | "
    "hf several ranks=2 | hf_stream several ranks=2 | lightning several ranks=2 | ours several ranks=2 | "
    "grain several ranks=2 | nodes several ranks=2 workers=2",
    ORDER: "map order | distributed order ranks=2 | webdataset order | hf order | hf_stream order | "
    "lightning order | accelerate order ranks=2 | ours order workers=2 | nodes order",
    RANDOM: "map random workers=2 | iterable random workers=2 | lightning random workers=2",
    UNEVEN: "iterable uneven ranks=2 | webdataset right ranks=3 | hf right ranks=2 count=41",
    PADDED: "distributed right ranks=2 count=47 | accelerate right ranks=2 count=45",
    LAST: "map dropped_last count=50 | distributed dropped_last ranks=2 count=49",
    DROPPED: "map dropped count=50 | accelerate dropped count=50",
    DRAWN: "map replacement | webdataset replacement | mixed_nodes cycle",
    UNREAD: "webdataset unread | shards unread",
    CUT: "webdataset truncated | shards truncated",
    AGAIN: "map sequential stop=5 epochs=1 > map sequential epochs=1 | "
    "ours right stop=5 epochs=1 > ours right epochs=1 | "
    "stateful forgotten stop=5 checkpoint=3 epochs=1 > stateful forgotten resume=1 | "
    "nodes forgotten workers=2 stop=5 checkpoint=3 epochs=1 > nodes forgotten workers=2 resume=1",
    SKIPPED: "iterable right stop=5 epochs=1 > iterable right skip=24 | "
    "accelerate right stop=5 epochs=1 > accelerate right skip=7 epochs=1 | "
    "stateful late workers=2 stop=5 checkpoint=3 epochs=1 > stateful late workers=2 resume=1 | "
    "nodes late stop=5 checkpoint=3 epochs=1 > nodes late resume=1",
    OTHER: "webdataset right ranks={ranks} | iterable blocks ranks={ranks}",
}
EVERY_DAY = {
    *("map random workers=2", "distributed several ranks=2", "iterable twice workers=2", "webdataset order"),
    *("map right workers=2", "ours right ranks=2 mix=1", "webdataset right ranks=2"),
}


def case(words, *more):
    return pytest.param(words, *more, marks=() if words in EVERY_DAY else pytest.mark.slow)


@pytest.mark.parametrize(
    "words, name", [case(words, name) for name, several in FAULTS.items() for words in several.split(" | ")]
)
def test_a_planted_fault_is_named(words, name, data, tmp_path):
    """Behind `>` stands the run that continues the first one."""
    first, *then = (loop(data, *program.split()) for program in words.split(" > "))
    options = ["--ranks", "1,2"] if "{ranks}" in words else []
    done = audit(tmp_path, *first, options=[*options, *(f"--resume={shlex.join(map(str, t))}" for t in then)])
    found = {each["name"]: each for each in done.record["findings"]}
    assert name in found and done.returncode == 1, done.stderr
    assert f"finding   {name}" in done.stderr and found[name]["cure"] in done.stderr
    assert "truncated" not in words or "part-002.tar" in found[CUT]["first"][0]


RIGHT = [
    f"{loader} right {more}".strip()
    for loader in (
        "distributed",
        "iterable",
        "files",
        "webdataset",
        "hf",
        "hf_stream",
        "accelerate",
        "ours",
    )
    for more in ("", "workers=2", TWO, "ranks=2 workers=2")
] + [
    "map right",
    "map right workers=2",
    "lightning right",
    "lightning right workers=2",
    "lightning iterable",
    "map sequential",
    "mosaic right",
    "ours right ranks=2 mix=1",
    "ours right ranks=2 workers=2 weights=label",
    "grain right",
    "grain right ranks=2 workers=2",
    "grain plan ranks=2 workers=2",
    "nodes right",
    "nodes right ranks=2 workers=2 prebatch=5",
    "nodes iterable workers=2",
    "nodes unordered workers=2",
    "stateful right workers=2",
]


@pytest.mark.parametrize("words", list(map(case, RIGHT)))
def test_a_right_training_raises_no_alarm(words, data, tmp_path):
    """It also computes what it computes alone."""
    program = loop(data, *words.split())
    done = audit(tmp_path, *program)
    assert (done.record["verdict"], done.returncode) == (ONCE, 0), done.stderr
    if "hf" not in words:
        assert sorted(done.stdout.splitlines()) == sorted(run(*program[1:]).stdout.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        "accelerate right stop=5 epochs=1 > accelerate right skip=5 epochs=1",
        "stateful right stop=5 checkpoint=3 epochs=1 > stateful right resume=1",
        "stateful right workers=2 stop=5 checkpoint=3 epochs=1 > stateful right workers=2 resume=1",
        "stateful iterable stop=5 checkpoint=3 epochs=1 > stateful iterable resume=1",
        "stateful iterable workers=2 stop=5 checkpoint=3 epochs=1 > stateful iterable workers=2 resume=1",
        "nodes right stop=5 checkpoint=3 epochs=1 > nodes right resume=1",
        "nodes right workers=2 stop=5 checkpoint=3 epochs=1 > nodes right workers=2 resume=1",
        "distributed right ranks={ranks}",
    ],
)
@pytest.mark.slow
def test_a_right_resume_and_a_right_number_of_ranks_raise_no_alarm(words, data, tmp_path):
    first, *then = (loop(data, *program.split()) for program in words.split(" > "))
    options = [f"--resume={shlex.join(map(str, t))}" for t in then] or ["--ranks", "1,2"]
    assert audit(tmp_path, *first, options=options).record["findings"] == []


def test_received_is_not_fetched_and_an_epoch_that_stops_has_lost_nothing(data, tmp_path):
    done = audit(tmp_path, *loop(data, "map", "right", "workers=3", "stop=2", "epochs=1"))
    assert done.record["verdict"] == "no epoch was finished" and done.returncode == 1
    assert "rank 0 8 in 2 batches (stopped)" in done.stderr


@pytest.mark.parametrize(
    "program, code, said",
    [
        (("-c", "raise SystemExit(5)"), 5, "asked no DataLoader for a batch"),
        (("-c", "1 / 0"), 1, "asked no DataLoader for a batch"),
        (("-I", "-c", "raise SystemExit(4)"), 4, "no Python of it ran with our hooks"),
        (("-c", "import os; os.kill(os.getpid(), 9)"), -9, "SIGKILL"),
        (("-c", "import os; os.fork() and os.wait(); os._exit(6)"), 6, "asked no DataLoader"),
        (
            ("-c", "import os, sys; os.execv(sys.executable, ['p', '-c', 'raise SystemExit(7)'])"),
            7,
            "no DataLoader",
        ),
        (("-c", "pass"), 3, "asked no DataLoader"),
    ],
)
def test_a_program_without_a_loader_gets_a_sentence_and_keeps_its_exit_code(program, code, said, tmp_path):
    done = audit(tmp_path, sys.executable, *program)
    assert done.returncode == code and said in done.stderr and done.record is None


def test_a_crash_in_the_loop_keeps_what_was_received_until_then(tmp_path):
    text = (
        "import torch, os\nfor n, _ in enumerate(torch.utils.data.DataLoader(range(32), 4, num_workers=1)):\n"
    )
    path = tmp_path / "theirs.py"
    path.write_text(text + "    if n == 3: os._exit(9)\n")
    done = audit(tmp_path, sys.executable, path)
    assert done.returncode == 9 and "rank 0 16 in 4 batches (stopped)" in done.stderr


def test_a_key_tells_samples_apart_and_nodes_are_joined(data, tmp_path):
    for number in (0, 1):
        program = loop(data, "iterable", "several")
        assert audit(tmp_path, *program, options=("--key", "0"), RANK=str(number), WORLD_SIZE="2").returncode
        (tmp_path / "a record.json").rename(tmp_path / f"node{number}.json")
    done = run("-m", "smallfiles", "audit", "--join", tmp_path / "node0.json", tmp_path / "node1.json")
    assert (
        done.returncode == 1 and f"verdict: {SEVERAL}" in done.stdout and "identified by key" in done.stdout
    )
    assert main(["figure", str(tmp_path / "node0.json"), str(tmp_path / "f.png")]) == 0
    first, other = (json.loads((tmp_path / f"node{number}.json").read_text()) for number in (0, 1))
    for changed, said in (
        (first, "rank 0 is in more than one of the 2 records"),
        (other | {"job": "8"}, "they are of jobs 7, 8"),
        (other | {"began": first["began"] + 610}, "they began 610 s apart"),
        (other | {"began": first["began"] + 590}, SEVERAL),
    ):
        for name, record in (("a", first), ("b", changed)):
            (tmp_path / name).write_text(
                json.dumps({"job": "7"} | {k: v for k, v in record.items() if v is not None or k != "job"})
            )
        done = run("-m", "smallfiles", "audit", "--join", tmp_path / "a", tmp_path / "b")
        assert said in done.stdout and ("the records are of several runs" in done.stdout) == (said != SEVERAL)


@pytest.mark.parametrize("keys, verdict", [("abcd", ONCE), ("abca", TWICE)])
def test_the_keys_of_a_batch_with_slots_are_read_as_energon_returns_it(keys, verdict, tmp_path):
    path = tmp_path / "theirs.py"
    path.write_text(
        "import dataclasses, torch\n@dataclasses.dataclass(slots=True)\nclass Batch:\n    __key__: list\n"
        "class Set(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        f"        for n in (0, 2): yield 0, n, Batch(list('{keys}'[n : n + 2]))\n"
        "for _ in torch.utils.data.DataLoader(Set(), batch_size=None): pass\n"
    )
    done = audit(tmp_path, sys.executable, path)
    assert f"verdict: {verdict}" in done.stderr and "rank 0 4 in 2 batches" in done.stderr, done.stderr


@pytest.mark.parametrize("step, verdict", [(1, ONCE), (387, "the same order in every epoch")])
def test_an_order_that_stays_the_same_is_named_unless_the_samples_are_stored_in_it(step, verdict, tmp_path):
    """There are more samples than those whose names are in the record."""
    path = tmp_path / "theirs.py"
    path.write_text(
        "import torch\nclass Set(torch.utils.data.IterableDataset):\n    def __iter__(self):\n"
        f"        for n in range(1000): yield {{'__key__': f'{{n * {step} % 1000:06}}'}}\n"
        "for epoch in range(2):\n    for _ in torch.utils.data.DataLoader(Set(), 50): pass\n"
    )
    done = audit(tmp_path, sys.executable, path)
    assert done.record["verdict"] == verdict, done.stderr


@pytest.mark.parametrize(
    "words", [["audit"], ["audit", "--ranks", "x", "--", "true"], ["audit", "--ranks", "2", "--", "true"]]
)
def test_nonsense_is_an_error_of_usage(words, capsys):
    assert main(words) == 2 and "smallfiles audit" in capsys.readouterr().err


def test_a_loader_whose_samples_are_not_known_is_named_with_what_would_make_them_known(tmp_path):
    """A pipeline of Grain that shuffles in a buffer, by the few parts of it that are looked at."""
    package = tmp_path / "grain" / "_src" / "python" / "dataset"
    package.mkdir(parents=True)
    for each in (package, *package.parents[:3]):  # an installed Grain would win over folders without it
        (each / "__init__.py").touch()
    (package / "dataset.py").write_text(
        "class WindowShuffleIterDataset:\n    _parents = ()\n"
        "    def __iter__(self): return Batches()\n"
        "class _OutputIterDataset:\n    _parents = (WindowShuffleIterDataset(),)\n"
        "    def __iter__(self): return iter(self._parents[0])\n"
        "class Batches:\n    left = 3\n    def __iter__(self): return self\n"
        "    def set_state(self, state): pass\n"
        "    def __next__(self):\n        if not self.left: raise StopIteration\n"
        "        self.left -= 1\n        return {'id': [self.left, self.left + 10]}\n"
    )
    program = tmp_path / "theirs.py"
    program.write_text(
        "from grain._src.python.dataset.dataset import _OutputIterDataset as D\nfor b in D(): print(b)\n"
    )
    done = audit(tmp_path, sys.executable, program, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert done.returncode == 3 and "Grain's _OutputIter, WindowShuffleIter" in done.stderr, done.stderr
    assert "--key" in done.stderr and done.stdout.count("id") == 3
    done = audit(
        tmp_path, sys.executable, program, options=("--key", "id"), PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}"
    )
    assert "rank 0 6 in 3 batches" in done.stderr and done.record["verdict"] == ONCE


def test_samples_are_followed_through_nodes_that_run_ahead_and_jax_says_the_rank(tmp_path):
    """Nodes of torchdata and the state of JAX, by the few parts of them that are looked at."""
    package = tmp_path / "torchdata" / "nodes"
    package.mkdir(parents=True)
    (package / "base_node.py").write_text(
        "class BaseNode:\n    ready = False\n    def __iter__(self): return self\n"
        "    def reset(self, state=None): self.ready = True\n"
        "    def __next__(self):\n        if not self.ready: self.reset(None)\n        return self.next()\n"
    )
    (package / "some.py").write_text(
        "from torchdata.nodes.base_node import BaseNode\n"
        "class SamplerWrapper(BaseNode):\n    def __init__(self, sampler): self.sampler = sampler\n"
        "    def reset(self, state=None):\n"
        "        super().reset(state)\n        self.it = iter(self.sampler)\n"
        "    def next(self): return next(self.it)\n"
        "class Mapper(BaseNode):\n"
        "    def __init__(self, source, map_fn): self.source, self.map_fn = source, map_fn\n"
        "    def reset(self, state=None):\n        super().reset(state)\n        self.source.reset()\n"
        "    def next(self): return self.map_fn(next(self.source))\n"
        "class Batcher(Mapper):\n    batch_size = 2\n"
        "    def next(self): return [next(self.source), next(self.source)]\n"
        "class Prefetcher(Mapper):\n    def next(self):\n        self.ahead = getattr(self, 'ahead', [])\n"
        "        while len(self.ahead) < 2:\n"
        "            try: self.ahead.append(next(self.source))\n            except StopIteration: break\n"
        "        if not self.ahead: raise StopIteration\n        return self.ahead.pop(0)\n"
    )
    program = tmp_path / "theirs.py"
    program.write_text(
        "import sys, types\nfrom torchdata.nodes.some import *\n"
        "jax = types.SimpleNamespace(client=1, process_id=1, num_processes=2)\n"
        "sys.modules['jax._src.distributed'] = types.SimpleNamespace(global_state=jax)\n"
        "first = Mapper(SamplerWrapper([2, 3, 3, 1, 4]), lambda at: 1 / (at != 2))\n"
        "node, errors = Prefetcher(Batcher(first, None), None), 0\n"
        "while True:\n    try: next(node)\n    except StopIteration: break\n"
        "    except ZeroDivisionError: errors += 1\nprint(errors)\n"
    )
    done = audit(tmp_path, sys.executable, program, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert "rank 1 4 in 2 batches" in done.stderr and "identified by index" in done.stderr, done.stderr
    assert "hooks failed" not in done.stderr and done.stdout == "1\n"
    assert f"verdict: {TWICE}" in done.stderr and "first     3" in done.stderr, done.stderr
