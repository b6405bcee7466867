# %% [markdown] id="top"
# # 12 · When it breaks
#
# **Minutes** 30 · **Machine** any Linux computer with two CPUs · **Needs** nothing · **Data** 400 synthetic images
#
# This notebook is a reference. When something breaks, find your symptom in the tables. Each row names the cause and the
# remedy, and most rows also name the section of the course that explains both. Where a row says *below*, this notebook
# reproduces the failure and shows its cure.
#
# In a course, start at [Set up](#Set-up). The 30 minutes are enough for the failures that are not marked *optional*.

# %% [markdown] id="symptoms"
# ## Find your symptom

# %% [markdown]
# ### No error, but wrong
#
# These failures are the most expensive ones, because usually nothing reports them. `smallfiles audit -- python train.py`
# runs your training unchanged, records which samples it receives, and names what is wrong. Among its verdicts are *the same
# order in every epoch*, *samples are seen by several ranks*, *samples arrive twice in an epoch*, *samples are lost*,
# *shards that no worker read*, *a shard is truncated*, *equal random numbers in several workers*, *ranks have different
# numbers of batches*, and, with `--resume`, *a resume repeats samples*. The audit does not check whether the bytes and the
# labels of a sample are right, so it cannot find the failures in the first two rows.
#
# | Symptom | Cause | Remedy | Where |
# |---|---|---|---|
# | Accuracy is lower with 4 workers than with none | forked workers share the position of a file that was opened before the fork ([pytorch#11887](https://github.com/pytorch/pytorch/issues/11887)) | open the file in each process, at its first read, or use `os.pread` | [below](#Lower-accuracy-with-workers), [04.4](04_pack_hdf5.ipynb#4-·-Close-the-file-before-workers-start), [06.3](06_read_a_squashfs_image.ipynb#3-·-Share-one-file-between-workers) |
# | A pretrained model scores 0 to 0.1 % on ImageNet | the labels are `ID - 1`, which is the order of the development kit and not the order of the sorted wnids ([mmpretrain#11](https://github.com/open-mmlab/mmpretrain/issues/11)) | the label is the rank of the wnid among all sorted wnids; validation images 1 to 4 have the labels 65, 970, 230, 809 | [02.3](02_describe_a_dataset.ipynb#3-·-Catch-the-wrong-label-order) |
# | Every epoch has the same order | nobody calls `sampler.set_epoch(epoch)` ([pytorch#31771](https://github.com/pytorch/pytorch/issues/31771)), or shards are shuffled with the same seed in each epoch | call `set_epoch` before each epoch; in webdataset, use `detshuffle=True` with `persistent_workers=True`; `make_loader` counts epochs itself | [below](#Same-order-in-every-epoch), [05.5](05_shard_a_dataset.ipynb#5-·-Change-the-order-in-each-epoch), [10.3](10_run_it_on_many_nodes.ipynb#3-·-Deal-out-the-samples) |
# | Two images became one sample | webdataset cuts names at the first dot, so both images get the same key | use names without dots; `pack` writes a dot as `%2E` | [below](#Two-images-became-one-sample), [05.1](05_shard_a_dataset.ipynb#1-·-Look-inside-a-shard) |
# | With more GPUs, an epoch is not shorter; or `you need to add an explicit nodesplitter` | each rank reads all shards | split the shards over ranks and then over workers, with at least one shard for each worker | [below](#Each-rank-reads-everything), [10.3](10_run_it_on_many_nodes.ipynb#3-·-Deal-out-the-samples) |
# | Fewer samples than yesterday, or `unexpected end of data` | a copy was interrupted; if it ends between two samples, webdataset and `tarfile` do not notice | copy to a temporary name and rename the file when it is complete; check with `smallfiles verify` | [05.6](05_shard_a_dataset.ipynb#6-·-Cut-a-shard) |
# | A batch contains few classes | the samples were packed in class order, and the buffer is too small to mix them | pack with `pack --shuffle SEED`, and keep a small buffer | [05.2](05_shard_a_dataset.ipynb#2-·-Mix-the-samples) |
# | ImageFolder finds one class, or a class called `masks` | it treats each folder as a class | say which files belong together (`--field 'mask=masks/{stem}.png'`), or that folders are classes (`--source folder`) | [02.1](02_describe_a_dataset.ipynb#1-·-Walk-once,-write-down-what-is-there), [13](13_bring_your_own_data.ipynb) |
# | Augmentations repeat in every worker, or in every epoch | a NumPy generator that is made in `__init__` is copied to each worker, and PyTorch seeds only the global generators ([pytorch#5059](https://github.com/pytorch/pytorch/issues/5059)) | make the generator in the worker, at its first read, from `torch.initial_seed()` | |
# | The second run of a benchmark is several times as fast | the files are in the page cache ([DALI#1415](https://github.com/NVIDIA/DALI/issues/1415)) | say whether you measured warm or cold reads, as `smallfiles bench` does | [01.2](01_count_the_cost_of_small_files.ipynb#2-·-Time-a-single-open) |

