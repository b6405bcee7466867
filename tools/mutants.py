"""Change modules in many small ways, one at a time, and list the changes that no test notices.

    make mutants MODULE="smallfiles/digests.py smallfiles/selection" TESTS=tests/test_digests.py COUNT=100

MODULE names modules and folders of modules. cosmic-ray makes the changes: another operator, comparison,
number, or condition. COUNT places are drawn at random (SEED) over all of these modules, and one change is
made at each place. uv installs cosmic-ray and coverage into a temporary folder. The tool works in a copy of
the tracked files, so you may edit the checkout meanwhile.

The tests first run once under coverage. After that, each change runs only the tests that execute the
changed statement. The fastest test runs first, and the run ends when one fails, or when `TESTS_S` seconds
of tests have passed. A change outside of functions, such as a constant, runs the tests of the lines that
use its name. Processes that a test starts count as well. Each change is tried in a fork of this process,
which has already imported the other packages. A change that takes three times as long as expected counts as
noticed, and it is listed, too.

Some changes are left out because no test can notice them: annotations, `TYPE_CHECKING`, `__repr__`, the
arguments of `print` and of exceptions that are raised at once, the options of `@dataclass` and `zip`, a
missing `@cache`, and `is` instead of `==`.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import ast
import difflib
import gc
import importlib
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ["cosmic-ray==8.7.0", "coverage==7.17.5"]
LAZY = ["numpy", "pyarrow.parquet", "PIL.Image", "h5py", "torch", "torchvision"]  # imported inside of tests
TESTS_S = 25.0
WAIT_S = 60.0  # on a busy machine, starting one more process takes that long
BASELINE_S = 1800.0
NEVER_NOTICED = re.compile(r"_(Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$")
CACHES = {"cache", "lru_cache", "override", "overload", "final"}
RUN = """[run]
parallel = true
data_file = {folder}/.coverage
context = ${{PYTEST_CURRENT_TEST-}}
concurrency = multiprocessing, thread
patch = _exit, fork
disable_warnings = no-data-collected, module-not-measured
include =
    {modules}
"""
START = """import sys
sys.path.append({packages!r})
import coverage
coverage.process_startup()
"""


@dataclass(frozen=True)
class Change:
    module: str
    operator: str
    number: int
    start: tuple[int, int]
    end: tuple[int, int]


class Chosen:
    """Runs the tests whose names are in `order`, in this order."""

    def __init__(self, order: dict[str, int]) -> None:
        self.order = order

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept = [item for item in items if item.nodeid in self.order]
        items[:] = sorted(kept, key=lambda item: self.order[item.nodeid])


class Recorder:
    """Records how long each test takes, which tests fail, and which test executes which line."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.failed:
            self.failed.add(report.nodeid)


class Imported:
    """Writes the names of the modules of other packages that collecting the tests imports."""

    def __init__(self, result: Path) -> None:
        self.result = result

    def pytest_collection_finish(self) -> None:
        files = [(name, str(getattr(module, "__file__", ""))) for name, module in sys.modules.items()]
        self.result.write_text("\n".join(name for name, file in files if "site-packages" in file))


def copy_tracked(folder: Path) -> None:
    """Copy the files that git knows, as they are now."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    there = b"\0".join(name for name in names.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists())
    archive = ["tar", "--null", "--files-from=-", "-cf", "-"]
    packed = subprocess.run(archive, cwd=ROOT, input=there, capture_output=True, check=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-xf", "-"], cwd=folder, input=packed, check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")


def run_in_fork(work: Callable[[], int], log: Path, limit_s: float) -> int | None:
    """Return the exit code of `work`, or None if it was killed at its limit; what it started ends with it."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(target, 1)
            os.dup2(target, 2)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    ends = time.monotonic() + limit_s
    done, status = 0, 0
    while not done and time.monotonic() < ends:
        time.sleep(0.02)
        done, status = os.waitpid(pid, os.WNOHANG)
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    if not done:
        os.waitpid(pid, 0)
        return None
    return os.waitstatus_to_exitcode(status)


def run_tests(copy: Path, words: list[str], plugin: object) -> int:
    """Run pytest in the copy. Only a fork may call this, because it imports the changed modules."""
    os.chdir(copy)
    sys.modules["__main__"] = ModuleType("__main__")  # a worker that is spawned would import this file
    sys.path[:] = [
        str(copy),
        *(place for place in sys.path if Path(place).resolve() not in (ROOT, ROOT / "tools")),
    ]
    fixed = ["-q", "-p", "no:cacheprovider", "-m", "not slow", "--basetemp", str(copy.parent / "temporary")]
    return int(pytest.main([*fixed, *words], plugins=[plugin]))


