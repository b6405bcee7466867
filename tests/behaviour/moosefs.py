"""A real distributed file system on this machine, for one test: MooseFS with one metadata server.

Each file is on one of two data servers, so half of the data is gone while one of them is down. All programs
run in a network namespace of their own, since they refuse loopback addresses; two labs do not see each other.

`mfsmount` repeats a failed read 30 times by itself, for minutes. Here it gives up after three, so that reads
end with ENXIO within seconds, as they do on a cluster after those minutes.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

TOOLS = ("mfsmaster", "mfschunkserver", "mfsmount", "mfscli", "mfssetgoal", "ip", "nsenter")
_ADDRESS = "10.77.0.1"
_MOUNT_OPTIONS = "mfsioretries=3,mfstimeout=2,mfsentrycacheto=0,mfsattrcacheto=0"


def why_not():
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
        home: An empty folder on a local disk.
        clients: How many mounts, each of them a node of a cluster.
    """

    def __init__(self, home, clients=1):
        self.home, self._net = home, f"smallfiles-lab-{os.getpid()}"
        self.clients = [home / f"node{number}" for number in range(1, clients + 1)]
        self._pids: dict[str, int] = {}
        try:
            self._make_network()
            self._make_master()
            for number in (1, 2):
                self._make_server(number)
            _wait_until(lambda: self._ask("-SCS").count(_ADDRESS) >= 2, "both data servers are known")
            for point in self.clients:
                point.mkdir()
                self._inside("mfsmount", str(point), "-H", _ADDRESS, "-P", "19421", "-o", _MOUNT_OPTIONS)
            self._inside("mfssetgoal", "-r", "1", str(self.clients[0]))
            _wait_until(self._is_writable, "a file can be written")
        except BaseException:
            self.close()
            raise

    def kill(self, number):
        """Kill a data server as a power cut does."""
        os.kill(self._server_pid(number), signal.SIGKILL)

    def start(self, number):
        """Start a data server again, and wait until it serves."""
        self._inside("mfschunkserver", "-c", str(self.home / f"cs{number}.cfg"), "start")
        _wait_until(lambda: self._ask("-SCS").count(_ADDRESS) >= 2, "the data server is known again")

    def forget_pages(self):
        """Drop what the clients and this machine have in memory, so that reads ask the servers."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")

    def close(self):
        """Unmount, end the programs, and remove the network."""
        for point in self.clients:
            if subprocess.run(["umount", str(point)], capture_output=True, check=False).returncode:
                subprocess.run(["umount", "-l", str(point)], capture_output=True, check=False)
        for name in ("cs1", "cs2", "master"):
            pid = _locked_by(self.home / name)
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", self._net], capture_output=True, check=False)

    def _make_network(self):
        _run("ip", "netns", "add", self._net)
        inside = ("ip", "-n", self._net)
        _run(*inside, "link", "set", "lo", "up")
        _run(*inside, "link", "add", "lab0", "type", "veth", "peer", "name", "lab1")
        _run(*inside, "addr", "add", f"{_ADDRESS}/24", "dev", "lab0")
        _run(*inside, "link", "set", "lab0", "up")
        _run(*inside, "link", "set", "lab1", "up")

    def _make_master(self):
        folder = self.home / "master"
        folder.mkdir()
        (folder / "metadata.mfs").write_text("MFSM NEW")
        (self.home / "exports.cfg").write_text(
            "10.77.0.0/24 / rw,alldirs,admin,maproot=0\n10.77.0.0/24 . rw\n"
        )
        (self.home / "topology.cfg").touch()
        settings = {
            "WORKING_USER": "root",
            "WORKING_GROUP": "root",
            "DATA_PATH": folder,
            "EXPORTS_FILENAME": self.home / "exports.cfg",
            "TOPOLOGY_FILENAME": self.home / "topology.cfg",
            **{f"MATO{name}_LISTEN_HOST": _ADDRESS for name in ("ML", "CS", "CL")},
            **{
                f"MATO{name}_LISTEN_PORT": port
                for name, port in (("ML", 19419), ("CS", 19420), ("CL", 19421))
            },
        }
        self._start("mfsmaster", "master", settings)

    def _make_server(self, number):
        folder, disk = self.home / f"cs{number}", self.home / f"disk{number}"
        folder.mkdir()
        disk.mkdir()
        (self.home / f"disk{number}.cfg").write_text(f"{disk}\n")
        settings = {
            "WORKING_USER": "root",
            "WORKING_GROUP": "root",
            "DATA_PATH": folder,
            "HDD_CONF_FILENAME": self.home / f"disk{number}.cfg",
            "HDD_LEAVE_SPACE_DEFAULT": "0.1GiB",
            "MASTER_HOST": _ADDRESS,
            "MASTER_PORT": 19420,
            "MASTER_RECONNECTION_DELAY": 1,
            "CSSERV_LISTEN_HOST": _ADDRESS,
            "CSSERV_LISTEN_PORT": 19430 + number,
        }
        self._start("mfschunkserver", f"cs{number}", settings)

    def _start(self, program, name, settings):
        file = self.home / f"{name}.cfg"
        file.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
        self._inside(program, "-c", str(file), "start")

    def _server_pid(self, number):
        pid = _locked_by(self.home / f"cs{number}")
        assert pid is not None, "the data server is not running"
        return pid

    def _is_writable(self):
        probe = self.clients[0] / "probe"
        try:
            probe.write_bytes(b"1")
            probe.unlink()
        except OSError:
            return False
        return True

    def _ask(self, *words):
        done = self._inside("mfscli", "-H", _ADDRESS, "-P", "19421", *words, check=False)
        return done.stdout

    def _inside(self, *words, check=True):
        # Not `ip netns exec`, which has mounts of its own: the file system must be visible here.
        return _run("nsenter", f"--net=/var/run/netns/{self._net}", *words, check=check)


def _run(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or not check, f"{words}: {done.stdout}{done.stderr}"
    return done


def _locked_by(folder):
    """The process that holds a data folder, by its lock file."""
    for file in folder.glob(".*.lock"):
        text = file.read_text().strip()
        if text.isdigit() and Path(f"/proc/{text}/exe").exists():
            return int(text)
    return None


def _wait_until(is_so, what, limit_s=60):
    ends = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < ends, f"waited {limit_s} s until {what}"
        time.sleep(0.2)
