"""The figure of notebook 00 says what was found, on odd machines too."""

import re
import shlex
from pathlib import Path

import pytest
from matplotlib.colors import to_rgba

from helpers import machine_report
from helpers.machine_report import MachineReport, StoragePlace, describe, draw
from smallfiles.cli import build_parser
from smallfiles.errors import ResourceError
from smallfiles.machine import FileSystem, Quota, usable_cpus
from smallfiles.measure.drawing import REFERENCE_COLOUR


def disk(kind="lustre", free=10**12, inodes_free=2_000_000, inodes_total=4_000_000, mount="/"):
    return FileSystem(kind, True, 4096, 2 * 10**12, free, inodes_total, inodes_free, Path(mount))


def picture(*places, cpus=(4, 128)):
    return MachineReport(*cpus, 10**10, 10**11, places or (StoragePlace("data", disk()),))


def test_this_machine_is_drawn_with_its_own_numbers(tmp_path):
    found = describe(tmp_path)
    assert found.cpus_usable == usable_cpus() <= found.cpus_present
    assert found.memory_limit_bytes <= found.memory_present_bytes
    assert found.places[0].role.startswith("data")
    assert len({place.filesystem.mount for place in found.places}) == len(found.places)


def test_the_finding_is_computed():
    assert (
        picture().finding == "The data's file system has room for 2,000,000 photos, then the inodes run out"
    )
    found = picture(StoragePlace("data", disk(free=10**9)))
    assert found.finding == "The data's file system has room for 10,000 photos, then the bytes run out"


def test_the_finding_has_two_digits_and_the_bar_all():
    found = picture(StoragePlace("data", disk(free=63_652_345_678)))
    assert " for 640,000 photos, then the bytes" in found.finding
    assert "636,523" in text_of(draw(found).figure)


def quota(limit_bytes=10**12, limit_files=1_000_000):
    return Quota("user", 4 * 10**11, limit_bytes, 990_000, limit_files, "lfs quota")


def test_a_quota_that_is_tighter_than_the_file_system_decides_and_has_its_own_bars():
    found = picture(StoragePlace("data", disk(), quota()))
    assert found.finding == "Your user quota has room for 10,000 photos, then the inodes run out"
    shown = text_of(draw(found).figure)
    assert "data, user quota bytes: 600 GB free" in shown and "inodes: 10,000 free" in shown
    assert "data (lustre) bytes: 1.0 TB free" in shown
    assert "data, user quota 600 GB and 10,000 files" in found.alt_text


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (quota(limit_bytes=None), "10,000 photos, then the inodes run out"),
        (quota(limit_bytes=5 * 10**11, limit_files=None), "1,000,000 photos, then the bytes run out"),
        (quota(limit_files=980_000), "0 photos, then the inodes run out"),
    ],
    ids=["no limit of bytes", "no limit of files", "used up"],
)
def test_a_quota_of_one_kind_or_used_up_is_drawn(given, end):
    found = picture(StoragePlace("data", disk(), given))
    assert found.finding == f"Your user quota has room for {end}"
    draw(found)


def test_the_quota_is_asked_for_where_the_data_lie_and_not_for_memory(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(machine_report.machine, "quota", lambda folder: asked.append(folder) or quota())
    found = describe(tmp_path)
    assert asked[0] == tmp_path
    assert found.places[0].quota == quota()
    assert all(place.quota is None for place in found.places if place.filesystem.kind == "tmpfs")


def test_a_file_system_that_counts_no_inodes_is_said():
    found = picture(StoragePlace("data", disk("btrfs", inodes_free=None, inodes_total=None)))
    assert found.finding.endswith("for 10,000,000 photos, then the bytes run out")
    assert "1.0 TB free, inodes not counted" in text_of(draw(found).figure)


def test_a_disk_without_a_free_inode_draws_and_speaks():
    found = picture(StoragePlace("data", disk(inodes_free=0)))
    assert "0 files" in found.alt_text
    draw(found)


def test_the_description_names_every_place():
    found = picture(StoragePlace("data, home", disk()), StoragePlace("/dev/shm", disk("tmpfs", 10**9, 100)))
    assert "data, home (lustre) 1.0 TB and 2.0 million files" in found.alt_text
    assert "/dev/shm (memory) 1.0 GB and 100 files" in found.alt_text


def test_memory_is_grey_and_named():
    found = picture(StoragePlace("data", disk()), StoragePlace("/dev/shm", disk("tmpfs", 10**9, 10**6)))
    figure = draw(found).figure
    fills = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert [fill == to_rgba(REFERENCE_COLOUR) for fill in fills] == [False, False, True, True]
    assert any("grey: files in memory" in text.get_text() for text in figure.texts)
    assert not any("grey" in text.get_text() for text in draw(picture()).figure.texts)


@pytest.mark.parametrize(("guess", "marked"), [("bytes", [0]), ("inodes", [1]), ("files", []), ("", [])])
def test_a_guess_is_drawn_where_the_data_lie(guess, marked):
    found = picture(StoragePlace("data", disk()), StoragePlace("/dev/shm", disk("tmpfs", 10**9, 10**6)))
    labels = [label.get_text() for label in draw(found, guess).figure.axes[0].get_yticklabels()]
    assert [row for row, label in enumerate(labels) if label.startswith("your guess")] == marked


def test_a_folder_that_cannot_be_looked_at_is_left_out(monkeypatch):
    def refuse_home(path):
        if path == Path.home():
            raise ResourceError("gone", expected="a home", next_step="Wait")
        return disk(mount=str(path))

    monkeypatch.setattr(machine_report.machine, "filesystem", refuse_home)
    roles = [place.role for place in describe(Path("data")).places]
    assert "home" not in roles and roles[0] == "data"


def text_of(figure):
    (axes,) = figure.axes
    texts = [text.get_text() for text in (*axes.texts, *axes.get_yticklabels())]
    return " ".join(" ".join([*texts, figure.get_suptitle()]).split())


def test_the_figure_shows_the_finding_as_its_title_each_number_and_bars_from_zero():
    shown = text_of(draw(picture()).figure)
    assert picture().finding in shown and "data (lustre) bytes: 1.0 TB free" in shown
    assert "4 of 128 CPUs, 10.0 GB of 100 GB memory" in picture().alt_text
    assert "inodes: 2.0 million free, run out first" in shown and shown.count("run out first") == 1
    assert " 10,000,000 " in f" {shown} " and " 2,000,000 " in f" {shown} ", "bars, written as in the title"
    assert all(axes.get_xlim()[0] == 0 for axes in draw(picture()).figure.axes)
    assert not re.search(r"None|nan|\{", picture().alt_text)


@pytest.mark.parametrize(("free", "ends"), [(2 * 10**12, "million"), (10**9, "0")])
def test_the_axis_has_two_numbers_or_more_and_counts_millions_where_it_must(free, ends):
    axes = draw(picture(StoragePlace("data", disk(free=free, inodes_free=free // 10**6)))).figure.axes[0]
    low, high = axes.get_xlim()
    shown = [axes.xaxis.get_major_formatter()(n, 0) for n in axes.get_xticks() if low <= n <= high]
    assert shown[0] == "0" and len(shown) > 2
    assert all(text.endswith(ends) for text in shown[1:])


@pytest.mark.parametrize("folders", [(), ("/scratch/my data", "b")])
def test_the_command_is_one_that_the_command_line_takes(folders):
    words = shlex.split(picture().to_cli(*folders))
    assert words[:1] == ["smallfiles"]
    assert [str(p) for p in build_parser().parse_args(words[1:]).paths] == list(folders)
