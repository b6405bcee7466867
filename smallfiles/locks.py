"""The right to write: locks, leases and private folders.

A kernel lock (`flock`) is released when its holder dies, also after kill -9. Some file systems have no
locks, on some they do not reach other machines (Lustre with `localflock`, BeeGFS), and on some they do not
even reach another mount on the same machine (MooseFS with `mfsnobsdlocks`). So an obtained lock never proves
that its last holder has ended. Each holder also writes down which process it is, and renews that. A process
of this machine is looked up by its number and start time. A process that cannot be seen from here, because
it runs on another machine or in another container, has ended if it renewed nothing for a minute. Before a
writer publishes, it checks that the lease is still its own.

The traps: a lock on a file that its last owner has just removed locks nothing, so the name is looked up
again after locking. `/dev/shm` is open to all users, so a folder there may be a planted link.
Notebook 07 teaches both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from smallfiles import processes
from smallfiles.errors import BusyError, PackError, ResourceError, cannot_write, writing
from smallfiles.processes import Owner, this_process
from smallfiles.progress import progress

HEARTBEAT_S = 10.0
SILENT_S = 60.0
"""A process that cannot be seen from here has ended if it renewed nothing for this time."""

LONG_SILENT_S = 900.0
"""An older lease has expired without being watched; no clocks of a cluster differ by as much."""

PREFIX = "smallfiles-"

_LEASE_FILE = "owner.json"
_LONGEST_RECORD_BYTES = 1 << 16
_JOIN_S = 1.0  # a thread that waits for a dead file system longer is left to itself


@dataclass(frozen=True)
class _Held:
    """A lock that this process holds."""

    path: Path
    token: str
    pid: int


_held: dict[int, _Held] = {}
"""By descriptor; a forked child inherits the entries of its parent, which stay the parent's."""


def try_lock(path: Path, *, shared: bool, create: bool = True) -> int | None:
    """Lock the file `path` without waiting, and write into it that this process holds it.

    Args:
        path: A file in the private folder.
        shared: For using a copy; exclusive for making or removing it.
        create: Whether to create a missing file.

    Returns:
        The open descriptor, to be closed with `unlock`; None if another process holds the lock (or the file
        is missing and not to be created).

    Raises:
        ResourceError: The file system has no locks, or the file cannot be created.
    """
    descriptor = _locked(path, shared, create)
    if descriptor is None:
        return None
    with contextlib.suppress(OSError):  # a full disk: the kernel's lock must do
        if not shared and os.fstat(descriptor).st_size > _LONGEST_RECORD_BYTES:
            os.ftruncate(descriptor, 0)  # whoever is named there has ended
        _hold(path, descriptor, shared)
        if _has_holder(path, descriptor, exclusive=shared, earlier=True):  # two at once: the first one has it
            unlock(descriptor)
            return None
    return descriptor


def is_held(path: Path, *, shared: bool) -> bool:
    """Check whether another process holds a lock that excludes ours. No file is created."""
    descriptor = _locked(path, shared, create=False)
    if descriptor is None:
        return path.exists()
    os.close(descriptor)
    return False


def unlock(descriptor: int) -> None:
    """Release a lock; in a forked child, only close the descriptor, for the lock is its parent's."""
    held = _held.get(descriptor)
    if held is not None and held.pid == os.getpid():
        with contextlib.suppress(OSError):
            _append(descriptor, {"token": held.token, "released": True})
    forget(descriptor)
    os.close(descriptor)


def forget(descriptor: int) -> None:
    """Stop renewing a lock whose descriptor is closed elsewhere, or whose file is removed."""
    _held.pop(descriptor, None)
    _renewing.end_without_locks()


def _locked(path: Path, shared: bool, create: bool) -> int | None:
    """Lock the file, if no running process holds it, and return its descriptor, or None."""
    while True:
        descriptor = _opened(path, create)
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise ResourceError(
                f"{path} cannot be locked ({error.strerror or error})",
                expected="a local file system with flock, so that one process copies and others wait",
                next_step="Choose another place with --where",
            ) from error
        if not is_same_file(path, descriptor):
            os.close(descriptor)  # its last owner removed it: try again with a new one
        elif _has_holder(path, descriptor, exclusive=shared):
            os.close(descriptor)
            return None
        else:
            return descriptor


