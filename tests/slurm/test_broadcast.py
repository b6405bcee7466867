"""A broadcast between nodes with memory of their own, from a slow shared folder that counts its bytes."""

import json
import os
import pwd
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from local_slurm import started
from programs import wait_for

from smallfiles import slowfs
from smallfiles.digests import digest_file, sidecar

NODES, PROCESS = 4, "smallfiles.staging.broadcast"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set of two shards, and one of one file, which all users may read."""
    folder = tmp_path_factory.mktemp("shared") / "a set"
    (folder / "x.tars").mkdir(parents=True)
    draw = random.Random(1)
    for path in (folder / "x.tars/0.tar", folder / "x.tars/1.tar", folder / "x.arrow"):
        path.write_bytes(draw.randbytes(9 << 20))
        digest_file(path).save(sidecar(path))
    for parent in folder.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(parent.stat().st_mode | 0o011)
    return folder


@pytest.fixture(scope="module")
def shared(folder):
    """It through a slow mount; the mount must be there before the nodes are."""
    reason = slowfs.why_not()
    if reason or os.geteuid():
        pytest.skip(reason or "only root can give each node memory of its own")
    with slowfs.mounted(folder, slowfs.SlowConfig(latency_s=0.002)) as slow:
        yield slow


@pytest.fixture(scope="module")
def nodes(repository, shared, need_tool, tmp_path_factory):
    for name in ("slurmctld", "slurmd", "munged"):
        os.environ["PATH"] += ":/usr/sbin"
        need_tool(name, "slurm-wlm, munge")
    with started(repository, tmp_path_factory.mktemp("work"), NODES, 2) as running:
        yield running


class Allocation:
    """Nodes of a job, as in a shell after `salloc`."""

    def __init__(self, cluster, count, user=0):
        self.cluster, self.number = cluster, ""
        self.names = [f"n{number + 1}" for number in range(count)]
        command = [
            "sbatch",
            "--parsable",
            "--overcommit",
            f"--nodes={count}",
            f"--ntasks={count}",
            "-o/dev/null",
            "--wrap=sleep 9000",
        ]
        done = subprocess.run(
            command, env=cluster.environment, user=user, cwd="/", capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        self.number, self.user = done.stdout.strip(), user
        wait_for(lambda: cluster.state(self.number)[0] == "RUNNING", 60)
        names = re.search(r"\bNodeList=(n\S+)", cluster.run("scontrol", "show", "job", self.number))[1]
        packages = Path(pytest.__file__).parents[1]
        self.python = [sys.executable if user == os.geteuid() else "/usr/bin/python3"]
        self.environment = {
            **cluster.environment,
            "SLURM_JOB_ID": self.number,
            "SLURM_JOB_NODELIST": names,
            "PYTHONPATH": f"{cluster.root}:{packages}",
        }
        self.how = {"env": self.environment, "user": user, "cwd": "/", "text": True, "capture_output": True}

    def start(self, *words, path="", where="/dev/shm"):
        environment = {**self.environment, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
        command = [*self.python, "-m", "smallfiles", "stage", *map(str, words), "--broadcast", "--json"]
        command += ["--where", where, "--leave-bytes", "0"]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, text=True, user=self.user, cwd="/"
        )

    def stage(self, *words, **how):
        """Broadcast; what it reports."""
        process = self.start(*words, **how)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        return json.loads(out)

    def staged_on(self, path):
        """Checksum of all files of a copy, by node."""
        found = self.cluster.on_nodes(
            "sh", "-c", f"cd '{Path(path).parent}' && find . -type f | sort | xargs cat | md5sum"
        )
        return [found[name] for name in self.names]

    def unstage(self, *names):
        """Release the copies on these nodes, or on all; what is left there of this job's user."""
        names = names or self.names
        count = str(len(names))
        command = [
            "srun",
            "--overlap",
            f"-N{count}",
            f"-n{count}",
            "--ntasks-per-node=1",
            "-w",
            ",".join(names),
        ]
        command += [*self.python, "-m", "smallfiles", "unstage"]
        done = subprocess.run(command, **self.how)
        assert done.returncode == 0, done.stderr
        words = ("-mindepth", "1", "-not", "-name", "sem.*", "-user", self.user)
        found = self.cluster.on_nodes("find", "/dev/shm", *words)
        return "".join(found[name] for name in names)

    def end(self):
        self.cluster.run("scancel", self.number, check=False)
        self.cluster.wait(self.number)


@pytest.fixture
def job(nodes):
    allocation = Allocation(nodes, NODES)
    yield allocation
    allocation.end()


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("count", [2, NODES])
@pytest.mark.parametrize("name", ["x.tars", "x.arrow"])
def test_shared_storage_is_read_once_and_every_node_has_the_same_bytes(nodes, shared, name, count):
    job = Allocation(nodes, count)
    try:
        before = shared.counts()["bytes"]
        copy = job.stage(shared.path / name)
        assert shared.counts()["bytes"] - before <= 1.1 * copy["bytes"]
        whole = job.staged_on(copy["path"])
        assert len(set(whole)) == 1 and len(whole) == count
        assert copy["verified"] and f"sent to {count} nodes by sbcast" in copy["notes"][-1]
        assert job.stage(shared.path / name)["reused"]
        assert job.unstage() == ""
    finally:
        job.end()


def tool(folder, name, script):
    """A command that comes before the one of Slurm."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)
    return str(folder)


def processes(job, node):
    """The broadcast's process on a node."""
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and PROCESS.encode() in (place / "cmdline").read_bytes():
                words = (place / "environ").read_bytes().split(b"\0")
                if {f"SLURMD_NODENAME={node}".encode(), f"SLURM_JOB_ID={job.number}".encode()} <= set(words):
                    yield int(place.name)
        except OSError:
            continue


