"""Check notebooks, exercises and solutions against the course's budgets and manner.

    python tools/lint_notebooks.py            every built notebook
    python tools/lint_notebooks.py --table    words, visible lines of code and cells, one line per notebook

A notebook that grows past a budget is split or its code moves to `helpers`; the budgets are there so
that a participant never meets a wall of code or of text. A folded cell (`source_hidden`) holds plumbing:
its lines do not count, but the text directly before it must say what the *folded* cell does. The anatomy
of a notebook is checked in `_anatomy`, the rules for every file in `_manner`.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import ast
import builtins
import itertools
import re
import statistics
import symtable
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from percent import Cell, from_notebook

MAX_CELL_LINES = 20
MAX_FOLDED_LINES = 45
MAX_LINE_CHARACTERS = 100  # of code that is seen: JupyterLab shows 104 at 1280 pixels, beside its side bar
MAX_MEDIAN_LINES = 8
MAX_FUNCTION_LINES = 20
CODE_CELLS = range(15, 36)
MAX_VISIBLE_LINES = 180
MAX_MEDIAN_VISIBLE_LINES = 125
WORDS = range(900, 2641)  # at most a fifth more than usual
WORDS_A_CODE_CELL = range(40, 111)
EXPERIMENTS = range(3, 8)
PREDICTIONS = range(3, 5)
TASK_WORDS = 60

SHOWS: dict[str, tuple[str, ...]] = {
    "00": ("usable_cpus", "addaudithook", "NotImplementedError"),
    "01": ("perf_counter_ns", "os.open", "os.readv", "measure.compare", "ThreadPoolExecutor", "open_slow"),
    "02": ("Manifest.load", "(Dataset)", "Private_Dirty"),
    "03": ("pa.ipc.new_file", "pa.memory_map", "pa.OSFile", "get_batch", "(Dataset)", "DataLoader("),
    "04": ("h5py.File", "vlen_dtype", "torch.utils.data.Dataset", "DataLoader(", "multiprocessing_context"),
    "05": ("tarfile.TarInfo(", "wds.WebDataset", ".shuffle(", "DataLoader(", "def shuffle_buffer("),
    "06": ("os.pread(", "DataLoader(", "file.seek("),
    "07": ("fcntl.flock(", "os.replace(", "target.exists()"),
    "08": ("DataLoader(", "num_workers=", "prefetch_factor=", "class Views(Dataset)"),
    "09": ('"Range"', "ThreadPoolExecutor", "make_loader"),
    "10": ('init_process_group("gloo"', "DDP(", "loss.backward()", "signal.signal(", "split_by_node"),
    "11": ("formats.open(", "process_time", "open_slow", "def mean_wait(", "simulate(", "saturation("),
    "13": ("sources.load(", "tv_tensors.Mask(", "Mask(view)", "make_loader", "blob(", "csv.DictReader"),
}
"""What a notebook teaches: names that a reader must see in its visible cells, not behind a call."""

QUIZ = "Check yourself"
PRIORITIES = ("core", "optional")
HEADINGS = (
    "Questions",
    "After this you can",
    "Set up",
    "Exercise",
    "On the cluster",
    "Key points",
    QUIZ,
    "Next",
)
REFERENCE = {"12": ("Find your symptom", *HEADINGS[2:])}
"""The parts of a reference: one looks up symptoms, so it begins with them, and no row of a table counts."""

FORBIDDEN = {
    r"!\s*(pip|wget|curl|conda|apt)\b": "installs or downloads",
    r"^\s*%?(pip|conda) install": "installs",
    r":::": "uses `:::`, which only some viewers render",
    r"> \[!\w+\]": "uses a `> [!NOTE]` block, which only some viewers render",
    r"[\U0001F000-\U0001FAFF\u2600-\u2604\u2705\u274C\u26A0\uFE0F]": "holds an emoji (may show as a box)",
    r"(?<![\w.}$/:<])/(home|root|work|tmp|p|scratch|project|users|mnt)/\w": "holds an absolute path",
    r"\bplt\.show\(": "shows a figure without alt text (use show.figure)",
}
HARD_TO_READ = {
    r"\bin vain\b": "forever, or uselessly",
    r"\bin silence\b": "silently",
    r"\bleft aside\b": "ignored",
    r"\bshall\b(?! (I|we)\b)": "must, or will",
    r"\bmend(s|ed|ing)?\b": "fix, or repair",
    r"\b(is|are|was|were) told\b": "is reported, or gets a message",
    r"\bone after the last\b": "end (exclusive)",
    r"(?<![Tt]here )\bis no (?!longer|such|faster|slower|larger|more)[a-z]{3,}": "is not a ...",
}
"""Wording that readers had to decode, and what to write instead: on all pages, but not in code."""
COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")
"""Scopes that run where they stand; those of other functions run later."""

EXPERIMENT = re.compile(r"^## \d+ · ", re.MULTILINE)
FENCE = re.compile(r"^[ >]*```+(?P<info>.*)$", re.MULTILINE)
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)[^)]*\)")


@dataclass(frozen=True)
class Page:
    """A built notebook as the rules see it."""

    path: Path
    cells: list[Cell]

    @property
    def code(self) -> list[Cell]:
        """The code cells."""
        return [cell for cell in self.cells if cell.kind == "code"]

    @property
    def visible(self) -> list[Cell]:
        """The code cells that are open when the notebook is."""
        return [cell for cell in self.code if not folded(cell)]

    @property
    def visible_lines(self) -> int:
        """What a participant reads of the code."""
        return sum(map(code_lines, self.visible))

    @property
    def prose(self) -> str:
        """All Markdown, one text."""
        return "\n\n".join(cell.text for cell in self.cells if cell.kind == "markdown")

    @property
    def words(self) -> int:
        """What a participant reads through: the rows of a reference's tables are looked up."""
        reference = self.path.name[:2] in REFERENCE
        return words(re.sub(r"^\|.*$", "", self.prose, flags=re.MULTILINE) if reference else self.prose)


