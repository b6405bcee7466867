"""A tree gives the same samples as a folder, a tar, a zip and a squashfs file, links included."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError


@dataclass(frozen=True)
class To:
    """A symbolic link; `{root}` is the folder of the tree."""

    target: str


EMPTY = None
TREES = {
    "two classes": {"cat/1.npy": b"1", "cat/2.npy": b"2", "dog/3.npy": b"3"},
    "links to files": {"cat/1.npy": b"1", "cat/2.npy": To("1.npy"), "dog/3.npy": To("../cat/1.npy")},
    "a class of links only": {"cat/1.npy": b"1", "cat/2.npy": b"2", "dog/a.npy": To("../cat/1.npy")},
    "links through links": {
        "cat/1.npy": b"1",
        "cat/2.npy": To("../dog/3.npy"),
        "dog/3.npy": To("./../cat/1.npy"),
    },
    "a link to a folder": {"cat/1.npy": b"1", "cat/deep/2.npy": b"2", "dog": To("cat")},
    "a link into a linked folder": {"cat/1.npy": b"1", "dog": To("cat"), "emu/2.npy": To("../dog/1.npy")},
    "a linked folder with links": {
        "cat/1.npy": b"1",
        "cat/2.npy": To("../emu/3.npy"),
        "dog": To("cat"),
        "emu/3.npy": b"3",
    },
    "links in linked folders": {"a/1.npy": b"1", "a/b": To("../b"), "b/2.npy": b"2", "b/a": To("../a")},
    "links to a hidden store": {
        ".store/x": b"1",
        "cat/1.npy": To("../.store/x"),
        "dog/2.npy": To("../.store/x"),
    },
    "a broken link": {"cat/1.npy": b"1", "cat/2.npy": To("gone.npy"), "dog/3.npy": b"3"},
    "loops": {
        "cat/1.npy": b"1",
        "cat/2.npy": To("2.npy"),
        "cat/a": To("b"),
        "cat/b": To("a"),
        "dog/3.npy": b"3",
    },
    "a link to a parent": {"cat/1.npy": b"1", "cat/up": To(".."), "cat/self": To("."), "dog/2.npy": b"2"},
    "empty folders": {"cat/1.npy": b"1", "dog/2.npy": b"2", "emu": EMPTY},
    "a link to an empty folder": {"cat/1.npy": b"1", "dog/2.npy": b"2", ".none": EMPTY, "emu": To(".none")},
    "hidden names": {"cat/1.npy": b"1", "cat/.2.npy": b"2", "dog/3.npy": b"3", ".git/4.npy": b"4"},
    "service folders": {"cat/1.npy": b"1", "dog/3.npy": b"3", "__MACOSX/cat/1.npy": b"4"},
    "underscores": {"__cat__/1.npy": b"1", "_dog_/2.npy": b"2", "__emu/3.npy": b"3"},
    "odd names": {
        "my cat/a b.npy": b"1",
        "my cat/a.b.c.npy": b"2",
        "[dog]/x*?.npy": b"3",
        "e%20mu/4.NPY": b"4",
    },
    "unicode": {"B\u00e4r/\u00fc.npy": b"1", "Ba\u0308r/u\u0308.npy": b"2", "\u732b/\U0001f431.npy": b"3"},
    "a wrapper": {
        "archive/train/cat/1.npy": b"1",
        "archive/train/dog/2.npy": b"2",
        "archive/val/cat/3.npy": b"3",
    },
    "splits": {"train/cat/1.npy": b"1", "train/dog/2.npy": b"2", "test/cat/3.npy": b"3"},
    "other files": {
        "cat/1.npy": b"1",
        "cat/2.npy": b"22",
        "dog/3.npy": b"3",
        "dog/4.npy": b"4",
        "README.md": b"about",
    },
    "equal files": {"cat/1.npy": b"same", "cat/2.npy": b"same", "dog/3.npy": b"same"},
    "one long path": {"/".join("x" * 60 for _ in range(4)) + "/1.npy": b"1", "cat/2.npy": b"2"},
}
REFUSED = {
    "absolute": {"cat/1.npy": b"1", "dog/2.npy": To("/etc/passwd")},
    "relative": {"cat/1.npy": b"1", "dog/2.npy": To("../../../../../../../../../etc/passwd")},
    "a folder": {"cat/1.npy": b"1", "dog": To("/etc")},
    "through a link": {"cat/1.npy": b"1", "dog/2.npy": To("../.x/passwd"), ".x": To("/etc")},
    "a class of broken links": {
        "cat/1.npy": b"1",
        "dog/2.npy": To("gone.npy"),
        "dog/3.npy": To("../gone/3.npy"),
    },
}


def plant(root, tree):
    """Make a tree; its files are hard links where their bytes are equal, if it has several such."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is EMPTY:
            path.mkdir()
        elif isinstance(content, To):
            path.symlink_to(content.target)
        else:
            path.write_bytes(content)
    return root