def _hold(path: Path, descriptor: int, shared: bool) -> None:
    token = uuid.uuid4().hex[:12]
    _append(descriptor, {"token": token, "shared": shared, **asdict(this_process())})
    _held[descriptor] = _Held(path, token, os.getpid())
    _renewing.begin()


def _append(descriptor: int, record: dict[str, Any]) -> None:
    os.write(descriptor, (json.dumps(record) + "\n").encode())


def _has_holder(path: Path, descriptor: int, *, exclusive: bool, earlier: bool = False) -> bool:
    """Check whether a lock file names another running process as a holder.

    Args:
        path: Path of the lock file.
        descriptor: The open file, on which the kernel has granted a lock.
        exclusive: Whether to count only the holders of exclusive locks.
        earlier: Whether to count only the holders that are named before this descriptor.
    """
    found = os.fstat(descriptor)
    holders: dict[str, tuple[bool, Owner]] = {}
    for line in os.pread(descriptor, found.st_size, 0).splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # half a line
            record = json.loads(line)
            token = str(record.pop("token"))
            holders.pop(token, None)
            if not record.get("released"):
                holders[token] = bool(record.pop("shared")), Owner(**record)
    ours, silent_s = _held.get(descriptor), time.time() - found.st_mtime
    for token, (is_shared, owner) in holders.items():
        if ours is not None and token == ours.token:
            if earlier:
                return False
        elif not (exclusive and is_shared) and _holds(token, owner, path, silent_s):
            return True
    return earlier  # another process wrote over the name of this one


def _holds(token: str, owner: Owner, path: Path, silent_s: float) -> bool:
    gone = owner.is_gone()
    if gone is False and (int(owner.name), owner.boot) == (os.getpid(), processes.boot()):
        return any(held.token == token and held.pid == os.getpid() for held in _held.values())
    if gone is not None:
        return not gone
    if owner.boot == processes.boot():
        return silent_s <= SILENT_S
    from smallfiles.machine import is_parallel_filesystem  # it needs this module

    return is_parallel_filesystem(path) and silent_s <= LONG_SILENT_S  # a local disk was restarted


class _Renewing:
    """A thread that renews all locks of this process, and takes none of its signals.

    It ends with the last lock, because a process without threads can be forked without a warning.
    """

    def __init__(self) -> None:
        self._pid, self._stopped = 0, threading.Event()

    def begin(self) -> None:
        """Start the thread unless it runs; a forked child that locks something gets its own."""
        if self._pid != os.getpid():
            self._pid, self._stopped = os.getpid(), threading.Event()
            before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # inherited by it
            try:
                self._thread = threading.Thread(
                    target=self._renew, args=(self._stopped,), name="lock heartbeat", daemon=True
                )
                self._thread.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end_without_locks(self) -> None:
        """End the thread if this process holds no lock any more."""
        if self._pid == os.getpid() and all(held.pid != self._pid for held in list(_held.values())):
            self._pid = 0
            self._stopped.set()
            self._thread.join(_JOIN_S)

    def _renew(self, stopped: threading.Event) -> None:
        while not stopped.wait(HEARTBEAT_S):
            now = time.time()
            for descriptor, held in list(_held.items()):
                with contextlib.suppress(OSError):  # it was closed in this moment
                    if held.pid == os.getpid() and is_same_file(held.path, descriptor):
                        os.utime(descriptor, (now, now))


_renewing = _Renewing()


def _opened(path: Path, create: bool) -> int | None:
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    while True:
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            if not create:
                return None
            _make_private(path.parent)  # the last user removed the empty folder
        except OSError as error:
            raise cannot_write(path, error) from error


