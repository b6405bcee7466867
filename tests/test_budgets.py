"""The code stays small enough to be read: each part and each room keeps its budget of lines."""

import tomllib
from pathlib import Path

import pytest
from test_layers import ROOT, code_lines, sources

BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text(encoding="utf-8"))
ROOMS = BUDGETS["rooms"]
SLACK = 50
"""A part that shrank by more lines than this lowers its `now`."""


def size_of(paths):
    return sum(code_lines(path.read_text(encoding="utf-8")) for path in paths)


def room_of(path):
    """The room with the longest path that a module of `smallfiles` lies under."""
    name = path.relative_to(ROOT / "smallfiles").with_suffix("").as_posix()
    found = [
        (len(place), room)
        for room, about in ROOMS.items()
        for place in about["paths"]
        if f"{name}/".startswith(f"{place}/")
    ]
    return max(found)[1] if found else None


def judge(name, size, budget, now=0, slack=SLACK):
    """Return what is wrong with a size, or an empty text."""
    if size > max(budget, now):
        return f"{name} has {size:,} and may have {max(budget, now):,}: shrink it, or move code elsewhere"
    if now > budget and now - size > slack:
        return (
            f"{name} shrank to {size:,}: write that as its `now` in tests/budgets.toml, so that it stays so"
        )
    if 0 < now <= budget:
        return f"{name} is within its budget of {budget:,}: remove its `now` from tests/budgets.toml"
    return ""


@pytest.mark.parametrize("part", BUDGETS["parts"])
def test_each_part_keeps_its_budget_of_lines(part):
    assert judge(part, size_of(sources(part)), **BUDGETS["parts"][part]) == ""


def test_each_room_of_the_toolbox_keeps_its_budget_of_lines():
    sizes = dict.fromkeys(ROOMS, 0)
    for path in sources("smallfiles"):
        room = room_of(path)
        assert room, f"{path.relative_to(ROOT)} belongs to no room of tests/budgets.toml"
        sizes[room] += size_of([path])
    told = [judge(room, sizes[room], ROOMS[room]["budget"], ROOMS[room].get("now", 0)) for room in ROOMS]
    assert list(filter(None, told)) == []


def test_the_toolbox_has_few_files():
    assert judge("smallfiles", len(sources("smallfiles")), **BUDGETS["files"]["smallfiles"], slack=5) == ""


@pytest.mark.parametrize(
    ("size", "now", "is_right"),
    [
        (100, 0, True),
        (101, 0, False),
        (150, 150, True),
        (151, 150, False),
        (100, 150, True),
        (99, 150, False),
    ],
)
def test_a_part_above_its_budget_may_only_shrink(size, now, is_right):
    assert (judge("x", size, 100, now) == "") is is_right


def test_a_part_within_its_budget_has_no_exception():
    assert judge("x", 90, 100, 100) != ""
