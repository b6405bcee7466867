# %% [markdown] id="top"
# # 12 · When it breaks
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** nothing · **Data** 400 synthetic images
#
# This appendix is for looking things up. It reproduces each failure in a few lines, and then cures it. All of them have
# cost people days. The worst raise no error.

# %% [markdown] id="symptoms"
# ## Find your symptom
#
# | What you see | Where |
# |---|---|
# | accuracy is lower with workers than without | [shared offset](#Shared-offset) |
# | `h5py objects cannot be pickled` | [shared offset](#Shared-offset) |
# | a pretrained model reaches 0.1 % on ImageNet | [wrong label order](#Wrong-label-order) |
# | every epoch has the same batches | [same order](#Same-order-in-every-epoch) |
# | fewer samples than images; `you need to add an explicit nodesplitter` | [shards](#Samples-lost-in-shards) |
# | fewer samples than yesterday, no error | [half a copy](#Half-a-copy) |
# | the second benchmark is ten times as fast | [page cache](#Page-cache-in-a-benchmark) |
# | memory grows with the workers, until the job is killed | [growing workers](#Growing-workers) |
# | `Bus error`, `unable to allocate shared memory` | [shared memory](#Shared-memory-is-full) |
# | `killed by signal: Killed` | [growing workers](#Growing-workers), or any other use of memory |
# | `received 0 items of ancdata`, `Too many open files` | [open files](#Too-many-open-files) |
# | `offset overflow while concatenating arrays` | [2 GiB](#More-than-2-GiB-in-one-array) |
# | `No space left on device`, and `df` shows space | [inodes](#No-space-left) |
# | `Unable to lock file`, `No locks available` | [locks](#Locked-file) |
# | `mount: must be superuser`, `failed to setup loop device` | [no mount](#No-mount-without-root) |
# | `lmdb.Error: Function not implemented` | [LMDB](#LMDB-on-a-parallel-file-system) |
# | the node has less memory than it should | [leftovers](#Leftovers-in-memory) |
# | workers crawl although you asked for CPUs | [one CPU](#One-CPU-for-all-workers) |
# | `Temporary failure in name resolution`, or a job that hangs | [network](#No-network) |
# | `Can't get attribute … on <module '__main__'` | [lost class](#A-class-that-workers-cannot-find) |

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("12")

# %% [markdown]
# There are two helpers: one shows the last line of an error, the other runs a function in a forked process, to protect
# this kernel.

# %%
import multiprocessing
import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

fork = multiprocessing.get_context("fork")


def said(call, *arguments):
    """What a call returns, or the last line of its error."""
    try:
        return call(*arguments)
    except Exception as error:
        text = str(error).replace(f"{setup.scratch}/", "")
        return f"{type(error).__name__}: {text.strip().splitlines()[-1]}"


def in_child(call, *arguments):
    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        return pool.submit(said, call, *arguments).result()


# %%
from smallfiles import formats
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

source = setup.source()
out = setup.scratch / "train.tars"
if not out.exists():
    pack(source, out, PackConfig(options=tar.Options(max_count=1000), verify="none"))
shard = min(out.glob("*.tar"))
reader = formats.open(shard)

# %% [markdown] id="wrong" tags=["core"]
# ## 1 · Wrong samples, and no error
#
# ### Shared offset
#
# - **Symptom** Accuracy is lower with workers than without. Or: `h5py objects cannot be pickled`.
# - **Cause** A file that is opened before the workers start is one open file in all of them, with one position where
#   the next read begins ([pytorch#11887](https://github.com/pytorch/pytorch/issues/11887)).
# - **Remedy** Open it at the first read of each process, or name the position in each read
#   ([06](06_read_a_squashfs_image.ipynb)). An HDF5 file must also be closed in the parent when workers start
#   ([04](04_pack_hdf5.ipynb)).
#
# > **Predict.** Of 12,000 samples, how many are wrong without workers, with one, and with two?

# %%
guess = 10  # change me: wrong samples with two workers

# %%
from torch.utils.data import DataLoader, Dataset, RandomSampler

truth = [bytes(reader.read(index)) for index in range(len(reader))]
places = [reader.span(index)[1:] for index in range(len(reader))]
file = shard.open("rb", buffering=0)


