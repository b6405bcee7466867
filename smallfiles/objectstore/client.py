"""Requests to an object store that go on: what is cut off is asked for from where it broke off.

    store = Store(Place.parse("s3://course/train"))
    found = store.head("train-000000.tar")                       # its bytes and its ETag
    data = store.get_range(found.name, 0, 1 << 20, if_match=found.etag)

A busy server (503 SlowDown) and a broken line are tried again, each time after a longer pause; keys that
expired are read again. A store may be used by several threads, and by forked workers, which get
connections of their own.

The trap: a client that was used before `fork` may hang in the child for ever, as those on a thread pool of
their own do (obstore 0.12 was tried), and a loader forks. So this one is a few lines over `http.client`; it
reads straight into the caller's memory. (20 objects of 16 MB from and to rclone, 8 requests in flight, three
rounds on two busy cores: 60 to 70 MB/s up and 100 to 170 down, as boto3 and obstore within their spread; CPU
seconds up and down 0.6 and 0.5, obstore 0.3 and 0.8, boto3 0.5 and 0.4. boto3 needs an older python-dateutil
than the one pinned.) Not every server heeds If-Match, so the ETag of each answer is compared too. Notebook
09 teaches it.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import random
import re
import socket
import ssl
import time
import urllib.request
import xml.etree.ElementTree as XML
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from multiprocessing.context import get_spawning_popen
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from smallfiles.errors import ResourceError, SmallfilesError, SourceError, UsageError
from smallfiles.objectstore.access import Keys, find_endpoint, find_keys, sign
from smallfiles.objectstore.config import Place
from smallfiles.samples import Buffer

_TRIES, _TRIES_OF_STRANGERS = 10, 3
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_TIMEOUT_S = 60.0
_PIECE_BYTES = 1 << 20  # what a broken line costs at most
_PROGRESS_BYTES = 1 << 16  # a line that brings as much before it breaks is worth another try
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken"}
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden", *_EXPIRED}
_BUSY = {"SlowDown", "RequestTimeout", "Throttling", "TooManyRequests", "OperationAborted"}
_BUSY |= {"BadDigest", "ConditionalRequestConflict"}  # damaged on the way; somebody else was there
_MD5 = re.compile(r"[0-9a-f]{32}")


class NoObjectError(SourceError):
    """There is no such object."""


class ConditionError(SourceError):
    """What was asked for on a condition: the object is there already, or is another one now."""


@dataclass(frozen=True)
class Entry:
    """An object.

    Args:
        name: Behind the prefix of its place.
        bytes: Its size.
        etag: Changes with its content.
    """

    name: str
    bytes: int
    etag: str


class _Failure(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: str, region: str = "", keys: Keys | None = None) -> None:
        super().__init__(code)
        self.status, self.code, self.region, self.keys = status, code, region, keys

    @property
    def is_passing(self) -> bool:
        return (self.status >= 500 and self.status != 501) or self.status == 429 or self.code in _BUSY


class Store:
    """The objects below a place.

    Args:
        place: Bucket and prefix.
        endpoint: URL of the server, where the environment shall not say it.
        keys: Who we are, likewise.
    """

    def __init__(self, place: Place, *, endpoint: str = "", keys: Keys | None = None) -> None:
        self.place, self._given = place, keys
        found, self._region = find_endpoint()
        self.endpoint = (endpoint or found).rstrip("/")
        host, self._root = f"s3.{self._region}.amazonaws.com", f"/{place.bucket}/"
        if not self.endpoint and "." not in place.bucket:
            host, self._root = f"{place.bucket}.{host}", "/"
        parts = urlsplit(self.endpoint or f"https://{host}")
        self._secure, self._host = parts.scheme == "https", parts.netloc
        self._root = parts.path + self._root
        self.reached = False
        self._forget()

    def _forget(self) -> None:
        self._owner, self._keys = os.getpid(), self._given
        self._idle: deque[http.client.HTTPConnection] = deque()

    def close(self) -> None:
        """Let go of connections; the next request makes new ones."""
        while self._idle:
            self._idle.pop().close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    def __repr__(self) -> str:
        return f"Store({self.place} at {self.endpoint or 'Amazon'})"

    def __getstate__(self) -> dict[str, Any]:
        """Without connections; with keys only on the way to a worker, never into a file."""
        keys = (self._given or self._current()) if get_spawning_popen() is not None else None
        return self.__dict__ | {"_idle": (), "_keys": None, "_given": keys}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    # ---- reading

    def head(self, name: str) -> Entry:
        """Size and ETag of an object.

        Raises:
            NoObjectError: There is none.
        """
        answer = self._ask("HEAD", name)
        return Entry(name, int(answer.headers.get("content-length", 0)), _etag(answer.headers))

    def get(self, name: str) -> bytes:
        """A small object in one request.

        Raises:
            NoObjectError: There is none.
        """
        return self._ask("GET", name).body

    def get_range(self, name: str, start: int, stop: int, *, if_match: str = "") -> bytearray:
        """The bytes from `start` to `stop` of an object; see `read_into`."""
        data = bytearray(stop - start)
        self.read_into(name, start, memoryview(data), if_match=if_match)
        return data

    def read_into(self, name: str, start: int, buffer: memoryview, *, if_match: str = "") -> str:
        """Fill a buffer from `start` of an object on, with as many requests as it takes.

        Args:
            name: Of the object.
            start: First byte.
            buffer: As long as what is wanted.
            if_match: The ETag that it must have; without one, that of the first answer.

        Returns:
            The ETag.

        Raises:
            ConditionError: It is another object now.
            NoObjectError: There is none.
            SourceError: It ends too early, or the server does not answer any more.
        """
        done, patience = 0, _Patience(self, name)
        while done < len(buffer):
            headers = {"range": f"bytes={start + done}-{start + len(buffer) - 1}"}
            headers |= {"if-match": f'"{if_match}"'} if if_match else {}
            before = done
            try:
                connection, answer = self._send("GET", name, headers=headers)
                try:
                    if_match = self._checked(answer, name, start + done, if_match)
                    while done < len(buffer) and (count := answer.readinto(buffer[done:][:_PIECE_BYTES])):
                        done += count
                finally:
                    self._keep(connection, answer)
                if done < len(buffer):
                    raise http.client.IncompleteRead(b"", len(buffer) - done)
            except (_Failure, OSError, http.client.HTTPException) as error:
                patience.after(error, progressed=done - before >= _PROGRESS_BYTES)
        return if_match

    def _checked(self, answer: http.client.HTTPResponse, name: str, start: int, etag: str) -> str:
        found, span = _etag(answer.headers), answer.headers.get("content-range", "")
        if etag and found != etag:
            raise self._replaced(name)
        if not span.startswith(f"bytes {start}-") and (answer.status == 206 or start):
            raise SourceError(
                f"{self.place}/{name}: the server gave another part than was asked for",
                expected=f"what begins at byte {start:,}",
                next_step="Ask those who run it; a proxy between may be the reason",
            )
        return found

    def entries(self, under: str = "") -> Iterator[Entry]:
        """All objects, however many, whose names begin with `under`; in the order of the server."""
        prefix = self.place.key("") + under
        query = {"list-type": "2", "prefix": prefix, "encoding-type": "url"}
        while True:
            page = self._xml("GET", "", query=query)
            plain = unquote_plus if page.findtext("{*}EncodingType") == "url" else str
            for each in page.iterfind("{*}Contents"):
                key = plain(each.findtext("{*}Key", ""))
                if key.startswith(prefix):
                    etag = each.findtext("{*}ETag", "").strip('"')
                    yield Entry(key[len(self.place.key("")) :], int(each.findtext("{*}Size", "0")), etag)
            token = page.findtext("{*}NextContinuationToken", "")
            if page.findtext("{*}IsTruncated") != "true" or token in ("", query.get("continuation-token")):
                return
            query["continuation-token"] = token

    # ---- writing

    def put(self, name: str, data: Buffer, *, create: bool = False) -> str:
        """Write an object in one request; it is there whole or not at all.

        Args:
            name: Of the object.
            data: Its bytes.
            create: Refuse if there is one (not every server heeds that: look afterwards).

        Returns:
            Its ETag.

        Raises:
            ConditionError: There is one.
        """
        return self._sent(name, data, {}, {"if-none-match": "*"} if create else {})

    def delete(self, name: str) -> None:
        """Remove an object; none is no fault."""
        self._ask("DELETE", name)

    def begin(self, name: str) -> str:
        """Begin an object of several parts; the number of the upload."""
        return self._xml("POST", name, query={"uploads": ""}).findtext("{*}UploadId", "")

    def begun(self, name: str) -> tuple[str, dict[int, str]]:
        """An upload that was begun and not ended, with the MD5 of each part; "" if there is none."""
        page = self._xml("GET", "", query={"uploads": "", "prefix": self.place.key(name)})
        upload = next(
            (
                each.findtext("{*}UploadId", "")
                for each in page.iterfind("{*}Upload")
                if each.findtext("{*}Key") == self.place.key(name)
            ),
            "",
        )
        parts: dict[int, str] = {}
        more = bool(upload)
        while more:
            query = {"uploadId": upload, "part-number-marker": str(max(parts, default=0))}
            page = self._xml("GET", name, query=query)
            found = {
                int(part.findtext("{*}PartNumber", "0")): part.findtext("{*}ETag", "").strip('"')
                for part in page.iterfind("{*}Part")
            }
            more = page.findtext("{*}IsTruncated") == "true" and bool(found.keys() - parts.keys())
            parts |= found
        return upload, parts

    def put_part(self, name: str, upload: str, number: int, data: Buffer) -> str:
        """Send a part, from 1 on; its ETag."""
        return self._sent(name, data, {"uploadId": upload, "partNumber": str(number)}, {})

    def complete(self, name: str, upload: str, etags: list[str]) -> str:
        """Make the parts one object; its ETag."""
        parts = "".join(
            f'<Part><PartNumber>{number}</PartNumber><ETag>"{etag}"</ETag></Part>'
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = self._xml("POST", name, query={"uploadId": upload}, body=body)
        return answer.findtext("{*}ETag", "").strip('"')

    def _sent(self, name: str, data: Buffer, query: Mapping[str, str], headers: dict[str, str]) -> str:
        digest = hashlib.md5(data, usedforsecurity=False)
        headers["content-md5"] = base64.b64encode(digest.digest()).decode()
        answered = self._ask("PUT", name, query=query, headers=headers, body=data).headers
        etag, sealed = _etag(answered), "x-amz-server-side-encryption" in answered
        if _MD5.fullmatch(etag) and etag != digest.hexdigest() and not sealed:
            raise SourceError(
                f"{self.place}/{name}: the server holds other bytes than were sent",
                expected=f"those of MD5 {digest.hexdigest()}",
                next_step="Run it again; if that does not help, ask those who run the server",
            )
        return etag

    # ---- requests

    def _ask(self, method: str, name: str, **more: Any) -> _Answer:
        """One request whose answer is small, tried again where that may help."""
        patience = _Patience(self, name)
        while True:
            try:
                connection, answer = self._send(method, name, **more)
                try:
                    body = answer.read()
                finally:
                    self._keep(connection, answer)
                return _Answer(answer.headers, body)
            except (_Failure, OSError, http.client.HTTPException) as error:
                patience.after(error)

    def _xml(self, method: str, name: str, **more: Any) -> XML.Element:
        """As `_ask`; a success may hold an error, since the server begins to answer before it is done."""
        patience = _Patience(self, name)
        while True:
            body = self._ask(method, name, **more).body
            try:
                found = XML.fromstring(body)
            except XML.ParseError:
                found = XML.Element("Error")
            if not found.tag.endswith("Error"):
                return found
            patience.after(_Failure(500, found.findtext("{*}Code", "an answer that is none of S3")))

    def _send(
        self,
        method: str,
        name: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Buffer | None = None,
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Send a request; an answer of success whose body was not read yet.

        Raises:
            _Failure: Any other answer.
        """
        path = self._root + (self.place.key(name) if name else "")
        asked = {"host": self._host, **(headers or {})}
        keys = self._current()
        target, signed = sign(keys, self._region, method, path, query or {}, asked)
        connection = self._connection()
        try:
            connection.request(method, target, body=body, headers=signed)
            answer = connection.getresponse()
            said = answer.read() if answer.status >= 300 else b""
        except BaseException:
            connection.close()
            self.close()  # those that waited as long were closed by the server too
            raise
        self.reached = True
        if answer.status >= 300:
            self._keep(connection, answer)
            raise _failure(answer, said, keys)
        return connection, answer

    def _current(self) -> Keys:
        if self._owner != os.getpid():
            self.close()  # in this process only: the parent's go on
            self._forget()
        if self._keys is None:
            self._keys = find_keys()
        return self._keys

    def renewed(self, used: Keys | None) -> bool:
        """Whether there are other keys by now than those that were used; they are read anew."""
        self._keys = self._given or find_keys()
        return self._keys != used

    def _connection(self) -> http.client.HTTPConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return _connect(self._host, self._secure)

    def _keep(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        """Use a connection again if all of its answer was read."""
        whole = answer.isclosed() and not answer.length and not answer.will_close
        if whole and self._owner == os.getpid():
            self._idle.append(connection)
        else:
            connection.close()

    def _replaced(self, name: str) -> ConditionError:
        return ConditionError(
            f"{self.place}/{name} was replaced while it was read",
            expected="the object that was there at the beginning",
            next_step="Run it again when nobody writes there",
        )


@dataclass(frozen=True)
class _Answer:
    headers: Message
    body: bytes


class _Patience:
    """How often to try again, and when to say in a sentence that it is enough."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._failed = store, name, 0

    def after(self, error: Exception, *, progressed: bool = False) -> None:
        """Pause before another try.

        Raises:
            SmallfilesError: Trying again would not help.
        """
        self._failed = 1 if progressed else self._failed + 1
        most = _TRIES if self._store.reached else _TRIES_OF_STRANGERS
        if isinstance(error, _Failure):
            passing = error.is_passing
            if error.code in _EXPIRED and self._failed < most and self._store.renewed(error.keys):
                return
        else:
            passing = not isinstance(error, ssl.SSLCertVerificationError)
        if not passing or self._failed >= most:
            raise _sentence(self._store, self._name, error) from None
        pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (self._failed - 1))
        time.sleep(pause * random.uniform(0.5, 1))  # so that a thousand ranks do not come back together


def _connect(host: str, secure: bool) -> http.client.HTTPConnection:
    """A connection; an encrypted one goes through the proxy that the environment names for this host."""
    if not secure:
        connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_S)
    else:
        context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE"))
        proxy = "" if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get("https", "")
        first = urlsplit(proxy).netloc or host
        connection = http.client.HTTPSConnection(first, timeout=_TIMEOUT_S, context=context)
        if proxy:
            connection.set_tunnel(host)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _etag(headers: Message) -> str:
    return str(headers.get("etag", "")).removeprefix("W/").strip('"')


def _failure(answer: http.client.HTTPResponse, said: bytes, keys: Keys) -> _Failure:
    code = re.search(rb"<Code>\s*(\w+)\s*</Code>", said)
    by_status = {404: "NoSuchKey", 403: "Forbidden", 412: "PreconditionFailed", 416: "InvalidRange"}
    name = code[1].decode() if code else by_status.get(answer.status, f"status {answer.status}")
    return _Failure(answer.status, name, answer.headers.get("x-amz-bucket-region", ""), keys)


def _sentence(store: Store, name: str, error: Exception) -> SmallfilesError:
    """What a failure means, for those who read messages and not codes; no key is ever in it."""
    where, server = f"{store.place}/{name}".rstrip("/"), store.endpoint or "Amazon S3"
    if not isinstance(error, _Failure):
        why = getattr(error, "strerror", None) or (str(error) if isinstance(error, ssl.SSLError) else "")
        return SourceError(
            f"{where}: {server} broke off or did not answer ({why or type(error).__name__})",
            expected="an object store within reach",
            next_step="Check AWS_ENDPOINT_URL and the network, then run it again",
        )
    code = error.code
    if code == "NoSuchBucket":
        got, expected = f"{server} has no bucket {store.place.bucket}", "a bucket that exists"
        return SourceError(
            got, expected=expected, next_step="Check its name, or make it with your site's tools"
        )
    if code == "NoSuchKey":
        next_step = f"Check the name: smallfiles ls {store.place}"
        return NoObjectError(f"{where} is not there", expected="an object of that name", next_step=next_step)
    if code == "NoSuchUpload":
        got, expected = f"{where}: the upload was ended by somebody else", "it to go on"
        return NoObjectError(got, expected=expected, next_step="Run it again: what is there is kept")
    if code == "PreconditionFailed":
        return store._replaced(name)
    if code in _EXPIRED:
        got, expected = f"{where}: the keys have expired ({code})", "keys that are valid"
        return UsageError(got, expected=expected, next_step="Get new ones, and run it again")
    if code in _REFUSED:
        return UsageError(
            f"{server} refused the keys for {where} ({code})",
            expected="keys that may read and write there",
            next_step="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile, and your rights",
        )
    if code in ("RequestTimeTooSkewed", "PermanentRedirect", "AuthorizationHeaderMalformed"):
        region = f" (it is {error.region})" if error.region else ""
        return UsageError(
            f"{server} refused a request for {where} ({code})",
            expected="the region of the bucket, and a clock that is right",
            next_step=f"Check AWS_REGION{region}, and the time with: date -u",
        )
    if code == "InvalidRange":
        got, expected = (
            f"{where} ends before the bytes that were asked for",
            "an object of the size in its manifest",
        )
        return SourceError(
            got, expected=expected, next_step="Push it again; somebody wrote another one there"
        )
    if error.is_passing:
        got = f"{where}: {server} answered {code} ({error.status}) again and again"
        return ResourceError(got, expected="success", next_step="Run it again when the server is less busy")
    return SourceError(
        f"{where}: {server} refused the request with {code} ({error.status})",
        expected="success",
        next_step="Ask those who run the server what that means",
    )
