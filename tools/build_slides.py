"""Slides for teaching, one file for each plan of the instructor guide.

    python tools/build_slides.py        writes site_output/slides/*.html; `make slides` calls it

A plan is a table in the guide, and each of its rows becomes some slides. The guide also holds what the
speaker says about a section (hook, question, wrong answers, explanation, bridge). The notebooks hold the
pictures, the code, and the figures: a cell with the tag `slide` is shown with its output. So nothing is
written twice. A notebook is executed if it has changed since `make site` or `make slides` executed it.

The files need no network. Arrow keys turn the pages, `s` opens a window with the speaker notes, and the
browser's print dialogue makes a PDF.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import base64
import html
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_site import anonymous, executed, read
from markdown_it import MarkdownIt
from percent import Cell, from_notebook
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "site_output"
OUTPUT_LINES = 12
SLIDE_LINES = 22  # of code and output on one slide
FIGURE_WIDTH = 34  # in such lines: three quarters of the slide
PARTS = ("Hook", "Ask", "Wrong answers", "Explanation", "Bridge")
PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)]+)\)")
NO_GUESS = re.compile(r"[;,]? *\(?your guess:? *None\)?")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\([^)]*\)")
VIEW_BOX = re.compile(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"')
SECTIONS = re.compile(
    r"(?P<notebook>\d\d)\b(?: sections? (?P<only>\d[\d, to]*))?"
    r"(?: \(without sections? (?P<without>\d[\d, ]*))?"
)
EXERCISE = re.compile(
    r"\bexercise (?P<number>\d\d)(?!: homework)"
    r"(?:, (?:part [ab] \()?tasks? (?P<tasks>[\dab](?:(?:, | and | to )[\dab])*))?"
)
STYLE = """
:root { color-scheme: light; font-size: min(2.1vw, 3.75vh); --soft: #5a6270; --line: #0072b2; }
* { box-sizing: border-box; }
html { scroll-snap-type: y mandatory; }
body { margin: 0; font: 1rem/1.4 system-ui, sans-serif; color: #1d2129; background: #fff; }
section { height: 100vh; padding: 1.2rem 2.6rem 1.8rem; display: flex; flex-direction: column;
  position: relative; overflow: hidden; scroll-snap-align: start; }
section > header, section > footer { color: var(--soft); font-size: .62rem; flex: none; }
section > footer { position: absolute; left: 2.6rem; right: 2.6rem; bottom: .6rem; display: flex;
  justify-content: space-between; }
main { flex: 1; min-height: 0; padding-top: .3rem; display: flex; flex-direction: column;
  justify-content: center; gap: .7rem; font-size: calc(1rem * var(--fit, 1)); }
h1, h2, p, ul, ol, pre, blockquote { margin: 0; flex: none; }
h1 { font-size: 1.9em; line-height: 1.2; } h2 { font-size: 1.35em; line-height: 1.2; }
li { margin: .25em 0; }
blockquote { padding: .2em 0 .2em .8em; border-left: .2em solid var(--line); font-size: 1.2em; }
.takeaway { padding: .5em .8em; background: #eaf3f9; border-left: .2em solid var(--line); }
img { flex: 1 1 0; min-height: 0; width: 100%; object-fit: contain; }
pre { font: .66em/1.4 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre-wrap; }
pre.code { background: #f5f6f8; padding: .8em 1em; border-radius: .4em; }
pre.output { padding: 0 1em; color: #333; }
code { font-size: .9em; } pre code { font-size: 1em; }
aside { display: none; }
@media print { @page { size: 297mm 167mm; margin: 0; } :root { font-size: 6.2mm; }
  html { scroll-snap-type: none; }
  section { height: 167mm; break-after: page; break-inside: avoid; } }
"""
TURN = """
const pages = [...document.querySelectorAll("section")];
let notes = null;
const here = () => pages.findIndex(page => page.getBoundingClientRect().bottom > innerHeight / 2);
function tell(page) {
  if (!notes || notes.closed) return;
  const [clock, said] = ["footer", "aside"].map(name => page.querySelector(name).innerHTML);
  notes.document.body.innerHTML = clock + said;
}
addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "s") {
    notes = open("", "notes", "width=700,height=800");
    notes.document.title = "Notes";
    notes.document.body.style.font = "18px/1.5 system-ui, sans-serif";
    return tell(pages[Math.max(0, here())]);
  }
  const forward = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1};
  const by = forward[event.key] ?? {ArrowLeft: -1, ArrowUp: -1, PageUp: -1}[event.key];
  if (!by) return;
  event.preventDefault();
  const page = pages[Math.min(pages.length - 1, Math.max(0, here() + by))];
  page.scrollIntoView();
  tell(page);
});
for (const main of document.querySelectorAll("main"))  // text that is too long for its slide becomes smaller
  for (let fit = 1; main.scrollHeight > main.clientHeight + 1 && fit > 0.5; fit -= 0.04)
    main.style.setProperty("--fit", fit);
"""
MARKDOWN = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True)
class Slide:
    """One page: where it belongs, what it shows (HTML), and what the speaker says (Markdown)."""

    place: str
    body: str
    notes: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a plan."""

    clock: str
    minutes: str
    what: str
    skip: str = ""


class Course:
    """The texts that slides are made from.

    Args:
        root: The repository.
        kept: Where executed notebooks are; None shows no outputs.
    """

    def __init__(self, root: Path, kept: Path | None) -> None:
        self.root, self.kept = root, kept
        self.guide = (root / "docs" / "instructor_guide.md").read_text(encoding="utf-8")

    def plans(self) -> dict[str, list[Row]]:
        """The rows of each plan by the plan's title."""
        part = self.guide.split("## Three plans")[1].split("### When you are late")[0]
        found = {}
        for text in part.split("\n### ")[1:]:
            title = text.partition("\n")[0]
            cells = [
                [cell.strip() for cell in line.strip("|").split("|")]
                for line in text.splitlines()
                if line[:1] == "|"
            ]
            found[title] = [
                Row(row[0], row[1], LINK.sub(r"\1", row[2]), *row[3:]) for row in cells if ":" in row[0]
            ]
        return found

    def said(self, notebook: str) -> dict[int, dict[str, str]]:
        """What the guide says about the sections of a notebook: their parts by number."""
        text = self.guide.split(f"\n### {notebook} · ")[1].split("\n## ")[0].split("\n### ")[0]
        found = {}
        for block in re.split(r"^\*\*Section ", text, flags=re.MULTILINE)[1:]:
            parts = re.split(rf"^\*({'|'.join(PARTS)})\*: ", block, flags=re.MULTILINE)
            found[int(block.split(",")[0])] = dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))
        return found

    def expected(self, notebook: str) -> str:
        """The guide's table of answers to a notebook's predictions."""
        text = self.guide.split(f"\n### {notebook} · ")[1]
        return text.partition("\n")[2].split("**Section ")[0].strip()

    def cells(self, folder: str, number: str) -> list[tuple[Cell, list[Any]]]:
        """The cells of a notebook or an exercise, each with its outputs."""
        path = next((self.root / folder).glob(f"{number}_*.ipynb"))
        cells = from_notebook(path.read_text(encoding="utf-8"))
        outputs: list[list[Any]] = [[] for _ in cells]
        if folder == "notebooks" and self.kept is not None:
            outputs = [cell.get("outputs", []) for cell in read(executed(path, self.kept / path.name)).cells]
        return list(zip(cells, outputs, strict=True))


