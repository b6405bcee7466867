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
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from smallfiles import formats
from smallfiles.cli import build_parser, main, parse
from smallfiles.cli.arguments import parse_options
from smallfiles.cli.failures import guarded, summary
from smallfiles.errors import UsageError

TOPICS = {"bench": ("read", "pack", "load"), "ring": ("fill", "status", "clean")}


def smallfiles(*words, **more):
    command = [sys.executable, "-m", "smallfiles", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


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


# --- help -------------------------------------------------------------------------------------


def test_every_verb_is_in_the_help_and_has_examples(capsys):
    text = help_of(capsys)
    assert len(leaves()) > 20 and set(TOPICS) < set(verbs())
    for verb, parser in verbs().items():
        assert re.search(rf"^ +{verb}\s", text, re.MULTILINE)
        assert parser.epilog.startswith("examples:\n  smallfiles ") and len(parser.description.split()) > 20


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "load", "x.arrow", "--peers"],
        ["bench", "pack", "data", "--order", "random"],
        ["bench", "load", "x.arrow", "--cache", "cold"],
        ["bench", "read", "--workers", "2"],
        ["ring", "status", "train", "--slots", "3"],
        ["ring", "clean", "--epochs", "2"],
    ],
)
def test_a_flag_that_a_topic_would_ignore_is_refused_with_its_own_usage(words, capsys):
    assert main(words) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"usage: smallfiles {words[0]} {words[1]} ")
    assert "unrecognized arguments: --" in told


@pytest.mark.parametrize("verb", TOPICS)
def test_a_verb_without_its_topic_says_which_there_are(verb, capsys):
    assert main([verb]) == 2
    told = capsys.readouterr().err
    assert all(re.search(rf"^ +{topic} ", told, re.MULTILINE) for topic in TOPICS[verb])


def verbs():
    """The parser of each verb."""
    (below,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    return below.choices


def leaves(parser=None):
    """The parsers of all verbs and topics."""
    parser = parser or build_parser()
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return [parser] + [leaf for a in below for each in a.choices.values() for leaf in leaves(each)]


def test_no_flag_is_without_help():
    for parser in leaves():
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (parser.prog, action)


def examples():
    text = "\n".join(parser.epilog or "" for parser in leaves()) + "\n" + build_parser().description
    return re.findall(r"^ +smallfiles (.*?)(?:   +.*)?$", text, re.MULTILINE)


@pytest.mark.parametrize("line", examples())
def test_every_example_in_the_help_parses(line):
    parse(shlex.split(line, comments=True))


def test_the_help_names_every_format_and_suffix(capsys):
    text = " ".join(help_of(capsys, "pack").split())
    assert all(name in text for name in formats.names())
    assert ", ".join(formats.names()) in text


def test_help_answers_at_once_without_heavy_imports():
    began = time.perf_counter()
    code = "import sys; from smallfiles.cli import main; main(['pack', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert time.perf_counter() - began < 3  # 0.06 s on a quiet machine
    loaded = set(done.stdout.splitlines()[-1].split())
    heavy = {"torch", "torchvision", "numpy", "pyarrow", "h5py", "scipy", "matplotlib", "PIL", "IPython"}
    assert not loaded & heavy and "webdataset" not in loaded


def test_version(capsys):
    assert main(["--version"]) == 0
    assert re.match(r"smallfiles \d+\.\d+", capsys.readouterr().out)


# --- exit codes and sentences -----------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["pack", "data"],
        ["pack", "data", "x.arrow", "--verify", "maybe"],
        ["pack", "data", "x.arrow", "--part", "1/2", "--merge"],
        ["pack", "data", "x.arrow", "--part", "3/2"],
        ["pack", "data", "x.arrow", "-O", "no_such=1"],
        ["pack", "data", "x.unknown"],
        ["pack", "data", "x.arrow", "--in-flight", "0"],
        ["bench", "read", "--repeats", "0"],
        ["demo", "--count", "0"],
        ["demo", "--seed", "-1"],
        ["bench", "read", "x.arrow", "--seed", "-1"],
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


def test_an_unknown_option_lists_those_there_are(capsys):
    assert main(["pack", "data", "x.tars", "-O", "no_such=1"]) == 2
    error = capsys.readouterr().err
    assert "no_such" in error
    assert "max" in error


def raising(error):
    def run(arguments):
        raise error

    return run


def outcome(error, capsys, **flags):
    code = guarded(raising(error), argparse.Namespace(debug=False, **flags))
    return code, capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EIO, errno.ENOENT, 99])