def run(*words, cwd=None):
    subprocess.run([str(word) for word in words], check=True, capture_output=True, cwd=cwd)


def entries(root):
    """Each folder, file and link below a folder, sorted."""
    for folder, folders, files in os.walk(root):
        for name in sorted(folders + files):
            yield Path(folder, name)


def as_tar(root, out):
    run("tar", "-C", root, "-cf", out, ".")


def as_tar_of_names(root, out):
    run("tar", "-C", root, "-cf", out, *sorted(path.name for path in root.iterdir()))


def as_tar_gz(root, out):
    run("tar", "-C", root, "-czf", out, ".")


def as_pax(root, out):
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(root, "")


def as_zip(root, out):
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in entries(root):
            name = str(path.relative_to(root))
            if path.is_symlink():  # as Info-ZIP stores it
                info = zipfile.ZipInfo(name)
                info.create_system, info.external_attr = 3, 0o120777 << 16
                archive.writestr(info, os.readlink(path))
            else:
                archive.write(path, name)


def as_info_zip(root, out):
    run("zip", "-qry", out, ".", cwd=root)


def as_7z_zip(root, out):
    run("7z", "a", "-tzip", "-snl", out, ".", cwd=root)


def as_bsdtar(root, out):
    run("bsdtar", "-C", root, "-cf", out, ".")


def as_squashfs(root, out):
    run("mksquashfs", root, out, "-quiet", "-no-progress")


WAYS = {
    "tar": (".tar", as_tar, "tar"),
    "tar of names": (".tar", as_tar_of_names, "tar"),
    "tar.gz": (".tar.gz", as_tar_gz, "tar"),
    "tar of Python": (".tar", as_pax, None),
    "bsdtar": (".tar", as_bsdtar, "bsdtar"),
    "zip": (".zip", as_zip, None),
    "Info-ZIP": (".zip", as_info_zip, "zip"),
    "7z": (".zip", as_7z_zip, "7z"),
    "squashfs": (".sqfs", as_squashfs, "mksquashfs"),
}


def contained(way, root, tmp_path):
    suffix, make, tool = WAYS[way]
    if tool and shutil.which(tool) is None:
        pytest.skip(f"the command {tool} is missing")
    out = tmp_path / f"set{suffix}"
    make(root, out)
    return out


def samples(path, **options):
    """Bytes and class of each sample, the classes, and the links that were not followed."""
    source = sources.load(path, suffixes=".npy", **options)
    classes, found = source.manifest.classes, {}
    names, labels = source.manifest.paths.to_pylist(), source.manifest.targets.to_pylist()
    for name, label in zip(names, labels, strict=True):
        buffer = memoryview(bytearray(100))
        got = source.store.read_into(name, buffer)
        found[name] = bytes(buffer[:got]), classes[label] if classes else label
    left = {note for note in source.notes if note.startswith("not followed: ")}
    left = {each for note in left for each in note.removeprefix("not followed: ").split(", ")}
    return found, classes, left, source.manifest.split


EVERYTHING = {
    f"{number}/{key}": content
    for number, name in enumerate(TREES)
    for key, content in TREES[name].items()
    if "absolute" not in name
}
CASES = [(name, way) for name in TREES for way in ("tar.gz", "zip", "squashfs")]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_a_tree_gives_equal_samples_in_every_container(name, way, tmp_path):
    root = plant(tmp_path / "set", TREES[name])
    path = contained(way, root, tmp_path)
    assert samples(path) == samples(root)
    assert is_refused(path, strict=True) == is_refused(root, strict=True)
    assert samples(path, unlabelled=True) == samples(root, unlabelled=True)


