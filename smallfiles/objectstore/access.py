"""Access to an object store: its URL, keys, endpoint, what its errors mean, and what a transfer did.

    StoreUrl.parse("s3://course/train").key("train-000000.tar")     # train/train-000000.tar in bucket course

botocore, the base of boto3 and of Amazon's own command line, finds keys (environment, `~/.aws` files, single
sign-on, roles of an instance or a container, a `credential_process`), renews those that expire, signs, and
finds the endpoint (`AWS_ENDPOINT_URL`, a profile's `endpoint_url`). What it lacks for reading long objects
over bad lines is in `client`. obstore is no faster (20 objects of 16 MB from and to rclone, 8 in flight, two
busy cores: 60 to 70 MB/s up and 100 to 170 down for both), and a client of it that was used before `fork`
hangs in the child (0.12; its threads are gone there), where loaders fork.

The traps: a key in a script stays in its history, and a key on a command line is in the list of processes.
Libraries print what they cannot use, such as a session token with a line break. So no message contains words
of botocore or of a server: `Failure` has only codes and types. Keys are in no `repr`, and in a pickle only on
its way to a worker. And `s3://bucket/train` is not a folder. It is the beginning of names, and the names of
`s3://bucket/train-old` begin with the same letters; so a prefix always ends in a slash here. Notebook 09
teaches it. The command line imports this at every start, so it imports botocore only when it connects.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any

from smallfiles.errors import MissingPackageError, SmallfilesError, SourceError, StorageError, UsageError
from smallfiles.folders import key_problem
from smallfiles.options import Settings, option
from smallfiles.storage import timeout_option

MANIFEST = "smallfiles.json"
PART_BYTES = 16 << 20
"""The most that one request sends or fetches, about."""

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")


@dataclass(frozen=True)
class StoreUrl:
    """A bucket and a prefix.

    Args:
        bucket: Name of the bucket.
        prefix: What all names begin with, without the slash at its end; empty for the whole bucket.
    """

    bucket: str
    prefix: str = ""

    @classmethod
    def parse(cls, url: str) -> StoreUrl:
        """Read `s3://bucket/prefix`.

        Raises:
            UsageError: It has another form.
        """
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        prefix = prefix.removesuffix("/")
        problem = key_problem(prefix) if prefix else None
        if not url.startswith("s3://") or not _BUCKET.fullmatch(bucket) or problem:
            raise UsageError(
                f"{without_password(url)} is not a URL of an object store"
                + (f": it {problem}" if problem else ""),
                expected="s3://BUCKET/PREFIX",
                next_step="Write it like s3://course/train",
            )
        return cls(bucket, prefix)

    def key(self, name: str) -> str:
        """Return the full name of an object."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".removesuffix("/")


def without_password(url: str) -> str:
    """Remove `USER:PASSWORD@` from a URL, for messages."""
    return re.sub(r"//[^/\s]*@", "//", url)


@dataclass(frozen=True)
class TransferConfig(Settings):
    """How to move objects.

    Args:
        workers: Requests in flight.
        storage_timeout_s: How long to wait for a store or a file system that does not answer.
    """

    workers: int = option(8, "requests in flight", least=1, most=256)
    storage_timeout_s: float = timeout_option()

    def to_cli(self, verb: str, source: str, target: str) -> str:
        """Return the equivalent command."""
        return self.command(verb, source, target)


@dataclass(frozen=True)
class Moved:
    """What a push or a pull did.

    Args:
        path: What was pushed, or what a pull wrote.
        url: Where it is in the store.
        objects: Number of objects without the manifest.
        samples: Number of samples in them.
        bytes: Size of all objects.
        kept_bytes: Size of what was there already, with the same content.
        seconds: How long it took.
    """

    path: Path
    url: str
    objects: int
    samples: int
    bytes: int
    kept_bytes: int
    seconds: float

    @property
    def rate(self) -> float:
        """Bytes per second over the network."""
        return (self.bytes - self.kept_bytes) / max(self.seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        """Return the result as a dictionary that JSON can store."""
        record = asdict(self) | {"path": str(self.path), "seconds": round(self.seconds, 3)}
        return record | {"bytes_per_s": round(self.rate)}


_TIMEOUT_S, _CONNECT_S = 60, 10
_MOST_CONNECTIONS = 256
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "InvalidToken"}
_REFUSED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "Forbidden", "403", *EXPIRED}
_BUSY = {"SlowDown", "RequestTimeout", "Throttling", "TooManyRequests", "OperationAborted"}
_BUSY |= {"BadDigest", "ConditionalRequestConflict"}  # damaged on the way; another request at that moment
_REGION = {"RequestTimeTooSkewed", "AuthorizationHeaderMalformed"}
_REDIRECTS = range(300, 400)
_CODE = re.compile(r"[A-Za-z0-9.-]{1,64}")
_SENDABLE = re.compile(r"[!-~]*")


