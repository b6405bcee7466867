"""`pack` compares the first bytes of each file of a known kind with its suffix."""

import bz2
import gzip
import io
import json
import lzma
import wave
import zipfile

import h5py
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import feather, parquet

from smallfiles.cli import main

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"7" * 64 + b"\nsize 12345\n"
ANNEX = b"/annex/objects/SHA256E-s12345--" + b"7" * 64 + b".jpg\n"
PAGE = b"\r\n<!DOCTYPE html><html><body>Please log in</body></html>"
SUFFIXES = (
    *(".npy", ".npz", ".wav", ".flac", ".mp3", ".ogg", ".opus", ".nii", ".nii.gz", ".h5", ".hdf5", ".nc"),
    *(".pt", ".pth", ".safetensors", ".png", ".jpg", ".tif", ".webp", ".gif", ".bmp", ".jxl", ".avif"),
    *(".jp2", ".exr", ".mp4", ".mov", ".mkv", ".webm", ".avi", ".parquet", ".feather", ".gz", ".bz2", ".xz"),
    *(".zst", ".zip", ".pdf", ".dcm", ".fits", ".ply", ".las"),
)


def picture(kind):
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, kind)
    return file.getvalue()


def array():
    file = io.BytesIO()
    np.save(file, np.arange(4))
    return file.getvalue()


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return file.getvalue()


def sound():
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(bytes(64))
    return file.getvalue()


def hdf5(user_block=0):
    file = io.BytesIO()
    with h5py.File(file, "w", userblock_size=user_block) as out:
        out["x"] = 1
    return file.getvalue()


def columns(write):
    file = io.BytesIO()
    write(pa.table({"x": [1]}), file)
    return file.getvalue()


def stream(table, file):
    with pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)


GENUINE = {
    "jpeg": (".jpg", picture("JPEG")),
    "png": (".png", picture("PNG")),
    "gif": (".gif", picture("GIF")),
    "bmp": (".bmp", picture("BMP")),
    "tiff": (".tif", picture("TIFF")),
    "big tiff": (".tiff", b"II+\0\x08\0\0\0" + bytes(64)),
    "webp": (".webp", picture("WEBP")),
    "ppm": (".ppm", picture("PPM")),
    "jxl": (".jxl", b"\xff\x0a" + bytes(64)),
    "jxl in a container": (".jxl", b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(64)),
    "avif": (".avif", b"\0\0\0\x20ftypavif" + bytes(64)),
    "jpeg 2000": (".jp2", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(64)),
    "npy": (".npy", array()),
    "npz": (".npz", zipped()),
    "pt": (".pt", zipped()),
    "old pt": (".pth", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),
    "safetensors": (".safetensors", (2).to_bytes(8, "little") + b"{}"),
    "wav": (".wav", sound()),
    "wav of more than 4 GiB": (".wav", b"RF64\xff\xff\xff\xffWAVEds64" + bytes(64)),
    "wav of a big-endian machine": (".wav", b"RIFX\0\0\0\x40WAVEfmt " + bytes(64)),
    "wav of TIMIT": (".wav", b"NIST_1A\n   1024\n" + bytes(64)),
    "flac": (".flac", b"fLaC" + bytes(64)),
    "flac with tags": (".flac", b"ID3\x04" + bytes(64)),
    "mp3 with tags": (".mp3", b"ID3\x03" + bytes(64)),
    "mp3": (".mp3", b"\xff\xfb\x90\x64" + bytes(64)),
    "mp3 after zeros": (".mp3", bytes(417) + b"\xff\xf3\x44\xc4" + bytes(64)),
    "ogg": (".ogg", b"OggS" + bytes(64)),
    "opus": (".opus", b"OggS" + bytes(64)),
    "nifti": (".nii", (348).to_bytes(4, "little") + bytes(400)),
    "nifti 2 big-endian": (".nii", (540).to_bytes(4, "big") + bytes(600)),
    "nii.gz": (".nii.gz", gzip.compress(bytes(400))),
    "hdf5": (".h5", hdf5()),
    "hdf5 behind a user block": (".hdf5", hdf5(2048)),
    "netcdf 3": (".nc", b"CDF\x02" + bytes(64)),
    "netcdf 4": (".nc", hdf5()),
    "dicom": (".dcm", bytes(128) + b"DICM" + bytes(64)),
    "dicom without a preamble": (".dcm", b"\x08\0\0\0\x04\0\0\0" + bytes(64)),
    "fits": (".fits", b"SIMPLE  =                    T"),
    "mp4": (".mp4", b"\0\0\0\x20ftypisom" + bytes(64)),
    "mov": (".mov", b"\0\0\0\x08wide\0\0\0\x10mdat" + bytes(64)),
    "webm": (".webm", b"\x1aE\xdf\xa3" + bytes(64)),
    "avi": (".avi", b"RIFF\0\0\0\0AVI LIST" + bytes(64)),
    "parquet": (".parquet", columns(parquet.write_table)),
    "feather": (".feather", columns(feather.write_feather)),
    "arrow stream": (".arrow", columns(stream)),
    "gz": (".gz", gzip.compress(b"x")),
    "bz2": (".bz2", bz2.compress(b"x")),
    "xz": (".xz", lzma.compress(b"x")),
    "zst": (".zst", b"\x28\xb5\x2f\xfd" + bytes(16)),
    "pdf": (".pdf", b"%PDF-1.7\n"),
    "pdf after a line break": (".pdf", b"\r\n%PDF-1.4\n"),
    "mat without a signature": (".mat", bytes(64)),
    "text": (".txt", b"a text that speaks of <html>"),
    "an unknown suffix": (".xyz", PAGE),
}


