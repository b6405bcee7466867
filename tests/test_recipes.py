"""Each recipe is short and runs as it is printed; the pages name nothing that is not there."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import wave
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from smallfiles import objectstore, sources
from smallfiles.cli import flags_of_verbs
from smallfiles.manifest import Manifest
from smallfiles.measure.drawing import as_page, throughput
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic
from smallfiles.sources.folder import FolderStore
from smallfiles.sources.record import Source

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^## (.+?)$.*?^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECIPES = {
    name: block
    for page in ("recipes", "how_to_pack", "pysquashfs")
    for name, *block in BLOCK.findall((ROOT / f"docs/{page}.md").read_text())
}
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))]
MOST_LINES = 15


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the recipes start from, and a copy of what a wheel is built of."""
    folder = tmp_path_factory.mktemp("recipes")
    synthetic.make(folder / "images", "folder", count=48, classes=4, size=(64, 48))
    pack(sources.load(folder / "images"), folder / "train.arrow", PackConfig(verify="none"))
    pack(sources.load(folder / "images"), folder / "packed" / "shards.tars", PackConfig(shuffle=0))
    pack_fields(folder)
    for name in ("smallfiles", "pysquashfs"):
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder / "clone")
    return folder


def pack_fields(folder):
    """A set of images with masks and boxes, and one of sounds."""
    data, names = folder / "data", [f"{number}.png" for number in range(8)]
    for name in names:
        for kind, colour in (("images", (90, 120, 150)), ("masks", 1)):
            (data / kind).mkdir(parents=True, exist_ok=True)
            Image.new("RGB" if kind == "images" else "L", (80, 70), colour).save(data / kind / name)
        with wave.open(str(data / name.replace("png", "wav")), "wb") as sound:
            sound.setparams((1, 2, 8000, 0, "NONE", ""))
            sound.writeframes(bytes(12000))
    masks = Manifest.from_columns(
        [f"images/{name}" for name in names],
        [-1] * len(names),
        blobs={"mask": [f"masks/{name}" for name in names]},
        values={"boxes": [[[1.0, 2, 30, 40]] * (number % 3) for number in range(len(names))]},
    )
    sounds = Manifest.from_columns([name.replace("png", "wav") for name in names], [0] * len(names))
    for name, manifest in (("masks", masks), ("sounds", sounds)):
        source = Source(manifest, FolderStore(data), "folder", (), data)
        pack(source, folder / f"{name}.arrow", PackConfig(verify="none"))


def missing(code):
    """The first package that a recipe imports and that is not here."""
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = [getattr(node, "module", None) or alias.name for node in nodes for alias in node.names]
    return next((name for name in named if importlib.util.find_spec(name.partition(".")[0]) is None), None)


def command_of(language, code, name, folder):
    if language == "bash":
        return ["bash", "-eo", "pipefail", "-c", code]
    file = folder / "train.py"
    file.write_text(code)
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] * ("DDP" in name)
    return [sys.executable, *several, str(file)]


@pytest.fixture
def store(tmp_path, place):
    """A store that the environment names, and the shards in it."""
    (tmp_path / "store" / "course").mkdir(parents=True)
    with objectstore.serving(tmp_path / "store"):
        objectstore.push(place / "packed" / "shards.tars", "s3://course/train")
        yield


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_as_it_is_printed(name, place, tmp_path, request):
    language, code = RECIPES[name]
    assert len(code.splitlines()) <= MOST_LINES
    if language == "python" and (package := missing(code)):
        pytest.skip(f"{package}: not installed")
    for item in ("images", *(path.name for path in place.glob("*.arrow*"))):
        (tmp_path / item).symlink_to(place / item)
    if name == "Load it":
        (tmp_path / "shards.tars").symlink_to(place / "packed" / "shards.tars")
    if name == "Packed files as a folder":
        request.getfixturevalue("need_tool")("ratarmount", "ratarmount, of the extra dev")
        if not os.access("/dev/fuse", os.W_OK):
            pytest.skip("/dev/fuse is not open to this user")
    if name == "Programs for cortx_pytorch":
        request.getfixturevalue("store")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    settings = {"PYTHONPATH": str(ROOT), "PATH": path, "COURSE_ROOT": str(place / "clone")}
    done = subprocess.run(
        command_of(language, code, name, tmp_path),
        cwd=tmp_path,
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


def test_a_wheel_holds_nothing_that_was_deleted_and_leaves_nothing_in_the_checkout(place, tmp_path):
    stale = place / "clone/build/lib/smallfiles/deleted.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", tmp_path, place / "clone"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "smallfiles/errors.py" in names and "smallfiles/deleted.py" not in names
    assert [path for path in (place / "clone/build").rglob("*") if path.is_file()] == [stale]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_only_files_targets_verbs_and_jobs_that_exist(name):
    text = (ROOT / name).read_text()
    tops = "slurm|tests|tools|helpers|smallfiles|notebooks|exercises|solutions|docs|results|data_manifests"
    paths = re.findall(rf"`((?:{tops})/[\w./-]*)`", text)
    placeholders = re.compile(r"NN|NAME|ROOM|SITE")
    assert [path for path in paths if not placeholders.search(path) and not (ROOT / path).exists()] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)) <= targets
    verbs = {flags.partition(" ")[0] for flags in flags_of_verbs()}
    assert set(re.findall(r"(?:^|`)smallfiles ([a-z][a-z0-9-]*)", text, re.MULTILINE)) <= verbs
    jobs = {path.stem for path in (ROOT / "slurm" / "jobs").glob("*.sbatch")}
    assert set(re.findall(r"slurm/submit (?:SITE|NAME|local) (\w+)", text)) <= jobs


def test_the_figure_of_the_readme_shows_the_records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import draw_results

    drawn = as_page(throughput(*draw_results.panels()))
    assert drawn == (ROOT / "results/overview.svg").read_text(), "draw it again: python tools/draw_results.py"
    (said,) = re.findall(r"!\[(.*?)\]\(results/overview\.svg\)", (ROOT / "README.md").read_text())
    medians = {f"{record.spread.median:,.0f}" for panel in draw_results.panels() for record in panel}
    assert set(re.findall(r"[\d,]*\d{3}", said)) <= medians
