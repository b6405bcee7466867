"""Every error is a sentence: what we got, what we expected, what to do next.

A traceback from a library stops a participant. So each failure that a user or a file system can cause is
raised as one of these, and the command line prints only the sentence and exits with code 1 (2 for a
senseless command line).

    SmallfilesError
    ├── UsageError            the command or the call makes no sense
    ├── MissingPackageError   a package is not installed, or cannot be loaded
    ├── SourceError           a source tree, archive or file is not what it should be
    │   └── LinkError         … because a link leads out of it
    ├── ManifestError         a manifest is wrong
    ├── FormatError           a packed file is not what it should be
    │   ├── DamagedFileError  … because bytes are missing or changed
    │   └── ReaderClosedError … because it was closed
    ├── OutputExistsError     we would have to overwrite something
    ├── PackError             packing stopped; nothing was published
    │   └── BusyError         … because another run writes the same
    ├── ResourceError         not enough space, inodes or memory
    │   └── StorageError      … since the storage of a file did not answer
    └── SubmitError           a job was not submitted

What the system refuses has one of three causes, which `fault_of` tells apart by the number of the error:
the content (a file is missing, unreadable or damaged, and `on_error` may leave it out), the storage (it did
not answer, which `smallfiles.storage` waits for), or a shortage of this machine. Only the first one is a
fault of a sample.

The trap: a name in a message may move the cursor of a terminal, an entry may be a megabyte long, and a list
of faults a million lines. So names are escaped, entries are cut, and only the first few are listed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pysquashfs.text import foreign_encoding

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_LONGEST = 120  # characters of one entry in a message
NEXT_STEP = "Correct the entries, or make the manifest again: smallfiles manifest"
_ROOM = "Free some (check both df -h and df -i, or your site's quota command) and run it again"
_UTF8_MODE = "for names in UTF-8 start it again after: export PYTHONUTF8=1"
_RIGHTS = "Check its owner and permissions, or choose another place"
_MEMORY = "Ask for more memory, or run fewer processes on this node"
_BY_ERRNO: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("free blocks and free inodes", _ROOM),
    errno.EDQUOT: ("room within your quota of blocks and files", _ROOM),
    **dict.fromkeys((errno.EACCES, errno.EPERM), ("permission to use it", _RIGHTS)),
    errno.EROFS: ("a file system that may be written to", _RIGHTS),
    errno.ENOENT: ("a file or folder of that name, in folders that exist", "Check the path"),
    errno.ENOTDIR: ("a folder", "Check the path"),
    errno.EISDIR: ("a file", "Check the path"),
    errno.EMFILE: ("room for more open files", "Raise the limit (ulimit -n)"),
    errno.ENFILE: ("room for more open files on this machine", "Run it again when less is open here"),
    **dict.fromkeys((errno.ENOMEM, errno.ENOBUFS), ("enough memory", _MEMORY)),
    errno.ENAMETOOLONG: ("names of at most 255 bytes", "Choose a shorter name"),
}
"""What a number of the system means: what it would need, and what to do next."""
_NAMES_LOOKED_AT = 10_000
_SIMILAR = 0.7
_OURS = ("smallfiles", "pysquashfs", "helpers", "exercises", "benchmarks")
_PACKAGES = {"PIL": "pillow"}  # whose module has another name


_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_OF_STORAGE = """
    EIO ENXIO ENODEV ENOMEDIUM EREMOTEIO EUCLEAN EBADMSG
    ESTALE ENOTCONN ESHUTDOWN ECONNRESET ECONNREFUSED ECONNABORTED EPIPE ENOLINK ECOMM EPROTO
    ETIMEDOUT ETIME EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ENETRESET ENONET
    ENOKEY EKEYEXPIRED EKEYREVOKED EKEYREJECTED
