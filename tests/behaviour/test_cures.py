"""Each cure that a message of the sources names is tried in the situation that prints it."""

import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from smallfiles import sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic

sys.path.insert(0, str(Path(__file__).parent))
from cures import NOT_YET, REFUSALS, in_python
from next_steps import sentences

NAMES = {"Path": Path, "PackConfig": PackConfig, "pack": pack, "sources": sources, "synthetic": synthetic}


def _datasets(code):
    return pytest.importorskip("datasets") if "datasets." in code else None


def outcome(command, capsys):
    """Exit code and messages of a command line, or of code."""
    capsys.readouterr()
    if isinstance(command, in_python):
        try:
            return exec(textwrap.dedent(command.code), NAMES | {"datasets": _datasets(command.code)}), ""
        except SmallfilesError as error:
            return 1, str(error)
    code = main(shlex.split(command))
    said = capsys.readouterr().err
    assert "this is a bug" not in said and "Traceback" not in said, said
    return code, said


@pytest.mark.parametrize(
    ("row", "cure"),
    [
        pytest.param(row, cure, id=f"{row.name}, {n}")
        for row in REFUSALS
        for n, cure in enumerate(row.cures, 1)
    ],
)
def test_a_cure_works_as_the_message_prints_it(row, cure, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    row.make()
    code, said = outcome(row.command, capsys)
    assert code in (1, 2) and row.advice in said, said
    command = row.command
    if callable(cure):
        changed = cure()
        command = changed if isinstance(changed, str | in_python) else command
    else:
        advice = said[said.index(row.advice) :]
        found = re.search(cure, advice.strip().rstrip("."))
        assert found, f"the message does not name it: {advice}"
        words = found[0]
        for blank, value in row.fill.items():
            words = words.replace(blank, value)
        if row.then:
            subprocess.run(words, shell=True, check=True)
            command = row.then
        elif isinstance(command, in_python):
            command = in_python(command.code.replace("# cure", f"dataset = {words}"))
        else:
            command = f"{command} {words}"
    code, said = outcome(command, capsys)
    assert row.ends_with in said and bool(code) == bool(row.ends_with), f"{command}: {said}"


@pytest.mark.parametrize(("room", "most"), [("formats", 62), ("pack", 15), ("staging", 12)])
def test_few_next_steps_of_a_room_have_no_row(room, most):
    """These numbers may only become smaller."""
    found = {
        pattern: place
        for pattern, place in sentences(room).items()
        if not any(re.fullmatch(pattern, row.advice) for row in REFUSALS)
    }
    assert len(found) <= most, f"add rows to tests/behaviour/cures.py for some of {found}"


def test_every_next_step_of_the_sources_has_a_row():
    patterns = sentences("sources") | sentences("manifest") | sentences("folders.py")
    missing = {
        pattern: place
        for pattern, place in patterns.items()
        if not any(re.fullmatch(pattern, row.advice) for row in REFUSALS)
    }
    plain = {re.sub(r"\\(.)", r"\1", pattern): place for pattern, place in missing.items()}
    assert plain.keys() - NOT_YET == set(), "add a row to tests/behaviour/cures.py for each"
    assert NOT_YET - plain.keys() == set(), "remove what has a row now, or is gone, from NOT_YET"
