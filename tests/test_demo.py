"""The demo: the whole road, the page, re-runs, your own data untouched."""

import hashlib
import html.parser
import json
import re
from pathlib import Path

import pytest

from smallfiles.cli import main
from smallfiles.demo import DemoConfig
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
    assert [row.name for row in result.rows] == ["plain files", "arrow", "hdf5", "tar", "squashfs"]
    assert result.samples == 40
    names = {path.name for path in config.out.iterdir()}
    assert {"manifest.json", "packed", "report.html", "reads.svg", "reads.png"} <= names
    assert not any(name.endswith(".part") for name in names)


def test_the_manifest_of_the_demo_finds_its_files(done):
    from smallfiles import sources

    config, _, _ = done
    source = sources.load(config.out / "manifest.json")
    assert source.store.size(source.manifest.path(0)) > 0


class Checker(html.parser.HTMLParser):
    VOID = {"meta", "img", "br", "link"}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.images, self.links = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attributes = dict(attrs)
        if tag == "img":
            self.images.append(attributes)
        self.links += [attributes[name] for name in ("src", "href", "srcset", "action") if name in attributes]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_html_and_asks_nobody(done):
    _, result, _ = done
    text = result.report.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    page = Checker()
    page.feed(text)
    assert page.open == []
    assert all(link.startswith("data:") for link in page.links)
    assert "url(" not in text and "@import" not in text and "<script" not in text
    assert page.images[0]["alt"].startswith("Bar chart.")
    assert 'name="viewport"' in text and '<html lang="en">' in text
    assert text.count('scope="row"') == 5
    assert not re.search(r"\$\w", text)


def test_the_page_says_how_to_run_it_on_ones_own_data(done):
    _, result, _ = done
    text = result.report.read_text(encoding="utf-8")
    assert "smallfiles demo --data DIR" in text


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


def test_your_own_data_is_only_read_and_captions_work(captions, tmp_path, capsys):
    before = tree_digest(captions)
    words = ["demo", "--data", str(captions), "--out", str(tmp_path / "out"), "--repeats", "1"]
    capsys.readouterr()
    assert main(words) == 0
    assert tree_digest(captions) == before
    table = capsys.readouterr().out
    assert "plain files" in table and "× plain" in table  # noqa: RUF001
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["target"] == "captions"


def test_a_large_data_set_is_thinned_evenly(captions, tmp_path):
    lines = []
    result = run(DemoConfig(captions, 5, tmp_path / "out", 1), lines.append)
    assert result.samples == 5
    assert any(re.match(r"note: 5 of \d+ samples are taken, evenly spread", line) for line in lines)


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
    from smallfiles.demo import steps

    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "bench_reads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(DemoConfig(count=8, out=tmp_path / "out"), lambda line: None)
    assert not list((tmp_path / "out").glob("*.html"))
    assert not list(Path(tmp_path / "out").rglob("*.part"))
