"""My numbers: what a participant measured, noted by the notebooks, read by 11 and 14.

    from helpers import worksheet

    worksheet.note("01", latency_ms=0.03, opens_per_s=21_000)
    worksheet.page()

The trap: a number without its unit and its machine is worthless a week later, so each has a meaning and a
unit here, and is noted with the day and the CPUs. Beside it is the number that the same notebook noted on a
recorded machine (`results/worksheet/my_numbers.json`).
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import cache, show
from helpers.kernel import CHECKOUT
from smallfiles.errors import UsageError

Value = float | str


@dataclass(frozen=True)
class Number:
    """One line of the worksheet.

    Args:
        meaning: What it is.
        unit: Of the value; empty for a count or a word.
        is_count: Whether it is the same on a busy machine.
    """

    meaning: str
    unit: str = ""
    is_count: bool = False


NUMBERS: dict[str, dict[str, Number]] = {
    "01": {
        "latency_ms": Number("one small file opened and read, one at a time", "ms"),
        "opens_per_s": Number("small files opened and read, many in flight", "files/s"),
    },
    "02": {"inodes": Number("files and folders of the training set", is_count=True)},
    "03": {
        "rows_per_batch": Number("rows per record batch up to which the slowest reader keeps half its speed")
    },
    "04": {"layout": Number("fastest HDF5 layout that needs no setting in the reader")},
    "05": {"shard_images": Number("images per shard with which opens of 4 ms need half of the time")},
    "07": {"break_even_epochs": Number("epochs after which staging has paid off")},
    "08": {
        "images_per_s": Number(
            "images decoded, cropped and changed in colour, by the best number of workers", "images/s"
        ),
        "cpu_ms": Number("processor time to decode and crop one image, and change its colours", "ms"),
    },
    "09": {"in_flight": Number("requests of 16 MiB in flight that fill the network", is_count=True)},
    "10": {"ranks_fed": Number("ranks of 333 images/s that one node could feed at most from unpacked files")},
}


_keeps_times = True


def keep_times(keep: bool) -> None:
    """Say whether `note` keeps measured times; `start` says no on a busy machine."""
    global _keeps_times
    _keeps_times = keep


def note(notebook: str, **values: Value) -> None:
    """Note what a notebook measured, and show it in one line; a later run replaces it.

    On a busy machine only counts are noted (see `keep_times`), also if it became busy after `start`.

    Args:
        notebook: Its number, such as "01".
        values: By their names in `NUMBERS`.

    Raises:
        UsageError: A name is unknown, or a value is neither a number nor a word.
        ResourceError: The worksheet cannot be written.
    """
    from helpers.setup import machine_is_busy
    from smallfiles import atomic, machine

    noted = {name: _checked(notebook, name, value) for name, value in values.items()}
    timed = [name for name in noted if not NUMBERS[notebook][name].is_count]
    if timed and not (_keeps_times and not machine_is_busy()):
        for name in timed:
            text = f"{NUMBERS[notebook][name].meaning}: {_text(notebook, name, noted.pop(name))}"
            show.say(f"Not kept in my numbers, because this machine is busy: {text}.")
    if not noted:
        return
    path = _path()
    with cache.writable(path.parent):
        sheet = _read(path)
        stamp = {"day": time.strftime("%Y-%m-%d"), "cpus": machine.usable_cpus()}
        known = sheet.setdefault(notebook, {})
        known.update({name: {"value": value, **stamp} for name, value in noted.items()})
        atomic.write_json(path, sheet)
    lines = (f"{NUMBERS[notebook][name].meaning}: **{_text(notebook, name, noted[name])}**" for name in noted)
    show.say(f"My numbers: {'; '.join(lines)}.")


def value(notebook: str, name: str, otherwise: Value | None = None) -> Value:
    """One noted number.

    Args:
        notebook: Number of the notebook that measures it.
        name: Its name in `NUMBERS`.
        otherwise: What to return if it is missing.

    Raises:
        UsageError: The name is unknown, or nothing was noted and nothing given instead.
    """
    _number(notebook, name)
    found = _read(_path()).get(notebook, {}).get(name)
    if found is not None:
        return found["value"]  # type: ignore[no-any-return]
    if otherwise is None:
        raise UsageError(
            f"your numbers have no {name}",
            expected=f"it to be measured in notebook {notebook}",
            next_step=f"Run notebook {notebook}, or worksheet.measure_missing(setup.folder())",
        )
    return otherwise


def recorded(notebook: str, name: str) -> Value:
    """Return the number that the same notebook noted on the recorded machine.

    Args:
        notebook: Number of the notebook that measures it.
        name: Its name in `NUMBERS`.

    Raises:
        UsageError: The name is unknown, or the course has no such record.
    """
    _number(notebook, name)
    path = _recorded_path()
    found = _read(path).get(notebook, {}).get(name)
    if found is None:
        raise UsageError(
            f"{path} has no {name} of notebook {notebook}",
            expected="the numbers of the recorded machine",
            next_step=f"Copy the whole course, or measure your own number with notebook {notebook}",
        )
    return found["value"]  # type: ignore[no-any-return]


def missing() -> list[str]:
    """The numbers that nothing was noted for, as `01 latency_ms`."""
    sheet = _read(_path())
    return [f"{n} {name}" for n, names in NUMBERS.items() for name in names if name not in sheet.get(n, {})]


def page() -> None:
    """Show all numbers with their meaning, and beside each the recorded one."""
    mine, known = _read(_path()), _read(_recorded_path())
    rows = [_row(n, name, mine, known) for n, names in NUMBERS.items() for name in names]
    head = ["| | what | mine | measured | recorded |", "|---|---|---|---|---|"]
    show.say(
        "\n".join(head + rows)
        + "\n\n*Recorded*: a virtual machine with two cores, and images on its own disk "
        "([results](../results/README.md))."
    )


def measure_missing(folder: Path) -> None:
    """Measure in seconds what is missing and can be measured with one folder; say where to get the rest.

    Args:
        folder: A data set of image files, such as `setup.folder()`.

    Raises:
        SourceError: It is not a data set.
    """
    gone = missing()
    if {"01 latency_ms", "01 opens_per_s", "08 cpu_ms"} & set(gone):
        from smallfiles.advise import measure_folder

        found = measure_folder(folder)
        quick: dict[str, dict[str, Value]] = {
            "01": {"latency_ms": 1000 * found.alone_s, "opens_per_s": 1 / found.together_s},
            "08": {"cpu_ms": 1000 * found.decode_s} if found.decode_s else {},
        }
        for notebook, values in quick.items():
            if wanted := {name: one for name, one in values.items() if f"{notebook} {name}" in gone}:
                note(notebook, **wanted)
    if "02 inodes" in gone:
        note("02", inodes=max(1, sum(1 + len(names) for _, _, names in os.walk(folder))))
    if rest := missing():
        notebooks = ", ".join(sorted({one.split()[0] for one in rest}))
        show.say(f"Still missing: {', '.join(rest)}. Run these notebooks for them: {notebooks}.")


def _recorded_path() -> Path:
    return CHECKOUT / "results" / "worksheet" / "my_numbers.json"


def _path() -> Path:
    """In the folder of the course's data if that is the participant's own, else in their private one."""
    folder = cache.cache_folder()
    mine = not folder.exists() or (folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK))
    return (folder if mine else cache.own_folder()) / "my_numbers.json"


def _read(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read ({error})",
            expected="the JSON file that `worksheet.note` writes",
            next_step="Delete it and run the notebooks' last cells again",
        ) from error


def _number(notebook: str, name: str) -> Number:
    if name not in NUMBERS.get(notebook, {}):
        names = ", ".join(f"{n} {one}" for n, names in NUMBERS.items() for one in names)
        raise UsageError(
            f"the worksheet has no number {notebook} {name}",
            expected=f"one of {names}",
            next_step="Correct the name",
        )
    return NUMBERS[notebook][name]


def _checked(notebook: str, name: str, value: Value) -> Value:
    """A plain number or word: those of NumPy do not go into JSON."""
    _number(notebook, name)
    if isinstance(value, str):
        return value
    number = float(value)
    if not 0 <= number < float("inf"):
        raise UsageError(
            f"{name} is {value}",
            expected="a number of at least 0",
            next_step="Run the cell that measures it again",
        )
    return int(number) if number.is_integer() else number


def _text(notebook: str, name: str, value: Value) -> str:
    if isinstance(value, str):
        return value
    digits = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{digits} {NUMBERS[notebook][name].unit}".strip()


def _row(
    notebook: str, name: str, mine: dict[str, dict[str, Any]], recorded: dict[str, dict[str, Any]]
) -> str:
    found, known = (sheet.get(notebook, {}).get(name) for sheet in (mine, recorded))
    value, when = ("", f"run notebook {notebook}")
    if found is not None:
        value = f"**{_text(notebook, name, found['value'])}**"
        when = f"{found['day']}, {found['cpus']} CPUs"
    beside = "no record" if known is None else _text(notebook, name, known["value"])
    return f"| {notebook} | {NUMBERS[notebook][name].meaning} | {value} | {when} | {beside} |"