class IsRight(Dataset):
    def __init__(self, by_position):
        self.by_position = by_position

    def __len__(self):
        return len(truth)

    def __getitem__(self, index):
        start, stop = places[index]
        if self.by_position:
            return os.pread(file.fileno(), stop - start, start) == truth[index]
        file.seek(start)
        return file.read(stop - start) == truth[index]


# %%
def wrong(workers, by_position):
    chosen = RandomSampler(truth, replacement=True, num_samples=12_000)
    settings = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    loader = DataLoader(IsRight(by_position), 100, sampler=chosen, **settings)
    return sum(int((~right).sum()) for right in loader)


counts = {f"seek and read, {n} workers": wrong(n, False) for n in (0, 1, 2)}
counts["os.pread, 2 workers"] = wrong(2, True)
two = counts["seek and read, 2 workers"]
title = f"Two workers that share an offset return {two:,} wrong samples of 12,000"
title = title if two else "This time the two workers never met: run the cell again"
figures.bars(counts, title, x="wrong samples of 12,000", guess=guess)

# %% [markdown]
# How often two workers collide is chance. A single worker does not collide, so a test with one worker passes. Since
# Python 3.14 workers get a pickled `Dataset` instead, and an open HDF5 file cannot be pickled. The remedy is the same:

# %%
import pickle

import h5py

with h5py.File(setup.scratch / "one.h5", "w") as opened:
    print(said(pickle.dumps, opened))
print(len(pickle.dumps(reader)), "bytes: our reader, which opens the file again where it is unpickled")

# %% [markdown]
# ### Wrong label order
#
# - **Symptom** A pretrained model is right for 0.1 % of ImageNet's validation images. Labels are in range.
# - **Cause** The development kit counts classes from 1 in its own order, models from 0 in the order of sorted wnids
#   ([timm#1081](https://github.com/huggingface/pytorch-image-models/issues/1081)).
# - **Remedy** Rank of the sorted wnid, never `ID - 1`; look at images whose label is known
#   ([02](02_describe_a_dataset.ipynb)).

# %%
from smallfiles.manifest import Manifest
from smallfiles.sources import imagenet

names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in (1, 2, 3, 4)]
for labels in ((490, 361, 171, 822), (489, 360, 170, 821), (65, 970, 230, 809)):
    print(labels, "→", said(imagenet.check_label_order, Manifest.from_columns(names, labels)))

# %% [markdown]
# ### Same order in every epoch
#
# - **Symptom** Every epoch has the same batches; the model learns less than it should.
# - **Cause** `DistributedSampler` draws its order from seed and epoch, but is not given the epoch
#   ([pytorch#31771](https://github.com/pytorch/pytorch/issues/31771)).
# - **Remedy** `set_epoch`, or a loader that counts ([10](10_run_it_on_many_nodes.ipynb)).

# %%
from torch.utils.data import DistributedSampler

sampler = DistributedSampler(range(20), num_replicas=2, rank=0)
print("two epochs:         ", list(sampler)[:5], list(sampler)[:5])
sampler.set_epoch(1)
print("after set_epoch(1): ", list(sampler)[:5])

# %% [markdown]
# ### Samples lost in shards
#
# - **Symptom** Fewer samples than images, or each of them several times. Or: `you need to add an explicit
#   nodesplitter`.
# - **Cause** webdataset cuts names at the first dot, so `cat.v1.jpg` and `cat.v2.jpg` become one sample; and it refuses
#   several ranks until you choose how to split. A split over ranks only repeats samples in each worker; with fewer
#   shards than workers, some workers get none, and training hangs at the end.
# - **Remedy** No dots in keys (`pack` writes `%2E`), both splits, more shards than workers, and count keys
#   ([05](05_shard_a_dataset.ipynb)).

# %%
import tarfile
from unittest.mock import patch

import webdataset as wds

dotted = setup.scratch / "dotted.tar"
with tarfile.open(dotted, "w") as archive:
    for name in ("cat.v1.jpg", "cat.v2.jpg"):
        archive.add(setup.folder() / source.manifest.path(0), name)
for sample in wds.WebDataset(str(dotted), shardshuffle=False):
    print(sample["__key__"], [part for part in sample if part[0] != "_"])
with patch.dict(os.environ, RANK="0", WORLD_SIZE="2"):
    print(said(list, wds.WebDataset(str(dotted), shardshuffle=False)))

