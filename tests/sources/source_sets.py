"""What the tests of sources share: small trees and tars, and what a source says of them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from smallfiles import sources
from smallfiles.errors import SourceError


def plant(root: Path, *names: str, data: bytes | None = None) -> Path:
    """Put files into a folder; each holds its own name, or `data`."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"data of " + name.encode() if data is None else data)
    return root


def tar_bytes(members: dict[str, bytes], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar by Python's own library."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def rows(source) -> dict[str, object]:
    """Target of each path, in the order of the manifest."""
    return dict(zip(source.manifest.paths.to_pylist(), source.manifest.targets.to_pylist(), strict=True))


def contents(source) -> dict[str, bytes]:
    """Bytes of each path, as its store reads them."""
    found = {}
    for path in source.manifest.paths.to_pylist():
        buffer = bytearray(source.store.size(path))
        assert source.store.read_into(path, memoryview(buffer)) == len(buffer)
        found[path] = bytes(buffer)
    return found


def refused(path: Path, **options) -> str:
    """The sentence with which a source is refused."""
    with pytest.raises(SourceError) as caught:
        sources.load(path, **options)
    return str(caught.value)
