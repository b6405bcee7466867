"""Build the sdist and the wheel into dist/, check them and try them. `make release` calls it.

The executed notebooks and the slides are put beside them, as two zip files. Each package is installed into
an empty environment of each Python at hand, with the pinned versions of the core, and used from outside the
clone. Names that are new are added to docs/public_names.txt; one that went needs a line in CHANGELOG.md.
PYTHONS="/path/to/python3.12 …" names more Pythons than those on PATH.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import argparse
import ast
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import build_site  # noqa: E402
import build_slides  # noqa: E402

from smallfiles import __version__  # noqa: E402
from smallfiles.cli import flags_of_verbs  # noqa: E402

NAMES = ROOT / "docs" / "public_names.txt"
CHANGES = ROOT / "CHANGELOG.md"
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
UV = (sys.executable, "-m", "uv")
MOST_BYTES = 280 << 20
IN_THE_WHEEL = (
    *("smallfiles/py.typed", "smallfiles/demo/page.html", "smallfiles/sources/synthetic/ilsvrc_classes.txt"),
    *("pysquashfs/py.typed", f"smallfiles-{__version__}.dist-info/licenses/LICENSE"),
)
SMOKE = """
import subprocess, sys
from pathlib import Path
import pyarrow, smallfiles
from PIL import Image

def run(*words):
    done = subprocess.run([sys.executable, "-m", "smallfiles", *words], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done

assert Path.cwd() not in Path(smallfiles.__file__).parents and "site-packages" in smallfiles.__file__
for number in range(12):
    path = Path("own images", f"class {number % 3}", f"{number}.jpg")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48), (20 * number, 90, 30)).save(path)
for out in ("x.arrow", "x.tars", "x.sqfs"):
    for words in (["pack", "own images", out], ["verify", out, "--against", "own images"], ["inspect", out]):
        done = run(*words)
        assert done.returncode == 0, done.stderr
table = pyarrow.ipc.open_file(pyarrow.memory_map("x.arrow")).read_all()
for key, data in zip(table["key"].to_pylist(), table["data"].to_pylist()):
    assert Path("own images", key).read_bytes() == data
missing = run("pack", "own images", "x.h5")
assert missing.returncode == 1 and "Run: python -m pip install 'h5py>=" in missing.stderr, missing.stderr
"""


def public_names() -> list[str]:
    """What the packages offer to be imported, and the verbs of the command."""
    names = {f"smallfiles {verb.partition(' ')[0]}" for verb in flags_of_verbs()}
    packages = (ROOT / "smallfiles", *ROOT.glob("smallfiles/*"), ROOT / "pysquashfs")
    for file in filter(Path.is_file, (folder / "__init__.py" for folder in packages)):
        package = ".".join(file.relative_to(ROOT).parent.parts)
        names |= {f"{package}.{name}" for name in _offered(ast.parse(file.read_text()))}
    return sorted(names)


def _offered(module: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            found |= {each.name for each in node.names if each.asname == each.name}
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            name = getattr(node.targets[0], "id", "")
            found |= (
                set(ast.literal_eval(node.value))
                if name == "__all__"
                else {name}
                if name.isupper()
                else set()
            )
    return {name for name in found if not name.startswith("_")}


def unexplained() -> list[str]:
    """Listed names that are gone, and that no line of the changelog names."""
    changes = CHANGES.read_text()
    gone = set(NAMES.read_text().splitlines()) - set(public_names())
    return sorted(name for name in gone if f"`{name}`" not in changes)


def build() -> tuple[Path, Path]:
    """The sdist and the wheel, made in environments of their own."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(*UV, "build", "--quiet", "--out-dir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    _run(*UV, "tool", "run", "--quiet", "twine>=6", "check", "--strict", sdist, wheel)
    return sdist, wheel


def faults(sdist: Path, wheel: Path) -> list[str]:
    """What is missing in the two files, or does not belong there."""
    inside = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    tops = {name.partition("/")[0] for name in inside}
    tops -= {"smallfiles", "pysquashfs", f"smallfiles-{__version__}.dist-info"}
    modules = {
        str(path.relative_to(ROOT))
        for top in ("smallfiles", "pysquashfs")
        for path in ROOT.glob(f"{top}/**/*.py")
    }
    lacks = sorted({*IN_THE_WHEEL, *modules} - inside)
    lacks += sorted({"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", *modules} - source)
    said = [f"{name} does not belong into the wheel" for name in sorted(tops)]
    return said + [f"{name} is missing" for name in lacks]