"""
_STORAGE = frozenset(getattr(errno, name) for name in _OF_STORAGE.split() if hasattr(errno, name))
"""A disk or a server that did not answer; the file that it holds is neither damaged nor missing."""
_STORAGE_STEP = "Check the file system (ls, df), or ask your site; then run the same command again"
_IN_TEXT = re.compile(r"\berrno = (\d+)")  # how HDF5 names it


def printable(text: str) -> str:
    r"""Write control characters as escapes: a name must not move the cursor of a terminal or recolour it.

    Line ends, C0 and C1 controls and those that turn the direction of text; all else stays.

    Example:
        >>> printable("cat\x1b[2J.jpg")
        'cat\\x1b[2J.jpg'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class SmallfilesError(Exception):
    """A failure as a sentence; control characters in names are written as escapes.

    Args:
        got: What we found, with the path; no full stop.
        expected: What should have been there.
        next_step: What the reader can do now, in the imperative.
    """

    def __init__(self, got: str, *, expected: str, next_step: str) -> None:
        self.got = printable(got).rstrip(". ")
        self.expected = printable(expected).rstrip(". ")
        self.next_step = printable(next_step).rstrip(". ")
        sentence = f"{self.got}; expected {self.expected}. {self.next_step}."
        if not got.isascii() and (encoding := foreign_encoding()):
            sentence += f" This Python reads file names as {encoding}; {_UTF8_MODE}."
        super().__init__(sentence)

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers send errors to their parent by pickle; keyword-only arguments need help there.
        return _rebuild, (type(self), self.got, self.expected, self.next_step)


def _rebuild(kind: type[SmallfilesError], got: str, expected: str, next_step: str) -> SmallfilesError:
    return kind(got, expected=expected, next_step=next_step)


class UsageError(SmallfilesError):
    """The command or the call makes no sense."""


class MissingPackageError(SmallfilesError):
    """A package is not installed, or what is installed cannot be loaded."""

    @classmethod
    def of(cls, package: str, purpose: str) -> MissingPackageError:
        """Return the sentence with the line that installs `package` alone."""
        return cls(
            f"the Python package {package} is not installed",
            expected=f"it for {purpose}",
            next_step=f"Run: {package_line(package)}",
        )

    @classmethod
    def of_import(cls, error: Exception, purpose: str = "this command") -> MissingPackageError | None:
        """Return the sentence for an import that failed; None if no package is the reason.

        Args:
            error: What was raised. It may be any exception, if it comes from the code of a package that was
                being imported: PyTorch raises OSError if a library of CUDA is missing.
            purpose: What the package is needed for.
        """
        root = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        broken = _imported_package(error)
        is_missing = isinstance(error, ModuleNotFoundError) and root != broken
        root = root if is_missing else broken or root
        if root in {"", *_OURS, *sys.stdlib_module_names}:
            return None
        package = _PACKAGES.get(root, root)
        if is_missing:
            return cls.of(package, purpose)
        return cls(
            f"the installed Python package {package} cannot be loaded ({first_line(error)})",
            expected=f"it for {purpose}",
            next_step="Load the module of your site that belongs to it, or install it again: "
            + package_line(package, flags="--force-reinstall "),
        )


def _imported_package(error: BaseException) -> str | None:
    """Return the package of others whose code was being imported when an error was raised, if any."""
    if isinstance(error, OSError) and error.errno is not None:
        return None  # a fault of the storage
    trace = error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if trace.tb_frame.f_code.co_name == "<module>" and name not in {"__main__", "", *_OURS}:
            return None if name in sys.stdlib_module_names else name
        trace = trace.tb_next
    return None


def package_line(*packages: str, flags: str = "") -> str:
    """Return the line that installs packages in versions that fit; in a clone the pinned ones.

    Args:
        packages: Their names, with `-` or `_`.
        flags: Further words for pip, with a space at their end.
    """
    known = {name.lower().replace("_", "-"): line for name, line, _ in _required()}
    wanted = [known.get(name.lower().replace("_", "-"), name) for name in packages]
    pins = f"-c {shlex.quote(str(_LOCK))} " if _LOCK.is_file() else ""
    return f"python -m pip install {flags}{pins}{shlex.join(wanted)}"


def install_line(extra: str) -> str:
    """Return the line that installs an extra: in a clone the project with its pins, elsewhere the packages.

    Args:
        extra: Its name; empty for what always comes along.
    """
    if _LOCK.is_file():
        return f"python -m pip install -c {_LOCK.name} -e '.{f'[{extra}]' if extra else ''}'"
    packages: list[str] = []
    extras = [extra]
    for each in extras:  # which grows, for an extra may hold others
        for _, requirement, of in _required():
            inner = re.fullmatch(r"smallfiles\[(.+)\]", requirement)
            if of == each and inner:
                extras += inner[1].split(",")
            elif of == each:
                packages.append(requirement)
    return f"python -m pip install {shlex.join(packages)}"


_LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"


def _required() -> Iterator[tuple[str, str, str]]:
    """Yield name, requirement, and extra ("" for none) of each package that the installation requires."""
    from importlib import metadata  # the help does without

    with contextlib.suppress(metadata.PackageNotFoundError):
        for line in metadata.requires("smallfiles") or ():
            extra = re.search(r'(?: and |; )?extra == "([^"]+)"', line)
            requirement = line.replace(extra[0], "") if extra else line
            yield re.split(r"[^\w.-]", line)[0], requirement.strip(), extra[1] if extra else ""


class SourceError(SmallfilesError):
    """A source tree, an archive, or a file does not have the expected content."""


class LinkError(SourceError):
    """A link leads out of a source. Only the user can allow this, so `on_error` does not apply."""


class ManifestError(SmallfilesError):
    """A manifest is wrong."""


class FormatError(SmallfilesError):
    """A packed file does not have the expected content."""


class DamagedFileError(FormatError):
    """A packed file has missing or changed bytes."""


class ReaderClosedError(FormatError):
    """A reader was used after `close()`."""


class OutputExistsError(SmallfilesError):
    """The output exists already, and writing would replace it."""


class PackError(SmallfilesError):
    """Packing stopped; nothing was published.

    `faults` lists the samples that were the reason, where there are such.
    """

    faults: tuple[Any, ...] = ()


class BusyError(PackError):
    """Another run writes the same output."""


class ResourceError(SmallfilesError):
    """Not enough space, inodes or memory."""


class StorageError(ResourceError):
    """The storage did not answer: no file is at fault, so none is left out.

    `gave_up` is true after `smallfiles.storage` has waited for it.
    """

    gave_up = False


class SubmitError(SmallfilesError):
    """A job was not submitted."""


@contextlib.contextmanager
def raised_as(caught: type[SmallfilesError], kind: type[SmallfilesError]) -> Iterator[None]:
    """Raise an error of what is done inside as one of another kind, with the same sentence."""
    try:
        yield
    except caught as error:
        raise kind(error.got, expected=error.expected, next_step=error.next_step) from error


def like(path: Path) -> str:
    """Return ` (did you mean NAME?)` if the name of a file beside a missing one is similar, else nothing."""
    missing = next((each for each in (*reversed(path.parents), path) if not each.exists()), None)
    if missing is None:
        return ""
    with contextlib.suppress(OSError), os.scandir(missing.parent) as entries:
        names = [entry.name for entry in islice(entries, _NAMES_LOOKED_AT)]
        for name in get_close_matches(missing.name, names, 1, _SIMILAR):
            return f" (did you mean {missing.with_name(name) / path.relative_to(missing)}?)"
    return ""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or else the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def first_few(items: Iterable[object], total: int | None = None, limit: int = 5) -> str:
    """Name the first few of many: `a, b, c and 1,279 more`.

    A list of a million names is useless; the count and a few examples are enough.

    Args:
        items: Sized, unless `total` says how many there are.
        total: The number of items.
        limit: How many items are named.
    """
    shown = [printable(str(item)) for _, item in zip(range(limit), items, strict=False)]
    rest = (len(items) if total is None else total) - len(shown)  # type: ignore[arg-type] # see above
    return ", ".join(shown) + (f" and {rest:,} more" if rest > 0 else "")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of writing `path` into a sentence."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> SmallfilesError:
    """Return the error that explains in a sentence why `path` could not be written."""
    if isinstance(error, FileExistsError) and error.filename in map(str, path.parents):
        return PackError(
            f"{path} cannot be written, since {error.filename} is a file",
            expected="folders all the way to the output",
            next_step="Choose another place for the output",
        )
    if isinstance(error, FileExistsError):
        return OutputExistsError(
            f"{path} exists already",
            expected="a name that is free",
            next_step="Choose another name, or remove it if it is not needed",
        )
    return of_system(error, f"{path} cannot be written ({error.strerror or error})")