def deck(course: Course, rows: list[Row]) -> Iterator[Slide]:
    """The slides of a plan."""
    for row in rows:
        clock = f"{row.clock} · {row.minutes} minutes"
        sections, exercise = (
            SECTIONS.match(row.what.removeprefix("Welcome; ")),
            EXERCISE.search(row.what.lower()),
        )
        if not sections and not exercise:
            head, _, rest = row.what.partition(": ")
            points = "\n".join(f"- {point}" for point in re.split(r"; |, then ", rest) if point)
            yield Slide(clock, shown(f"# {head}\n\n{points}"), row.what)
        elif sections:
            for slide in _notebook(course, row, sections):
                yield Slide(f"{clock}\t{slide.place}", slide.body, slide.notes)
        if exercise:
            for slide in _exercise(course, exercise):
                yield Slide(
                    f"{clock}\t{slide.place}", slide.body, f"{row.what}. Skip: {row.skip or 'nothing'}."
                )


def _notebook(course: Course, row: Row, chosen: re.Match[str]) -> Iterator[Slide]:
    number = chosen["notebook"]
    cells, said = course.cells("notebooks", number), course.said(number)
    title = cells[0][0].text.splitlines()[0][2:]
    sections = dict(_sections(cells))
    only = _numbers(chosen["only"]) or {n for n in said if "optional" not in sections[n][0][0].tags}
    only -= _numbers(chosen["without"])
    names = {n: sections[n][0][0].text.splitlines()[0].split("· ", 1)[1] for n in sorted(only)}
    listed = "\n".join(f"- {name}" for name in names.values())
    notes = f"{row.what}. Skip: {row.skip or 'nothing'}.\n\n{course.expected(number)}"
    yield Slide(title, shown(f"# {title}\n\n{listed}"), notes)
    for n, name in names.items():
        for slide in _section(course, sections[n], said[n], name):
            yield Slide(f"{title}: {name}", slide.body, slide.notes)
    if len(names) > 1:
        kept = "\n".join(f"- {said[n]['Explanation']}" for n in names)
        yield Slide(title, shown(f"## What to keep\n\n{kept}"), said[max(names)]["Bridge"])


