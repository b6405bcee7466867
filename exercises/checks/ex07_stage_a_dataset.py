"""Exercise 07: a staging function that survives two jobs at the same time, a full disk and SIGTERM.

    stage           task A, lock and rename: one call, a call after others, two at the same time
    stage_safely    task B, signals and links: what was planted, a full disk, a call that is ended

The answer runs in forked children that stop themselves in the middle of their copy, so each race is
played the same way every time; left to chance, two copies of a small file never meet. The traps: a name
that exists is not a copy that is complete; a lock file outlives its owner, a lock does not; SIGTERM ends
Python without any `finally`. Notebook 07 sends participants here.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import hashlib
import io
import os
import resource
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exercises.checks import Attempt, NotStarted, check
from exercises.checks.attempt import line_of
from exercises.checks.forked import Child, child

NAME, SIZE_BYTES = "train.arrow", 2 << 20
_PIECE_BYTES, _LARGE_BYTES, _DISK_BYTES = 64 << 10, 64 << 10, 512 << 10  # a small lock file is no matter
_HALF_WAY = SIZE_BYTES // 4  # where a call stops itself, in the middle of its copy
_WAITS_S, _ENDS_S, _LIMIT_S = 0.5, 4.0, 90.0

# What each mistake does to other jobs of the node, and what to write instead.
WHY = {
    "error": "your code raised an exception here",
    "no return": "it waits forever, or it ends the process; it returns a path, or raises OSError",
    "no folder": "`folder` need not be there: make it with folder.mkdir(mode=0o700, exist_ok=True)",
    "path": "return the path of the copy, the pathlib.Path `folder / src.name`: others look for it there",
    "moved": "the source is on storage that others read too: copy it, do not move it",
    "link": "a link is no copy: each read still goes to the slow storage",
    "bytes": "the copy is not the source, byte for byte",
    "open folder": "in /dev/shm everybody may look: make the folder with mode=0o700",
    "left": "a temporary file stays behind and takes memory from the job: rename it or remove it",
    "again": "a good copy was there: compare size and modification time, which shutil.copy2 keeps",
    "deletes": "copies of other jobs lie in the folder and are in use; remove only the file that you made",
    "old": "the old copy was given out; that the name exists says little: compare size and st_mtime_ns",
    "overwritten": "a job reads the old copy while it changes: write to another name, then os.replace",
    "half": "that the name exists does not say that the copy is complete: compare its size with the source",
    "final name": "half a copy lies under the final name: write to another name, then os.replace, one step",
    "given half": "the second job gave out half a copy: take a lock (fcntl.flock) before you look",
    "shared": "the jobs disturb each other, for example by writing to one temporary name: hold a lock "
    "(fcntl.flock) while you copy",
    "refused": "the second job failed because the first was copying; it should wait, or copy for itself",
    "stuck": "the next job never returns: it may wait for what a killed job leaves, such as a lock *file*; "
    "fcntl.flock lets go when its owner dies",
    "handler": "after your function SIGTERM still calls your handler: put the old one back in `finally`",
    "followed": "you wrote through a planted link: look with is_symlink; os.replace replaces the link itself",
    "link accepted": "you took a planted link for a good copy: look with is_symlink or os.lstat",
    "lock followed": "open empties the file behind a planted link: open a lock by os.open with os.O_NOFOLLOW",
    "folder followed": "`folder` was a planted link; look with folder.is_symlink() and raise OSError",
    "full ignored": "the disk was full, and you did not say so; let the OSError of the copy through",
    "full left": "your part keeps the full disk full: remove the temporary file in `finally`",
    "term left": "a part of the copy stays; SIGTERM runs a `finally` only if a handler raises an exception: "
    "lambda *_: sys.exit(143)",
    "term ignored": "after SIGTERM comes SIGKILL: clean up and end immediately, with a code other than 0",
    "kill left": "what a killed job copied stays: under a lock, one fixed temporary name is written over",
}

Answer = Callable[[Path, Path], Any]
Told = dict[str, Any]


# --- What happens in a child ---


def _called(answer: Answer, src: Path, folder: Path, stop_at: int | None, most: int | None) -> Told:
    """Call the answer as a fresh process would, without handlers and output; what to say of it."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    getattr(atexit, "_clear", lambda: None)()
    os.umask(0o022)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
    if most is not None:  # no file may grow further: what a full disk does, on any machine
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    if stop_at is not None:
        install_meter(stop_at)
    told: Told = {"error": None, "path": "", "digest": "", "code": 0}
    try:
        result = answer(src, folder)
        told |= {"path": f"{result}" if isinstance(result, Path) else f"{result!r}"}
        told["digest"] = digest(Path(result)) if isinstance(result, Path | str) else ""
    except BaseException as error:  # nothing may go on in this copy of the kernel
        code = error.code if isinstance(error, SystemExit) else 1
        told["code"] = code & 0xFF if isinstance(code, int) else int(code is not None)
        told |= {"error": type(error).__name__, "is_os_error": isinstance(error, OSError)}
        told["text"] = f"{type(error).__name__}: {str(error)[:200]} in {line_of(error)}"
    told["handler"] = signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    getattr(atexit, "_run_exitfuncs", lambda: None)()  # those of the answer; ours were cleared
    return told


