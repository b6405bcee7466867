"""The table of refusals: a folder, a command that is refused there, and each cure that the message names.

`test_cures.py` runs the rows. For each cure it fills an empty folder, runs the command, finds `advice` in the
message, follows the cure, and expects success, or the refusal that `ends_with` names.

A command is a command line behind `smallfiles`, or code that `in_python` runs with `sources`, `synthetic`,
`pack` and `datasets` (skipped where it is not installed). A cure is one of these:

    a regular expression    It must match the advice as printed. The matched text is added to the command,
                            with `fill` for words such as COLUMN and DIR. In code it becomes `dataset = ...`.
                            If the row has `then`, the text is a command for the shell, to be run before that.
    a function              It does by hand what the advice says in words. If it returns a command, it is run
                            instead of the first one.

Add a row for each new `next_step` in `smallfiles/sources` and `smallfiles/manifest`. `NOT_YET` lists what no
row covers; it may only shrink.
"""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet


@dataclass(frozen=True)
class in_python:
    """Code to run in place of a command line."""

    code: str


Command = str | in_python


@dataclass(frozen=True)
class Refusal:
    """One row: what is in the folder, what is run there, what the message advises, and how to follow it."""

    name: str
    make: Callable[[], object]
    command: Command
    advice: str
    cures: tuple[str | Callable[[], Command | None], ...]
    fill: dict[str, str] = field(default_factory=dict)
    then: str = ""
    ends_with: str = ""


def picture(number=0, kind="JPEG", size=(16, 12)):
    """An encoded image, another one for each number."""
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def put(path, content):
    """Write a file, with its folders."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


def pictures(*paths):
    """Write a picture to each path; `{n}` in a path stands for 0, 1 and 2."""
    for path in paths:
        for n in range(3 if "{n}" in path else 1):
            name = path.replace("{n}", str(n))
            put(name, picture(sum(name.encode()), "PNG" if name.endswith("png") else "JPEG"))


def tar(path, *names, mode="w"):
    """Write a tar of pictures; a name that ends in .cls is a class number."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as file:
        for number, name in enumerate(names):
            data = b"1" if name.endswith(".cls") else picture(number)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


def table(path, *rows):
    """Write a table of texts."""
    put(path, "\n".join(rows) + "\n")


def classes():
    pictures("data/cat/{n}.jpg", "data/dog/{n}.jpg")


def manifest(command="manifest data -o m.json"):
    Path("m.json").unlink(missing_ok=True)
    run(command)


def run(command):
    """Run a command that succeeds."""
    from smallfiles.cli import main

    assert main(command.split()) == 0, command


def edit(path, old, new):
    """A function that replaces a text in a file, which must be there."""

    def change():
        text = Path(path).read_text()
        assert old in text, text
        Path(path).write_text(text.replace(old, new))

    return change


def instead(command):
    """The command that the advice means, where it says so in words."""
    return lambda: command


def both(*steps):
    """Do several things, and return what the last one returns."""

    def do():
        result = [step() for step in steps][-1]
        return result if isinstance(result, str) else None

    return do


def remove(path):
    """A function that removes a file or a folder."""

    def go():
        shutil.rmtree(path) if Path(path).is_dir() else Path(path).unlink()

    return go


def write_table(path, **columns):
    """Write a Parquet file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


PACK = "pack data o.arrow"
NO_HEADER = (
    "; if the table has no header, its columns are column1, column2 and so on: --field image=column1, "
    "or --field 'image=images/{column1}.jpg' for ids"
)
JSON_LINES = '{"file": "cat/0.jpg", "label": "a"}\n{"file": "dog/1.jpg", "label": "b"}\n'
LABELS = ["file,kind,number", *(f"{kind}/{n}.jpg,{kind},{n}" for kind in ("cat", "dog") for n in range(3))]


def with_table(*rows):
    """A function that makes the two classes and `t.csv` beside their folder."""
    return lambda: (classes(), table("t.csv", *rows))  # type: ignore[func-returns-value]


def other_splits():
    pictures("data/test/cat/{n}.jpg", "data/val/cat/{n}.jpg")


def coco(path, name="1.jpg", **more):
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}
    file = {"id": 1, "file_name": name, "width": 16, "height": 12}
    put(
        path,
        json.dumps({"images": [file], "annotations": [box], "categories": [{"id": 1, "name": "cat"}]} | more),
    )


def two_cocos():
    pictures("data/images/1.jpg")
    coco("data/annotations/a.json")
    coco("data/annotations/b.json")


def box_of(**more):
    return {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], **more}


def two_classes(image_id=2):
    """A COCO file of two images and classes; the second image is not on disk."""
    files = [{"id": n, "file_name": f"{n}.jpg", "width": 16, "height": 12} for n in (1, 2)]
    coco(
        "data/annotations/a.json",
        images=files,
        annotations=[box_of(), box_of(id=2, category_id=2, image_id=image_id)],
        categories=[{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    )


def xml_of(name):
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    size = "<size><width>16</width><height>12</height></size>"
    found = f"<filename>{name}</filename>{size}<object><name>cat</name>{box}</object>"
    return f"<annotation>{found}</annotation>"


def voc_pair():
    pictures("data/JPEGImages/1.jpg", "data/JPEGImages/2.jpg")
    for n in (1, 2):
        put(f"data/Annotations/{n}.xml", xml_of(f"{n}.jpg"))


def yolo():
    pictures("data/images/1.jpg", "data/images/2.jpg")
    for n in (1, 2):
        put(f"data/labels/{n}.txt", "0 0.5 0.5 0.5 0.5\n")
    put("data/data.yaml", "names: [cat]\n")


def voc(name="1", box="<xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax>"):
    pictures(f"data/JPEGImages/{name}.jpg")
    put(
        f"data/Annotations/{name}.xml",
        f"<annotation><filename>{name}.jpg</filename><size><width>16</width><height>12</height>"
        f"<depth>3</depth></size><object><name>cat</name><bndbox>{box}</bndbox></object></annotation>",
    )


def binary_column(**more):
    write_table("data.parquet", first=[picture(n) for n in range(3)], label=["x", "y", "x"], **more)


def structs(*paths, data=b""):
    rows = [{"bytes": picture(n) if data == b"" else data, "path": path} for n, path in enumerate(paths)]
    images = pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    write_table("data/train-00000-of-00001.parquet", image=images, label=[*range(len(rows))])


def parquet_shards():
    rows = [{"bytes": picture(n), "path": f"{n}.jpg"} for n in range(3)]
    write_table("data/train-00000-of-00002.parquet", image=rows, label=[0, 1, 2])


def second_shard():
    rows = [{"bytes": picture(n), "path": f"{n}.jpg"} for n in range(3, 6)]
    write_table("data/train-00001-of-00002.parquet", image=rows, label=[0, 1, 2])


def zipped(path, *names):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for number, name in enumerate(names):
            file.writestr(name, picture(number))


def zip_of_a_rare_method():
    with zipfile.ZipFile("data.zip", "w", zipfile.ZIP_LZMA) as file:
        for n in range(3):
            file.writestr(f"cat/{n}.jpg", picture(n))


def unzip():
    with zipfile.ZipFile("data.zip") as file:
        file.extractall("unzipped")
    return "pack unzipped o.arrow"


def kaggle():
    run("synth kg --layout kaggle --count 20 --classes 2")


def karpathy():
    return json.dumps(
        {
            "images": [
                {
                    "filename": f"{n}.jpg",
                    "split": "train",
                    "imgid": n,
                    "sentids": [n],
                    "sentences": [{"raw": "A dog ."}],
                }
                for n in (1, 2)
            ],
            "dataset": "flickr30k",
        }
    )


def packed_set():
    classes()
    run("pack data s.arrow")


READ = """
s = sources.load(Path("m.json"))
s.store.read_into(s.manifest.path({}), memoryview(bytearray(100_000)))
"""
READ_FIRST, READ_LAST = (in_python(READ.format(row)) for row in ("0", "len(s.manifest) - 1"))
CHANGED = in_python(
    """
