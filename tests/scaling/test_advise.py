"""Advice follows from what was measured, can be pasted, and says what was not measured."""

import dataclasses
import io
import json
import os
import random
import re
import shlex
import socket
import string
from pathlib import Path
from time import sleep

import numpy as np
import pytest
from PIL import Image

import smallfiles.images
from smallfiles.advise import Measured, advise, costs_of, measure_folder
from smallfiles.cli import build_parser, main
from smallfiles.cli.simulate import _advised
from smallfiles.errors import SourceError
from smallfiles.formats.tar.shards import TarOptions
from smallfiles.machine.filesystems import FileSystem
from smallfiles.machine.nodelocal import NodeLocal
from smallfiles.measure.probe import METADATA, anonymous
from smallfiles.measure.record import Record, load, save
from smallfiles.scaling import TrainingPlan

GB = 10**9
IMAGENET = Measured(
    samples=1_281_167,
    sample_bytes=110_000,
    kind="lustre",
    shared=True,
    cold=True,
    alone_s=0.002,
    together_s=0.0002,
    decode_s=0.003,
    cpus=64,
    local_bytes=50 * GB,
)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(30):
        file = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (64, 80, 3), np.uint8)).save(file, "JPEG")
        path = tmp_path / "my photos" / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
    return tmp_path / "my photos"