def install_meter(stop_at: int) -> None:
    """Replace what writes files in this process by what stops it once, after so many bytes."""
    left, opened = [stop_at], io.open

    def moved(count: int) -> int:
        left[0] -= count
        if left[0] <= 0 < left[0] + count:
            os.kill(os.getpid(), signal.SIGSTOP)
        return count

    class Metered(io.FileIO):
        def write(self, data: Any, /) -> int:
            view = memoryview(data).cast("B")
            pieces = (view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES))
            return sum(moved(super(Metered, self).write(piece)) for piece in pieces)

    def metered_open(file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        if "b" not in mode or not set(mode) & set("wax+"):
            return opened(file, mode, buffering, *more, **named)
        raw = Metered(file, mode.replace("b", ""), **named)
        kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
        return kind(raw) if buffering else raw

    def metered(real: Callable[..., int], place: int) -> Callable[..., int]:
        def call(*arguments: Any, **named: Any) -> int:
            if len(arguments) > place:  # those that copy inside the kernel move a piece at a time
                arguments = (*arguments[:place], min(arguments[place], _PIECE_BYTES), *arguments[place + 1 :])
            return moved(real(*arguments, **{k: min(v, _PIECE_BYTES) for k, v in named.items()}))

        return call

    for module in (builtins, io):
        vars(module)["open"] = metered_open
    for name, place in (("write", 9), ("pwrite", 9), ("sendfile", 3), ("copy_file_range", 2)):
        vars(os)[name] = metered(getattr(os, name), place)


# --- What the cases share ---


def digest(path: Path) -> str:
    """What tells one content from another; empty if there is no such file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def large(folder: Path, *known: str) -> dict[str, int]:
    """Sizes of the files in a folder that are no small lock files, without the known ones."""
    found = {}
    for path in folder.rglob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # it may go while we look
            if path.is_file() and not path.is_symlink() and path.name not in known:
                found[path.name] = path.stat().st_size
    return {name: size for name, size in found.items() if size > _LARGE_BYTES}


class Scene:
    """A slow folder with a packed file, and the folder of a node; the answer is called on the two."""

    def __init__(self, attempt: Attempt, place: Path) -> None:
        self.attempt, self.folder, self.src = attempt, place / "node", place / "slow" / NAME
        self.copy = self.folder / NAME
        self.src.parent.mkdir()
        self.src.write_bytes(os.urandom(SIZE_BYTES))

    def refuse(self, wrong: bool, because: str, got: str, expected: str = f"a complete {NAME}") -> None:
        """Raise a ✗ if something is wrong."""
        self.attempt.require(not wrong, got, expected, WHY[because])

    @contextlib.contextmanager
    def job(self, what: str = "", stop_at: int | None = None, most: int | None = None) -> Iterator[Child]:
        """A call of the answer in a child."""
        answer = self.attempt.answer
        if what:
            self.attempt.given(f"{self.attempt.name}(src, folder) {what}")
        with child(functools.partial(_called, answer, self.src, self.folder, stop_at, most)) as one:
            yield one

    def told(self, what: str, most: int | None = None) -> Any:
        """What a call of the answer says of itself."""
        with self.job(what, most=most) as one:
            return one.report()

    def caught(self, one: Child) -> bool:
        """Whether it is in the middle; a copy by calls that we do not know may be too quick."""
        return one.caught(lambda: bool(large(self.folder, "val.arrow")))

    def finished(self, what: str = "", because: str = "bytes") -> Told:
        """Call the answer; it must give out a complete copy of the source as it is now."""
        return self.good(self.told(what), because)

    def good(self, told: Told | None, because: str, failed: str = "error", none: str = "no return") -> Told:
        """Refuse the report of a call that did not give out a copy."""
        if told is None:
            raise self.attempt.wrong("nothing", "the path of the copy", WHY[none])
        if told["error"] == "NotImplementedError":
            raise NotStarted
        self.refuse(told["error"] is not None, failed, str(told.get("text")))
        self.refuse(told["digest"] != digest(self.src), because, f"{told['path']}, other bytes than src")
        return told

    def clean(self, because: str, *known: str) -> None:
        """Refuse what lies in the folder beside what is known."""
        left = large(self.folder, *known)
        self.refuse(bool(left), because, f"{', '.join(left)} left", "no file of yours but the finished copy")

    def neighbour(self) -> Path:
        """The copy of another job in the same folder."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        (self.folder / "val.arrow").write_bytes(b"another job's" * 10_000)
        return self.folder / "val.arrow"


# --- Task A: lock and rename ---


def into_a_new_folder(scene: Scene) -> None:
    """Nothing is there yet."""
    before = digest(scene.src)
    told = scene.told("where folder is not there yet")
    scene.refuse(digest(scene.src) != before, "moved", "a source that is gone, or changed")
    missing = told is not None and told["error"] == "FileNotFoundError" and not scene.folder.exists()
    told = scene.good(told, "path", failed="no folder" if missing else "error")
    scene.refuse(told["path"] != str(scene.copy), "path", told["path"], "folder / src.name")
    found = scene.copy.lstat()
    linked = stat.S_ISLNK(found.st_mode) or found.st_ino == scene.src.stat().st_ino
    scene.refuse(linked, "link", "a link to the source", "a copy")
    scene.clean("left", NAME)


def a_good_copy_is_there(scene: Scene) -> None:
    """A second job comes; a copy of others lies there too."""
    scene.finished()
    first, neighbour = scene.copy.stat(), scene.neighbour()
    scene.finished("a second time")
    again = scene.copy.stat()
    scene.refuse(not neighbour.exists(), "deletes", "val.arrow is gone", "it to stay")
    new = (again.st_ino, again.st_ctime_ns) != (first.st_ino, first.st_ctime_ns)
    scene.refuse(new, "again", "a new file", "the copy that was there")


def the_source_has_changed(scene: Scene) -> None:
    """Packed again under the same name, of the same size; a job still reads the old copy."""
    scene.finished()
    old, later = digest(scene.copy), scene.src.stat().st_mtime_ns + 10_000_000_000
    with scene.copy.open("rb") as in_use:
        scene.src.write_bytes(os.urandom(SIZE_BYTES))
        os.utime(scene.src, ns=(later, later))
        scene.finished("after src was packed again", "old")
        changed = digest(Path(f"/proc/self/fd/{in_use.fileno()}")) != old
        scene.refuse(changed, "overwritten", "other bytes for a job that reads the old copy", "the old bytes")


def half_a_copy_is_there(scene: Scene) -> None:
    """Left under the final name by a program that died."""
    scene.folder.mkdir(mode=0o700)
    scene.copy.write_bytes(scene.src.read_bytes()[: SIZE_BYTES // 2])
    scene.finished("where half a copy lies under the final name", "half")


def others_may_not_look(scene: Scene) -> None:
    """The folder is of mode 700. It comes last: `mkdir(exist_ok=True)` alone must not hide the races."""
    scene.finished()
    mode = stat.S_IMODE(scene.folder.stat().st_mode)
    scene.refuse(bool(mode & 0o077), "open folder", f"a folder of mode {mode:o}", "mode 700")


def two_at_once(scene: Scene) -> None:
    """The second comes when the first is half-way."""
    with scene.job("while another job is half-way with the same", _HALF_WAY) as first:
        if not scene.caught(first):
            return
        half = scene.copy.exists() and digest(scene.copy) != digest(scene.src)
        with scene.job() as second:
            early = second.report(_WAITS_S)
            if early is not None:
                gone = early["error"] == "FileNotFoundError"
                scene.good(early, "given half", failed="shared" if gone else "refused")
            scene.refuse(half, "final name", f"half of {NAME} while the first copies", "no such name yet")
            first.send(signal.SIGCONT)
            for told in (first.report(), early or second.report()):
                scene.good(told, "shared", failed="shared")
    scene.clean("shared", NAME)
    scene.refuse(digest(scene.copy) != digest(scene.src), "shared", "other bytes in the folder")


def after_a_killed_job(scene: Scene) -> None:
    """Nobody can act on kill -9 but the next."""
    with scene.job("after another job was killed in the middle of the copy", _HALF_WAY) as one:
        if not scene.caught(one):
            return
        one.send(signal.SIGKILL)
        one.ended()
    scene.good(scene.told(""), "half", none="stuck")
    scene.clean("kill left", NAME)


# --- Task B: signals and links ---


def the_handler_of_before(scene: Scene) -> None:
    """A function is a guest in its program."""
    told = scene.finished("in a program with a handler of its own for SIGTERM")
    scene.refuse(told["handler"], "handler", "another handler for SIGTERM than before", "the one of before")


def a_link_is_planted(scene: Scene) -> None:
    """Under the final name, to a file that looks like a good copy."""
    victim = scene.folder.parent / "victim"
    scene.folder.mkdir(mode=0o700)
    victim.write_bytes(os.urandom(SIZE_BYTES))
    os.utime(victim, ns=(scene.src.stat().st_atime_ns, scene.src.stat().st_mtime_ns))
    before = digest(victim)
    scene.copy.symlink_to(victim)
    told = scene.told("where folder / src.name is a link to a file of yours")
    scene.refuse(digest(victim) != before, "followed", "the file behind the link, overwritten", "it to stay")
    if told is None or not told.get("is_os_error"):  # refusing is right too
        scene.good(told, "link accepted")
        scene.refuse(scene.copy.is_symlink(), "link accepted", "still a link", "a copy")


def a_lock_is_a_link(scene: Scene) -> None:
    """Under each other name that a call leaves, such as that of its lock, to a file of ours."""
    scene.finished()
    victim = scene.folder.parent / "victim"
    for path in [path for path in scene.folder.rglob("*") if path.is_file() and path.name != NAME]:
        path.unlink()
        victim.write_bytes(os.urandom(SIZE_BYTES))
        before = digest(victim)
        path.symlink_to(victim)
        scene.copy.unlink(missing_ok=True)
        scene.told(f"where {path.name} in folder is a link to a file of yours")  # refusing is right too
        scene.refuse(
            digest(victim) != before, "lock followed", "the file behind the link, changed", "it to stay"
        )
        path.unlink(missing_ok=True)


def the_folder_is_a_link(scene: Scene) -> None:
    """Planted where the folder should be."""
    elsewhere = scene.folder.parent / "elsewhere"
    elsewhere.mkdir()
    scene.folder.symlink_to(elsewhere)
    told = scene.told("where folder is a symbolic link") or {}
    replaced = told.get("digest") == digest(scene.src) and not scene.folder.is_symlink()
    wrong = bool(large(elsewhere)) or not (told.get("is_os_error") or replaced)
    got = str(told.get("text") or told.get("path") or "nothing")
    scene.refuse(wrong, "folder followed", got, "OSError, and nothing written where the link leads")


def the_disk_is_full(scene: Scene) -> None:
    """No file may grow to the size of the source."""
    told = scene.told("on a disk that is too small for src", most=_DISK_BYTES) or {}
    scene.refuse(not told.get("error"), "full ignored", f"{told.get('path') or 'nothing'}", "OSError")
    scene.clean("full left")
    scene.refuse(not told["is_os_error"], "full ignored", told["text"], "OSError, which names the full disk")


def ended_by_sigterm(scene: Scene) -> None:
    """The scheduler's first word."""
    neighbour = scene.neighbour()
    with scene.job("ended by SIGTERM in the middle of the copy", _HALF_WAY) as one:
        if not scene.caught(one):
            return
        one.send(signal.SIGTERM)
        one.send(signal.SIGCONT)
        got = f"exit code {one.code}" if one.ended(_ENDS_S) else f"it still runs {_ENDS_S:g} s later"
    scene.refuse(got in ("exit code 0", f"it still runs {_ENDS_S:g} s later"), "term ignored", got, "an end")
    scene.refuse(not neighbour.exists(), "deletes", "val.arrow is gone", "it to stay")
    complete = [NAME] if digest(scene.copy) == digest(scene.src) else []  # the signal came after the rename
    scene.clean("term left", neighbour.name, *complete)


RACES = (into_a_new_folder, a_good_copy_is_there, two_at_once, after_a_killed_job)
LOCK_AND_RENAME = (*RACES, the_source_has_changed, half_a_copy_is_there, others_may_not_look)
LINKS = (the_handler_of_before, a_link_is_planted, a_lock_is_a_link, the_folder_is_a_link)
SIGNALS_AND_LINKS = (*LINKS, the_disk_is_full, ended_by_sigterm)


def _play(attempt: Attempt, cases: tuple[Callable[[Scene], None], ...]) -> None:
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="smallfiles-") as place:
            case(Scene(attempt, Path(place)))


@check(buys="Thirty jobs of one node now share one copy, and none of them sees half of it.", limit_s=_LIMIT_S)
def stage(attempt: Attempt) -> None:
    """`stage(src, folder)` copies a file to a folder of this node, and gives the path of the copy."""
    _play(attempt, LOCK_AND_RENAME)


@check(buys="No job leaves files in memory, and none writes through a planted link.", limit_s=_LIMIT_S)
def stage_safely(attempt: Attempt) -> None:
    """`stage_safely(src, folder)` is `stage`, and survives signals, links and a full disk."""
    _play(attempt, LOCK_AND_RENAME + SIGNALS_AND_LINKS)
