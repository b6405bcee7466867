"""Names as text: UTF-8 under any locale, since an image or a packed file is read on other machines too.

Python decodes file names and the words of a command by the locale. Under `LANG=en_US` (ISO-8859-1) the file
`Bär` becomes `BÃ¤r`, and under a plain ASCII locale it becomes a name that cannot be stored. In Python's
UTF-8 mode the locale does not matter; a process can only start in it, so the commands start themselves again.
"""

from __future__ import annotations

import os
import sys


def encode(name: str) -> bytes:
    """Return the bytes of a name in an image; bytes that are not UTF-8 come back as they were."""
    return name.encode("utf-8", "surrogateescape")


def decode(name: bytes) -> str:
    """Return the text of a name in an image; see `encode`."""
    return name.decode("utf-8", "surrogateescape")


def of_listing(name: str) -> str:
    """Return a name that Python has listed, as it is under a UTF-8 locale."""
    return decode(os.fsencode(name))


def foreign_encoding() -> str | None:
    """Return the encoding in which this Python reads file names, unless it is UTF-8."""
    encoding = sys.getfilesystemencoding()
    return None if encoding.lower().replace("-", "") == "utf8" else encoding


def like_this() -> list[str]:
    """Return the words that start another Python with the same encoding of file names."""
    return [sys.executable, "-X", f"utf8={sys.flags.utf8_mode}"]


def restart_in_utf8_mode() -> None:
    """Start this command again in Python's UTF-8 mode, unless its names are UTF-8 already.

    The environment stays as it is, for programs that the command starts.
    """
    if foreign_encoding() is None or "utf8" in sys._xoptions or not sys.executable:
        return
    words = [os.fsencode(word) for word in sys.orig_argv[1:]]
    sys.stdout.flush()
    os.execv(sys.executable, [os.fsencode(sys.executable), b"-X", b"utf8", *words])