def warm_up(copy: Path, tests: list[str]) -> None:
    """Import the packages of others that the tests use, so that no fork has to import them."""
    result = copy.parent / "imported"
    work = ["--collect-only", *tests]
    if run_in_fork(lambda: run_tests(copy, work, Imported(result)), copy.parent / "log", BASELINE_S) != 0:
        sys.exit((copy.parent / "log").read_text(errors="replace"))
    for name in [*LAZY, *result.read_text().splitlines()]:
        try:
            importlib.import_module(name)
        except Exception:
            pass
    gc.collect()
    gc.freeze()  # otherwise each fork would look through all of it


def record(copy: Path, modules: list[str], tests: list[str]) -> tuple[dict[str, float], set[str]]:
    """Run all tests under coverage, and return the seconds of each and the tests that fail."""
    coverage, result = importlib.import_module("coverage"), copy.parent / "seconds"
    rules = copy.parent / "coverage.ini"
    rules.write_text(
        RUN.format(folder=copy.parent, modules="\n    ".join(str(copy / name) for name in modules))
    )
    hook = copy.parent / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(START.format(packages=str(copy.parent / "packages")))

    def work() -> int:
        os.environ.update(COVERAGE_PROCESS_START=str(rules), PYTHONPATH=f"{hook}:{os.environ['PYTHONPATH']}")
        measured = coverage.Coverage(config_file=str(rules))
        recorder = Recorder(measured)
        measured.start()
        code = run_tests(copy, tests, recorder)
        measured.stop()
        measured.save()
        result.write_bytes(pickle.dumps((dict(recorder.seconds), recorder.failed)))
        return code

    run_in_fork(work, copy.parent / "log", BASELINE_S)
    if not result.exists():
        sys.exit((copy.parent / "log").read_text(errors="replace"))
    seconds, failed = pickle.loads(result.read_bytes())
    return seconds, failed


def executing(copy: Path, modules: list[str]) -> dict[str, dict[int, set[str]]]:
    """Return for each line of each module the tests that execute it."""
    measured = importlib.import_module("coverage").Coverage(config_file=str(copy.parent / "coverage.ini"))
    measured.combine([str(copy.parent)])
    data = measured.get_data()
    lines: dict[str, dict[int, set[str]]] = {}
    for module in modules:
        contexts = data.contexts_by_lineno(str(copy / module))
        lines[module] = {
            line: {re.sub(r" \((setup|call|teardown)\)$", "", name) for name in names} - {""}
            for line, names in contexts.items()
        }
    return lines


def silent_spans(tree: ast.AST) -> Iterator[ast.AST]:
    """Return the parts of a module in which no test can notice a change."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from [node.returns] if node.returns else []
            yield from node.body if node.name == "__repr__" else []
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            yield node.annotation
        elif isinstance(node, ast.If) and re.search("TYPE_CHECKING|__name__", ast.unparse(node.test)):
            yield node
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from [*node.exc.args, *node.exc.keywords]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "zip":
            yield from node.keywords
        for decorator in getattr(node, "decorator_list", []):
            name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator).split(".")[
                -1
            ]
            if name in CACHES:
                yield decorator
            elif name == "dataclass" and isinstance(decorator, ast.Call):
                yield from decorator.keywords


def find_changes(copy: Path, module: str) -> Iterator[Change]:
    """Return the changes that cosmic-ray knows for a module and that a test might notice."""
    plugins = importlib.import_module("cosmic_ray.plugins")
    source = (copy / module).read_text()
    parsing = importlib.import_module("cosmic_ray.ast")
    nodes = list(parsing.ast_nodes(parsing.get_ast(source)))
    spans = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in silent_spans(ast.parse(source))
        if isinstance(node, ast.expr | ast.stmt | ast.keyword)
    ]
    for name in plugins.operator_names():
        operator = plugins.get_operator(name)
        if operator.arguments() or NEVER_NOTICED.search(name):
            continue
        positions = (place for node in nodes for place in operator().mutation_positions(node))
        for number, (start, end) in enumerate(positions):
            # A decorator is reported with its `@`, one column before its expression.
            inner = (start[0], start[1] + 1) if source.splitlines()[start[0] - 1][start[1]] == "@" else start
            if not any(first <= inner < last for first, last in spans):
                yield Change(module, name, number, start, end)


def changed_source(source: str, change: Change) -> str:
    operator = importlib.import_module("cosmic_ray.plugins").get_operator(change.operator)()
    mutating = importlib.import_module("cosmic_ray.mutating")
    return str(mutating.mutate_code(source, operator, change.number))


def draw(changes: list[Change], count: int, seed: int) -> tuple[list[Change], int]:
    """Draw one change at each of `count` places, and return them and how many places there are."""
    places = defaultdict(list)
    for change in changes:
        places[change.module, change.start].append(change)
    choice = random.Random(seed)
    return [
        choice.choice(places[place]) for place in choice.sample(sorted(places), min(count, len(places)))
    ], len(places)


def enclosing(tree: ast.AST, line: int) -> tuple[list[ast.stmt], bool]:
    """Return the statements around a line, the smallest last, and whether a function contains the last."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt)
        and min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        <= line
        <= (node.end_lineno or 0)
    ]
    return around, any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in around[:-1])