# %% [markdown]
# ### Half a copy
#
# - **Symptom** Fewer samples than yesterday.
# - **Cause** A copy or an extraction was interrupted. A tar that ends between two samples looks like a shorter one, and
#   a tree with half of its files like a smaller data set. webdataset's `ShardWriter` writes under the final name from
#   the start.
# - **Remedy** Compare with a record of the whole: end mark, index, digest or manifest. Write under a temporary name,
#   then rename ([03](03_pack_arrow.ipynb)).

# %%
cut = setup.scratch / "cut.tar"
cut.write_bytes(shard.read_bytes()[: places[len(places) // 2][0] - 512])  # before a header
print("webdataset:", sum(1 for _ in wds.WebDataset(str(cut), shardshuffle=False)), "samples, no error")
print("our reader:", said(len, formats.open(cut)))

# %%
import shutil

tree = setup.scratch / "extracted"
for path in source.manifest.paths.to_pylist()[:100]:  # as a time limit leaves it
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(setup.folder() / path, tree / path)
from smallfiles import sources

found = sources.load(tree)
print("ImageFolder would see", len(found.manifest), "images, without an error")
print(said(source.manifest.check_files, found.store)[:120])

# %% [markdown]
# ### Page cache in a benchmark
#
# - **Symptom** The second run is several times as fast as the first.
# - **Cause** The first run brings the bytes into memory, the second finds them there
#   ([DALI#1415](https://github.com/NVIDIA/DALI/issues/1415)).
# - **Remedy** State which of the two you measure, prepare it before each run, and alternate
#   ([01](01_count_the_cost_of_small_files.ipynb)).

# %%
from time import perf_counter

from smallfiles.measure import cache

plain = Path(shutil.copy(shard, setup.scratch / "plain.tar"))
if cache.can_be_cold(plain):
    cache.drop([plain])
else:
    print("These files are in memory, which is always warm.")
buffer = bytearray(1 << 20)  # used again: new memory would cost more than a warm read
for run in ("first", "second"):
    began = perf_counter()
    with plain.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    print(f"{run} run: {plain.stat().st_size / (perf_counter() - began) / 1e6:,.0f} MB/s")

# %% [markdown] id="memory" tags=["core"]
# ## 2 · Memory that runs out
#
# ### Growing workers
#
# - **Symptom** Memory grows during the first epoch, although nothing is kept. At the end: `killed by signal: Killed`.
# - **Cause** Reading a Python object changes its reference count, and its page is copied into the worker
#   ([pytorch#13246](https://github.com/pytorch/pytorch/issues/13246)).
# - **Remedy** Columns: Arrow or NumPy ([02](02_describe_a_dataset.ipynb)).
#
# > **Predict.** A worker looks at every tenth path of 300,000. How much of the list does it copy?

# %%
import pyarrow as pa

paths = [f"ILSVRC/Data/CLS-LOC/train/n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG" for n in range(300_000)]


def private_mb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1000


def copied_mb(name):
    table, before = tables[name], private_mb()
    for index in range(0, len(table), 10):
        table[index]
    return round(private_mb() - before)


tables = {"list": paths, "column": pa.array(paths)}
for name in tables:
    print(f"{name}: {in_child(copied_mb, name)} MB copied by the worker")

# %% [markdown]
# ### Shared memory is full
#
# - **Symptom** `unable to allocate shared memory`, or `killed by signal: Bus error`.
# - **Cause** Workers pass their batches through `/dev/shm`. A container has 64 MB there, and staged data fills it too
#   ([pytorch#5040](https://github.com/pytorch/pytorch/issues/5040)).
# - **Remedy** Fewer or smaller batches ahead (bytes, not floats), threads, `--shm-size` for containers. `make_loader`
#   computes the memory it needs before it starts ([08](08_keep_the_gpu_fed.ipynb)).
#
# To reproduce it, we give a process a `/dev/shm` of 8 MB. Where the system allows it, any user may make a private
# mount:

# %%
def with_limits(folder, limits, *command):
    """The output of a command for which a folder has these limits."""
    mount = f'mount -t tmpfs -o {limits} none "$0" && exec "$@"'
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]
    end = subprocess.run([*alone, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    refused = "unshare failed" in end.stdout or "mount:" in end.stdout
    return f"Not allowed on this machine: {end.stdout}" if refused else end.stdout.strip()


LOADER = """
import torch
from torch.utils.data import DataLoader
try:
    list(DataLoader(torch.zeros(8, 1_000_000), batch_size=4, num_workers=1))
except RuntimeError as error:
    print(str(error).strip().splitlines()[-1])
"""
print(with_limits("/dev/shm", "size=8m", sys.executable, "-c", LOADER))

# %% [markdown]
# PyTorch reserves the memory first, so it can raise an error. Programs that do not, and older versions, touch a page
# that is not available, and get the signal SIGBUS. A map of a truncated file causes the same signal, on every machine.
# The second worker below dies of signal 9, like those of a job that exceeds its memory limit; then check the memory of
# the job, not `/dev/shm`.

# %%
import mmap

torn = setup.scratch / "torn"
torn.write_bytes(bytes(1 << 20))
with torn.open("r+b") as opened:
    view = mmap.mmap(opened.fileno(), 0)
os.truncate(torn, 0)  # the file is rewritten while it is mapped


class Victim(Dataset):
    def __init__(self, die):
        self.die = die

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.die()


# %%
import signal

for die in (lambda: view[5_000], lambda: os.kill(os.getpid(), signal.SIGKILL)):
    try:
        list(DataLoader(Victim(die), num_workers=1, multiprocessing_context="fork"))
    except RuntimeError as error:
        print(error.__cause__ or error)

# %% [markdown]
# ### Too many open files
#
# - **Symptom** `Too many open files`, in older versions `received 0 items of ancdata`.
# - **Cause** Each tensor from a worker is an open file for as long as you keep it
#   ([pytorch#973](https://github.com/pytorch/pytorch/issues/973)).
# - **Remedy** Keep a copy, not the tensor; raise `ulimit -n`; or `set_sharing_strategy("file_system")`.

# %%
import resource

import torch


def keep_batches(copy):
    most = len(os.listdir("/proc/self/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loader = DataLoader(torch.zeros(200, 4), num_workers=1, multiprocessing_context="fork")
    return f"{len([batch.clone() if copy else batch for batch in loader])} batches"


print("kept as they come:", in_child(keep_batches, False)[:100])
print("cloned:           ", in_child(keep_batches, True))

# %% [markdown]
# ### More than 2 GiB in one array
#
# - **Symptom** `offset overflow while concatenating arrays`.
# - **Cause** The offsets in a `binary` column are 32-bit numbers
#   ([arrow#10776](https://github.com/apache/arrow/issues/10776)).
# - **Remedy** Keep the data in chunks, one record batch each, or choose `large_binary` ([03](03_pack_arrow.ipynb)).

# %%
chunk = pa.array([bytes(1 << 20)] * 64)  # 64 MiB
photos = pa.chunked_array([chunk] * 33)  # the same chunk 33 times, which takes no memory
print(said(photos.combine_chunks))
print(len(pa.table({"data": photos}).to_batches()), "record batches of", chunk.nbytes >> 20, "MiB are fine")

# %% [markdown] id="files" tags=["core"]
# ## 3 · Files that refuse
#
# ### No space left
#
# - **Symptom** `No space left on device`, although `df -h` shows space. Or: `Disk quota exceeded`.
# - **Cause** A file system, or your quota, has run out of bytes or of inodes. Error 28 means either, 122 is a quota.
# - **Remedy** `df -i`, your site's quota command, `smallfiles doctor`; then pack, environments included
#   ([00](00_start_here.ipynb), [06](06_read_a_squashfs_image.ipynb)).
#
# > **Predict.** A folder has room for 12 MB and for five inodes. How many empty files fit?

# %%
import errno

TOUCH = "cd $0; for n in 1 2 3 4 5; do touch $n; done; df -h . | tail -1; df -i . | tail -1"
small = setup.scratch / "small"
small.mkdir(exist_ok=True)
print(with_limits(small, "size=12m,nr_inodes=5", "sh", "-c", TOUCH, str(small)))
for number in (errno.ENOSPC, errno.EDQUOT):
    print(number, os.strerror(number))

# %% [markdown]
# ### Locked file
#
# - **Symptom** `Unable to lock file`, or `No locks available`.
# - **Cause** HDF5 locks a file whenever it is opened. Another process has it open for writing, or the file system has
#   no locks ([h5py#1101](https://github.com/h5py/h5py/issues/1101)).
# - **Remedy** For complete files `locking=False`, or `HDF5_USE_FILE_LOCKING=FALSE` before the import. Never while a
#   program writes to it ([04](04_pack_hdf5.ipynb)).

# %%
ASK = "import h5py, sys; h5py.File(sys.argv[1], 'r'); print('opened')"
path = setup.scratch / "one.h5"
with h5py.File(path, "r+"):
    for locking in ("TRUE", "FALSE"):
        variables = {**os.environ, "HDF5_USE_FILE_LOCKING": locking}
        asked = subprocess.run([sys.executable, "-c", ASK, path], env=variables, capture_output=True, text=True)
        print((asked.stdout + asked.stderr).strip().splitlines()[-1])

# %% [markdown]
# ### No mount without root
#
# - **Symptom** `must be superuser to use mount`, or `failed to setup loop device`.
# - **Cause** Mounting a squashfs file needs a loop device, and so root, or FUSE and a device file
#   ([enroot#180](https://github.com/NVIDIA/enroot/issues/180)).
# - **Remedy** Read it with a library ([06](06_read_a_squashfs_image.ipynb)). (If you are root here, the mount is not
#   tried.)

# %%
squashed = setup.scratch / "train.sqfs"
if not squashed.exists():
    pack(source, squashed, PackConfig(verify="none"))
if os.geteuid() != 0:
    tried = subprocess.run(["mount", "-o", "loop", squashed, small], capture_output=True, text=True)
    print(tried.stderr.strip())
by_library = formats.open(squashed)
print(by_library.key(7), len(by_library.read(7)), "bytes, no mount")

# %% [markdown]
# ### LMDB on a parallel file system
#
# - **Symptom** `lmdb.Error: …: Function not implemented`, or `No locks available`. It cannot be shown here: it needs
#   Lustre, NFS or the like.
# - **Cause** LMDB maps its file and locks it, and its authors advise against using it there
#   ([py-lmdb#228](https://github.com/jnwatson/py-lmdb/issues/228),
#   [#281](https://github.com/jnwatson/py-lmdb/issues/281)).
# - **Remedy** Stage it to the node ([07](07_stage_a_dataset.ipynb)), then `lmdb.open(path, readonly=True, lock=False,
#   readahead=False)`; or use another format. Check where your data is:

# %%
from smallfiles import machine

for place in (setup.scratch, Path.home()):
    lies_on = machine.filesystem(place)
    print(f"{lies_on.kind:8} {'shared: stage first' if lies_on.shared else 'local: LMDB works'}")

# %% [markdown]
# ### Leftovers in memory
#
# - **Symptom** `df -h` shows a `/dev/shm` that is half full before your job has begun.
# - **Cause** A killed job cannot clean up, and files in `/dev/shm` stay until they are removed.
# - **Remedy** `smallfiles staged --sweep`, or the next `stage` ([07](07_stage_a_dataset.ipynb)).

# %%
from smallfiles import staging


def stage_and_die(place):
    staging.stage(shard, place)
    os.kill(os.getpid(), signal.SIGKILL)


node = setup.scratch / "node"
node.mkdir(exist_ok=True)
job = fork.Process(target=stage_and_die, args=(node,))
job.start()
job.join()
print(*(f"left: {copy.bytes:,} bytes, {copy.state}, {copy.owner}" for copy in staging.listing([node])), sep="\n")
print("removed:", staging.sweep_all([node]), "- left:", len(staging.listing([node])))

# %% [markdown] id="job" tags=["core"]
# ## 4 · A job that is not your laptop
#
# ### One CPU for all workers
#
# - **Symptom** More workers bring nothing, and `top` shows them sharing one CPU.
# - **Cause** Since Slurm 22.05, `srun` ignores the script's `--cpus-per-task`
#   ([reframe#2655](https://github.com/reframe-hpc/reframe/issues/2655)).
# - **Remedy** `srun --cpus-per-task="$SLURM_CPUS_PER_TASK"`, and count the CPUs that you may use
#   ([10](10_run_it_on_many_nodes.ipynb)).
#
# > **Predict.** A task is bound to one CPU of a script that requested two. What do three ways to count CPUs return?

# %%
def in_a_task():
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # what srun does
    os.environ["SLURM_CPUS_PER_TASK"] = "2"  # what the script asked for
    return os.environ["SLURM_CPUS_PER_TASK"], os.cpu_count(), len(os.sched_getaffinity(0))


print("the variable {}, os.cpu_count() {}, os.sched_getaffinity {}".format(*in_child(in_a_task)))

# %% [markdown]
# ### No network
#
# - **Symptom** `Connection refused`, `Network is unreachable`, `Temporary failure in name resolution`. Or the job
#   hangs.
# - **Cause** Compute nodes cannot reach the internet. Either the request is refused at once, or there is no answer and
#   a program without a timeout waits until the time limit.
# - **Remedy** Download on a login node into a folder that jobs can read (`TORCH_HOME`, `HF_HOME`), then set
#   `HF_HUB_OFFLINE=1`; give every request a timeout.

# %%
import socket
import urllib.request

silent = socket.create_server(("127.0.0.1", 0))  # accepts connections, and never answers
with socket.create_server(("127.0.0.1", 0)) as closed:
    nobody = closed.getsockname()[1]
for name, port in {"refused": nobody, "silent": silent.getsockname()[1]}.items():
    through = urllib.request.ProxyHandler({"https": f"http://127.0.0.1:{port}"})
    ask = urllib.request.build_opener(through).open
    print(f"{name}:", said(ask, "https://example.org/weights.pth", None, 0.5))
silent.close()

# %% [markdown]
# ### A class that workers cannot find
#
# - **Symptom** `Can't get attribute … on <module '__main__'`, then `DataLoader worker exited unexpectedly`.
# - **Cause** Workers that are not forked (the default since Python 3.14) import the module of your class, and a
#   notebook is not a module.
# - **Remedy** Put the class into a file and import it, or set `multiprocessing_context="fork"`.

# %%
PROGRAM = """
import multiprocessing
class Images:
    def __getitem__(self, index): return index
if __name__ == "__main__":
    worker = multiprocessing.get_context(METHOD).Process(target=Images().__getitem__, args=(0,))
    worker.start()
    worker.join()
    print("exit code", worker.exitcode)
"""
for method in ("spawn", "fork"):
    code = PROGRAM.replace("METHOD", repr(method))
    end = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    print(f"{method}: {end.stdout.strip()} {end.stderr.strip().splitlines()[-1:]}")

# %%
file.close()
view.close()

# %% [markdown] id="cluster"
# ## On the cluster
#
# Before a long job, check the machine that it will run on; after packing, check what every rank reads:

# %%
from helpers import machine_report

show.command(machine_report.describe(setup.scratch))

# %% [markdown]
# ```bash
# smallfiles epoch train.tars            # each sample once, over ranks and workers
# smallfiles verify train.tars           # every block against its digest
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - Failures without an error are found by counting: samples, labels, keys.
# - Open files in the process that reads them, and close HDF5 files in the parent before workers start.
# - Memory has several limits: those of the job, of `/dev/shm`, of open files, of 32-bit numbers.
# - "No space left" may mean inodes, "bus error" may mean `/dev/shm`: read the message as a symptom.
# - Count what you may use, not what is installed or was requested.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A reader is right with one worker and wrong with two. What do you look for?
# (a) A file that is opened in `__init__`. (b) A full `/dev/shm`. (c) The seed.
#
# <details>
# <summary>Answer</summary>
#
# **(a)**. Two workers share its offset. (b) would be an error. (c) A seed changes the order, and bytes still match their
# label.
#
# </details>
#
# **2.** A worker is "killed by signal: Bus error". What do you do first?
# (a) Ask for more memory for the job. (b) Look at `df -h` of `/dev/shm`. (c) Replace the node's memory.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A page of shared memory was not available. (a) A job over its memory limit is killed by signal 9. (c) Broken
# memory is very rare.
#
# </details>
#
# **3.** A job that reads well on the login node hangs on a compute node in `from_pretrained`. Why?
# (a) The GPU is busy. (b) The workers share a file. (c) It waits for the internet.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Download beforehand, and set `HF_HUB_OFFLINE=1`. (a) Nothing is computed yet. (b) would cause wrong samples,
# not a hang.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Go back to the notebook that teaches it, or to your own data: [13](13_bring_your_own_data.ipynb).
