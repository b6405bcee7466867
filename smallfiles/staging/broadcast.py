"""One node reads the shared copy once; Slurm's `sbcast` carries it to all nodes of the job.

    staged=$(smallfiles stage train.tars --broadcast)     # in the job script, without srun

The command starts one process per node with `srun` (`receive`, below). Each prepares the same private folder
and says so; then `sbcast` writes each packed file there, through a tree of the nodes' daemons. It is
authenticated, but checks nothing: so each node reads back what has arrived, as a copy does that resumes,
compares every block with the digest from packing, and copies from shared storage what did not arrive whole.
The nodes are spoken to through the standard input of that one step: when this process dies, they read its
end, and clean up.

The trap: `sbcast` writes the same path on all nodes of a step or on none. So a node that cannot take part
(no room, a finished copy, killed) is left out of the next step, and copies by itself at the end. And Slurm's
daemon may still write to a file that was given up, so its folder is renamed or removed first, and nothing is
made there twice. Notebook 07.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from pysquashfs.text import like_this
from smallfiles import locks
from smallfiles.errors import ResourceError, SmallfilesError, writing
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.machine.ranks import ranks
from smallfiles.processes import this_job
from smallfiles.progress import bytes_text, plural, progress
from smallfiles.staging import StageConfig, Staged, placement
from smallfiles.staging.copying import copy_files
from smallfiles.staging.placement import PackedOutput
from smallfiles.staging.run import UNVERIFIED, facts_of, once, slot_at, stage_for_job
from smallfiles.staging.slots import Slot
from smallfiles.storage import set_timeout

START_S = 60.0
"""A node that is not ready after this time is left out."""

_ARRIVING = "arriving"
"""Folder of a slot in which `sbcast` writes; renamed or removed before anything else uses its files."""

_TRIES = 3
_LOST = re.compile(r"error: \S+: tasks? \d")


def why_not() -> str | None:
    """Return why this process cannot broadcast, or None if it can."""
    if not os.environ.get("SLURM_JOB_NODELIST"):
        return "this is no job of Slurm"
    missing = [tool for tool in ("srun", "sbcast", "scontrol") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be found here"
    if ranks().world_size > 1:
        return "this is one of several tasks: call it in the job script, without srun"
    return None


def stage_broadcast(
    src: Path | str, where: str | Path = "auto", *, config: StageConfig | None = None
) -> Staged:
    """Stage to all nodes of this job, reading the shared copy once instead of once per node.

    Args:
        src: As for `stage`.
        where: As for `stage`; the same path is used on all nodes.
        config: As for `stage`.

    Returns:
        The copy, which is at the same path on every node and belongs to the job. Its notes name the nodes
        that copied by themselves, and why.

    Raises:
        ResourceError: A node has no copy; the others keep theirs.
        DamagedFileError: The source is not what was packed.
        SourceError: The source is missing, or changed while it was copied.
    """
    started, config = time.perf_counter(), config or StageConfig()
    problem = why_not()
    nodes = [] if problem else _node_names()
    if problem or len(nodes) < 2:
        copy = stage_for_job(src, where, config=config)
        note = f"not broadcast, but copied by this node alone: {problem or 'the job has one node'}"
        return replace(copy, notes=(*copy.notes, note))
    output = placement.find_output(Path(src))
    place, why = placement.choose(where, output, config)
    job = _Job(output, {"source": str(output.source), "place": str(place.path), "config": asdict(config)})
    job.receive(nodes if output.has_digests and not place.filesystem.shared else [])
    job.copy([node for node in nodes if node not in job.done])
    return job.result(nodes, why, time.perf_counter() - started)


def dry_run(src: Path, where: str, config: StageConfig, broadcast: bool) -> dict[str, Any]:
    """Report what staging would read, and where the copy would go. Nothing is copied.

    Args:
        src: As for `stage`.
        where: As for `stage`.
        config: As for `stage`.
        broadcast: Whether the copy is for all nodes of the job.

    Returns:
        Bytes of the set, number of nodes, bytes that all nodes read from shared storage, bytes that a
        broadcast saves, and notes.
    """
    output = placement.find_output(src)
    place, why = placement.choose(where, output, config)
    problem, count = why_not(), int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    sent = broadcast and problem is None and output.has_digests
    notes = [why, *([f"not broadcast: {problem or UNVERIFIED}"] if broadcast and not sent else [])]
    read = output.bytes if sent else output.bytes * count
    saved = output.bytes * count - read
    facts = {"bytes": output.bytes, "nodes": count, "read_bytes": read, "saved_bytes": saved}
    return {"place": str(place.path), **facts, "notes": notes}


def _node_names() -> list[str]:
    command = ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


class _Job:
    """What the nodes of this job have; each method is a step, or several, on some of them."""

    def __init__(self, output: PackedOutput, order: dict[str, Any]) -> None:
        self._output, self._order = output, order
        self.done: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []

    def receive(self, nodes: Sequence[str]) -> None:
        """Send to the nodes that are ready together; those that fail are left out of the next try."""
        for _ in range(_TRIES):
            if len(nodes) < 2:
                return
            with _Step(nodes, {**self._order, "receive": True}) as step:
                answers = step.answers(START_S)
                ready = [node for node, answer in answers.items() if answer["state"] == "ready"]
                self._keep(answers)
                problem = self._send(step) if len(ready) == len(nodes) else "left out"
                step.say("stop" if problem else "sent")
                last = step.answers()
            if problem is None:
                return self._keep(last)
            if problem != "left out":
                self._notes.append(f"sbcast failed: {problem}")
                ready = [node for node in ready if node in last]
            nodes = ready

    def copy(self, nodes: Sequence[str]) -> None:
        """Let nodes copy from shared storage by themselves."""
        if nodes:
            with _Step(nodes, {**self._order, "receive": False}) as step:
                self._keep(step.answers())

    def _keep(self, answers: dict[str, dict[str, Any]]) -> None:
        self.done |= {node: answer for node, answer in answers.items() if answer["state"] == "staged"}
        self._notes += [f"{node}: {found['note']}" for node, found in answers.items() if found.get("note")]

    def _send(self, step: _Step) -> str | None:
        """Send every packed file; the error of `sbcast`, or None."""
        sent = [member for member in self._output.members if member.digest is not None and member.bytes]
        text = f"broadcast {self._output.name}"
        with progress(len(sent), text, unit="files") as bar:
            for member in sent:
                target = Path(step.folder, _ARRIVING, member.name)
                command = ["sbcast", "--size=8m", f"--jobid={step.number}", str(member.source), str(target)]
                done = subprocess.run(command, capture_output=True, text=True, errors="replace")
                if done.returncode:
                    return " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
                bar.advance(1, member.bytes)
        return None

    def result(self, nodes: Sequence[str], why: str, seconds: float) -> Staged:
        """Return the copy if every node has it, or else raise an error that names the nodes."""
        output, without = self._output, [node for node in nodes if node not in self.done]
        if without:
            raise ResourceError(
                f"no copy of {output.name} is on {', '.join(without)}: "
                + ("; ".join(self._notes) or "its process ended"),
                expected=f"a copy on each of {len(nodes)} nodes, at the same path",
                next_step="Name a directory with room on every node (--where DIR), or ask for more memory",
            )
        own = {node: answer["copied"] for node, answer in self.done.items() if answer["copied"]}
        received = [node for node, answer in self.done.items() if answer["received"]]
        notes = [why, *self._notes] + ([] if output.has_digests else [UNVERIFIED])
        if received:
            notes.append(
                f"read once from shared storage, and sent to {plural(len(received), 'node')} by sbcast"
            )
        notes += [f"{node} copied {bytes_text(count)} from shared storage" for node, count in own.items()]
        reused, path = not received and not own, Path(next(iter(self.done.values()))["path"])
        rate = 0.0 if reused else output.bytes / max(seconds, 1e-9)
        files, verified = len(output.members), output.has_digests
        return Staged(path, output.bytes, reused, seconds, rate, files, verified, tuple(notes))


class _Step:
    """One process per node, and the words that are exchanged with them.

    Args:
        nodes: Names of the nodes.
        order: The first line that each process reads.
    """

    def __init__(self, nodes: Sequence[str], order: dict[str, Any]) -> None:
        count = str(len(nodes))
        command = ["srun", "--overlap", "--export=ALL", "--mpi=none", "--kill-on-bad-exit=0", "--quiet"]
        command += ["--nodes", count, "--ntasks", count, "--ntasks-per-node=1", "--nodelist", ",".join(nodes)]
        command += [*like_this(), "-m", "smallfiles.staging.broadcast"]
        self._nodes, self._lines = nodes, queue.Queue[str | None]()
        self._last: str | None = ""
        self._lost = False
        self.number = self.folder = ""
        pipe = subprocess.PIPE
        self._srun = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace", bufsize=1
        )
        assert self._srun.stdin is not None
        self._input = self._srun.stdin
        threading.Thread(target=self._read, args=(self._srun.stdout,), daemon=True).start()
        self.say(json.dumps(order))

    def __enter__(self) -> _Step:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the input, which ends the processes that still wait."""
        with suppress(BrokenPipeError):
            self._input.close()
        self._srun.wait()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._lines.put(line)
        self._lines.put(None)

    def say(self, word: str) -> None:
        """Send a line to all processes."""
        with suppress(BrokenPipeError):  # srun has ended, which `answers` finds out
            self._input.write(word + "\n")
            self._input.flush()

    def answers(self, within_s: float | None = None) -> dict[str, dict[str, Any]]:
        """Wait for one answer per node. Return fewer if processes ended, or did not answer in time."""
        until = None if within_s is None else time.monotonic() + within_s
        found: dict[str, dict[str, Any]] = {}
        while self._last is not None and len(found) < len(self._nodes):
            try:
                wait_s = 1.0 if until is None else max(0.0, min(1.0, until - time.monotonic()))
                self._last = self._lines.get(timeout=wait_s)
            except queue.Empty:
                if until is not None and (time.monotonic() >= until or self._lost):
                    break
                continue
            self._take(self._last or "", found)
        return found

    def _take(self, line: str, found: dict[str, dict[str, Any]]) -> None:
        if line.startswith("{"):
            answer = json.loads(line)
            found[answer["node"]] = answer
            self.number, self.folder = answer["step"], answer.get("folder") or self.folder
        elif line:
            self._lost = self._lost or bool(_LOST.search(line))
            sys.stderr.write(line)