class NoObjectError(SourceError):
    """There is no such object."""


class ConditionError(SourceError):
    """The condition of a request does not hold: the object exists already, or was replaced."""


@dataclass(frozen=True)
class Keys:
    """Access keys, for a store whose keys are not those of the environment.

    Args:
        key_id: Names the owner.
        secret: Signs requests; it is never sent to the store.
        token: Sent with keys that expire.
    """

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Everything on the way to a worker; None in a pickle that may be stored."""
        if get_spawning_popen() is None:
            return _no_stored_keys, ()
        return Keys, (self.key_id, self.secret, self.token)

    def __deepcopy__(self, memo: object = None) -> Keys:
        return self

    __copy__ = __deepcopy__


def _no_stored_keys() -> None:
    """Stand for the keys in a pickle, so that the process that loads it uses the keys of its environment."""


CONNECTING = threading.Lock()
"""Held while a client is made, so that the first requests of several threads do not make one each."""
os.register_at_fork(after_in_child=CONNECTING._at_fork_reinit)  # type: ignore[attr-defined]


@cache
def _models(data_path: str | None) -> Any:
    """Return botocore's loader of service models, which parses each of them once per process.

    A forked worker inherits what its parent has parsed. That is safe, since a loader has no lock, no key, and
    no connection. To find one service, botocore's own loader looks into the folders of all 400 services,
    which sends thousands of requests to the parallel file system that an environment is on. This one lists
    only the folder that contains them.
    """
    from botocore.loaders import create_loader

    models = create_loader(data_path)
    services = [path.name for folder in models.search_paths for path in Path(folder).glob("*")]
    models.list_available_services = lambda type_name: services
    return models


def connect(endpoint: str, keys: Keys | None) -> Any:
    """Make a botocore client that never repeats a request by itself.

    Args:
        endpoint: URL; if it is empty, the environment or the profile decides.
        keys: The keys; if they are None, the environment or the profile decides.

    Raises:
        MissingPackageError: botocore is not installed.
        UsageError: There are no keys, or the configuration is invalid.
    """
    try:
        from botocore.config import Config
        from botocore.session import Session
    except ImportError as error:
        raise MissingPackageError.of_import(error, "an object store") or error from None
    session = Session()
    try:
        session.register_component("data_loader", _models(session.get_config_variable("data_path")))
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
        if keys is not None:
            session.set_credentials(keys.key_id, keys.secret, keys.token or None)
        found = session.get_credentials()
        if found is None:
            raise _no_keys("none were found")
        _refuse_unsendable(found.get_frozen_credentials())
        named = endpoint or any(os.environ.get(f"AWS_ENDPOINT_URL{more}") for more in ("", "_S3"))
        config = Config(
            retries={"total_max_attempts": 1},
            max_pool_connections=_MOST_CONNECTIONS,
            connect_timeout=_CONNECT_S,
            read_timeout=_TIMEOUT_S,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",  # Content-MD5 and our digests work with all servers
            response_checksum_validation="when_required",
            # The signature covers the Content-MD5, so a body is not hashed a second time, by SHA-256.
            s3={"addressing_style": "path" if named else "auto", "payload_signing_enabled": False},
        )
        client = session.create_client("s3", region_name=region, endpoint_url=endpoint or None, config=config)
    except SmallfilesError:
        raise
    except Exception as error:
        raise Failure.of(error).sentence("s3://", "the object store") from None
    client.meta.events.register("before-call.s3.HeadBucket", _redirected_once)
    return client


def _redirected_once(context: dict[str, Any], **_: object) -> None:
    """Let botocore ask for the region of a bucket once; it would do so at each redirect, without an end."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def keys_of(client: Any) -> tuple[str | None, ...]:
    """Return the keys with which a client signs at this moment."""
    try:
        found = client._get_credentials().get_frozen_credentials()
    except Exception as error:
        raise Failure.of(error).sentence("s3://", "the object store") from None
    return (found.access_key, found.secret_key, found.token)


def _refuse_unsendable(keys: Any) -> None:
    names = {"key ID": keys.access_key, "secret": keys.secret_key, "session token": keys.token}
    for name, value in names.items():
        if not _SENDABLE.fullmatch(value or ""):
            raise _no_keys(f"the {name} has a line break, a space or another character that no key has")


