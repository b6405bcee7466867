"""The locale does not matter: names are UTF-8, or they are refused with the command that renames them."""

import os
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


def run(env, folder, *words, code=None):
    command = [sys.executable, "-c", textwrap.dedent(code)] if code else [sys.executable, "-m", "smallfiles"]
    done = subprocess.run([*command, *words], env=env, cwd=folder, capture_output=True, timeout=120)
    assert b"Traceback" not in done.stderr and b"bug in the package" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("out", ["ü.arrow", "ü.sqfs", "ü.files"])
def test_a_set_is_the_same_under_every_locale(out, tree, locales):
    stored = {}
    for name in ("latin", "utf8"):
        place = tree / name
        place.mkdir()
        assert run(locales[name], place, "pack", "../data", out).returncode == 0
        files = sorted(
            path for path in place.rglob("*") if path.is_file() and ".smallfiles" not in path.parts
        )
        stored[name] = {os.fsencode(path.relative_to(place)): path.read_bytes() for path in files}
        assert out.encode() in {key.split(b"/")[0] for key in stored[name]}
    assert stored["latin"] == stored["utf8"]


@pytest.mark.parametrize("locale", ["latin", "ascii"])
def test_names_in_tables_on_the_command_line_and_in_output_are_exact(locale, tree, locales):
    packed = run(locales[locale], tree, "pack", "t.csv", "ö ü.arrow", "--root", "data")
    assert packed.returncode == 0, packed.stderr
    shown = run(locales[locale], tree, "inspect", "ö ü.arrow")
    assert shown.returncode == 0 and UMLAUT.encode() in shown.stdout
    staged = run(locales[locale], tree, "stage", "ö ü.arrow", "--where", str(tree))
    assert staged.returncode == 0 and os.path.isfile(staged.stdout.strip()), staged.stderr
    run(locales[locale], tree, "unstage", os.fsdecode(staged.stdout.strip()))
    missing = run(locales[locale], tree, "verify", "ß.arrow")
    assert missing.returncode == 1 and "ß.arrow".encode() in missing.stderr


@pytest.mark.parametrize("locale", ["latin", "ascii"])
def test_output_in_another_encoding_escapes_what_it_cannot_hold(locale, tree, locales):
    env = locales[locale] | {"PYTHONIOENCODING": "ascii"}
    assert run(env, tree, "pack", "data", "x.arrow").returncode == 0
    shown = run(env, tree, "inspect", "x.arrow")
    assert shown.returncode == 0 and rb"B\xe4r" in shown.stdout


@pytest.mark.parametrize("locale", ["latin", "ascii"])
@pytest.mark.parametrize(
    "call",
    [
        "pack('data', 'o.arrow')",
        "pack('t.csv', 'o.arrow')",
        "pack('u.tar', 'o.files')",
    ],
)
def test_python_refuses_names_that_its_locale_changes_and_the_cure_works(locale, call, tree, locales):
    with tarfile.open(tree / "u.tar", "w") as tar:
        tar.add(tree / "data", ".")
    code = f"""
        import sys
        from pathlib import Path
        from smallfiles.errors import SmallfilesError
        from smallfiles.pack import pack
        from smallfiles import sources
        def pack(source, out, pack=pack):
            options = dict(root=Path("data")) if source == "t.csv" else dict(suffixes=".npy")
            return pack(sources.load(Path(source), **options), out)
        try:
            {call}
        except SmallfilesError as error:
            sys.exit(ascii(error))
    """
    refused = run(locales[locale], tree, code=code)
    assert refused.returncode == 1 and b"export PYTHONUTF8=1" in refused.stderr, refused.stderr
    assert not list(tree.glob("o.*"))
    assert run(locales[locale] | {"PYTHONUTF8": "1"}, tree, code=code).returncode == 0


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
    refused = run(locales["utf8"], tree, "pack", "data", "x.arrow")
    assert refused.returncode == 1
    command = refused.stderr.split(b"Rename it: ")[1].strip().removesuffix(b".")
    subprocess.run([b"sh", b"-c", command], cwd=tree, check=True)
    assert run(locales["utf8"], tree, "pack", "data", "x.arrow").returncode == 0
