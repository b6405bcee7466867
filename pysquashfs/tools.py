"""Pack with `mksquashfs` or `gensquashfs`, with the settings that suit photographs, and nothing else.

Both get a list of names and paths, so no temporary tree is made; what comes as bytes goes to `mksquashfs`
as a tar stream, and is spooled to files for `gensquashfs`.

The trap: without `-noappend`, `mksquashfs` adds `name_1` copies to an image that is there; with
SOURCE_DATE_EPOCH set it refuses to be told a time; and a file that it cannot read becomes an empty one.
Notebook 06 compares what the tools make.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO

from pysquashfs import superblock
from pysquashfs.errors import MissingToolError, SquashFSError
from pysquashfs.image_file import ImageFile
from pysquashfs.writer.output import written
from pysquashfs.writer.settings import Settings
from pysquashfs.writer.sources import Item
from pysquashfs.writer.tree import Tree

_INSTALL = {
    "mksquashfs": "apt-get install squashfs-tools, or conda install -c conda-forge squashfs-tools",
    "gensquashfs": "apt-get install squashfs-tools-ng (it is not on conda-forge)",
}
_CHUNK_BYTES = 1 << 20
_NO_LEVELS = {"mksquashfs": ("xz",), "gensquashfs": ()}


def run(tool: str, out: Path, items: Iterable[Item], settings: Settings) -> tuple[int, int]:
    """Have a tool write an image.

    Args:
        tool: "mksquashfs" or "gensquashfs".
        out: A file that is replaced.
        items: As for `pack`.
        settings: As for `pack`.

    Returns:
        Number of files and their bytes.

    Raises:
        SquashFSError: The tool is missing or failed, or an item cannot be packed.
    """
    program = find(tool)
    if settings.level is not None and settings.compression in _NO_LEVELS[tool]:
        raise SquashFSError(
            f"{tool} was asked for level {settings.level} of {settings.compression}",
            expected="no level, since it has none there",
            next_step="Leave the level out",
        )
    with _emptied(out.with_name(f"{out.name}.files")) as folder:
        items = iter(items)
        first = list(itertools.islice(items, 1))
        streamed = tool == "mksquashfs" and bool(first) and not isinstance(first[0][1], Path)
        work = _Work(folder, itertools.chain(first, items))
        if streamed:
            _run([program, "-", out, "-tar", *_mksquashfs_flags(settings)], work.send_tar)
        elif tool == "mksquashfs":
            empty = folder / "empty"
            with written(empty):
                empty.mkdir()
            empty.chmod(0o755)  # becomes the root of the image
            names = work.write_list(_pseudo_lines)
            _run([program, empty, out, "-pf", names, *_mksquashfs_flags(settings)])
        else:
            names, sort = work.write_list(_gen_lines), _sort_file(folder, settings)
            _run([program, "-F", names, "-S", sort, *_gensquashfs_flags(settings), out])
    _check(out, tool, work.tree.files + work.tree.folders)
    return work.tree.files, work.bytes


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder for this run alone; of that name, so that the next run clears what a killed one left."""
    shutil.rmtree(folder, ignore_errors=True)
    with written(folder):
        folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find(tool: str) -> str:
    """The path of a tool.

    Raises:
        MissingToolError: It is not installed; the sentence has the line that does it.
    """
    found = shutil.which(tool)
    if found is None:
        raise MissingToolError(
            f"the command {tool} is not installed",
            expected=f"it, since tool={tool!r} was asked for",
            next_step=f'Run: {_INSTALL[tool]}; or use tool="python", which needs nothing',
        )
    return found


class _Work:
    """Hands items over to a tool, and counts them."""

    def __init__(self, folder: Path, items: Iterable[Item]) -> None:
        self.tree = Tree()
        self.bytes = 0
        self._folder = folder
        self._items = items

    def write_list(self, lines: Callable[[Tree, str, Path], bytes]) -> Path:
        """A list of all files for the tool."""
        path = self._folder / "list"
        with path.open("wb") as file:
            for name, source in self._items:
                number = self.tree.add(name)
                if not isinstance(source, Path):
                    spooled = self._folder / f"file{number}"
                    with written(spooled):
                        spooled.write_bytes(source)
                    source = spooled
                self.bytes += _size(source)
                with written(path):
                    file.write(lines(self.tree, name, source.absolute()))
        self.tree.check_unique()
        return path

    def send_tar(self, stream: IO[bytes]) -> None:
        """All files as a tar, in the order of the items."""
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_CHUNK_BYTES) as tar:
            for name, source in self._items:
                self.tree.add(name)
                entry = tarfile.TarInfo(name)
                entry.size = _size(source) if isinstance(source, Path) else len(source)
                self.bytes += entry.size
                with _opened(source) as file:
                    tar.addfile(entry, file)
        self.tree.check_unique()


