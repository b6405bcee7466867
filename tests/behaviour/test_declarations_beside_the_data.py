"""Real trees in miniature: a file that names samples is read, or the refusal names flags that work.

Each refused tree is loaded again with the flags of its own message: those of `--ignore` and of `--labels`.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import SmallfilesError


def picture(mode, form):
    out = io.BytesIO()
    Image.new(mode, (64, 48), 9 if mode == "L" else (200, 30, 90)).save(out, form)
    return out.getvalue()


JPG, PPM, MASK = picture("RGB", "JPEG"), picture("RGB", "PPM"), picture("L", "PNG")
WAV = b"RIFF" + (36).to_bytes(4, "little") + b"WAVEfmt " + bytes(28)
BYTES = {".jpg": JPG, ".JPEG": JPG, ".ppm": PPM, ".png": MASK, ".wav": WAV, ".mp3": b"ID3" + bytes(50)}


def expanded(pattern):
    """`a/{b,c}.jpg` as `a/b.jpg`, `a/c.jpg`."""
    parts = re.split(r"\{([^}]*)\}", pattern)
    yield from map("".join, product(*(part.split(",") if n % 2 else [part] for n, part in enumerate(parts))))


@dataclass(frozen=True)
class Tree:
    """One tree.

    Args:
        files: Patterns of files of samples and of empty files.
        texts: The contents of each other file, by its pattern.
        classes: What is read, if nothing is refused or after `--ignore`.
        refused: The flags that the refusal must name; empty if the tree is read.
        kept: How many samples are read then.
        fields: What the fields are if the first `--labels` of the message is followed.
        options: Of the user.
        ignored: Further options that `--ignore` needs, since the rest is without labels.
    """

    files: str
    texts: dict[str, str | bytes] = field(default_factory=dict)
    classes: str = ""
    refused: str = ""
    kept: int = 0
    fields: str = ""
    options: dict[str, object] = field(default_factory=dict)
    ignored: dict[str, object] = field(default_factory=dict)

    def plant(self, root):
        for pattern in self.files.split():
            for name in expanded(pattern):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(BYTES.get(Path(name).suffix, b""))
        for pattern, text in self.texts.items():
            for name in expanded(pattern):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return root


def voc(name):
    return (
        f"<annotation><filename>{name}</filename><size><width>64</width><height>48</height></size><object>"
        "<name>cat</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
        "</annotation>"
    )


def coco(split, *, boxes=True):
    box = {"category_id": 1, "bbox": [1, 2, 3, 4]} if boxes else {"caption": "a cat"}
    return json.dumps(
        {
            "images": [{"id": n, "file_name": f"{split}{n}.jpg", "width": 64, "height": 48} for n in (1, 2)],
            "annotations": [{"id": n, "image_id": n, **box} for n in (1, 2)],
            "categories": [{"id": 1, "name": "cat"}] * boxes,
        }
    )


def lines(*rows):
    return "\n".join(rows) + "\n"


def table_bytes():
    out = io.BytesIO()
    parquet.write_table(pa.table({"file_name": ["cat/1.jpg", "dog/2.jpg"], "age": [1, 2]}), out)
    return out.getvalue()


UNLABELLED = {"unlabelled": True}
CAT_DOG = "{cat,dog}/{1,2}.jpg"
MNIST = lines(*(f"{kind}/{n}.jpg" for kind in ("cat", "dog") for n in (1, 2)))
COMMON_VOICE = lines("client_id\tpath\tsentence", 'a\tv1.mp3\t"He said', "b\tv2.mp3\tand more")

TREES = {
    # read without a flag
    "class folders": Tree(CAT_DOG, {}, "cat dog", kept=4),
    "class folders and documents": Tree(
        CAT_DOG,
        {
            "README.txt": MNIST,
            "LICENSE": MNIST,
            "README.md": MNIST,
            "CITATION.cff": "x",
            "notes.txt": "two classes of animals\nsee cat/1.jpg for the first\nand more\n",
            "classes.txt": "cat\ndog\n",
            "class_to_idx.json": '{"cat": 0, "dog": 1}',
            "colours.csv": "name,r,g,b\ncat,1,2,3\ndog,4,5,6\n",
            "train.log": "epoch 1\nepoch 2\n",
            "pixels.csv": "label,p0\n1,5\n2,6\n",
            "runs.csv": "run,loss\n1,5\n1,6\n2,7\n",
        },
        "cat dog",
        kept=4,
    ),
    "class folders and checksums": Tree(
        CAT_DOG,
        {"{SHA256SUMS,files.txt}": "".join(f"{'0f' * 32}  {name}\n" for name in MNIST.split())},
        "cat dog",
        kept=4,
    ),
    "class folders and a list of them all": Tree(CAT_DOG, {"files.txt": MNIST}, "cat dog", kept=4),
    "ImageNet, prepared": Tree(
        "{train,val}/{n01440764,n01443537}/{a,b}.JPEG",
        {"LOC_synset_mapping.txt": "n01440764 tench\nn01443537 goldfish\n"},
        "n01440764 n01443537",
        kept=4,
    ),
    "ImageNet of Kaggle": Tree(
        "ILSVRC/Data/CLS-LOC/train/{n01440764,n01443537}/{a,b}.JPEG "
        "ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG ILSVRC/Annotations/CLS-LOC/train/x.xml",
        {
            "LOC_val_solution.csv": "ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1 2 3 4\n",
            "LOC_train_solution.csv": "ImageId,PredictionString\na,n01440764 1 2 3 4\n",
            "ILSVRC/ImageSets/CLS-LOC/train_cls.txt": lines(
                "n01440764/a 1", "n01440764/b 2", "n01443537/a 3", "n01443537/b 4"
            ),
        },
        "n01440764 n01443537",
        kept=4,
    ),
    "Flickr30K": Tree(
        "flickr30k_images/{1,2}.jpg",
        {
            "flickr30k_images/results.csv": lines(
                "image_name| comment_number| comment", *(f"{n}.jpg| 0| a dog" for n in (1, 2))
            ),
            "flickr30k_images/readme.txt": "x",
        },
        kept=2,
    ),
    "COCO with boxes only": Tree(
        "train2017/train{1,2}.jpg val2017/val{1,2}.jpg",
        {f"annotations/instances_{split}2017.json": coco(split) for split in ("train", "val")},
        "cat",
        kept=2,
    ),
    "YOLO": Tree(
        "images/{train,val}/{1,2}.jpg LICENSE README.txt",
        {
            "labels/{train,val}/{1,2}.txt": "0 .5 .5 .2 .2\n",
            "data.yaml": "train: images/train\nnames: [cat]\n",
        },
        "cat",
        kept=2,
    ),
    "YOLO with a list that agrees": Tree(
        "images/train/{1,2}.jpg",
        {
            "labels/train/{1,2}.txt": "0 .5 .5 .2 .2\n",
            "data.yaml": "train: train.txt\nnames: [cat]\n",
            "train.txt": lines("./images/train/1.jpg", "./images/train/2.jpg"),
        },
        "cat",
        kept=2,
    ),
    "VOC with boxes only": Tree(
        "JPEGImages/{1,2}.jpg",
        {
            "Annotations/1.xml": voc("1.jpg"),
            "Annotations/2.xml": voc("2.jpg"),
            "ImageSets/{Main,Layout}/{train,cat_train}.txt": "1\n2\n",
        },
        "cat",
        kept=2,
    ),
    "metadata of Hugging Face": Tree(
        "train/{1,2}.jpg README.md",
        {"train/metadata.csv": lines("file_name,label", "1.jpg,cat", "2.jpg,dog")},
        "cat dog",
        kept=2,
    ),
    "EuroSAT": Tree("EuroSAT/{AnnualCrop,Forest}/x_{1,2}.jpg", {}, "AnnualCrop Forest", kept=4),
    "images and masks": Tree("images/{1,2}.jpg masks/{1,2}.png", {"labelmap.txt": "cat:1,2,3::\n"}, kept=2),
    "another split's list": Tree(
        "{train,val}/{cat,dog}/{a,b}.jpg",
        {"val/val.csv": lines("file,score", "none.tif,1")},
        "cat dog",
        kept=4,
    ),
    # refused
    "tiny-imagenet": Tree(
        "train/{n01443537,n01629819}/images/n_{0,1}.JPEG val/images/val_0.JPEG test/images/test_0.JPEG "
        "words.txt",
        {
            "wnids.txt": "n01443537\nn01629819\n",
            "val/val_annotations.txt": "val_0.JPEG\tn01443537\t0\t0\t9\t9\n",
            "train/{n01443537,n01629819}/n_boxes.txt": "n_0.JPEG\t0\t0\t9\t9\nn_1.JPEG\t0\t0\t9\t9\n",
        },
        "n01443537 n01629819",
        "--ignore",
        4,
    ),
    "COCO": Tree(
        "train2017/train{1,2}.jpg val2017/val{1,2}.jpg",
        {
            f"annotations/{what}_{split}2017.json": coco(split, boxes=what == "instances")
            for split in ("train", "val")
            for what in ("instances", "captions")
        },
        "cat",
        "--labels .*instances_train2017.json.*--ignore .*captions",
        2,
        "boxes",
    ),
    "YOLO and COCO": Tree(
        "images/{1,2}.jpg",
        {"labels/{1,2}.txt": "0 .5 .5 .2 .2\n", "coco.json": coco("")},
        "cat",
        "--labels .*coco.json.*--ignore 'labels/[*].txt'",
        2,
        "boxes",
    ),
    "YOLO with a list of some": Tree(
        "images/{1,2,3}.jpg",
        {"labels/{1,2,3}.txt": "0 .5 .5 .2 .2\n", "train.txt": "images/1.jpg\nimages/2.jpg\n"},
        "",
        "--ignore train.txt",
        3,
    ),
    "VOC with masks": Tree(
        "JPEGImages/{1,2}.jpg SegmentationClass/{1,2}.png",
        {"Annotations/1.xml": voc("1.jpg"), "Annotations/2.xml": voc("2.jpg")},
        "cat",
        "--ignore SegmentationClass.*--unlabelled",
        2,
    ),
    "metadata without targets in class folders": Tree(
        CAT_DOG,
        {"metadata.csv": lines("file_name,width", "cat/1.jpg,3", "dog/2.jpg,4")},
        "cat dog",
        "--labels .*metadata.csv.*--ignore metadata.csv",
        4,
        "width",
    ),
    "metadata and another table": Tree(
        "{1,2}.jpg",
        {
            "metadata.csv": lines("file_name,label", "1.jpg,cat", "2.jpg,dog"),
            "boxes.csv": lines("file_name,x", "1.jpg,3", "2.jpg,4"),
        },
        "cat dog",
        "--labels .*metadata.csv.*--ignore boxes.csv",
        2,
        "label",
    ),
    "CUB-200-2011": Tree(
        "images/{001.Black,002.Gull}/{x_1,y_2}.jpg README",
        {
            "images.txt": lines(
                *(
                    f"{n} {kind}/{name}.jpg"
                    for n, (kind, name) in enumerate(product(("001.Black", "002.Gull"), ("x_1", "y_2")), 1)
                )
            ),
            "image_class_labels.txt": "1 1\n2 1\n3 2\n4 2\n",
            "classes.txt": "1 001.Black\n2 002.Gull\n",
        },
        "001.Black 002.Gull",
        "--ignore images.txt",
        4,
    ),
    "Food-101": Tree(
        "images/{apple_pie,tacos}/{1005649,101}.jpg README.txt",
        {
            "meta/{train,test}.txt": lines("apple_pie/1005649", "tacos/101"),
            "meta/classes.txt": "apple_pie\ntacos\n",
            "meta/train.json": json.dumps({"apple_pie": ["apple_pie/1005649"], "tacos": ["tacos/101"]}),
        },
        "apple_pie tacos",
        "--ignore 'meta/",
        4,
    ),
    "Oxford pets": Tree(
        "images/{Abyssinian_1,beagle_2}.jpg annotations/trimaps/{Abyssinian_1,beagle_2}.png "
        "annotations/README",
        {
            "annotations/xmls/Abyssinian_1.xml": voc("Abyssinian_1.jpg"),
            "annotations/{list,trainval}.txt": lines(
                "#Image CLASS-ID", "Abyssinian_1 1 1 1", "beagle_2 2 2 1"
            ),
        },
        "",
        "--ignore",
        2,
    ),
    "EuroSAT with its lists": Tree(
        "{Forest,River}/{Forest,River}_1.jpg",
        {
            "{train,test}.csv": lines(",Filename,Label,ClassName", "0,Forest/Forest_1.jpg,0,Forest"),
            "label_map.json": '{"Forest": 0, "River": 1}',
        },
        "Forest River",
        "--labels .*--ignore",
        4,
    ),
    "ISIC": Tree(
        "ISIC_2019_Training_Input/ISIC_{1,2}.jpg",
        {
            "ISIC_2019_Training_Metadata.csv": lines(
                "image,age_approx,sex", "ISIC_1,55,female", "ISIC_2,30,male"
            )
        },
        "",
        "--labels .*Metadata.csv",
        2,
        "age_approx sex",
        ignored=UNLABELLED,
    ),
    "CelebA": Tree(
        "img_align_celeba/{000001,000002}.jpg",
        {
            "list_attr_celeba.csv": lines("image_id,Young", "000001.jpg,1", "000002.jpg,-1"),
            "identity_CelebA.txt": lines("000001.jpg 2880", "000002.jpg 2937"),
        },
        "",
        "--labels .*list_attr_celeba.csv",
        2,
        "Young",
        ignored=UNLABELLED,
    ),
    "DTD": Tree(
        "images/{banded,dotted}/{banded,dotted}_0001.jpg imdb/imdb.mat",
        {"labels/{train1,test1}.txt": lines("banded/banded_0001.jpg", "dotted/dotted_0001.jpg")},
        "banded dotted",
        "--ignore 'labels/",
        4,
    ),
    "Common Voice": Tree(
        "clips/v{1,2}.mp3",
        {"{train,validated}.tsv": COMMON_VOICE},
        "",
        "--labels .*train.tsv'? --field captions=sentence",
        2,
        "captions",
        ignored=UNLABELLED,
    ),
    "LJSpeech": Tree(
        "wavs/LJ001-000{1,2}.wav README",
        {
            "metadata.csv": lines(
                'LJ001-0001|"Printing, in the|printing, in the', "LJ001-0002|only sense|only sense"
            )
        },
        "wavs",
        "--labels .*metadata.csv'? --field 'audio={column1}.wav' --field captions=column2",
        2,
        "captions",
    ),
    "UrbanSound8K": Tree(
        "audio/fold1/a-0.wav audio/fold2/b-0.wav",
        {
            "metadata/UrbanSound8K.csv": lines(
                "slice_file_name,fold,classID,class", "a-0.wav,1,3,dog_bark", "b-0.wav,2,1,car_horn"
            )
        },
        "fold1 fold2",
        "--labels .*UrbanSound8K.csv'? --field audio=slice_file_name",
        2,
    ),
    "ESC-50": Tree(
        "audio/1-{10,11}-A-0.wav",
        {
            "meta/esc50.csv": lines(
                "filename,fold,target,category", "1-10-A-0.wav,1,0,dog", "1-11-A-0.wav,2,1,rooster"
            )
        },
        "audio",
        "--labels .*esc50.csv'? --field label=category",
        2,
        "label",
    ),
    "Speech Commands": Tree(
        "{bed,cat}/{0a_nohash_0,1b_nohash_0}.wav",
        {"{validation,testing}_list.txt": "bed/0a_nohash_0.wav\ncat/1b_nohash_0.wav\n", "LICENSE": "x"},
        "bed cat",
        "--ignore",
        4,
    ),
    "GTSRB": Tree(
        "Final_Training/Images/{00000,00001}/{00000_00000,00000_00001}.ppm",
        {
            "Final_Training/Images/00000/GT-00000.csv": lines(
                "Filename;Width;ClassId", "00000_00000.ppm;29;0", "00000_00001.ppm;30;0"
            )
        },
        "00000 00001",
        "--ignore",
        4,
    ),
    **{
        name: Tree(f"cat/{{1,2}}.jpg dog/{{3,4}}.jpg {name}", {}, "cat dog", "--ignore", 4)
        for name in ("labels.csv.gz", "splits.pkl", "annotations.sqlite")
    },
    "Stanford Dogs": Tree(
        "Images/n02085620-Chihuahua/n02085620_10.jpg Images/n02085782-Spaniel/n02085782_2.jpg "
        "lists/train_list.mat",
        {"Annotation/n02085620-Chihuahua/n02085620_10": voc("n02085620_10")},
        "n02085620-Chihuahua n02085782-Spaniel",
        "--ignore",
        2,
    ),
    "XML beside class folders": Tree(
        CAT_DOG, {"annotations/{1,2}.xml": voc("%s.jpg")}, "cat dog", "--ignore 'annotations/[*].xml'", 4
    ),
    "a Parquet table beside class folders": Tree(
        CAT_DOG, {"ages.parquet": table_bytes()}, "cat dog", "--labels .*ages.parquet.*--ignore", 4, "age"
    ),
    "a table of files that are not there": Tree(
        CAT_DOG,
        {"extra.csv": lines("file_name,age", "other/7.jpg,1", "other/8.jpg,1")},
        "cat dog",
        "--ignore extra.csv",
        4,
    ),
    "data.yaml beside class folders": Tree(
        CAT_DOG, {"data.yaml": "train: cat\nnames: [a]\n"}, "cat dog", "--ignore data.yaml", 4
    ),
}


def refusal(root, **options):
    with pytest.raises(SmallfilesError) as caught:
        sources.load(root, **options)
    return str(caught.value)


def flags_in(text, first):
    """The words of the first parenthesis of a message that begins with a flag."""
    found = re.search(rf"\(({first} [^()]*)\)", text)
    assert found, text
    return shlex.split(found[1])


def options_of(words):
    pairs = list(zip(words[::2], words[1::2], strict=True))
    tables = [Path(value) for flag, value in pairs if flag == "--labels"]
    found: dict[str, object] = {"labels": tables[0]} if tables else {}
    fields = tuple(value for flag, value in pairs if flag == "--field")
    ignore = tuple(value for flag, value in pairs if flag == "--ignore")
    return found | ({"columns": fields} if fields else {}) | ({"ignore": ignore} if ignore else {})


def loads(root, tree, **options):
    source = sources.load(root, **options)
    assert list(source.manifest.classes) == tree.classes.split()
    assert len(source.manifest) == tree.kept


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_real_tree_is_read_or_refused_with_flags_that_work(tmp_path, tree):
    root = tree.plant(tmp_path / "a tree")
    if not tree.refused:
        loads(root, tree, **tree.options)
        return
    said = refusal(root, **tree.options)
    assert re.search(tree.refused, said), said
    words = flags_in(said, "--ignore")
    loads(root, tree, **options_of(words), **tree.ignored)
    if "--labels" in tree.refused:
        source = sources.load(root, **options_of(flags_in(said, "--labels")))
        assert {*tree.fields.split()} <= {*source.manifest.table.column_names}
        assert not any("wavs" in each or "fold1" in each for each in source.manifest.classes)


def test_the_command_that_is_named_for_ljspeech_packs_every_text(tmp_path, capsys):
    root = TREES["LJSpeech"].plant(tmp_path / "LJSpeech 1.1")
    out = str(tmp_path / "o.arrow")
    assert main(["pack", str(root), out]) == 1
    words = flags_in(capsys.readouterr().err, "--labels")
    assert main(["pack", str(root), out, "--check", "none", *words]) == 0
    reader = formats.open(Path(out))
    assert reader.table(["captions"])["captions"].to_pylist() == [['"Printing, in the'], ["only sense"]]
    assert reader.classes == ()
    assert "without quoting" in capsys.readouterr().err


def test_unlabelled_and_source_folder_decide_too_and_say_what_is_not_read(tmp_path):
    root = TREES["LJSpeech"].plant(tmp_path)
    for options in ({"unlabelled": True}, {"kind": "folder"}):
        assert re.search(
            "not read, since a flag .*metadata.csv", "; ".join(sources.load(root, **options).notes)
        )


def test_what_is_ignored_is_noted_and_a_pattern_that_matches_nothing_is_refused(tmp_path):
    root = TREES["Speech Commands"].plant(tmp_path)
    notes = "; ".join(sources.load(root, ignore="*_list.txt").notes)
    assert "left out by --ignore: testing_list.txt, validation_list.txt" in notes
    assert re.search("--ignore none.* matches nothing in", refusal(root, ignore=("*_list.txt", "none*")))
    assert sources.load(root, ignore=("*_list.txt", "cat")).manifest.classes == ("bed",)


def test_the_classes_that_are_read_from_folders_are_printed_before_packing(tmp_path):
    root = TREES["class folders"].plant(tmp_path)
    assert "2 classes from the names of folders: cat, dog" in "; ".join(sources.load(root).notes)


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", ["LJSpeech", "Food-101", "Speech Commands", "XML beside class folders"])
def test_an_archive_of_a_tree_that_is_refused_is_refused_too(tmp_path, kind, name):
    root = TREES[name].plant(tmp_path / "tree")
    archive = Path(shutil.make_archive(str(tmp_path / "a"), kind, root))
    assert re.search("would not be read.*--source tarball", refusal(archive))
    assert list(sources.load(archive, kind="tarball").manifest.classes) == TREES[name].classes.split()
    assert sources.load(archive, unlabelled=True).manifest.classes == ()


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("name", ["class folders and documents", "EuroSAT"])
def test_an_archive_of_a_tree_that_is_read_is_read_too(tmp_path, kind, name):
    root = TREES[name].plant(tmp_path / "tree")
    archive = Path(shutil.make_archive(str(tmp_path / "a"), kind, root))
    assert list(sources.load(archive).manifest.classes) == TREES[name].classes.split()


def ages(*names: str) -> str:
    return lines("file_name,age", *(f"{name},3" for name in names))


LABELLED = {"{1,2}.jpg": JPG, "{1}.cls": "0", "{2}.cls": "1"}


def archived(root: Path, kind: str, **files: bytes | str) -> Path:
    """An archive of a few files."""
    tree = Tree("", files).plant(root.with_suffix(".tree"))
    if kind != "sqfs":
        return Path(shutil.make_archive(str(root), kind, tree))
    if shutil.which("mksquashfs") is None:
        pytest.skip("the command mksquashfs is missing")
    subprocess.run(["mksquashfs", tree, f"{root}.sqfs", "-quiet", "-no-progress"], check=True)
    return Path(f"{root}.sqfs")


def with_labels(root: Path, kind: str) -> Path:
    return archived(root, kind, **LABELLED, **{"ages.csv": ages("1.jpg", "2.jpg")})


def folder_of_tars(root: Path) -> Path:
    for name in ("cat", "dog"):
        archived(root / name, "tar", **{"{1,2}.jpg": JPG})
        shutil.rmtree(root / f"{name}.tree")
    return Tree("", {"ages.csv": ages("cat/1.jpg", "dog/1.jpg")}).plant(root)


def shards(root: Path, inside: str = "", beside: str = "") -> Path:
    for number in (0, 1):
        members = {name.replace("{", f"{number}{{", 1): data for name, data in LABELLED.items()}
        archived(root / f"x.tars/{number:05d}", "tar", **members, **({"ages.csv": inside} if inside else {}))
        shutil.rmtree(root / f"x.tars/{number:05d}.tree")
    return Tree("", {"ages.csv": beside} if beside else {}).plant(root / "x.tars")


def packed(root: Path, suffix: str) -> Path:
    tree = TREES["class folders"].plant(root / "tree")
    assert main(["pack", str(tree), str(root / f"x{suffix}"), "--check", "none"]) == 0
    return Tree("", {"ages.csv": ages("cat/1.jpg", "dog/1.jpg")}).plant(root / f"x{suffix}")


def files_inside_parquet(root: Path) -> Path:
    Tree("README.md", {"data/ages.csv": ages("0.jpg", "1.jpg")}).plant(root)
    images = pa.array([{"bytes": JPG, "path": f"{n}.jpg"} for n in range(3)])
    parquet.write_table(pa.table({"image": images, "label": [0, 1, 2]}), root / "data/train.parquet")
    return root


def flickr30k_with_two_files(root: Path, caption: str = "another dog") -> Path:
    token = f"1.jpg#0\t{caption}\n2.jpg#0\t{caption}\n"
    return Tree("", {"results_20130124.token": token}).plant(TREES["Flickr30K"].plant(root))


NAMES = ages(*(f"{shard}{n}.jpg" for shard in (0, 1) for n in (1, 2)))
CONTAINERS = {
    "a folder of tars": (folder_of_tars, 4),
    "a tar with labels": (partial(with_labels, kind="tar"), 2),
    "a zip with labels": (partial(with_labels, kind="zip"), 2),
    "a squashfs file with labels": (partial(with_labels, kind="sqfs"), 2),
    "shards of others beside a table": (partial(shards, beside=NAMES), 4),
    "shards of others with tables inside": (partial(shards, inside=NAMES), 4),
    "our shards": (partial(packed, suffix=".tars"), 4),
    "our files": (partial(packed, suffix=".files"), 4),
    "Parquet files with files inside": (files_inside_parquet, 3),
    "two files of captions": (flickr30k_with_two_files, 2),
}


@pytest.mark.parametrize(("make", "count"), CONTAINERS.values(), ids=CONTAINERS)
def test_a_file_that_names_samples_is_not_passed_over_in_any_container(tmp_path, make, count):
    path = make(tmp_path / "set")
    said = refusal(path)
    assert re.search("(ages|results).csv.* would not be read, though the samples are named there", said), said
    assert len(sources.load(path, **options_of(flags_in(said, "--ignore"))).manifest) == count


def test_captions_that_agree_with_others_are_no_other_captions(tmp_path):
    assert sources.load(flickr30k_with_two_files(tmp_path, "a dog")).kind == "flickr30k"


def yolo(root: Path, place: str) -> Path:
    return Tree("", {"data.yaml": f"train: {place}\nnames: [cat]\n"}).plant(TREES["YOLO"].plant(root))


@pytest.mark.parametrize("place", ["images/train", "images", "../images/train", "/content/x/images/train"])
def test_data_yaml_may_name_the_folders_that_are_read_in_several_ways(tmp_path, place):
    assert sources.load(yolo(tmp_path, place)).manifest.classes == ("cat",)


@pytest.mark.parametrize("place", ["images/val", "[images/train, x]", "/x/images/train2", "l/train.txt"])
def test_data_yaml_must_not_name_other_folders_than_those_that_are_read(tmp_path, place):
    assert re.search(r"data\.yaml says .*train.* would be read", refusal(yolo(tmp_path, place)))
