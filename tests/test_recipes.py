"""Each recipe is short and runs as it is printed; the pages name nothing that is not there."""

import ast
import importlib.util
import multiprocessing
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from programs import Program, imported

from smallfiles import formats, objectstore, sources
from smallfiles.cli import flags_of_verbs
from smallfiles.doctor import EXTRAS
from smallfiles.pack import PackConfig, pack
from smallfiles.sources import synthetic

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^## (?P<name>.+?)$|^```(?P<language>python|bash|sh)\n(?P<code>.*?)^```$", re.M | re.S)
NOT_RUN = "# not run by a test: "
"""How a block begins that needs a cluster, say; the rest of the line says what."""
SESSIONS = {page: f"docs/{page}.md" for page in ("recipes", "how_to_pack", "pysquashfs")}
SESSIONS |= {"readme": "README.md", "results": "results/README.md", "contributing": "CONTRIBUTING.md"}
"""The pages whose blocks run from top to bottom in one folder, which is empty in the beginning."""
CORE_ONLY = ("how_to_pack", "pysquashfs")
"""Those that promise that a core installation is enough."""


def blocks_of(text):
    """Heading, language and code of each block of a page."""
    name = ""
    for found in BLOCK.finditer(text):
        name = found["name"] or name
        if found["code"]:
            yield name, found["language"], found["code"]


ELSEWHERE = {
    ("readme", "Two commands"): "minutes: CI runs the tests, and tests/test_demo.py the demo",
    ("readme", "Your cluster"): "Slurm: tests/slurm runs these jobs",
    ("results", ""): "half an hour: tests/measure and tests/peers run the topics with few images",
}
"""What each block of these pages needs, which have no line for it."""
RECIPES = {
    page: {
        name: (language, code.replace("/path/to/images", "images"))
        for name, language, code in blocks_of((ROOT / path).read_text())
        if not code.startswith(NOT_RUN) and (page, name) not in ELSEWHERE
    }
    for page, path in SESSIONS.items()
}
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in ROOT.glob("docs/*.md"))]
MOST_LINES = 15


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the recipes start from, and a copy of what a wheel is built of."""
    folder = tmp_path_factory.mktemp("recipes")
    synthetic.make(folder / "images", "folder", count=48, classes=4, size=(64, 48))
    pack(sources.load(folder / "images"), folder / "packed" / "shards.tars", PackConfig(shuffle=0))
    for name in ("smallfiles", "pysquashfs"):
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, folder / "clone")
    hidden = sorted(name for _, modules in EXTRAS.values() for name in modules)
    lines = ["import sys", *(f"sys.modules[{name!r}] = None" for name in hidden)]
    (folder / "readme").mkdir()  # a clone after `make setup`, and images
    (folder / "readme/.venv").symlink_to(sys.prefix)
    (folder / "readme/images").symlink_to(folder / "images")
    (folder / "core").mkdir()
    (folder / "core" / "sitecustomize.py").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def session(place):
    """Run a block in the folder of its page; the first block of the page runs before all others."""
    begun = set()

    def run(page, name):
        folder = place / page
        folder.mkdir(exist_ok=True)
        first = next(iter(RECIPES[page]))
        if page not in begun and name != first:
            run(page, first)
        begun.add(page)
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        modules = os.pathsep.join([str(place / "core")] * (page in CORE_ONLY) + [str(ROOT)])
        settings = {"PYTHONPATH": modules, "PATH": path, "COURSE_ROOT": str(place / "clone")}
        language, code = RECIPES[page][name]
        if language == "python" and "DDP" not in name and page not in CORE_ONLY:
            (folder / "train.py").write_text(code)
            around = dict(os.environ) | settings
            program = Program(run_script, folder, environment=around, method="forkserver")
            code, out, errors = program.wait(200), program.out, program.errors
            program.end()
        else:
            command = command_of(language, code, name, folder)
            how = {"env": os.environ | settings, "capture_output": True, "text": True}
            done = subprocess.run(command, cwd=folder, **how)
            code, out, errors = done.returncode, done.stdout, done.stderr
        assert code == 0, out[-1000:] + errors[-3000:]

    with imported("torch", "torchvision", environment=dict(os.environ)):
        yield run


def run_script(folder):
    """Run `python train.py` in a folder; torch is there already."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = [str(folder / "train.py")]
    multiprocessing.set_start_method(None, force=True)  # the usual one, and not that of this process
    runpy.run_path(sys.argv[0], run_name="__main__")


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