s = sources.load(Path("data.tar"))
Path("data.tar").write_bytes(Path("data.tar").read_bytes() + bytes(10240))
s.store.read_into(s.manifest.path(0), memoryview(bytearray(100_000)))
"""
)


def shards_of(count):
    rows = [{"bytes": picture(n), "path": f"{n}.jpg"} for n in range(count)]
    write_table("data/0.parquet", image=rows, label=[*range(count)])


def move(old, new):
    """A function that renames a file or folder."""

    def go():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        Path(old).rename(new)

    return go


def remove_link():
    Path("data/cat").unlink()


def linked_out():
    pictures("elsewhere/cat/{n}.jpg")
    Path("data").mkdir()
    Path("data/cat").symlink_to(Path("elsewhere/cat").absolute())


FROM_DATASET = """
{made}
# cure
pack(sources.from_dataset(dataset), Path("o.arrow"), PackConfig())
"""


def from_dataset(made):
    """Code that packs a data set; `made` assigns it to `dataset`."""
    return in_python(FROM_DATASET.format(made=made))


FILES = "[bytes(each) for each in (Path(f'data/cat/{n}.jpg').read_bytes() for n in range(3))]"


def hf(**columns):
    """Code that packs a table of 🤗 datasets."""
    made = ", ".join(f"'{name}': {values}" for name, values in columns.items())
    return from_dataset(f"dataset = datasets.Dataset.from_dict({{{made}}})")


def pairs(first, *more):
    """Code that packs an object with `len` and `[i]`, which returns `first`."""
    lines = [
        f"    {line}"
        for line in ("def __len__(self): return 2", f"def __getitem__(self, i): return {first}", *more)
    ]
    return from_dataset("\n".join(["class Pairs:", *lines, "dataset = Pairs()"]))


PIXELS = "(__import__('numpy').full((8, 8, 3), i, 'uint8'), i)"


TO_FOLDER = in_python(
    """
from smallfiles.manifest import Manifest
Manifest.from_columns(["cat/0.jpg"], [0]).schema()
"""
)
WITH_SIZES = in_python(
    """
