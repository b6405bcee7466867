"""Run `smallfiles audit` over each loader in each situation, with right programs and planted faults.

    python tools/audit_matrix.py [--save results/audits/matrix.json] [--jobs N] [WORD ...]

The lines of `tests/profile/matrix.txt` are the cases. Each runs as a user would run it: the command, then
`torchrun` or Lightning for several ranks, then the program. The results are saved as JSON, and as a table in
a Markdown file beside it, after each case. With WORDs, only the cases that contain all of them run again, and
the others keep their result. A case whose loader is not installed keeps its result, too.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import functools
import importlib.metadata
import importlib.util
import io
import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests/profile/audited.py"
TABLE = PROGRAM.with_name("matrix.txt")
ONCE = "exactly once"
COUNT = 48
PACKAGES = {
    "hf": "datasets",
    "hf_stream": "datasets",
    "mosaic": "streaming",
    "nodes": "torchdata",
    "mixed_nodes": "torchdata",
    "stateful": "torchdata",
}
PACKAGES |= {name: name for name in ("webdataset", "lightning", "accelerate", "litdata", "grain")}
WRITES = ("mosaic", "litdata", "ours")
"""The loaders that write their data themselves."""
VERSIONS = "torch webdataset datasets lightning accelerate mosaicml-streaming litdata grain torchdata"
LIMIT_S = 250
_SHARED = tempfile.TemporaryDirectory(prefix="sf-")
HEAD = """\
# What `smallfiles audit` says about each loader in each situation

`python tools/audit_matrix.py --save results/audits/matrix.json` wrote this file. Each case is a line of
`tests/profile/matrix.txt`: a right program, or one with a planted fault,
and the verdict that is expected with all other findings. Each case ran by the real command:
`smallfiles audit -- torchrun --nproc-per-node 2 program.py`, and without `torchrun` for a single rank and for
Lightning, which starts its ranks itself.

Of {ran} cases that ran, {right} came out as expected{rest}. The versions were {versions}, and
Python {python}.

The first number of a cell counts right programs that got no alarm. The second number counts programs whose
fault was named without any other finding."""


@dataclass(frozen=True)
class Case:
    """A line of the table.

    Args:
        loader: Its section.
        situation: One run, several ranks, workers, uneven ends, a resume, or another number of ranks.
        expected: The verdict, and then all other findings, with + between them.
        program: The words for the program, and for the run that continues it.
    """

    loader: str
    situation: str
    expected: str
    program: str

    @property
    def package(self) -> str:
        """The package of the loader."""
        return PACKAGES.get(self.program.split()[0], "torch")

    def commands(self, data: Path) -> tuple[list[list[str]], list[str]]:
        """Return the commands of the first run and of the resume, and the options of the audit."""
        runs, options = [], ["--ranks=1,2"] if "{ranks}" in self.program else []
        for words in map(str.split, self.program.split(" > ")):
            options += [word for word in words if word.startswith("--")]
            words = [word for word in words if not word.startswith("--")]
            ranks = next((word.partition("=")[2] for word in words if word.startswith("ranks=")), "")
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
            if not ranks or words[0] == "lightning":  # which starts its ranks itself
                launch = []
            runs.append([sys.executable, *launch, str(PROGRAM), *words, f"data={data}"])
        return runs, [*options, *(f"--resume={shlex.join(run)}" for run in runs[1:])]


def cases() -> list[Case]:
    """Read the table."""
    found, loader = [], ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            loader = line.strip("[]")
        elif line and not line.startswith("#"):
            found.append(Case(loader, *line.split(" | ")))
    return found


def make_data(case: Case, folder: Path) -> Path:
    """Make what the program of a case reads, and return the folder."""
    loader, *words = case.program.split(" > ")[0].split()
    if loader in WRITES:
        count = next((word for word in words if word.startswith("count=")), f"count={COUNT}")
        return shutil.copytree(_written(loader, count), folder)
    folder.mkdir(parents=True)
    for shard in range(4):
        with tarfile.open(folder / f"part-{shard:03}.tar", "w") as tar:
            for index in range(shard * 12, (shard + 1) * 12):
                member = tarfile.TarInfo(f"{index:06}.txt")
                text = str(index).encode()
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text))
    for index in range(COUNT):
        (folder / f"{index:04}.bin").write_bytes(bytes(index))
    if "truncated" in words:
        os.truncate(folder / "part-002.tar", 2_000)
    return folder


@functools.cache
def _written(loader: str, count: str) -> Path:
    """Return the folder of a data set that a loader wrote, which cases share."""
    folder = Path(tempfile.mkdtemp(dir=_SHARED.name))
    command = [sys.executable, str(PROGRAM), f"write_{loader}", "right", count, f"data={folder}"]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_S, env=environment())
    return folder


def environment() -> dict[str, str]:
    """Return the variables of a user who has not started any ranks yet."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def said_by(record: dict[str, Any]) -> str:
    """Return the verdict of a record, and all other findings behind it."""
    return " + ".join(dict.fromkeys([record["verdict"], *(each["name"] for each in record["findings"])]))