# ---- the process of one node


class _StoppedError(Exception):
    """The broadcast was given up."""


def receive() -> None:
    """Follow the order on standard input, and say on standard output what came of it."""
    order = json.loads(sys.stdin.readline() or "{}")
    if not order:
        return
    try:
        _say("staged", **_stage(order))
    except _StoppedError:
        _say("stopped")
    except SmallfilesError as error:
        _say("failed", note=str(error))


def _say(state: str, **more: Any) -> None:
    node = os.environ.get("SLURMD_NODENAME", "")
    step = f"{os.environ.get('SLURM_JOB_ID')}.{os.environ.get('SLURM_STEP_ID')}"
    sys.stdout.write(json.dumps({"node": node, "step": step, "state": state, **more}) + "\n")
    sys.stdout.flush()


def _stage(order: dict[str, Any]) -> dict[str, Any]:
    config = StageConfig(**order["config"])
    set_timeout(config.storage_timeout_s)
    output = placement.find_output(Path(order["source"]))
    (place,), _ = placement.candidates(order["place"], output.source)
    slot, copied = slot_at(place, output.key), [0]
    if order["receive"] and slot.facts() is None and locks.is_held(slot.lock, shared=False):
        raise _StoppedError  # another job copies it: two that wait for each other's nodes would wait in vain
    use = once(slot, output, partial(_fill, place, output, config, order["receive"], copied))
    try:
        slot.acquire(this_job())
    finally:
        use.leave()
    received = order["receive"] and not use.reused
    return {"path": str(slot.data / output.name), "copied": copied[0], "received": received}


