"""The right to write: locks, leases and private folders.

A kernel lock (`flock`) is released when its holder dies, also after kill -9. Some file systems have no
locks, and on some they do not reach other machines (Lustre with `localflock`, BeeGFS). So the writer of an
output also puts a lease file there and renews it; the lease of another machine has expired if it was not
renewed for a minute. Before a writer publishes, it checks that the lease is still its own.

The traps: a lock on a file that its last owner has just removed locks nothing, so the name is looked up
again after locking. `/dev/shm` is open to all users, so a folder there may be a planted link.
Notebook 07 teaches both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from smallfiles import liveness, signals
from smallfiles.errors import BusyError, PackError, ResourceError, cannot_write, writing
from smallfiles.liveness import Owner, this_process
from smallfiles.progress import progress

HEARTBEAT_S = 10.0
SILENT_S = 60.0
"""The lease of another machine has expired if it was not renewed for this time."""

LONG_SILENT_S = 900.0
"""An older lease has expired without being watched; no clocks of a cluster differ by as much."""

PREFIX = "smallfiles-"

_LEASE_FILE = "owner.json"
_JOIN_S = 1.0  # a thread that waits for a dead file system longer is left to itself


def try_lock(path: Path, *, shared: bool, create: bool = True) -> int | None:
    """Lock the file `path` without waiting.

    Args:
        path: A file in the private folder.
        shared: For using a copy; exclusive for making or removing it.
        create: Whether to create a missing file.

    Returns:
        The open descriptor; None if another process holds the lock (or the file is missing and not to be
        created).

    Raises:
        ResourceError: The file system has no locks, or the file cannot be created.
    """
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
        if names(path, descriptor):
            return descriptor
        os.close(descriptor)  # its last owner removed it: try again with a new one


def is_held(path: Path, *, shared: bool) -> bool:
    """Whether another process holds a lock that excludes ours; creates no file."""
    descriptor = try_lock(path, shared=shared, create=False)
    if descriptor is None:
        return path.exists()
    os.close(descriptor)
    return False


def _opened(path: Path, create: bool) -> int | None:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    while True:
        try:
            return os.open(path, flags, 0o600)
        except FileNotFoundError:
            if not create:
                return None
            _make_private(path.parent)  # the last user removed the empty folder
        except OSError as error:
            raise cannot_write(path, error) from error


def names(path: Path, descriptor: int) -> bool:
    """Whether `path` is still the file that is open."""
    try:
        found, ours = path.lstat(), os.fstat(descriptor)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def share(descriptor: int) -> None:
    """Turn an exclusive lock into a shared one; another process may get the lock in between."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_last(descriptor: int) -> bool:
    """Turn a shared lock into an exclusive one; False, and no lock at all, if others share it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


class Lease:
    """The right to write in a folder: a kernel lock where there is one, and a file that is renewed.

    Args:
        folder: The folder; must exist.
        busy: Makes the error for a folder that a running process owns, from the name of that process.
        wait: Watch the lease of another machine for a minute; otherwise its owner counts as running.

    Raises:
        BusyError: Another process owns it.
        FileNotFoundError: The folder is gone: its last owner has just removed it.
        ResourceError: The lease file cannot be written.
    """

    def __init__(self, folder: Path, busy: Callable[[str], BusyError], *, wait: bool = True) -> None:
        self._folder, self._busy, self._wait = folder, busy, wait
        self.token = uuid.uuid4().hex[:12]
        self._path, self._lock_path = folder / _LEASE_FILE, folder / "lock"
        self._stopped, self._pid = threading.Event(), os.getpid()
        self._heartbeat = threading.Thread(target=self._renew, name="heartbeat", daemon=True)
        self._lock = -1
        locked: bool | None = None
        try:
            locked = self._flock()
            self._own(locked)
            signals.add(self.release)
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
        if not names(self._lock_path, self._lock):
            raise FileNotFoundError(self._lock_path)
        return True

    def _own(self, locked: bool) -> None:
        """Create the lease file: by one process only, and complete or not at all."""
        draft = self._folder / f"{self.token}.lease"
        try:
            draft.write_text(json.dumps({"token": self.token, **asdict(this_process())}), encoding="utf-8")
            while True:
                try:
                    _name_if_free(draft, self._path)
                    return
                except FileExistsError:
                    self._remove_dead(locked)
        finally:
            draft.unlink(missing_ok=True)

    def _remove_dead(self, locked: bool) -> None:
        """Remove the lease file if its owner is dead."""
        seen = _read_lease(self._path)
        if seen is None:
            return  # just released
        if not self._is_dead(seen, locked):
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

    def _is_dead(self, seen: _LeaseFile, locked: bool) -> bool:
        owner = seen.owner
        if owner is not None and owner.boot and owner.boot == liveness.boot():
            if locked:
                return True  # a running owner on this machine would still have the lock
            if owner.world == liveness.world():
                return not owner.is_alive()
        if time.time() - seen.time_ns / 1e9 > LONG_SILENT_S:
            return True
        return self._wait and not self._is_renewed(seen)

    def _is_renewed(self, seen: _LeaseFile) -> bool:
        """Watch a lease for as long as a running owner could be silent; no two clocks are compared."""
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
        """Whether the lease file is still that of this process."""
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
        signals.remove(self.release)
        self._stopped.set()
        with contextlib.suppress(RuntimeError):  # it did not start
            self._heartbeat.join(_JOIN_S)
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
    """The lease file as it is now; None if there is none."""
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
    """Name of the private folder in any place; it tells the administrator whose memory it is."""
    return f"{PREFIX}{kind}{os.geteuid()}"


def private_folder(place: Path, kind: str = "") -> Path:
    """The private folder of this user in `place`, created if missing.

    Args:
        place: A directory that other users may share.
        kind: What is kept there, if not staged copies.

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
    """The private folder in `place` if it exists and is safe; nothing is created or changed."""
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
