"""A real distributed file system on this machine, for tests: `storage/local` in a folder of its own.

Each file is on one of two data servers, so half of the data is gone while one of them is down.

`mfsmount` repeats a failed read 30 times by itself, for minutes. With `IMPATIENT` it gives up after three, so
that reads end with ENXIO within seconds, as they do on a cluster after those minutes. A write may then
fail, too, if a busy disk does not answer for two seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

TOOLS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfscli", "mfssetgoal", "ip", "nsenter")
IMPATIENT = {"STORAGE_MOUNT_OPTIONS": "mfsioretries=3,mfstimeout=2"}
SCRIPTS = Path(__file__).parents[2] / "storage" / "local"


def why_not() -> str | None:
    """Why no lab can be set up here; None if it can."""
    if os.geteuid() != 0:
        return "mount and network namespaces need root"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used"
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"the commands {', '.join(missing)} are missing (packages moosefs-*, iproute2)"
    name = f"smallfiles-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return None if done.returncode == 0 else f"mount: no network namespace ({done.stderr.strip()})"


class Lab:
    """A running file system; `clients` are its mount points.

    Args:
        home: An empty folder on a local disk, which is removed at the end.
        clients: How many mounts, each of them a node of a cluster.
        variables: The environment of `storage/local/up`.
    """

    def __init__(self, home: Path, clients: int = 1, **variables: str) -> None:
        self.home = home
        self.clients = [home / f"node{number}" for number in range(1, clients + 1)]
        self.run("up", str(clients), **variables)

    def run(self, script: str, *words: str, **variables: str) -> str:
        """Run a script of `storage/local` and return what it prints."""
        environment = {**os.environ, "SMALLFILES_STORAGE": str(self.home), **variables}
        # Into a file: servers would keep a pipe open.
        log = self.home.with_suffix(".log")
        with log.open("wb") as out:
            command = [SCRIPTS / script, *words]
            done = subprocess.run(command, stdout=out, stderr=out, env=environment, timeout=90, check=False)
        assert done.returncode == 0, f"{command}: {log.read_text()}"
        return log.read_text()

    def inside(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run a command in the network of the servers, where the tools of MooseFS reach them."""
        network = (self.home / "network").read_text().strip()
        command = ["nsenter", f"--net=/var/run/netns/{network}", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    def limited(self, name: str, *limits: str) -> Path:
        """Make a folder with hard limits, in options of `mfssetquota`."""
        folder = self.clients[0] / name
        folder.mkdir()
        assert self.inside("mfssetquota", *limits, folder).returncode == 0
        return folder

    def kill(self, number: int) -> None:
        """Kill a data server as a power cut does."""
        self.run("server", "kill", f"data{number}")

    def start(self, number: int) -> None:
        """Start a data server again, and wait until it serves."""
        self.run("server", "start", f"data{number}")

    def forget_pages(self) -> None:
        """Drop what the clients and this machine have in memory, so that reads ask the servers."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def close(self) -> None:
        """Unmount, end the programs, and remove the network."""
        self.run("down")
