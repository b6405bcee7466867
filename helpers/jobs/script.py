"""The description of a job script in its first lines.

    # Pack a folder of images into one Arrow file.
    # Submit: slurm/submit SITE 03_pack_arrow [-- DATA OUT [options of pack]]
    # Args: DATA=$COURSE_DATA OUT=$COURSE_WORK/train.arrow
    # Uses: cpu
    # Then: 05_merge_tar

`Submit` has what may be left out in brackets. `Args` gives each positional argument and its default; a name
that begins with OUT is written and must not exist, one that begins with DATA is read and must exist; one
with a number or URL as default is not a path. `Uses` chooses the options of the site (cpu, gpu, transfer).
`Then` is submitted after it, if it succeeds. The trap: Slurm silently ignores `#SBATCH` lines after the
first command; `faults` names them. Notebook 10 reads such a script.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import UsageError

USES = ("cpu", "gpu", "transfer")
_FIELD = re.compile(r"# (Submit|Args|Uses|Then): (.*)")
_ARGUMENT = re.compile(r"([A-Z][A-Z_]*)=(\S+)")


@dataclass(frozen=True)
class Argument:
    """A positional argument of a job.

    Args:
        name: Such as DATA or OUT.
        default: With variables of the environment, such as `$COURSE_WORK/train.arrow`.
    """

    name: str
    default: str

    @property
    def is_read(self) -> bool:
        """Whether it must exist before the job starts."""
        return self.name.startswith("DATA")

    @property
    def is_word(self) -> bool:
        """Whether it is a number or a URL, and no path."""
        return self.default.isdigit() or "://" in self.default

    @property
    def is_written(self) -> bool:
        """Whether the job makes it, so that it must not exist."""
        return self.name.startswith("OUT")


@dataclass(frozen=True)
class Job:
    """A job script.

    Args:
        path: The script.
        what: One line.
        arguments: Its positional arguments.
        uses: cpu, gpu or transfer.
        then: The job that follows it, or an empty string.
        needs: Words that must follow `--`, such as the program to run, or an empty string.
        directives: The words behind `#SBATCH`.
    """

    path: Path
    what: str
    arguments: tuple[Argument, ...] = ()
    uses: str = "cpu"
    then: str = ""
    needs: str = ""
    directives: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name without the suffix."""
        return self.path.stem


def folder(root: Path) -> Path:
    """Where the job scripts of a checkout are."""
    return root / "slurm" / "jobs"


def names(root: Path) -> list[str]:
    """All job scripts of a checkout, sorted."""
    return sorted(path.stem for path in folder(root).glob("*.sbatch"))


def find(root: Path, name: str) -> Job:
    """The job of this name.

    Args:
        root: The checkout.
        name: With or without `.sbatch`, or the path of a script, of this checkout or your own.

    Raises:
        UsageError: There is no such job; the sentence names the nearest ones.
    """
    own = Path(name).expanduser()
    if own.suffix == ".sbatch" and own.is_file():
        return read(own.absolute())
    stem = own.name.removesuffix(".sbatch")
    path = folder(root) / f"{stem}.sbatch"
    if path.is_file():
        return read(path)
    near = difflib.get_close_matches(stem, names(root), n=3, cutoff=0.4)
    raise UsageError(
        f"there is no job {stem!r} in {folder(root)}",
        expected=f"one of {', '.join(names(root))}",
        next_step=f"Did you mean {' or '.join(near)}" if near else "Choose one of these",
    )


def read(path: Path) -> Job:
    """The description of a script.

    Args:
        path: The script.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    matches = filter(None, map(_FIELD.match, lines))
    fields = {match[1]: match[2] for match in matches}
    what = lines[1].removeprefix("# ").strip() if len(lines) > 1 else ""
    arguments = tuple(Argument(*pair) for pair in _ARGUMENT.findall(fields.get("Args", "")))
    return Job(
        path=path,
        what=what,
        arguments=arguments,
        uses=fields.get("Uses", "cpu").strip(),
        then=fields.get("Then", "").strip(),
        needs="" if arguments else fields.get("Submit", "").partition(" -- ")[2].partition(" [")[0],
        directives=tuple(_directives(lines)),
    )


def _directives(lines: list[str]) -> Iterator[str]:
    """The options before the first command, without the comments after them."""
    for line in lines[1:]:
        if line.startswith("#SBATCH "):
            yield from line.removeprefix("#SBATCH ").partition(" #")[0].split()
        elif line.strip() and not line.startswith("#"):
            return


def faults(path: Path) -> list[str]:
    """What Slurm or a reader would stumble over in a script, one sentence each.

    Args:
        path: The script.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    job, found = read(path), []
    commands = (n for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#"))
    first = next(commands, len(lines) + 1)
    late = [n for n, line in enumerate(lines, 1) if line.startswith("#SBATCH") and n > first]
    if late:
        found.append(f"line {late[0]}: #SBATCH behind the first command (line {first}) is not read")
    if job.uses not in USES:
        found.append(f"Uses: {job.uses}, expected one of {', '.join(USES)}")
    fixed = ("--account", "--partition", "--qos", "--reservation", "-A", "-p", "-q")
    found += [f"{word}: belongs to the site file" for word in job.directives if word.split("=")[0] in fixed]
    if not any(line.startswith("set -eo pipefail") for line in lines):
        found.append("without `set -eo pipefail` the job goes on after a command that failed")
    return found