def kill_one(job, source, draw, length_s):
    """Broadcast, and kill the process of one node at a random moment; whether there was one."""
    process, victim = job.start(source), draw.choice(job.names)
    until, killed = time.monotonic() + draw.uniform(0, length_s), False
    while not killed and process.poll() is None and time.monotonic() < until + 20:
        for pid in processes(job, victim):
            if time.monotonic() >= until:
                os.kill(pid, signal.SIGKILL)
                killed = True
        time.sleep(0.05)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    copies = job.staged_on(json.loads(out)["path"])
    assert len(set(copies)) == 1 and len(copies) == len(job.names), (copies, err)
    assert job.unstage() == ""
    return killed


def storm(job, source, kills, seed):
    draw, killed, rounds, began = random.Random(seed), 0, 0, time.monotonic()
    job.stage(source)
    length_s = time.monotonic() - began  # of one without a kill: a later moment would rarely meet a process
    assert job.unstage() == ""
    while killed < kills:
        killed, rounds = killed + kill_one(job, source, draw, length_s), rounds + 1
        assert rounds < 10 * kills, "the processes end before they can be killed"


def test_nodes_killed_at_any_moment_lose_nothing_and_leave_nothing(job, shared):
    storm(job, shared.path / "x.arrow", 10, 0)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_kills_lose_nothing_and_leave_nothing(job, shared):
    storm(job, shared.path / "x.arrow", 200, 1)


def test_a_broadcast_that_is_killed_leaves_nothing_and_may_be_started_again(job, shared):
    for pause_s in (1.0, 2.0, 3.0):
        process = job.start(shared.path / "x.tars")
        time.sleep(pause_s)
        process.kill()
        process.communicate()
        for node in job.names:
            wait_for(lambda node=node: not list(processes(job, node)), 60)
        if process.returncode < 0:
            assert job.unstage() == ""
    assert len(set(job.staged_on(job.stage(shared.path / "x.tars")["path"]))) == 1
    assert job.unstage() == ""


@pytest.mark.parametrize("name", ["root", "nobody"])
def test_two_broadcasts_at_once_do_not_meet(job, nodes, folder, name):
    """Of one user they share copies, which each job keeps; another user has a folder of its own."""
    other = Allocation(nodes, NODES, pwd.getpwnam(name).pw_uid)
    try:
        seen = subprocess.run([*other.python, "-c", "import pyarrow, smallfiles"], **other.how)
        if seen.returncode:
            pytest.skip(f"{name} has no Python with the packages here: {seen.stderr.strip()[-200:]}")
        running = [each.start(folder / "x.tars") for each in (job, other)]
        done = [process.communicate(timeout=200) for process in running]
        assert [process.returncode for process in running] == [0, 0], done
        paths = [json.loads(out)["path"] for out, _ in done]
        assert len({*job.staged_on(paths[0]), *other.staged_on(paths[1])}) == 1
        assert len(set(paths)) == (1 if name == "root" else 2)
        job.unstage()
        assert len(set(other.staged_on(paths[1]))) == 1  # which the other job still keeps
        assert other.unstage() == ""
    finally:
        other.end()


@pytest.fixture(scope="module")
def image(repository, need_tool, tmp_path_factory):
    """A small environment as one file."""
    need_tool("mksquashfs", "squashfs-tools")
    need_tool("squashfuse_ll", "squashfuse")
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "a venv"], check=True)
    packages = next((folder / "a venv").glob("lib/python*/site-packages"))
    (packages / "only_in_the_image.py").write_text("found = 42\n")
    command = [repository / "slurm/env/build.sh", folder / "an env.sqfs", folder / "a venv"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "an env.sqfs"


@pytest.mark.parametrize("way", ["mounted", "unpacked", "damaged on the way", "in a job of one's own"])
def test_an_environment_in_one_file_is_used_on_every_node_and_removed(nodes, image, way, tmp_path):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    if way == "unpacked":
        for name in ("squashfuse_ll", "squashfuse"):
            tool(bin_folder, name, "exit 1")
            (bin_folder / name).chmod(0o644)
    if way == "damaged on the way":
        real = subprocess.run(["which", "sbcast"], capture_output=True, text=True).stdout.strip()
        tool(bin_folder, "sbcast", f'head -c 5000 "$1" > "{tmp_path}/bad"; exec {real} "{tmp_path}/bad" "$2"')
    script = tmp_path / "job.sh"
    code = "import only_in_the_image, sys; print(only_in_the_image.found, sys.prefix)"
    script.write_text(f"""#!/bin/bash
        set -e
        source '{nodes.root}/slurm/lib.sh'
        PATH='{bin_folder}':$PATH
        use_environment '{image}'
        srun --overlap -N{NODES} -n{NODES} --ntasks-per-node=1 python -c '{code}'
    """)
    environment = nodes.environment
    if way != "in a job of one's own":
        environment = environment | {"COURSE_ROOT": str(nodes.root), "COURSE_SITE": "local"}
    command = ["sbatch", "--wait", f"-N{NODES}", f"-n{NODES}", "-o", tmp_path / "log", script]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0, log
    assert len(re.findall(r"^42 \S+/environment-\d+/venv$", log, re.M)) == NODES, log
    assert log.count("copies") == (NODES if way == "damaged on the way" else 0), log
    place = Path(environment["SLURM_CONF"]).parent
    left = nodes.on_nodes("find", place / "local", "/dev/shm", "-name", "environment-*")
    assert "".join(left.values()) == ""