from smallfiles.manifest import Manifest
manifest = Manifest.from_columns(["cat/0.jpg"], [0])
manifest = manifest.with_sizes([9])
manifest.schema()
"""
)

REFUSALS = [
    # folders, splits and classes
    Refusal(
        "no such path",
        lambda: None,
        PACK,
        "Check the path, and whether this file system is mounted on this node",
        (classes,),
    ),
    Refusal(
        "two splits, none is train",
        other_splits,
        PACK,
        "Choose one, for example --split test",
        (r"--split test",),
    ),
    Refusal(
        "no such split",
        other_splits,
        f"{PACK} --split train",
        "Choose one of these",
        (instead(f"{PACK} --split val"),),
    ),
    Refusal(
        "a split by its name",
        lambda: pictures("data/val/cat/{n}.jpg", "data/train/cat/{n}.jpg"),
        "pack data/val o.arrow --split train",
        "Give the folder above it, or that split",
        (instead("pack data o.arrow --split train"), instead("pack data/train o.arrow --split train")),
    ),
    Refusal(
        "no class folders",
        lambda: pictures("data/{n}.jpg"),
        PACK,
        "Sort them into class folders, give a table of labels (--labels), or pack "
        "them without (--unlabelled)",
        (
            r"--unlabelled",
            lambda: [move(f"data/{n}.jpg", f"data/cat/{n}.jpg")() for n in range(3)],
            lambda: table("t.csv", "file,label", "0.jpg,a", "1.jpg,b", "2.jpg,a") or f"{PACK} --labels t.csv",
        ),
    ),
    Refusal(
        "no images",
        lambda: (put("data/a/1.xyz", "1"), put("data/b/2.xyz", "1")),
        PACK,
        "Check the path, or name the suffixes of your samples (--suffix)",
        (r"--suffix",),
        fill={"--suffix": "--suffix .xyz"},
    ),
    Refusal(
        "a link out of the tree",
        linked_out,
        PACK,
        "Add --follow-links if these files belong to the data set; remove the links if they do not",
        (r"--follow-links", both(remove_link, lambda: pictures("data/cat/{n}.jpg"))),
    ),
    Refusal(
        "a flag without effect",
        with_table(*LABELS),
        "pack t.csv o.arrow --root data --suffix .png",
        "Leave --suffix out, or make a manifest with the targets you want",
        (instead("pack t.csv o.arrow --root data --field label=kind"),),
    ),
    Refusal(
        "class numbers are missing",
        lambda: [
            (
                put(f"data/{n}.jpg", picture(n)),
                put(f"data/{n}.mask.png", picture(n, "PNG")),
                put(f"data/{n}.cls", "1x"[n == 1]),
            )
            for n in range(3)
        ],
        PACK,
        "Correct them, or pack the samples without (--unlabelled)",
        (r"--unlabelled", lambda: [put(f"data/{n}.cls", "1") for n in range(3)]),
    ),
    Refusal(
        "left out, although strict",
        lambda: (classes(), pictures("data/9.jpg")),
        f"{PACK} --strict",
        "Check that the labels belong to these images, or leave out --strict",
        (instead(PACK), remove("data/9.jpg")),
    ),
    Refusal(
        "a row without a file, although strict",
        with_table(*LABELS, "dog/7.jpg,dog,7"),
        "pack t.csv o.arrow --root data --field label=kind --strict",
        "Complete or remove what is named, or leave out --strict",
        (
            both(
                edit("t.csv", "dog/7.jpg,dog,7\n", ""),
                instead("pack t.csv o.arrow --root data --field label=kind --strict"),
            ),
            lambda: pictures("data/dog/7.jpg"),
            instead("pack t.csv o.arrow --root data --field label=kind --on-error skip"),
        ),
    ),
    Refusal(
        "a name that is not portable",
        lambda: (classes(), put("data/cat/a\nb.jpg", picture())),
        PACK,
        "Rename it: mv -n ",
        ("mv -n .*",),
        then=PACK,
    ),
    Refusal(
        "labels of other images",
        lambda: (
            pictures("data/val/images/{n}.JPEG"),
            table("data/val/val_annotations.txt", "9.JPEG\ta\t0\t0\t1\t1"),
        ),
        "pack data/val o.arrow",
        "Check that the labels belong to these images",
        (lambda: table("data/val/val_annotations.txt", *(f"{n}.JPEG\ta\t0\t0\t1\t1" for n in range(3))),),
    ),
    Refusal(
        "labels that are not UTF-8",
        lambda: (
            pictures("data/val/images/{n}.JPEG"),
            put("data/val/val_annotations.txt", "0.JPEG\tä\n".encode("latin-1")),
        ),
        "pack data/val o.arrow",
        "Download it again",
        (lambda: table("data/val/val_annotations.txt", *(f"{n}.JPEG\ta\t0\t0\t1\t1" for n in range(3))),),
    ),
    Refusal(
        "two domains",
        lambda: pictures("data/trainA/{n}.jpg", "data/trainB/{n}.jpg"),
        PACK,
        "Give one folder at a time, with --unlabelled if there are no class folders "
        "in it, or say which files are those of one sample "
        "(--field mask=masks/{stem}.png, or --field image=imagesTr/{id}_0000.nii.gz "
        "--field mask=labelsTr/{id}.nii.gz), "
        "or use --source folder if they are classes",
        (
            instead("pack data/trainA o.arrow --unlabelled"),
            instead(PACK + " --field b=trainB/{stem}.jpg"),
            r"--source folder",
        ),
    ),
    # ImageNet
    Refusal(
        "no labels of val",
        lambda: (kaggle(), move("kg/LOC_val_solution.csv", "l/LOC_val_solution.csv")()),
        "pack kg o.arrow --split val",
        "Put it there, or give its path (--labels PATH)",
        (r"--labels PATH", lambda: move("l/LOC_val_solution.csv", "kg/LOC_val_solution.csv")()),
        fill={"PATH": "l/LOC_val_solution.csv"},
    ),
    Refusal(
        "images of unlisted classes",
        lambda: (kaggle(), pictures("kg/ILSVRC/Data/CLS-LOC/train/n99999999/n99999999_1.JPEG")),
        "pack kg o.arrow",
        "Move them away, or read the tree as a plain folder (--source folder)",
        (r"--source folder", remove("kg/ILSVRC/Data/CLS-LOC/train/n99999999")),
    ),
    Refusal(
        "a tar that is not of ImageNet",
        lambda: tar("a.tar", "cat/1.jpg"),
        "pack a.tar o.arrow --source imagenet",
        "Check the path, or read it as any tar (--source tarball)",
        (instead("pack a.tar o.arrow --source tarball"),),
    ),
    # parts of samples
    Refusal(
        "parts that do not fit",
        lambda: pictures(
            "data/images/{n}.jpg",
            "data/images/7.jpg",
            "data/images/8.jpg",
            "data/images/9.jpg",
            "data/masks/0.png",
            "data/masks/a.png",
            "data/masks/b.png",
            "data/masks/c.png",
        ),
        PACK,
        "Correct the names, or say which files belong together (--field mask=masks/{stem}.png, or "
        "--field image=imagesTr/{id}_0000.nii.gz --field mask=labelsTr/{id}.nii.gz); "
        "or give one folder at a time, "
        "with --unlabelled if there are no class folders in it; or use --source folder if they are classes",
        (
            lambda: (
                [
                    move(f"data/masks/{old}.png", f"data/masks/{new}.png")()
                    for old, new in zip("abc", "129", strict=True)
                ]
            ),
            r"--field mask=masks/\{stem\}\.png",
            instead("pack data/images o.arrow --unlabelled"),
            r"--source folder",
        ),
    ),
    Refusal(
        "a template without files",
        lambda: pictures("data/images/{n}.jpg", "data/masks/{n}.png"),
        PACK + " --field mask=mask/{stem}.png",
        "Correct the template",
        (instead(PACK + " --field mask=masks/{stem}.png"),),
    ),
    Refusal(
        "a template that makes no sense",
        lambda: pictures("data/images/{n}.jpg", "data/masks/{n}.png"),
        PACK + " --field mask",
        "Correct it, or give a table of labels too (--labels)",
        (instead(PACK + " --field mask=masks/{stem}.png"),),
    ),
    # tables
    Refusal(
        "no usual column of paths",
        with_table(*(row.replace("file,", "where,") for row in LABELS)),
        "pack t.csv o.arrow --root data",
        f"Add --field image=COLUMN{NO_HEADER}",
        (r"--field image=COLUMN",),
        fill={"COLUMN": "where"},
    ),
    Refusal(
        "two usual columns of labels",
        with_table("file,label,class", "cat/0.jpg,1,2"),
        "pack t.csv o.arrow --root data",
        "Add --field label=label or --unlabelled",
        (r"--field label=label", r"--unlabelled"),
    ),
    Refusal(
        "no such column",
        with_table(*LABELS),
        "pack t.csv o.arrow --root data --field label=species",
        "Correct --field",
        (instead("pack t.csv o.arrow --root data --field label=kind"),),
    ),
    Refusal(
        "a field that is not NAME=COLUMN",
        with_table(*LABELS),
        "pack t.csv o.arrow --root data --field label",
        "Correct it",
        (instead("pack t.csv o.arrow --root data --field label=kind"),),
    ),
    Refusal(
        "labels that are fractions",
        with_table("file,label", "cat/0.jpg,0.5", "cat/1.jpg,1.5"),
        "pack t.csv o.arrow --root data",
        "Keep it as a value (--field score=label), or choose one (--field label=COLUMN)",
        (r"--field score=label",),
    ),
    Refusal(
        "a wrong root",
        with_table(*LABELS),
        "pack t.csv o.arrow",
        "Give the right one (--root DIR), or a template (--field image=folder/{id}.jpg)",
        (r"--root DIR",),
        fill={"DIR": "data"},
    ),
    Refusal(
        "a row without a path",
        with_table("file,label", "cat/0.jpg,a", ",b"),
        "pack t.csv o.arrow --root data",
        "Complete the table",
        (edit("t.csv", ",b", "cat/1.jpg,b"),),
    ),
    Refusal(
        "no row names a file",
        with_table("file,label", "x/7.jpg,a"),
        f"{PACK} --labels t.csv",
        "Choose another column, for example --field image=images/{id}.jpg",
        (edit("t.csv", "x/7.jpg", "cat/0.jpg"),),
    ),
    Refusal(
        "several files of one row",
        with_table("file,label", "0.jpg,a", "1.jpg,b"),
        f"{PACK} --labels t.csv",
        "Write relative paths into the table",
        (both(edit("t.csv", "0.jpg", "cat/0.jpg"), edit("t.csv", "1.jpg", "cat/1.jpg")),),
    ),
    Refusal(
        "paths that are numbers",
        with_table("file,label", "1,a"),
        "pack t.csv o.arrow --root data --field image=label --field label=file",
        "Give the right one (--root DIR), or a template (--field image=folder/{id}.jpg)",
        (instead("pack t.csv o.arrow --root data --field image=cat/{file}.jpg --field label=label"),),
    ),
    Refusal(
        "a column of truth values as paths",
        lambda: (classes(), put("t.jsonl", '{"file": true, "label": "a"}\n')),
        "pack t.jsonl o.arrow --root data",
        "Choose another with --field",
        (
            both(
                lambda: put("t.jsonl", '{"file": true, "at": "cat/0.jpg", "label": "a"}\n'),
                instead("pack t.jsonl o.arrow --root data --field image=at"),
            ),
        ),
    ),
    Refusal(
        "a column twice",
        with_table("file,label,label", "cat/0.jpg,1,2"),
        "pack t.csv o.arrow --root data",
        "Rename one of them",
        (edit("t.csv", "label,label", "label,second"),),
    ),
    Refusal(
        "a table that is not one",
        with_table("file,label", "cat/0.jpg,1", "cat/1.jpg,2,3"),
        "pack t.csv o.arrow --root data",
        "Correct it, or write it again",
        (edit("t.csv", ",2,3", ",2"),),
    ),
    Refusal(
        "no header",
        with_table(*LABELS[1:]),
        "pack t.csv o.arrow --root data",
        f"Add --field image=COLUMN{NO_HEADER}",
        (r"--field image=column1(?=,)",),
    ),
    Refusal(
        "ids without a header",
        with_table("cat/0,a", "dog/1,b"),
        "pack t.csv o.arrow --root data",
        f"Add --field image=COLUMN{NO_HEADER}",
        (lambda: "pack t.csv o.arrow --root data --field 'image={column1}.jpg' --field label=column2",),
    ),
    Refusal(
        "no column of labels",
        with_table("file", "cat/0.jpg", "dog/1.jpg"),
        "pack t.csv o.arrow --root data",
        "Add --field label=COLUMN or --unlabelled",
        (r"--unlabelled", both(edit("t.csv", "file", "file,label"), edit("t.csv", ".jpg", ".jpg,a"))),
    ),
    Refusal(
        "two delimiters that fit",
        with_table("file;a,label", "cat/0.jpg;1,a", "dog/1.jpg;2,b"),
        "pack t.csv o.arrow --root data",
        "Write the table again with tabs between the columns, as a .tsv file",
        (
            lambda: (
                table("t.tsv", "file\tlabel", "cat/0.jpg\ta", "dog/1.jpg\tb")
                or "pack t.tsv o.arrow --root data"
            ),
        ),
    ),
    Refusal(
        "quotes that can be read in two ways",
        with_table("file\tlabel\tsaid", 'cat/0.jpg\ta\t"x', 'dog/1.jpg\tb\ty"', "dog/2.jpg\tb\tz"),
        "pack t.csv o.arrow --root data",
        "Write it as JSON Lines (.jsonl, one object per row), where quotes are clear",
        (lambda: put("t.jsonl", JSON_LINES) or "pack t.jsonl o.arrow --root data",),
    ),
    Refusal(
        "a quote without its end",
        with_table("file,label", 'cat/0.jpg,"a, b"', 'dog/1.jpg,"c'),
        "pack t.csv o.arrow --root data",
        "Correct this line, or write the table as JSON Lines (.jsonl)",
        (
            edit("t.csv", '"c', '"c"'),
            lambda: put("t.jsonl", JSON_LINES) or "pack t.jsonl o.arrow --root data",
        ),
    ),
    Refusal(
        "another encoding",
        lambda: (classes(), put("t.csv", "file,label\ncat/0.jpg,Bär\n".encode("latin-1"))),
        "pack t.csv o.arrow --root data",
        "Convert it. If it is Latin-1, as is likely: iconv -f LATIN1 -t UTF-8 t.csv > t.utf-8.csv",
        (r"iconv .*",),
        then="pack t.utf-8.csv o.arrow --root data",
    ),
    # tables with files inside
    Refusal(
        "a column of bytes",
        binary_column,
        "pack data.parquet o.arrow",
        "If it holds the files of the samples, pack this table with --field "
        "image=first; if not, write the table without it",
        (r"--field image=first",),
    ),
    Refusal(
        "a column of bytes of another name",
        lambda: write_table("data.parquet", jpg=[picture(n) for n in range(3)], label=[0, 1, 0]),
        "pack data.parquet o.arrow",
        "If it holds the files of the samples, pack this table with --field "
        "image=jpg; if not, write the table without it",
        (r"--field image=jpg",),
    ),
    Refusal(
        "a column of bytes that are not files",
        lambda: (classes(), write_table("t.parquet", file=["cat/0.jpg"], label=["a"], code=[b"a"])),
        "pack data o.arrow --labels t.parquet",
        "If it holds the files of the samples, pack this table with --field "
        "image=code; if not, write the table without it",
        (lambda: write_table("t.parquet", file=["cat/0.jpg"], label=["a"]),),
    ),
    Refusal(
        "bytes inside a struct",
        lambda: write_table(
            "data.parquet", image=[{"jpg": picture(n), "w": 1} for n in range(3)], label=[0, 1, 0]
        ),
        "pack data.parquet o.arrow",
        "Write its bytes as a plain binary column, or write the table without it",
        (lambda: binary_column() or "pack data.parquet o.arrow --field image=first",),
    ),
    Refusal(
        "bytes of no known kind",
        lambda: structs(None, None, data=b"abcdefghijklm"),
        PACK,
        "Write paths beside the bytes, as {bytes, path}, or write the table without it",
        (lambda: structs("1.txt", "2.txt", data=b"abcdefghijklm"),),
    ),
    Refusal(
        "files that are not embedded",
        lambda: structs("/a/1.jpg", "/a/2.jpg", data=None),
        PACK,
        "Embed the files when the table is written, or pack a table of paths beside them",
        (
            lambda: structs("1.jpg", "2.jpg"),
            lambda: (
                (pictures("data/{n}.jpg"), table("t.csv", "file,label", "0.jpg,a", "1.jpg,b"))
                and "pack t.csv o.arrow --root data"
            ),
        ),
    ),
    Refusal(
        "a shard is missing",
        parquet_shards,
        PACK,
        "Download the others, or give one file by its name",
        (second_shard, instead("pack data/train-00000-of-00002.parquet o.arrow")),
    ),
    # boxes
    Refusal(
        "two files of boxes",
        two_cocos,
        PACK,
        "Add --labels data/annotations/a.json",
        (r"--labels \S+[^\s.]",),
    ),
    Refusal(
        "a broken COCO",
        lambda: (
            pictures("data/images/1.jpg"),
            coco("data/annotations/a.json", categories=[{"name": "cat"}]),
        ),
        PACK,
        "Correct it or download it again",
        (lambda: coco("data/annotations/a.json"),),
    ),
    Refusal(
        "annotations of other images",
        lambda: (pictures("data/images/1.jpg"), coco("data/annotations/a.json", "2.jpg")),
        PACK,
        "Check that images and annotations belong together",
        (lambda: coco("data/annotations/a.json"),),
    ),
    Refusal(
        "a box that is not finite",
        lambda: (
            pictures("data/images/1.jpg"),
            coco(
                "data/annotations/a.json",
                annotations=[{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, float("nan"), 4]}],
            ),
        ),
        PACK,
        "Correct the annotations, or leave this one out",
        (lambda: coco("data/annotations/a.json"), lambda: coco("data/annotations/a.json", annotations=[])),
    ),
    Refusal(
        "boxes beside masks",
        lambda: (voc_pair(), pictures("data/SegmentationClass/1.png", "data/SegmentationClass/2.png")),
        PACK,
        "Go without the masks (--ignore SegmentationClass), or without the boxes (--unlabelled)",
        (r"--ignore [^\s)]+", instead(f"{PACK} --unlabelled --ignore Annotations")),
    ),
    Refusal(
        "an XML of VOC that names another image",
        lambda: (voc_pair(), put("data/Annotations/1.xml", xml_of("2.jpg"))),
        PACK,
        "Correct the entry filename, or the name of the XML",
        (
            lambda: put("data/Annotations/1.xml", xml_of("1.jpg")),
            lambda: Path("data/Annotations/1.xml").replace("data/Annotations/2.xml"),
        ),
    ),
    Refusal(
        "annotations of unknown image ids",
        lambda: (
            pictures("data/images/1.jpg"),
            coco("data/annotations/a.json", annotations=[box_of(image_id=7)]),
        ),
        PACK,
        "Check image_id against the ids of images, and that the images are those of this file",
        (lambda: coco("data/annotations/a.json"),),
    ),
    Refusal(
        "a class of COCO that would be lost",
        lambda: (pictures("data/images/1.jpg"), two_classes()),
        PACK,
        "Fetch the missing images, or remove the annotations of this class from the file",
        (lambda: two_classes(image_id=1), lambda: coco("data/annotations/a.json")),
    ),
    Refusal(
        "masks in run lengths only",
        lambda: (
            pictures("data/images/1.jpg"),
            coco(
                "data/annotations/a.json", annotations=[box_of(segmentation={"counts": [], "size": [1, 1]})]
            ),
        ),
        PACK,
        "Write them as polygons, or remove the entry segmentation from each annotation",
        (
            lambda: coco("data/annotations/a.json", annotations=[box_of(segmentation=[[1, 1, 2, 2, 3, 3]])]),
            lambda: coco("data/annotations/a.json"),
        ),
    ),
    Refusal(
        "data.yaml that names other folders",
        lambda: (yolo(), put("data/data.yaml", "train: images/train\nnames: [cat]\n")),
        PACK,
        "Correct data.yaml, or go without (--ignore data.yaml)",
        (r"--ignore data.yaml", edit("data/data.yaml", "images/train", "images")),
    ),
    Refusal(
        "lines of YOLO that may be polygons or points",
        lambda: (yolo(), [put(f"data/labels/{n}.txt", "0 .5 .5 .4 .4 .5 .5 .4 .4\n") for n in (1, 2)]),
        PACK,
        "Write kpt_shape: [2, 2] into data.yaml if the numbers after a box are points, or "
        "kpt_shape: [0, 2] if they are polygons",
        (
            lambda: put("data/data.yaml", "names: [cat]\nkpt_shape: [2, 2]\n"),
            lambda: put("data/data.yaml", "names: [cat]\nkpt_shape: [0, 2]\n"),
        ),
    ),
    Refusal(
        "a pattern that matches nothing",
        classes,
        f"{PACK} --ignore bird",
        "Correct the pattern, or leave it out",
        (instead(f"{PACK} --ignore dog"), instead(PACK)),
    ),
    Refusal(
        "a class of a table without a file",
        lambda: (pictures("data/1.jpg"), table("t.csv", "file,label", "1.jpg,a", "2.jpg,b")),
        f"{PACK} --labels t.csv",
        "Fetch the files, or remove its rows from the table",
        (lambda: pictures("data/2.jpg"), lambda: table("t.csv", "file,label", "1.jpg,a")),
    ),
    Refusal(
        "a class folder of other files",
        lambda: (classes(), put("data/bee/1.png.heic", picture(3, "PNG"))),
        PACK,
        "Read them too (--suffix .jpg --suffix .heic), or leave them out (--ignore 'bee/*')",
        (lambda: f"{PACK} --suffix .jpg --suffix .heic --check none", r"--ignore 'bee/\*'"),
    ),
    Refusal(
        "a line of YOLO that is not a box",
        lambda: (yolo(), put("data/labels/1.txt", "0 nan 0.5 0.5 0.5\n")),
        PACK,
        "Correct it or download it again",
        (lambda: put("data/labels/1.txt", "0 0.5 0.5 0.5 0.5\n"),),
    ),
    Refusal(
        "an image whose size is unknown",
        lambda: (yolo(), put("data/images/1.jpg", b"\xff\xd8\xff nothing")),
        PACK,
        "Fetch the file again, or remove it together with its label file",
        (
            lambda: pictures("data/images/1.jpg"),
            both(remove("data/images/1.jpg"), remove("data/labels/1.txt")),
        ),
    ),
    Refusal(
        "class names that cannot be read",
        lambda: (yolo(), put("data/data.yaml", "names: &x {0: *y}\n")),
        PACK,
        "Write it so, or put the class names into classes.txt, one per line, and remove the entry",
        (
            lambda: put("data/data.yaml", "names: [cat]\n"),
            both(remove("data/data.yaml"), lambda: put("data/classes.txt", "cat\n")),
        ),
    ),
    Refusal(
        "a broken VOC",
        lambda: voc(box="<xmin>1</xmin>"),
        PACK,
        "Correct it or download it again",
        (lambda: voc(),),
    ),
    Refusal(
        "a split of VOC without lists",
        lambda: (voc("1"), voc("2")),
        f"{PACK} --split train",
        "Add this file, or pack all images without --split",
        (instead(PACK), lambda: table("data/ImageSets/Main/train.txt", "1")),
    ),
    Refusal(
        "points that cannot be scaled",
        lambda: (classes(), put("t.jsonl", '{"file": "cat/0.jpg", "boxes": [[1, 2]]}\n')),
        "pack t.jsonl o.arrow --root data --resize 8",
        "Pack without --resize, or leave the field out of the table",
        (
            instead("pack t.jsonl o.arrow --root data"),
            lambda: put("t.jsonl", '{"file": "cat/0.jpg", "age": 4}\n'),
        ),
    ),
    Refusal(
        "keypoints, which are not scaled",
        lambda: (classes(), put("t.jsonl", '{"file": "cat/0.jpg", "keypoints": [[1, 2, 2]]}\n')),
        "pack t.jsonl o.arrow --root data --resize 8",
        "Pack without --resize, or leave the field out of the table",
        (
            instead("pack t.jsonl o.arrow --root data"),
            lambda: put("t.jsonl", '{"file": "cat/0.jpg", "age": 4}\n'),
        ),
    ),
    # manifests
    Refusal(
        "a manifest of another split",
        lambda: (classes(), manifest()),
        "pack m.json o.arrow --split val",
        "Give that one, or no split",
        (instead("pack m.json o.arrow"),),
    ),
    Refusal(
        "a manifest without its data",
        lambda: (classes(), manifest(), Path("data").rename("moved")),
        "pack m.json o.arrow",
        "Give the right place (--root DIR)",
        (r"--root DIR",),
        fill={"DIR": "moved"},
    ),
    Refusal(
        "a manifest that names data elsewhere",
        lambda: (classes(), Path("lists").mkdir(), manifest("manifest data -o lists/m.json")),
        "pack lists/m.json o.arrow",
        "If this is right, confirm it: --root data",
        (r"--root data",),
    ),
    Refusal(
        "a manifest that was edited",
        lambda: (classes(), manifest(), edit("m.json", "dog/2.jpg", "dog/3.jpg")()),
        "pack m.json o.arrow",
        'Restore the file, or delete its "digest" line if the change was meant',
        (
            manifest,
            edit("m.json", "dog/3.jpg", "dog/2.jpg"),
            lambda: (move("data/dog/2.jpg", "data/dog/3.jpg")(), without_digest()),
        ),
    ),
    Refusal(
        "a JSON that is not a manifest",
        lambda: put("m.json", "[1, 2"),
        "pack m.json o.arrow",
        "Check that this is the right file, or make it again: smallfiles manifest",
        (both(classes, manifest),),
    ),
    Refusal(
        "a manifest with a byte order mark",
        lambda: (classes(), put("m.json", '\ufeff{"data/cat/0.jpg": 1}')),
        "pack m.json o.arrow",
        "Save it again as plain UTF-8",
        (lambda: put("m.json", '{"data/cat/0.jpg": 1}'),),
    ),
    Refusal(
        "fields in a flat manifest",
        lambda: pictures("data/images/{n}.jpg", "data/masks/{n}.png"),
        "manifest data -o m.json --flat",
        "Write the other form: smallfiles manifest, without --flat",
        (instead("manifest data -o m.json"),),
    ),
    Refusal(
        "a manifest that cannot be written",
        classes,
        f"manifest data -o {'m' * 260}.json",
        "Choose a shorter name",
        (instead("manifest data -o new.json"),),
    ),
    Refusal(
        "a manifest of a later version",
        lambda: (classes(), manifest(), edit("m.json", '"version": 1', '"version": 9')()),
        "pack m.json o.arrow",
        "Update this package, or write the file again with the version that made it",
        (manifest,),
    ),
    Refusal(
        "a manifest whose files are gone",
        lambda: (classes(), manifest(), Path("data/cat/0.jpg").unlink()),
        READ_FIRST,
        "Check the file (ls -l), or make the manifest again if the data changed",
        (manifest, lambda: pictures("data/cat/0.jpg")),
    ),
    Refusal(
        "a manifest of rows that are gone",
        lambda: (shards_of(3), run("manifest data/0.parquet -o m.json"), shards_of(2)),
        READ_LAST,
        "Make the manifest again from these files",
        (lambda: (Path("m.json").unlink(), run("manifest data/0.parquet -o m.json")),),
    ),
    Refusal(
        "an archive that was changed",
        lambda: tar("data.tar", "cat/0.jpg", "cat/1.jpg"),
        CHANGED,
        "Run it again: the archive was changed in the meantime",
        (instead("pack data.tar o.arrow"),),
    ),
    # archives
    Refusal(
        "a file of another kind",
        lambda: put("data.bin", "nothing" * 200),
        "pack data.bin o.arrow",
        "Give the folder of the images; a packed file needs a suffix such as .arrow or .h5",
        (both(classes, instead(PACK)),),
    ),
    Refusal(
        "a file read as a folder",
        lambda: tar("data.tar", "cat/1.jpg"),
        "pack data.tar o.arrow --source folder",
        "Check the path",
        (instead("pack data.tar o.arrow"),),
    ),
    Refusal(
        "a tar without images",
        lambda: tar("data.tar", "1.cls"),
        "pack data.tar o.arrow",
        "Check the path, or name the suffixes of your samples (--suffix)",
        (lambda: tar("data.tar", "cat/1.jpg"),),
    ),
    Refusal(
        "samples of a tar without labels",
        lambda: tar("data.tar", "1.jpg", "1.cls", "2.jpg"),
        "pack data.tar o.arrow --strict",
        "Leave out --strict to take them unlabelled",
        (instead("pack data.tar o.arrow"),),
    ),
    Refusal(
        "a table for a tar is missing",
        lambda: tar("data.tar", "1.jpg", "2.jpg"),
        "pack data.tar o.arrow --field label=kind",
        "Give both, or neither",
        (
            lambda: (
                table("t.csv", "file,kind", "1.jpg,a", "2.jpg,b")
                or "pack data.tar o.arrow --labels t.csv --field label=kind"
            ),
            instead("pack data.tar o.arrow --unlabelled"),
        ),
    ),
    Refusal(
        "columns for a packed tar",
        lambda: (
            classes(),
            run("pack data s.tar"),
            table("t.csv", "key,age", *(f"{k}/{n}.jpg,4" for k in ("cat", "dog") for n in range(3))),
        ),
        "pack s.tar o.arrow --source tarball --labels t.csv",
        "Add columns with annotate",
        (instead("annotate s.tar t.csv --key key"),),
    ),
    Refusal(
        "tars that are shards, as classes",
        lambda: [tar(f"data/{n}.tar", f"cat/{n}.jpg", f"dog/{n}.jpg") for n in "ab"],
        f"{PACK} --source tarball",
        "If they are shards of one set, give a table of labels (--labels), or end the folder's name in .tars",
        (
            lambda: (
                table(
                    "t.csv",
                    "file,label",
                    *(f"{n}/{kind}/{n}.jpg,{kind}" for n in "ab" for kind in ("cat", "dog")),
                )
                or f"{PACK} --labels t.csv"
            ),
            lambda: move("data", "data.tars")() or "pack data.tars o.arrow",
        ),
    ),
    Refusal(
        "zips that are no classes",
        lambda: [zipped(f"data/{n}.zip", f"cat/{n}.jpg", f"dog/{n}.jpg") for n in "ab"],
        f"{PACK} --source tarball",
        "If they are shards of one set, give a table of labels (--labels)",
        (
            lambda: (
                table(
                    "t.csv",
                    "file,label",
                    *(f"{n}/{kind}/{n}.jpg,{kind}" for n in "ab" for kind in ("cat", "dog")),
                )
                or f"{PACK} --labels t.csv"
            ),
        ),
    ),
    Refusal(
        "a shard of pack, as a class",
        lambda: (classes(), Path("some").mkdir(), run("pack data some/s.tar")),
        "pack some o.arrow --source tarball",
        "Give the folder a name that ends in .tars",
        (lambda: move("some", "some.tars")() or "pack some.tars o.arrow",),
    ),
    Refusal(
        "a folder that is not of tars",
        classes,
        f"{PACK} --source tarball",
        "Give one of these, or leave the kind at auto",
        (instead(PACK), lambda: tar("data.tar", "cat/1.jpg") or "pack data.tar o.arrow"),
    ),
    Refusal(
        "a compressed tar in a folder",
        lambda: [tar(f"data/{n}.tar", f"{n}.jpg", mode="w:gz") for n in "ab"],
        PACK,
        "Decompress the tars",
        (lambda: [decompress(f"data/{n}.tar") for n in "ab"],),
    ),
    Refusal(
        "a zip of a rare method",
        zip_of_a_rare_method,
        "pack data.zip o.arrow",
        "Unzip it to a local disk, and pack that folder",
        (unzip,),
    ),
    # captions
    Refusal(
        "Flickr30K without captions",
        lambda: pictures("flickr30k_images/1.jpg", "flickr30k_images/2.jpg"),
        "pack flickr30k_images o.arrow --source flickr30k",
        "Put one of them next to the images, or give its path (--labels PATH)",
        (
            lambda: table("flickr30k_images/results_20130124.token", "1.jpg#0\tA dog .", "2.jpg#0\tA cat ."),
            lambda: (
                table("c/results_20130124.token", "1.jpg#0\tA dog .", "2.jpg#0\tA cat .")
                or "pack flickr30k_images o.arrow --source flickr30k --labels c/results_20130124.token"
            ),
        ),
    ),
    Refusal(
        "a split of Flickr30K without its list",
        lambda: (
            pictures("data/1.jpg", "data/2.jpg"),
            table("data/results_20130124.token", "1.jpg#0\tA dog .", "2.jpg#0\tA cat ."),
        ),
        f"{PACK} --split train",
        "Put it there, give its path (--labels PATH), or take all (--split all)",
        (
            r"--split all",
            lambda: put("data/dataset_flickr30k.json", karpathy()),
            lambda: (
                put("k/dataset_flickr30k.json", karpathy())
                or f"{PACK} --split train --labels k/dataset_flickr30k.json"
            ),
        ),
    ),
    Refusal(
        "captions of other images",
        lambda: (pictures("data/1.jpg"), table("data/results_20130124.token", "7.jpg#0\tA dog .")),
        PACK,
        "Check that both are of Flickr30K, and the split",
        (lambda: pictures("data/7.jpg"),),
    ),
    Refusal(
        "Flickr30K without images",
        lambda: table("data/results_20130124.token", "7.jpg#0\tA dog ."),
        f"{PACK} --source flickr30k",
        "Check the path, and whether the archive was unpacked",
        (lambda: pictures("data/7.jpg"),),
    ),
    Refusal(
        "a broken list of splits",
        lambda: (
            pictures("data/1.jpg"),
            table("data/results_20130124.token", "1.jpg#0\tA dog ."),
            put("data/dataset_flickr30k.json", "{"),
        ),
        PACK,
        "Download dataset_flickr30k.json again",
        (lambda: put("data/dataset_flickr30k.json", karpathy()),),
    ),
    # outputs of pack as sources
    Refusal(
        "a packed file of another split",
        packed_set,
        "pack s.arrow o.arrow --split val",
        "Give that one, or no split",
        (instead("pack s.arrow o.arrow"),),
    ),
    Refusal(
        "somebody's tar of images without labels",
        lambda: tar("s.tar", "a.jpg", "b.jpg"),
        "pack s.tar o.arrow --strict",
        "Sort them into class folders, make a manifest with their labels, or pack "
        "them without (--unlabelled)",
        (r"--unlabelled",),
    ),
    # data sets of other libraries
    Refusal(
        "a table with more columns",
        classes,
        hf(a=FILES, b="[1, 2, 3]", c="[4, 5, 6]"),
        'Say which column holds the images: dataset.cast_column("a", datasets.Image())',
        (r"dataset\.cast_column\(.*?\)\)",),
        ends_with='Choose two of them, such as dataset.select_columns(["a", "b"])',
    ),
    Refusal(
        "more columns than two",
        classes,
        from_dataset(
            f"dataset = datasets.Dataset.from_dict({{'a': {FILES}, 'b': [1, 2, 3], 'c': [4, 5, 6]}})"
            ".cast_column('a', datasets.Image())"
        ),
        'Choose two of them, such as dataset.select_columns(["a", "b"])',
        (r"dataset\.select_columns\(.*?\]\)",),
    ),
    Refusal(
        "images without labels",
        classes,
        from_dataset(
            f"dataset = datasets.Dataset.from_dict({{'a': {FILES}}}).cast_column('a', datasets.Image())"
        ),
        'Add labels; -1 stands for none: dataset.add_column("label", [-1] * len(dataset))',
        (r"dataset\.add_column\(.*?\)\)",),
    ),
    Refusal(
        "class names as texts",
        classes,
        from_dataset(
            f"dataset = datasets.Dataset.from_dict({{'a': {FILES}, 'b': ['x', 'y', 'x']}})"
            ".cast_column('a', datasets.Image())"
        ),
        'Turn class names into numbers: dataset.class_encode_column("b")',
        (r'dataset\.class_encode_column\(".*?"\)',),
    ),
    Refusal(
        "something else than a picture",
        classes,
        pairs("('a text', i)"),
        "Return these, or pack the files themselves with sources.load",
        (
            lambda: pairs(PIXELS),
            lambda: in_python("pack(sources.load(Path('data')), Path('o.arrow'), PackConfig())"),
        ),
    ),
    Refusal(
        "a data set with a transform",
        lambda: None,
        pairs(PIXELS, "transform = str"),
        "Make it without, and use the transform in the loader that reads the packed file",
        (lambda: pairs(PIXELS),),
    ),
    Refusal(
        "another picture each time",
        lambda: None,
        pairs("(__import__('numpy').random.randint(0, 255, (8, 8, 3), 'uint8'), i)"),
        "Make the data set without augmentation, which belongs in the loader",
        (lambda: pairs(PIXELS),),
    ),
    Refusal(
        "another label each time",
        lambda: None,
        pairs("(__import__('numpy').full((8, 8, 3), i, 'uint8'), __import__('random').getrandbits(30))"),
        "Remove what changes targets, such as mixing or a random choice",
        (lambda: pairs(PIXELS),),
    ),
    # rows of a manifest, from Python
    *(
        Refusal(
            f"rows: {name}",
            classes,
            in_python(f"sources.load(Path('data')).manifest.{wrong}"),
            advice,
            (lambda right=right: in_python(f"sources.load(Path('data')).manifest.{right}"),),
        )
        for name, wrong, advice, right in (
            ("a seed", "order(-1)", "Choose another seed", "order(1)"),
            ("fractions", "select([0.5])", "Give whole numbers", "select([0])"),
            ("outside", "select([99])", "Check the length of the manifest", "select([5])"),
            ("twice", "select([1, 1])", "Remove the repeats", "select([1])"),
            ("a share", "split_off(10, 1)", "Give 0.1 for a tenth", "split_off(0.1, 1)"),
            ("a rank", "slice(3, 2)", "Take both from SLURM_PROCID and SLURM_NTASKS", "slice(1, 2)"),
        )
    ),
    Refusal("sizes", lambda: None, TO_FOLDER, "Add them with manifest.with_sizes", (lambda: WITH_SIZES,)),
    Refusal(
        "flags that are not texts",
        classes,
        in_python("sources.load(Path('data'), suffixes=3)"),
        'Write it as "name" or ["name", "name"]',
        (lambda: in_python("sources.load(Path('data'), suffixes='.jpg')"),),
    ),
    # synthetic copies
    Refusal(
        "an unknown layout",
        lambda: None,
        in_python("synthetic.make('o', 'folders', count=12)"),
        "Choose one of these",
        (instead("synth o --layout folder --count 12"),),
    ),
    Refusal(
        "more classes than pictures",
        lambda: None,
        "synth o --layout folder --count 2 --classes 5",
        "Correct it; more pictures leave room for more classes",
        (instead("synth o --layout folder --count 10 --classes 5"),),
    ),
    Refusal(
        "a layout without val",
        lambda: None,
        in_python("synthetic.make('o', 'folder', count=4, classes=2, val=2)"),
        "Leave val out, or choose another layout",
        (
            lambda: in_python("synthetic.make('o', 'folder', count=4, classes=2)"),
            lambda: in_python("synthetic.make('o', 'prepared', count=4, classes=2, val=2)"),
        ),
    ),
]


def decompress(path):
    import gzip

    Path(path).write_bytes(gzip.decompress(Path(path).read_bytes()))


def packed(command="pack data o.arrow"):
    classes()
    run(command)


def with_masks():
    pictures("data/images/{n}.jpg", "data/masks/{n}.png")


def parts(*flags):
    return lambda: [run(f"{PACK} {each}") for each in flags] and None


def scores(*keys):
    return lambda: table("t.csv", "file,score", *(f"{key},{n}" for n, key in enumerate(keys)))


def read(code):
    return in_python(f"from smallfiles import formats; reader = formats.open('o.arrow'); {code}")


def decompressed(path):
    decompress(path)
    return f"pack {Path(path).rename(Path(path).stem)} o.arrow --shuffle 1"


CAT, DOG = ([f"{kind}/{n}.jpg" for n in range(3)] for kind in ("cat", "dog"))
PART = 'In a job array from 1 to n write --part "$SLURM_ARRAY_TASK_ID/n"'
ALL_PARTS = "Pack them with --part 1/n … n/n (remove those of other runs), then merge"
OTHER_PART = "Give the same manifest and options, or remove this part and pack it again"
PART_2 = "o.arrow.parts/part-00002-of-00002"
PIXELS_OF = "Say --resize 256, or leave the others out"
TWICE = "Pack with --resize into .arrow, and pack that file into .h5; or add --pixels"
GUNZIP = "Decompress it first (gzip -dk, zstd -dk), or pack without --shuffle"
HOLDS_ANY = "Pack into .arrow, .h5 (blob layout), .tars, .sqfs or .files, which have any field"
ROOT = "Check that this is where the files are (--root says it), or repair them"
SKIP = "Repair or remove them, or leave them out with --on-error skip"
FIRST = "Pack it first: smallfiles pack data train.arrow"
TARS = "Pack it first, since copying many small files is what takes long: smallfiles pack DIR OUT.tars"
COMPLETE = "Complete the table, with an empty cell where a value is unknown"
OTHER = "Give all columns that you want, with other names: --field OTHER=score"
INSPECT = "Look at its fields with: smallfiles inspect"
ANNOTATE = "annotate o.arrow t.csv --key file"
CUT_OFF = b"\xff\xd8\xff\xe0 and then nothing"


def rows_of_packing():
    """What is not read from a source but packed, opened, annotated or staged."""
    # fmt: off
    yield "a part beyond the last", classes, f"{PACK} --part 3/2", PART, instead(f"{PACK} --part 2/2")
    yield "no parts", classes, f"{PACK} --merge", ALL_PARTS, parts("--part 1/2", "--part 2/2")
    yield ("a missing part", lambda: packed(f"{PACK} --part 1/2"), f"{PACK} --merge",
           "Pack the missing ones (--part 2/2), then merge", parts("--part 2/2"))
    yield ("a part in another order", lambda: packed(f"{PACK} --part 2/2 --shuffle 3"), f"{PACK} --part 2/2",
           OTHER_PART, instead(f"{PACK} --part 2/2 --shuffle 3"), remove(PART_2))
    yield "pixels", classes, f"{PACK} --pixels", PIXELS_OF, r"--resize 256", instead(PACK)
    yield ("an output in the data", classes, "pack data data/o.arrow", "Give another place for the output",
           instead(PACK))
    yield ("an unknown suffix", classes, "pack data o.foo", "Rename it or give --format", instead(PACK),
           instead("pack data o.foo --format arrow"))
    yield ("batches of no row", classes, f"{PACK} -O rows_per_batch=0", "Start with 64 rows",
           instead(f"{PACK} -O rows_per_batch=64"))
    yield ("a mask of variable length", with_masks, "pack data o.h5 -O layout=vlen", HOLDS_ANY,
           instead("pack data o.h5 -O layout=blob"))
    yield ("a mask for Juelich", with_masks, f"{PACK} -O layout=juelich",
           "Choose the layout smallfiles", instead(f"{PACK} -O layout=smallfiles"))
    yield ("pixels of masks", with_masks, f"{PACK} --resize 8 --pixels", "Pack without --pixels",
           instead(f"{PACK} --resize 8"))
    yield ("scaled into HDF5", classes, "pack data o.h5 --resize 8", TWICE, r"--pixels",
           lambda: run(f"{PACK} --resize 8") or "pack o.arrow o.h5")
    yield ("a shuffled .tar.gz", lambda: tar("t.tar.gz", "a/0.jpg", "b/1.jpg", mode="w:gz"),
           "pack t.tar.gz o.arrow --shuffle 1", GUNZIP, instead("pack t.tar.gz o.arrow"),
           lambda: decompressed("t.tar.gz"))
    yield ("an image that is cut off", lambda: (classes(), put("data/cat/9.jpg", CUT_OFF)), PACK, SKIP,
           r"--on-error skip", remove("data/cat/9.jpg"))
    yield "only such images", lambda: put("data/cat/0.jpg", CUT_OFF), PACK, ROOT, classes
    yield ("no such packed file", classes, "verify o.arrow",
           "Check the path, or make it with: smallfiles pack", lambda: run(PACK))
    yield "a folder of images", classes, "verify data", FIRST, instead("pack data train.arrow")
    yield "an image", packed, "inspect data/cat/0.jpg", "Give the packed file", instead("inspect o.arrow")
    yield ("a folder named as a file", lambda: (packed(), Path("x.arrow").mkdir()), "verify x.arrow",
           "Give the file itself", instead("verify o.arrow"))
    yield "a field", packed, read("reader.table(['nix'])"), INSPECT, lambda: read("reader.table(['label'])")
    yield ("a sample", packed, read("reader.read(6)"), "Check the length with len(reader)",
           lambda: read("reader.read(len(reader) - 1)"))
    yield ("a closed file", packed, read("reader.close(); reader.read(0)"),
           "Open it again with smallfiles.formats.open", lambda: read("reader.read(0)"))
    yield ("samples without a row", lambda: (packed(), scores(*CAT)()), ANNOTATE, COMPLETE,
           scores(*CAT, *DOG))
    yield ("a table of keys", lambda: (packed(), table("t.csv", "file", *CAT, *DOG)), ANNOTATE,
           "Give --field NAME=COLUMN, or another table", scores(*CAT, *DOG))
    yield ("a field that is there",
           lambda: (packed(), scores(*CAT, *DOG)(), run(f"{ANNOTATE} --name x")), ANNOTATE,
           OTHER, r"--field OTHER=score")
    yield ("a folder to be staged", classes, "stage data --where .", TARS,
           lambda: run("pack data data.tars") or "stage data.tars --where .")
    yield ("a file to be staged", classes, "stage o.arrow --where .", "Check the path and its permissions",
           lambda: run(PACK))
    yield ("an empty place", packed, "stage o.arrow --where ''",
           "Check that the variable in your job script is set", instead("stage o.arrow --where ."))
    yield ("no such place", packed, "stage o.arrow --where nowhere",
           "Choose another place with --where, or leave it out", instead("stage o.arrow --where ."))
    # fmt: on


REFUSALS += [Refusal(*row[:4], row[4:]) for row in rows_of_packing()]


def without_digest():
    lines = Path("m.json").read_text().splitlines(keepends=True)
    Path("m.json").write_text("".join(line for line in lines if '"digest"' not in line))


NOT_YET: set[str] = {
    # of a library that checks a manifest by itself, which no command does
    "Check the root folder, restore the files, or leave them out of the manifest",
    "Check the path, its permissions and your quota",
    # two parts that no message has together
    f"Add --field .*=.* or --unlabelled{NO_HEADER}",
    # a race, a damaged file or a set of a size that is too slow to make here
    "Run it again when nothing writes to it",
    "Choose one",
    "Pack them without labels (--unlabelled), or give a manifest with their labels",
    "Copy or download it again",
    "Write it again with smaller ones (pyarrow: row_group_size=100)",
    "Download ILSVRC2012_devkit_t12.tar.gz again",
    "Make the manifest again from the class folders, LOC_val_solution.csv or the devkit",
    "Check that the solution file or devkit belongs to ILSVRC2012",
    "Check the path and its permissions (ls -ld)",
}
