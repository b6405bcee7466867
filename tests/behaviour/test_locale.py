"""The locale does not matter: names are UTF-8, or they are refused with the command that renames them."""

import os
import shlex
import subprocess
import sys
import tarfile
import textwrap

import pytest

UMLAUT = "Bär"
LATIN = "en_US.ISO-8859-1"


@pytest.fixture(scope="module")
def locales(tmp_path_factory):
    """Locales that need no administrator: Latin-1, ASCII, and UTF-8."""
    folder = tmp_path_factory.mktemp("locales")
    command = ["localedef", "-i", "en_US", "-f", "ISO-8859-1", folder / LATIN]
    try:
        made = subprocess.run(command, capture_output=True, text=True).stderr
    except FileNotFoundError:
        made = "localedef is not installed"
    if not (folder / LATIN).exists():
        pytest.skip(f"a Latin-1 locale cannot be made: {made}")
    cleared = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONIO", "PYTHONCOERCE"))
    }
    return {
        "utf8": cleared | {"LANG": "C.UTF-8"},
        "latin": cleared | {"LOCPATH": str(folder), "LANG": LATIN},
        "ascii": cleared | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    }


@pytest.fixture
def tree(tmp_path):
    for name in ("ant", UMLAUT):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "data" / name / f"{number} ö.npy").write_bytes(HEADER + bytes([number, len(name)]))
    lines = ["filename,label", *(f"{UMLAUT}/{number} ö.npy,{UMLAUT}" for number in range(2))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


HEADER = (
    b"\x93NUMPY\x01\x00\x46\x00"
    + b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }".ljust(69)
    + b"\n"
)


def run(env, folder, *commands, code=None):
    """Run commands of the toolbox one after the other, or some code; the last result, and all output."""
    lines = [["-m", "smallfiles", *shlex.split(command)] for command in commands]
    out = b""
    for line in lines if code is None else [["-c", textwrap.dedent(code)]]:
        done = subprocess.run([sys.executable, *line], env=env, cwd=folder, capture_output=True, timeout=120)
        assert b"Traceback" not in done.stderr and b"bug in the package" not in done.stderr, done.stderr
        out += done.stdout
    return subprocess.CompletedProcess(lines, done.returncode, out, done.stderr)


def test_a_set_is_the_same_under_every_locale(tree, locales):
    stored, outs = {}, ("ü.arrow", "ü.sqfs", "ü.files")
    for name in ("latin", "utf8"):
        place = tree / name
        place.mkdir()
        assert run(locales[name], place, *(f"pack ../data {out}" for out in outs)).returncode == 0
        files = sorted(
            path for path in place.rglob("*") if path.is_file() and ".smallfiles" not in path.parts
        )
        stored[name] = {os.fsencode(path.relative_to(place)): path.read_bytes() for path in files}
        assert {out.encode() for out in outs} <= {key.split(b"/")[0] for key in stored[name]}
    assert stored["latin"] == stored["utf8"]


@pytest.mark.parametrize("locale", ["latin", "ascii"])
def test_names_in_tables_on_the_command_line_and_in_output_are_exact(locale, tree, locales):
    commands = ("pack t.csv 'ö ü.arrow' --root data", "inspect 'ö ü.arrow'", "stage 'ö ü.arrow' --where .")
    done = run(locales[locale], tree, *commands)
    staged = os.fsdecode(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and UMLAUT.encode() in done.stdout, done.stderr
    assert os.path.isfile(tree / staged), staged
    missing = run(locales[locale], tree, f"unstage {shlex.quote(staged)}", "verify ß.arrow")
    assert missing.returncode == 1 and "ß.arrow".encode() in missing.stderr
    assert not (tree / staged).exists()


@pytest.mark.parametrize("locale", ["latin", "ascii"])
def test_output_in_another_encoding_escapes_what_it_cannot_hold(locale, tree, locales):
    env = locales[locale] | {"PYTHONIOENCODING": "ascii"}
    shown = run(env, tree, "pack data x.arrow", "inspect x.arrow")
    assert shown.returncode == 0 and rb"B\xe4r" in shown.stdout


@pytest.mark.parametrize("locale", ["latin", "ascii"])
def test_python_refuses_names_that_its_locale_changes_and_the_cure_works(locale, tree, locales):
    with tarfile.open(tree / "u.tar", "w") as tar:
        tar.add(tree / "data", ".")
    code = """
        import sys
        from pathlib import Path
        from smallfiles.errors import SmallfilesError
        from smallfiles.pack import pack
        from smallfiles import sources
        for source, out in (("data", "1.arrow"), ("t.csv", "2.arrow"), ("u.tar", "3.files")):
            options = dict(root=Path("data")) if source == "t.csv" else dict(suffixes=".npy")
            try:
                pack(sources.load(Path(source), **options), Path(out))
                print("packed")
            except SmallfilesError as error:
                print(ascii(str(error)))
    """
    refused = run(locales[locale], tree, code=code).stdout.splitlines()
    assert len(refused) == 3 and all(b"export PYTHONUTF8=1" in line for line in refused), refused
    assert not list(tree.glob("[123].*"))
    cured = run(locales[locale] | {"PYTHONUTF8": "1"}, tree, code=code)
    assert cured.stdout.splitlines() == [b"packed"] * 3


def test_names_in_an_image_are_utf8_under_every_locale(tree, locales):
    code = """
        from pathlib import Path
        import pysquashfs
        pysquashfs.pack("x.sqfs", {"B\\xe4r/1": b"one"}.items())
        with pysquashfs.SquashFS("x.sqfs") as image:
            assert list(image) == ["B\\xe4r/1"] and bytes(image.read("B\\xe4r/1")) == b"one"
            print(b"B\\xc3\\xa4r" in Path("x.sqfs").read_bytes())
    """
    for env in locales.values():
        assert run(env, tree, code=code).returncode == 0
        (tree / "x.sqfs").unlink()


@pytest.mark.parametrize("name", [b"it's 50%\\ \xff.npy", b"a\nb.npy", b"-n \t\xe4.npy"])
def test_the_command_that_renames_a_file_works(name, tree, locales):
    place = os.fsencode(tree / "data" / "ant")
    with open(os.path.join(place, name), "wb") as file:
        file.write(HEADER + b"\x05\x06")
    refused = run(locales["utf8"], tree, "pack data x.arrow")
    assert refused.returncode == 1
    command = refused.stderr.split(b"Rename it: ")[1].strip().removesuffix(b".")
    subprocess.run([b"sh", b"-c", command], cwd=tree, check=True)
    assert run(locales["utf8"], tree, "pack data x.arrow").returncode == 0