# %% [markdown]
# ### Memory
#
# | Symptom | Cause | Remedy | Where |
# |---|---|---|---|
# | Memory grows during the first epoch; at the end `killed by signal: Killed` | reading a Python object changes its reference count, so its page of memory is copied into the worker ([pytorch#13246](https://github.com/pytorch/pytorch/issues/13246)) | keep paths and labels in columns (Arrow, NumPy) instead of lists and dicts | [below](#Memory-grows), [02.5](02_describe_a_dataset.ipynb#5-·-Count-the-memory-of-workers) |
# | `unable to allocate shared memory`; before PyTorch 2.10 `Bus error` | `/dev/shm` is full (Docker: 64 MB, [pytorch#5040](https://github.com/pytorch/pytorch/issues/5040)) | prepare fewer batches ahead, send uint8 instead of float32, or use threads instead of processes; in Docker, set `--shm-size` | [below](#Bus-error,-or-no-shared-memory), [08.3](08_keep_the_gpu_fed.ipynb#3-·-Add-workers) |
# | `Bus error` | a file was made shorter while it was mapped into memory; before PyTorch 2.10 also a full `/dev/shm` | do not change a file that others read: write a new file and rename it | [below](#Bus-error,-or-no-shared-memory) |
# | `Too many open files`, `received 0 items of ancdata` | each tensor that you keep from a worker needs an open file ([pytorch#973](https://github.com/pytorch/pytorch/issues/973)) | keep a copy (`.clone()`), raise `ulimit -n`, or use `set_sharing_strategy("file_system")` | [below](#Too-many-open-files) |
# | `offset overflow while concatenating arrays` | in each record batch, a `binary` column must be smaller than 2 GiB ([arrow#10776](https://github.com/apache/arrow/issues/10776)) | write more batches, or use `large_binary` | [below](#Offset-overflow), [03.1](03_pack_arrow.ipynb#1-·-Build-a-small-file-by-hand) |
# | The job is killed while it stages | a file in `/dev/shm` counts as memory of the job | request more memory, or stage to a disk of the node | [07.1](07_stage_a_dataset.ipynb#1-·-Find-the-place) |
# | The node has less memory than usual | a killed job left its copies in `/dev/shm` | `smallfiles staged --sweep` | [07.5](07_stage_a_dataset.ipynb#5-·-Clean-up,-also-when-killed) |

# %% [markdown]
# ### Storage
#
# | Symptom | Cause | Remedy | Where |
# |---|---|---|---|
# | `No space left on device`, and `df -h` shows space; `Disk quota exceeded` | the file system has no free inodes, your quota of files or bytes is used up, or one Lustre target is full | look with `df -i`, `lfs df -h` and the quota command of your site; pack if you have too many files, delete if you have too many bytes | [below](#No-space-left), [01.1](01_count_the_cost_of_small_files.ipynb#1-·-Count-inodes-and-blocks), [06.7](06_read_a_squashfs_image.ipynb#7-·-Put-an-environment-into-one-file) |
# | `image file is truncated`, `cannot identify image file` | a download was interrupted, or the server sent an error page instead of the image | `pack` names each such file; download the file again, or let `pack` skip it with `--on-error skip` | [14.1](14_wrap_up.ipynb#1-·-Look-before-you-pack) |
# | Opening many files is slow, and more threads do not help | the metadata server cannot process more requests | pack the files into one file | [01.4](01_count_the_cost_of_small_files.ipynb#4-·-Keep-many-opens-in-flight) |
# | Reading one large file is slow from many nodes | the file is on a single storage target | look with `lfs getstripe FILE`; run `lfs setstripe -c -1 FOLDER`, and write the file again | [11.4](11_choose_a_format.ipynb#4-·-Draw-the-map-of-limits) |
# | `Stale file handle`; `Cannot send after transport endpoint shutdown` | a file was replaced while it was open ([libnfs#614](https://github.com/sahlberg/libnfs/pull/614)); or the node lost the connection to its server ([Lustre](https://wiki.lustre.org/Lustre_Client_Eviction_Guide)) | publish new files under new names; open the file again, or resume from a checkpoint ([10.6](10_run_it_on_many_nodes.ipynb#6-·-Outlive-the-time-limit)) | |
# | `Unable to lock file`, `No locks available` | another process has the HDF5 file open, or the file system has no locks ([h5py#1101](https://github.com/h5py/h5py/issues/1101)) | if nobody writes to the file, use `locking=False` at each open, or `HDF5_USE_FILE_LOCKING=FALSE` before the import | [below](#Unable-to-lock-file), [04.5](04_pack_hdf5.ipynb#5-·-Meet-the-file-lock) |
# | Random reads from HDF5 fetch many times the size of a sample | HDF5 reads whole chunks, and at least 64 KiB of contiguous data | store a contiguous blob, and read small samples with `os.pread` | [04.3](04_pack_hdf5.ipynb#3-·-Read-one-sample-at-random) |
# | Random reads from Arrow fetch many times the size of a sample | `get_batch` fetches the whole record batch for one image | write fewer rows per batch, or use `arrow.open(path, access="pread")` | [03.4](03_pack_arrow.ipynb#4-·-Feed-a-DataLoader) |
# | A squashfs file is as large as the folder, and slow | it was packed with the default settings, gzip and fragments | pack without compression; look with `python -m pysquashfs info FILE` | [06.2](06_read_a_squashfs_image.ipynb#2-·-Leave-photographs-uncompressed) |
# | `must be superuser`, `failed to setup loop device` | mounting needs root rights, or FUSE and its device file ([enroot#180](https://github.com/NVIDIA/enroot/issues/180)) | read the file with the library instead | [06.4](06_read_a_squashfs_image.ipynb#4-·-Read-without-a-mount) |
# | `lmdb.Error: Function not implemented`, or an LMDB that breaks | LMDB is not made for network file systems, as its authors say ([py-lmdb#228](https://github.com/jnwatson/py-lmdb/issues/228), [#281](https://github.com/jnwatson/py-lmdb/issues/281)) | copy the file to the node ([07.1](07_stage_a_dataset.ipynb#1-·-Find-the-place)), and open it with `lmdb.open(path, readonly=True, lock=False, readahead=False)` | |