def _no_keys(why: str) -> UsageError:
    return UsageError(
        f"no keys for the object store were found ({why})",
        expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws",
        next_step="Set them as your site describes; to try a server here: smallfiles s3-server DIR",
    )


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Args:
        code: Error code of the server, or the type of the exception.
        status: HTTP status; 0 without an answer.
        region: Where the bucket is, if the server named it.
        of_network: Whether the connection or the server failed, and not the reading of an answer.
    """

    code: str
    status: int = 0
    region: str = ""
    of_network: bool = True

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return the failure behind an exception, without its message, which may contain keys."""
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        answer = getattr(error, "response", None)
        if not isinstance(answer, dict) or "Error" not in answer:
            return cls(
                type(error).__name__, of_network=isinstance(error, BotoCoreError | HTTPError | OSError)
            )
        metadata = answer.get("ResponseMetadata", {})
        status = int(metadata.get("HTTPStatusCode", 0))
        region = str(metadata.get("HTTPHeaders", {}).get("x-amz-bucket-region", ""))
        code = str(answer["Error"].get("Code") or status)
        return cls(
            code if _CODE.fullmatch(code) else str(status),
            status,
            region if _CODE.fullmatch(region) else "",
        )

    @property
    def is_passing(self) -> bool:
        """Whether another try may help."""
        if not self.status:
            return self.of_network and self.code not in _PERMANENT
        return (self.status >= 500 and self.status != 501) or self.status == 429 or self.code in _BUSY

    def outage(self, server: str) -> StorageError:
        """Return the error for a server that may answer later; `smallfiles.storage` names the object."""
        what = f"answered {self.code} ({self.status})" if self.status else f"did not answer ({self.code})"
        return StorageError(
            f"{server} {what}",
            expected="an object store that answers",
            next_step="Run it again when the server can be reached and is less busy",
        )

    def sentence(self, where: str, server: str) -> SmallfilesError:
        """Return the failure as an error whose sentence contains no keys."""
        code = self.code
        if code in _NO_KEYS:
            return _no_keys(_NO_KEYS[code])
        if not self.status and not self.is_passing:
            return SourceError(
                f"{where}: {server} cannot be reached, or its answer is not one of S3 ({code})",
                expected="the address of an S3 server, a region, and settings that botocore can read",
                next_step="Check AWS_ENDPOINT_URL (http or https), AWS_REGION and the profile in ~/.aws",
            )
        if not self.status:
            return SourceError(
                f"{where}: {server} broke off or did not answer ({code})",
                expected="an object store that can be reached",
                next_step="Check AWS_ENDPOINT_URL and the network, then run it again",
            )
        if code == "NoSuchBucket":
            return SourceError(
                f"{server} has no bucket for {where}",
                expected="a bucket that exists",
                next_step="Check its name, or create it with your site's tools",
            )
        if self.status == 404 or code == "InvalidPart":  # a part that another push replaces at that moment
            return NoObjectError(
                f"{where} is not there",
                expected="an object of that name",
                next_step=f"List what is: smallfiles ls {where.rpartition('/')[0]}",
            )
        if self.status == 412:
            return replaced(where)
        region = f" (it is {self.region})" if self.region else ""
        if self.status in _REDIRECTS:
            return UsageError(
                f"{where}: {server} redirects to another address ({code})",
                expected="the address of the store, and the region of the bucket",
                next_step=f"Check AWS_ENDPOINT_URL and AWS_REGION{region}",
            )
        if code in EXPIRED:
            return UsageError(
                f"{where}: the keys have expired ({code})",
                expected="keys that are valid",
                next_step="Get new ones, then run it again",
            )
        if code in _REFUSED:
            return UsageError(
                f"{server} refused the keys for {where} ({code})",
                expected="keys that may read and write there",
                next_step="Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or your profile and rights",
            )
        if code in _REGION:
            return UsageError(
                f"{server} refused a request for {where} ({code})",
                expected="the region of the bucket, and a clock that is right",
                next_step=f"Check AWS_REGION{region}, and the clock with: date -u",
            )
        if self.status == 416:
            return SourceError(
                f"{where} ends before the requested bytes",
                expected="an object of the size in its manifest",
                next_step="Push it again; it was changed",
            )
        return SourceError(
            f"{where}: {server} answered {code} ({self.status})",
            expected="success",
            next_step="Ask those who run the server",
        )


_NO_KEYS = {
    "NoCredentialsError": "none were found",
    "PartialCredentialsError": "one of key ID and secret is missing",
    "CredentialRetrievalError": "the program or service that provides them failed",
    "ProfileNotFound": "there is no such profile",
    "ConfigParseError": "a file of the profile cannot be read",
}
_PERMANENT = {*_NO_KEYS, "ParamValidationError", "InvalidRegionError", "UnknownEndpointError", "SSLError"}


def replaced(where: str) -> ConditionError:
    """Return the error for an object that was replaced."""
    return ConditionError(
        f"{where} was replaced while it was read",
        expected="one object from the first byte to the last",
        next_step="Run it again when nobody writes there",
    )
