"""Push, pull and ls: bytes, kills, damage, hostile names, and two at once."""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import files_of, new_place
from programs import wait_for
from proxy import SLOW_DOWN

from smallfiles import formats
from smallfiles.cli import main
from smallfiles.errors import (
    BusyError,
    DamagedFileError,
    FormatError,
    OutputExistsError,
    SmallfilesError,
    SourceError,
    UsageError,
)
from smallfiles.objectstore import (
    NoObjectError,
    Store,
    StoreUrl,
    TransferConfig,
    ls,
    pull,
    push,
    streaming,
)
from smallfiles.objectstore.catalog import of_output
from smallfiles.pack import annotate


@pytest.fixture
def here(server, place, as_user):
    """A place on a server that the environment names."""
    as_user(server)
    return place


@pytest.fixture
def far_place(line, servers, as_user):
    """A place behind the bad line, which the environment names."""
    as_user(servers("rclone"), line.url)
    return new_place()


# ---- round trips


@pytest.mark.parametrize(
    ("server", "suffix"),
    [
        *(("rclone", suffix) for suffix in (".arrow", ".h5", ".tar", ".tars")),
        *(("seaweedfs", suffix) for suffix in (".tars", ".sqfs", ".lmdb")),
    ],
    indirect=["server"],
)
def test_what_is_pushed_and_pulled_has_the_same_bytes(here, packed, tmp_path, suffix, small_parts):
    out, copy = packed(suffix), tmp_path / f"copy{suffix}"
    moved = push(out, here)
    assert (moved.samples, moved.kept_bytes) == (30, 0)
    pulled = pull(here, copy)
    assert files_of(copy) == files_of(out)
    assert (pulled.bytes, pulled.samples, pulled.kept_bytes) == (moved.bytes, 30, 0)
    assert len(formats.open(copy)) == 30
    listed = ls(here)
    assert listed.note == "" and listed.catalog.samples == 30
    assert listed.catalog.set_digest.startswith("sha256:")


@pytest.mark.parametrize("server", ["rclone"], indirect=True)
@pytest.mark.parametrize("suffix", [".arrow", ".tars"])
def test_fields_that_were_added_are_pushed_pulled_and_read_from_the_store(here, packed, tmp_path, suffix):
    out = tmp_path / f"set{suffix}"
    source = packed(suffix, 500)
    (shutil.copytree if source.is_dir() else shutil.copy)(source, out)
    table = tmp_path / "new.csv"
    keys = formats.open(out).keys().to_pylist()
    table.write_text("file,place\n" + "".join(f"{key},{at}\n" for at, key in enumerate(keys)))
    annotate(out, table, "file")
    out.with_name(f"{out.name}.faults.json").write_text('{"skipped": []}')  # beside a folder too
    push(out, here)
    pull(here, tmp_path / f"copy{suffix}")
    copied = {path.name for path in tmp_path.glob("copy*")}
    assert {f"copy{suffix}.new.fields.arrow", f"copy{suffix}.new.fields.arrow.digest.json"} <= copied
    assert f"copy{suffix}.faults.json" in copied
    assert formats.open(tmp_path / f"copy{suffix}").table(["place"])["place"].to_pylist() == [*range(30)]
    if suffix == ".tars":
        with streaming.open(here, where=tmp_path) as reader:
            assert reader.table(["place"])["place"].to_pylist() == [*range(30)]


def test_a_second_push_sends_nothing(far_place, line, packed):
    push(packed(".tars"), far_place)
    line.seen.clear()
    moved = push(packed(".tars"), far_place)
    assert moved.kept_bytes == moved.bytes
    assert len(line.asked()) == 2  # the manifest, one listing


def whole(store, path):
    store.put(path.name, path.read_bytes())


def in_parts_of_another_size(store, path):
    upload, data, half = store.begin(path.name), path.read_bytes(), 6 << 20
    etags = [
        store.put_part(path.name, upload, n, part) for n, part in enumerate((data[:half], data[half:]), 1)
    ]
    store.complete(path.name, upload, etags)


def begun_with_other_bytes(store, path):
    store.put_part(path.name, store.begin(path.name), 1, b"of another data set")


