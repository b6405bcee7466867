"""Build the course as a web page: execute the notebooks, write the generated pages, run Sphinx.

`make site` calls it. The tree that Sphinx reads mirrors the repository (`docs/`, `notebooks/`, `exercises/`),
so that a relative link in `docs/` leads to the same file here and on the page. An executed notebook is kept
until one of its cells changes.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from site_pages import write_pages
from sphinx.cmd import build
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "site_output"
CELL_LIMIT_S = 300
WIDGET = "application/vnd.jupyter.widget-view+json"
ENTRY = '<!doctype html><html lang="en"><title>Course</title><meta http-equiv="refresh" content="0; url={}">'


def main() -> int:
    """Build the page; the exit code is that of Sphinx."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the site (default: site_output)")
    parser.add_argument("--no-execute", action="store_true", help="show the notebooks without their outputs")
    options = parser.parse_args()
    source, html = options.out / "source", options.out / "html"
    assemble(source)
    if not options.no_execute:
        for path in sorted((source / "notebooks").glob("*.ipynb")):
            shown = executed(path, options.out / "executed" / path.name).read_text(encoding="utf-8")
            path.write_text(anonymous(shown), encoding="utf-8")
    for path in [*(source / "notebooks").glob("*.ipynb"), *(source / "exercises").glob("*.ipynb")]:
        fold(path)
    write_pages(source / "docs")
    code = sphinx(source, html, "draft" if options.no_execute else "executed")
    name_folds(html)
    (html / "index.html").write_text(ENTRY.format("docs/index.html"))
    sys.stdout.write(f"{html / 'index.html'}\n" if code == 0 else "")
    return code


def assemble(source: Path) -> None:
    """Lay out what Sphinx reads; files that did not change keep their time, so that Sphinx skips them."""
    shutil.rmtree(source, ignore_errors=True)
    for folder, patterns in {
        "docs": ("*",),
        "notebooks": ("*.ipynb", "pictures/*.svg"),
        "exercises": ("*.ipynb", "*.sbatch"),
        "results": ("*", "audits/*.md"),
    }.items():
        for path in sorted(path for pattern in patterns for path in (ROOT / folder).glob(pattern)):
            if path.is_file():
                (source / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, source / path.relative_to(ROOT))


def sphinx(source: Path, html: Path, tag: str) -> int:
    """Render the pages, in this process, which has imported what they describe; a warning is an error."""
    options = ["-W", "--keep-going", "-q", "-t", tag, "-c", str(ROOT / "docs")]
    options += ["-d", str(html.parent / "doctrees")]
    return build.main([*options, str(source), str(html)])


def jupyter_anchor(heading: str) -> str:
    """The anchor that JupyterLab gives a heading, so that a link to a part works in both."""
    return heading.replace(" ", "-")


def executed(path: Path, kept: Path) -> Path:
    """The notebook with its outputs, executed anew if a cell has changed since."""
    notebook = read(path)
    if kept.exists() and sources(read(kept)) == sources(notebook):
        return kept
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        execute(notebook, Path(folder))
    without_widgets(notebook)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")  # type: ignore[no-untyped-call]
    sys.stdout.write(f"executed {path.name} in {time.monotonic() - began:.0f} s\n")
    return kept


def read(path: Path) -> Any:
    """A notebook."""
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)  # type: ignore[no-untyped-call]


def sources(notebook: Any) -> list[str]:
    """The text of all cells."""
    return [cell.source for cell in notebook.cells]


def anonymous(text: str) -> str:
    """A notebook that does not tell where on this machine it was executed."""
    return text.replace(sys.prefix, "COURSE/.venv").replace(str(ROOT), "COURSE")


def without_widgets(notebook: Any) -> None:
    """Take out progress bars, which a page without scripts of other hosts would show as text."""
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if WIDGET not in each.get("data", {})]


def fold(path: Path) -> None:
    """Fold on the page what JupyterLab folds."""
    notebook = read(path)
    for cell in notebook.cells:
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata["tags"] = [*cell.metadata.get("tags", ()), "hide-input"]
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")  # type: ignore[no-untyped-call]


def name_folds(html: Path) -> None:
    """Let a folded cell have the name that is read on it: the one for screen readers is another."""
    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(
            text.replace('<summary aria-label="Toggle hidden content">', "<summary>"), encoding="utf-8"
        )


def execute(notebook: Any, folder: Path) -> None:
    """Run every cell at the small size, as a participant who starts now would; an error ends the build."""
    own = ("COURSE_DATA", "COURSE_STRICT", "MPLBACKEND")
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        startup_timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        config=Config(KernelManager={"transport_encryption": "auto"}),
    )
    settings = {"COURSE_SIZE": "small", "PYTHONPATH": str(ROOT), "JUPYTER_PREFER_ENV_PATH": "1"}
    client.execute(env={k: v for k, v in os.environ.items() if k not in own} | settings)


if __name__ == "__main__":
    sys.exit(main())