@contextmanager
def _opened(source: object) -> Iterator[IO[bytes]]:
    if not isinstance(source, Path):
        yield BytesIO(source)  # type: ignore[arg-type]
        return
    try:
        with source.open("rb") as file:
            yield file
    except OSError as error:  # tarfile raises one when a file has become shorter
        raise _unreadable(source, error) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> SquashFSError:
    return SquashFSError(
        f"{path} cannot be read ({error.strerror or error})",
        expected="a regular file that stays while it is packed",
        next_step="Check it, and pack again",
    )


def _pseudo_lines(tree: Tree, name: str, source: Path) -> bytes:
    """What `mksquashfs -pf` reads; folders must come before what is in them."""
    lines = [b"%b d 0755 0 0" % _quoted(folder) for folder in tree.new_folders()]
    lines.append(b"%b l %b" % (_quoted(os.fsencode(name)), _quoted(os.fsencode(source))))
    return _joined(lines, name, source)


def _gen_lines(tree: Tree, name: str, source: Path) -> bytes:
    """What `gensquashfs -F` reads; folders are made as needed, and the path is the rest of the line."""
    line = b"file %b 0644 0 0 %b" % (_quoted(b"/" + os.fsencode(name)), os.fsencode(source))
    return _joined([line], name, source)


def _joined(lines: list[bytes], name: str, source: Path) -> bytes:
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise SquashFSError(
            f"the name {name!r} or the path {str(source)!r} holds the end of a line",
            expected="names that fit into the list which the tool reads",
            next_step='Use tool="python", which takes every name',
        )
    return b"\n".join([*lines, b""])


def _quoted(name: bytes) -> bytes:
    return b'"%b"' % name.replace(b"\\", rb"\\").replace(b'"', rb"\"")


def _sort_file(folder: Path, settings: Settings) -> Path:
    """Flags of all files for `gensquashfs -S`."""
    flags = ["glob_no_path"]
    flags += ["dont_compress"] if settings.raw else []
    flags += [] if settings.fragments else ["dont_fragment"]
    flags += [] if settings.deduplicate else ["dont_deduplicate"]
    path = folder / "sort"
    with written(path):
        path.write_text(f"0 [{','.join(flags)}] *\n", encoding="ascii")
    return path


def _mksquashfs_flags(settings: Settings) -> list[str]:
    words = ["-noappend", "-no-progress", "-quiet", "-exit-on-error", "-no-hardlinks"]
    words += ["-comp", settings.image_compressor, "-b", str(settings.block_bytes), "-no-xattrs"]
    words += ["-all-root", "-mkfs-time", "0", "-all-time", "0", "-root-mode", "755", "-no-exports"]
    words += ["-processors", str(settings.usable_threads)]
    words += ["-noD", "-noF"] if settings.raw else []
    words += ["-always-use-fragments"] if settings.fragments else ["-no-fragments"]
    words += [] if settings.deduplicate else ["-no-duplicates"]
    if settings.compression == "lz4":
        return [*words, "-Xhc"] if settings.level else words
    return words if settings.level is None else [*words, "-Xcompression-level", str(settings.level)]


def _gensquashfs_flags(settings: Settings) -> list[str]:
    words = ["-f", "-q", "-c", settings.image_compressor, "-b", str(settings.block_bytes)]
    words += ["-j", str(settings.usable_threads)]
    if settings.compression == "lz4":
        return [*words, "-X", "hc"] if settings.level else words
    return words if settings.level is None else [*words, "-X", f"level={settings.level}"]


def _run(command: list[str | Path], feed: Callable[[IO[bytes]], None] | None = None) -> None:
    """Run a tool to its end; kill it if what feeds it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    with tempfile.TemporaryFile() as messages:
        source = subprocess.PIPE if feed else subprocess.DEVNULL
        with subprocess.Popen(
            command, stdin=source, stdout=messages, stderr=subprocess.STDOUT, env=environment
        ) as process:
            try:
                if feed is not None and process.stdin is not None:
                    _feed(feed, process.stdin)
                code = process.wait()
            except BaseException:
                process.kill()
                with suppress(OSError):  # what was still to be sent
                    if process.stdin is not None:
                        process.stdin.close()
                raise
        messages.seek(0)
        told = messages.read(1 << 16).decode(errors="replace").strip().splitlines()
    if code != 0:
        name = Path(command[0]).name
        reason = next((line for line in told if line.strip()), "it said nothing")
        raise SquashFSError(
            f"{name} failed with code {code} ({reason.strip()})",
            expected="an image",
            next_step=f'Correct what it says, or use tool="python" (its version: {name} --version)',
        )


def _feed(feed: Callable[[IO[bytes]], None], stream: IO[bytes]) -> None:
    try:
        feed(stream)
        stream.close()
    except BrokenPipeError:
        pass  # the tool ended early; its exit code tells


def _check(out: Path, tool: str, entries: int) -> None:
    """The tools can leave out what they could not read, and still end well."""
    found = superblock.read(ImageFile(out)).inodes
    if found != entries:
        raise SquashFSError(
            f"{tool} made an image of {found:,} files and folders",
            expected=f"{entries:,}",
            next_step='Use tool="python"',
        )
