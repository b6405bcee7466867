"""An object store that goes away in the middle: it is waited for, and no sample is left out for it."""

import itertools
import secrets
import socket
import subprocess
import threading
import time

import pytest
from conftest import files_of, new_place, serve
from programs import wait_for
from proxy import Proxy

from benchmarks.objectstore import free_ports
from smallfiles import storage
from smallfiles.cli import main
from smallfiles.errors import StorageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.objectstore import Store, StoreUrl, TransferConfig, pull
from smallfiles.objectstore.access import Keys

COUNT = 30


class MortalServer:
    """A server that can be killed, and started again with the same address and the same objects."""

    def __init__(self, folder):
        (folder / "first").mkdir(parents=True)
        self.keys = Keys(secrets.token_hex(10).upper(), secrets.token_hex(20))
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder, self._return = folder, None
        self.start()

    def start(self):
        self._process = serve(self._folder, self.keys, subprocess.DEVNULL, self.port)
        wait_for(self._listens, 20)

    def _listens(self):
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self._process.kill()
        self._process.wait()

    def stop_for(self, seconds):
        self.stop()
        self._return = threading.Timer(seconds, self.start)
        self._return.start()

    def close(self):
        if self._return is not None:
            self._return.join()
        self.stop()


@pytest.fixture
def mortal(tmp_path):
    found = MortalServer(tmp_path / "store")
    yield found
    found.close()


@pytest.fixture
def counted(mortal):
    """A proxy to that server, which does something at one of the next requests."""
    proxy = Proxy(mortal.port)

    def at_request(number, do, only=""):
        numbers = itertools.count(1)
        lock = threading.Lock()

        def before(method, target):
            if only in f"{method} {target}":
                with lock:
                    if next(numbers) == number:
                        do()

        proxy.before = before

    proxy.at_request = at_request
    yield proxy
    proxy.close()


@pytest.fixture
def place(mortal, counted, as_user):
    """A place in that store, behind the proxy, which the environment names."""
    as_user(mortal, counted.url)
    return new_place()


@pytest.fixture
def pushed(packed, place):
    assert main(["push", str(packed(".tars")), place]) == 0
    return place


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A folder for what a stream keeps on this node."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def said_once(capfd):
    said = capfd.readouterr().err
    return said.count("the storage does not answer") == 1 and "the storage answers again" in said


def test_a_pull_waits_for_the_server(pushed, packed, mortal, counted, tmp_path, capfd):
    counted.at_request(5, lambda: mortal.stop_for(1))
    assert main(["pull", pushed, str(tmp_path / "copy.tars")]) == 0
    assert files_of(tmp_path / "copy.tars") == files_of(packed(".tars"))
    assert said_once(capfd)


def test_a_push_waits_for_the_server(packed, place, mortal, counted, tmp_path, capfd):
    counted.at_request(3, lambda: mortal.stop_for(1), "PUT")
    assert main(["push", str(packed(".tars")), place]) == 0
    assert said_once(capfd)
    assert main(["pull", place, str(tmp_path / "copy.tars")]) == 0
    assert files_of(tmp_path / "copy.tars") == files_of(packed(".tars"))


def indices(loader):
    try:
        return sorted(int(index) for batch in loader for index in batch["index"])
    finally:
        loader.dataset.maker.reader.close()


@pytest.mark.parametrize("mode", ["main", "threads", "processes"])
def test_a_loader_waits_for_the_server_and_delivers_every_sample(pushed, mortal, counted, node, mode, capfd):
    config = LoaderConfig(order="stream", batch=4, workers=2, mode=mode, on_error="skip")
    loader = make_loader(pushed, config)
    counted.at_request(2, lambda: mortal.stop_for(1), ".tar")
    assert indices(loader) == list(range(COUNT)) and loader.fault_count == 0
    assert "the storage does not answer" in capfd.readouterr().err


@pytest.mark.parametrize("order", ["stream", "random"])
def test_a_loader_stops_with_the_storage_as_its_reason(pushed, mortal, counted, node, order):
    config = LoaderConfig(
        order=order, batch=4, workers=2, mode="threads", on_error="skip", storage_timeout_s=0.3
    )
    loader = make_loader(pushed, config)
    counted.at_request(2, mortal.stop, ".tar")
    began = time.monotonic()
    with pytest.raises(StorageError, match=r"the storage did not answer for .*127\.0\.0\.1"):
        indices(loader)
    assert loader.fault_count == 0 and time.monotonic() - began < 20


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_verb_stops_after_the_timeout_and_the_same_command_finishes(
    packed, place, mortal, counted, tmp_path, capfd, verb
):
    out, copy = packed(".tars"), tmp_path / "copy.tars"
    words = ["push", str(out), place]
    if verb == "pull":
        assert main(words) == 0
        words = ["pull", place, str(copy)]
    counted.at_request(6, mortal.stop)
    assert main([*words, "--storage-timeout-s", "0.3"]) == 1
    said = capfd.readouterr().err
    assert "the storage did not answer for" in said and "Run it again when the storage is back" in said
    assert not copy.exists()
    mortal.start()
    assert main(words) == 0
    if verb == "push":
        assert main(["pull", place, str(copy)]) == 0
    assert files_of(copy) == files_of(out)


def test_the_configuration_of_a_call_says_how_long_to_wait(pushed, mortal, counted, tmp_path):
    counted.at_request(4, mortal.stop)
    with pytest.raises(StorageError, match="the storage did not answer for"):
        pull(pushed, tmp_path / "copy.tars", config=TransferConfig(storage_timeout_s=0.2))


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://no-such-host.invalid"])
def test_a_wrong_address_is_not_waited_for(as_user, mortal, capfd, address):
    as_user(mortal, address)
    began = time.monotonic()
    assert main(["ls", "s3://first/x"]) == 1
    assert time.monotonic() - began < 10
    said = capfd.readouterr().err
    assert "Check AWS_ENDPOINT_URL and the network" in said and said.count("does not answer") <= 1


def test_the_time_counts_from_the_last_progress(far, line):
    """A line that breaks again and again, but delivers something each time, is slow and not away."""
    far.put("a", bytes(4 << 20))
    line.cut_after, line.cuts = 300_000, 1000
    line.latency_s = 0.05
    with storage.timeout(0.2):
        assert len(far.get_range("a", 0, 4 << 20)) == 4 << 20


def test_a_store_is_answered_or_not_in_each_worker_as_in_its_parent(mortal):
    store = Store(StoreUrl.parse("s3://first/x"), endpoint=mortal.url, keys=mortal.keys)
    store.put("a", b"abc")
    mortal.stop_for(0.5)
    assert store.get("a") == b"abc"