@pytest.mark.parametrize("copied", [whole, in_parts_of_another_size, begun_with_other_bytes])
def test_of_what_another_tool_copied_there_only_the_right_bytes_are_kept(here, packed, tmp_path, copied):
    store, out = Store(StoreUrl.parse(here)), packed(".arrow")
    copied(store, out)
    moved = push(out, here)
    assert moved.kept_bytes == (0 if copied == begun_with_other_bytes else moved.bytes)
    pull(here, tmp_path / "copy.arrow")
    assert files_of(tmp_path / "copy.arrow") == files_of(out)


# ---- half an upload


def _push(out, url):
    os.setsid()
    push(out, url, config=TransferConfig(workers=3))


def killed_push(out, url, ready_to_kill):
    """Run a push in a child; whether it was killed before it ended."""
    child = multiprocessing.get_context("fork").Process(target=_push, args=(out, url))
    child.start()
    while child.is_alive() and not ready_to_kill():
        time.sleep(0.002)
    killed = child.is_alive()
    if killed:
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    return killed


def test_a_push_that_is_killed_at_any_request_is_not_whole_and_goes_on(
    bad_line, server, as_user, packed, tmp_path
):
    as_user(server, bad_line.url)
    out = packed(".tars", 30_000)
    push(out, new_place())
    requests = len(bad_line.asked())
    for kill in range(server.name == "rclone", 8, 2):  # eight in all
        place, copy = new_place(), tmp_path / f"{kill}.tars"
        bad_line.seen.clear()
        bad_line.latency_s = 0.01
        assert killed_push(out, place, lambda n=requests * (kill + 0.5) // 8: len(bad_line.seen) >= n)
        bad_line.latency_s = 0
        listed = ls(place)
        if "smallfiles.json" not in {entry.name for entry in listed.entries}:
            assert listed.note and listed.catalog is None
            with pytest.raises(NoObjectError, match=r"no data set is complete there.*smallfiles ls"):
                pull(place, copy)
        push(out, place)
        pull(place, copy)
        assert files_of(copy) == files_of(out)
        assert len(ls(place).entries) == len(ls(place).catalog.items) + 1


def test_the_parts_of_an_object_that_were_sent_are_not_sent_again(
    bad_line, server, place, as_user, packed, tmp_path, small_parts
):
    as_user(server, bad_line.url)
    out = packed(".arrow")
    bad_line.latency_s = 0.05
    before = threading.Event()
    bad_line.before = lambda method, target: "partNumber=3" in target and before.wait(5)
    assert killed_push(out, place, lambda: len(bad_line.asked("partNumber")) == 3)
    wait_for(lambda: len(server.store(place).begun("set.arrow")[1]) == 2, 10)
    before.set()
    bad_line.latency_s, bad_line.before = 0, lambda method, target: None
    bad_line.seen.clear()
    moved = push(out, place)
    assert moved.kept_bytes >= 8 << 20 and len(bad_line.asked("PUT .*partNumber")) <= 2
    pull(place, tmp_path / "copy.arrow")
    assert files_of(tmp_path / "copy.arrow") == files_of(out)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_push_that_is_killed_1000_times_loses_nothing(
    bad_line, server, as_user, packed, tmp_path, small_parts
):
    as_user(server, bad_line.url)
    number, kills, place = random.Random(3), 0, new_place()
    out = packed(".arrow", 700_000)
    while kills < 500:  # on each of two servers
        until = time.monotonic() + number.random() * 0.6
        if killed_push(out, place, lambda end=until: time.monotonic() > end):
            kills += 1
            assert ls(place).note or ls(place).catalog is not None
        else:
            copy = tmp_path / f"{kills}.arrow"
            pull(place, copy)
            assert files_of(copy) == files_of(out)
            copy.unlink()
            place = new_place()


def test_a_pull_that_was_interrupted_goes_on(far_place, line, packed, tmp_path, small_parts):
    out, copy = packed(".tars"), tmp_path / "copy.tars"
    push(out, far_place)
    line.only, line.refuse = r"GET .*000002\.tar$", [(403, "AccessDenied")]
    with pytest.raises(UsageError, match="refused the keys"):
        pull(far_place, copy, config=TransferConfig(workers=1))
    assert not copy.exists()
    line.seen.clear()
    moved = pull(far_place, copy)
    assert moved.kept_bytes > 10_000_000 and not line.asked(r"000000\.tar$")
    assert files_of(copy) == files_of(out)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.tars"]


def test_what_an_earlier_pull_left_damaged_is_fetched_again(far_place, line, packed, tmp_path):
    out, copy = packed(".arrow"), tmp_path / "copy.arrow"
    push(out, far_place)
    left = tmp_path / ".copy.arrow.packing" / "data"
    left.mkdir(parents=True)
    (left / "copy.arrow").write_bytes(out.read_bytes()[:-9])
    (left / "stranger").write_bytes(b"x")
    pull(far_place, copy)
    assert files_of(copy) == files_of(out)
    assert not (tmp_path / "stranger").exists()


# ---- faults of the line and of the store


def test_over_a_line_with_every_fault_the_bytes_arrive(far_place, line, packed, tmp_path, small_parts):
    out, copy = packed(".tars"), tmp_path / "copy.tars"
    line.latency_s, line.refuse = 0.005, [SLOW_DOWN, (500, "InternalError")] * 3
    push(out, far_place)
    line.refuse, line.cut_after, line.cuts = [SLOW_DOWN] * 5, 3_000_000, 6
    line.shorter_by, line.shorts, line.only = 1000, 4, r"\.tar$"
    pull(far_place, copy)
    assert files_of(copy) == files_of(out)


def test_damage_on_the_way_down_is_read_again_and_damage_in_the_store_is_named(
    far_place, line, packed, tmp_path
):
    out, copy = packed(".tars"), tmp_path / "copy.tars"
    push(out, far_place)
    line.only, line.flip = r"000001\.tar$", 4_500_000
    with pytest.raises(DamagedFileError, match=r"000001\.tar: block 1 of 2 is not what was packed"):
        pull(far_place, copy)
    assert not copy.exists()
    line.flip = None
    pull(far_place, copy)
    store = Store(StoreUrl.parse(far_place))
    name = next(path.name for path in out.glob("*000003.tar"))
    store.put(name, (out / name).read_bytes()[:-1] + b"!")
    with pytest.raises(DamagedFileError, match=r"000003\.tar: block \d"):
        pull(far_place, tmp_path / "other.tars")


def test_a_file_that_is_damaged_before_it_is_sent_is_named_and_nothing_is_published(here, packed, tmp_path):
    copy = tmp_path / "set.arrow"
    for suffix, data in files_of(packed(".arrow")).items():
        (tmp_path / f"set.arrow{suffix}").write_bytes(data)
    with copy.open("r+b") as file:
        file.seek(9_000_000)
        file.write(b"damage")
    with pytest.raises(DamagedFileError, match=r"set\.arrow is not what was packed: block"):
        push(copy, here)
    assert ls(here).catalog is None


@pytest.mark.parametrize("change", ["missing", "shorter", "other bytes"])
@pytest.mark.parametrize("suffix", [".tars", ".arrow"])
def test_ls_names_what_is_not_as_it_was_sent_and_a_push_sends_only_what_is_missing(
    here, packed, suffix, change, small_parts
):
    push(packed(suffix), here)
    store = Store(StoreUrl.parse(here))
    entry = max(store.entries(), key=lambda entry: entry.bytes)
    if change == "missing":
        store.delete(entry.name)
    else:
        store.put(entry.name, b"x" if change == "shorter" else bytes(entry.bytes))
    assert ls(here).note == f"missing or not what was sent: {entry.name}"
    if change == "missing":
        moved = push(packed(suffix), here)
        assert moved.bytes - moved.kept_bytes == entry.bytes and ls(here).note == ""
    else:
        with pytest.raises(OutputExistsError, match=f"other objects of these names: {entry.name}"):
            push(packed(suffix), here)


def test_a_manifest_that_the_server_lost_is_noticed(far_place, line, packed):
    line.only, line.refuse = r"PUT .*smallfiles\.json(\?|$)", [(200, "", {}, b"")]
    with pytest.raises(SourceError, match=r"smallfiles\.json was sent, and http.* does not have it"):
        push(packed(".tars"), far_place)
    assert push(packed(".tars"), far_place).kept_bytes > 0 and ls(far_place).note == ""


# ---- others


def test_another_data_set_is_refused_and_not_overwritten(here, packed):
    push(packed(".tars"), here)
    with pytest.raises(OutputExistsError, match="holds another data set"):
        push(packed(".arrow"), here)
    assert ls(here).note == ""


@pytest.mark.parametrize("same_size", [True, False])
def test_objects_of_others_are_not_replaced_and_nothing_is_sent(far_place, line, packed, same_size):
    out, store = packed(".arrow", 30_000), Store(StoreUrl.parse(far_place))
    store.put(out.name, bytes(out.stat().st_size if same_size else 4))
    line.seen.clear()
    with pytest.raises(OutputExistsError, match=r"other objects of these names: set\.arrow"):
        push(out, far_place)
    assert not line.asked("PUT|POST")


def test_two_pushes_of_one_set_at_once_both_end_well(here, packed, tmp_path, small_parts):
    for suffix in (".tars", ".arrow"):
        place = f"{here}{suffix}"
        with ThreadPoolExecutor(2) as pool:
            ends = [pool.submit(push, packed(suffix), place) for _ in range(2)]
        assert [end.result().samples for end in ends] == [30, 30]
        pull(place, tmp_path / f"copy{suffix}")
        assert files_of(tmp_path / f"copy{suffix}") == files_of(packed(suffix))
        assert ls(place).note == ""


@pytest.mark.parametrize(
    ("moment", "ours", "other"),
    [
        ("PUT .*/set.arrow", (".arrow", 30_000), (".arrow", 700_000)),  # in one request, and in parts
        ("POST .*uploadId", (".arrow", 700_000), (".arrow", 30_000)),
        ("PUT .*/smallfiles.json", (".arrow", 30_000), (".tars", 30_000)),
    ],
)
def test_another_set_that_is_published_meanwhile_is_neither_replaced_nor_mixed(
    bad_line, server, as_user, packed, place, tmp_path, moment, ours, other
):
    """Where the server ignores conditions it may be replaced, and is never read as if it were whole."""
    direct, done = server.store(place), []
    as_user(server, bad_line.url)

    def meddle(method, target):
        if re.match(moment, f"{method} {target}") and not done:
            done.append(None)
            push(packed(*other), direct)

    bad_line.before, error = meddle, ""
    try:
        push(packed(*ours), place)
    except SmallfilesError as caught:
        error = str(caught)
    assert done
    if server.name != "rclone" or not moment.endswith("json"):
        assert re.search("holds (another|other objects)", error)
    if server.name != "rclone":
        assert ls(place).note == ""
    if ls(place).note:
        with pytest.raises(SmallfilesError):
            pull(place, tmp_path / f"copy{other[0]}")
        return
    copy = tmp_path / f"copy{Path(ls(place).catalog.name).suffix}"
    pull(place, copy)
    assert files_of(copy) == files_of(packed(*(other if error else ours)))


@pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
def test_an_object_of_equal_size_that_is_created_first_is_refused(bad_line, server, as_user, packed, place):
    out, direct, done = packed(".arrow", 30_000), server.store(place), []
    as_user(server, bad_line.url)

    def meddle(method, target):
        if method == "PUT" and not done:
            done.append(direct.put(out.name, bytes(out.stat().st_size)))

    bad_line.before = meddle
    with pytest.raises(OutputExistsError, match=r"other objects of these names: set\.arrow"):
        push(out, place)
    assert done and ls(place).catalog is None


def test_an_upload_that_the_store_dropped_is_begun_anew(far_place, line, packed, tmp_path, small_parts):
    place, dropped = StoreUrl.parse(far_place), []
    direct = Store(place, endpoint=f"http://127.0.0.1:{line.port}")

    def drop(method, target):
        if method == "POST" and "uploadId" in target and not dropped:
            dropped.append(direct.begun("set.arrow")[0])
            words = {"Bucket": place.bucket, "Key": place.key("set.arrow"), "UploadId": dropped[0]}
            direct.client.abort_multipart_upload(**words)

    line.before = drop
    push(packed(".arrow"), far_place)
    pull(far_place, tmp_path / "copy.arrow")
    assert dropped and files_of(tmp_path / "copy.arrow") == files_of(packed(".arrow"))


def test_an_upload_whose_part_another_push_replaces_at_that_moment_is_completed_again(
    far_place, line, packed, tmp_path, small_parts
):
    line.only, line.refuse = "POST .*uploadId", [(400, "InvalidPart")]
    push(packed(".arrow"), far_place)
    pull(far_place, tmp_path / "copy.arrow")
    assert len(line.asked("POST .*uploadId")) == 2
    assert files_of(tmp_path / "copy.arrow") == files_of(packed(".arrow"))


@pytest.mark.parametrize("change", ["shorter", "other bytes", "missing"])
def test_an_object_that_is_changed_before_the_manifest_is_written_is_noticed(far_place, line, packed, change):
    """As by a server without conditional writes, where two pushes may both begin."""
    out, store = packed(".arrow", 30_000), Store(StoreUrl.parse(far_place))
    direct, done = Store(store.place, endpoint=f"http://127.0.0.1:{line.port}"), []

    def meddle(method, target):
        if method == "GET" and "list-type" in target and len(line.asked("list-type")) == 2 and not done:
            done.append(change)
            if change == "missing":
                direct.delete(out.name)
            else:
                direct.put(out.name, bytes(4 if change == "shorter" else out.stat().st_size))

    line.before = meddle
    with pytest.raises(SourceError, match=r"does not hold what was sent: set\.arrow"):
        push(out, far_place)
    assert done and ls(far_place).catalog is None


def test_two_pulls_to_one_name_do_not_mix(far_place, line, packed, tmp_path):
    push(packed(".tars"), far_place)
    line.latency_s = 0.05
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(pull, far_place, tmp_path / "copy.tars") for _ in range(2)]
    faults = [end.exception() for end in ends if end.exception() is not None]
    assert len(faults) == 1 and isinstance(faults[0], BusyError | OutputExistsError)
    assert files_of(tmp_path / "copy.tars") == files_of(packed(".tars"))


