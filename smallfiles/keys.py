"""Valid keys: a key is a relative, normalised POSIX path that stays inside its folder.

All code that reads names from outside (manifests, tar members, archives) or writes files by name checks them
here first, so that no hostile `../../.bashrc` leaves its folder.

The trap: `Path("/data") / "/etc/passwd"` is `/etc/passwd`, and `os.path.normpath` silently repairs names that
must be refused. Nothing is repaired here. Notebook 02 teaches it.
"""

from __future__ import annotations

import re

MAX_COMPONENT_BYTES = 255
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def key_problem(key: str) -> str | None:
    """Say what is wrong with `key` as a sample's name, or None if nothing is.

    A name that is checked once, where it comes in, can be joined to any folder later.

    Args:
        key: The proposed key.

    Returns:
        Half a sentence that fits after the key ("is an absolute path"), or None.
    """
    if not key:
        return "is empty"
    if "\0" in key:
        return "contains a NUL byte"
    if "\n" in key:  # a list of names, one a line, would hold other names
        return "contains a line break"
    if key.startswith("/"):
        return "is an absolute path"
    parts = key.split("/")
    if ".." in parts:
        return "leaves its folder through '..'"
    if "" in parts or "." in parts:
        return "is not normalised (an empty or '.' component)"
    try:
        key.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    return None


def is_writable_name(key: str) -> bool:
    """Whether a file of this name can exist on Linux (each component at most 255 bytes).

    A packed file holds longer names; only unpacking them onto a file system fails.
    """
    parts = key.encode("utf-8", "surrogatepass").split(b"/")
    return all(len(part) <= MAX_COMPONENT_BYTES for part in parts)


def printable(text: str) -> str:
    r"""`text` with control characters as escapes: a name must not move a terminal's cursor or recolour it.

    Line ends, C0 and C1 controls and those that turn the direction of text; all else stays.

    Example:
        >>> printable("cat\x1b[2J.jpg")
        'cat\\x1b[2J.jpg'
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
