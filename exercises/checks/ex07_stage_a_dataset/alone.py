"""One call at a time: name, bytes, mode, links, old copies, a full disk.

The trap: all of these look right on an empty folder; each is about something that is there already, or
about room that is not. Exercise 07.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exercises.checks.attempt import Attempt, NotStarted
from exercises.checks.ex07_stage_a_dataset import diagnoses as why
from exercises.checks.ex07_stage_a_dataset.children import child, digest, listing, small_disk, small_files
from smallfiles.progress import bytes_text

SIZE_BYTES = 2 << 20
NAME = "train.arrow"
_LARGE_BYTES = 64 << 10
_SMALL_DISK_BYTES = 512 << 10
_LATER_NS = 10_000_000_000


def write_source(place: Path, *, name: str = NAME) -> Path:
    """A packed file, as far as copying can tell."""
    src = place / "slow" / name
    src.parent.mkdir(exist_ok=True)
    src.write_bytes(os.urandom(SIZE_BYTES))
    return src


def finished(attempt: Attempt, src: Path, folder: Path, what: str) -> dict[str, Any]:
    """Call the answer in a child; it must give out a complete copy of the source as it is now."""
    attempt.given(f"{attempt.name}(src, folder) {what}".strip())
    with child(attempt.answer, src, folder) as one:
        told = one.report()
    return no_error(attempt, told)


def no_error(attempt: Attempt, told: dict[str, Any] | None) -> dict[str, Any]:
    """The report of a call that must not fail."""
    if told is None:
        raise attempt.wrong(
            "nothing: the call did not return, or ended its process",
            "the path of the copy",
            why.NO_RETURN,
        )
    if told["error"] == "NotImplementedError":
        raise NotStarted
    if told["error"] is not None:
        raise attempt.wrong(told["text"], "the path of the copy", "your code raised an exception here")
    return told


def is_copy(attempt: Attempt, told: dict[str, Any], src: Path, because: str) -> None:
    """Require that what the call gave out held the bytes of the source at that moment."""
    attempt.require(
        told["digest"] == digest(src),
        got=f"{told['path']} with other bytes than the source" if told["digest"] else "no file there",
        expected=f"a complete copy, {bytes_text(src.stat().st_size)}",
        because=because,
    )


def large(folder: Path, *known: str) -> list[str]:
    """Files of some size in a folder, without the known ones; a small lock file is no matter."""
    return [n for n, size in listing(folder).items() if size > _LARGE_BYTES and n not in known]


def into_a_new_folder(attempt: Attempt, place: Path) -> None:
    """Nothing is there yet."""
    src, folder = write_source(place), place / "node"
    before = digest(src)
    attempt.given(f"{attempt.name}(src, folder) where folder is not there yet")
    with child(attempt.answer, src, folder) as one:
        told = one.report()
    if told is not None and told["error"] == "FileNotFoundError" and not folder.exists():
        raise attempt.wrong(told["text"], "a copy", why.NO_FOLDER)
    told = no_error(attempt, told)
    attempt.require(
        bool(told["is_path"]),
        got=f"{told['kind']}: {told['path']}",
        expected="a Path",
        because="return the path of the copy, a pathlib.Path",
    )
    attempt.require(
        told["path"] == str(folder / NAME),
        got=told["path"],
        expected="folder / src.name",
        because=why.OTHER_NAME,
    )
    attempt.require(
        digest(src) == before,
        got="a source that is gone, or changed",
        expected="the source as it was",
        because="the source is on storage that others read too: copy it, do not move it",
    )
    attempt.require((folder / NAME).exists(), got="nothing there", expected="a copy", because=why.NOTHING)
    found = (folder / NAME).lstat()
    linked = stat.S_ISLNK(found.st_mode) or found.st_ino == src.stat().st_ino
    attempt.require(not linked, got="a link to the source", expected="a copy", because=why.LINK_MADE)
    is_copy(attempt, told, src, "the copy is not the source, byte for byte")
    mode = stat.S_IMODE(folder.stat().st_mode)
    attempt.require(
        not mode & 0o077, got=f"a folder of mode {mode:o}", expected="mode 700", because=why.OPEN_FOLDER
    )
    _nothing_beside(attempt, folder, why.LEFT_BESIDE)
    attempt.require(
        not told["handler_left"],
        got="another handler for SIGTERM than before",
        expected="the one of before",
        because=why.HANDLER_LEFT,
    )


def _nothing_beside(attempt: Attempt, folder: Path, because: str, *known: str) -> None:
    left = large(folder, NAME, *known)
    attempt.require(not left, got=f"also {', '.join(left)}", expected=f"nothing but {NAME}", because=because)


def a_good_copy_is_there(attempt: Attempt, place: Path) -> None:
    """A second job comes; copies of others lie there too."""
    src, folder = write_source(place), place / "node"
    finished(attempt, src, folder, "")
    first = (folder / NAME).stat()
    neighbour = folder / "val.arrow"
    neighbour.write_bytes(b"another job's" * 10_000)
    told = finished(attempt, src, folder, "a second time")
    attempt.require(neighbour.exists(), got="val.arrow is gone", expected="it to stay", because=why.DELETES)
    is_copy(attempt, told, src, "the second call gave out something else")
    again = (folder / NAME).stat()
    attempt.require(
        (again.st_ino, again.st_ctime_ns) == (first.st_ino, first.st_ctime_ns),
        got="a new file",
        expected="the copy that was there",
        because=why.COPIED_AGAIN,
    )


def the_source_has_changed(attempt: Attempt, place: Path) -> None:
    """Packed again under the same name, of the same size; a job still reads the old copy."""
    src, folder = write_source(place), place / "node"
    finished(attempt, src, folder, "")
    old = digest(folder / NAME)
    with (folder / NAME).open("rb") as in_use:
        later = src.stat().st_mtime_ns + _LATER_NS
        write_source(place)
        os.utime(src, ns=(later, later))
        told = finished(attempt, src, folder, "after src was packed again")
        attempt.require(
            told["digest"] != old, got="the old bytes", expected="the new ones", because=why.OLD_COPY
        )
        is_copy(attempt, told, src, "the copy is neither the old nor the new source")
        attempt.require(
            digest(Path(f"/proc/self/fd/{in_use.fileno()}")) == old,
            got="a job that had the old copy open now reads other bytes",
            expected="the old bytes, as long as it is open",
            because=why.OVERWRITTEN,
        )


def half_a_copy_is_there(attempt: Attempt, place: Path) -> None:
    """Left under the final name by a program that died."""
    src, folder = write_source(place), place / "node"
    folder.mkdir(mode=0o700)
    (folder / NAME).write_bytes(src.read_bytes()[: SIZE_BYTES // 2])
    told = finished(attempt, src, folder, "where half a copy lies under the final name")
    is_copy(attempt, told, src, why.HALF_REUSED)


def a_link_is_planted(attempt: Attempt, place: Path) -> None:
    """Under the final name, to a file that looks like a good copy."""
    src, folder, victim = write_source(place), place / "node", place / "victim"
    folder.mkdir(mode=0o700)
    victim.write_bytes(os.urandom(SIZE_BYTES))
    os.utime(victim, ns=(src.stat().st_atime_ns, src.stat().st_mtime_ns))
    before = digest(victim)
    (folder / NAME).symlink_to(victim)
    attempt.given(f"{attempt.name}(src, folder) where folder / src.name is a link to a file of yours")
    with child(attempt.answer, src, folder) as one:
        told = one.report()
    attempt.require(
        digest(victim) == before,
        got="the file behind the link is overwritten",
        expected="it to stay as it was",
        because=why.FOLLOWED,
    )
    if told is not None and told.get("is_os_error"):
        return  # refusing is right too
    is_copy(attempt, no_error(attempt, told), src, why.FOLLOWED)
    attempt.require(
        not (folder / NAME).is_symlink(), got="still a link", expected="a copy", because=why.FOLLOWED
    )


def the_folder_is_a_link(attempt: Attempt, place: Path) -> None:
    """Planted where the folder should be."""
    src, folder, elsewhere = write_source(place), place / "node", place / "elsewhere"
    elsewhere.mkdir()
    folder.symlink_to(elsewhere)
    attempt.given(f"{attempt.name}(src, folder) where folder is a symbolic link")
    with child(attempt.answer, src, folder) as one:
        told = one.report()
    attempt.require(
        not large(elsewhere),
        got=f"{', '.join(large(elsewhere))} where the link leads",
        expected="OSError, and nothing written",
        because=why.FOLDER_FOLLOWED,
    )
    refused = told is not None and bool(told.get("is_os_error"))
    replaced = told is not None and told["digest"] == digest(src) and not folder.is_symlink()
    attempt.require(
        refused or replaced,
        got=str(told["text"] if told and told["error"] else "no error"),
        expected="OSError",
        because=why.FOLDER_FOLLOWED,
    )


def the_disk_is_full(attempt: Attempt, place: Path) -> None:
    """A real small disk where we may mount one, a limit on the size of files elsewhere."""
    src, disk = write_source(place), place / "disk"
    disk.mkdir()
    folder = disk / "node"
    attempt.given(f"{attempt.name}(src, folder) on a disk that is too small for src")
    told = _on(small_disk(disk, _SMALL_DISK_BYTES), attempt.answer, src, folder)
    if told is None:
        told = _on(small_files(_SMALL_DISK_BYTES), attempt.answer, src, folder)
    attempt.require(
        told is not None,
        got="nothing: the call did not return",
        expected="OSError",
        because="a full disk is no reason to wait: let the OSError through",
    )
    assert told is not None
    attempt.require(
        told["error"] is not None,
        got=f"the path {told['path']}",
        expected="OSError",
        because=why.FULL_IGNORED,
    )
    left = {name: size for name, size in told["listing"].items() if size > _LARGE_BYTES}
    attempt.require(
        NAME not in left,
        got=f"{NAME} of {bytes_text(left.get(NAME, 0))}",
        expected="nothing",
        because=why.FULL_HALF,
    )
    attempt.require(not left, got=f"{', '.join(left)} left", expected="nothing", because=why.FULL_PART)
    attempt.require(
        bool(told["is_os_error"]),
        got=told["text"],
        expected="OSError, which says that the disk is full",
        because=why.FULL_OTHER,
    )


def _on(
    prepare: Callable[[], bool], answer: Callable[[Path, Path], Any], src: Path, folder: Path
) -> dict[str, Any] | None:
    with child(answer, src, folder, prepare=prepare) as one:
        return one.report()


CASES: tuple[Callable[[Attempt, Path], None], ...] = (
    into_a_new_folder,
    a_good_copy_is_there,
    the_source_has_changed,
    half_a_copy_is_there,
    a_link_is_planted,
    the_folder_is_a_link,
    the_disk_is_full,
)