def test_an_error_of_the_system_is_told_with_its_path(number, capsys):
    code, text = outcome(OSError(number, os.strerror(number), "/data/x.jpg"), capsys)
    assert code == 1
    assert text.startswith(f"error: /data/x.jpg: {os.strerror(number)}; expected ")
    assert text.count("\n") == 1


def test_a_full_disk_speaks_of_inodes_too():
    assert "df -i" in summary(OSError(errno.ENOSPC, "full", "/x"))


def test_a_bug_is_called_one_with_type_and_place(capsys):
    code, text = outcome(ZeroDivisionError("by zero"), capsys)
    assert code == 1
    assert "bug in the package: ZeroDivisionError (by zero) at " in text
    assert "--debug" in text
    assert "Traceback" not in text


def test_debug_shows_the_traceback(capsys, monkeypatch):
    guarded(raising(ZeroDivisionError()), argparse.Namespace(debug=True))
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("SMALLFILES_DEBUG", "1")
    assert "Traceback" in outcome(ZeroDivisionError(), capsys)[1]


def test_ctrl_c_is_one_sentence_and_130(capsys):
    code, text = outcome(KeyboardInterrupt(), capsys)
    assert code == 130
    assert text.count("\n") == 1


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
    "words",
    [
        ["bench", "read", "--count", "9", "a.arrow", "b.h5"],
        ["bench", "read", "a.arrow", "--count", "9", "b.h5"],
        ["doctor", "a.arrow", "--json", "b.h5"],
    ],
)
def test_paths_may_stand_anywhere_among_the_flags(words):
    assert parse(words).paths == [Path("a.arrow"), Path("b.h5")]


@pytest.mark.parametrize(
    ("words", "behind"),
    [
        ("bench --count 9 read x.arrow --json", "bench read --count 9 x.arrow --json"),
        ("bench --json --cache cold read", "bench read --json --cache cold"),
        ("ring --where /tmp status name", "ring status --where /tmp name"),
    ],
)
def test_flags_may_stand_before_the_topic(words, behind):
    def found(line):
        return {
            key: value for key, value in vars(parse(line.split())).items() if key not in ("parser", "run")
        }

    assert found(words) == found(behind)


def test_an_unknown_flag_is_refused_and_not_taken_for_a_path(capsys):
    assert main(["bench", "read", "a.arrow", "--fast"]) == 2
    assert main(["inspect", "a.arrow", "b.arrow"]) == 2
    assert capsys.readouterr().err.count("unrecognized arguments") == 2


