"""Requests to an object store that continue where they broke off.

    store = Store(StoreUrl.parse("s3://course/train"))
    found = store.head("train-000000.tar")                       # its bytes and its ETag
    data = store.get_range(found.name, 0, 1 << 20)

A request that a busy server (503 SlowDown) or a broken connection left without an answer is sent again, as
`smallfiles.storage` waits for any other storage. A server that has never answered gets only a few tries,
since its address is probably wrong. Keys that expired are read again. A store may be used by several threads,
and by forked workers, which make connections of their own.

The trap: libraries repeat a whole request, or return what came before the connection broke. Reading must
continue in the middle of a shard, and of the same shard: not every server respects If-Match, so the ETag of
each answer is compared too. Notebook 09 teaches it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from smallfiles.errors import SmallfilesError, SourceError
from smallfiles.objectstore.access import (
    CONNECTING,
    EXPIRED,
    ConditionError,
    Failure,
    Keys,
    NoObjectError,
    StoreUrl,
    connect,
    keys_of,
    replaced,
    without_password,
)
from smallfiles.samples import Buffer
from smallfiles.storage import answered

__all__ = ["ConditionError", "Entry", "NoObjectError", "Store"]

_T = TypeVar("_T")
_TRIES_BEFORE_FIRST_ANSWER = 3
_RENEWALS = 10  # of keys, for one request
_PIECE_BYTES = 1 << 20  # the most that a broken connection costs
_PROGRESS_BYTES = 1 << 16  # a connection that delivers so much before it breaks is worth another try
_MD5 = re.compile(r"[0-9a-f]{32}(-\d+)?")


@dataclass(frozen=True)
class Entry:
    """An object.

    Args:
        name: After the prefix.
        bytes: Its size.
        etag: Changes with its content.
    """

    name: str
    bytes: int
    etag: str


class Store:
    """A client for the objects below one bucket and prefix.

    Args:
        place: Bucket and prefix.
        endpoint: URL of the server; empty takes that of the environment.
        keys: Access keys; None takes those of the environment.
    """

    def __init__(self, place: StoreUrl, *, endpoint: str = "", keys: Keys | None = None) -> None:
        self.place, self._endpoint, self._keys = place, endpoint, keys
        self._has_answered, self._unanswered = False, 0
        self._clients: dict[int, Any] = {}  # by process

    @property
    def client(self) -> Any:
        """The client of botocore; each process has one of its own, which all its threads use."""
        client = self._clients.get(os.getpid())
        if client is None:
            with CONNECTING:
                client = self._clients.get(os.getpid()) or connect(self._endpoint, self._keys)
                self._clients = {os.getpid(): client}
        return client

    @property
    def endpoint(self) -> str:
        """URL of the server."""
        return str(self.client.meta.endpoint_url)

    def __repr__(self) -> str:
        where = without_password(self._endpoint) or "the endpoint of the environment"
        return f"Store({self.place} at {where})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a pickle, without connections."""
        return self.__dict__ | {"_clients": {}}

    def close(self) -> None:
        """Close the connections; the next request makes new ones."""
        client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close()

    # ---- reading

    def head(self, name: str) -> Entry:
        """Return the size and the ETag of an object.

        Raises:
            NoObjectError: The object does not exist.
        """
        answer = self._ask("head_object", name)
        with self._valid_answer(name):
            return Entry(name, int(answer["ContentLength"]), _etag(answer))

    def get(self, name: str) -> bytes:
        """Read a small object in one request.

        Raises:
            NoObjectError: The object does not exist.
        """
        data: bytes = self._repeated(name, lambda: self._object(name)["Body"].read())
        return data

    def get_range(self, name: str, start: int, stop: int) -> bytearray:
        """Read the bytes of an object from `start` to `stop`, with several requests if answers break off.

        Raises:
            ConditionError: The object was replaced meanwhile.
            NoObjectError: The object does not exist.
            SourceError: The object ends too early.
            StorageError: The server does not answer.
        """
        data = bytearray(stop - start)
        buffer, done, etag = memoryview(data), 0, ""

        def fetch_more() -> None:
            nonlocal done, etag
            before = done
            more = {"Range": f"bytes={start + done}-{stop - 1}"} | ({"IfMatch": f'"{etag}"'} if etag else {})
            try:
                answer = self._object(name, **more)
                etag = self._checked(answer, name, start + done, etag)
                with answer["Body"] as body:
                    while done < len(buffer) and (count := body.readinto(buffer[done:][:_PIECE_BYTES])):
                        done += count
                if done < len(buffer):
                    raise ConnectionError("", "the answer was too short")
            except (SmallfilesError, MemoryError):
                raise
            except Exception:
                if done - before < _PROGRESS_BYTES:
                    raise

        while done < len(buffer):
            self._repeated(name, fetch_more)
        return data

    def _checked(self, answer: Any, name: str, start: int, etag: str) -> str:
        found, span = _etag(answer), answer.get("ContentRange", "")
        if etag and found != etag:
            answer["Body"].close()
            raise replaced(f"{self.place}/{name}")
        status = answer["ResponseMetadata"]["HTTPStatusCode"]
        if not span.startswith(f"bytes {start}-") and (status == 206 or start):
            answer["Body"].close()
            raise SourceError(
                f"{self.place}/{name}: the server sent another part than the requested one",
                expected=f"the bytes from {start:,} on",
                next_step="Ask those who run it; a proxy in between may be the reason",
            )
        return found

    def entries(self) -> Iterator[Entry]:
        """Yield all objects in the order of the server, however many there are."""
        prefix = self.place.key("")
        more: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", "", Prefix=prefix, **more)
            with self._valid_answer(""):
                page["IsTruncated"]  # which every listing has, and no login page of a network
                found = [(each["Key"], int(each["Size"]), _etag(each)) for each in page.get("Contents", ())]
            for key, size, etag in found:
                if key.startswith(prefix):
                    yield Entry(key[len(prefix) :], size, etag)
            token = page.get("NextContinuationToken", "")
            if not page.get("IsTruncated") or token in ("", more.get("ContinuationToken")):
                return
            more = {"ContinuationToken": token}

    # ---- writing

    def put(self, name: str, data: Buffer, *, create: bool = False) -> str:
        """Write an object in one request, completely or not at all.

        Args:
            name: Name of the object.
            data: Its bytes.
            create: Refuse to replace an object; some servers ignore this.

        Returns:
            Its ETag.

        Raises:
            ConditionError: There is an object of this name already.
        """
        return self._sent("put_object", name, data, {"IfNoneMatch": "*"} if create else {})

    def delete(self, name: str) -> None:
        """Remove an object if it exists."""
        self._ask("delete_object", name)

    def begin(self, name: str) -> str:
        """Begin an object of several parts; the ID of the upload."""
        answer = self._ask("create_multipart_upload", name)
        with self._valid_answer(name):
            return str(answer["UploadId"])

    def begun(self, name: str) -> tuple[str, dict[int, str]]:
        """Return the ID of an unfinished upload of this object ("" if none), and the ETag of each part."""
        page, key = self._ask("list_multipart_uploads", "", Prefix=self.place.key(name)), self.place.key(name)
        with self._valid_answer(name):
            upload = next((each["UploadId"] for each in page.get("Uploads", ()) if each["Key"] == key), "")
        parts: dict[int, str] = {}
        more = bool(upload)
        while more:
            page = self._ask("list_parts", name, UploadId=upload, PartNumberMarker=max(parts, default=0))
            with self._valid_answer(name):
                found = {int(part["PartNumber"]): _etag(part) for part in page.get("Parts", ())}
            more = bool(page.get("IsTruncated")) and bool(found.keys() - parts.keys())
            parts |= found
        return upload, parts

    def put_part(self, name: str, upload: str, number: int, data: Buffer) -> str:
        """Send a part, counted from 1; its ETag."""
        return self._sent("upload_part", name, data, {"UploadId": upload, "PartNumber": number})

    def complete(self, name: str, upload: str, etags: list[str]) -> None:
        """Make the parts one object; it replaces none, except on servers that ignore conditions.

        Raises:
            ConditionError: There is an object of this name already.
        """
        parts = [{"PartNumber": number, "ETag": f'"{etag}"'} for number, etag in enumerate(etags, 1)]
        more = {"UploadId": upload, "MultipartUpload": {"Parts": parts}, "IfNoneMatch": "*"}
        self._ask("complete_multipart_upload", name, **more)

    def _sent(self, what: str, name: str, data: Buffer, more: dict[str, Any]) -> str:
        digest = hashlib.md5(data, usedforsecurity=False)
        more |= {"Body": bytes(data), "ContentMD5": base64.b64encode(digest.digest()).decode()}
        etag = _etag(self._ask(what, name, **more))
        if _MD5.fullmatch(etag) and etag != digest.hexdigest():
            raise SourceError(
                f"{self.place}/{name}: the server holds other bytes than were sent",
                expected=f"bytes of MD5 {digest.hexdigest()}",
                next_step="Run it again; if that does not help, ask those who run the server",
            )
        return etag

    # ---- requests

    def _ask(self, what: str, name: str, **more: Any) -> Any:
        """Send a request with a small answer, and repeat it where that may help."""
        more |= {"Key": self.place.key(name)} if name else {}
        return self._repeated(name, lambda: getattr(self.client, what)(Bucket=self.place.bucket, **more))

    def _object(self, name: str, **more: Any) -> Any:
        answer = self.client.get_object(Bucket=self.place.bucket, Key=self.place.key(name), **more)
        self._has_answered = True
        return answer

    def _repeated(self, name: str, request: Callable[[], _T]) -> _T:
        return answered(self._where(name), self._attempt, name, request)

    def _attempt(self, name: str, request: Callable[[], _T]) -> _T:
        """Send a request once, or again at once after the keys were renewed.

        Raises:
            StorageError: The server did not answer, but may do so later.
            SmallfilesError: Another try would not help.
        """
        for renewals in range(_RENEWALS):
            client = self.client
            try:
                result = request()
            except (SmallfilesError, MemoryError):
                raise
            except Exception as error:
                failure = Failure.of(error)
            else:
                self._has_answered = True
                return result
            self._has_answered |= failure.status > 0
            if failure.code not in EXPIRED or renewals + 1 == _RENEWALS or not self._renewed(client):
                break
        if failure.is_passing and (self._has_answered or self._unanswered + 1 < _TRIES_BEFORE_FIRST_ANSWER):
            self._unanswered += 1
            raise failure.outage(self._server)
        raise self._sentence(failure, name)

    @contextmanager
    def _valid_answer(self, name: str) -> Iterator[None]:
        """Raise an error in a sentence where an answer lacks something."""
        try:
            yield
        except (KeyError, ValueError, TypeError) as error:
            raise self._sentence(Failure.of(error), name) from None

    def _sentence(self, failure: Failure, name: str) -> SmallfilesError:
        return failure.sentence(self._where(name), self._server)

    def _where(self, name: str) -> str:
        return f"{self.place}/{name}".rstrip("/")

    @property
    def _server(self) -> str:
        return without_password(self.endpoint)

    def _renewed(self, client: Any) -> bool:
        """Read the keys again, unless another thread has done so; whether a client had other keys."""
        used = keys_of(client)
        if client in self._clients.values():
            self.close()
        return keys_of(self.client) != used


def _etag(answer: Any) -> str:
    return str(answer.get("ETag", "")).removeprefix("W/").strip('"')
