"""The same reading as a real job, where Slurm is; where it is not, why not.

The trap: a notebook that submits without being asked takes somebody's node hours. So it submits to the local
cluster when that is up, and to another site only when `COURSE_SITE` names it. Notebook 10 submits.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import jobs
from helpers.jobs import Submission
from smallfiles.errors import SmallfilesError
from smallfiles.measure import ranks
from smallfiles.pack import PackConfig, pack
from smallfiles.progress import progress
from smallfiles.sources import Source

ROOT = Path(__file__).resolve().parents[3]
JOB = "10_read"
WAITED_S = 180.0
_POLL_S = 0.5
_ASK_LIMIT_S = 30
_GOING_ON = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED")


def site_here(environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The site to submit to, or an empty name and the reason.

    Args:
        environment: Instead of that of this process.
    """
    told = os.environ if environment is None else environment
    if told.get("COURSE_SITE"):
        return told["COURSE_SITE"], ""
    if shutil.which("sbatch", path=told.get("PATH")) is None:
        return "", "there is no `sbatch` on this machine"
    if Path(jobs.load(ROOT, "local", told)["SLURM_CONF"]).is_file():
        return "local", ""
    return "", "Slurm is installed, but neither is the local cluster up nor does COURSE_SITE name a site"


@dataclass(frozen=True)
class Submitted:
    """A job that was sent, or the reason why none was.

    Args:
        command: What was typed, or would be.
        why_not: Why nothing was submitted; empty otherwise.
        number: Of the job.
        state: Its last state.
        queue: What `squeue` said while it was there.
        log: What it printed.
        count: What its ranks read, if it did read; empty otherwise.
    """

    command: str
    why_not: str = ""
    number: str = ""
    state: str = ""
    queue: str = ""
    log: str = ""
    count: str = ""

    @property
    def summary(self) -> str:
        """What came out, in a sentence."""
        if self.why_not:
            return f"Nothing was submitted here: {self.why_not}."
        if self.state in _GOING_ON:
            return f"Job {self.number} was still {self.state} after {WAITED_S:.0f} s, so it was cancelled."
        if self.state != "COMPLETED":
            return f"Job {self.number} ended as {self.state}; its log says why."
        return f"Job {self.number} ended well{f': {self.count}' if self.count else ''}."


def read_on_cluster(packed: Path) -> Submitted:
    """Submit `10_read` with a packed file and wait for it, if there is a site.

    Args:
        packed: The file; a copy goes where the site's jobs work.
    """
    return _somewhere(JOB, packed, ("seen",))


def training_on_cluster(script: Path, source: Source) -> Submitted:
    """Submit a training script and wait for it, if there is a site.

    Args:
        script: Takes a packed file and a folder for checkpoints.
        source: To pack and train on.
    """
    with tempfile.TemporaryDirectory(prefix="smallfiles-") as folder:
        packed = pack(source, Path(folder) / "train.arrow", PackConfig(verify="none")).path
        return _somewhere(str(script), packed, ("checkpoints", "--epochs", "2", "--size", "32"))


def _somewhere(job: str, packed: Path, words: Sequence[str]) -> Submitted:
    site, why_not = site_here()
    if not site:
        return Submitted(_command("SITE", job, [packed.name, *words]), why_not)
    try:
        work = jobs.load(ROOT, site).work or packed.parent
        with _folder_there(work) as folder:
            data = folder / packed.name
            shutil.copyfile(packed, data)  # the scratch of a notebook may be on this machine alone
            given = [str(data), str(folder / words[0]), *words[1:]]
            chain = jobs.plan(ROOT, site, job, given)
            return _waited(_command(site, job, given), chain[0], jobs.send(chain)[0], folder / words[0])
    except (SmallfilesError, OSError) as error:
        return Submitted(_command(site, job, words), str(error).rstrip("."))


def _command(site: str, job: str, words: Sequence[str]) -> str:
    """What one would type in the checkout."""
    path = Path(job)
    short = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else job
    return f"slurm/submit {site} {shlex.join([short, '--', *words])}"


@contextlib.contextmanager
def _folder_there(work: Path) -> Iterator[Path]:
    """A folder where jobs work, for the time of one; whoever waits too long cancels the job first."""
    folder = work / f"notebook-10-{os.getpid()}-{time.time_ns() // 1_000_000}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _waited(command: str, submission: Submission, number: str, out: Path) -> Submitted:
    environment = submission.environment
    queue = _asked(environment, "squeue", "--jobs", number)
    state = wait_for(number, environment)
    if state in _GOING_ON:
        _asked(environment, "scancel", number)
    log = submission.work / "logs" / f"{submission.job.name}-{number}.out"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    read = state == "COMPLETED" and submission.job.name == JOB
    return Submitted(command, "", number, state, queue, text, ranks.count(out).sentence() if read else "")


def wait_for(number: str, environment: Mapping[str, str], limit_s: float = WAITED_S) -> str:
    """Wait for the end of a job, with a bar; its last state.

    Args:
        number: Of the job.
        environment: What Slurm's commands are started with.
        limit_s: Seconds to wait at most.
    """
    end, state, stages = time.monotonic() + limit_s, "PENDING", 0
    with progress(2, f"job {number}", unit="stages") as shown:  # it has begun, it has ended
        while time.monotonic() < end:
            state = _state(number, environment)
            reached = 2 if state not in _GOING_ON else int(state not in ("PENDING", "CONFIGURING"))
            shown.advance(max(0, reached - stages))
            stages = max(stages, reached)
            if reached == 2:
                break
            time.sleep(_POLL_S)
    return state


def _state(number: str, environment: Mapping[str, str]) -> str:
    text = _asked(environment, "scontrol", "show", "job", number, "--oneliner")
    states = [word.partition("=")[2] for word in text.split() if word.startswith("JobState=")]
    return states[0] if states else "UNKNOWN"


def _asked(environment: Mapping[str, str], *command: str) -> str:
    """What a command of Slurm prints; nothing if it fails."""
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_ASK_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.rstrip()
