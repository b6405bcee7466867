"""The demo: the whole road, the page, re-runs, your own data untouched."""

import hashlib
import html.parser
import re
from pathlib import Path

import pytest

from smallfiles import sources
from smallfiles.cli import main
from smallfiles.demo import DemoConfig, steps
from smallfiles.demo.steps import run
from smallfiles.errors import OutputExistsError, SourceError, UsageError


def tree_digest(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        about = path.stat()
        digest.update(f"{path}{about.st_mtime_ns}{about.st_size}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    lines = []
    config = DemoConfig(count=40, out=tmp_path_factory.mktemp("demo") / "out", repeats=2)
    return config, run(config, lines.append), lines


def test_the_demo_walks_the_whole_road(done):
    config, result, _ = done
    assert [row[0] for row in result.table.rows] == ["plain files", "arrow", "hdf5", "tar", "squashfs"]
    assert result.samples == 40
    names = {path.name for path in config.out.iterdir()}
    assert {"manifest.json", "packed", "report.html", "reads.svg", "reads.png"} <= names
    assert not any(name.endswith(".part") for name in names)
    source = sources.load(config.out / "manifest.json")
    assert source.store.size(source.manifest.path(0)) > 0


class Checker(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.images, self.links = [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.images += [attributes] * (tag == "img")
        self.links += [attributes[name] for name in ("src", "href", "srcset", "action") if name in attributes]
        self.open += [tag] * (tag not in {"meta", "img", "br", "link"})

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_html_and_asks_nobody(done):
    _, result, _ = done
    text = result.report.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>") and "smallfiles demo --data DIR" in text
    page = Checker()
    page.feed(text)
    assert page.open == []
    assert all(link.startswith("data:") for link in page.links)
    assert "url(" not in text and "@import" not in text and "<script" not in text
    assert page.images[0]["alt"].startswith("Bar chart.")
    assert 'name="viewport"' in text and '<html lang="en">' in text
    assert text.count('scope="row"') == 5
    assert not re.search(r"\$\w", text)


def test_a_second_run_uses_the_data_again_and_replaces_the_rest(done):
    config, first, _ = done
    before = tree_digest(config.out / "images-40-seed0")
    lines = []
    second = run(config, lines.append)
    assert any("from an earlier run" in line for line in lines)
    assert tree_digest(config.out / "images-40-seed0") == before
    assert second.report == first.report


@pytest.fixture
def captions(tmp_path):
    folder = tmp_path / "flickr"
    assert main(["synth", str(folder), "--layout", "flickr30k", "--count", "12"]) == 0
    return folder


def test_your_own_data_is_only_read_and_thinned_evenly_and_captions_work(captions, tmp_path, capsys):
    before = tree_digest(captions)
    words = ["--data", str(captions), "--out", str(tmp_path / "out"), "--repeats", "1", "--count", "5"]
    capsys.readouterr()
    assert main(["demo", *words]) == 0
    assert tree_digest(captions) == before
    told = capsys.readouterr()
    assert f"smallfiles inspect {tmp_path / 'out/packed/set.arrow'} --picture sheet.html\n" in told.out
    assert "plain files" in told.out and "× plain" in told.out  # noqa: RUF001
    assert re.search(r"^note: 5 of \d+ samples are taken, evenly spread", "".join(told), re.MULTILINE)
    root = captions / "flickr30k_images" / "flickr30k_images"
    manifest = sources.load(tmp_path / "out" / "manifest.json", root=root).manifest
    assert len(manifest) == 5 and manifest.target_kind == "captions"


def test_output_inside_the_data_is_refused(captions):
    with pytest.raises(UsageError, match="inside the data"):
        run(DemoConfig(captions, out=captions / "out"), print)


def test_data_that_cannot_be_loaded_leaves_no_folder(tmp_path):
    with pytest.raises(SourceError, match="nowhere does not exist"):
        run(DemoConfig(tmp_path / "nowhere", out=tmp_path / "out"), print)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_a_demos_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(OutputExistsError, match="no demo wrote"):
        run(DemoConfig(out=tmp_path), print)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_interrupted_demo_publishes_no_report(tmp_path, monkeypatch):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "bench_reads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(DemoConfig(count=8, out=tmp_path / "out"), lambda line: None)
    assert not list((tmp_path / "out").glob("*.html"))
    assert not list(Path(tmp_path / "out").rglob("*.part"))