def run(case: Case, folder: Path) -> dict[str, Any]:
    """Audit the program of a case, and return what came out."""
    began, record = monotonic(), folder / "record.json"
    try:
        (first, *_), options = case.commands(make_data(case, folder / "data"))
        command = [sys.executable, "-m", "smallfiles", "audit", f"--save={record}", *options, "--", *first]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment(), cwd=folder
        )
    except (subprocess.SubprocessError, OSError) as error:
        return {**asdict(case), "is_right": False, "said": f"it did not end: {error}"[:300]}
    said = done.stderr.strip().splitlines()[-1:] if not record.exists() else []
    told = said_by(json.loads(record.read_text())) if record.exists() else f"nothing: {''.join(said)[:300]}"
    is_right = told == case.expected and done.returncode == int(case.expected != ONCE)
    more = {} if is_right else {"printed": done.stderr[-3000:]}
    seconds = round(monotonic() - began, 1)
    return {
        **asdict(case),
        **{"is_right": is_right, "said": told, "exit_code": done.returncode, "seconds": seconds},
        **more,
    }


def markdown(results: list[dict[str, Any]], about: dict[str, Any]) -> str:
    """Return the results as a table of loaders and situations, and as a list of all cases."""
    situations = list(dict.fromkeys(each.situation for each in cases()))
    cells: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for each in results:
        cells[each["loader"]][each["situation"]].append(each)
    wrong = [each for each in results if not each["is_right"] and each["expected"] != "-"]
    ran = sum(each["expected"] != "-" for each in results)
    left = sum(each.expected != "-" for each in cases()) - ran
    rest = f"; {left} have not run" if left else ""
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    title = f"| loader | {' | '.join(situations)} |"
    lines = [
        *HEAD.format(
            right=ran - len(wrong), ran=ran, rest=rest, versions=versions, **about["machine"]
        ).splitlines(),
        *("", title, f"|---|{'---|' * len(situations)}"),
    ]
    for loader, row in cells.items():
        lines.append(f"| {loader} | {' | '.join(_cell(row[situation]) for situation in situations)} |")
    lines += ["", "What cannot be right or planted, and what the audit cannot tell:", ""]
    missing = [each for each in results if each["expected"] == "-"]
    lines += [f"- {each['loader']}, {each['situation']}: {each['program']}." for each in missing]
    title = "| loader | situation | program | expected | it said |"
    lines += ["", "## All cases", "", title, f"|{'---|' * 5}"]
    for each in results:
        if each["expected"] != "-":
            said = "✓" if each["is_right"] else f"✗ {each['said']}".replace("|", "/")
            where = f"{each['loader']} | {each['situation']} | `{each['program']}`"
            lines.append(f"| {where} | {each['expected']} | {said} |")
    return "\n".join(lines) + "\n"


def _cell(results: list[dict[str, Any]]) -> str:
    """Return what a cell of the table says."""
    ran = [each for each in results if each["expected"] != "-"]
    if not ran:
        return "not run"
    right = sum(each["is_right"] and each["expected"] == ONCE for each in ran)
    named = sum(each["is_right"] and each["expected"] != ONCE for each in ran)
    wrong = [f"✗ {each['said']}" for each in ran if not each["is_right"]]
    return " ".join([*([f"✓ {right} + {named}"] if right + named else []), *wrong])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", type=Path, help="a JSON file; a Markdown file is written beside it")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at the same time")
    parser.add_argument("--missing", action="store_true", help="run only cases without a right result")
    parser.add_argument("words", nargs="*", help="run only the cases that contain all of these words")
    arguments = parser.parse_args()
    from smallfiles import machine

    known: dict[Case, dict[str, Any]] = {}
    if arguments.save and arguments.save.exists():
        for each in json.loads(arguments.save.read_text(encoding="utf-8"))["results"]:
            known[Case(*(each[name] for name in Case.__dataclass_fields__))] = each
    installed = {each.metadata["Name"].lower(): each.version for each in importlib.metadata.distributions()}
    versions = {name: installed[name] for name in VERSIONS.split() if name in installed}
    about = {"what": "audit matrix", "machine": machine.describe(), "versions": versions}
    lock = threading.Lock()

    def one(case: Case) -> None:
        with tempfile.TemporaryDirectory(prefix="sf-") as folder:
            result = run(case, Path(folder))
        with lock:
            seconds, known[case] = result.pop("seconds", None), result
            mark = "✓" if result["is_right"] else f"✗ {result['said']}, and not {case.expected}"
            print(f"{mark}: {case.loader}, {case.situation}: {case.program} ({seconds} s)", flush=True)
            if arguments.save:
                results = [known[each] for each in cases() if each in known]
                arguments.save.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")
                arguments.save.with_suffix(".md").write_text(markdown(results, about), encoding="utf-8")

    wanted = []
    for case in cases():
        text = f"{case.loader} {case.situation} {case.expected} {case.program}"
        if case.expected == "-":
            known[case] = {**asdict(case), "is_right": False}
        elif all(word in text for word in arguments.words) and importlib.util.find_spec(case.package):
            wanted += [] if arguments.missing and known.get(case, {}).get("is_right") else [case]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, wanted))
    return int(not all(known[each]["is_right"] for each in wanted))


if __name__ == "__main__":
    sys.exit(main())