@pytest.mark.parametrize(("page", "name"), [(page, name) for page in SESSIONS for name in RECIPES[page]])
def test_the_blocks_of_a_page_run_from_top_to_bottom_in_an_empty_folder(page, name, session, request):
    language, code = RECIPES[page][name]
    assert len(code.splitlines()) <= MOST_LINES
    if language == "python" and (package := missing(code)):
        pytest.skip(f"{package}: not installed")
    if name == "Packed files as a folder":
        request.getfixturevalue("need_tool")("ratarmount", "ratarmount, of the extra dev")
        if not os.access("/dev/fuse", os.W_OK):
            pytest.skip("/dev/fuse is not open to this user")
    if name == "Programs for cortx_pytorch":
        request.getfixturevalue("store")
    session(page, name)


def test_the_loader_for_torchtitan_continues_from_a_distributed_checkpoint(
    session, place, tmp_path, monkeypatch
):
    """As its trainer saves and loads it: torch.distributed.checkpoint, by the protocol Stateful."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.stateful import Stateful

    session("recipes", "torchtitan")
    monkeypatch.chdir(place / "recipes")
    scope = {}
    exec(RECIPES["recipes"]["torchtitan"][1], scope)
    first, again, other = (scope["PackedLoader"](0, ranks, 8) for ranks in (1, 1, 2))
    first.load_state_dict({})
    steps = iter(first)
    for _ in range(8):  # an epoch has 6
        inputs, labels = next(steps)
    assert inputs["input"].shape == (8, 3, 64, 64) and len(labels) == 8
    for number, loader in enumerate((again, other)):  # the second is resumed on other ranks, and once more
        checkpoint.save({"dataloader": first}, checkpoint_id=tmp_path / f"{number}", no_dist=True)
        assert isinstance(loader, Stateful)
        checkpoint.load({"dataloader": loader}, checkpoint_id=tmp_path / f"{number}", no_dist=True)
    assert next(iter(again))[1].equal(next(steps)[1])
    checkpoint.save({"dataloader": other}, checkpoint_id=tmp_path / "2", no_dist=True)
    last = scope["PackedLoader"](0, 2, 8)
    checkpoint.load({"dataloader": last}, checkpoint_id=tmp_path / "2", no_dist=True)
    assert next(iter(last))[1].equal(next(iter(other))[1])


def test_a_set_that_was_in_lance_has_lost_nothing(session, place):
    pytest.importorskip("lance")
    if not (place / "recipes/back.arrow").exists():
        session("recipes", "Lance")
    before, after = (formats.open(place / f"recipes/{name}.arrow") for name in ("masks", "back"))
    assert [*map(after.__getitem__, range(len(before)))] == [*map(before.__getitem__, range(len(before)))]
    assert after.table().schema == before.table().schema and after.classes == before.classes
    assert after.set_digest == before.set_digest and after.info()["provenance"] == before.info()["provenance"]


@pytest.mark.parametrize(
    "path", [*sorted(ROOT.glob("docs/*.md")), ROOT / "slurm/README.md"], ids=lambda p: p.name
)
def test_a_block_that_no_test_runs_says_so(path):
    silent = [
        name
        for name, _, code in blocks_of(path.read_text())
        if path.stem not in SESSIONS and not code.startswith(NOT_RUN)
    ]
    assert silent == [], f"begin the block with {NOT_RUN!r} and what it needs"


def test_what_runs_elsewhere_is_on_its_page():
    blocks = {
        (page, name) for page in SESSIONS for name, *_ in blocks_of((ROOT / SESSIONS[page]).read_text())
    }
    assert ELSEWHERE.keys() <= blocks


def test_commands_in_the_text_of_contributing_can_be_run():
    """Targets are read by make, and the tests that are named are there."""
    text = (ROOT / "CONTRIBUTING.md").read_text().replace("tests/ROOM", "tests/checks")
    for command in re.findall(r"`((?:make|\.venv/bin/python) [^`]+)`", text):
        program, *words = shlex.split(command)
        if program == "make":
            subprocess.run([program, "-n", *words], cwd=ROOT, check=True, capture_output=True)
        else:
            assert all((ROOT / word).exists() for word in words if word.startswith("tests/")), command


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


def test_the_figures_of_the_readme_show_the_records(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import draw_results

    for name, (drawn, _) in draw_results.figures().items():
        assert drawn == (ROOT / f"results/{name}.svg").read_text(), "run tools/draw_results.py"
    (said,) = re.findall(r"!\[(.*?)\]\(results/overview\.svg\)", (ROOT / "README.md").read_text())
    medians = {f"{record.spread.median:,.0f}" for panel in draw_results.panels() for record in panel}
    assert set(re.findall(r"[\d,]*\d{3}", said)) <= medians


def test_cited_figures_of_storage_come_with_their_sources_and_stand_beside_ours(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import site_pages

    page = site_pages.storage_page().partition("## Figures of centres")[2]
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| ")][1:]
    cited = [row for row in rows if "https://" in row[-1]]
    assert len(cited) >= 4 and len(rows) > len(cited)
    text = (ROOT / "docs/moving_data.md").read_text()
    for figure in (row[1] for row in cited[:3]):
        assert f"{figure} MB/s" in text