def is_same_file(path: Path, descriptor: int) -> bool:
    """Check whether `path` is still the file that is open."""
    try:
        found, ours = path.lstat(), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def downgrade(descriptor: int) -> None:
    """Turn an exclusive lock into a shared one; another process may get the lock in between."""
    held = _held.get(descriptor)
    if held is not None:
        with contextlib.suppress(OSError):
            _hold(held.path, descriptor, shared=True)
            _append(descriptor, {"token": held.token, "released": True})
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def try_upgrade(descriptor: int) -> bool:
    """Turn a shared lock into an exclusive one; False, and no lock at all, if others share it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    held = _held.get(descriptor)
    return held is None or not _has_holder(held.path, descriptor, exclusive=False)


class Lease:
    """The right to write in a folder: a kernel lock where there is one, and a file that is renewed.

    Args:
        folder: The folder; must exist.
        busy: Makes the error for a folder that a running process owns, from the name of that process.
        wait: Watch the lease of another machine for a minute; otherwise its owner counts as running.
    """

    def __init__(self, folder: Path, busy: Callable[[str], BusyError], *, wait: bool = True) -> None:
        self._folder, self._busy, self._wait = folder, busy, wait
        self.token = uuid.uuid4().hex[:12]
        self._path, self._lock_path = folder / _LEASE_FILE, folder / "lock"
        self._stopped, self._pid = threading.Event(), os.getpid()
        self._heartbeat = threading.Thread(target=self._renew, name="heartbeat", daemon=True)
        self._lock = -1

    def take(self) -> None:
        """Take the lease, once. An interrupt may come at any moment, so the caller plans `release` before.

        Raises:
            BusyError: Another process owns it.
            FileNotFoundError: The folder is gone: its last owner has just removed it.
            ResourceError: The lease file cannot be written.
        """
        locked: bool | None = None
        try:
            locked = self._flock()
            self._own()
            processes.add_cleanup(self.release)
            self._heartbeat.start()
        except BaseException as error:  # an interrupt too: leave nothing
            if locked is not None and not self._path.exists():
                self._leave() if locked else self._remove_folder()  # its owner left while our draft was in it
            self.release()
            if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                raise cannot_write(self._path, error) from error
            raise

    def _flock(self) -> bool:
        """Take the kernel lock, which ends with its owner; False where the file system has no locks."""
        self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not isinstance(error, BlockingIOError):
                return False
            raise self._busy(_name_of(_read_lease(self._path))) from None
        if not is_same_file(self._lock_path, self._lock):
            raise FileNotFoundError(self._lock_path)
        return True

    def _own(self) -> None:
        """Create the lease file: by one process only, and complete or not at all."""
        draft = self._folder / f"{self.token}.lease"
        try:
            draft.write_text(json.dumps({"token": self.token, **asdict(this_process())}), encoding="utf-8")
            while True:
                try:
                    _name_if_free(draft, self._path)
                    return
                except FileExistsError:
                    self._remove_dead()
        finally:
            draft.unlink(missing_ok=True)

    def _remove_dead(self) -> None:
        """Remove the lease file if its owner is dead."""
        seen = _read_lease(self._path)
        if seen is None:
            return  # just released
        if not self._is_dead(seen):
            raise self._busy(_name_of(seen))
        taken = self._folder / f"{self.token}.dead"
        try:
            self._path.rename(taken)
        except FileNotFoundError:
            return
        found = _read_lease(taken)
        if found is not None and found.text != seen.text:  # another process was faster
            taken.rename(self._path)
            raise self._busy(_name_of(found))
        taken.unlink()

    def _is_dead(self, seen: _LeaseFile) -> bool:
        """Check whether the owner has ended. A lock proves nothing, since each mount may have its own."""
        gone = None if seen.owner is None else seen.owner.is_gone()
        if gone is not None:
            return gone
        if time.time() - seen.time_ns / 1e9 > LONG_SILENT_S:
            return True
        return self._wait and not self._is_renewed(seen)

    def _is_renewed(self, seen: _LeaseFile) -> bool:
        """Watch a lease for as long as a running owner could be silent. No two clocks are compared."""
        until, pause_s = time.monotonic() + SILENT_S, min(1.0, HEARTBEAT_S / 2)
        with progress(None, f"check whether {_name_of(seen)} still runs", unit="checks") as bar:
            while time.monotonic() < until:
                time.sleep(pause_s)
                bar.advance()
                now = _read_lease(self._path)
                if now != seen:
                    return now is not None
        return False

    def _renew(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError):  # the storage may answer next time
                if self.is_ours():
                    os.utime(self._path)

    def is_ours(self) -> bool:
        """Check whether the lease file still belongs to this process."""
        found = _read_lease(self._path)
        return found is not None and found.token == self.token

    def check(self) -> None:
        """Raise PackError if another process has taken over."""
        if not self.is_ours():
            raise PackError(
                f"another run took over {self._folder}, since this one was silent for too long",
                expected="to be the only run that writes there",
                next_step="Let the other run finish; if there is none, run this again",
            )

    def release(self) -> None:
        """End the lease, and remove the folder if nothing else is in it; a second call does nothing."""
        if os.getpid() != self._pid:
            return  # a forked child inherits the signal handlers
        processes.remove_cleanup(self.release)
        self._stopped.set()
        with contextlib.suppress(RuntimeError):  # it did not start
            self._heartbeat.join(_JOIN_S)
        with contextlib.suppress(OSError):  # a client that was killed answers neither this nor the closing
            if self._lock >= 0 and self.is_ours():
                self._leave()
        self._unlock()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            for half in (*self._folder.glob("*.lease"), *self._folder.glob("*.dead")):
                half.unlink()  # of a killed run; a running one creates its own again
            self._path.unlink(missing_ok=True)  # before the lock: the next owner creates its own
        self._remove_folder()

    def _remove_folder(self) -> None:
        with contextlib.suppress(OSError):
            if not {path.name for path in self._folder.iterdir()} - {"lock"}:
                self._lock_path.unlink()  # while locked: whoever has just opened it sees that
            self._folder.rmdir()

    def _unlock(self) -> None:
        descriptor, self._lock = self._lock, -1
        with contextlib.suppress(OSError):
            if descriptor >= 0:
                os.close(descriptor)


@dataclass(frozen=True)
class _LeaseFile:
    """Content of a lease file, and when it was renewed: any change shows that its owner runs."""

    text: str
    time_ns: int
    inode: int
    token: str
    owner: Owner | None  # None if the content is incomplete, or of another version


def _read_lease(path: Path) -> _LeaseFile | None:
    """Read the lease file as it is now, or return None if it does not exist."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            found, text = os.fstat(file.fileno()), file.read()
    except FileNotFoundError:
        return None
    token, owner = "", None
    with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
        record = json.loads(text)
        token = str(record.pop("token"))
        owner = Owner(**record)
    return _LeaseFile(text, found.st_mtime_ns, found.st_ino, token, owner)


