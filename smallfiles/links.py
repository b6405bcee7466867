"""One rule for the links of all sources: a link may lead anywhere inside of the data set, but not out of it.

A data set from elsewhere must not make us pack files of this computer. But data sets that consist of links
into a store are common on clusters. So a link that leads out of the tree is refused with its target, and
`--follow-links` allows such links for a folder that the user trusts.

The trap: a path without any dots may still lead out of the tree, through a link to a folder. So the real path
counts. Links inside of archives are followed within the archive, as if it were unpacked. Notebook 02 shows
the layouts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pysquashfs.names import Names
from smallfiles.errors import LinkError, SourceError, first_few
from smallfiles.folders import FILE_SUFFIXES, is_hidden
from smallfiles.progress import plural

BROKEN, LOOP = "a broken link", "a link that leads to itself"
PARENT, SECOND = "a link to a folder that contains it", "a link reached through links"
_MOST_HOPS = 40


def is_within(path: str, folder: str) -> bool:
    """Return whether a real path is a folder or lies inside of it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def leading_out(where: object, links: Sequence[str]) -> LinkError:
    """Return the error for links out of a folder, each given as `link -> target`."""
    count = plural(len(links), "link")
    return LinkError(
        f"{where} has {count} out of the folder, which only --follow-links allows: "
        f"{first_few(links, len(links))}",
        expected="links to files and folders inside of it",
        next_step="Add --follow-links if these files belong to the data set; remove the links if they do not",
    )


def refuse_lost_folders(where: object, left: Sequence[str], is_filled: Callable[[str], bool]) -> None:
    """Refuse a source that loses a whole folder of samples because its links lead nowhere.

    Args:
        where: The source.
        left: The links that were not followed, each with its reason in brackets.
        is_filled: Whether a folder has files that can be read, at any depth.

    Raises:
        SourceError: There is such a folder.
    """
    nowhere = (f" ({BROKEN})", f" ({LOOP})")
    names = [text[: text.rindex(" (")] for text in left if text.endswith(nowhere)]
    folders = {name.rpartition("/")[0] for name in names if name.lower().endswith(FILE_SUFFIXES)}
    if lost := sorted(folder for folder in folders if folder and not is_filled(folder)):
        examples = [name for name in names if name.rpartition("/")[0] in lost]
        raise SourceError(
            f"{where} has {plural(len(lost), 'folder')} with nothing but links that lead nowhere: "
            f"{first_few(lost, len(lost))} (for example {examples[0]})",
            expected="the files that these links name",
            next_step="Fetch them (git annex get, datalad get), or remove these folders",
        )


class Boundary:
    """Keeps what is read inside of a folder.

    Args:
        root: The folder.
        follow_links: Allow links that lead out of it.
    """

    def __init__(self, root: Path, *, follow_links: bool = False) -> None:
        self.root = str(root).rstrip("/") + "/"
        self.follow_links = follow_links
        self._real = os.path.realpath(root)
        self._inside: set[str] = set()

    def check(self, path: str) -> None:
        """Refuse a path, relative to the root, that leads out of it.

        Raises:
            LinkError: It does; names the link and its target.
        """
        if self.follow_links or is_within(os.path.realpath(self.root + path), self._real):
            return
        parts, at = path.split("/"), 1
        while at < len(parts) and is_within(os.path.realpath(self.root + "/".join(parts[:at])), self._real):
            at += 1
        link = "/".join(parts[:at])
        raise leading_out(self.root[:-1], [f"{link} -> {os.path.realpath(self.root + link)}"])

    def check_folder_of(self, path: str) -> None:
        """Refuse a file whose folder is outside; each folder is looked up once."""
        folder = path.rpartition("/")[0]
        if folder not in self._inside:
            self.check(folder)
            self._inside.add(folder)

    def stat(self, path: str) -> os.stat_result:
        """Return the status of a file, following the link if it is one.

        Raises:
            LinkError: The link leads out of the folder.
            OSError: The file cannot be looked up.
        """
        self.check_folder_of(path)
        about = os.lstat(self.root + path)
        if stat.S_ISLNK(about.st_mode):
            about = os.stat(self.root + path)  # noqa: PTH116
            self.check(path)
        return about