# ---- hostile names


HOSTILE = ["../evil", "/etc/evil", "a/../../evil", "a/b", "", ".", "..", ".hidden", "a\x1b[2J", "a\0b"]


@pytest.mark.parametrize("name", [*HOSTILE, "x" * 256, "ü" * 200])
@pytest.mark.parametrize("where", ["objects", "name"])
def test_a_manifest_with_a_hostile_name_writes_nothing(servers, as_user, packed, tmp_path, name, where):
    as_user(servers("rclone"))
    place = new_place()
    store = Store(StoreUrl.parse(place))
    record = json.loads(of_output(packed(".tars", 30_000))[0].text)
    if where == "objects":
        record["objects"][0]["name"] = name
    else:
        record["name"] = name
    store.put("smallfiles.json", json.dumps(record).encode())
    folder = tmp_path / "inner"
    folder.mkdir()
    with pytest.raises(FormatError, match="Do not use this data set"):
        pull(place, folder / "copy.tars")
    assert [path.name for path in tmp_path.rglob("*")] == ["inner"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "[" * 100_000, '{"objects": [{}]}', '{"objects": 3}', "\xff", '{"kind": "x"}'],
)
def test_a_manifest_that_is_none_is_an_error_in_one_sentence(servers, as_user, tmp_path, text):
    as_user(servers("rclone"))
    place = new_place()
    Store(StoreUrl.parse(place)).put("smallfiles.json", text.encode("latin-1"))
    with pytest.raises(FormatError, match="is not a manifest of ours"):
        pull(place, tmp_path / "copy.tars")


def test_a_name_of_another_format_is_refused(here, packed, tmp_path):
    push(packed(".tars"), here)
    with pytest.raises(UsageError, match=r"Name it like set\.tars"):
        pull(here, tmp_path / "copy.arrow")


# ---- the command line


def test_the_verbs_report_what_they_did(here, packed, tmp_path, capsys):
    assert main(["push", str(packed(".tars")), here, "--workers", "2"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{here}\n" and "30 samples" in shown.err
    assert main(["ls", here]) == 0
    assert f"{here}: set.tars, 30 samples" in capsys.readouterr().err
    assert main(["ls", here, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["complete"], record["samples"]) == (True, 30)
    assert sum(one["samples"] or 0 for one in record["objects"]) == 30
    assert main(["pull", here, str(tmp_path / "copy.tars"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 30
    assert main(["pull", here, str(tmp_path / "copy.tars")]) == 1
    assert "exists already" in capsys.readouterr().err
    words = TransferConfig(workers=3).to_cli("push", "a b.tars", here)
    assert words.endswith(f"'a b.tars' {here} --workers 3")