def lint(path: Path) -> list[str]:
    """Everything that is wrong with one built file, one sentence each."""
    page = _page(path)
    rules: list[Callable[[Page], Iterator[str]]] = [_manner, _code, _links]
    rules += [_anatomy, _budgets, _alone] if path.parent.name == "notebooks" else [_exercise]
    return [problem for rule in rules for problem in rule(page)]


def words(prose: str) -> int:
    """Words that a reader reads: no code blocks, folded parts, alt texts, HTML tags, link targets."""
    prose = re.sub(r"```.*?```|<details>.*?</details>|!\[[^\]]*\]", " ", prose, flags=re.DOTALL)
    prose = re.sub(r"(`[^`]*`)|\]\([^)]*\)|</?[A-Za-z][^>]*>", lambda match: match[1] or " ", prose)
    return len(re.findall(r"\w[\w.,'\u2019/-]*", prose))


def code_lines(cell: Cell) -> int:
    """Lines of a cell that are not empty."""
    return sum(1 for line in cell.text.split("\n") if line.strip())


def folded(cell: Cell) -> bool:
    """Whether JupyterLab shows a bar in place of the cell's code."""
    return cell.kind == "code" and bool(cell.metadata.get("jupyter", {}).get("source_hidden"))


def _manner(page: Page) -> Iterator[str]:
    for before, cell in itertools.pairwise(page.cells):
        if folded(cell) and (before.kind != "markdown" or "folded" not in before.text):
            first = cell.text.split("\n")[0]
            yield f"the text before the folded cell {first!r} does not say what the *folded* cell does"
    for cell in page.cells:
        for pattern, what in FORBIDDEN.items():
            found = re.search(pattern, cell.text, flags=re.MULTILINE)
            if found:
                yield f"a {cell.kind} cell {what}: {found[0]!r}"
        if not cell.text.strip():
            yield "a cell is empty"
        if cell.kind == "markdown":
            yield from _fences(cell.text)
            yield from hard_to_read(cell.text)


def hard_to_read(text: str) -> Iterator[str]:
    """Yield the wording of a page that readers had to decode, each with what to write instead."""
    prose = " ".join(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL).split())
    for pattern, instead in HARD_TO_READ.items():
        found = re.search(pattern, prose)
        if found:
            yield f"{found[0]!r} is hard to read; write: {instead}"


def _fences(text: str) -> Iterator[str]:
    """Blocks of code that a viewer does not show as they were meant: re-wrapped, or without an end."""
    opened = ""
    for match in FENCE.finditer(text):
        fence, info = match[0].strip(), match["info"].strip()
        if " " in info:
            yield f"the fence {fence!r} holds more than a language, and no viewer shows the rest of its line"
        if opened and info:
            yield f"the block {opened!r} is not closed before {fence!r}"
        opened = fence if info or not opened else ""
    if opened:
        yield f"the block {opened!r} is not closed"


def _code(page: Page) -> Iterator[str]:
    for cell in page.code:
        first = cell.text.split("\n")[0]
        most = MAX_FOLDED_LINES if folded(cell) else MAX_CELL_LINES
        if code_lines(cell) > most:
            yield f"the cell {first!r} has {code_lines(cell)} lines, more than {most}"
        seen = [first] if folded(cell) else cell.text.split("\n")
        longest = max(map(len, seen))
        if longest > MAX_LINE_CHARACTERS:
            yield f"the cell {first!r} has a line of {longest} characters, more than {MAX_LINE_CHARACTERS}"
        try:
            tree = ast.parse(cell.text)
        except SyntaxError as error:
            yield f"the cell {first!r} is not plain Python ({error.msg})"
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _lines(node) > MAX_FUNCTION_LINES:
                yield f"the function {node.name} has {_lines(node)} lines, more than {MAX_FUNCTION_LINES}"


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (node.end_lineno or 0) - body[0].lineno + 2 if body else 1