@dataclass(frozen=True)
class Followed:
    """The links of an archive, as if it were unpacked.

    Args:
        files: The name of each linked file, and the number of the file that it leads to.
        folders: Links to folders, and the folders in these.
        left: Links that were not followed, each with its reason in brackets.
        out: Links that lead out of the archive, as `link -> target`.
    """

    files: list[tuple[bytes, int]] = field(default_factory=list)
    folders: list[bytes] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    out: list[str] = field(default_factory=list)


def follow(files: Names, folders: Sequence[bytes], links: Mapping[bytes, tuple[bytes, bool]]) -> Followed:
    """Follow the links of an archive, by the rules of a walk over the unpacked tree.

    Args:
        files: The names of its files, sorted.
        folders: The names of its folders, so far as they have members of their own.
        links: Target of each link, and whether it is a hard link, whose target is the name of a member.
    """
    found, known = Followed(), set(folders)
    to_folders: dict[bytes, bytes] = {}
    for name, (target, is_hard) in sorted(links.items()):
        if _is_hidden(name):
            continue
        end = _end(name, target, is_hard, links)
        text = _text(name)
        if end is None:
            found.out.append(f"{text} -> {_text(target)}")
        elif isinstance(end, str):
            found.left.append(f"{text} ({end})")
        elif (row := files.find(end)) >= 0:
            found.files.append((name, row))
        elif not end or end in known or len(files.below(end)):
            to_folders[name] = end
        else:
            found.left.append(f"{text} ({BROKEN})")
    _enter(files, to_folders, known, found)
    return found


def _enter(files: Names, to_folders: Mapping[bytes, bytes], known: set[bytes], found: Followed) -> None:
    """Add what is in linked folders. As in a walk, a link to a folder in these is not followed."""
    parents = {name for name, folder in to_folders.items() if _contains(folder, name.rpartition(b"/")[0])}
    linked, left = tuple(found.files), tuple(found.left)
    found.left.extend(f"{_text(name)} ({PARENT})" for name in sorted(parents))
    for name, folder in to_folders.items():
        if name in parents:
            continue
        start = len(folder) + 1 if folder else 0
        inside = [(files.raw(row), row) for row in files.below(folder)]
        inside += [each for each in linked if _contains(folder, each[0])]
        found.files.extend((b"%b/%b" % (name, each[start:]), row) for each, row in inside)
        below = [each[start:] for each in known if each != folder and _contains(folder, each)]
        found.folders.extend([name, *(b"%b/%b" % (name, each) for each in below)])
        others = [each for each in to_folders if each != name and _contains(folder, each)]
        again = [f"{_text(each)} ({PARENT if each in parents else SECOND})" for each in others]
        prefix = f"{_text(folder)}/" if folder else ""
        found.left.extend(
            f"{_text(name)}/{each.removeprefix(prefix)}"
            for each in (*again, *left)
            if each.startswith(prefix)
        )


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _contains(folder: bytes, path: bytes) -> bool:
    return not folder or path == folder or path.startswith(folder + b"/")


def _is_hidden(name: bytes) -> bool:
    return any(is_hidden(part) for part in _text(name).split("/"))


def _end(
    name: bytes, target: bytes, is_hard: bool, links: Mapping[bytes, tuple[bytes, bool]]
) -> bytes | str | None:
    """Return the path to which a link finally leads, why it leads nowhere, or None if it leads out."""
    path = [] if is_hard else name.split(b"/")[:-1]
    rest, hops = list(_parts(target)), 0
    if target.startswith(b"/") and not is_hard:
        return None
    while rest:
        part = rest.pop(0)
        if part == b"..":
            if not path:
                return None
            path.pop()
            continue
        path.append(part)
        onward = links.get(b"/".join(path))
        if onward is None:
            continue
        hops += 1
        if hops > _MOST_HOPS:
            return LOOP
        target, is_hard = onward
        if target.startswith(b"/") and not is_hard:
            return None
        path = [] if is_hard else path[:-1]
        rest = [*_parts(target), *rest]
    return b"/".join(path)


def _parts(target: bytes) -> Iterator[bytes]:
    return (part for part in target.split(b"/") if part not in (b"", b"."))