# %% [markdown]
# ### Workers, ranks, jobs
#
# | Symptom | Cause | Remedy | Where |
# |---|---|---|---|
# | `Temporary failure in name resolution`, `Connection refused`, or a job that hangs | compute nodes have no access to the internet | download on a login node into a folder that jobs can read, and set its path (`TORCH_HOME`; `HF_HOME`, `HF_HUB_OFFLINE=1`); set timeouts | [below](#Connection-refused,-or-a-job-that-hangs) |
# | Many ranks need minutes to start | each rank opens a thousand files to import PyTorch | put the environment into one file | [00.3](00_start_here.ipynb#3-·-Count-the-files-behind-one-import), [06.7](06_read_a_squashfs_image.ipynb#7-·-Put-an-environment-into-one-file) |
# | Staged data is gone before training starts | a `trap` inside `$(…)` runs when this subshell ends | set the trap in the script itself | [07](07_stage_a_dataset.ipynb#On-the-cluster) |
# | Training hangs at its start | the program waits for `SLURM_NTASKS` ranks, but nobody started them | start the program with `srun`, and use `SLURM_STEP_NUM_TASKS` as the number of ranks | [10.1](10_run_it_on_many_nodes.ipynb#1-·-Find-your-place) |
# | `h5py objects cannot be pickled` | workers that are not forked get a pickled copy of the `Dataset`, and an open file cannot be pickled | keep the path in the `Dataset`, and open the file in the worker | [below](#Cannot-get-attribute,-or-cannot-be-pickled), [04.4](04_pack_hdf5.ipynb#4-·-Close-the-file-before-workers-start) |
# | `Can't get attribute … on <module '__main__'` | workers that are not forked import your class, and a notebook is not a module | put the class into a file, or use `multiprocessing_context="fork"` | [below](#Cannot-get-attribute,-or-cannot-be-pickled) |
# | `Cannot re-initialize CUDA in forked subprocess` | the dataset, a transform or the collate function uses CUDA in a worker ([pytorch#40403](https://github.com/pytorch/pytorch/issues/40403)) | move tensors to the GPU in the main process, or use `multiprocessing_context="spawn"` | [08.3](08_keep_the_gpu_fed.ipynb#3-·-Add-workers) |
# | Workers are very slow although CPUs were requested | from Slurm 22.05 to 23.02 `srun` ignores the script's `--cpus-per-task` ([reframe#2655](https://github.com/reframe-hpc/reframe/issues/2655), [ulhpc-docs#51](https://github.com/ULHPC/ulhpc-docs/issues/51)) | repeat the request: `srun --cpus-per-task="$SLURM_CPUS_PER_TASK"` | [below](#Workers-crawl), [10.1](10_run_it_on_many_nodes.ipynb#1-·-Find-your-place) |
# | The GPU waits, and more prefetching does not help | on average, loading is slower than the GPU | find the slowest stage, and crop before you resize | [08.1](08_keep_the_gpu_fed.ipynb#1-·-Follow-a-batch), [08.5](08_keep_the_gpu_fed.ipynb#5-·-Look-at-the-waiting) |
# | More nodes do not read more images per second | the shared storage is saturated | stage the data on each node, or use fewer nodes | [10.5](10_run_it_on_many_nodes.ipynb#5-·-Add-nodes-until-the-storage-saturates) |
# | Training hangs at the end of an epoch | one rank has fewer batches, and the others wait for its gradients (10 minutes with NCCL, and 30 minutes with gloo) | give all ranks the same number of batches | [10.3](10_run_it_on_many_nodes.ipynb#3-·-Deal-out-the-samples), [10.4](10_run_it_on_many_nodes.ipynb#4-·-Train-on-all-of-them) |

# %% [markdown]
# ### Loading limits my training
#
# `smallfiles profile -- python train.py` ([14.4](14_wrap_up.ipynb#4-·-Train,-and-look-at-the-waiting)) tells you what limits
# your training. It checks the conditions in this table from top to bottom, and prints the first verdict whose condition is
# met. *All CPUs are wanted* means that, while the workers make batches, the processes together use or wait for at least
# 80 % of the CPUs that the job may use. *20 % of a worker* means 20 % of the time of a worker.
#
# <details>
# <summary>All verdicts, their conditions and remedies</summary>
#
# | Verdict | Condition | Remedy |
# |---|---|---|
# | one rank waits for another | the shares of time that two ranks wait differ by at least 20 percentage points, and the smaller one is less than half of the larger one (for example 15 % and 40 %) | look at the rank that waits: it may have fewer CPUs or slower storage |
# | batches are too large for /dev/shm | workers × batches ahead × bytes of a batch are at least 80 % of `/dev/shm` | use `prefetch_factor=1` or fewer workers |
# | workers are restarted in each epoch | starting the workers needs at least 20 % of an epoch | `persistent_workers=True` |
# | the main thread copies | the main thread spends at least 20 % of the time between two batches on copies, collating or conversions | do this work in the workers; `pin_memory=True`, `non_blocking=True` |
# | the first epoch is cold, later ones are warm | the first epoch waits at least 20 % of its time, and the share in later epochs is less than 0.4 times as large (for example 50 % and 15 %) | run `smallfiles stage OUT` first |
# | loading is not the limit | the training waits less than 10 % of its time, or less than 30 % while its workers are mostly idle | look at the model |
# | threads are oversubscribed | each worker has at least 1.4 busy threads, all workers together have more busy threads than there are CPUs, and all CPUs are wanted | `OMP_NUM_THREADS=1`, `cv2.setNumThreads(0)` |
# | small reads | a sample needs at least 40 reads that are smaller than 16 kB, and these reads need at least 20 % of a worker | `smallfiles pack DIR`, or larger chunks |
# | opens on a file system with slow metadata | opening files needs at least 30 % of a worker | `smallfiles pack DIR train.arrow` |
# | the storage is the limit | reading needs at least 40 % of a worker | pack, then `smallfiles stage` |
# | too few CPUs are allowed | all CPUs are wanted, and the node has more than are allowed | `srun --cpus-per-task=N` |
# | too many workers | there are at least three workers per CPU, and all CPUs are wanted | set `num_workers` to the number of CPUs |
# | too few workers | workers are busy for at least half of the time, and CPUs are free; or `num_workers=0` | `num_workers=N` |
# | decoding is the limit | decoding and augmentation need at least 30 % of a worker, and all CPUs are wanted | `smallfiles pack DIR OUT --resize 256` |
# | CPUs are the limit | all CPUs are wanted, and no other verdict explains it | request more CPUs, or do less work per sample |
# | too few steps to judge | there are fewer than 8 steps between the first and the last step of an epoch | run longer, with longer `--seconds` or more batches per epoch |
# | numbers are missing for a verdict | this system does not report a number that is needed, or no other condition is met | `smallfiles bench load` |
#
# </details>

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start

