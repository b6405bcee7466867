"""The packages: which are there, does PyTorch import, does it see a GPU.

The trap: `import torch` opens thousands of files. On a busy parallel file system that takes minutes,
so its time is part of the finding.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from time import monotonic
from typing import Any

from smallfiles.doctor.finding import Finding, judged

_CORE = """
    cffi h5py ipywidgets jupyterlab matplotlib numpy PIL pyarrow scipy simplejpeg
    torch torchvision tqdm webdataset xxhash
"""
CORE_MODULES = tuple(_CORE.split())
OPTIONAL_MODULES = {
    "zstandard": ("formats", "tar shards and squashfs images compressed with zstd"),
    "pylibjxl": ("formats", "decoding the part of a JPEG that training sees"),
    "lz4": ("formats", "squashfs images compressed with lz4"),
}
INSTALL = "python -m pip install -c requirements.lock -e"
SLOW_IMPORT_S = 20.0


def findings() -> Iterator[Finding]:
    """Core packages, PyTorch, the JPEG decoder, optional packages."""
    missing = [name for name in CORE_MODULES if not _is_installed(name)]
    value = f"missing: {', '.join(missing)}" if missing else f"all {len(CORE_MODULES)} installed"
    yield judged("packages", value, (missing, "fail", f"Run: {INSTALL} '.'"))
    yield _torch()
    yield _simplejpeg()
    for name, (extra, purpose) in OPTIONAL_MODULES.items():
        there = _is_installed(name)
        advice = f"For {purpose} run: {INSTALL} '.[{extra}]'"
        yield judged(f"optional {name}", "installed" if there else "not installed", (not there, "ok", advice))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # ValueError: a broken half of a package is loaded
        return False


def _import(name: str) -> Any:
    """The module, or the exception that importing it raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except Exception as error:  # a broken binary raises OSError, RuntimeError, anything
        return error


def _torch() -> Finding:
    started = monotonic()
    torch = _import("torch")
    took_s = monotonic() - started
    if isinstance(torch, Exception):
        advice = f"Run: {INSTALL} '.'  (or make setup SYSTEM_SITE=1 for the PyTorch of your site)"
        return Finding("PyTorch", f"cannot be imported ({torch})", "fail", advice)
    advice = "Its thousands of small files lie on slow storage; put the environment on a faster one."
    value = f"{torch.__version__}, imported in {took_s:.1f} s, {_gpus(torch)}"
    return judged("PyTorch", value, (took_s > SLOW_IMPORT_S, "warn", advice))


def _gpus(torch: Any) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            count = torch.cuda.device_count() if torch.cuda.is_available() else 0
            return f"{count} x {torch.cuda.get_device_name(0)}" if count else "no GPU here"
    except Exception as error:  # a driver that does not fit
        return f"GPU not usable ({error})"


def _simplejpeg() -> Finding:
    module = _import("simplejpeg")
    if isinstance(module, Exception):
        return Finding("JPEG decoder", f"cannot be imported ({module})", "fail", f"Run: {INSTALL} '.'")
    return Finding("JPEG decoder", f"simplejpeg {getattr(module, '__version__', '')}".strip())
