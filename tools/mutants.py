"""Change a module in many small ways, one at a time, and list the changes that no test notices.

    make mutants MODULE=smallfiles/digests.py TESTS=tests/test_digests.py COUNT=25

cosmic-ray makes the changes: another operator, comparison, number or condition. uv installs it on demand, in
an environment of its own. It works in a copy of the tracked files, so the checkout may be edited meanwhile.
COUNT places are drawn at random (SEED), and one change is made at each of them.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import json
import os
import random
import shlex
import sqlite3
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COSMIC_RAY = [sys.executable, "-m", "uv", "tool", "run", "--from", "cosmic-ray==8.7.0", "cosmic-ray"]
LIMIT_S = 300


def copy_tracked(folder: Path) -> None:
    """Copy the files that git knows, as they are now."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    there = b"\0".join(name for name in names.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists())
    archive = ["tar", "--null", "--files-from=-", "-cf", "-"]
    packed = subprocess.run(archive, cwd=ROOT, input=there, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-xf", "-"], cwd=folder, input=packed, check=True)
    (folder / ".venv").symlink_to(ROOT / ".venv")


def configuration(module: str, tests: str) -> str:
    """Return the configuration of cosmic-ray in TOML."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
    values = {
        "module-path": module,
        "timeout": LIMIT_S,
        "excluded-modules": [],
        "test-command": shlex.join([*command, *shlex.split(tests)]),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(["[cosmic-ray]", *lines, "[cosmic-ray.distributor]", 'name = "local"', ""])


def draw(session: Path, count: int, seed: int) -> int:
    """Keep one change at each of `count` places, and return how many places there were."""
    places = defaultdict(list)
    with sqlite3.connect(session) as file:
        found = file.execute("select job_id, operator_name, start_pos_row, start_pos_col from mutation_specs")
        for job, operator, *place in found:
            # Annotations are full of `|`, and no test can notice a change there.
            if "BitOr" not in operator.split("_")[-2:][0]:
                places[tuple(place)].append(job)
        choice = random.Random(seed)
        drawn = choice.sample(sorted(places), min(count, len(places)))
        kept = [choice.choice(sorted(places[place])) for place in drawn]
        marks = ",".join("?" * len(kept))
        for name in ("mutation_specs", "work_items"):
            file.execute(f"delete from {name} where job_id not in ({marks})", kept)
    return len(places)


def report(session: Path) -> list[str]:
    """Return the changes that no test noticed, as differences."""
    with sqlite3.connect(session) as file:
        rows = file.execute("select test_outcome, diff from work_results").fetchall()
    survived = [diff for outcome, diff in rows if outcome == "SURVIVED"]
    print(f"{len(rows) - len(survived)} of {len(rows)} changes were noticed")
    return survived


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("module", help="the module to change, below the repository")
    parser.add_argument("tests", help="words for pytest: the tests that should notice it")
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants ") as name:
        folder = Path(name)
        copy_tracked(folder)
        (folder / "mutants.toml").write_text(configuration(words.module, words.tests))
        environment = os.environ | {"PYTHONPATH": str(folder)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def run(*command: str) -> None:
            subprocess.run([*COSMIC_RAY, *command], cwd=folder, env=environment, check=True)

        run("init", "mutants.toml", "mutants.sqlite")
        total = draw(folder / "mutants.sqlite", words.count, words.seed)
        print(
            f"{words.module}: {total} places that can be changed, {min(words.count, total)} drawn", flush=True
        )
        run("baseline", "mutants.toml")
        subprocess.run([sys.executable, "-m", "compileall", "-q", "smallfiles", "pysquashfs"], cwd=folder)
        run("exec", "mutants.toml", "mutants.sqlite")
        for diff in report(folder / "mutants.sqlite"):
            print(diff)
    return 0


if __name__ == "__main__":
    sys.exit(main())
