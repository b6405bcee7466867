"""The command line: help that teaches, exit codes, one sentence for every failure, JSON."""

import argparse
import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from programs import wait_for

from smallfiles import pack as packing
from smallfiles import sources
from smallfiles.cli import build_parser, main, parse
from smallfiles.cli.arguments import parse_options
from smallfiles.cli.output import guarded
from smallfiles.errors import UsageError

TOPICS = {"bench": ("read", "pack", "load"), "ring": ("fill", "status", "clean")}


def help_of(capsys, *words):
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


def jpeg(number=0):
    return b"\xff\xd8\xff" + bytes([number]) * (100 + 50 * number) + b"\xff\xd9"


@pytest.fixture
def data(tmp_path):
    for number in range(12):
        file = tmp_path / "data" / f"class{number % 3}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(number))
    return tmp_path / "data"


@pytest.fixture
def packed(data, capsys):
    out = data.parent / "set.tars"
    assert main(["pack", str(data), str(out)]) == 0
    capsys.readouterr()
    return out


@pytest.mark.parametrize(
    ("out", "more", "said"),
    [("x.tars", (), True), ("x.tars", ("--shuffle", "0"), False), ("x.arrow", (), False)],
)
def test_packing_shards_in_class_order_says_in_a_line_what_that_means(
    data, tmp_path, capsys, out, more, said
):
    for extra in ((*more, "--dry-run"), more):
        assert main(["pack", str(data), str(tmp_path / out), *extra]) == 0
        told = capsys.readouterr()
        assert (told.out + told.err).count("classes lie one after the other") == said


# --- help -------------------------------------------------------------------------------------


def test_every_verb_is_in_the_help_and_has_examples(capsys):
    text = help_of(capsys)
    assert len(leaves()) > 20 and set(TOPICS) < set(verbs())
    for verb, parser in verbs().items():
        assert re.search(rf"^ +{verb}\s", text, re.MULTILINE)
        assert parser.epilog.startswith("examples:\n  smallfiles ") and len(parser.description.split()) > 20
    for parser in leaves():
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (parser.prog, action)


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "load", "x.arrow", "--peers"],
        ["bench", "pack", "data", "--order", "random"],
        ["bench", "read", "--workers", "2"],
        ["ring", "status", "train", "--slots", "3"],
        ["bench", "read", "a.arrow", "--fast"],  # and is not taken for a path
    ],
)
def test_a_flag_that_a_topic_would_ignore_is_refused_with_its_own_usage(words, capsys):
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: smallfiles {words[0]} {words[1]} ")
    assert "unrecognized arguments: --" in told


def test_no_verb_and_a_verb_without_its_topic_are_answered_with_which_there_are(capsys):
    for verb, topics in TOPICS.items():
        assert main([verb]) == 2
        told = capsys.readouterr().err
        assert all(re.search(rf"^ +{topic} ", told, re.MULTILINE) for topic in topics)
    assert main([]) == 2
    told = capsys.readouterr()
    assert "usual way through the verbs" in told.err and not told.out


def verbs():
    """The parser of each verb."""
    (below,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return below.choices


def leaves(parser=None):
    """The parsers of all verbs and topics."""
    parser = parser or build_parser()
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [parser] + [leaf for a in below for each in a.choices.values() for leaf in leaves(each)]


def examples():
    text = "\n".join(parser.epilog or "" for parser in leaves()) + "\n" + build_parser().description
    return re.findall(r"^ +smallfiles (.*?)(?:   +.*)?$", text, re.MULTILINE)


@pytest.mark.parametrize("line", examples())
def test_every_example_in_the_help_parses(line):
    parse(shlex.split(line, comments=True))


# --- exit codes and sentences -----------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["fly"],
        ["inspect", "a.arrow", "b.arrow"],
        ["pack", "data"],
        ["pack", "data", "x.arrow", "--verify", "maybe"],
        ["pack", "data", "x.arrow", "--part", "3/2"],
        ["pack", "data", "x.unknown"],
        ["pack", "data", "x.arrow", "--in-flight", "0"],
        ["demo", "--count", "0"],
        ["synth", "new", "--seed", "-1"],
    ],
)
def test_a_command_line_that_makes_no_sense_exits_with_2(words, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "words",
    [
        ["pack", "no_such_folder", "x.tars"],
        ["manifest", "no_such_folder"],
        ["verify", "no_such.tars"],
        ["inspect", "no_such.tars"],
        ["bench", "read", "no_such.tars"],
        ["demo", "--data", "no_such_folder"],
    ],
)
def test_a_missing_input_is_one_sentence_and_exit_code_1(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("error: ")
    assert "no_such" in line


def raising(error):
    def run(arguments):
        raise error

    return run


def outcome(error, capsys):
    code = guarded(raising(error), argparse.Namespace(debug=False))
    return code, capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EIO, errno.ENOENT, 99])