setup = start("12")

# %% [markdown]
# The *folded* cell defines two helpers. `result_or_error` calls a function, and returns its result or the last line of its
# error. `in_child` does the same in a forked process, so that a failure cannot damage this kernel.

# %% jupyter={"source_hidden": true}
import multiprocessing
import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

fork = multiprocessing.get_context("fork")


def result_or_error(call, *arguments):
    """Return what a call returns, or the last line of its error."""
    try:
        return call(*arguments)
    except Exception as error:
        text = str(error).replace(f"{setup.scratch}/", "")
        return f"{type(error).__name__}: {text.strip().splitlines()[-1]}"


def in_child(call, *arguments):
    """Call `result_or_error` in a forked process."""
    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        return pool.submit(result_or_error, call, *arguments).result()

# %% [markdown]
# The next cell packs all images into one shard, and opens it with a reader of the toolbox.

# %%
from smallfiles import formats, machine
from smallfiles.formats import tar
from smallfiles.pack import PackConfig, pack

source = setup.source()
out = setup.scratch / "train.tars"
if not out.exists():
    pack(source, out, PackConfig(options=tar.Options(max_count=1000), verify="none"))
shard = min(out.glob("*.tar"))
reader = formats.open(shard)

# %% [markdown] id="recall"
# > **Recall** (10). How do you know that eight ranks read each sample once in an epoch?
#
# <details>
# <summary>Answer</summary>
#
# Count the keys over all ranks. Each key must occur once. If nothing splits the samples, each rank reads all of them. If they
# are split by a wrong number, such as the local rank, some samples are read twice and others never.
#
# </details>

# %% [markdown] id="wrong" tags=["core"]
# ## 1 · Wrong samples, and no error
#
# ### Lower accuracy with workers
#
# If workers read wrong bytes, the network becomes less accurate. Here we only count the wrong samples. The data set
# `IsRight` reads an image from the shard, either with `seek` and `read` or with `os.pread`, and returns whether its bytes
# equal the right bytes in `truth`. The shard is opened before the workers are forked, so all workers read through the same
# open file.

# %%
from torch.utils.data import DataLoader, Dataset, RandomSampler

truth = [bytes(reader.read(index)) for index in range(len(reader))]
places = [reader.span(index)[1:] for index in range(len(reader))]  # where each image is
opened_before = shard.open("rb", buffering=0)


class IsRight(Dataset):
    file = opened_before

    def __init__(self, way):
        self.way = way

    def __len__(self):
        return len(truth)

    def __getitem__(self, index):
        start, stop = places[index]
        if self.way == "os.pread":
            return os.pread(self.file.fileno(), stop - start, start) == truth[index]
        self.file.seek(start)
        os.sched_yield()  # a pause: another worker may run, as on a busy node
        return self.file.read(stop - start) == truth[index]


# %% [markdown]
# > **Predict.** Two workers read with `seek`, a short pause, and `read`. What percentage of the samples is wrong?
#
# The cell after your guess counts the wrong samples in runs of 12,000 samples. It compares two workers with one worker,
# and with two workers that use `os.pread`.

# %%
guess = None  # your guess, percent with two workers: for example 30

# %%
def wrong(dataset, workers):
    chosen = RandomSampler(truth, replacement=True, num_samples=12_000)
    settings = {"num_workers": workers, "multiprocessing_context": "fork"}
    loader = DataLoader(dataset, 100, sampler=chosen, **settings)
    return sum(int((~right).sum()) for right in loader)


shares = {}
for way, n in (("seek, pause, read", 2), ("seek, pause, read", 1), ("os.pread", 2)):
    shares[f"{way}; {n} worker{'s' * (n > 1)}"] = [wrong(IsRight(way), n) / 120 for _ in range(3)]
