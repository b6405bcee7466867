"""The house keeps its shape: imports run downwards, rooms form no circle, the wheel holds the toolbox."""

import ast
import functools
import graphlib
import subprocess
import sys
import tomllib
from collections import defaultdict
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "pysquashfs": {"pysquashfs"},
    "smallfiles": {"smallfiles", "pysquashfs"},
    "helpers": {"helpers", "smallfiles", "pysquashfs"},
    "exercises": {"exercises", "helpers", "smallfiles", "pysquashfs"},
}


def sources(layer):
    return sorted(path for path in (ROOT / layer).rglob("*.py") if ".ipynb_checkpoints" not in path.parts)


@functools.cache
def imported(path):
    """Each `package.room` that a module imports, also inside functions, with the line."""
    return [*_imported(path)]


def _imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}".split(".")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")


def upward(layer, path):
    return [
        f"{path.relative_to(ROOT)}:{line} imports {'.'.join(parts[:2])}, which lies above {layer}"
        for line, parts in imported(path)
        if parts[0] in MAY_IMPORT and parts[0] not in MAY_IMPORT[layer]
    ]


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_run_downwards_only(layer):
    assert sources(layer), f"{layer} has no modules"
    assert [fault for path in sources(layer) for fault in upward(layer, path)] == []


SHORT = 60
REASON = "Short, since"
SMALL = {
    "one step of loading or training, used by several others": ["training/checkpoint"],
}
"""Modules of the toolbox that are short, by reason. Nothing may be added: merge, or give a reason inside."""


@functools.cache
def code_lines(source):
    """Lines with code: without comments, docstrings and blanks."""
    lines = {n for n, line in enumerate(source.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"}
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno > node.lineno:
            lines |= set(range(node.lineno, node.end_lineno + 1))
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            docstrings |= set(range(node.lineno, node.end_lineno + 1))
    return len(lines - docstrings)


def test_code_is_counted_without_what_explains_it():
    source = '"""Doc\nstring."""\n\n# why\ndef f():\n    """What."""\n    return (1,\n        2)\n'
    assert code_lines(source) == 3
    assert code_lines('x = """\n\n# text"""  # why\n') == 3


@functools.cache
def short_modules():
    """The docstring of each short module of the toolbox; in `cli` a verb is a module, however short."""
    found = {}
    for path in sources("smallfiles"):
        source = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT / "smallfiles").with_suffix("").as_posix()
        if not path.stem.startswith("__") and path.parent.name != "cli" and code_lines(source) < SHORT:
            found[name] = ast.get_docstring(ast.parse(source)) or ""
    return found


def test_a_module_is_a_room_or_says_why_it_is_short():
    """Cupboards grow back one by one: a new module of a few lines belongs into a room that is there."""
    known = {name for names in SMALL.values() for name in names}
    for name, told in short_modules().items():
        assert name in known or REASON in told, (
            f"smallfiles/{name}.py has fewer than {SHORT} lines of code; expected a room. Put it into the "
            f"module that uses it, or begin a sentence of its docstring with: {REASON}"
        )


def test_the_list_of_short_modules_names_no_other():
    """A module that grew, is gone or says its reason itself needs no place in the list."""
    silent = {name for name, told in short_modules().items() if REASON not in told}
    stale = sorted({name for names in SMALL.values() for name in names} - silent)
    assert not stale, f"strike {', '.join(stale)} from SMALL: gone, no longer short, or with its own reason"


def rooms():
    """Room -> rooms of the toolbox that it imports."""
    inside = (ROOT / "smallfiles").iterdir()
    names = {path.stem for path in inside if path.is_dir() or path.suffix == ".py"} - {"__init__"}
    graph = defaultdict(set)
    for path in sources("smallfiles"):
        room = path.relative_to(ROOT / "smallfiles").parts[0].removesuffix(".py")
        found = {parts[1] for _, parts in imported(path) if parts[0] == "smallfiles" and len(parts) > 1}
        graph[room] |= (found & names) - {room}
    return graph


def test_rooms_of_the_toolbox_form_no_circle():
    graphlib.TopologicalSorter(rooms()).prepare()  # its error names the rooms of a circle


def test_the_wheel_holds_the_toolbox_and_nothing_called_helpers():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = tables["packages"]["find"]["include"]
    held = {name for name in MAY_IMPORT if any(fnmatch(name, pattern) for pattern in patterns)}
    assert held == {"smallfiles", "pysquashfs"}


def test_the_toolbox_works_without_this_repository(tmp_path):
    """All modules of the wheel are imported where no `helpers` and no `exercises` can be found."""
    for name in ("smallfiles", "pysquashfs"):
        (tmp_path / name).symlink_to(ROOT / name)
    code = (
        "import sys, pkgutil, importlib\n"
        f"sys.path = [{str(tmp_path)!r}] + [p for p in sys.path if p and p != {str(ROOT)!r}]\n"
        "sys.modules['helpers'] = sys.modules['exercises'] = None\n"
        "import smallfiles, pysquashfs\n"
        "for package in (smallfiles, pysquashfs):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not found.name.endswith('__main__'):\n"
        "            importlib.import_module(found.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_no_two_test_modules_have_one_name():
    """They are imported by it alone, so that the second of one process cannot be."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


NOT_VERBS = (
    *(
        "A",
        "All",
        "An",
        "As",
        "Both",
        "Each",
        "Every",
        "How",
        "If",
        "In",
        "Its",
        "Number",
        "Of",
        "One",
        "Some",
    ),
    *("That", "The", "This", "What", "Where", "Whether", "Which", "Who", "Why", "With", "Without"),
)


def is_property(function):
    return any("property" in ast.unparse(each) for each in function.decorator_list)


def test_the_docstring_of_a_function_begins_with_a_verb():
    """A stranger reads the first word first: Return, Check, Refuse, Write."""
    found = []
    for path in sources("smallfiles"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not is_property(node):
                first = (ast.get_docstring(node) or "Return").split()[0].rstrip(":,.;")
                if first in NOT_VERBS or not first[0].isupper():
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno} {first}")
    assert not found