def test_an_error_of_the_system_is_told_with_its_path(number, capsys):
    code, text = outcome(OSError(number, os.strerror(number), "/data/x.jpg"), capsys)
    assert code == 1
    assert text.startswith(f"error: /data/x.jpg: {os.strerror(number)}; expected ")
    assert text.count("\n") == 1 and ("df -i" in text) == (number in (errno.ENOSPC, errno.EDQUOT))


def test_a_bug_is_called_one_with_type_and_place_and_shows_its_traceback_if_asked(capsys, monkeypatch):
    code, text = outcome(ZeroDivisionError("by zero"), capsys)
    assert code == 1 and "--debug" in text and "Traceback" not in text
    assert "bug in the package: ZeroDivisionError (by zero) at " in text
    guarded(raising(ZeroDivisionError()), argparse.Namespace(debug=True))
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("SMALLFILES_DEBUG", "1")
    assert "Traceback" in outcome(ZeroDivisionError(), capsys)[1]


def in_shell(line, unbuffered=""):
    """Run a shell line; output that is not buffered fails where it is written, else where it is flushed."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    python = f"{shlex.quote(sys.executable)} -m smallfiles"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line.replace("smallfiles", python, 1)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", ["inspect {} --json", "bench --help"])
def test_full_and_closed_outputs_are_no_bugs(words, unbuffered, packed):
    line = f"smallfiles {words.format(shlex.quote(str(packed)))}"
    full = in_shell(f"{line} >/dev/full", unbuffered)
    assert (full.returncode, full.stdout) == (1, "")
    assert full.stderr.startswith("error: standard output: No space left on device; expected ")
    assert full.stderr.count("\n") == 1
    closed = in_shell(f"{line} >&-", unbuffered)
    assert (closed.returncode, closed.stderr) == (0, "")
    broken = in_shell(f"{line} | true", unbuffered)
    assert (broken.returncode, broken.stderr) in [(141, ""), (0, "")]  # 0: all was written before it closed


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_messages_that_nobody_can_read_change_no_exit_code(packed, unbuffered):
    assert in_shell(f"smallfiles inspect {packed} 2>/dev/full", unbuffered).returncode == 0
    assert in_shell("smallfiles inspect nothing.arrow 2>/dev/full", unbuffered).returncode == 1
    assert in_shell("smallfiles inspect 2>/dev/full", unbuffered).returncode == 2


def test_an_ascii_terminal_gets_every_finding_and_whole_json(tmp_path, monkeypatch):
    def told(*words):
        screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            assert main(["doctor", str(tmp_path / "é"), *words]) == 0
        return screen.buffer.getvalue().decode("ascii")

    assert "+ Python" in told() and "\\xe9" in told()
    names = [finding["name"] for finding in json.loads(told("--json"))["findings"]]
    assert f"folder {tmp_path}/é" in names


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        ("bench read --count 9 a.arrow b.h5", "bench read a.arrow b.h5 --count 9"),
        ("bench read a.arrow --count 9 b.h5", "bench read a.arrow b.h5 --count 9"),
        ("doctor a.arrow --json b.h5", "doctor a.arrow b.h5 --json"),
        ("bench --count 9 read x.arrow --json", "bench read x.arrow --count 9 --json"),
        ("bench --json --cache cold read", "bench read --json --cache cold"),
        ("ring --where /tmp status name", "ring status name --where /tmp"),
    ],
)
def test_paths_and_flags_may_stand_anywhere_flags_also_before_the_topic(words, usual):
    found, expected = (vars(parse(line.split())) for line in (words, usual))
    assert found | {"parser": None} == expected | {"parser": None}


def test_ctrl_c_during_a_real_run_leaves_nothing(tmp_path):
    out = tmp_path / "made"
    command = [sys.executable, "-m", "smallfiles", "synth", str(out), "--count", "5000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(lambda: any(tmp_path.glob(".made.packing/partial-*/made/*/*.jpg")))
        os.killpg(process.pid, signal.SIGINT)
        error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "interrupted; nothing unfinished was published" in error and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


# --- options of formats -----------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    rows: int = 16
    fast: bool = True
    layout: Literal["blob", "vlen"] = "blob"
    most: int | None = None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], Options()),
        (["rows=3"], Options(rows=3)),
        (["fast=false"], Options(fast=False)),
        (["layout=vlen", "most=7"], Options(layout="vlen", most=7)),
        (["most=none"], Options()),
    ],
)
def test_options_are_typed_by_their_fields(words, expected):
    assert parse_options(Options, words) == expected


@pytest.mark.parametrize(
    "word", ["rows=many", "rows=-3", "fast=perhaps", "layout=tape", "rows", "=3", "other=1", "most=x"]
)
def test_options_that_make_no_sense_are_refused_by_name(word):
    with pytest.raises(UsageError, match=re.escape(word.partition("=")[0] or word)):
        parse_options(Options, [word])


# --- the verbs --------------------------------------------------------------------------------


def as_json(capsys, *words, code=0):
    assert main([*map(str, words), "--json"]) == code
    record = json.loads(capsys.readouterr().out)
    assert {"samples", "bytes", "seconds"} <= set(record)
    return record


def test_the_road_from_folder_to_verified_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = as_json(capsys, "synth", "data", "--count", "12", "--classes", "3")
    assert made["samples"] == 12 and len(made["classes"]) == 3
    manifest = as_json(capsys, "manifest", "data", "-o", "m.json")
    assert (manifest["samples"], manifest["classes"], manifest["kind"]) == (12, 3, "folder")
    planned = as_json(capsys, "pack", "m.json", "x.tars", "--dry-run")
    assert planned["samples"] == 12 and not Path("x.tars").exists()
    assert planned["inodes_saved"] == planned["inodes_now"] - planned["inodes_then"]
    report = as_json(capsys, "pack", "m.json", "x.tars", "--verify", "full")
    assert (report["samples"], report["verified"]) == (12, 12)
    found = as_json(capsys, "verify", "x.tars", "--against", "m.json")
    assert found["intact"]
    assert found["against"] == 12
    inside = as_json(capsys, "inspect", "x.tars")
    assert inside["classes"] == made["classes"]
    assert inside["bytes"] == sum(path.stat().st_size for path in Path("data").rglob("*.jpg"))
    assert sum(column["samples"] for column in inside["size_histogram"]) == 12
    for column in inside["size_histogram"]:
        assert column["from_bytes"] < column["below_bytes"]


def test_damage_is_named_and_exits_with_1(packed, data, capsys):
    shard = next(file for file in sorted(packed.iterdir()) if file.suffix == ".tar")
    with shard.open("r+b") as file:
        content = file.read()
        file.seek(content.index(jpeg(7)) + 20)
        file.write(b"!")
    assert main(["verify", str(packed), "--against", str(data)]) == 1
    text = capsys.readouterr().out
    assert "7.jpg" in text
    assert "NOT intact" in text
    assert not as_json(capsys, "verify", packed, code=1)["intact"]


def test_a_finished_output_is_never_overwritten_and_refused_before_the_source_is_walked(packed, data, capsys):
    for words in ([data, packed], [data / "not there", packed], [data, packed, "--dry-run"]):
        assert main(["pack", *map(str, words)]) == 1
        assert f"{packed.name} exists already" in capsys.readouterr().err
    assert main(["verify", str(packed)]) == 0
    assert "12" in capsys.readouterr().out


def test_a_flat_manifest_is_a_plain_object_and_none_is_ever_overwritten(data, tmp_path):
    for code in (0, 1):
        assert main(["manifest", str(data), "-o", str(tmp_path / "m.json"), "--flat"]) == code
        assert json.loads((tmp_path / "m.json").read_text())["class1/1.jpg"] == 1
        (data / "class1" / "1.jpg").unlink(missing_ok=True)


def test_pack_ends_with_the_command_that_shows_samples_of_a_whole_set(data, tmp_path, capsys):
    out = tmp_path / "x y.tars"
    assert main(["pack", str(data), str(out)]) == 0
    assert capsys.readouterr().out.endswith(f"look at it: smallfiles inspect '{out}' --picture sheet.html\n")
    assert main(["pack", str(data), str(tmp_path / "z.tars"), "--part", "1/2"]) == 0
    out = capsys.readouterr().out
    assert "look at it" not in out and "classes lie one after" not in out  # the merge says it, once


def test_inspect_says_from_what_a_file_was_packed(packed, capsys):
    assert main(["inspect", str(packed)]) == 0
    told = capsys.readouterr().out
    assert "12" in told and re.search(r"^packed from +data, train, sha256:", told, re.MULTILINE)
    assert re.search(r"^packed by +smallfiles ", told, re.MULTILINE) and '"schema"' not in told


def test_skipped_files_are_told_and_are_no_damage_to_verify(data, capsys):
    (data / "class0" / "0.jpg").write_bytes(b"")
    out = data.parent / "x.arrow"
    assert main(["pack", str(data), str(out)]) == 1
    assert "0.jpg" in capsys.readouterr().err
    assert main(["pack", str(data), str(out), "--on-error", "skip"]) == 0
    assert "1 sample left out" in capsys.readouterr().out
    assert main(["verify", str(out), "--against", str(data)]) == 0
    told = capsys.readouterr().out
    assert "class0/0.jpg" in told and "x.arrow.faults.json" in told
    (data / "class1" / "new.jpg").write_bytes((data / "class1" / "1.jpg").read_bytes())
    assert main(["verify", str(out), "--against", str(data)]) == 1
    assert "differs: 1 sample of the source missing: class1/new.jpg" in capsys.readouterr().out


def test_samples_that_are_no_images_are_named_by_their_suffix(data, capsys):
    for n, path in enumerate(sorted(data.rglob("*.jpg"))):
        path.unlink()
        np.save(path.with_suffix(".npy"), np.arange(n))
        if not n:
            path.with_suffix(".npy").rename(path.with_suffix(".NPZ"))
    out = data.parent / "x.arrow"
    assert main(["pack", str(data), str(data.parent / "most.arrow")]) == 0
    notes = capsys.readouterr().err
    assert "no images: .npy files taken as samples" in notes and "left out: 1 .NPZ file" in notes
    suffixes = ["--suffix", "npy", "--suffix", ".npz"]
    assert main(["pack", str(data), str(out), "--check", "none", *suffixes]) == 0
    assert main(["verify", str(out), "--against", str(data), *suffixes]) == 0


def test_bench_read_keeps_records_and_refuses_at_once_what_cannot_be_saved(
    packed, capsys, tmp_path, monkeypatch
):
    words = ["bench", "read", packed, "--repeats", "2", "--cache", "warm", "--save", tmp_path / "r.json"]
    assert len(as_json(capsys, *words)["records"]) == 2
    assert len(json.loads((tmp_path / "r.json").read_text())["records"]) == 2
    monkeypatch.setattr("smallfiles.measure.bench_reads", None)
    assert main([*map(str, words)]) == 1
    assert "r.json exists" in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda *_: False)
    assert main(["bench", "read", str(packed), "--save", str(tmp_path / "new" / "r.json")]) == 1
    assert "new is not writable" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a/1.npy", "b/2.npy", "b/notes.txt"], ["--suffix", "npy"]),
        (["a/1.npy", "b/2.jpg", "b/3.dat"], ["--suffix", ".npy", "--suffix", ".jpg"]),
        (["1.jpg", "2.jpg"], ["--unlabelled"]),
        (["train/a/1.jpg", "val/a/2.jpg", "val/b/3.jpg"], ["--split", "val"]),
        (["train/a/1.npy", "val/a/2.npy"], ["--split", "val", "--suffix", ".npy", "--unlabelled"]),
    ],
)
def test_verify_reads_the_source_as_it_was_read_when_it_was_packed(names, words, tmp_path, capsys):
    for number, name in enumerate(names):
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(number))
    tree = str(tmp_path / "tree")
    for out in ("x.arrow", "x.tars", "x.files"):
        assert main(["pack", tree, str(tmp_path / out), "--check", "none", *words]) == 0
        assert main(["verify", str(tmp_path / out), "--against", tree]) == 0, capsys.readouterr()
    assert main(["verify", str(tmp_path / out), "--against", tree, "--suffix", ".xyz"]) == 1
    assert main(["verify", str(tmp_path / "x.arrow"), "--against", str(tmp_path / "x.files")]) == 0


def test_advise_and_demo_take_samples_that_are_no_images(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "a").mkdir(parents=True)
    for number in range(3):
        np.save(tmp_path / "data" / "a" / f"{number}.npy", np.arange(number))
    assert main(["advise", "data", "--suffix", ".npy"]) == 0
    assert "smallfiles pack data data.arrow --suffix .npy" in capsys.readouterr().out
    assert main(["demo", "--data", "data", "--suffix", ".npy", "--repeats", "1"]) == 0
    assert main(["demo", "--suffix", ".npy"]) == 2
    assert "--suffix is given without --data" in capsys.readouterr().err


def test_packing_says_once_what_is_odd_in_the_source(data, tmp_path, capsys):
    (data / "class0" / "notes.txt").write_text("text")
    packing.pack(sources.load(data), tmp_path / "one.arrow")
    classes, said = capsys.readouterr().err.splitlines()
    assert "from the names of folders: class0" in classes
    assert said.startswith("note: ") and "1 .txt file" in said
    assert main(["pack", str(data), str(tmp_path / "two.arrow")]) == 0
    _, again = capsys.readouterr().err.splitlines()
    assert said.endswith(again.removeprefix("note: "))
