"""Samples of several files in a folder: which files are one sample, what is said of it, what is refused."""

import re
from contextlib import closing

import pytest
from given import metas_in
from source_sets import plant, refused, rows

from smallfiles import formats, sources
from smallfiles.cli import main
from smallfiles.errors import ManifestError, UsageError

PAIRS = ("images/1.jpg", "images/2.jpg", "masks/1.png", "masks/2.png")


def fields(source) -> dict[str, dict[str, str]]:
    """The further files of each sample."""
    manifest = source.manifest
    columns = {name: manifest.blob_paths(name).to_pylist() for name in manifest.blobs}
    paths = manifest.paths.to_pylist()
    return {path: {name: columns[name][row] for name in columns} for row, path in enumerate(paths)}


def test_pairs_are_said_in_one_line_and_need_no_flag_without_labels(tmp_path):
    source = sources.load(plant(tmp_path, *PAIRS))
    assert fields(source) == {f"images/{n}.jpg": {"mask": f"masks/{n}.png"} for n in (1, 2)}
    assert set(rows(source).values()) == {-1}
    assert source.notes[0] == "images/ is image, masks/ is mask (2 pairs by stem)"
    each = sources.load(plant(tmp_path / "each", "1/image.jpg", "1/mask.png", "2/image.jpg", "2/mask.png"))
    assert each.notes[0] == "image.jpg is image, mask.png is mask (2 pairs in one folder each)"


@pytest.mark.parametrize(
    ("image", "part", "name"),
    [
        ("images/#.jpg", "labels/#.png", "label_image"),
        ("images/#.jpg", "annotations/trimaps/#.png", "annotation"),
        ("images/#.jpg", "masks/#-mask.png", "mask"),
        ("images/#.jpg", "masks/#_gt.png", "mask"),
        ("images/#.jpg", "masks/#_seg.tif", "mask"),
        ("images/#.jpg", "masks/#.jpg.png", "mask"),
        ("images/#.jpg", "depth/#.npy", "depth"),
        ("images/#.npy", "masks/#.png", "mask"),
        ("images/x/#.jpg", "masks/x/#.png", "mask"),
        ("set/train/#.jpg", "set/train_masks/#_mask.gif", "mask"),
        ("VOC2012/JPEGImages/#.jpg", "VOC2012/SegmentationClass/#.png", "segmentation"),
        ("Training_Input/#.jpg", "Training_GroundTruth/#_segmentation.png", "groundtruth"),
        ("input/#.jpg", "target/#.jpg", "target_image"),
        ("HR/#.png", "LR/#x4.png", "lr"),
        ("images/#.jpg", "annotations/old/trimaps/#.png", "annotation"),
        ("s#/1.jpg", "s#/mask.png", "mask"),
        ("#_HR/1.png", "#_LR/1.png", "lr"),
        ("p#/images/1.jpg", "p#/masks/1.png", "mask"),
        ("#.jpg", "#.mask.png", "mask"),
        ("images/#.jpg", "images/#_gt.png", "gt"),
        ("images/#.jpg", "images/#_Masks.png", "mask"),
        ("images/#.jpg", "Mask_Object_Depths/#.png", "depth"),
        ("images/#.jpg", "images/#.height.npy", "height"),
        ("images/#.jpg", "images/#.Depths.npy", "Depths"),
        ("images/#.jpg", "images/#.target.png", "target_image"),
        ("s#/image.jpg", "s#/mask.png", "mask"),
        ("train/s#/photo.jpg", "train/s#/x.npy", "x"),
        ("s#/scan.jpg", "s#/Mask 2.png", "Mask_2"),
        ("images/#.jpg", "boxes/#.png", "box"),
    ],
)
def test_partners_are_found_by_folder_stem_or_mark_which_name_the_field(tmp_path, image, part, name):
    extra = ["train/sa/mask.png", "train/sb/mask.png"] if name == "x" else []
    files = [(image.replace("#", each), part.replace("#", each)) for each in "ab"]
    source = sources.load(plant(tmp_path, *files[0], *files[1], *extra))
    assert {path: found[name] for path, found in fields(source).items()} == dict(files)
    assert set(rows(source).values()) == {-1} and not source.manifest.classes


