"""The house keeps its shape: imports run downwards, rooms form no circle, the wheel holds the toolbox."""

import ast
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


def imported(path):
    """Each `package.room` that a module imports, also inside functions, with the line."""
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


def circle(graph):
    """The rooms of one circle, in order; empty if there is none."""
    done, path = set(), []

    def visit(room):
        if room in path:
            return [*path[path.index(room) :], room]
        if room in done:
            return []
        path.append(room)
        found = next((c for c in map(visit, sorted(graph.get(room, ()))) if c), [])
        path.pop()
        done.add(room)
        return found

    return next((c for c in map(visit, sorted(graph)) if c), [])


def test_rooms_of_the_toolbox_form_no_circle():
    assert " -> ".join(circle(rooms())) == ""


def test_a_circle_is_found_where_there_is_one():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


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