two, _, pread = shares.values()
title = f"{min(two):.0f} to {max(two):.0f}% of samples are wrong, with os.pread {max(pread):.2g}%"
title = title if median(two) else "This time the two workers rarely met: run the cell again"
look = {"groups": ("seek", "os.pread"), "guess": guess, "guess_of": "seek, pause, read; 2"}
figures.bars(shares, title, x="wrong samples (%)", note="12,000 samples per run", **look)

# %% [markdown]
# ![Left: two workers share one file position, worker 2 moves it, and worker 1 reads image B instead of A. Right: with pread each names its position.](pictures/shared_offset.svg)
#
# With two workers, the percentage of wrong samples depends on chance. We have seen 25 to 99 %. With one worker, and with
# `os.pread`, no sample is wrong.
#
# **Why.** Forked workers share the position of an open file. While one worker pauses between `seek` and `read`, another
# worker may move this position, and then the first worker reads at the wrong place. A single worker is not disturbed.
# Without the pause, workers rarely disturb each other, so a short test may miss the mistake
# ([06.3](06_read_a_squashfs_image.ipynb#3-·-Share-one-file-between-workers)).
#
# **Cure.** Use `os.pread`, which passes the position with each read. Or let each process open the file itself, at its first
# read.
#
# **Your turn.** Change the marked line of the next cell so that each worker opens `shard` itself. The program is repaired
# only if the number of wrong samples is 0.

# %%
from functools import cached_property


class OwnFile(IsRight):
    @cached_property
    def file(self):  # replaces `IsRight.file`; each worker calls it once, at its first read
        return opened_before  # change me: open `shard` here


print(f"{wrong(OwnFile('seek, pause, read'), 2):,} of 12,000 samples are wrong")

# %% [markdown]
# <details>
# <summary>Answer</summary>
#
# `return shard.open("rb", buffering=0)`. Then no sample is wrong.
#
# </details>
#
# ### Same order in every epoch
#
# *Optional, 2 minutes.* The next cell prints the first five samples that one rank reads in each of two epochs. Run it, and
# then change the marked line so that the two epochs have different orders.

# %%
from torch.utils.data import DistributedSampler

call_set_epoch = False  # change me
sampler = DistributedSampler(range(20), num_replicas=2, rank=0)
for epoch in range(2):
    if call_set_epoch:
        sampler.set_epoch(epoch)
    print(f"seed {sampler.seed} + epoch {sampler.epoch}: {list(sampler)[:5]}")

# %% [markdown]
# **Why.** The order depends on the sum of the seed and the epoch, and only `set_epoch` changes the epoch of the sampler.
#
# **Cure.** Call `set_epoch` before each epoch, here with `call_set_epoch = True`.
#
# ### Two images became one sample
#
# > **Predict.** The next cell names two files. How many samples does webdataset find in a shard that contains them?
#
# **Your turn.** After your guess, change the names so that webdataset finds two samples.

# %%
names = ["cat.v1.jpg", "cat.v2.jpg"]  # change me after your guess

# %% [markdown]
# The *folded* cell writes two shards, and prints the key and the files of each sample that webdataset finds. The first
# shard has your names. In the second shard, `%2E` replaces each dot before the extension.

# %% jupyter={"source_hidden": true}
import tarfile

import webdataset as wds


def written(file, *names):
    with tarfile.open(setup.scratch / file, "w") as archive:
        for name in names:
            archive.add(setup.folder() / source.manifest.path(0), name)
    return str(setup.scratch / file)


def parts_of(url):
    samples = wds.WebDataset(url, shardshuffle=False)
    return {sample["__key__"]: [part for part in sample if not part.startswith("__")] for sample in samples}


escaped = [f"{Path(name).stem.replace('.', '%2E')}{Path(name).suffix}" for name in names]
print("your names: ", parts_of(written("dotted.tar", *names)))
print("without dots:", parts_of(written("escaped.tar", *escaped)))

# %% [markdown]
# **Why.** webdataset cuts each name at its first dot, and uses the first part as the key of the sample. `cat.v1.jpg` and
# `cat.v2.jpg` have the same key, `cat`, so webdataset finds one sample with two images.
#
# **Cure.** Use names without dots before the extension, such as `cat_v1.jpg`, or `cat%2Ev1.jpg` as `pack` does.
#
# ### Each rank reads everything
#
# *Optional, 3 minutes.*
#
# Two ranks read the shards `a.tar` and `b.tar`. Each shard contains one sample. Which samples does each rank get?

# %%
from unittest.mock import patch

both = [written(f"{letter}.tar", f"{letter}.jpg") for letter in "ab"]


def keys_of(rank):
    with patch.dict(os.environ, RANK=rank, WORLD_SIZE="2"):
        dataset = wds.WebDataset(both, shardshuffle=False, nodesplitter=None)  # change me
        return [sample["__key__"] for sample in dataset]


for rank in "01":
    print(f"rank {rank}:", result_or_error(keys_of, rank))

# %% [markdown]
# Each rank gets both samples.
#
# **Why.** Each rank has the list of all shards, and `nodesplitter=None` means that nothing splits this list.
#
# **Cure.** Pass `nodesplitter=wds.split_by_node`, which splits the list by rank.
#
# **Your turn.** Make this change. What does each rank get now? Then delete the argument `nodesplitter`. What happens?
#
# <details>
# <summary>Answer</summary>
#
# With `nodesplitter=wds.split_by_node`, rank 0 reads `a` and rank 1 reads `b`. Without the argument, webdataset raises the
# error `you need to add an explicit nodesplitter`.
#
# </details>