def test_splits_above_and_below_are_chosen_as_usual_and_pair_their_own_files(tmp_path):
    for place in ("{split}/{part}", "{part}/{split}"):
        root = tmp_path / place[1:5]
        for split in ("train", "val"):
            plant(root, *(place.format(split=split, part=each) + "/1.png" for each in ("images", "masks")))
        plant(root, place.format(split="val", part="masks") + "/lost.png")
        for split in (None, "val"):
            source = sources.load(root, split=split)
            where = place.replace("{split}", split or "train") + "/1.png"
            assert fields(source) == {where.format(part="images"): {"mask": where.format(part="masks")}}
            assert ("lost.png" in str(source.notes)) == (split == "val")
        sources.load(root, strict=True)


def test_a_test_split_may_have_no_masks(tmp_path):
    plant(tmp_path, "train/1.jpg", "train_masks/1_mask.gif", "test/2.jpg")
    assert fields(sources.load(tmp_path)) == {"train/1.jpg": {"mask": "train_masks/1_mask.gif"}}
    source = sources.load(tmp_path, split="test")
    assert fields(source) == {"test/2.jpg": {}} and "the test split has no mask" in source.notes


def test_a_train_split_without_masks_is_refused(tmp_path):
    plant(tmp_path, "train/1.jpg", "val/2.jpg", "val_masks/2_mask.gif")
    assert fields(sources.load(tmp_path, split="val")) == {"val/2.jpg": {"mask": "val_masks/2_mask.gif"}}
    assert "mask" in refused(tmp_path, split="train")


def test_labels_are_those_of_class_folders_around_or_below(tmp_path):
    trees = {
        "beside": ("cat/{}.jpg", "cat/{}.mask.png", "dog/{}.jpg", "dog/{}.mask.png"),
        "below": ("images/cat/{}.jpg", "masks/cat/{}.png", "images/dog/{}.jpg", "masks/dog/{}.png"),
        "above": ("cat/images/{}.jpg", "cat/masks/{}.png", "dog/images/{}.jpg", "dog/masks/{}.png"),
        "each": ("cat/p{}/image.jpg", "cat/p{}/mask.png", "dog/q{}/image.jpg", "dog/q{}/mask.png"),
    }
    for name, files in trees.items():
        source = sources.load(plant(tmp_path / name, *(file.format(n) for file in files for n in (1, 2))))
        assert source.manifest.classes == ("cat", "dog") and source.manifest.blobs == ("mask",)
        assert all(label == ("dog" in path) for path, label in rows(source).items())
        assert "labels from folders: cat, dog (not with --unlabelled)" in source.notes
        assert set(rows(sources.load(tmp_path / name, unlabelled=True)).values()) == {-1}


def test_samples_and_files_without_a_partner_are_named_left_out_and_refused_under_strict(tmp_path):
    plant(tmp_path, *PAIRS, "images/3.jpg", "images/4.jpg", "masks/3.png", "masks/9.png", "overlays/1.png")
    source = sources.load(tmp_path)
    assert list(fields(source)) == ["images/1.jpg", "images/2.jpg", "images/3.jpg"]
    assert "1 sample without mask left out: images/4.jpg" in source.notes
    assert "2 files of no sample left out: masks/9.png, overlays/1.png" in source.notes
    assert "3 samples without a class: label -1" in source.notes, "not those that were left out"
    said = refused(tmp_path, strict=True)
    assert "images/4.jpg" in said and "masks/9.png" in said
    parts = (
        f"{folder}/{n}.{kind}"
        for folder, kind in (("images", "jpg"), ("annotations/trimaps", "png"))
        for n in "12"
    )
    source = sources.load(plant(tmp_path / "wrapped", *parts, "extra/x.jpg"))
    assert len(source.manifest) == 2 and "1 file of no sample left out: extra/x.jpg" in source.notes


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ((*PAIRS, "images/1.png"), "images/1.jpg, images/1.png are of one sample"),
        ((*PAIRS, "masks/1_mask.tif"), "masks/1.png, masks/1_mask.tif are of one"),
        ((*PAIRS, "depth/x.png", "depth/y.png"), "only 0 of 2 files have a depth"),
        ((*PAIRS, "notes/a.jpg", "notes/b.jpg", "notes/c.jpg"), "notes/a.jpg is of no"),
        (
            ("images/a.jpg", "images/b.jpg", "images/c.jpg", "masks/a.png", "masks/x.png", "masks/y.png"),
            "1 of 3",
        ),
        (("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "other/images/1.jpg", "other/masks/1.jpg"), "cat/ is of no"),
        (("cat/1.jpg", *(f"other/{each}" for each in PAIRS)), "cat/ is of no sample"),
        (
            ("cat/1.jpg", "cat/2.jpg", "cat/3.jpg", "cat/1_mask.jpg", "dog/1.jpg"),
            "masks are next to their pictures",
        ),
        (
            ("f1/1.jpg", "f1/2.jpg", "f1/mask.png", "f2/1.jpg", "f2/2.jpg", "f2/mask.png"),
            "parts of one sample",
        ),
        (("scans/x.jpg", "scans/y.jpg", "masks/x.png", "masks/y.png"), "parts of samples"),
        (
            (*(f"{folder}/{n}.png" for folder in ("images", "labels/a", "labels/b") for n in "12"),),
            "images and labels by their names are parts of samples",
        ),
    ],
)
def test_what_is_unclear_is_refused_with_the_flag_that_settles_it(tmp_path, files, says):
    said = refused(plant(tmp_path, *files))
    assert re.search(says, said) and "--field mask=masks/{stem}.png" in said


