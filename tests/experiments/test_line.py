"""A line to a server: late and cut as it was told, counted, and gone with whoever held it."""

import os
import socket
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from programs import Program, wait_for

from helpers.experiments.nb09 import Line

BODY = b"x" * 100_000


class Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *words):
        pass


@pytest.fixture
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def line(port):
    made = Line(port)
    yield made
    made.close()


def get(line):
    began = time.perf_counter()
    with urllib.request.urlopen(line.url, timeout=10) as answer:
        data = answer.read(len(BODY))
    return data, time.perf_counter() - began


def test_requests_are_late_and_counted(line):
    assert get(line)[0] == BODY
    line.set(latency_s=0.1)
    data, seconds = get(line)
    assert data == BODY and seconds >= 0.2  # the connection, and the request
    found = line.count()
    assert found["requests"] == 1 and len(BODY) < found["bytes"] < len(BODY) + 1000


def test_so_many_answers_break_off(line):
    line.set(cuts=2, cut_after=30_000)
    lengths = [len(get(line)[0]) for _ in range(3)]
    assert max(lengths[:2]) < 30_000 and lengths[2] == len(BODY)
    assert line.count()["requests"] == 3


def hold(port):
    print(Line(port).url)
    os._exit(0)


def test_it_ends_with_whoever_held_it(port, request):
    holder = Program(hold, port)
    request.addfinalizer(holder.end)
    assert holder.wait() == 0
    address = ("127.0.0.1", int(holder.out.strip().rpartition(":")[2]))

    def is_closed():
        with socket.socket() as asked:
            return asked.connect_ex(address)

    wait_for(is_closed)
