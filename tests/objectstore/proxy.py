"""A proxy to an S3 server that is slow, breaks off or changes bytes when a test wants it."""

import http.client
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_DOWN = (503, "SlowDown")
EXPIRED = (403, "ExpiredToken")


class Proxy:
    """Between a client and a server; a test sets the faults and reads the counts.

    latency_s      each answer begins so much later
    refuse         list of (status, code): the next requests get these instead of an answer; or with headers
                   and a body: (status, code, headers, body)
    cut_after      each of the next `cuts` answers with a body breaks off after so many bytes of it
    shorter_by     the bodies and lengths of the next `shorts` answers are less than asked for
    flip           a byte of the body at this position is changed
    etag           put into each answer
    only           pattern of "METHOD target" that the faults are for
    """

    def __init__(self, port):
        self.port, self.latency_s, self.refuse = port, 0.0, []
        self.cut_after, self.cuts, self.shorter_by, self.shorts = 0, 0, 0, 0
        self.flip = self.etag = None
        self.only, self.seen, self.lock = "", [], threading.Lock()
        self.before = lambda method, target: None
        proxy = self

        class Handler(_Handler):
            line = proxy

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda request, address: None  # the client was killed
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def asked(self, pattern=""):
        """The requests so far that match, as "METHOD target"."""
        return [one for one in self.seen if re.search(pattern, one)]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    line = None

    def _pass(self):
        line, asked = self.line, f"{self.command} {self.path}"
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with line.lock:
            line.seen.append(asked)
            meant = bool(re.search(line.only, asked))
            refusal = line.refuse.pop(0) if line.refuse and meant else None
        line.before(self.command, self.path)
        time.sleep(line.latency_s)
        if refusal:
            return self._refuse(*refusal)
        upstream = http.client.HTTPConnection("127.0.0.1", line.port, timeout=60)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "host":
                upstream.putheader(name, value)
        upstream.putheader("Host", self.headers["host"])
        upstream.endheaders(body or None)
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        self._give(answer, data, meant)

    def _give(self, answer, data, meant):
        line, cut = self.line, None
        headers = {
            k: v for k, v in answer.getheaders() if k.lower() not in ("connection", "transfer-encoding")
        }
        if meant and answer.status < 300 and self.command == "GET":
            if line.shorts:
                line.shorts, data = line.shorts - 1, data[: len(data) - line.shorter_by]
            if line.flip is not None and len(data) > line.flip:
                data = data[: line.flip] + bytes([data[line.flip] ^ 1]) + data[line.flip + 1 :]
            with line.lock:
                if line.cuts and len(data) > line.cut_after:
                    line.cuts, cut = line.cuts - 1, line.cut_after
        if meant and line.etag:
            headers = {k: v for k, v in headers.items() if k.lower() != "etag"} | {"ETag": line.etag}
        self.send_response(answer.status)
        for name, value in headers.items():
            if name.lower() != "content-length" or self.command == "HEAD":
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut] if self.command != "HEAD" else b"")
        if cut is not None:
            self.close_connection = True

    def _refuse(self, status, code, headers=(), body=None):
        default = f"<Error><Code>{code}</Code><Message>of the test</Message></Error>".encode()
        data = default if body is None else body
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if self.command != "HEAD" else b"")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, *words):
        pass