def _links(page: Page) -> Iterator[str]:
    for match in LINK.finditer(re.sub(r"```.*?```|`[^`]*`", "", page.prose, flags=re.DOTALL)):
        target = match["target"]
        if match["image"] and not match["text"].strip():
            yield f"the image {target} has no alt text"
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, fragment = target.partition("#")
        if file and not (page.path.parent / file).exists():
            yield f"the link to {target} leads nowhere"
        if fragment and not file and fragment not in _anchors(page):
            yield f"the link to {target} leads to no heading"


def _anchors(page: Page) -> set[str]:
    return {title.replace(" ", "-") for _, title in headings(page)}


def headings(page: Page) -> list[tuple[int, str]]:
    """Level and text of every heading outside code blocks."""
    prose = re.sub(r"```.*?```", "", page.prose, flags=re.DOTALL)
    return [(len(m[1]), m[2].strip()) for m in re.finditer(r"^(#{1,6}) (.+)$", prose, re.MULTILINE)]


def _anatomy(page: Page) -> Iterator[str]:
    found = headings(page)
    number = page.path.name[:2]
    if not found or found[0][0] != 1 or not found[0][1].startswith(f"{number} · "):
        yield f"the first heading is not `# {number} · Title`"
    titles = [title for level, title in found if level == 2]
    parts = REFERENCE.get(number, HEADINGS)
    present = [title for title in titles if title in parts]
    if present != list(parts):
        yield f"the parts are {present}, not {list(parts)} in this order"
    for label in ("Minutes", "Machine", "Needs", "Data"):
        if f"**{label}**" not in page.cells[0].text:
            yield f"the first cell does not say **{label}**"
    if not page.code or f'start("{number}")' not in page.code[0].text:
        yield f'the first code cell does not call start("{number}")'
    experiments = [title for title in titles if re.match(r"\d+ · ", title)]
    if len(experiments) not in EXPERIMENTS:
        yield f"{len(experiments)} experiments (`## 1 · …`), not {_span(EXPERIMENTS)}"
    guesses = page.prose.count("> **Predict.**")
    if guesses not in PREDICTIONS:
        yield f"{guesses} guesses (`> **Predict.** …`), not {_span(PREDICTIONS)}"
    if not all(set(PRIORITIES) & set(cell.tags) for cell in page.cells if EXPERIMENT.search(cell.text)):
        yield f"an experiment is not tagged {' or '.join(PRIORITIES)}"
    if any("optional" in cell.tags and "*Optional, " not in cell.text for cell in page.cells):
        yield "an optional part does not say `*Optional, N minutes.*`, and tags are not seen"
    if QUIZ in present and not 2 <= page.prose.split(f"## {QUIZ}")[1].count("<details>") <= 3:
        yield f"the part {QUIZ!r} does not hold two or three questions with folded answers"
    code = "\n".join(cell.text for cell in page.code)
    shown = "\n".join(cell.text for cell in page.visible)
    if not re.search(r"^guess = ", code, re.MULTILINE) or not re.search(r"\bguess=.*\bguess\b", code):
        yield "no guess is kept and drawn (`guess = …`, `guess=guess`)"
    for name in SHOWS.get(number, ()):
        if name not in shown:
            yield f"{name} is taught here, and no visible cell shows it"
    if not any(re.search(r"show\.figure\(|plots\.|figures\.", cell.text) for cell in page.code):
        yield "no figure is drawn"


def _budgets(page: Page) -> Iterator[str]:
    cells, total = len(page.code), page.words
    if cells not in CODE_CELLS:
        yield f"{cells} code cells, not {_span(CODE_CELLS)}"
    if total not in WORDS:
        yield f"{total} words, not {_span(WORDS)}"
    if cells and round(total / cells) not in WORDS_A_CODE_CELL:
        yield f"{total / cells:.0f} words a code cell, not {_span(WORDS_A_CODE_CELL)}"
    if page.visible_lines > MAX_VISIBLE_LINES:
        yield f"{page.visible_lines} visible lines of code, more than {MAX_VISIBLE_LINES}"
    if cells and statistics.median(map(code_lines, page.visible)) > MAX_MEDIAN_LINES:
        yield f"a median of {statistics.median(map(code_lines, page.visible))} lines per visible code cell"


def _alone(page: Page) -> Iterator[str]:
    for first, name in unmade(page, lambda heading: "optional" in heading.tags):
        yield f"the cell {first!r} needs {name}, which is made in optional sections only, or nowhere"


