"""The course as a web page: every page is there, every link leads somewhere, nothing comes from elsewhere.

The page is built here without executing the notebooks. `SITE=site_output/html pytest THIS_FILE` looks at
every page of one that `make site` has made, with all figures.
"""

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import tarfile
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (1280, 390)
KINDS = ("docs/index", "docs/instructor_guide", "docs/comparison", "docs/cli", "docs/api/02_manifest")
KINDS += ("notebooks/01_count_the_cost_of_small_files", "exercises/03_pack_arrow")
LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
WIDER = """() => [...document.querySelectorAll('body *')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1 && getComputedStyle(e).position !== 'fixed'
    && !e.closest('pre, table, .cell_output, aside, .sidebar-drawer, .toc-drawer, .mobile-header')
).slice(0, 3).map(e => e.outerHTML.slice(0, 120))"""

pytestmark = pytest.mark.timeout(400)


class Page(HTMLParser):
    """What a page links to, loads, names, and shows."""

    def __init__(self, text):
        super().__init__()
        self.links, self.loads, self.anchors, self.images = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        self.loads += [found[name] for kind, name in LOADS if kind == tag and found.get(name)]
        if tag == "img":
            self.images.append(found.get("alt") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built page."""
    if made := os.environ.get("SITE"):
        return Path(made).absolute()
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, str(ROOT / "tools" / "build_site.py"), "--no-execute", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "html"


@pytest.fixture(scope="module")
def pages(site):
    """Every page by its path."""
    return {path.relative_to(site).as_posix(): Page(path.read_text()) for path in site.rglob("*.html")}


def is_elsewhere(url):
    return bool(urlsplit(url).netloc)


def test_every_document_notebook_and_exercise_has_its_page(pages):
    sources = [*ROOT.glob("docs/*.md"), *ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*.ipynb")]
    wanted = {path.relative_to(ROOT).with_suffix(".html").as_posix() for path in sources}
    assert wanted | {"index.html", "search.html", "docs/cli.html", "docs/comparison.html"} <= set(pages)
    assert sum(name.startswith("docs/api/") for name in pages) > 15


def test_the_first_page_says_whether_the_notebooks_were_executed(site):
    executed = any("cell_output" in path.read_text() for path in site.glob("notebooks/*.html"))
    text = (site / "docs/index.html").read_text()
    assert ("were executed" in text, "were not executed" in text) == (executed, not executed)


def test_nothing_is_loaded_from_another_host(site, pages):
    assert {name: url for name, page in pages.items() for url in page.loads if is_elsewhere(url)} == {}
    for style in site.rglob("*.css"):
        assert "url(http" not in style.read_text() and "@import" not in style.read_text(), style


def test_every_link_within_the_site_leads_somewhere(site, pages):
    broken = []
    for name, page in pages.items():
        for link in page.links:
            if is_elsewhere(link) or urlsplit(link).scheme or link == "#":
                continue
            path, anchor = urldefrag(link)
            target = Path(os.path.normpath(Path(name).parent / unquote(path))).as_posix() if path else name
            there = pages.get(target)
            if not (site / target).exists() or (anchor and there and unquote(anchor) not in there.anchors):
                broken.append(f"{name}: {link}")
    assert broken == []


def test_every_image_is_described(pages):
    assert [name for name, page in pages.items() if not all(len(alt) > 10 for alt in page.images)] == []


@pytest.fixture(scope="module")
def address(site):
    """The site as served by this machine."""
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    handler = functools.partial(quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def opened(chromium, left):
    """A page of the browser that notes each request to another host."""
    page = chromium.new_page(viewport={"width": WIDTHS[0], "height": 900})
    page.on("request", lambda request: left.append(request.url) if is_foreign(request.url) else None)
    yield page
    page.close()


def is_foreign(url):
    return urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname != "127.0.0.1"


def test_no_page_asks_another_host_or_is_wider_than_its_window(chromium, address, pages):
    one_of_each = {f"{kind}.html" for kind in KINDS}
    looked_at = set(pages) - {"index.html"} if "SITE" in os.environ else one_of_each  # index.html leads on
    left, wide = [], {}
    with opened(chromium, left) as page:
        for name in looked_at:
            page.set_viewport_size({"width": WIDTHS[0], "height": 900})
            page.goto(f"{address}/{name}")
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                if page.evaluate("document.documentElement.scrollWidth > innerWidth") or page.evaluate(WIDER):
                    wide[f"{name} at {width}"] = page.evaluate(WIDER)
    assert left == [] and wide == {}


def test_the_search_finds_a_page(chromium, address):
    left = []
    with opened(chromium, left) as page:
        page.goto(f"{address}/search.html?q=inode")
        page.locator("ul.search li a").first.wait_for(timeout=20_000)
    assert left == []


@pytest.fixture(scope="module")
def axe(need_tool, tmp_path_factory):
    """axe-core's script, fetched into a folder of the test."""
    folder = tmp_path_factory.mktemp("axe")
    command = [need_tool("npm", "npm"), "pack", "axe-core@4", "--silent", "--fetch-retries=0"]
    done = subprocess.run(command, cwd=folder, capture_output=True)
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        pytest.skip("axe-core: not installed, and no npm registry can be reached")
    with tarfile.open(archives[0]) as archive:
        return archive.extractfile("package/axe.min.js").read().decode()


@pytest.mark.parametrize("colours", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_serious(chromium, address, axe, colours):
    found = {}
    with opened(chromium, []) as page:
        page.emulate_media(color_scheme=colours)
        for name in KINDS:
            page.goto(f"{address}/{name}.html")
            page.evaluate(axe)
            violations = page.evaluate("axe.run().then(result => result.violations)")
            for each in violations:
                if each["impact"] in ("serious", "critical"):
                    found[f"{name}: {each['id']}"] = [node["html"][:150] for node in each["nodes"][:3]]
    assert found == {}