def pack(tmp_path, capfd, files, *options):
    """Exit code of packing these files, and what it printed."""
    folder = tmp_path / "set with spaces" / "a"
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    suffixes = {f".{name.rpartition('.')[2]}" for name in files}
    more = [word for suffix in sorted(suffixes) for word in ("--suffix", suffix)]
    code = main(["pack", str(folder.parent), str(tmp_path / "out.tars"), *more, *options])
    return code, "".join(capfd.readouterr())


def refused(tmp_path, capfd, files):
    """The reason for each file that `pack --on-error skip` leaves out, beside one that it packs."""
    code, said = pack(tmp_path, capfd, {**files, "good.png": picture("PNG")}, "--on-error", "skip")
    assert code == 0 and "Traceback" not in said, said
    faults = json.loads((tmp_path / "out.tars.faults.json").read_text())
    assert faults["packed"] == 1
    return {fault["key"].removeprefix("a/"): fault["reason"] for fault in faults["skipped"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [(POINTER, "git lfs pull"), (ANNEX, "git annex get"), (PAGE, "web page"), (b"Not Found", "begins with")],
    ids=["git-lfs", "git-annex", "web page", "text"],
)
def test_files_that_are_not_of_their_kind_are_refused(content, words, tmp_path, capfd):
    reasons = refused(tmp_path, capfd, {f"1{suffix}": content for suffix in SUFFIXES})
    assert list(reasons) == sorted(f"1{suffix}" for suffix in SUFFIXES)
    assert [reason for reason in reasons.values() if words not in reason] == []


def test_a_pointer_is_refused_under_any_suffix(tmp_path, capfd):
    names = [f"1{suffix}" for suffix in (".csv", ".json", ".mat", ".txt", ".xyz")]
    reasons = refused(tmp_path, capfd, dict.fromkeys(names, POINTER))
    assert list(reasons) == names and all("git lfs pull" in reason for reason in reasons.values())


def test_a_pointer_ends_the_run_and_names_the_cure(tmp_path, capfd):
    code, said = pack(tmp_path, capfd, {"1.npy": array(), "2.npy": POINTER})
    assert code == 1 and "a/2.npy is a pointer of git-lfs" in said and "git lfs pull" in said, said
    assert not (tmp_path / "out.tars").exists()
    (tmp_path / "set with spaces" / "a" / "2.npy").write_bytes(array())  # as git lfs pull does
    assert main(["pack", str(tmp_path / "set with spaces"), str(tmp_path / "out.tars")]) == 0


@pytest.mark.parametrize("name", ["labels.csv", "labels.parquet", "set.json", "set.tar", "set.zip"])
def test_a_pointer_given_as_the_source_itself_names_the_cure(name, tmp_path, capfd):
    (tmp_path / name).write_bytes(POINTER)
    code = main(["pack", str(tmp_path / name), str(tmp_path / "x.arrow")])
    said = capfd.readouterr().err
    assert code == 1 and f"{name} is a pointer of git-lfs" in said and "git lfs pull" in said, said
    assert not (tmp_path / "x.arrow").exists()


def test_genuine_files_are_packed_without_a_note(tmp_path, capfd):
    files = {f"{name}{suffix}": data for name, (suffix, data) in GENUINE.items()}
    code, said = pack(tmp_path, capfd, files)
    assert code == 0 and "holds" not in said and f"{len(files)} samples" in said, said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("n02105855_2933.JPEG", picture("PNG"), "PNG"),
        ("a.png", picture("WEBP"), "WebP"),
        ("a.wav", b"\xff\xfb\x90\x64" + bytes(64), "MP3"),
        ("a.mp3", b"OggS" + bytes(64), "Ogg"),
        ("a.npy", zipped(), "zip"),
        ("a.mp4", b"\x1aE\xdf\xa3" + bytes(64), "Matroska"),
    ],
    ids=["n02105855_2933.JPEG", "png", "wav", "mp3", "npy", "mp4"],
)
def test_a_file_whose_programs_look_at_its_bytes_is_packed_with_a_note(name, content, words, tmp_path, capfd):
    code, said = pack(tmp_path, capfd, {name: content, f"2{name}": content})
    assert code == 0 and said.count(" holds ") == 1 and f"a/2{name}" in said and words in said, said


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.npy", picture("PNG"), "PNG"),
        ("a.jpg", sound(), "WAV"),
        ("a.h5", zipped(), "zip"),
        ("a.nii", gzip.compress(bytes(400)), "gzip"),
        ("a.nii.gz", GENUINE["nifti"][1], "NIfTI"),
        ("a.pt", gzip.compress(zipped()), "gzip"),
        ("a.wav", picture("JPEG"), "JPEG"),
    ],
    ids=["npy", "jpg", "h5", "nii", "nii.gz", "pt", "wav"],
)
def test_a_file_of_another_kind_is_refused_by_the_name_of_that_kind(name, content, words, tmp_path, capfd):
    code, said = pack(tmp_path, capfd, {name: content})
    assert code == 1 and f"{name} holds {words}" in said, said


def test_check_none_packs_what_is_there(tmp_path, capfd):
    code, said = pack(tmp_path, capfd, {"1.npy": POINTER}, "--check", "none")
    assert code == 0, said


def test_masks_are_compared_too(tmp_path, capfd):
    for name, data in (("images/1.png", picture("PNG")), ("masks/1.npy", POINTER)):
        (tmp_path / "set" / name).parent.mkdir(parents=True)
        (tmp_path / "set" / name).write_bytes(data)
    words = ["--field", "mask=masks/{stem}.npy", "--field", "image=images/{name}", "--unlabelled"]
    code = main(["pack", str(tmp_path / "set"), str(tmp_path / "out.arrow"), *words])
    said = capfd.readouterr().err
    assert code == 1 and "masks/1.npy" in said and "git lfs pull" in said, said