def _name_if_free(draft: Path, path: Path) -> None:
    """Give a file a second name that is free; copy it where there are no hard links."""
    try:
        os.link(draft, path)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:
        with path.open("x", encoding="utf-8") as file:
            file.write(draft.read_text(encoding="utf-8"))


def _name_of(found: _LeaseFile | None) -> str:
    owner = found.owner if found is not None else None
    return "another process" if owner is None else f"{owner.text} on {owner.host or 'an unknown machine'}"


def folder_name(kind: str = "") -> str:
    """Return the name of the private folder. It tells an administrator whose memory it occupies."""
    return f"{PREFIX}{kind}{os.geteuid()}"


def private_folder(place: Path, kind: str = "") -> Path:
    """Return the private folder of this user in `place`, and create it if it is missing.

    Args:
        place: A directory that other users may share.
        kind: What the folder contains, if not staged copies.

    Raises:
        ResourceError: Its name is taken, other users could tamper with it, or it cannot be created.
    """
    return _make_private(place / folder_name(kind))


def _make_private(folder: Path) -> Path:
    with writing(folder.parent):
        around = folder.parent.stat()
    _refuse_open_place(folder.parent, around)
    with writing(folder):
        while True:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            try:
                check(folder)
            except FileNotFoundError:
                continue  # the last user has just removed it
            return folder


def existing_folder(place: Path, kind: str = "") -> Path | None:
    """Return the private folder in `place` if it exists and is safe. Nothing is created or changed."""
    folder = place / folder_name(kind)
    try:
        _refuse_open_place(place, place.stat())
        check(folder)
    except (OSError, ResourceError):
        return None
    return folder


def check(folder: Path) -> None:
    """Raise ResourceError unless `folder` is a real folder of this user that no other user may enter."""
    found = folder.lstat()
    problem = None
    if stat.S_ISLNK(found.st_mode):
        problem = "is a symbolic link, perhaps planted by another user"
    elif not stat.S_ISDIR(found.st_mode):
        problem = "is not a folder"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to another user (uid {found.st_uid})"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        problem = f"is open to others (mode {stat.S_IMODE(found.st_mode):o})"
    if problem is not None:
        raise ResourceError(
            f"{folder} {problem}",
            expected="a folder of yours with mode 700, or none",
            next_step="Remove it if it is yours, report it to your site if it is not, or choose another "
            "place with --where",
        )


def _refuse_open_place(place: Path, found: os.stat_result) -> None:
    """Refuse a place where other users may replace the private folder by theirs."""
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise ResourceError(
            f"all users may rename the files of {place} (mode {stat.S_IMODE(found.st_mode):o})",
            expected="a place with the sticky bit, as /dev/shm has, or one of your own",
            next_step="Choose another place with --where",
        )