def test_many_nodes_that_cannot_hold_a_copy_are_told_to_use_shards_of_a_fair_size():
    found = advise(IMAGENET, TrainingPlan(nodes=32, step_s=0.1), "/data/imagenet")
    assert found.way == "shards"
    assert "staged" not in found.hours
    assert any("does not fit" in reason for reason in found.reasons)
    readers = 32 * 4 * found.workers
    size = max(64 << 20, IMAGENET.samples * IMAGENET.sample_bytes // (4 * readers))
    assert found.commands[0] == f"smallfiles pack /data/imagenet imagenet.tars -O max_bytes={size}"
    assert TarOptions(max_bytes=size)


def test_a_large_file_that_would_lie_on_one_target_is_striped_first_and_reckoned_so():
    plan, fits = TrainingPlan(nodes=4), dataclasses.replace(IMAGENET, local_bytes=0)
    one, many = (advise(dataclasses.replace(fits, stripes=count), plan, "x") for count in (1, 16))
    assert one.hours == many.hours and one.way in ("packed", "shards")
    assert (one.commands[0].startswith("lfs setstripe -c 16 ")) is (one.way == "packed")
    assert not any("lfs" in command for command in many.commands)


def test_workers_beyond_those_that_decode_hide_waits_for_requests():
    found = dataclasses.replace(IMAGENET, stripes=16, local_bytes=0)
    plan = TrainingPlan(nodes=8, epochs=30, step_s=0.1)
    few, many = (advise(found, dataclasses.replace(plan, workers=count), "x") for count in (None, 6))
    assert (few.workers, many.workers) == (3, 6)
    assert many.hours["packed"] < 0.95 * few.hours["packed"]
    assert many.commands[-1].endswith("--workers 6")


def test_a_page_cache_is_memory_and_not_a_disk_of_the_node():
    plan = TrainingPlan(nodes=1, step_s=0.001)
    bare = dataclasses.replace(IMAGENET, decode_s=0.0, cpus=256)
    disk, memory = (dataclasses.replace(bare, **{name: 500 * GB}) for name in ("local_bytes", "cache_bytes"))
    hours = [advise(each, plan, "x").hours["packed"] for each in (bare, disk, memory)]
    assert hours[0] == hours[1] > 2 * hours[2]


@pytest.mark.parametrize(("alone_s", "ops"), [(0.002, 100_000), (0.004, 20_000), (0.004, 100), (0.05, 1e6)])
def test_a_worker_alone_needs_the_time_that_a_file_took(alone_s, ops):
    found = dataclasses.replace(IMAGENET, alone_s=alone_s, cpus=1, local_bytes=0)
    plan = TrainingPlan(gpus=1, step_s=0.001, metadata_ops_s=ops)
    file_s = max(alone_s, 2 / ops)  # a server that does 100 operations per second needs 20 ms for two
    expected = pytest.approx(file_s + found.decode_s, rel=0.05)
    assert advise(found, plan, "x").forecasts["files"].epoch_s / found.samples == expected


def test_a_broadcast_is_weighed_for_many_nodes_and_not_for_one():
    small = dataclasses.replace(IMAGENET, samples=10_000, alone_s=0.0001)
    found = advise(small, TrainingPlan(nodes=1, gpus=1, step_s=0.2), "flowers")
    assert found.way == "files"  # packing saves no time; see the test below
    room = dataclasses.replace(IMAGENET, local_bytes=500 * GB)
    one, many = (advise(room, TrainingPlan(nodes=nodes), "x") for nodes in (1, 256))
    assert "broadcast" not in one.hours and many.hours["broadcast"] < many.hours["staged"]
    assert many.forecasts["staged"].shared_bytes == 256 * many.forecasts["broadcast"].shared_bytes


@pytest.mark.parametrize(
    ("changed", "plan", "way"),
    [
        ({}, {}, "files"),
        ({"cold": False}, {}, "packed"),  # what is cached says nothing about the storage
        ({"cold": False, "shared": False}, {}, "files"),
        ({"files_share": 0.9}, {}, "packed"),
        ({"files_share": 0.89}, {}, "files"),
        ({}, {"nodes": 2}, "packed"),  # the load on the servers is not known
        ({}, {"nodes": 2, "metadata_ops_s": 100_000}, "files"),
        ({"alone_s": 0.02}, {"step_s": 0.02}, "packed"),  # the GPUs would wait for files
    ],
)
def test_files_are_left_as_they_are_if_they_were_measured_and_packing_saves_no_time(changed, plan, way):
    found = dataclasses.replace(IMAGENET, **{"samples": 100_000, "alone_s": 0.001, "stripes": 16} | changed)
    advice = advise(found, TrainingPlan(**{"gpus": 1, "step_s": 0.2} | plan), "flowers")
    assert advice.way == way, advice.hours
    first = advice.commands[0]
    assert first.startswith(
        "smallfiles profile -- " if way == "files" else "smallfiles pack flowers flowers.arrow"
    )


def test_advice_to_leave_files_comes_with_the_numbers_that_it_depends_on(folder, capfd):
    assert (
        main(["advise", str(folder), "--gpus", "1", "--step-ms", "2000", "--batch", "8", "--epochs", "3"])
        == 0
    )
    said = capfd.readouterr().out
    assert "Leave the 30 files as they are (no quota was found): packing them saves no time here." in said
    assert "3 epochs on 1 node read 4 files per second." in said and "smallfiles profile -- python" in said
    assert "metadata servers can do" not in said  # a local disk has none


def test_the_answer_to_pack_says_what_it_saves_and_why_files_cannot_be_advised():
    slow = dataclasses.replace(IMAGENET, samples=100_000, alone_s=0.02, stripes=16, local_bytes=0)
    fast = dataclasses.replace(slow, alone_s=0.001, cold=False)
    plan = TrainingPlan(gpus=1, step_s=0.1, epochs=2)
    said = ["\n".join(_advised(advise(each, plan, "d"), plan, each)) for each in (slow, fast)]
    assert re.search(r"Pack the files into one file: 2 epochs take .* in place of .*\.", said[0])
    assert "Pack the files into one file.\n" in said[1]  # it saves no time
    assert ["the files came from the page cache" in text for text in said] == [False, True]


def test_decoding_is_measured_in_processor_time_whatever_else_runs(folder, monkeypatch):
    monkeypatch.setattr(smallfiles.images, "RandomResizedCrop", lambda size: lambda data, rng: sleep(0.02))
    assert 0 < measure_folder(folder).decode_s < 0.01


def test_workers_are_as_many_as_decoding_needs_and_the_job_has():
    plan = TrainingPlan(gpus=4, batch=64, step_s=0.1)  # 640 samples per second and GPU, 3 ms each
    some = dataclasses.replace(IMAGENET, samples=100_000)
    assert advise(some, plan, "d").workers == 3
    few = dataclasses.replace(some, cpus=4)
    poor = advise(few, plan, "d")
    assert poor.workers == 1
    assert any("GPUs wait for decoding whatever the format" in reason for reason in poor.reasons)
    assert {each.limit for each in poor.forecasts.values()} >= {"workers"}


def test_what_one_node_cannot_measure_is_said_or_asked_for():
    many = TrainingPlan(nodes=64)
    assert any(
        "were taken to do 100,000 operations" in reason for reason in advise(IMAGENET, many, "d").reasons
    )
    known = dataclasses.replace(many, metadata_ops_s=5000.0)
    told = advise(IMAGENET, known, "d")
    assert not any("were taken to do" in reason for reason in told.reasons)
    assert told.hours["files"] > advise(IMAGENET, many, "d").hours["files"]
    local = dataclasses.replace(IMAGENET, shared=False, kind="ext4")
    assert any("of this machine alone" in reason for reason in advise(local, many, "d").reasons)


def test_a_folder_is_measured_without_writing_and_its_commands_can_be_pasted(folder, capsys):
    before = sorted(folder.rglob("*"))
    found = measure_folder(folder)
    assert (found.samples, found.cpus >= 1) == (30, True)
    assert found.sample_bytes == pytest.approx(
        np.mean([p.stat().st_size for p in folder.rglob("*.jpg")]), abs=1
    )
    assert min(found.alone_s, found.together_s, found.decode_s) > 0
    assert main(["advise", str(folder), "--nodes", "2", "--epochs", "3"]) == 0
    out = capsys.readouterr().out
    assert "30 samples of" in out
    assert "3 epochs" in out
    lines = [line.strip() for line in out.splitlines() if line.startswith("  smallfiles ")]
    for line in lines:
        words = shlex.split(line, comments=True)
        assert build_parser().parse_args(words[1:])
    assert sorted(folder.rglob("*")) == before
    assert main(["advise", str(folder), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["samples"], record["measured"]["samples"]) == (30, 30)
    assert record["advice"]["way"] in record["advice"]["forecasts"]


def test_a_table_whose_rows_have_no_file_is_measured_by_those_that_have_one(folder, capsys):
    here = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.jpg"))
    table = folder / "labels.csv"
    table.write_text("\n".join(["filename,label", "gone/a.jpg,x", *(f"{name},y" for name in here)]))
    assert measure_folder(table).samples == len(here)
    assert "gone/a.jpg" in capsys.readouterr().err


def test_a_damaged_image_is_told_and_does_not_hide_the_time_to_decode_the_others(folder, capsys):
    next(folder.rglob("*.jpg")).write_bytes(b"")
    assert measure_folder(folder).decode_s > 0
    assert "1 of 30 images cannot be decoded" in capsys.readouterr().err


def test_samples_that_are_no_images_are_not_decoded_and_no_data_is_a_sentence(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_bytes(b"no picture")
    assert measure_folder(tmp_path).decode_s == 0
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no data set"):
        measure_folder(tmp_path / "empty")
    assert main(["advise", str(tmp_path / "empty")]) == 1
    assert "Traceback" not in capsys.readouterr().err


def record(what, name, format, rate, **more):
    facts = {"seconds": 1.0, "filesystem": "lustre", "touched": "all", "set_samples": 5000}
    facts |= {"samples": 100, "bytes": 100 * 70_000, "cache": "cold", "set_bytes": 5000 * 70_000}
    return Record(what, name, format, (rate,), **facts | more)


def test_a_shared_record_gives_the_model_its_waits_and_names_nothing_of_the_machine(tmp_path, capsys):
    place = tmp_path / "of somebody"
    place.mkdir()
    assert main(["doctor", str(place), "--share", str(tmp_path / "share.json")]) == 0
    assert list(place.iterdir()) == []
    text, records = (tmp_path / "share.json").read_text(), load(tmp_path / "share.json")
    assert "somebody" not in text and str(tmp_path) not in text and socket.gethostname() not in text
    rates = {each.name: each.seconds for each in records}
    _, storage = costs_of(records)
    assert (storage.latency_s, storage.request_s) == (rates["open"], rates["4096 bytes, 1 in flight"])
    capsys.readouterr()
    assert main(["simulate", "--nodes", "4", "--records", str(tmp_path / "share.json"), "--json"]) == 0
    found = advise(IMAGENET, TrainingPlan(nodes=4), "x", records=records)
    assert found.forecasts != advise(IMAGENET, TrainingPlan(nodes=4), "x").forecasts
    assert main(["doctor", str(place), "--share", str(tmp_path / "share.json")]) == 1  # it is there already


def test_a_folder_that_is_only_read_is_measured_with_its_files(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda *question: False)
    words = ["doctor", str(tmp_path), "--share"]
    assert main([*words, str(tmp_path / "no.json")]) == 2
    assert "cannot be written to, and none of its first 100 files has 65.5 kB" in capsys.readouterr().err
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "large.bin").write_bytes(bytes(3 << 20))
    (tmp_path / "b.txt").touch()
    main([*words, str(tmp_path / "share.json")])  # which also finds that nothing can be written there
    names = [each.name for each in load(tmp_path / "share.json")]
    assert names[:2] == ["stat", "open"] and "131072 bytes, 8 in flight" in names
    assert not [name for name in names if "4194304" in name or name == "create"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b.txt", "share.json"]


def test_records_of_a_thousand_odd_machines_hold_known_words_and_numbers_only():
    draw = random.Random(0)
    letters = string.ascii_letters + string.digits + "/-_.@ äß\n"
    for _ in range(1000):
        kind, path, variable = ("".join(draw.choices(letters, k=draw.randint(5, 30))) for _ in range(3))
        kind = draw.choice([kind, f"fuse.{kind}", "lustre", "nfs4"])
        free = draw.getrandbits(40) + 1000
        disk = FileSystem(kind, False, 4096, 2 * free, free, None, None, Path("/", path))
        local = NodeLocal(Path("/", path), variable, disk, free, False)
        timed = [(METADATA, "open", 0, draw.uniform(1, 1e6))]
        (first, second) = records = anonymous(kind, timed, [local])
        assert {each.filesystem for each in records} <= {"lustre", "nfs4", "other"}
        assert first.name == "open" and second.name == "free"
        words = json.dumps([each.as_json() for each in records], ensure_ascii=False)
        assert not any(secret in words for secret in (path, variable, str(free)))
        assert re.findall(r'"(?:cpus|memory_bytes)": \d+', words)
        numbers = [abs(value) for each in records for value in (each.bytes, each.rates_per_s[0])]
        assert all(value == float(f"{value:.2g}") for value in numbers)


def test_records_give_the_model_the_costs_that_were_measured(tmp_path, capsys):
    times = {"decode_s": 0.064, "augment_s": 0.032, "collate_s": 0.032, "read_s": 9.0, "transfer_s": 9.0}
    reads = [
        record("random reads", "plain files", "files", 1 / 0.0051),
        record("random reads", "arrow", "arrow", 1 / 0.0011),
        record("random reads", "tar", "tar", 1 / 0.0031),
        record("random reads", "arrow", "arrow", 1e5, cache="warm"),
        record("sequential reads", "arrow", "arrow", 1e6),
    ]
    save(reads, tmp_path / "read.json")
    save(
        [record("where time goes", "arrow, JPEG", "arrow", 900.0, batch=64, extra=times)],
        tmp_path / "load.json",
    )
    work, storage = costs_of([*load(tmp_path / "read.json"), *load(tmp_path / "load.json")])
    assert (work.samples, work.sample_bytes, work.batch) == (5000, 70_000, 64)
    assert work.decode_s == pytest.approx(0.002)
    assert storage.latency_s == pytest.approx(0.002)  # 4 ms for an open and a close
    assert storage.request_s == pytest.approx(0.001)  # 70 kB at 700 MB/s take 0.1 ms
    words = ["simulate", "--json", "--nodes", "1", "--way", "files", "--samples", "640"]
    assert main([*words, "--records", str(tmp_path / "read.json"), str(tmp_path / "load.json")]) == 0
    forecast = json.loads(capsys.readouterr().out)
    more = "--sample-bytes 70000 --decode-ms 2 --latency-ms 2 --request-ms 1"
    assert main([*words, *more.split()]) == 0
    by_hand = json.loads(capsys.readouterr().out)
    seconds = [each["forecasts"][0]["epoch_s"] for each in (forecast, by_hand)]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-6)


def test_records_that_tell_no_costs_are_refused_in_a_sentence(tmp_path, capsys):
    save([record("packing", "arrow", "arrow", 9.0)], tmp_path / "pack.json")
    assert main(["simulate", "--records", str(tmp_path / "pack.json")]) == 2
    assert "no random reads" in capsys.readouterr().err
