"""A real Slurm with some nodes on this machine, and jobs really submitted to it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 180
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")


@dataclass
class Cluster:
    """The running cluster and a place to work."""

    root: Path
    environment: dict[str, str]
    work: Path

    def submit(self, job, *words, options=(), work=None, check=True):
        """Submit through the front door; the JSON that it prints, or the finished process."""
        command = [str(self.root / "slurm" / "submit"), "local", job, "--json"]
        command += [f"--sbatch={option}" for option in options]
        command += ["--", *map(str, words)] if words else []
        how = {"env": self.at(work), "cwd": work or self.work, "timeout": 60}
        done = subprocess.run(command, capture_output=True, text=True, **how)
        if not check:
            return done
        assert done.returncode == 0, done.stderr
        return [each["number"] for each in json.loads(done.stdout)["jobs"]]

    def at(self, work):
        """The environment of a shell that works elsewhere."""
        return {**self.environment, **({"COURSE_WORK": str(work)} if work else {})}

    def run(self, *command, check=True):
        """A command of Slurm, its standard output."""
        for _ in range(3):
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
            if done.returncode != -signal.SIGPIPE:  # the controller closed the connection: it was busy
                break
            time.sleep(0.5)
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def state(self, number):
        """State and exit code of a job, for example ("COMPLETED", "0:0")."""
        text = self.run("scontrol", "show", "job", number, "--oneliner")
        states = [word.partition("=")[2] for word in text.split() if word.startswith("JobState=")]
        codes = [word.partition("=")[2] for word in text.split() if word.startswith("ExitCode=")]
        bad = [pair for pair in zip(states, codes, strict=True) if pair[0] != "COMPLETED"]
        return bad[0] if bad else (states[0], codes[0])

    def wait(self, number, limit_s=LIMIT_S):
        """Wait for the end of a job (all tasks of an array); its log is shown if it failed."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            state, _ = self.state(number)
            if state in ENDED:  # there are more states on the way, such as SIGNALING
                return state
            time.sleep(0.2)
        self.run("scancel", number)
        raise AssertionError(f"job {number} did not end in {limit_s} s: {self.log(number)}")

    def start_soon(self, number):
        """Spare a job that was queued again most of the half minute for which Slurm holds it (`cred_expire`).

        Not all of it: a credential of the second in which the last run's was revoked is refused.
        """
        end = time.monotonic() + LIMIT_S
        while self.state(number)[0] != "PENDING":
            assert time.monotonic() < end, f"job {number} was not queued again: {self.log(number)}"
            time.sleep(0.2)
        self.run("scontrol", "update", f"JobId={number}", "StartTime=now+2")

    def log(self, number, work=None):
        """What a job printed."""
        logs = sorted(((work or self.work) / "logs").glob(f"*-{number}*.out"))
        return "\n".join(path.read_text() for path in logs)

    def done(self, job, *words, **how):
        """Submit, wait, expect that all went well, and return the log of the last one."""
        numbers = self.submit(job, *words, **how)
        for number in numbers:
            state = self.wait(number)
            assert state == "COMPLETED", f"{job} {number} {state}:\n{self.log(number, how.get('work'))}"
        return self.log(numbers[-1], how.get("work"))

    def on_nodes(self, *words):
        """Run a command in each node's own view of its disk and memory; what it printed, by node."""
        found = {}
        for folder in sorted(Path(self.environment["SLURM_CONF"]).parent.glob("n[0-9]*")):
            enter = ["nsenter", "--mount", "--target", (folder / "slurmd.pid").read_text().strip()]
            command = [*(enter if os.geteuid() == 0 else ()), *map(str, words)]
            found[folder.name] = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        return found


@contextlib.contextmanager
def started(repository, work, nodes=2, cpus=4):
    """A cluster in a folder of its own."""
    place = Path(tempfile.mkdtemp(prefix="sfbm"))  # short: it holds sockets
    ours = ("SLURM", "SBATCH", "COURSE")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment = {
        **clean,
        "SMALLFILES_CLUSTER": str(place / "cluster"),
        "SLURM_CONF": str(place / "cluster" / "slurm.conf"),
        "COURSE_WORK": str(work),
        "COURSE_VENV": os.environ.get("VIRTUAL_ENV") or str(Path(os.sys.executable).parents[1]),
    }
    place.chmod(0o755)
    how = {"env": environment, "timeout": 120}
    command = [repository / "slurm/local/up", str(nodes), str(cpus)]
    up = subprocess.run(command, capture_output=True, text=True, **how)
    assert up.returncode == 0, up.stderr
    try:
        yield Cluster(repository, environment, work)
    finally:
        subprocess.run([repository / "slurm/local/down"], check=True, **how)
        shutil.rmtree(place)
