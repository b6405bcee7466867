"""A site: the settings of one cluster, in one small file, `slurm/sites/NAME.env`.

The file is shell, since the job sources it too; personal settings (account, paths) are in `NAME.my.env`,
which git ignores. It is read twice: before the file of the site, whose defaults depend on it, and after it,
to take precedence. The trap: two parsers of one syntax disagree, so bash itself evaluates the files.
Notebook 10 shows one.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from smallfiles.errors import UsageError

_READ_LIMIT_S = 20
_DUMP = """\
exec 3>&1 >&2
set -aeo pipefail
trap 'exit $(($? ? reading : 0))' EXIT
personal_file=$2
reading=4
if [[ -f $personal_file ]]; then source "$personal_file"; fi
reading=3
source "$1"
reading=4
if [[ -f $personal_file ]]; then source "$personal_file"; fi
env -0 -u reading -u personal_file >&3
"""
_KNOWN = (
    "SITE_TITLE", "SITE_VERIFIED", "SITE_ACCOUNT", "SITE_SETUP", "SITE_CPU_OPTIONS", "SITE_GPU_OPTIONS",
    "SITE_TRANSFER_OPTIONS", "COURSE_WORK", "COURSE_DATA", "COURSE_ARCHIVE", "COURSE_VENV",
)  # fmt: skip


@dataclass(frozen=True)
class Site:
    """A cluster.

    Args:
        name: Of its file.
        environment: Everything that bash had after reading the files: what `sbatch` is started with.
        personal: Where the personal values belong.
    """

    name: str
    environment: Mapping[str, str]
    personal: Path

    def __getitem__(self, key: str) -> str:
        return self.environment.get(key, "")

    @property
    def needs_account(self) -> bool:
        """Whether jobs without an account are refused here."""
        return self["SITE_ACCOUNT"] == "required"

    @property
    def work(self) -> Path | None:
        """Where jobs write, if configured."""
        return Path(self["COURSE_WORK"]) if self["COURSE_WORK"] else None

    def options(self, uses: str) -> list[str]:
        """Options of `sbatch` for jobs of this kind.

        Args:
            uses: cpu, gpu or transfer.

        Raises:
            UsageError: A quote in them is not closed.
        """
        name = f"SITE_{uses.upper()}_OPTIONS"
        try:
            return shlex.split(self[name])
        except ValueError as error:
            raise UsageError(
                f"{name} of site {self.name} is {self[name]!r}: {error}",
                expected="options as a shell would read them",
                next_step=f"Correct the quotes in the site's file or in {self.personal}",
            ) from None


def folder(root: Path) -> Path:
    """Where the site files of a checkout are."""
    return root / "slurm" / "sites"


def names(root: Path) -> list[str]:
    """All sites of a checkout, sorted; personal files are not sites."""
    found = (path.name.removesuffix(".env") for path in folder(root).glob("*.env"))
    return sorted(name for name in found if not name.endswith(".my"))


def load(root: Path, name: str, environment: Mapping[str, str] | None = None) -> Site:
    """The site of this name.

    Args:
        root: The checkout.
        name: Of its file.
        environment: Instead of that of this process.

    Raises:
        UsageError: There is no such site, bash cannot read its file, or the file has an unknown value.
    """
    path, personal = folder(root) / f"{name}.env", folder(root) / f"{name}.my.env"
    if name not in names(root):
        near = difflib.get_close_matches(name, names(root), n=2, cutoff=0.5)
        raise UsageError(
            f"there is no site {name!r} in {folder(root)}",
            expected=f"one of {', '.join(names(root))}",
            next_step=f"Did you mean {' or '.join(near)}" if near else f"Copy template.env to {path.name}",
        )
    before = dict(os.environ if environment is None else environment)
    after = _sourced(path, personal, before)
    changed = {key: text for key, text in after.items() if before.get(key) != text}
    _refuse_unknown(path, changed)
    return Site(name, after, personal)


def _sourced(path: Path, personal: Path, before: Mapping[str, str]) -> dict[str, str]:
    command = ["bash", "--noprofile", "--norc", "-c", _DUMP, "site", str(path), str(personal)]
    try:
        done = subprocess.run(
            command, env=dict(before), capture_output=True, timeout=_READ_LIMIT_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"bash took more than {_READ_LIMIT_S} s to read {path}",
            expected="a file of NAME=value lines",
            next_step="Move commands such as `module load` into SITE_SETUP, in quotes",
        ) from None
    except subprocess.CalledProcessError as error:
        which = personal if error.returncode == 4 else path
        words = error.stderr.decode(errors="replace").strip().splitlines() or ["it failed without a word"]
        raise UsageError(
            f"bash cannot read {which}: {words[-1]}",
            expected="a file of NAME=value lines",
            next_step="Correct that line; values with spaces need quotes",
        ) from None
    pairs = (pair.partition("=") for pair in done.stdout.decode(errors="surrogateescape").split("\0"))
    return {key: value for key, _, value in pairs if key}


def _refuse_unknown(path: Path, changed: Mapping[str, str]) -> None:
    """A misspelt name would be ignored without a word, by Slurm and by us."""
    for key in changed:
        if key.startswith(("SITE_", "COURSE_")) and key not in _KNOWN:
            near = difflib.get_close_matches(key, _KNOWN, n=1)
            raise UsageError(
                f"{path} sets {key}, which means nothing here",
                expected=f"one of {', '.join(_KNOWN)}, or a variable of Slurm",
                next_step=f"Did you mean {near[0]}" if near else "Remove it",
            )