def of_system(error: OSError, got: str) -> ResourceError:
    """Return the error for an operation that the system refused. Its sentence begins with `got`."""
    if error.errno in _STORAGE:
        return StorageError(got, expected="storage that answers", next_step=_STORAGE_STEP)
    usual = ("the operation to succeed", "Check the path and the file system, then try again")
    expected, next_step = _BY_ERRNO.get(error.errno or 0, usual)
    return ResourceError(got, expected=expected, next_step=next_step)


def no_samples(path: object) -> FormatError:
    """Return the error for a packed file without a sample, of which nothing can be said or done."""
    return FormatError(
        f"{path} holds no samples",
        expected="at least one",
        next_step="Check the path and how it was packed, and pack it again",
    )


def refuse_foreign_locale(where: object) -> None:
    """Refuse names that Python has decoded by a locale other than UTF-8: classes and digests would differ.

    Args:
        where: The folder, table or output with names that are not ASCII.

    Raises:
        SourceError: This Python reads file names in another encoding. The commands never do.
    """
    if encoding := foreign_encoding():
        raise SourceError(
            f"{where} has names that are not ASCII, and this Python reads file names as {encoding}",
            expected="a Python that reads file names as UTF-8, whatever the locale",
            next_step="Start Python again after: export PYTHONUTF8=1",
        )


def fault_of(error: BaseException) -> tuple[Literal["content", "storage", "machine"], OSError | None]:
    """Decide what caused a failed read, and return the error of the system that says so.

    This is the only place that decides it. An error that no number explains is a fault of the content.

    Args:
        error: What reading ended with; what it was raised from counts too.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            return "machine", OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        if isinstance(cause, OSError):
            number = cause.errno or 0
            if not number and (named := _IN_TEXT.search(str(cause))):
                number = int(named[1])
            if number == errno.ENXIO and _is_socket(cause.filename):
                return "content", None
            if number in _STORAGE | _SHORTAGES:
                kind: Literal["storage", "machine"] = "storage" if number in _STORAGE else "machine"
                return kind, OSError(number, os.strerror(number))
        cause = cause.__cause__
    return "content", None


def _is_socket(path: object) -> bool:
    """Check whether a path is a socket. Opening a socket as a file fails with ENXIO, as in an outage."""
    try:
        return isinstance(path, str | bytes | Path) and stat.S_ISSOCK(Path(os.fsdecode(path)).stat().st_mode)
    except (OSError, ValueError):
        return False


def refuse_shortage(error: BaseException, path: object) -> None:
    """Raise ResourceError if a file was not read for a lack of this machine, or since its storage is away.

    Everything that takes a failed read for damage asks here first: a sound file that could not be opened
    for want of a descriptor must not be copied again, nor its samples be left out.

    Args:
        error: What reading ended with; what it came from counts too.
        path: What was read.

    Raises:
        StorageError: The storage did not answer.
        ResourceError: This machine has no descriptor or no memory left.
    """
    _, cause = fault_of(error)
    if cause is not None:
        raise of_system(cause, f"{path} could not be read ({cause.strerror})") from error


def fault(got: str, expected: str, next_step: str = NEXT_STEP) -> ManifestError:
    """Return a ManifestError with the usual next step."""
    return ManifestError(got, expected=expected, next_step=next_step)


@contextlib.contextmanager
def summary_of(path: Path) -> Iterator[None]:
    """Put the name of the file in front of a fault in its columns."""
    try:
        yield
    except ManifestError as error:
        raise ManifestError(
            f"{path}: {error.got}", expected=error.expected, next_step=error.next_step
        ) from error


def counted(items: Sized, what: str) -> str:
    """Format a count with noun and verb: `1 path is`, `3 paths are`, `3 entries are`."""
    if len(items) == 1:
        return f"1 {what} is"
    return f"{len(items):,} {what[:-1] + 'ie' if what.endswith('y') else what}s are"


def named(names: Iterable[str], total: int, problem: Callable[[str], str | None]) -> str:
    """Format the first few names, each with its problem."""
    return first_few((f"{short(name)} {problem(name) or ''}".rstrip() for name in names), total)


def short(value: object) -> str:
    """Return the `repr` of an entry, shortened."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    text = ascii(value) if isinstance(value, str) and not is_utf8(value) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}… ({len(text):,} characters)"


def is_utf8(text: str) -> bool:
    """Check whether text can be stored in UTF-8. JSON allows half a surrogate pair, UTF-8 does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
