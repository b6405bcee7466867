"""Submit a job of the notebook, or give the reason why that is not possible.

The trap: a notebook that submits unasked uses up node hours. So it submits to the local cluster if that is
running, and to another site only if `COURSE_SITE` names it. Notebook 10 submits.
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
from helpers.kernel import CHECKOUT as ROOT
from smallfiles.digests import SIDECAR_SUFFIX
from smallfiles.errors import SmallfilesError
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import Source

WAITED_S = 180.0
_POLL_S, _ASK_LIMIT_S = 0.5, 30
_GOING_ON = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED")


def site_here(environment: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The site to submit to, or an empty name and the reason.

    Args:
        environment: Instead of that of this process.
    """
    variables = os.environ if environment is None else environment
    if variables.get("COURSE_SITE"):
        return variables["COURSE_SITE"], ""
    if shutil.which("sbatch", path=variables.get("PATH")) is None:
        return "", "there is no `sbatch` on this machine"
    if Path(jobs.load(ROOT, "local", variables)["SLURM_CONF"]).is_file():
        return "local", ""
    return "", "Slurm is installed, but the local cluster is not up and COURSE_SITE names no site"


@dataclass(frozen=True)
class Submitted:
    """A job that was sent, or the reason why none was.

    Args:
        command: What was typed, or would be.
        summary: What came of it, in a sentence.
        log: What the job printed.
    """

    command: str
    summary: str
    log: str = ""


def submit(job: str, packed: Path, *words: str) -> Submitted:
    """Submit a job with a packed file and wait for it, if there is a site.

    Args:
        job: The name of one of `slurm/jobs`, or the path of a script.
        packed: The file; a copy goes where the site's jobs work.
        *words: A folder for the output of the job, and further words for the job.
    """
    site, why_not = site_here()
    if not site:
        command = _command("SITE", job, [packed.name, *words])
        return Submitted(command, f"Nothing was submitted here: {why_not}.")
    try:
        work = jobs.load(ROOT, site).work or packed.parent
        with _folder_there(work) as folder:
            data = folder / packed.name  # the scratch of a notebook may be on this machine alone
            for suffix in ("", SIDECAR_SUFFIX):
                shutil.copyfile(packed.with_name(packed.name + suffix), data.with_name(data.name + suffix))
            given = [str(data), str(folder / words[0]), *words[1:]]
            chain = jobs.plan(ROOT, site, job, given)
            return _waited(_command(site, job, given), chain[0], jobs.send(chain)[0])
    except (SmallfilesError, OSError) as error:
        return Submitted(_command(site, job, words), f"Nothing was submitted here: {str(error).rstrip('.')}.")


def training_on_cluster(job: Path, source: Source) -> Submitted:
    """Submit a training script and wait for it, if there is a site.

    Args:
        job: Takes a packed file and a folder for checkpoints.
        source: To pack and train on.
    """
    with tempfile.TemporaryDirectory(prefix="smallfiles-") as folder:
        packed = pack(source, Path(folder) / "train.arrow", PackConfig(verify="none")).path
        return submit(str(job), packed, "checkpoints", "--epochs", "2", "--size", "32")


def _command(site: str, job: str, words: Sequence[str]) -> str:
    """The command to type in the checkout."""
    path = Path(job)
    short = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else job
    return f"slurm/submit {site} {shlex.join([short, '--', *words])}"


@contextlib.contextmanager
def _folder_there(work: Path) -> Iterator[Path]:
    """A folder where jobs work, for the time of one; after too long a wait the job is cancelled first."""
    folder = work / f"notebook-10-{os.getpid()}-{time.time_ns() // 1_000_000}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _waited(command: str, submission: Submission, number: str) -> Submitted:
    end, state = time.monotonic() + WAITED_S, "PENDING"
    while state in _GOING_ON and time.monotonic() < end:
        time.sleep(_POLL_S)
        state = _state(number, submission.environment)
    if state in _GOING_ON:
        _asked(submission.environment, "scancel", number)
    log = submission.log(number)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Submitted(command, outcome(number, state), text)


def outcome(number: str, state: str) -> str:
    """What the last state of a job means.

    Args:
        number: Of the job.
        state: In Slurm's word.
    """
    if state in _GOING_ON:
        return f"Job {number} was still {state} after {WAITED_S:.0f} s, so it was cancelled."
    if state != "COMPLETED":
        return f"Job {number} ended as {state}; its log shows why."
    return f"Job {number} ended well."


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
