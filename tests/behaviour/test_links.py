"""A link may lead anywhere inside the data set; what leads out of it is refused unless the user allows it."""

import json
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError
from smallfiles.manifest import Manifest

SECRET = b"root:x:0 of another tree"


@pytest.fixture
def tree(tmp_path):
    """A tree of two texts, with a store of others beside it."""
    root = tmp_path / "my data"
    for name, data in (("cat/1.txt", b"hello"), ("dog/2.txt", b"world")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (tmp_path / "store/deep").mkdir(parents=True)
    (tmp_path / "store/secret.txt").write_bytes(SECRET)
    (tmp_path / "store/deep/3.txt").write_bytes(SECRET)
    return root


def pack(source, out, *options, capfd):
    """Exit code, what was printed, and the bytes of each sample of `pack`."""
    named = ["--suffix", ".txt"] if source.suffix not in (".csv", ".jsonl", ".json") else []
    code = main(["pack", str(source), str(out), *named, *options])
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said, said
    if code:
        assert not out.exists()
        return code, said, {}
    reader = formats.open(out)
    return code, said, {key: bytes(reader.read(row)) for row, key in enumerate(reader.keys().to_pylist())}


def file_link(tree):
    (tree / "cat/9.txt").symlink_to(tree.parent / "store/secret.txt")
    return "cat/9.txt"


def relative_file_link(tree):
    (tree / "cat/9.txt").symlink_to("../../store/secret.txt")
    return "cat/9.txt"


def link_through_a_link(tree):
    (tree / "cat/9.txt").symlink_to("../.way")
    (tree / ".way").symlink_to("../store/secret.txt")
    return "cat/9.txt"


def folder_link(tree):
    (tree / "cow").symlink_to(tree.parent / "store/deep")
    return "cow/3.txt"


def link_to_a_neighbour_of_a_like_name(tree):
    other = tree.with_name(tree.name + "2")
    other.mkdir()
    (other / "3.txt").write_bytes(SECRET)
    (tree / "cow").symlink_to(other)
    return "cow/3.txt"


LEAVING = [
    file_link,
    relative_file_link,
    link_through_a_link,
    folder_link,
    link_to_a_neighbour_of_a_like_name,
]


@pytest.mark.parametrize("make", LEAVING)
def test_a_link_out_of_a_folder_is_refused_and_the_flag_that_is_named_follows_it(make, tree, tmp_path, capfd):
    key = make(tree)
    code, said, _ = pack(tree, tmp_path / "a.arrow", capfd=capfd)
    link = key if key.startswith("cat") else "cow"
    assert code == 1 and f"{link} -> " in said and "--follow-links" in said, said
    code, said, samples = pack(tree, tmp_path / "a.arrow", "--follow-links", capfd=capfd)
    assert code == 0 and samples[key] == SECRET and len(samples) == 3, said


@pytest.mark.parametrize("make", LEAVING)
@pytest.mark.parametrize("kind", ["csv", "jsonl", "manifest", "sizes", "hugging face", "mask"])
def test_paths_of_tables_and_manifests_do_not_lead_out_either(make, kind, tree, tmp_path, capfd):
    key, names = make(tree), ["cat/1.txt", "dog/2.txt"]
    options: list[str] = []
    if kind == "csv":
        source = tree / "t.csv"
        source.write_text("filename,label\n" + "".join(f"{name},a\n" for name in [*names, key]))
    elif kind == "jsonl":
        source = tree / "t.jsonl"
        source.write_text("".join(json.dumps({"file_name": n, "label": "a"}) + "\n" for n in [*names, key]))
    elif kind == "manifest":
        source = tree / "m.json"
        source.write_text(json.dumps(dict.fromkeys([*names, key], 0)))
    elif kind == "sizes":
        source = tree / "m.json"
        Manifest.from_columns([*names, key], [0, 0, 0], sizes=[5, 5, len(SECRET)]).save(source)
    elif kind == "hugging face":
        source = tree
        (tree / "metadata.csv").write_text("file_name,label\n" + "".join(f"{n},a\n" for n in [*names, key]))
    else:
        source = tree / "t.csv"
        source.write_text(f"filename,other,label\ncat/1.txt,{key},a\n")
        options = ["--field", "other=other"]
    link = key if key.startswith("cat") else "cow"
    for more in ((), ("--on-error", "skip")):
        code, said, _ = pack(source, tmp_path / "a.arrow", *options, *more, capfd=capfd)
        assert code == 1 and f"{link} -> " in said and "--follow-links" in said, said
    code, said, samples = pack(source, tmp_path / "a.arrow", *options, "--follow-links", capfd=capfd)
    assert code == 0 and len(samples) == (1 if kind == "mask" else 3), said


def test_a_link_that_is_made_after_the_manifest_is_refused_too(tree, tmp_path, capfd):
    source = sources.load(tree, suffixes=".txt", sizes=False)
    (tree / "cat/1.txt").unlink()
    (tree / "cat/1.txt").symlink_to(tmp_path / "store/secret.txt")
    buffer = memoryview(bytearray(100))
    with pytest.raises(SmallfilesError, match=r"cat/1\.txt -> .*--follow-links"):
        source.store.read_into("cat/1.txt", buffer)
    with pytest.raises(SmallfilesError, match=r"cat/1\.txt -> "):
        source.store.size("cat/1.txt")


def test_links_inside_need_no_flag_and_the_tree_itself_may_be_a_link(tree, tmp_path, capfd):
    (tree / "cat/9.txt").symlink_to("../dog/2.txt")
    (tree / "cow").symlink_to(tree / "dog")
    (tmp_path / "way").symlink_to(tree)
    for number, source in enumerate((tree, tmp_path / "way")):
        code, said, samples = pack(source, tmp_path / f"{number}.arrow", capfd=capfd)
        assert code == 0 and sorted(samples) == ["cat/1.txt", "cat/9.txt", "cow/2.txt", "dog/2.txt"], said


def test_a_symlink_farm_is_packed_with_the_flag_and_verified_against_its_folder(tmp_path, capfd):
    """Data sets of links into a store are common on clusters."""
    for number in range(6):
        store = tmp_path / "store" / f"{number}.txt"
        farm = tmp_path / "farm" / "ab"[number % 2] / f"{number}.txt"
        store.parent.mkdir(exist_ok=True)
        farm.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(f"{number}")
        farm.symlink_to(store)
    code, said, _ = pack(tmp_path / "farm", tmp_path / "a.arrow", capfd=capfd)
    assert code == 1 and "6 links" in said and "--follow-links" in said, said
    code, said, samples = pack(tmp_path / "farm", tmp_path / "a.arrow", "--follow-links", capfd=capfd)
    assert code == 0 and len(samples) == 6, said
    words = ["verify", str(tmp_path / "a.arrow"), "--against", str(tmp_path / "farm")]
    assert main(words) == 1
    assert "--follow-links" in capfd.readouterr().err
    assert main([*words, "--follow-links"]) == 0, capfd.readouterr()


def test_links_among_archives_and_tables_with_files_inside(tmp_path, capfd):
    (tmp_path / "store").mkdir()
    for name in ("cat", "dog"):
        with tarfile.open(tmp_path / "store" / f"{name}.tar", "w") as archive:
            (tmp_path / "1.txt").write_text(name)
            archive.add(tmp_path / "1.txt", "1.txt")
    (tmp_path / "tars").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "tars" / f"{name}.tar").symlink_to(tmp_path / "store" / f"{name}.tar")
    code, said, _ = pack(tmp_path / "tars", tmp_path / "a.arrow", capfd=capfd)
    assert code == 1 and "cat.tar -> " in said and "--follow-links" in said, said
    code, said, samples = pack(tmp_path / "tars", tmp_path / "a.arrow", "--follow-links", capfd=capfd)
    assert code == 0 and sorted(samples) == ["cat/1.txt", "dog/1.txt"], said


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside.txt", "../cat/../../x.txt"])
@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_a_link_out_of_an_archive_is_refused_and_the_cure_works(suffix, target, tmp_path, capfd):
    path, tree = tmp_path / f"x{suffix}", tmp_path / "unpacked"
    (tree / "cat").mkdir(parents=True)
    (tree / "cat/1.txt").write_text("x")
    (tree / "cat/2.txt").symlink_to(target)
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(tree / "cat/1.txt", "cat/1.txt")
            info = zipfile.ZipInfo("cat/2.txt")
            info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, target)
    else:
        with tarfile.open(path, "w:gz" if suffix.endswith("gz") else "w") as archive:
            archive.add(tree, ".")
    code, said, _ = pack(path, tmp_path / "a.arrow", capfd=capfd)
    assert code == 1 and f"cat/2.txt -> {target}" in said and "unpack" in said.lower(), said
    real = os.path.realpath(tree / "cat" / target)
    if not Path(real).exists():
        Path(real).write_text("linked")
    code, said, samples = pack(tree, tmp_path / "a.arrow", "--follow-links", capfd=capfd)
    assert code == 0 and len(samples) == 2, said
