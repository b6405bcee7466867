"""Which names may travel: a key is a relative, normalised POSIX path that stays inside its folder.

Everything that reads names from outside (manifests, tar members, archives) or writes files by
name asks here first, so that no hostile `../../.bashrc` leaves its folder.

The trap: `Path("/data") / "/etc/passwd"` is `/etc/passwd`, and `os.path.normpath` quietly repairs what
should be refused. Nothing is repaired here. Notebook 02 teaches it.
"""

from __future__ import annotations

MAX_COMPONENT_BYTES = 255


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
