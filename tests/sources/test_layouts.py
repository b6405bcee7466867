"""Trees as people have them: the right classes or a sentence, and the same for a folder and its tar."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from layouts import LAYOUTS, Layout
from source_sets import rows

from smallfiles import sources
from smallfiles.cli import main
from smallfiles.errors import SourceError
from smallfiles.manifest.class_folders import by_folder
from smallfiles.manifest.listing import Files
from smallfiles.pack import PackConfig, pack


def planted(layout: Layout, root: Path) -> Path:
    for name, data in layout.tree().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            (root / name).mkdir()
        else:
            (root / name).write_bytes(data)
    return root


def packed(root: Path) -> Path:
    with tarfile.open(root.with_suffix(".tar"), "w") as archive:
        for path in sorted(root.iterdir()):
            archive.add(path, path.name)
    return root.with_suffix(".tar")


def test_few_files_are_looked_into_and_none_where_names_give_no_reason():
    looked = []
    classes = [f"class{n}/{k}.jpg" for n in range(50) for k in range(50)]
    masks = [f"masks{n}/seg{k}.png" for n in range(50) for k in range(50)]
    for names, most in ((classes, 0), (classes + masks, 16)):
        by_folder(Files(Path("tree"), pa.array(names), look=lambda name: looked.append(name) or b""))
        assert len(looked) <= most


def test_what_is_odd_is_said_when_a_source_is_packed_in_python(tmp_path, capsys):
    tree = planted(LAYOUTS["stray pictures"], tmp_path / "tree")
    pack(sources.load(tree), tmp_path / "x.arrow", PackConfig(check="none"))
    assert re.search("note: folder .*/tree: .*left out: preview.jpg", capsys.readouterr().err)
    assert main(["pack", str(tree), str(tmp_path / "y.arrow")]) == 0
    assert capsys.readouterr().err.count("preview.jpg") == 1


@pytest.mark.parametrize("kind", ["folder", "tar"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_tree_is_read_rightly_or_refused_and_never_taken_for_something_else(tmp_path, layout, kind):
    path = planted(layout, tmp_path / "tree")
    asked = dict(layout.asked or {})
    if kind == "tar":
        path, asked = packed(path), asked | ({"kind": "tarball"} if "kind" in asked else {})
    refused = layout.in_tar if kind == "tar" else ""
    if refused or (not layout.classes and layout.kept is None):
        with pytest.raises(SourceError, match=refused or layout.says):
            sources.load(path, **asked)
        return
    source = sources.load(path, **asked)
    classes = source.manifest.classes
    assert list(classes) == (layout.classes.split("|") if "|" in layout.classes else layout.classes.split())
    assert source.manifest.split == layout.split
    fields = layout.tar_fields if kind == "tar" else layout.fields
    assert source.manifest.blobs == tuple(fields.split())
    found = rows(source)
    assert len(found) == (layout.kept or len(layout.tree()))
    for name, label in found.items():
        assert label == -1 if not classes else classes[label] in name.split("/")[:-1]
    assert re.search(layout.says, "; ".join(source.notes)), source.notes


_EVERY_SOURCE = """
import sys
from pathlib import Path
from smallfiles import sources
from smallfiles.cli import main
from smallfiles.errors import SourceError

for path in map(Path, sys.argv[2:]):
    try:
        sources.load(path)
    except SourceError:
        pass  # it looked for labels all the same
out = Path(sys.argv[1])
for name in ("x.arrow", "x.h5", "x.tars", "x.tar", "x.sqfs", "x.files"):
    assert main(["pack", sys.argv[2], str(out / name)]) == 0
    assert main(["verify", str(out / name), "--against", sys.argv[2]]) == 0
    assert main(["inspect", str(out / name)]) == 0
    sources.load(out / name)
print("pandas" in sys.modules)
"""


def test_no_source_costs_the_import_of_pandas(tmp_path):
    """Several functions of pyarrow import it where it is installed: packing took twice the processor time."""
    trees = [planted(layout, tmp_path / f"tree{n}") for n, layout in enumerate(LAYOUTS.values())]
    (tmp_path / "t.csv").write_text(
        "path,label,split,x\ntree1/cat/1.jpg,cat,train,0.5\ntree1/dog/1.jpg,,val,\n"
    )
    (trees[1] / "metadata.csv").write_text("file_name,label\ncat/1.jpg,cat\n")
    paths = [*trees, *map(packed, trees), tmp_path / "t.csv"]
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_SOURCE, tmp_path, *paths], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