def _sections(cells: list[tuple[Cell, list[Any]]]) -> Iterator[tuple[int, list[tuple[Cell, list[Any]]]]]:
    begins = [at for at, (cell, _) in enumerate(cells) if cell.kind == "markdown" and cell.text[:3] == "## "]
    for begin, end in zip(begins, [*begins[1:], len(cells)], strict=True):
        heading = re.match(r"## (\d+) · ", cells[begin][0].text)
        if heading:
            yield int(heading[1]), cells[begin:end]


def _section(
    course: Course, cells: list[tuple[Cell, list[Any]]], said: dict[str, str], name: str
) -> Iterator[Slide]:
    """The hook and the question, then pictures, code and figures; the last one shows the explanation."""
    quoted = re.search(r"[“\"]([^”\"]+)[”\"]", said["Hook"])
    hook = f"{quoted[1]}\n\n" if quoted else ""
    before = "\n\n".join(f"**{part}.** {said[part]}" for part in PARTS[:3])
    after = "\n\n".join(f"**{part}.** {said[part]}" for part in PARTS[2:])
    yield Slide("", shown(f"## {name}\n\n{hook}> {said['Ask']}"), before)
    bodies = packed([body for cell, outputs in cells for body in _bodies(course, cell, outputs)]) or [""]
    for number, body in enumerate(bodies, start=1):
        takeaway = (
            f'<div class="takeaway">{shown(said["Explanation"])}</div>' if number == len(bodies) else ""
        )
        yield Slide("", body + takeaway, after)


def packed(bodies: list[tuple[int, str]]) -> list[str]:
    """Neighbours share a slide if there is room: each body with its height in lines of code."""
    slides: list[tuple[int, str]] = []
    for lines, body in bodies:
        if slides and slides[-1][0] + lines <= SLIDE_LINES:
            slides[-1] = slides[-1][0] + lines, slides[-1][1] + body
        else:
            slides.append((lines, body))
    return [body for _, body in slides]


def _bodies(course: Course, cell: Cell, outputs: list[Any]) -> Iterator[tuple[int, str]]:
    if cell.kind == "markdown":
        for picture in PICTURE.finditer(cell.text):
            data = base64.b64encode((course.root / "notebooks" / picture["path"]).read_bytes()).decode()
            image = f'<img alt="{html.escape(picture["alt"])}" src="data:image/svg+xml;base64,{data}">'
            yield _height(image), image
    elif "slide" in cell.tags:
        figures = [image for output in outputs for image in re.findall(r"<img [^>]+>", _html(output))]
        text = NO_GUESS.sub("", anonymous("".join(map(_text, outputs)))).strip("\n").split("\n")
        code = highlight(cell.text, PythonLexer(), HtmlFormatter(nowrap=True, noclasses=True))
        end = ["…"] if len(text) > OUTPUT_LINES else []
        output = html.escape("\n".join(text[:OUTPUT_LINES] + end))
        body = f'<pre class="code">{code}</pre>' + f'<pre class="output">{output}</pre>' * bool(output)
        lines = body.count("\n") + 3 + sum(map(_height, figures))
        if cell.metadata.get("jupyter", {}).get("source_hidden") or (figures and lines > SLIDE_LINES):
            yield from ((_height(figure), figure) for figure in figures)
        else:
            yield lines, body + "".join(figures)


