"""Decisions of a broadcast, with commands that stand for Slurm's: who takes part, who copies, what is said.

`tests/slurm/test_broadcast.py` broadcasts between real nodes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from staging_tools import MIB, ROOMY, names

from smallfiles import digests, locks, staging
from smallfiles.errors import ResourceError
from smallfiles.staging import broadcast, placement
from smallfiles.staging.slots import Slot

COMMANDS = {
    "scontrol": "printf 'n1 n2 n3'",
    "sbcast": 'echo "$*" >> sent; [ -e refuse ] && echo "no such  luck" >&2 && exit 3; exit 0',
    "srun": """while [ "$1" != --nodelist ]; do shift; done; echo "$2" >> nodes
        step=$(wc -l < nodes); read -r order; echo "$order" >> orders; cat "$step.order"
        read -r word && cat "$step.$word"; exit 0""",
}
ANSWERS = {
    "r": {"state": "ready", "folder": "/slot"},
    "s": {"state": "stopped"},
    "f": {"state": "failed", "note": "no room"},
    "R": {"state": "staged", "path": "/node/x", "copied": 0, "received": True},
    "h": {"state": "staged", "path": "/node/x", "copied": 0, "received": False},  # has it
    "c": {"state": "staged", "path": "/node/x", "copied": 5 * MIB, "received": False},
}
SENT, TRIED = "read once from shared storage, and sent to {} nodes by sbcast", "sbcast failed: no such luck"
OWN = [f"n{number} copied 5.2 MB from shared storage" for number in (1, 2, 3)]
STEPS = {  # of each step: its nodes, their answers to the order, the next word, the answers to that; notes
    "all receive": (["123 rrr sent RRR"], [SENT.format(3)]),
    "all have it": (["123 hhh stop"], []),
    "one has no room": (["123 rfr stop ss", "13 rr sent RR", "2 c"], ["n2: no room", SENT.format(2), OWN[1]]),
    "one is killed": (["123 rkr stop ss", "13 rr sent RR", "2 h"], [SENT.format(2)]),
    "one is silent": (["123 r-r stop ss", "13 rr sent RR", "2 h"], [SENT.format(2)]),
    "one is left": (["123 rhh stop s", "1 c"], OWN[:1]),
    "sbcast fails": (["123 rrr stop sss"] * 3 + ["123 ccc"], [TRIED] * 3 + OWN),
    "no digest": (["123 ccc"], [broadcast.UNVERIFIED, *OWN]),
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with commands that stand for Slurm's, and with files of what they were asked."""
    for name, script in COMMANDS.items():
        (tmp_path / name).write_text(f'#!/bin/sh\ncd "{tmp_path}"\n{script}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "sent").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    return tmp_path


def answering(slurm, steps):
    """Write what the processes of each step answer to the order and to the next word."""
    for step, line in enumerate(steps, 1):
        nodes, first, word, then = (*line.split(), "", "")[:4]
        ready = [node for node, answer in zip(nodes, first, strict=True) if answer == "r"]
        for to, who, answers in (("order", nodes, first), (word, ready, then)):
            lines = [
                json.dumps({"node": f"n{node}", "step": f"7.{step}", **ANSWERS[answer]})
                if answer != "k"
                else "srun: error: n2: task 1: Killed"
                for node, answer in zip(who, answers, strict=True)
                if answer != "-"
            ]
            (slurm / f"{step}.{to}").write_text("".join(f"{each}\n" for each in lines))


@pytest.mark.parametrize("case", STEPS)
def test_nodes_that_are_ready_receive_and_the_others_copy(case, slurm, source, node, monkeypatch):
    steps, notes = STEPS[case]
    answering(slurm, steps)
    if case == "sbcast fails":
        (slurm / "refuse").touch()
    if case == "one is silent":
        monkeypatch.setattr(broadcast, "START_S", 3.0)
    if case == "no digest":
        digests.sidecar(source).unlink()
    copy = staging.stage_broadcast(source, node, config=ROOMY)
    asked = [",".join(f"n{node}" for node in line.split()[0]) for line in steps]
    assert (slurm / "nodes").read_text().split() == asked
    orders = [json.loads(line)["receive"] for line in (slurm / "orders").read_text().splitlines()]
    assert orders == [len(line.split()) > 2 for line in steps]
    is_reused = case == "all have it"
    assert (str(copy.path), copy.reused) == ("/node/x", is_reused)
    assert copy.rate == pytest.approx(0 if is_reused else copy.bytes / copy.seconds)
    assert copy.verified == (case != "no digest") and 0 < copy.seconds < 60 and copy.bytes > 9 * MIB
    assert [*copy.notes[1:]] == notes
    tried = [step for step, line in enumerate(steps, 1) if {*line.split()[1]} == {"r"}]
    told = [f"--size=8m --jobid=7.{step} {source} /slot/arriving/{source.name}" for step in tried]
    assert (slurm / "sent").read_text().splitlines() == told


def test_a_node_without_a_copy_is_named_and_the_others_keep_theirs(slurm, source, node):
    answering(slurm, ["123 hfh stop", "2 f"])
    told = r"no copy of train\.arrow is on n2: n2: no room; n2: no room; expected a copy on each of 3 nodes"
    with pytest.raises(ResourceError, match=told):
        staging.stage_broadcast(source, node, config=ROOMY)


@pytest.fixture
def answers(source, node, monkeypatch, capsys):
    """Let the process of one node follow an order. What it answers is returned.

    Before the word that follows the order, a file arrives, in which something may be damaged.
    """

    def follow(word="", damage=None, **order):
        def readline():
            if len(lines) == 1 and damage is not None:
                (folder,) = node.rglob("arriving")
                assert folder.stat().st_mode & 0o777 == 0o700
                data = source.read_bytes()
                hurt = data[:damage] + b"flipped" + data[damage + 7 :] if damage else data
                (folder / source.name).write_bytes(hurt)
                (folder / source.name).chmod(0o400)
            return lines.pop(0)

        order = {"source": str(source), "place": str(node), "config": asdict(ROOMY), "receive": True, **order}
        lines = [json.dumps(order) + "\n", word]
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(readline=readline))
        capsys.readouterr()
        broadcast.receive()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    for name, value in (("SLURMD_NODENAME", "n1"), ("SLURM_STEP_ID", "3"), ("SLURM_JOB_ID", "12")):
        monkeypatch.setenv(name, value)
    return follow