def course() -> list[Path]:
    """Write the executed notebooks and the slides into dist/, a zip file each."""
    kept = build_site.OUT / "executed"
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        shutil.copytree(ROOT / "notebooks" / "pictures", Path(folder, "notebooks", "pictures"))
        for path in ROOT.glob("notebooks/*.ipynb"):
            text = build_site.executed(path, kept / path.name).read_text(encoding="utf-8")
            Path(folder, "notebooks", path.name).write_text(build_site.anonymous(text), encoding="utf-8")
        Path(folder, "slides").mkdir()
        for name, text in build_slides.build(ROOT, kept).items():
            Path(folder, "slides", name).write_text(text, encoding="utf-8")
        return [
            Path(shutil.make_archive(str(DIST / f"smallfiles-{__version__}-{kind}"), "zip", folder, kind))
            for kind in ("notebooks", "slides")
        ]


def pythons() -> dict[str, Path]:
    """One of each version at hand."""
    found: dict[str, Path] = {}
    names = [
        *os.environ.get("PYTHONS", "").split(),
        *(f"python{version}" for version in VERSIONS),
        sys.executable,
    ]
    for name in names:
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], sys._base_executable)"
        done = subprocess.run(["env", name, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            version, path = done.stdout.split()
            found.setdefault(version, Path(path))
    return dict(sorted(found.items()))


def try_out(python: Path, file: Path, pins: Path) -> str:
    """Install a file into an empty environment and use it from an empty folder; what it took."""
    with tempfile.TemporaryDirectory(prefix="release ") as folder:
        ours = Path(folder, "venv", "bin", "python")
        _run(*UV, "venv", "--quiet", "--python", python, ours.parents[1])
        began = time.monotonic()
        _run(*UV, "pip", "install", "--quiet", "--python", ours, "-c", pins, file)
        took, size = time.monotonic() - began, _bytes(ours.parents[1])
        if size > MOST_BYTES:
            raise SystemExit(f"release: the core takes {size >> 20} MB; expected at most {MOST_BYTES >> 20}.")
        work = Path(folder, "work")
        work.mkdir()
        began = time.monotonic()
        clean = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
        subprocess.run([ours, "-c", SMOKE], cwd=work, env=clean, check=True)
        used = time.monotonic() - began
    return (
        f"{python.name} {file.suffix[1:]}: installed in {took:.0f} s, {size >> 20} MB; used for {used:.0f} s"
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _run(*words: object) -> None:
    subprocess.run(
        [str(word) for word in words], check=True, env=os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lowest", action="store_true", help="try the oldest versions of the core that pyproject.toml allows"
    )
    lowest = parser.parse_args().lowest
    missing = unexplained()
    if missing:
        print(f"release: {', '.join(missing)} went; expected a line in {CHANGES.name} with each name in `…`.")
        return 1
    NAMES.write_text("\n".join(public_names()) + "\n")
    sdist, wheel = build()
    wrong = faults(sdist, wheel)
    if wrong:
        print(f"release: {'; '.join(wrong)}.")
        return 1
    here = pythons()
    for version, python in here.items():
        pins = DIST / f"lowest-{version}.txt" if lowest else ROOT / "requirements.lock"
        if lowest:
            ours = (
                "--resolution=lowest-direct",
                "--only-binary=:all:",
                "--python",
                python,
                "--no-header",
                "--output-file",
                pins,
            )
            _run(*UV, "pip", "compile", "--quiet", "--no-annotate", *ours, ROOT / "pyproject.toml")
        for file in (wheel,) if lowest else (wheel, sdist):
            print(f"Python {version}, {file.name}: {try_out(python, file, pins)}", flush=True)
    if not lowest:
        print("the course:", *course())
    print("not tried, since they are not at hand:", ", ".join(sorted({*VERSIONS} - {*here})) or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