def _height(image: str) -> int:
    """How many lines of code an image of three quarters of the slide's width is high."""
    box = VIEW_BOX.search(base64.b64decode(image.partition("base64,")[2].partition('"')[0]))
    return math.ceil(FIGURE_WIDTH * float(box[2]) / float(box[1])) if box else 0


def _html(output: Any) -> str:
    return "".join(output.get("data", {}).get("text/html", ""))


def _text(output: Any) -> str:
    data = output.get("data", {})
    text = "".join(output.get("text", data.get("text/plain", "")))
    return "" if "<img " in _html(output) else re.sub(r"^```.*\n?", "", text, flags=re.MULTILINE)


def _exercise(course: Course, chosen: re.Match[str]) -> Iterator[Slide]:
    cells = [cell.text for cell, _ in course.cells("exercises", chosen["number"]) if cell.kind == "markdown"]
    heading, effort = cells[0].split("\n\n")[:2]
    title, wanted = heading[2:], _numbers(chosen["tasks"])
    texts = [f"{heading}\n\n{effort}"]
    for text in cells:
        task = re.match(r"## Task ?(\w?)", text)
        if task and (not wanted or _numbers(task[1]) <= wanted):
            texts.append(text.split("<details>")[0])
    for body in packed([(len(text) // 50 + 4, shown(text)) for text in texts]):
        yield Slide(title, body)


def _numbers(text: str | None) -> set[Any]:
    """The numbers of `1, 3 to 5`; a letter stays a letter."""
    text = (text or "").lower()
    found: set[Any] = set(re.findall(r"\b[ab]\b", text))
    for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
        found |= set(range(int(first), int(last or first) + 1))
    return found


def shown(markdown: str) -> str:
    """Markdown as HTML, links as their text."""
    return str(MARKDOWN.render(LINK.sub(r"\1", markdown)))


def page(title: str, slides: list[Slide]) -> str:
    """A deck as one HTML file."""
    sections = []
    for number, slide in enumerate(slides, start=1):
        clock, _, place = slide.place.partition("\t")
        foot = f"<footer><span>{html.escape(clock)}</span><span>{number} / {len(slides)}</span></footer>"
        sections.append(
            f"<section><header>{html.escape(place) or '&nbsp;'}</header><main>{slide.body}</main>{foot}"
            f"<aside>{shown(slide.notes)}</aside></section>"
        )
    body = "\n".join(sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Small Files, Big Machines · {title}</title><style>{STYLE}</style></head><body>\n{body}\n"
        f"<script>{TURN}</script></body></html>\n"
    )


def build(root: Path, kept: Path | None) -> dict[str, str]:
    """The decks of all plans: the name of each file and its content."""
    course = Course(root, kept)
    decks = {}
    for title, rows in course.plans().items():
        cover = Slide("", shown(f"# Small Files, Big Machines\n\n{title}"), "Press `s` for these notes.")
        decks[f"{title.lower().replace(' ', '_')}.html"] = page(title, [cover, *deck(course, rows)])
    return decks


def main() -> int:
    """Write the files, and print their names."""
    parser = argparse.ArgumentParser(description="Build the slides of each plan.")
    parser.add_argument(
        "--out", type=Path, default=OUT / "slides", help="folder (default: site_output/slides)"
    )
    parser.add_argument("--no-execute", action="store_true", help="show no outputs of the notebooks")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, text in build(ROOT, None if options.no_execute else OUT / "executed").items():
        (options.out / name).write_text(text, encoding="utf-8")
        print(f"{options.out / name}: open it in a browser; `s` opens the speaker notes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