@pytest.mark.parametrize("way", WAYS)
def test_each_writer_of_archives_is_read_like_the_folder(way, tmp_path):
    root = plant(tmp_path / "set", EVERYTHING)
    assert samples(contained(way, root, tmp_path)) == samples(root)


def is_refused(path, **options):
    try:
        sources.load(path, suffixes=".npy", **options)
    except SmallfilesError:
        return True
    return False


@pytest.mark.parametrize("way", ["tar", "zip", "squashfs"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_leads_out_or_loses_a_class_is_refused_in_every_container(name, way, tmp_path):
    root = plant(tmp_path / "set", REFUSED[name])
    for path in (root, contained(way, root, tmp_path)):
        with pytest.raises(SmallfilesError, match="dog") as caught:
            samples(path)
        words = "lead nowhere" if "broken" in name else "--follow-links"
        assert words in str(caught.value)


def test_absolute_links_inside_are_followed_in_a_folder_and_refused_in_archives(tmp_path):
    """No archive says where its folder was."""
    root = plant(tmp_path / "set", {"cat/1.npy": b"1", "dog/2.npy": To(f"{tmp_path}/set/cat/1.npy")})
    assert samples(root)[0]["dog/2.npy"] == (b"1", "dog")
    for way in ("tar of Python", "zip"):
        with pytest.raises(SmallfilesError, match=r"dog/2\.npy -> "):
            samples(contained(way, root, tmp_path))


def test_a_zip_without_links_holds_copies(tmp_path):
    root = plant(tmp_path / "set", TREES["links to files"])
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for path in entries(root):  # what `zip -r` without -y does
            archive.write(path, path.relative_to(root))
    assert samples(tmp_path / "x.zip") == samples(root)


@pytest.mark.parametrize("way", ["tar", "tar.gz", "tar of Python", "bsdtar", "squashfs"])
def test_hard_links_are_files(way, tmp_path):
    root = plant(tmp_path / "set", {"cat/1.npy": b"1", "cat/2.npy": b"2", ".store/x": b"x"})
    (root / "dog").mkdir()
    for name, target in (("dog/3.npy", "cat/1.npy"), ("dog/4.npy", "cat/2.npy"), ("dog/5.npy", ".store/x")):
        os.link(root / target, root / name)
    assert len(samples(root)[0]) == 5
    assert samples(contained(way, root, tmp_path)) == samples(root)


def member(archive, name, data=None, link=None, hard=False):
    info = tarfile.TarInfo(name)
    if link is not None:
        info.type, info.linkname = (tarfile.LNKTYPE if hard else tarfile.SYMTYPE), link
    else:
        info.size = len(data)
    archive.addfile(info, io.BytesIO(data or b""))


def test_a_hard_link_in_a_tar_of_tars_is_a_file_of_its_own_tar(tmp_path):
    with tarfile.open(tmp_path / "set.tar", "w") as outer:
        for name in ("cat", "dog"):
            with tarfile.open(tmp_path / "inner", "w") as archive:
                member(archive, "1.npy", name.encode())
                member(archive, "2.npy", link="1.npy", hard=True)
            member(outer, f"{name}.tar", (tmp_path / "inner").read_bytes())
    found = samples(tmp_path / "set.tar")[0]
    assert {name: data for name, (data, _) in found.items()} == {
        f"{name}/{number}.npy": name.encode() for name in ("cat", "dog") for number in (1, 2)
    }


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_the_last_member_of_a_name_wins_among_files_and_links(mode, tmp_path):
    with tarfile.open(tmp_path / "set.tar", mode) as archive:
        member(archive, "cat/1.npy", b"old")
        member(archive, "cat/hard.npy", link="cat/1.npy", hard=True)  # of the old one, as tar unpacks it
        member(archive, "./cat/1.npy", b"new")
        member(archive, "dog/2.npy", link="../cat/1.npy")
        member(archive, "dog/3.npy", link="gone")
        member(archive, "dog/3.npy", b"file")
        member(archive, "emu/4.npy", b"file")
        member(archive, "emu/4.npy", link="../cat/1.npy")
        member(archive, "emu/4.npy", link="emu/4.npy", hard=True)  # as GNU tar stores what is named twice
    found = samples(tmp_path / "set.tar")[0]
    assert {name: data for name, (data, _) in found.items()} == {
        **{"cat/1.npy": b"new", "cat/hard.npy": b"old", "dog/2.npy": b"new"},
        **{"dog/3.npy": b"file", "emu/4.npy": b"new"},
    }
    unpacked = _made(tmp_path / "unpacked")
    run("tar", "-C", unpacked, "-xf", tmp_path / "set.tar")
    assert {str(file.relative_to(unpacked)): file.read_bytes() for file in unpacked.rglob("*.npy")} == {
        name: data for name, (data, _) in found.items()
    }


def _made(folder):
    folder.mkdir()
    return folder


def test_links_in_a_tar_of_tars_and_in_a_folder_of_tars(tmp_path):
    inner = {}
    for name in ("cat", "dog"):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            member(archive, "1.npy", name.encode())
            member(archive, "2.npy", link="1.npy")
            member(archive, "3.npy", link="./1.npy", hard=True)
        inner[name] = file.getvalue()
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for name, data in inner.items():
            member(archive, f"{name}.tar", data)
    _made(tmp_path / "tars")
    for name, data in inner.items():
        (tmp_path / "tars" / f"{name}.tar").write_bytes(data)
    expected = {f"{c}/{n}.npy": (c.encode(), c) for c in ("cat", "dog") for n in (1, 2, 3)}
    assert samples(tmp_path / "set.tar")[0] == samples(tmp_path / "tars")[0] == expected


def test_hard_links_multiply_no_further_than_the_limit(tmp_path):
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        member(archive, "cat/0.npy", bytes(1 << 20))
        for number in range(1, 1100):
            member(archive, f"cat/{number}.npy", link="cat/0.npy", hard=True)
    with pytest.raises(SmallfilesError, match="at most 200 times its size"):
        samples(tmp_path / "set.tar")


@pytest.mark.parametrize("way", ["tar", "tar.gz", "zip", "squashfs"])
def test_packing_and_reading_in_place_agree_with_the_folder(way, tmp_path, capfd):
    root = plant(tmp_path / "set", {**TREES["a class of links only"], "emu": To("cat")})
    path = contained(way, root, tmp_path)
    for number, source in enumerate((root, path)):
        assert main(["pack", str(source), str(tmp_path / f"{number}.arrow"), "--check", "none"]) == 0
    assert "Traceback" not in capfd.readouterr().err
    one, two = (formats.open(tmp_path / f"{number}.arrow") for number in (0, 1))
    assert sorted(one.keys().to_pylist()) == sorted(two.keys().to_pylist()) and one.classes == two.classes
    assert main(["verify", str(tmp_path / "0.arrow"), "--against", str(path)]) == 0, capfd.readouterr()
    if way in ("tar", "squashfs"):
        with formats.open(path) as reader:
            found = {key: bytes(reader.read(row)) for row, key in enumerate(reader.keys().to_pylist())}
        assert found == {name: data for name, (data, _) in samples(root)[0].items()}


def test_names_that_no_key_can_have_are_refused_in_every_container(tmp_path):
    for number, name in enumerate((b"cat/a\xff.npy", b"cat/a\nb.npy")):
        root = _made(tmp_path / f"set{number}")
        for each in (b"cat/1.npy", b"dog/2.npy", name):
            path = Path(os.fsdecode(bytes(root) + b"/" + each))
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"1")
        for way in ("tar", "squashfs"):
            for source in (root, contained(way, root, _made(tmp_path / f"{way}{number}"))):
                with pytest.raises(SmallfilesError, match=r"a\\(xff|n)"):
                    samples(source)


def test_strict_and_suffix_have_an_effect_on_a_squashfs_file(tmp_path):
    root = plant(tmp_path / "set", {**TREES["other files"], "cat/1.flac": b"x"})
    path = contained("squashfs", root, tmp_path)
    source = sources.load(path, suffixes=".flac", unlabelled=True)
    assert source.manifest.paths.to_pylist() == ["cat/1.flac"]
    command = [sys.executable, "-m", "smallfiles", "pack", str(path), str(tmp_path / "o.arrow"), "--strict"]
    done = subprocess.run([*command, "--suffix", ".npy"], capture_output=True, text=True)
    assert done.returncode == 1 and "more than whole samples" in done.stderr, done.stderr
