"""What a core installation does: pack, verify, inspect, stage and annotate, with none of the extras."""

import json
import re
import subprocess
import sys
import tomllib

import pytest

from smallfiles import formats
from smallfiles.doctor import EXTRAS
from smallfiles.sources import synthetic

CORE = f"""
import sys
for name in {sorted(name for _, modules in EXTRAS.values() for name in modules)}:
    sys.modules[name] = None  # as if it were not installed
from smallfiles.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run(*words, folder):
    command = [sys.executable, "-c", CORE, *map(str, words)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("core")
    synthetic.make(folder / "images", "folder", count=12, classes=3, size=(64, 48))
    keys = [f"{path.parent.name}/{path.name}" for path in folder.glob("images/*/*")]
    (folder / "scores.csv").write_text("key,score\n" + "".join(f"{key},0.5\n" for key in keys))
    return folder


@pytest.mark.parametrize("name", ["arrow", "tar", "squashfs"])
def test_the_core_packs_verifies_inspects_annotates_and_stages(name, place):
    out = f"x{formats.suffixes()[name][0]}"
    for words in (
        ["pack", "images", out],
        ["verify", out, "--against", "images"],
        ["inspect", out, "--picture", f"{name}.html"],
        ["annotate", out, "scores.csv", "--key", "key"],
        ["stage", out, "--to", f"staged {name}"],
    ):
        done = run(*words, "--json", folder=place)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
    fields = json.loads(run("inspect", out, "--json", folder=place).stdout)["fields"]
    assert fields["score"] == "double"


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("pack images x.h5", "h5py"),
        ("pack images y.arrow --resize 32", "simplejpeg"),
        ("synth new --layout folder", "simplejpeg"),
        ("train x.arrow", "torch"),
        ("push x.arrow s3://bucket/x", "botocore"),
        ("epoch x.arrow counts", "torch"),
        ("ring fill x.arrow", "torch"),
    ],
)
def test_what_needs_an_extra_says_so_in_one_sentence_with_the_line_that_installs_it(words, package, place):
    run("pack", "images", "x.arrow", folder=place)
    done = run(*words.split(), folder=place)
    assert done.returncode == 1
    sentence = done.stderr.splitlines()[-1]
    assert sentence.startswith(f"error: the Python package {package} is not installed; expected it for ")
    assert re.search(rf"Run: python -m pip install -c .+requirements.lock'? '{package}>=[\d.]+'\.$", sentence)
    assert "Traceback" not in done.stderr


def test_the_names_of_the_toolbox_say_what_is_missing_as_a_sentence(tmp_path):
    code = CORE.partition("from smallfiles")[0] + "from smallfiles.loading import make_loader"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingPackageError: the Python package torch is not installed" in done.stderr


def test_the_help_imports_nothing_that_is_slow(repository):
    code = "import sys; import smallfiles.cli; smallfiles.cli.build_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    packages = {re.split(r"[>=\[]", line)[0] for line in project["dependencies"]} - {"pillow"}
    assert not ({"PIL", "torch", *packages} & set(loaded.split()))