@pytest.mark.parametrize(
    ("count", "masks", "blobs"), [(4, 2, ()), (4, 3, ("mask",)), (1, 1, ()), (2, 2, ("mask",))]
)
def test_folders_are_samples_if_there_are_several_and_most_have_a_part(tmp_path, count, masks, blobs):
    plant(tmp_path, *(f"s{n}/image.jpg" for n in range(count)), *(f"s{n}/mask.png" for n in range(masks)))
    manifest = sources.load(tmp_path).manifest
    assert manifest.blobs == blobs and len(manifest.classes) == (0 if blobs else count)


@pytest.mark.parametrize(
    "files",
    [
        ("{}/1.jpg", "{}/2.jpg"),
        ("{}/1.jpg", "{}/1.flipped.jpg"),
        ("{}/1.jpg", "{}/1.jpg.png"),
        ("{}/1.jpg", "{}/2.jpg", "{}/2.tiny.png"),
        ("{}/image.jpg", "{}/other.jpg"),
        ("{}/1.jpg", "{}/2.images/1.jpg"),
    ],
)
@pytest.mark.parametrize(
    "classes", [("cat", "dog"), ("input", "keys"), ("with_mask", "without_mask"), ("train", "bus")]
)
def test_class_folders_with_files_of_the_same_names_are_classes(tmp_path, files, classes):
    names = [file.format(name) for name in classes for file in files]
    source = sources.load(plant(tmp_path, *names))
    assert source.manifest.classes == tuple(sorted(classes)) and not source.manifest.blobs
    assert len(source.manifest) == len(names)


def test_templates_say_which_files_belong_together_and_override_what_is_recognised(tmp_path):
    plant(
        tmp_path,
        "scans/a/1.jpg",
        "scans/a/2.jpg",
        "seg/out/1.png",
        "seg/out/2.png",
        "scans/a/1.jpg.txt",
        *PAIRS,
    )
    plant(tmp_path, "scans/a/2.jpg.txt")
    both = ("image=scans/a/{name}", "mask=./seg/out/{stem}.png", "text={dir}/{name}.txt")
    assert fields(sources.load(tmp_path, columns=both)) == {
        f"scans/a/{n}.jpg": {"mask": f"seg/out/{n}.png", "text": f"scans/a/{n}.jpg.txt"} for n in (1, 2)
    }
    upwards = sources.load(tmp_path, columns=("mask={dir}/../masks/{stem}.png",), kind="folder")
    assert fields(upwards) == {f"images/{n}.jpg": {"mask": f"masks/{n}.png"} for n in (1, 2)}
    assert "sample" in str(upwards.notes) and "scans/a/1.jpg" in str(upwards.notes)
    plant(tmp_path, "images/1.png")
    assert "images/1.jpg, images/1.png are of one" in refused(
        tmp_path, columns=("mask={dir}/../masks/{stem}.png",)
    )
    assert "out/1.gif for" in refused(tmp_path, columns=("mask=out/{stem}.gif",))
    assert "outside/1.png for" in refused(tmp_path, columns=("mask={dir}/../../../outside/{stem}.png",))