# %% [markdown] id="memory" tags=["core"]
# ## 2 · Memory that runs out
#
# ### Memory grows
#
# Forked workers share the memory of their parent, so they share a list of paths. But as soon as a worker writes to a page
# of memory (usually 4 kB), it gets its own copy of this page. Even a worker that only reads a path writes to memory,
# because Python changes the path's reference count.
#
# > **Predict.** A page has 4 kB, and a path needs 112 bytes. A worker reads every n-th path of the list. What is the largest
# > n with which it still reads a path of every page, so that the whole list is copied?

# %%
guess = None  # your guess for n: for example 10
steps = (1, 3, 10, 30, 100, 300, 1_000)  # change me: add values of n to find the edge

# %% [markdown]
# In the *folded* cell, workers read every n-th path of a list and of an Arrow column, and measure how much memory was copied.

# %% jupyter={"source_hidden": true}
import mmap

import pyarrow as pa

paths = [f"ILSVRC/Data/CLS-LOC/train/n{n % 1000:08d}/n{n % 1000:08d}_{n}.JPEG" for n in range(300_000)]


def private_mb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1000


def copied_mb(name, step):
    table, before = tables[name], private_mb()
    for index in range(0, len(table), step):
        table[index]
    return private_mb() - before


tables = {"list": paths, "column": pa.array(paths)}
copied = {name: {step: in_child(copied_mb, name, step) for step in sorted({1, *steps})} for name in tables}
whole = max(copied["list"].values())
last = max(n for n, mb in copied["list"].items() if mb > 0.985 * whole)
title = f"Reading every {last:,}th path still copies the whole list"
page = mmap.PAGESIZE
marks = {f"{page:,} / 112 B = {page // 112} paths per page": page / 112}
axes = {"x": "every n-th path is read, n", "y": "copied by the worker (MB)", "log": "x"}
figures.lines(copied, title, **axes, guess=guess, marks=marks, counted=True)

# %% [markdown]
# **Why.** The paths lie one after the other in memory, so a page of 4 kB contains 36 of them. Up to n = 36, the worker
# reads at least one path of each page, so each page is copied. With a larger n, it skips some pages. The title can only name
# a value of `steps`. To see the edge, add 36, 40 and 50. The paths in a column have no reference counts, so no page is
# copied.
#
# **Cure.** Keep paths, labels and captions in columns of Arrow or NumPy.
#
# ### Bus error, or no shared memory
#
# Workers pass their batches to the main process through `/dev/shm`, a folder in memory. In this experiment, `/dev/shm` has
# only 8 MB. A worker sends eight samples in batches of four. A sample has 600,000 numbers. We try floats, which need four
# bytes per number, and `uint8`, which needs one byte.
#
# With which type do the samples arrive: floats, `uint8`, or both?
#
# **Your turn.** After your guess, find a size of `batch` with which both arrive.

# %%
batch = 4  # change me after your guess: samples per batch

# %% [markdown]
# The *folded* cell tries both types with a `/dev/shm` of this size, if this machine allows it.