def test_records_that_cannot_be_saved_are_refused_before_measuring(packed, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setattr("smallfiles.measure.bench_reads", None)
    assert main(["bench", "read", str(packed), "--save", str(tmp_path / "new" / "r.json")]) == 1
    assert "new is not writable" in capsys.readouterr().err


def test_ctrl_c_during_a_real_run_leaves_nothing(tmp_path):
    out = tmp_path / "made"
    command = [sys.executable, "-m", "smallfiles", "synth", str(out), "--count", "5000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        time.sleep(3)
        os.killpg(process.pid, signal.SIGINT)
        error = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "Traceback" not in error
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


def test_the_road_from_folder_to_verified_file(data, capsys, monkeypatch):
    monkeypatch.chdir(data.parent)
    manifest = as_json(capsys, "manifest", "data", "-o", "m.json")
    assert (manifest["samples"], manifest["classes"], manifest["kind"]) == (12, 3, "folder")
    report = as_json(capsys, "pack", "m.json", "x.tars", "--verify", "full")
    assert (report["samples"], report["verified"]) == (12, 12)
    found = as_json(capsys, "verify", "x.tars", "--against", "m.json")
    assert found["intact"]
    assert found["against"] == 12
    inside = as_json(capsys, "inspect", "x.tars")
    assert inside["classes"] == ["class0", "class1", "class2"]
    assert inside["bytes"] == sum(len(jpeg(n)) for n in range(12))
    assert sum(column["samples"] for column in inside["size_histogram"]) == 12
    for column in inside["size_histogram"]:
        assert column["from_bytes"] < column["below_bytes"]


@pytest.mark.parametrize("verb", ["verify", "inspect"])
def test_text_output_names_what_was_looked_at(verb, packed, capsys):
    assert main([verb, str(packed)]) == 0
    assert "12" in capsys.readouterr().out


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


def test_a_dry_run_writes_nothing(data, capsys):
    planned = as_json(capsys, "pack", data, data.parent / "x.tars", "--dry-run")
    assert planned["samples"] == 12
    assert planned["inodes_saved"] == planned["inodes_now"] - planned["inodes_then"]
    assert [path.name for path in data.parent.iterdir()] == ["data"]


def test_a_finished_output_is_never_overwritten(packed, data, capsys):
    for more in ([], ["--dry-run"]):
        assert main(["pack", str(data), str(packed), *more]) == 1
        assert "exists already" in capsys.readouterr().err
    assert main(["verify", str(packed)]) == 0


def test_a_manifest_is_never_overwritten(data, capsys, tmp_path):
    (tmp_path / "m.json").write_text("mine")
    assert main(["manifest", str(data), "-o", str(tmp_path / "m.json")]) == 1
    assert (tmp_path / "m.json").read_text() == "mine"


def test_a_flat_manifest_is_a_plain_object(data, capsys, tmp_path):
    assert main(["manifest", str(data), "-o", str(tmp_path / "m.json"), "--flat"]) == 0
    assert json.loads((tmp_path / "m.json").read_text())["class1/1.jpg"] == 1


def test_skipped_files_are_told(data, capsys):
    (data / "class0" / "0.jpg").write_bytes(b"")
    out = data.parent / "x.tars"
    assert main(["pack", str(data), str(out)]) == 1
    assert "0.jpg" in capsys.readouterr().err
    assert main(["pack", str(data), str(out), "--on-error", "skip"]) == 0
    assert "1 sample left out" in capsys.readouterr().out


def test_inspect_says_from_what_a_file_was_packed(packed, capsys):
    assert main(["inspect", str(packed)]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^packed from +data, train, sha256:", told, re.MULTILINE)
    assert re.search(r"^packed by +smallfiles ", told, re.MULTILINE) and '"schema"' not in told


def test_no_verb_at_all_is_answered_with_the_list_of_verbs(capsys):
    assert main([]) == 2
    told = capsys.readouterr()
    assert "usual way through the verbs" in told.err and not told.out


def test_what_was_left_out_on_purpose_is_no_damage_to_verify(data, capsys):
    (data / "class0" / "0.jpg").write_bytes(b"")
    out = data.parent / "x.arrow"
    main(["pack", str(data), str(out), "--on-error", "skip"])
    assert main(["verify", str(out), "--against", str(data)]) == 0
    told = capsys.readouterr().out
    assert "class0/0.jpg" in told and "x.arrow.faults.json" in told
    (data / "class1" / "new.jpg").write_bytes((data / "class1" / "1.jpg").read_bytes())
    assert main(["verify", str(out), "--against", str(data)]) == 1
    assert "differs: 1 sample of the source missing: class1/new.jpg" in capsys.readouterr().out


def test_an_output_that_is_there_is_refused_before_its_source_is_walked(data, capsys):
    out = data.parent / "x.arrow"
    out.write_bytes(b"mine")
    assert main(["pack", str(data / "not there"), str(out)]) == 1
    assert "x.arrow exists already" in capsys.readouterr().err


def test_samples_that_are_no_images_are_named_by_their_suffix(data, capsys):
    for n, path in enumerate(sorted(data.rglob("*.jpg"))):
        path.rename(path.with_suffix(f".{'npy' if n else 'NPZ'}"))
    out = data.parent / "x.arrow"
    assert main(["pack", str(data), str(out)]) == 1
    assert "--suffix" in capsys.readouterr().err
    suffixes = ["--suffix", "npy", "--suffix", ".npz"]
    assert main(["pack", str(data), str(out), "--check", "none", *suffixes]) == 0
    assert main(["verify", str(out), "--against", str(data), *suffixes]) == 0


def test_synth_makes_what_it_says(capsys, tmp_path):
    made = as_json(capsys, "synth", tmp_path / "s", "--count", "6", "--classes", "2")
    assert made["samples"] == 6
    assert len(made["classes"]) == 2
    assert as_json(capsys, "manifest", tmp_path / "s", "-o", tmp_path / "m.json")["samples"] == 6


def test_bench_read_keeps_records_and_refuses_to_overwrite_them(packed, capsys, tmp_path):
    words = ["bench", "read", packed, "--repeats", "2", "--cache", "warm", "--save", tmp_path / "r.json"]
    assert len(as_json(capsys, *words)["records"]) == 2
    assert len(json.loads((tmp_path / "r.json").read_text())["records"]) == 2
    assert main([*map(str, words)]) == 1
    assert "r.json exists" in capsys.readouterr().err


def test_the_module_runs_as_a_program(tmp_path):
    done = smallfiles("inspect", tmp_path / "no.tars")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert smallfiles("--help").returncode == 0


def test_what_most_runs_of_pack_set_is_shown_before_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "--help"]) == 0
    shown = capsys.readouterr().out
    common, rare = (
        ("--dry-run", "--shuffle", "--resize", "--part"),
        ("--in-flight", "--source", "--no-digest"),
    )
    assert max(shown.index(flag) for flag in common) < min(shown.index(flag) for flag in rare)