@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        (  # nnU-Net
            ("imagesTr/{}_0000.nii.gz", "imagesTr/{}_0001.nii.gz", "labelsTr/{}.nii.gz"),
            ("image=imagesTr/{id}_0000.nii.gz", "t2=imagesTr/{id}_0001.nii.gz", "mask=labelsTr/{id}.nii.gz"),
            {"t2": "imagesTr/{}_0001.nii.gz", "mask": "labelsTr/{}.nii.gz"},
        ),
        (  # Cityscapes
            *(
                ("leftImg8bit/train/ulm/{}_leftImg8bit.png", "gtFine/train/ulm/{}_gtFine_labelIds.png"),
                ("image=leftImg8bit/{id}_leftImg8bit.png", "mask=gtFine/{id}_gtFine_labelIds.png"),
            ),
            {"mask": "gtFine/train/ulm/{}_gtFine_labelIds.png"},
        ),
    ],
    ids=["nnU-Net", "Cityscapes"],
)
def test_twins_of_other_names_are_refused_with_the_flags_that_work(tmp_path, files, given, expected):
    for name in ("ulm_000001", "ulm_000002"):
        plant(tmp_path, *(file.format(name) for file in files))
    said = refused(tmp_path)
    assert "--field image=imagesTr/{id}_0000.nii.gz --field mask=labelsTr/{id}.nii.gz" in said
    found = fields(sources.load(tmp_path, columns=given))
    assert found == {
        files[0].format(name): {field: file.format(name) for field, file in expected.items()}
        for name in ("ulm_000001", "ulm_000002")
    }
    if "t2" in expected:
        unread = sources.load(tmp_path, columns=(given[0], given[2]))
        assert "2 files of no sample left out: imagesTr/ulm_000001_0001.nii.gz" in str(unread.notes)


@pytest.mark.parametrize(
    "given",
    [
        *("mask", "mask=species", "mask=masks/a.png", "mask={id}.png", "image=images", "image=images/{name}"),
        "mask=a/{stem}.x mask=b/{stem}.x",
        "image=a/{1}.png mask=b/{1}.png",
        "image=a/{id}{id}.png mask=b/{id}.png",
    ],
)
def test_a_template_that_makes_no_sense_is_refused(tmp_path, given):
    with pytest.raises(UsageError, match=r"mask=masks/\{stem\}\.png"):
        sources.load(plant(tmp_path, *PAIRS), columns=tuple(given.split()))


def test_json_and_cls_files_beside_samples_are_their_objects_and_labels(tmp_path):
    for n in (1, 2):
        plant(tmp_path, f"all/{n}.jpg", f"all/{n}.mask.png")
        (tmp_path / f"all/{n}.cls").write_text(f"{n + 4}\n")
    (tmp_path / "all/2.json").write_text('{"age": 3}')
    source = sources.load(tmp_path, strict=True)
    assert rows(source) == {"all/1.jpg": 5, "all/2.jpg": 6}
    assert metas_in(source.manifest.table) == [None, {"age": 3}]
    (tmp_path / "all/1.cls").write_text("five")
    assert "1.cls holds 'five'" in refused(tmp_path)
    (tmp_path / "all/1.cls").unlink()
    assert "not every sample has one" in refused(tmp_path)
    (tmp_path / "all/2.json").write_text("[1]")
    with pytest.raises(ManifestError, match=r"JSON object.*all/2\.jpg"):
        sources.load(tmp_path, unlabelled=True)


def test_a_folder_of_pairs_is_packed_verified_and_packed_again(tmp_path, capsys):
    tree, out = (
        plant(tmp_path / "d", *(f"{split}/{each}" for split in ("train", "val") for each in PAIRS)),
        tmp_path,
    )
    assert main(["pack", str(tree), str(out / "a.arrow"), "--check", "none"]) == 0
    assert capsys.readouterr().err.count("(2 pairs by stem)") == 1
    assert main(["verify", str(out / "a.arrow"), "--against", str(tree)]) == 0
    with closing(formats.open(out / "a.arrow")) as reader:
        assert bytes(reader.blob("mask").read(1)) == b"data of train/masks/2.png"
    assert main(["manifest", str(tree), "--split", "val", "-o", str(out / "m.json")]) == 0
    assert main(["pack", str(out / "m.json"), str(out / "v.arrow"), "--check", "none"]) == 0
    assert main(["inspect", str(out / "v.arrow"), "--json"]) == 0
    (tree / "val/masks/1.png").write_bytes(b"other")
    assert main(["verify", str(out / "v.arrow"), "--against", str(tree), "--split", "val"]) == 1
    assert "images/1.jpg" in capsys.readouterr().out


def test_files_that_a_tar_was_unpacked_to_are_the_same_set_again(tmp_path):
    source = sources.load(plant(tmp_path / "d", *PAIRS))
    for key in fields(source):
        stem = key.removesuffix(".jpg")
        plant(tmp_path / "u", key, f"{stem}.mask.png")
        (tmp_path / f"u/{stem}.cls").write_text("-1")
    again = sources.load(tmp_path / "u", strict=True)
    assert again.manifest.digest == source.manifest.digest and again.manifest.fields == source.manifest.fields
