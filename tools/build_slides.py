"""Slides for teaching, made from the notebooks: their pictures, questions, predictions and key points.

    python tools/build_slides.py        writes site_output/slides.html; `make slides` calls it

One file that needs no network: arrow keys and Page Up/Down turn the pages, the browser prints them as PDF.
What a notebook says is what the slide says, so there is nothing to keep up to date.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import base64
import html
import re
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from percent import parse

ROOT = Path(__file__).resolve().parents[1]
PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)]+)\)")
PREDICT = re.compile(r"^> \*\*Predict\.\*\*.*(?:\n>.*)*", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\([^)]*\)")
STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --soft: #667; }
@media (prefers-color-scheme: dark) { :root { --ink: #eee; --paper: #181818; --soft: #aab; } }
* { box-sizing: border-box; }
html { scroll-snap-type: y mandatory; }
body { margin: 0; font: clamp(16px, 2.3vw, 30px)/1.4 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
section { min-height: 100vh; padding: 5vh 7vw; display: flex; flex-direction: column; justify-content: center;
  scroll-snap-align: start; }
section > small { color: var(--soft); }
h1 { font-size: 1.8em; } h2 { font-size: 1.3em; margin: 0 0 .6em; } li { margin: .3em 0; }
blockquote { margin: 0; padding-left: 1em; border-left: .25em solid var(--soft); }
img { width: 100%; height: 64vh; object-fit: contain; }
code { font-size: .9em; }
@media print { @page { size: 297mm 167mm; margin: 0; } html { scroll-snap-type: none; }
  body { font-size: 20px; } img { height: 105mm; }
  section { height: 167mm; min-height: 0; break-after: page; break-inside: avoid; } }
"""
TURN = """
const pages = [...document.querySelectorAll("section")];
addEventListener("keydown", event => {
  const forward = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1};
  const by = forward[event.key] ?? {ArrowLeft: -1, ArrowUp: -1, PageUp: -1}[event.key];
  if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const now = pages.findIndex(page => page.getBoundingClientRect().bottom > innerHeight / 2);
  pages[Math.min(pages.length - 1, Math.max(0, now + by))].scrollIntoView();
});
"""


def slides(source: Path) -> Iterator[str]:
    """The slides of one notebook as Markdown: its questions, each picture and prediction, its key points."""
    prose = [cell.text for cell in parse(source.read_text(encoding="utf-8")) if cell.kind == "markdown"]
    title = prose[0].splitlines()[0].removeprefix("# ")
    part = title
    for text in prose:
        heading = re.match(r"## (.+)", text)
        part = heading[1] if heading else part
        if part == "Questions":
            yield f"# {title}\n\n" + text.partition("\n")[2]
        elif part == "Key points" and heading:
            yield text
        for picture in PICTURE.finditer(text):
            yield f"## {part}\n\n{picture[0]}"
        for guess in PREDICT.findall(text):
            yield f"## {part}\n\n{guess}"


def page(root: Path) -> str:
    """All slides as one HTML file."""
    sections = []
    render = MarkdownIt("commonmark").enable("table").render
    for source in sorted((root / "notebooks" / "src").glob("*.py")):
        for number, text in enumerate(slides(source), start=1):
            foot = f"<small>{source.stem[:2]}.{number}</small>"
            shown = render(LINK.sub(r"\1", text))
            shown = re.sub(r'src="([^"]+)"', lambda m: f'src="{_embedded(root / "notebooks" / m[1])}"', shown)
            sections.append(f"<section>{shown}{foot}</section>")
    body = "\n".join(sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Small Files, Big Machines</title><style>{STYLE}</style></head><body>\n{body}\n"
        f"<script>{TURN}</script></body></html>\n"
    )


def _embedded(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return html.escape(f"data:image/svg+xml;base64,{data}")


def main() -> int:
    """Write the file, and print its name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site_output" / "slides.html")
    out = parser.parse_args().out
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page(ROOT), encoding="utf-8")
    print(f"{out}: open it in a browser; its print dialogue makes a PDF")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
