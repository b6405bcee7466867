"""Execute copies of the notebooks as a participant does, and record what each of them costs.

    python tools/run_notebooks.py OUT [NN ...] [--busy LOOPS]

OUT gets the executed notebooks and `runs.csv`: the seconds, the processor seconds of the kernel and of all
that it waited for, and the load. Processor seconds tell how long a calm machine needs. `--busy 2` runs two
endless loops beside the notebooks, which must then still show each finding by what they count. The data sets
and *my numbers* are in `OUT/course`.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import csv
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import nbformat
from build_site import ROOT, execute, read


def main() -> int:
    """Run the notebooks one after the other; the exit code counts those that a cell stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the executed notebooks, outside the clone")
    parser.add_argument("notebooks", nargs="*", help="their numbers, such as 05 (default: all)")
    parser.add_argument("--busy", type=int, default=0, help="endless loops beside them (default: 0)")
    options = parser.parse_args()
    course = options.out.absolute() / "course"
    course.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("COURSE_CACHE", str(course))
    wanted = tuple(options.notebooks) or ("",)
    with ExitStack() as stack:
        for _ in range(options.busy):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        paths = [path for path in sorted(ROOT.glob("notebooks/*.ipynb")) if path.name.startswith(wanted)]
        return sum(not run(path, options.out, options.busy) for path in paths)


def run(path: Path, out: Path, busy: int) -> bool:
    """Execute one notebook, keep it and its line of `runs.csv`, and return whether it ran to its end."""
    notebook, error = read(path), ""
    load, before, began = os.getloadavg()[0], os.times(), time.monotonic()
    try:
        execute(notebook, out)
    except Exception as caught:  # whatever stops it, the others are executed
        error = f"{caught}".strip().splitlines()[-1]
    seconds, after = time.monotonic() - began, os.times()
    cpu_s = sum(after[2:4]) - sum(before[2:4])  # of children: kernels, and what these waited for
    nbformat.write(notebook, out / path.name)  # type: ignore[no-untyped-call]
    line = {
        "notebook": path.name[:2],
        "seconds": f"{seconds:.0f}",
        "cpu_s": f"{cpu_s:.0f}",
        "load_before": f"{load:.1f}",
        "load_after": f"{os.getloadavg()[0]:.1f}",
        "busy_loops": busy,
        "error": error,
    }
    print(*(f"{name} {value}" for name, value in line.items()), sep=", ", flush=True)
    with (out / "runs.csv").open("a", newline="") as file:
        writer = csv.DictWriter(file, line)
        if not file.tell():
            writer.writeheader()
        writer.writerow(line)
    return not error


if __name__ == "__main__":
    sys.exit(main())
