"""How many files one `import` opens: a Python environment is a small-file problem too.

The trap: a second import in the same process opens nothing, and a warm page cache hides what a cold
one costs, so a fresh interpreter is counted, not timed. Notebook 00 writes the count out; 06 uses this one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from smallfiles.errors import UsageError

_COUNT = """
import json, os, sys
paths = set()

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        paths.add(arguments[0])

sys.addaudithook(note)
__import__(sys.argv[1])
with open("/proc/self/maps") as maps:  # shared libraries are opened by the linker, not by Python
    paths.update(line.split(maxsplit=5)[5].strip() for line in maps if len(line.split(maxsplit=5)) == 6)
sizes = [os.path.getsize(path) for path in paths if os.path.isfile(path) and not path.startswith("/proc/")]
print(json.dumps([len(sizes), sum(sizes)]))
"""


@dataclass(frozen=True)
class Opened:
    """What one import opened: distinct files, and how large they are together."""

    module: str
    files: int
    bytes: int


def files_opened_by(module: str) -> Opened:
    """Count the files that a fresh interpreter opens to import a module, its start included.

    On a parallel file system each open is a question to the metadata server, and every process of
    a job asks again.

    Args:
        module: Name of an installed module.

    Raises:
        UsageError: It cannot be imported.
    """
    end = subprocess.run([sys.executable, "-c", _COUNT, module], capture_output=True, text=True, check=False)
    if end.returncode:
        raise UsageError(
            f"the module {module} cannot be imported ({end.stderr.strip().splitlines()[-1:]})",
            expected="the name of an installed module",
            next_step="Try another one, for example numpy",
        )
    files, size = json.loads(end.stdout.splitlines()[-1])
    return Opened(module, files, size)
