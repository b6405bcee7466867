"""A training of a stranger is audited: it stays what it is, and the report says what arrived how often."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smallfiles.cli import main
from smallfiles.profile import findings

LOOPS = Path(__file__).with_name("audited.py")
ROOT = LOOPS.parents[2]
sys.path.append(str(ROOT / "tools"))
matrix = importlib.import_module("audit_matrix")
ONCE = "exactly once"
SEVERAL, TWICE = "samples are seen by several ranks", "samples arrive twice in an epoch"
EVERY_DAY = {
    *("map random workers=2", "distributed several ranks=2", "iterable twice workers=2", "webdataset order"),
    *("map right workers=2", "ours right ranks=2 mix=1", "webdataset right ranks=2"),
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


def case(each):
    return pytest.param(each, id=each.program, marks=() if each.program in EVERY_DAY else pytest.mark.slow)


@pytest.mark.parametrize("case", [case(each) for each in matrix.cases() if each.expected != "-"])
def test_each_loader_is_judged_in_each_situation(case, tmp_path):
    """A planted fault is named. A right training raises no alarm, and computes what it computes alone."""
    if not importlib.util.find_spec(case.package):
        pytest.skip(f"{case.package}: not installed")
    (program, *_), options = case.commands(matrix.make_data(case, tmp_path / "data"))
    done = audit(tmp_path, *program, options=options)
    assert done.record, done.stderr
    assert matrix.said_by(done.record) == case.expected, done.stderr
    assert done.returncode == int(case.expected != ONCE)
    for found in done.record["findings"]:
        assert f"finding   {found['name']}" in done.stderr and found["cure"] in done.stderr
        assert found["name"] != "a shard is truncated" or "part-002.tar" in found["first"][0]
    if case.expected == ONCE and not options and "hf" not in case.program:
        assert sorted(done.stdout.splitlines()) == sorted(run(*program[1:]).stdout.splitlines())


def test_each_loader_has_all_situations_and_each_verdict_has_a_case():
    cases = matrix.cases()
    situations = {each.situation for each in cases}
    for loader in {each.loader for each in cases}:
        assert {each.situation for each in cases if each.loader == loader} == situations, loader
    expected = {name for each in cases for name in each.expected.split(" + ")}
    assert findings.CURES.keys() - {findings.MIXED} <= expected  # which a test below joins


def test_received_is_not_fetched_and_an_epoch_that_stops_has_lost_nothing(tmp_path):
    done = audit(tmp_path, sys.executable, LOOPS, "map", "right", "workers=3", "stop=2", "epochs=1")
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


def test_a_key_tells_samples_apart_and_nodes_are_joined(tmp_path):
    for number in (0, 1):
        program = (sys.executable, LOOPS, "iterable", "several")
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
