"""Who we are for an object store, and which one: from the environment and the files that everybody uses.

`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_ENDPOINT_URL` and `AWS_REGION`; where
these say nothing, the profile `AWS_PROFILE` of `~/.aws/credentials` and `~/.aws/config`, whose
`credential_process` serves what has other ways to log in (`aws configure export-credentials`).

The trap: a key that is written into a script is in its history for ever, and one that is an argument stands
in the list of processes. Here keys are in no message, no `repr`, and in a pickle only on its way to a worker.
Notebook 09 teaches it.

Format: AWS Signature Version 4, as its documentation for S3 describes it.
"""

from __future__ import annotations

import configparser
import hashlib
import hmac
import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

from smallfiles.errors import UsageError

UNSIGNED = "UNSIGNED-PAYLOAD"
"""The body is left out of the signature: its MD5 travels in a signed header."""

_PROCESS_S = 60


@dataclass(frozen=True)
class Keys:
    """What signs a request.

    Args:
        key_id: Names the owner.
        secret: Never leaves this machine.
        token: Goes with keys that expire.
    """

    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


def find_keys() -> Keys:
    """Keys of the environment or the profile, read anew.

    Raises:
        UsageError: There are none.
    """
    env, profile = os.environ, _profile()
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        token = env.get("AWS_SESSION_TOKEN", "")
        return Keys(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], token)
    if "aws_access_key_id" in profile and "aws_secret_access_key" in profile:
        token = profile.get("aws_session_token", "")
        return Keys(profile["aws_access_key_id"], profile["aws_secret_access_key"], token)
    if "credential_process" in profile:
        return _asked(profile["credential_process"])
    raise UsageError(
        "no keys for the object store were found",
        expected="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile in ~/.aws/credentials",
        next_step="Set them as your site says; a server for trying starts with: smallfiles s3-server DIR",
    )


def find_endpoint() -> tuple[str, str]:
    """URL (empty for Amazon's own) and region."""
    env, profile = os.environ, _profile()
    url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or profile.get("endpoint_url", "")
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region", "us-east-1")
    if url and not url.startswith(("http://", "https://")):
        raise UsageError(
            f"AWS_ENDPOINT_URL is {url!r}",
            expected="a URL that begins with https:// or http://",
            next_step="Correct it",
        )
    return url.rstrip("/"), region


def _profile() -> dict[str, str]:
    name = os.environ.get("AWS_PROFILE", "default")
    found: dict[str, str] = {}
    for variable, usual, section in (
        ("AWS_CONFIG_FILE", "~/.aws/config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", name),
    ):
        path = Path(os.environ.get(variable) or usual).expanduser()
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, configparser.Error) as error:
            raise UsageError(  # not what the parser says: it quotes lines
                f"{path} cannot be read ({type(error).__name__})",
                expected="a file of profiles as the AWS tools write it",
                next_step=f"Correct it, or name another one with {variable}",
            ) from None
        found |= dict(parser[section]) if parser.has_section(section) else {}
    return found


def _asked(command: str) -> Keys:
    """Keys that a program of the user's profile prints."""
    try:
        run = subprocess.run(shlex.split(command), capture_output=True, timeout=_PROCESS_S, check=True)
        said = json.loads(run.stdout)
        return Keys(said["AccessKeyId"], said["SecretAccessKey"], said.get("SessionToken") or "")
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the credential_process of the profile gave no keys ({type(error).__name__})",
            expected="a JSON object with AccessKeyId and SecretAccessKey",
            next_step="Run that command by hand, and log in again if it says so",
        ) from None  # the cause would show the command and what it printed


def sign(
    keys: Keys, region: str, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """The target and the headers of a signed request.

    Args:
        keys: Who asks.
        region: Of the server.
        method: `GET` and the like.
        path: Not yet quoted, from the slash on.
        query: Not yet quoted.
        headers: `host` and what else the request has; all are signed.
    """
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    more = {"x-amz-content-sha256": UNSIGNED, "x-amz-date": now}
    more |= {"x-amz-security-token": keys.token} if keys.token else {}
    signed = {name.lower(): value.strip() for name, value in sorted({**headers, **more}.items())}
    names, where = ";".join(sorted(signed)), quote(path, safe="/-_.~")
    asked = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
    lines = [
        method,
        where,
        asked,
        *(f"{name}:{signed[name]}" for name in sorted(signed)),
        "",
        names,
        UNSIGNED,
    ]
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = f"AWS4{keys.secret}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    signature = hmac.digest(key, "\n".join(["AWS4-HMAC-SHA256", now, scope, digest]).encode(), "sha256").hex()
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={keys.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return f"{where}?{asked}" if asked else where, signed