def _fill(
    place: NodeLocal, output: PackedOutput, config: StageConfig, receive: bool, copied: list[int], slot: Slot
) -> tuple[Sequence[str], dict[str, Any]]:
    """Receive an output into a slot, or copy it; `copied` becomes the bytes from shared storage."""
    placement.check_room(place, output, config)
    if receive:
        _receive(output, slot)
    names, kept_bytes = copy_files(output, slot.copying, resume=receive)
    small = sum(member.bytes for member in output.members if member.digest is None) if receive else 0
    copied[0] = output.bytes - kept_bytes - small
    return names, facts_of(output)


def _receive(output: PackedOutput, slot: Slot) -> None:
    """Wait until `sbcast` has written everything; then move it to where a copy resumes."""
    arriving = slot.home / _ARRIVING
    sent = [arriving / member.name for member in output.members if member.digest is not None]
    with writing(arriving):
        arriving.mkdir(mode=0o700)
        for path in sent:
            path.parent.mkdir(mode=0o700, exist_ok=True)
    _say("ready", folder=str(slot.home))
    if sys.stdin.readline() != "sent\n":
        raise _StoppedError
    with writing(slot.copying):
        for path in sent:
            with suppress(FileNotFoundError):
                path.chmod(0o600)
        slot.copying.rmdir()
        arriving.rename(slot.copying)


if __name__ == "__main__":
    receive()