# %% jupyter={"source_hidden": true}
def with_limits(folder, limits, *command):
    """Run a command for which a folder has these limits, and return its output."""
    mount = f'mount -t tmpfs -o {limits} none "$0" && exec "$@"'
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]
    end = subprocess.run([*alone, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    refused = "unshare failed" in end.stdout or "mount:" in end.stdout
    return f"Not allowed here, so read on: {end.stdout}" if refused else end.stdout.strip()


LOADER = """
import sys
import torch
from torch.utils.data import DataLoader
samples = torch.zeros(8, 600_000, dtype=getattr(torch, sys.argv[1]))
try:
    print(sum(map(len, DataLoader(samples, batch_size=int(sys.argv[2]), num_workers=1))), "samples arrived")
except RuntimeError as error:
    print(str(error).strip().splitlines()[-1])
"""
for dtype in ("float32", "uint8"):
    print(f"{dtype}:", with_limits("/dev/shm", "size=8m", sys.executable, "-c", LOADER, dtype, str(batch)))

# %% [markdown]
# Only the `uint8` samples arrive.
#
# **Why.** A batch of four samples needs 9.6 MB as floats, and 2.4 MB as `uint8`. Even batches of two floating-point samples
# do not fit, although one such batch needs only 4.8 MB. The worker prepares the second batch before the first one is used,
# and both together need 9.6 MB.
#
# **Cure.** Use smaller batches, prepare fewer batches ahead, or send `uint8`. Here, both types arrive with `batch = 1`.
#
# The important words of the error message are `unable to allocate shared memory`. Ignore the words after its last colon,
# which may be wrong ([pytorch#176069](https://github.com/pytorch/pytorch/issues/176069)). Before PyTorch 2.10, the worker
# was killed by a bus error instead ([pytorch#161910](https://github.com/pytorch/pytorch/pull/161910)).
#
# With every version of PyTorch, a bus error also occurs if a file is truncated while it is mapped into memory. In the
# *folded* cell, a worker reads from such a file. Then another worker kills itself with signal 9, which Linux sends to a
# process if the memory limit is exceeded.

# %% jupyter={"source_hidden": true}
import signal

torn = setup.scratch / "torn"
torn.write_bytes(bytes(1 << 20))
with torn.open("r+b") as opened:
    view = mmap.mmap(opened.fileno(), 0)
os.truncate(torn, 0)  # the file is truncated while it is mapped


def quiet(worker):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # PyTorch's own line about the signal would come twice


for die in (lambda _: view[5_000], lambda _: os.kill(os.getpid(), signal.SIGKILL)):
    loader = DataLoader([0], num_workers=1, collate_fn=die, worker_init_fn=quiet, multiprocessing_context="fork")
    try:
        list(loader)
    except RuntimeError as error:
        show.error(error.__cause__ or error)

# %% [markdown]
# The first message suggests that shared memory is used up, but the cause was the truncated file. In the second message,
# `Killed` means signal 9.
#
# **Cure.** Do not change a file that others read. Write a new file and rename it.
#
# ### Too many open files
#
# The program in the next cell tries to keep 200 batches in a list, but it may open only 60 more files. Run it, and
# then change the marked line.

# %%
import resource

import torch

copy = False  # change me: True keeps a clone of each batch


def keep_batches():
    most = len(os.listdir("/proc/self/fd")) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    kept = []
    for batch in DataLoader(torch.zeros(200, 4), num_workers=1, multiprocessing_context="fork"):
        kept.append(batch.clone() if copy else batch)
    return f"{len(kept)} batches"


print(in_child(keep_batches))

# %% [markdown]
# **Why.** A tensor that comes from a worker is in shared memory. For PyTorch, this memory is an open file, which stays open
# for as long as you keep the tensor.
#
# **Cure.** Keep a clone of the tensor. The clone is in the memory of your own process, and needs no open file. With
# `copy = True`, the program keeps all 200 batches.
#
# ### Offset overflow
#
# *Optional, 2 minutes.*
#
# We let Arrow join pieces of 64 MiB into one `binary` array. What is the largest number of pieces that fits: 31, 32, or 33?
# The next cell tries 33. After your guess, try the other numbers.

# %%
pieces = 33  # change me after your guess; with 31, the cell needs 2 GB of memory
chunk = pa.array([bytes(1 << 20)] * 64)  # 64 MiB
photos = pa.chunked_array([chunk] * pieces)  # the same chunk each time, which needs no memory
print(result_or_error(lambda: f"{photos.combine_chunks().nbytes >> 20:,} MiB in one array"))
print(len(pa.table({"data": photos}).to_batches()), "record batches of 64 MiB are fine")

# %% [markdown]
# **Why.** The offsets of a `binary` array are signed numbers with 32 bits, so the array must be smaller than 2 GiB. Since
# 32 pieces have exactly 2 GiB, only 31 pieces fit.
#
# **Cure.** Do not join the pieces, or use `large_binary`. The second line of the output shows the first cure: in a table,
# each piece stays in a record batch of its own, and the limit applies to each record batch separately.

# %% [markdown] id="files" tags=["core"]
# ## 3 · Files that refuse
#
# ### No space left
#
# A file system has room for 12 MB and for five inodes. How many empty files can you create: four, five, or any number?
#
# The *folded* cell mounts such a file system, if this machine allows it. Then it tries to create five files, and calls
# `df -h` and `df -i`.

# %% jupyter={"source_hidden": true}
TOUCH = "cd $0; for n in 1 2 3 4 5; do touch $n; done; df -h . | tail -1; df -i . | tail -1"
small = setup.scratch / "small"
small.mkdir(exist_ok=True)
print(with_limits(small, "size=12m,nr_inodes=5", "sh", "-c", TOUCH, str(small)))

# %% [markdown]
# **Why.** Each file needs an inode, even if it is empty. The folder itself needs an inode, too, so only four files fit.
# `df -h` still shows free space, but `df -i` shows that all inodes are used.
#
# **Cure.** Look with `df -i`, and pack many files into one.
#
# ### Unable to lock file
#
# *Optional, 3 minutes.*
#
# The *folded* cell opens an HDF5 file for writing in this kernel. Then another process tries to open the same file for
# reading, first with locking and then without it. In which case does this work: with locking, without locking, or both?

# %% jupyter={"source_hidden": true}
import tempfile

os.environ.pop("HDF5_USE_FILE_LOCKING", None)  # read at import; we want locking in this kernel
import h5py

ASK = "import h5py, sys; h5py.File(sys.argv[1], 'r'); print('opened')"
local = tempfile.NamedTemporaryFile(suffix=".h5")  # a disk of this node has locks
path = local.name
h5py.File(path, "w").close()
with h5py.File(path, "r+"):
    for locking in ("TRUE", "FALSE"):
        variables = {**os.environ, "HDF5_USE_FILE_LOCKING": locking}
        asked = subprocess.run([sys.executable, "-c", ASK, path], env=variables, capture_output=True, text=True)
        print(f"locking {locking}:", (asked.stdout + asked.stderr).strip().splitlines()[-1])

# %% [markdown]
# **Why.** With locking, the reader requests a lock, too. It does not get this lock while the writer has the file open.
# Without locking, the reader can open the file, but it may read data that the writer has written only in part.
#
# **Cure.** Close the file in the program that writes. Use `locking=False` only if nobody writes to the file.

# %% [markdown] id="job" tags=["core"]
# ## 4 · Jobs that run elsewhere
#
# ### Cannot get attribute, or cannot be pickled
#
# *Optional, 4 minutes.* Python cannot import a class from a notebook, because a notebook is not a module. In the *folded*
# cell, we imitate a notebook with a program that is passed to `python -c`, so that it has no file, either. The program
# defines a class, and passes an object of this class to a worker. We start the worker once with spawn and once with fork.
#
# Which worker fails: the spawned worker, the forked worker, or both?

# %% jupyter={"source_hidden": true}
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
    print(f"{method}: {end.stdout.strip()}", *end.stderr.strip().splitlines()[-1:])

# %% [markdown]
# **Why.** The spawned worker fails. It is a new Python process, and it gets the object as a pickle. To unpickle the object,
# the worker must import the class from a file, but there is no such file. A forked worker is a copy of its parent, so it
# already has the class.
#
# **Cure.** Move the class into a file, or use fork.
#
# With spawn, it also fails if your `Dataset` contains an open HDF5 file, because such a file cannot be pickled. The next
# cell tries to pickle the file from [Unable to lock file](#Unable-to-lock-file), so run the cells of that part first. Then
# it pickles a reader of the toolbox. This works, because the pickle contains the path of the file instead of the open file.

# %%
import pickle

with h5py.File(path) as opened:
    print(result_or_error(pickle.dumps, opened))
print(f"our reader: {len(pickle.dumps(reader))} bytes")

# %% [markdown]
# ### Workers crawl
#
# > **Predict.** A script requests eight CPUs, but `srun` gives the task only one CPU. The next cell computes how many workers
# > to start. Which number does it return?
#
# **Your turn.** After your guess, run the cell. Then change the marked line so that each worker has its own CPU.

# %%
def in_a_task():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # what srun does
    os.environ["SLURM_CPUS_PER_TASK"] = "8"  # what the script requested
    workers = int(os.environ["SLURM_CPUS_PER_TASK"])  # change me: count the CPUs that the task has
    return f"workers: {workers}, CPUs: {machine.usable_cpus()}"


print(in_child(in_a_task))

# %% [markdown]
# <details>
# <summary>Answer</summary>
#
# `workers = min(int(os.environ["SLURM_CPUS_PER_TASK"]), machine.usable_cpus())`
#
# </details>
#
# **Why.** The variable contains the requested number of CPUs, so the cell returns eight workers. They would have to share
# one CPU. `usable_cpus` returns the number of CPUs that Linux allows, which is 1 here. On some clusters, Linux allows more
# CPUs than you requested, so use the smaller of the two numbers.
#
# **Cure.** To get all eight CPUs, repeat the request when you call `srun`: `srun --cpus-per-task="$SLURM_CPUS_PER_TASK"`.
#
# ### Connection refused, or a job that hangs
#
# Without access to the internet, a download either fails at once or waits for an answer that never comes. We imitate both
# cases with two ports of this machine. No program listens at the first port. At the second port, a server accepts
# connections and never answers. Which request would hang without a timeout: the request to the first port, the request to
# the second port, or both?
#
# The *folded* cell sends both requests, with a timeout of half a second.

# %% jupyter={"source_hidden": true}
import socket
import urllib.request

silent = socket.create_server(("127.0.0.1", 0))  # accepts connections, and never answers
with socket.create_server(("127.0.0.1", 0)) as closed:
    nobody = closed.getsockname()[1]
for name, port in {"refused": nobody, "silent": silent.getsockname()[1]}.items():
    through = urllib.request.ProxyHandler({"https": f"http://127.0.0.1:{port}"})
    ask = urllib.request.build_opener(through).open
    print(f"{name}:", result_or_error(ask, "https://example.org/weights.pth", None, 0.5))
silent.close()

# %% [markdown]
# **Why.** The first request is refused immediately. The second request would hang, and ends only because of the timeout.
#
# **Cure.** Download on a login node into a folder that jobs can read, and set timeouts.

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 12](../exercises/12_when_it_breaks.ipynb), you diagnose six failed jobs from their logs.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The next cell prints a command that checks the CPUs, the memory limit and the file systems. Add the folder of your data to
# this command, and run it in a short job before you submit a long one.

# %%
from helpers import machine_report

show.command(machine_report.describe(setup.scratch))

# %% [markdown]
# Then read one epoch on a few nodes, without training. Here, `seen` is a folder for the records of the ranks.
#
# ```bash
# srun smallfiles epoch train.tars seen    # each rank reads its part, and records its samples
# smallfiles epoch --count seen            # was each sample read once?
# smallfiles verify train.tars             # compare every block with its digest
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - Many failures raise no error, so only checks find them. `smallfiles audit` counts the samples of a whole training and
#   compares the orders of its epochs. It does not check bytes, so also compare the bytes with and without workers.
# - Open a file in the process that reads it, or read it with `os.pread`.
# - Memory, `/dev/shm`, open files and Arrow arrays all have limits. Most limits have their own error message, but a bus
#   error can have two causes.
# - Choose the number of workers by the CPUs that you requested and may use, and not by the CPUs that are installed.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** With PyTorch 2.9, a worker is "killed by signal: Bus error". What do you do first? (a) Ask for more memory. (b)
# Compare the *size* in `df -h /dev/shm` with workers × batches ahead × bytes of a batch. (c) Raise `ulimit -n`.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A page of shared memory was not available. Look at the *size* of `/dev/shm`, because its used space is 0 again
# after the workers have died. (a) A job that exceeds its memory limit is killed by signal 9. (c) This helps against another
# error, `Too many open files`. If `/dev/shm` was large enough, or if you have PyTorch 2.10 or later, ask whether a mapped
# file was rewritten.
#
# </details>
#
# **2.** On a compute node, a job seems to hang in `from_pretrained`, and it fails after some minutes. Why? (a) Its quota is
# used up. (b) It waits for other ranks. (c) It waits for an answer from the internet.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**. Download the model before the job, and set `HF_HUB_OFFLINE=1`. (a) This raises an error immediately, `Disk quota
# exceeded`. (b) Ranks wait for each other in `init_process_group` or in a training step, and not while they load a model.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [13 · Bring your own data](13_bring_your_own_data.ipynb) applies all of this to your own files.