def unmade(page: Page, skipped: Callable[[Cell], bool]) -> Iterator[tuple[str, str]]:
    """First line of a cell and a name that it needs in vain, if sections with these headings are not run."""
    known, skips = set(dir(builtins)), False
    waiting: list[tuple[str, str]] = []  # names in functions: they may be made later in the section
    for cell in [*page.cells, Cell("markdown", "## End")]:
        first = cell.text.split("\n")[0]
        if cell.kind == "markdown" and first.startswith("## "):
            yield from (pair for pair in waiting if pair[1] not in known)
            waiting, skips = [], skipped(cell)
        elif cell.kind == "code" and not skips:
            found = list(_globals(cell))
            known |= {name.get_name() for name, _ in found if name.is_assigned() or name.is_imported()}
            needs = sorted({(later, name.get_name()) for name, later in found})
            waiting += [(first, name) for later, name in needs if later]
            yield from ((first, name) for later, name in needs if not later and name not in known)


def _globals(cell: Cell) -> Iterator[tuple[symtable.Symbol, bool]]:
    """Names of the notebook in a cell, and whether they are needed only when a function is called."""
    try:
        tables = [(symtable.symtable(cell.text, "cell", "exec"), False)]
    except SyntaxError:
        return  # `_code` reports it
    for table, later in tables:
        yield from ((symbol, later) for symbol in table.get_symbols() if symbol.is_global())
        for inner in table.get_children():
            called = inner.get_type() == "function" and inner.get_name() not in COMPREHENSIONS
            tables.append((inner, later or called))


def _exercise(page: Page) -> Iterator[str]:
    found = headings(page)
    if not found or not re.match(rf"Exercise {page.path.name[:2]} · ", found[0][1]):
        yield f"the first heading is not `# Exercise {page.path.name[:2]} · Title`"
    first = page.cells[0].text
    if not re.search(r"★{1,3}☆{0,2}", first) or "minutes" not in first:
        yield "the first cell does not give stars and minutes"
    if not any("checks" in cell.text for cell in page.code):
        yield "no check is imported"
    if page.path.parent.name == "exercises" and "<details>" not in page.prose:
        yield "there is no folded hint (`<details>`)"
    if re.search(r"</summary>\n(?!\n)", page.prose):
        yield "a blank line is missing after </summary>, so that the hint does not render"
    for title, task in re.findall(r"^## (Task[^\n]*)\n(.*?)(?=^## |^<details>|\Z)", page.prose, re.M | re.S):
        if words(task) > TASK_WORDS:
            yield f"{title!r} takes {words(task)} words, more than {TASK_WORDS}"


def _span(numbers: range) -> str:
    return f"{numbers[0]} to {numbers[-1]}"


def pages(root: Path) -> list[Path]:
    """Every built notebook of the course."""
    return [p for f in ("notebooks", "exercises", "solutions") for p in sorted((root / f).glob("*.ipynb"))]


def course(paths: Sequence[Path]) -> Iterator[str]:
    """What is asked of all notebooks together."""
    lines = [_page(path).visible_lines for path in paths if path.parent.name == "notebooks"]
    if lines and statistics.median(lines) > MAX_MEDIAN_VISIBLE_LINES:
        yield (
            f"notebooks: a median of {statistics.median(lines):.0f} visible lines of code, "
            f"more than {MAX_MEDIAN_VISIBLE_LINES}"
        )


def _page(path: Path) -> Page:
    return Page(path, from_notebook(path.read_text(encoding="utf-8")))


def _row(path: Path) -> str:
    page = _page(path)
    lines = [code_lines(cell) for cell in page.visible] or [0]
    return (
        f"{path.parent.name + '/' + path.name:48} {page.words:6} words "
        f"{page.visible_lines:4} visible lines, "
        f"{len(page.code):2} code cells, {len(page.code) - len(page.visible):2} folded, "
        f"median {statistics.median(lines):.0f}, longest {max(lines)} lines"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(description="Lint the built notebooks.")
    parser.add_argument("paths", type=Path, nargs="*", help="built notebooks; default: all")
    parser.add_argument("--table", action="store_true", help="print sizes instead of problems")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    arguments = parser.parse_args(argv)
    chosen = arguments.paths or pages(arguments.root)
    if arguments.table:
        print("\n".join(map(_row, chosen)))
        return 0
    problems = [f"{path.parent.name}/{path.name}: {problem}" for path in chosen for problem in lint(path)]
    problems += course(chosen)
    texts = [] if arguments.paths else [*arguments.root.glob("*.md"), *arguments.root.glob("docs/*.md")]
    problems += [f"{path.name}: {problem}" for path in texts for problem in hard_to_read(path.read_text())]
    print("\n".join(problems) or f"{len(chosen)} notebooks keep the budgets")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
