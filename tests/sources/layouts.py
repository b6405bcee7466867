"""Folder trees as people have them, and what must become of each: the right classes, or a sentence.

Braces stand for several names. A suffix says what is in a file: `.jpg` a photograph, `.mask` a PNG of one
channel, `.yolo` a text of boxes; the rest as named.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from PIL import Image


@dataclass(frozen=True)
class Layout:
    """One tree.

    Args:
        files: Patterns of its files.
        classes: What is to be read, in order; none if it is to be refused.
        says: A regular expression that the refusal, or the notes, must match.
        kept: How many samples are to be read; None for all.
        split: The split that is to be read.
        asked: Options of the user.
        in_tar: What a tar of it is refused with, where webdataset would make one sample of several files, and
            where a folder has samples of several files.
        fields: Names of the further files of its samples.
        tar_fields: The same of a tar, in which every member of a sample is one.
    """

    files: str
    classes: str = ""
    says: str = ""
    kept: int | None = None
    split: str = "train"
    asked: dict[str, Any] | None = None
    in_tar: str = ""
    fields: str = ""
    tar_fields: str = ""

    def tree(self) -> dict[str, bytes]:
        """The bytes of each file."""
        return {_suffixed(name): _content(name) for name in _expanded(self.files)}


_PLAIN = "{cat,dog}/{1,2}.jpg"
_PARTS = "parts of samples.*--unlabelled.*--source"
_PAIRED = {"in_tar": _PARTS, "fields": "mask"}
_FLAT = "outside of any class folder.*(--labels|manifest).*--unlabelled"

LAYOUTS = {
    "classes numbered alike": Layout(_PLAIN, "cat dog", "same file names in cat, dog"),
    "classes of one sample": Layout("{cat,dog}/1.jpg", "cat dog"),
    "patients in two classes": Layout("{normal,tumour}/{ann,bob}.jpg", "normal tumour", "same file names"),
    "letters": Layout("{A,B,C}/{1,2}.jpg", "A B C"),
    "numbered classes": Layout("{0,1,2}/{1,2}.mask", "0 1 2"),
    "classes with and without": Layout("{with,without}_mask/{1,2}.jpg", "with_mask without_mask"),
    "a class called mask": Layout("{mask,no mask}/{1,2}.jpg", "mask|no mask", "despite the name: mask"),
    "blurred and sharp": Layout("{blur,sharp}/{000047,000048}.png", "blur sharp", "same file names"),
    "a class called train": Layout("{bus,train}/{1,2}.jpg", "bus train"),
    "sub-folders": Layout("animals/{cats,dogs}/1.jpg cars/2.jpg", "animals cars", "merged into one"),
    "documents too": Layout(f"{_PLAIN} docs/readme.md notes.csv", "cat dog", "left (out|aside)", 4),
    "annotations too": Layout(f"{_PLAIN} annotations/{{a,b}}.xml", "cat dog", "left (out|aside)", 4),
    "stray pictures": Layout(f"{_PLAIN} preview.jpg", "cat dog", "not in a class folder.*preview", 4),
    "an empty class": Layout(f"{_PLAIN} bee/", "bee cat dog", "without images: bee", 4),
    "other programs": Layout(
        f"{_PLAIN} @eaDir/cat/1.jpg cat/@eaDir/1.jpg .thumbnails/1.jpg __MACOSX/cat/1.jpg thumbs/1.jpg",
        "cat dog", "5 hidden names|hidden names left .*@eaDir", 4,
    ),
    "three cats": Layout("{Cat,cat,CAT}/1.jpg", "CAT Cat cat", "differ only in case.*'CAT' = 'Cat' = 'cat'"),
    "two forms of a name": Layout("{caf\u00e9,cafe\u0301}/1.jpg", "cafe\u0301 caf\u00e9", "Unicode form"),
    "a wrapper": Layout("PetImages/{Cat,Dog}/{0,1}.jpg", "Cat Dog"),
    "a wrapper with a stray": Layout(f"pets/{_PLAIN} pets/preview.jpg", "cat dog", "preview.jpg", 4),
    "wrappers": Layout("a/b/c/{cat,dog}/1.jpg", "cat dog"),
    "birds": Layout("images/{001.Black,002.Laysan}/{x,y}.jpg", "001.Black 002.Laysan"),
    "two suffixes": Layout(
        "{cat,dog}/{1,2}{.jpg,.png}", "cat dog", "differ only in their suffix", in_tar="share one stem"
    ),
    "birds and their outlines": Layout(
        "CUB/{images,segmentations}/{001.Black,002.Gull}/{x,y}.png CUB/classes.txt", "001.Black 002.Gull",
        "from folders: 001.Black", 4, in_tar=_PARTS, fields="segmentation",
    ),
    "pets": Layout(
        "images/{Abyssinian_1,beagle_2}.jpg annotations/trimaps/{Abyssinian_1,beagle_2}.mask "
        "annotations/xmls/a.xml",
        says="trimaps/ is annotation.*left out: 1 .xml", kept=2, in_tar=_PARTS, fields="annotation",
    ),
    "tiny": Layout("train/{n1,n2}/images/1.jpg val/images/1.jpg wnids", "n1 n2", "train was taken", 2),
    "input and target": Layout("{input,target}/{1,2}.png", kept=2, in_tar=_PARTS, fields="target_image"),
    "splits": Layout("{train,val,test}/{cat,dog}/{1,2}.jpg", "cat dog", "train was taken", 4),
    "splits asked for": Layout("{train,val}/{cat,dog}/{1,2}.jpg", "cat dog", "", 4, "val", {"split": "val"}),
    "a class that one split lacks": Layout(
        "train/{cat,dog}/1.jpg val/dog/3.jpg test/elk/4.jpg", "cat dog", "", 1, "val", {"split": "val"}
    ),
    "a split that is not there": Layout(
        "{train,val}/{cat,dog}/1.jpg", says="no split 'extra'.*train, val", asked={"split": "extra"}
    ),
    "a test split without labels": Layout(
        "train/{cat,dog}/1.jpg test/1.jpg", "", "label -1", 1, "test", {"split": "test"}
    ),
    "splits in a wrapper": Layout("archive/{train,test}/{a,b}/{1,2}.jpg", "a b", "train was taken", 4),
    "splits twice": Layout("seg_{train,test}/seg_%/{sea,wood}/1.jpg", "sea wood", "seg_train was taken", 2),
    "splits beside others": Layout(
        "{train,test}/{cat,dog}/1.jpg single_prediction/1.jpg", "cat dog", "left out: single_prediction", 2
    ),
    "splits of speech": Layout("{train,dev,eval}/{no,yes}/1.jpg", "no yes", "train was taken", 2),
    "splits by year": Layout("{train,val}2017/{cat,dog}/1.jpg", "cat dog", "train2017 was taken", 2),
    "splits of images": Layout("{train,test}_images/{cat,dog}/1.jpg", "cat dog", "train_images was taken", 2),
    "images of splits": Layout("images/{train,val}/{cat,dog}/1.jpg", "cat dog", "train was taken", 2),
    "no train": Layout("{dev,test}/{cat,dog}/1.jpg", says="several splits.*--split"),
    "two trains": Layout("{train2014,train2017}/{cat,dog}/1.jpg", says="several splits.*--split train2014"),
    "splits in classes": Layout("{cat,dog}/{train,val}/{1,2}.jpg", says="each contain splits"),
    "defects": Layout(
        "{bottle,cable}/{train/good,test/broken,ground_truth/broken}/1.png", says="each contain splits"
    ),
    "flat": Layout("{a,b}.jpg labels.csv", says=_FLAT),
    "flat train": Layout("train/{1,2}.jpg train.csv", says=_FLAT),
    "flat splits": Layout("{train,test}/{1,2}.jpg", says=_FLAT),
    "flat images": Layout("data/images/{1,2}.jpg", says=_FLAT),
    "images and masks": Layout("images/{1,2}.jpg masks/{1,2}.mask", kept=2, **_PAIRED),
    "images and colour masks": Layout("{images,masks}/{cju0q,cku1z}.jpg", kept=2, **_PAIRED),
    "scans and masks": Layout("scans/{x,y}.jpg masks/{seg_1,seg_2}.mask", says=_PARTS),
    "images and masks in splits": Layout(
        "{train,val}/images/1.jpg {train,val}/masks/1.mask", kept=1, **_PAIRED
    ),
    "images and masks of splits": Layout(
        "images/{train,val}/1.jpg masks/{train,val}/1.mask", kept=1, in_tar="--unlab", fields="mask"
    ),
    "street scenes": Layout(
        "leftImg8bit/{train,val}/ulm/u1_leftImg8bit.png gtFine/{train,val}/ulm/u1_gtFine_labelIds.mask",
        says=f"{_PARTS}|each contain splits",
    ),
    "lesions": Layout(
        "Training_Input/ISIC_{1,2}.jpg Training_GroundTruth/ISIC_{1,2}_segmentation.mask",
        kept=2, in_tar="--unlabelled", fields="groundtruth",
    ),
    "cars": Layout("train/{x,y}_01.jpg train_masks/{x,y}_01_mask.mask", kept=2, **_PAIRED),
    "depth": Layout("rgb/{a,b}.jpg depth/{a,b}.mask", kept=2, in_tar=_PARTS, fields="depth"),
    "two cameras": Layout("image_{2,3}/{000001,000002}.png label_2/{000001,000002}.txt", says=_PARTS),
    "YOLO": Layout(
        "images/{train,val}/{1,2}.jpg labels/{train,val}/{1,2}.yolo", "", "YOLO labels", 2, in_tar=_FLAT
    ),
    "YOLO in splits": Layout(
        "{train,valid}/images/{1,2}.jpg {train,valid}/labels/{1,2}.yolo", "", "YOLO labels", 2, in_tar=_FLAT
    ),
    "YOLO in classes": Layout("{cat,dog}/{1,2}{.jpg,.yolo}", says="texts with the names|YOLO writes"),
    "captions in classes": Layout("{cat,dog}/{1,2}{.jpg,.txt}", says="texts with the names of.*--source"),
    "COCO": Layout("{train,val}2017/{1,2}.jpg annotations/instances_{train,val}2017.json", says=_FLAT),
    "VOC": Layout(
        "JPEGImages/{1,2}.jpg Annotations/{8,9}.xml SegmentationClass/1.mask ImageSets/Main/train.txt",
        says="1 sample without segmentation left out: JPEGImages/2.jpg", kept=1, in_tar=_PARTS,
        fields="segmentation",
    ),
    "domains": Layout("{train,test}{A,B}/{1,2}.jpg", says="two domains.*--unlabelled"),
    "unpaired domains": Layout("trainA/{n02_1,n02_2}.jpg trainB/{n07_5,n07_6}.jpg", says="two domains"),
    "small and large": Layout("{HR,LR}/{0001,0002}.png", kept=2, in_tar=_PARTS, fields="lr"),
    "small and large by name": Layout(
        "x_HR/{0001,0002}.png x_LR/{0001x2,0002x2}.png", kept=2, in_tar=_PARTS, fields="lr"
    ),
    "a sample per folder": Layout(
        "{s1,s2,s3}/{image.jpg,mask.mask}", kept=3, says="image.jpg is image, mask.png.*one folder",
        in_tar="parts of one sample", fields="mask",
    ),
    "a sample per folder, deeper": Layout(
        "{f1,f2}/images/1.jpg {f1,f2}/masks/{4,5}.mask", says="parts of one sample"
    ),
    "stages": Layout("stage1_{train,test}/{f1,f2}/images/x.png", "f1 f2", "stage1_train was taken", 2),
    "stages with masks": Layout(
        "stage1_{train,test}/{f1,f2}/images/x.png stage1_train/{f1,f2}/masks/{a,b}.mask",
        says="parts of one sample",
    ),
    "pictures in pieces": Layout("images_001/{1,2}.png images_002/{3,4}.png", says=_PARTS),
    "masks in classes": Layout(
        "{benign,malignant}/{p1,p2}.jpg {benign,malignant}/{p1,p2}_mask.mask",
        "benign malignant", r"\*.jpg is image, \*_mask.png is mask", 4,
        in_tar="masks are next to their pictures", fields="mask",
    ),
    "images and masks of other names": Layout("images/{a,b}.jpg masks/{c,d}.jpg", says=_PARTS),
    "arrays and masks": Layout("images/{1,2}.npy masks/{1,2}.npy", kept=2, **_PAIRED),
    "arrays and labels": Layout("images/{1,2}.npy labels/{1,2}.yolo", says=f"no images|{_FLAT}"),
    "images and labels in JSON": Layout(
        "images/{a,b}.jpg labels/{a,b}.json", says=f"{_FLAT}|--field 'json=labels"
    ),
    "arrays": Layout("{cat,dog}/{1,2}.npy readme.md", "cat dog", "no images: .npy files taken", 4),
    "sounds": Layout(
        "{no,yes}/{1,2}{.wav,.html,.md}", "no yes", "no images: .wav files taken", 4, tar_fields="html md"
    ),
    "texts": Layout("{bad,good}/{1,2}.txt README", "bad good", "no images: .txt files taken", 4),
    "frames": Layout("{clip1,clip2}/{001,002,003}.jpg", says="the frames of a sample.*numpy.save"),
    "frames in classes": Layout("{run,jump}/{clip1,clip2}/{001,002}.jpg", "jump run"),
    "frames and a mask": Layout("{f1,f2}/{1,2}.jpg {f1,f2}/mask.mask", says="parts of one sample"),
    "no data": Layout("{a,b}/{1,2}.py", says="no images.*--suffix"),
    "overridden": Layout(
        "{images,masks}/{1,2}.jpg", "images masks", "as requested", asked={"kind": "folder"}
    ),
    "one folder at a time": Layout("images/{1,2}.jpg", "", "label -1", 2, asked={"unlabelled": True}),
    "both at a time": Layout("{images,masks}/{1,2}.jpg", kept=2, asked={"unlabelled": True}, **_PAIRED),
}  # fmt: skip


def _expanded(patterns: str) -> Iterator[str]:
    """`a/{b,c}.jpg` as `a/b.jpg`, `a/c.jpg`; `%` stands for what the first braces gave."""
    for pattern in patterns.replace("no mask", "no\0mask").split():
        parts = re.split(r"\{([^}]*)\}", pattern.replace("\0", " "))
        choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
        for chosen in product(*choices):
            yield "".join(chosen).replace("%", chosen[1] if len(chosen) > 1 else "")


def _suffixed(name: str) -> str:
    return name.replace(".mask", ".png").replace(".yolo", ".txt")


def _content(name: str) -> bytes:
    if name.endswith(".yolo"):
        return b"0 0.5 0.5 0.25 0.125\n2 0.1 0.1 0.2 0.2\n"
    kinds = {"jpg": ("RGB", "JPEG"), "png": ("RGB", "PNG"), "mask": ("L", "PNG")}
    mode, format = kinds.get(name.rpartition(".")[2], ("", ""))
    if not mode:
        return f"what {name} says".encode()
    out = io.BytesIO()
    Image.new(mode, (4, 3)).save(out, format)
    return out.getvalue()
