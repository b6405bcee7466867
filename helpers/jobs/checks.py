"""Everything that would make a job fail after an hour in the queue, looked at before it is sent.

The trap: the first missing thing hides the next. So all of them are reported together.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from helpers.jobs.script import Argument, Job, find, names
from helpers.jobs.site import Site

_ROOM = 1.05  # a packed file is about as large as what it packs


def problems(
    root: Path,
    site: Site,
    job: Job,
    given: Mapping[str, str],
    words: Sequence[str] = (),
    options: Sequence[str] = (),
    made: Collection[Path] = (),
) -> Iterator[str]:
    """Each reason not to submit, as a sentence that ends in what to do.

    Args:
        root: The checkout.
        site: Where it is to run.
        job: What is to run.
        given: The value of each positional argument.
        words: The other arguments of the job.
        options: What `sbatch` is given besides the site's.
        made: What jobs that run before it will have written.
    """
    if shutil.which("sbatch", path=site["PATH"]) is None:
        yield (
            "there is no sbatch here; submit on a login node of the cluster, or start a Slurm on this "
            "machine: slurm/local/up (apt-get install slurm-wlm munge)"
        )
    if site["SLURM_CONF"] and not Path(site["SLURM_CONF"]).is_file():
        hint = "; start the local cluster: slurm/local/up" if site.name == "local" else ""
        yield f"SLURM_CONF={site['SLURM_CONF']} does not exist{hint}"
    named = [word for word in (*site.options(job.uses), *options) if word.startswith(("--account", "-A"))]
    if site.needs_account and not site["SBATCH_ACCOUNT"] and not named:
        yield f"this site wants an account; write SBATCH_ACCOUNT=… into {site.personal}"
    yield from _environment(root, site)
    yield from _work(site)
    if job.needs and not words:
        yield f"it was given nothing to run; name it: slurm/submit {site.name} {job.name} -- {job.needs}"
    for argument in job.arguments:
        value = given[argument.name]
        if not value or "$" in value:
            yield (
                f"{argument.name} is not known ({argument.default}); give it behind --, "
                f"or set it in {site.personal}"
            )
        elif argument.is_read and Path(value) in made:
            continue
        elif argument.is_read and not Path(value).exists():
            yield f"{argument.name}: {value} does not exist; {_how_to_get(root, site, argument)}"
        elif argument.is_written:
            yield from _output(argument.name, Path(value))
        elif not argument.is_read and not argument.is_word and not _can_be_written(Path(value)):
            yield f"{argument.name}: {value} cannot be written; name another place behind --"
    yield from _space(job, given)


def _environment(root: Path, site: Site) -> Iterator[str]:
    """A job without a Python that has the packages fails at its first line."""
    venv = Path(site["COURSE_VENV"] or root / ".venv")
    if not site["SITE_SETUP"] and not (venv / "bin" / "python").exists():
        yield (
            f"there is no environment in {venv}; run make setup, "
            f"or say COURSE_VENV or SITE_SETUP in {site.personal}"
        )


def _how_to_get(root: Path, site: Site, argument: Argument) -> str:
    """Which job makes it, if one does."""
    for name in names(root):
        made = [other.default for other in find(root, name).arguments if other.is_written]
        if argument.default in made:
            return f"make it with: slurm/submit {site.name} {name}, or name yours behind --"
    return "name yours behind --"


def _work(site: Site) -> Iterator[str]:
    if site.work is None:
        yield f"COURSE_WORK is not set; write a folder on your scratch file system into {site.personal}"
    elif not site.work.is_absolute():
        yield f"COURSE_WORK={site.work} is no whole path; begin it with / in {site.personal}"
    elif not _can_be_written(site.work):
        yield f"COURSE_WORK={site.work} cannot be written; choose a folder of yours in {site.personal}"


def _output(name: str, path: Path) -> Iterator[str]:
    if path.exists():
        yield f"{name}: {path} exists already; remove it, or name another one behind --"
    elif not _can_be_written(path.parent):
        yield f"{name}: {path.parent} cannot be written; name another place behind --"


def _can_be_written(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, lets us write."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _space(job: Job, given: Mapping[str, str]) -> Iterator[str]:
    """Only where the input is packed: walking a tree is what the job does, not the login node."""
    inputs = [Path(given[a.name]) for a in job.arguments if a.is_read]
    outputs = [Path(given[a.name]) for a in job.arguments if not a.is_read and not a.is_word]
    if not inputs or not outputs or job.uses == "gpu":  # which writes checkpoints
        return
    size = _packed_bytes(inputs[0])
    place = outputs[0].parent
    while not place.exists():
        place = place.parent
    needed, free = int(size * _ROOM), shutil.disk_usage(place).free
    if free < needed:
        yield (
            f"{outputs[0]} needs about {needed:,} bytes and {place} has {free:,} free; "
            "free some, or name another place"
        )


def _packed_bytes(path: Path) -> int:
    """Size of a file or of the shards in a folder; 0 of what is not packed."""
    if path.is_file():
        return 0 if path.suffix == ".json" else path.stat().st_size
    return sum(shard.stat().st_size for shard in _tars(path))


def _tars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar")) if folder.is_dir() else []
