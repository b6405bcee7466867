"""Build every notebook, exercise and solution from its edited text.

    notebooks/src/NN_slug.py    ->  notebooks/NN_slug.ipynb
    solutions/src/NN_slug.py    ->  exercises/NN_slug.ipynb and solutions/NN_slug.ipynb
    solutions/src/NN_slug.sbatch -> exercises/NN_slug.sbatch and solutions/NN_slug.sbatch
    the tables of notebook 12      -> docs/symptoms.md
    results/                       -> docs/expected.md

Run `python tools/build_notebooks.py` after an edit and commit both. `--check` builds nothing: it
prints the difference and exits with 1 where a built file is not what its source says. The syntax of
the sources stands in `percent.py`, that of the gaps in `gaps.py`.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import expected
from gaps import Side, choose_cells, derive
from percent import SourceTextError, parse, to_notebook

SCRIPT_SUFFIXES = (".sbatch", ".sh")
FOLDERS = ("notebooks", "exercises", "solutions")
SYMPTOMS = "The tables of [notebook 12](../notebooks/{}.ipynb), built from its text: edit them there."
BUILT_SUFFIXES = (".ipynb", *SCRIPT_SUFFIXES)


@dataclass(frozen=True)
class Built:
    """One file that the build makes."""

    path: Path
    text: str
    source: Path


def build(root: Path) -> Iterator[Built]:
    """Everything that the sources under `root` make, in order of their names."""
    for source in sorted((root / "notebooks" / "src").glob("*.py")):
        yield Built(root / "notebooks" / f"{source.stem}.ipynb", _built(source), source)
        tables = _symptoms(source)
        if tables:
            yield Built(root / "docs" / "symptoms.md", tables, source)
    for source in sorted((root / "solutions" / "src").glob("*")):
        if source.suffix == ".py" or source.suffix in SCRIPT_SUFFIXES:
            name = source.name if source.suffix in SCRIPT_SUFFIXES else f"{source.stem}.ipynb"
            yield Built(root / "exercises" / name, _built(source, "exercise"), source)
            yield Built(root / "solutions" / name, _built(source, "solution"), source)
    if (root / "results").is_dir():
        yield Built(root / "docs" / "expected.md", expected.table(root / "results"), root / "results")


def _built(source: Path, side: Side | None = None) -> str:
    try:
        text = source.read_text(encoding="utf-8")
        text = derive(text, side) if side else text
        if source.suffix in SCRIPT_SUFFIXES:
            return text
        cells = parse(text)
        return to_notebook(choose_cells(cells, side) if side else cells)
    except SourceTextError as error:
        raise SourceTextError(f"{source}, {error}") from error


def _symptoms(source: Path) -> str:
    """The tables of symptoms as a page of their own, with links from its folder to the notebooks."""
    text = source.read_text(encoding="utf-8")
    tables = [
        cell.text
        for cell in parse(text)
        if cell.text.startswith("### ") and re.search(r"\| (Symptom|Verdict) \|", cell.text)
    ]
    page = "\n\n".join([f"# Symptom, cause, remedy\n\n{SYMPTOMS.format(source.stem)}", *tables])
    page = re.sub(r"(?s)<details>\n<summary>.*?</summary>\n\n|\n\n</details>", "", page)  # all is shown
    linked = page.replace("](#", f"](../notebooks/{source.stem}.ipynb#").replace("\n### ", "\n## ")
    return re.sub(r"\]\((\d\d_)", r"](../notebooks/\1", linked) + "\n" if tables else ""


def write(root: Path) -> list[Path]:
    """Write what changed; returns those paths."""
    changed = []
    for built in build(root):
        if not built.path.exists() or built.path.read_text(encoding="utf-8") != built.text:
            built.path.parent.mkdir(exist_ok=True)
            built.path.write_text(built.text, encoding="utf-8")
            changed.append(built.path)
    return changed


def differences(root: Path) -> list[str]:
    """Unified diffs from built files to what the sources say, and built files without a source."""
    expected = {built.path: built for built in build(root)}
    found = []
    for path, built in expected.items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != built.text:
            names = (str(path.relative_to(root)), f"built from {built.source.relative_to(root)}")
            lines = difflib.unified_diff(old.splitlines(), built.text.splitlines(), *names, lineterm="")
            found.append("\n".join(lines))
    present = (p for folder in FOLDERS for p in sorted((root / folder).glob("*")))
    orphans = (p for p in present if p.suffix in BUILT_SUFFIXES and p not in expected)
    return found + [f"{p.relative_to(root)} has no source: write one, or remove it" for p in orphans]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Build notebooks, exercises and solutions.")
    parser.add_argument("--check", action="store_true", help="print differences instead of building")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    arguments = parser.parse_args(argv)
    try:
        if not arguments.check:
            for path in write(arguments.root):
                print(f"built {path.relative_to(arguments.root)}")
            return 0
        found = differences(arguments.root)
    except SourceTextError as error:
        print(error, file=sys.stderr)
        return 2
    for difference in found:
        print(difference)
    if found:
        print(f"{len(found)} files differ. Run: python tools/build_notebooks.py", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
