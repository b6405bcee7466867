"""Make the exact `sbatch` command, show it, run it.

`plan` decides everything and changes nothing, so that `--dry-run` and a test see what would happen. Slurm
reads `SBATCH_ACCOUNT` and its like from the environment; the options of the site's kind of node stand on the
command line. The trap: `sbatch` takes options behind the script for the script's own arguments. Notebook 10
submits with it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from helpers.jobs import script
from helpers.jobs.checks import problems
from helpers.jobs.script import Job
from helpers.jobs.site import Site, load
from smallfiles.errors import SubmitError

_SHOWN = ("SLURM_CONF", "SBATCH_", "COURSE_")
_WHOSE = ("--account", "--partition", "--qos", "--reservation")
_SUBMIT_LIMIT_S = 120


@dataclass(frozen=True)
class Submission:
    """One job, ready to be sent.

    Args:
        job: The script.
        argv: The command line, from `sbatch` on.
        environment: What it is started with.
        work: Where it runs, with `logs/` in it.
        changed: The variables that the command needs beyond those of the shell.
        without: Variables of a job in which one is, that must not be taken for those of the new one.
    """

    job: Job
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    work: Path
    changed: Mapping[str, str]
    without: tuple[str, ...] = ()

    def text(self) -> str:
        """The command as one would type it."""
        variables = [f"{key}={shlex.quote(value)}" for key, value in sorted(self.changed.items())]
        if self.without:
            variables = ["env", *(f"-u {name}" for name in self.without), *variables]
        return " ".join([*variables, shlex.join(self.argv)])

    def log(self, number: str) -> Path:
        """Where Slurm writes what the job says; a `*` stands for the tasks of an array.

        Args:
            number: What `send` returned for it.
        """
        options = (*self.job.directives, *self.argv[: self.argv.index(str(self.job.path))])
        given = dict(option.partition("=")[::2] for option in options)
        name = given.get("--output", "logs/%x-%j.out").replace("%x", given.get("--job-name", self.job.name))
        for sign in ("%j", "%A"):
            name = name.replace(sign, number)
        return self.work / name.replace("%a", "*")

    def queue(self) -> str:
        """The command that shows it waiting and running, in the shell of the person who submitted."""
        conf = self.changed.get("SLURM_CONF")
        return f"SLURM_CONF={shlex.quote(conf)} squeue --me" if conf else "squeue --me"


def plan(
    root: Path,
    site_name: str,
    job_name: str,
    words: Sequence[str] = (),
    options: Sequence[str] = (),
    made: Collection[Path] = (),
) -> list[Submission]:
    """The job and those that follow it, checked, not sent.

    Args:
        root: The checkout.
        site_name: A file of `slurm/sites`.
        job_name: A file of `slurm/jobs`.
        words: Arguments for the job: first the positional ones, then what its command takes.
        options: More options for `sbatch`, such as `--time=02:00:00`.
        made: What jobs that run before it will have written.

    Raises:
        UsageError: No such site or job.
        SubmitError: Something that the job needs is missing; the sentence names all of it.
    """
    site, job = load(root, site_name), script.find(root, job_name)
    given, rest = _arguments(site, job, words)
    found = list(problems(root, site, job, given, rest, options, made))
    if found:
        raise SubmitError(
            f"{job.name} cannot run on {site.name}: " + "; and ".join(found),
            expected="a job that has what it needs",
            next_step="Nothing was submitted; correct this and submit again",
        )
    chain = [_submission(root, site, job, [*given.values(), *rest], options)]
    while job.then:
        job = script.find(root, job.then)
        given, rest = _arguments(site, job, words)
        whose = [option for option in options if option.partition("=")[0] in _WHOSE]
        chain.append(_submission(root, site, job, [*given.values(), *rest], whose))
    return chain


def outputs(root: Path, site_name: str, job_name: str) -> list[Path]:
    """What a job writes if it is given no arguments; there is nothing to submit where it exists."""
    site, job = load(root, site_name), script.find(root, job_name)
    given, _ = _arguments(site, job, ())
    return [Path(given[argument.name]) for argument in job.arguments if argument.is_written]


def _arguments(site: Site, job: Job, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The value of each positional argument, absolute, and the words that are left."""
    positional = list(words)
    given = {}
    for argument in job.arguments:
        if positional and not positional[0].startswith("-"):
            word = positional.pop(0)
            value = word if argument.is_word else str(Path(word).expanduser().absolute())
        else:
            value = Template(argument.default).safe_substitute(site.environment)
        given[argument.name] = value
    return given, positional


def _submission(root: Path, site: Site, job: Job, words: Sequence[str], options: Sequence[str]) -> Submission:
    work = site.work
    assert work is not None  # problems() has refused that
    venv = str(Path(site["COURSE_VENV"] or root / ".venv").absolute())  # the job works elsewhere
    course = {
        "COURSE_ROOT": str(root),
        "COURSE_SITE": site.name,
        "COURSE_WORK": str(work),
        "COURSE_VENV": venv,
    }
    environment = {**site.environment, **course}
    without = tuple(sorted(_of_the_job_around(environment)))
    for name in without:
        del environment[name]
    argv = [
        "sbatch",
        "--parsable",
        "--export=ALL",  # or a site's SBATCH_EXPORT would keep COURSE_ROOT and its like from the job
        f"--chdir={work}",
        *site.options(job.uses),
        *options,
        str(job.path),
        *words,
    ]
    before = os.environ
    changed = {
        key: value
        for key, value in environment.items()
        if key.startswith(_SHOWN) and before.get(key) != value
    }
    return Submission(job, tuple(argv), environment, work, changed, without)


def _of_the_job_around(environment: Mapping[str, str]) -> Iterator[str]:
    """Inside a job, a notebook's say: `srun` of the new one would obey the numbers of the old one."""
    if "SLURM_JOB_ID" in environment:
        yield from (name for name in environment if name.startswith("SLURM_") and name != "SLURM_CONF")


def send(chain: Sequence[Submission]) -> list[str]:
    """Submit jobs, each after the end of the one before.

    Args:
        chain: From `plan`.

    Returns:
        The job numbers.

    Raises:
        SubmitError: `sbatch` refused; with its own words.
    """
    numbers: list[str] = []
    for submission in chain:
        (submission.work / "logs").mkdir(parents=True, exist_ok=True)  # Slurm drops the output without it
        argv = list(submission.argv)
        if numbers:
            argv[1:1] = [f"--dependency=afterok:{numbers[-1]}", "--kill-on-invalid-dep=yes"]
        numbers.append(_sent(argv, submission, numbers))
    return numbers


def _sent(argv: Sequence[str], submission: Submission, before: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            env=dict(submission.environment),
            cwd=submission.work,
            capture_output=True,
            text=True,
            timeout=_SUBMIT_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _refused(submission.job, str(error), before) from None
    if done.returncode:
        raise _refused(submission.job, done.stderr.strip(), before)
    return done.stdout.strip().partition(";")[0]


def _refused(job: Job, words: str, before: Sequence[str]) -> SubmitError:
    already = f"; already submitted: {', '.join(before)} (scancel them)" if before else ""
    return SubmitError(
        f"sbatch refused {job.name}: {words.replace('sbatch: error: ', '')}{already}",
        expected="a job number",
        next_step="Compare the site's options with what `sinfo` and your account allow",
    )
