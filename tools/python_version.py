"""Imported first by each tool that is run as a script: an old Python prints which version is needed.

The trap: a script is parsed as a whole before its first line runs, so the tools must have the syntax of 3.6:
no `:=`, and no `from __future__ import annotations`.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - a script in a clone may be run by any Python
    sys.exit(
        "error: this is Python {}.{} ({}); expected Python 3.11 or newer. Run make setup, which finds one; "
        "then: .venv/bin/python {}".format(*sys.version_info[:2], sys.executable, sys.argv[0])
    )