def tests_of(change: Change, copy: Path, lines: dict[str, dict[int, set[str]]]) -> set[str]:
    """Return the tests that execute the changed statement, or the lines that use the name that it defines."""
    around, in_function = enclosing(ast.parse((copy / change.module).read_text()), change.start[0])
    statement, counted = around[-1], lines[change.module]
    body = getattr(statement, "body", None)
    head = range(statement.lineno, (body[0].lineno if body else (statement.end_lineno or 0) + 1))
    if in_function and not isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {test for line in head for test in counted.get(line, ())}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        inside = range(statement.body[0].lineno, (statement.end_lineno or 0) + 1)
        return {test for line in inside for test in counted.get(line, ())}
    targets = getattr(statement, "targets", [getattr(statement, "target", statement)])
    names = {
        getattr(node, "id", getattr(node, "name", "")) for target in targets for node in ast.walk(target)
    } - {""}
    uses = re.compile(r"\b({})\b".format("|".join(map(re.escape, names)) or "$^"))
    found = {
        test
        for module, its_lines in lines.items()
        for number, text in enumerate((copy / module).read_text().splitlines(), start=1)
        if uses.search(text)
        for test in its_lines.get(number, ())
    }
    return found or {test for tests in counted.values() for test in tests}


def in_order(tests: set[str], seconds: dict[str, float]) -> list[str]:
    """Return the fastest tests within `TESTS_S` seconds, file by file so that fixtures are made once."""
    chosen: list[str] = []
    files: dict[str, float] = defaultdict(float)
    for test in sorted(tests & set(seconds), key=lambda name: seconds[name]):
        if not chosen or sum(files.values()) + seconds[test] < TESTS_S:
            chosen.append(test)
            files[test.split("::")[0]] += seconds[test]
    return sorted(chosen, key=lambda name: (files[name.split("::")[0]], name.split("::")[0], seconds[name]))


def exit_code(change: Change, copy: Path, tests: list[str], limit_s: float, at: int) -> int | None:
    """Make the change, run the tests in a fork, and take the change back."""
    path, order = copy / change.module, {name: number for number, name in enumerate(tests)}
    source = path.read_text()
    files = list(dict.fromkeys(name.split("::")[0] for name in tests))
    try:
        path.write_text(changed_source(source, change))
        os.utime(path, (at, at))  # Python compiles a module again only if the second of its file has changed
        return run_in_fork(
            lambda: run_tests(copy, ["-x", *files], Chosen(order)), copy.parent / "log", limit_s
        )
    finally:
        path.write_text(source)
        os.utime(path, (at + 1, at + 1))


def modules_of(words: list[str]) -> list[str]:
    paths = [
        path
        for word in words
        for path in ([ROOT / word] if word.endswith(".py") else (ROOT / word).rglob("*.py"))
    ]
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "modules", type=str.split, help="the modules and folders to change, below the repository"
    )
    parser.add_argument("tests", type=str.split, help="words for pytest: the tests that should notice it")
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    modules = modules_of(words.modules)
    with tempfile.TemporaryDirectory(prefix="mutants ") as name:
        copy, packages = Path(name) / "copy", Path(name) / "packages"
        copy_tracked(copy)
        install = [
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--python",
            sys.executable,
            "--target",
            str(packages),
        ]
        subprocess.run([sys.executable, *install, *PACKAGES], check=True)
        sys.path.append(str(packages))
        os.environ.update(PYTHONPATH=str(copy), OMP_NUM_THREADS="2", MPLBACKEND="Agg", HF_HUB_OFFLINE="1")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        warm_up(copy, words.tests)
        drawn, total = draw(
            [change for module in modules for change in find_changes(copy, module)], words.count, words.seed
        )
        print(f"{len(modules)} modules: {total} places that can be changed, {len(drawn)} drawn", flush=True)
        seconds, failed = record(copy, modules, words.tests)
        lines = executing(copy, modules)
        print(
            f"{len(seconds)} tests take {sum(seconds.values()):.0f} s; fail unchanged: {sorted(failed)}",
            flush=True,
        )
        survived = 0
        for number, change in enumerate(drawn):
            tests = in_order(tests_of(change, copy, lines) - failed, seconds)
            limit_s = 3 * sum(seconds[name] for name in tests) + WAIT_S
            code = exit_code(change, copy, tests, limit_s, 1_000_000_000 + 2 * number) if tests else 0
            if code in (0, None):
                survived += code == 0
                verdict = "took too long" if code is None else "passed" if tests else "run this line"
                source = (copy / change.module).read_text()
                new = changed_source(source, change).splitlines()
                lines_of_both = difflib.unified_diff(source.splitlines(), new, lineterm="", n=1)
                print(
                    f"\n{change.module}:{change.start[0]}: {len(tests)} tests {verdict} (number {number + 1})"
                )
                print("\n".join(list(lines_of_both)[2:]), flush=True)
        print(f"\n{len(drawn) - survived} of {len(drawn)} changes were noticed")
        gc.unfreeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