WHOLE, FLIPPED, NOTHING = 0, 5 * MIB, None


@pytest.mark.parametrize("arriving", [WHOLE, FLIPPED, NOTHING])
def test_a_node_checks_what_arrived_and_copies_only_what_did_not(arriving, source, answers):
    copied = {WHOLE: 0, FLIPPED: 4 * MIB, NOTHING: source.stat().st_size}[arriving]
    ready, done = answers("sent\n", arriving)
    assert (ready["state"], done["state"], done["node"], done["step"]) == ("ready", "staged", "n1", "12.3")
    assert (done["copied"], done["received"]) == (copied, True)
    assert Path(done["path"]).read_bytes() == source.read_bytes()
    (again,) = answers("sent\n")
    assert (again["state"], again["copied"], again["received"]) == ("staged", 0, False)
    assert staging.unstage(done["path"]).removed


def test_a_node_that_takes_no_part_says_why_and_leaves_nothing(source, node, answers):
    for word in ("stop\n", ""):  # another node is not ready; the command has ended
        ready, stopped = answers(word, WHOLE)
        assert (ready["state"], stopped["state"], names(node)) == ("ready", "stopped", [])
    (failed,) = answers(config=asdict(ROOMY) | {"leave_bytes": 1 << 60})
    assert failed["state"] == "failed" and "in addition" in failed["note"]
    slot = Slot(locks.private_folder(node), placement.find_output(source).key)
    held = locks.try_lock(slot.lock, shared=False)
    (stopped,) = answers()  # another job copies here, and may wait for other nodes of this one
    assert stopped["state"] == "stopped"
    slot.remove(held)
    (copied,) = answers(receive=False)
    size = source.stat().st_size + digests.sidecar(source).stat().st_size
    assert (copied["state"], copied["copied"], copied["received"]) == ("staged", size, False)
    assert staging.unstage(copied["path"]).removed
