# %% [markdown] id="top"
# # 10 · Run it on many nodes
#
# **Minutes** 45 · **Machine** any Linux computer with two CPUs · **Needs** nothing; Slurm is optional · **Data** 400
# synthetic images
#
# On many nodes, many processes train one model together, and each of them must read its own part of the data. If two
# processes read the same part, no error is raised, and the loss looks normal. This notebook shows how to notice such a
# fault.

# %% [markdown] id="questions"
# ## Questions
#
# - How does a process know its number, and how many processes there are?
# - Does each sample arrive exactly once per epoch, and how would I notice if it did not?
# - What happens at the time limit?

# %% [markdown] id="objectives"
# ## After this you can
#
# - read the rank, the local rank, and the node from the variables of `srun` or `torchrun`,
# - audit which rank received which sample in your own training,
# - stop a training before its time limit and resume it.

# %% [markdown] id="setup"
# ## Set up
#
# The findings of this notebook do not change on a busy machine.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("10")

# %% [markdown]
# The *folded* cell packs the images into an Arrow file.

# %% jupyter={"source_hidden": true}
import os
import tempfile
import time
from pathlib import Path

import torch

from smallfiles import images
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.pack import PackConfig, pack

source = setup.source()
samples = len(source.manifest)
packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(source, packed, PackConfig(verify="none"))

# %% [markdown] id="recall"
# > **Recall** (08). A training step takes 20 ms, and the loader needs 30 ms per batch on average. Does a ring of 1,000
# > slots end the waiting?
#
# <details>
# <summary>Answer</summary>
#
# No. A buffer helps against single late batches. Here every batch is late, so the buffer runs empty. Make a batch
# cheaper, or use more CPUs.
#
# </details>

# %% [markdown] id="place" tags=["core"]
# ## 1 · Find your place
#
# `sbatch` puts a script into the queue. When the job starts, Slurm runs the script **once**, on the first node. The
# command `srun` in the script starts the *tasks*. With two nodes and two tasks per node, it starts four processes. The
# number of a task in the job is its *rank*. Its number on its node is its *local rank*.
#
# ![The job script runs once, on node 0; srun starts four tasks on two nodes. Ranks count over all nodes, local ranks from 0 on each.](pictures/script_and_tasks.svg)
#
# A *launcher*, such as `srun` or `torchrun`, sets environment variables that tell each process its numbers. The next cell
# shows these variables for processes that were started in six ways. (`salloc` opens a shell in a job.) The cell does not
# start a job. For example, `nodes.srun(3)` only returns the variables that rank 3 would have. The last lines of the output
# show what `smallfiles.machine.ranks` computes from the variables: rank, number of ranks (`of`), local rank, and node.
#
# > **Predict.** Which of the six processes belong to a group of four ranks, and which run alone?

# %%
guess = None  # 4 or 1 for each of the six names below: for example {"job script": 4, "laptop": 1}

# %% tags=["slide"]
from helpers.experiments import nb10 as nodes
from smallfiles.machine.ranks import ranks, rendezvous

launched = {
    "job script": nodes.script(),
    "salloc shell": nodes.salloc(),
    "srun": nodes.srun(3),
    "torchrun": nodes.torchrun(3),
    "torchrun in srun": nodes.torchrun(3, inside_srun=True),
    "laptop": {},
}
print(nodes.table(launched, guess))

# %% [markdown]
# The process of `srun` and both processes of torchrun belong to a group of four ranks. The other three run alone. But the
# job script and the salloc shell see `SLURM_NTASKS=4`, too. A program that relies on this variable there reads only a
# quarter of the data, or it waits for three processes that do not exist.
#
# `SLURM_NTASKS` is the number of tasks that the job may start. The tasks that one `srun` starts are called a *step*, and
# `SLURM_STEP_NUM_TASKS` is their number. A program should use this second variable. If it is missing, as in the job script,
# or if it is 1, as in the salloc shell of many sites, the process runs alone.
#
# But a program must check the variables of torchrun first, `RANK` and `WORLD_SIZE`. In the column *torchrun in srun*,
# `srun` started one torchrun on each node. Slurm counts these two torchruns, and not the four ranks.
#
# <details>
# <summary>How do the ranks find each other?</summary>
#
# Slurm names the nodes in `SLURM_JOB_NODELIST`. All ranks connect to the first node of this list. They all compute the
# same port from the number of the job. torchrun starts the ranks itself, so start it once per node, with all CPUs that
# the job has there.
#
# ```bash
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 --cpus-per-task=$SLURM_CPUS_ON_NODE \
#   torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 \
#   --rdzv-backend=c10d --rdzv-endpoint=$first:$((20000 + SLURM_JOB_ID % 12000)) train.py
# ```
#
# Do not leave out `--ntasks`. Without it, `srun` uses the number of tasks of the job, ignores `--ntasks-per-node` with a
# warning, and starts four torchruns here.
#
# </details>
#
# <details>
# <summary>Does each rank get the CPUs that the job requested?</summary>
#
# Some versions of `srun` ignore the option `--cpus-per-task` of the job script. If the cluster also binds tasks to cores,
# each rank then runs on a single core. So repeat the option: `srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python …`.
#
# Slurm 22.05 ([reframe#2655](https://github.com/reframe-hpc/reframe/issues/2655)) and 23.02 do not pass it on. Slurm
# 23.11 does ([ulhpc-docs#51](https://github.com/ULHPC/ulhpc-docs/issues/51)).
#
# In a rank that is bound to one CPU, `SLURM_CPUS_PER_TASK` still shows the requested number, and `os.cpu_count()` shows
# all CPUs of the node. Only `os.sched_getaffinity(0)` shows the one CPU. `make_loader` uses this call to choose how
# many workers it starts.
#
# </details>
#
# You can solve task 1 of [exercise 10](../exercises/10_run_it_on_many_nodes.ipynb).

# %% [markdown] id="audit" tags=["core"]
# ## 2 · Audit which rank receives which sample
#
# The next cell writes a program that loads data as a training does, but does not train. In each epoch, its
# `IterableDataset` shuffles the files anew and reads them.

# %% tags=["slide"]
plain = setup.scratch / "plain.py"
_ = plain.write_text("""
import os, random, sys
from pathlib import Path
import torch
from torch.utils.data import DataLoader, IterableDataset

class Images(IterableDataset):
    def __init__(self, folder):
        self.paths, self.epoch = sorted(Path(folder).rglob("*.jpg")), 0

    def __iter__(self):
        for path in random.Random(self.epoch).sample(self.paths, len(self.paths)):
            yield torch.tensor(list(path.read_bytes()[:64]))  # instead of decoding it

images = Images(sys.argv[1])
for epoch in range(2):
    images.epoch = epoch
    count = sum(len(batch) for batch in DataLoader(images, batch_size=10))
    print(f"rank {os.environ['RANK']}, epoch {epoch}: {count} samples", flush=True)
""")

# %% [markdown]
# We will start the program with torchrun on two ranks. In front of the command we write
# `smallfiles audit --save RECORD --`. The audit does not change the program. It records which samples each rank received,
# and in which order. Here it recognises a sample by the file that was opened for it.
#
# The next cell defines a function that does this and prints the output.

# %%
import shlex
import subprocess


def audit(command, record):
    """Run a training program under the audit, print what both say, and return the record."""
    words = [sys.executable, "-m", "smallfiles", "audit", "--save", record, "--"]
    words += shlex.split(command)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where torchrun is
    environment = {**os.environ, "PATH": programs, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr, sep="")
    return record


two_ranks = "torchrun --standalone --nproc-per-node 2"

# %% [markdown]
# > **Predict.** There are 400 images and two ranks. How many samples does each rank receive in an epoch?

# %%
guess = None  # your guess: for example 200

# %% tags=["slide"]
record = audit(f"{two_ranks} {plain} {setup.folder()}", setup.scratch / "plain.json")

# %% [markdown]
# Each rank receives all 400 samples, so every sample arrives twice. The verdict is *samples are seen by several ranks*.
# Nothing divides an `IterableDataset` over the ranks, unless the data set does it itself. The program
# itself reports no error. But an epoch takes as long as on one rank, and both ranks would compute the same gradients.
#
# We draw the samples in the order in which they arrived, with one row per rank:

# %% tags=["slide"]
import json

from smallfiles.profile.audit import draw

figure, text = draw(json.loads(record.read_text()))  # or: smallfiles figure plain.json plain.png
show.figure(figure, alt=text)

# %% [markdown]
# Each sample gets its colour from its place in epoch 0, so the rows of epoch 0 run smoothly from dark to light. Epoch 1 has a
# new order, so its colours are mixed. Both rows of an epoch are equal, because both ranks receive the same samples in the
# same order. Red marks the samples that another rank has received, too.
#
# **Your turn.** Change `__iter__` in the program so that each rank reads its own half of the files. Run the cell of the
# program again, and then the audit.
#
# <details>
# <summary>Answer</summary>
#
# Add `[int(os.environ["RANK"]) :: int(os.environ["WORLD_SIZE"])]` directly after `sample(…)`. The verdict is then *exactly
# once*. If the loader had workers, you would also have to divide the samples over the workers, with
# `torch.utils.data.get_worker_info()`.
#
# </details>
#
# The loader of the toolbox divides the samples over ranks and workers itself. We audit it, too:

# %%
ours = setup.scratch / "ours.py"
_ = ours.write_text("""
import sys
from smallfiles.loading import LoaderConfig, make_loader

loader = make_loader(sys.argv[1], LoaderConfig(batch=10, workers=2, mode="threads"))
for epoch in range(2):
    print(epoch, sum(len(batch["index"]) for batch in loader), "samples", flush=True)
""")
record = audit(f"{two_ranks} {ours} {packed}", setup.scratch / "ours.json")
figure, text = draw(json.loads(record.read_text()))
show.figure(figure, alt=text)

# %% [markdown]
# The verdict is *exactly once*, and there are no red marks. The colours of epoch 0 begin in the row of rank 0 and continue
# in the row of rank 1. So rank 0 has the dark half, rank 1 has the light half, and no sample is in both rows.
#
# Audit your own training, too: write its command into the next cell. Two epochs of a few thousand samples are enough.
# [docs/audit.md](../docs/audit.md) has a recipe for each loader, and shows how to audit a resume.

# %%
mine = ""  # change me: for example "torchrun --standalone --nproc-per-node 2 train.py --epochs 2"
if mine:
    audit(mine, setup.scratch / "mine.json")

# %% [markdown]
# You can solve task 2 of [exercise 10](../exercises/10_run_it_on_many_nodes.ipynb).

# %% [markdown] id="once" tags=["core"]
# ## 3 · Deal out the samples
#
# Dividing the samples can go wrong in three ways. First, a program may use its local rank where it needs its rank. The next
# cell divides the samples once by rank and once by local rank, on two simulated nodes with two ranks each. `nodes.play` runs
# a function in one process per rank, with the variables of this rank.


# %%
from collections import Counter


def read(rank=None, world_size=None):
    """Return the samples that this process reads. The loader finds a missing rank itself."""
    settings = LoaderConfig(batch=10, workers=2, mode="threads", rank=rank, world_size=world_size)
    return [int(index) for batch in make_loader(packed, settings) for index in batch["index"]]


def read_by_local_rank():
    local_rank = int(os.environ["SLURM_LOCALID"])
    return read(local_rank, int(os.environ["SLURM_STEP_NUM_TASKS"]))


for read_part in (read, read_by_local_rank):
    parts = nodes.play(read_part, [nodes.srun(rank) for rank in range(4)])
    often = Counter(index for part in parts for index in part)
    print(f"{read_part.__name__:18} reads {[*map(len, parts)]}, {len(often)} different samples")

# %% [markdown]
# With the local rank, half of the samples are read twice, and the other half is never read, because the local ranks are 0
# and 1 on both nodes. Yet each rank reads the right number of samples. So a count per rank proves nothing. You must count
# each sample over all ranks, as the audit does.
#
# Second, the number of samples may not be divisible by the number of ranks. The *folded* cell divides ten samples over four
# ranks, once with PyTorch's `DistributedSampler` and once as our loader does.
#
# How many samples do the four ranks read in total in the two cases?

# %% jupyter={"source_hidden": true}
from torch.utils.data import DistributedSampler

from smallfiles.loading import EpochPlan


def of_ours(**options):
    plans = (EpochPlan(10, batch=1, rank=rank, world_size=4, **options) for rank in range(4))
    return [sum(map(len, plan.batches(0))) for plan in plans]


reads = {"PyTorch's": [len(DistributedSampler(range(10), 4, rank)) for rank in range(4)], "ours": of_ours()}
reads["ours, drop_last=True"] = of_ours(drop_last=True)
for name, counts in reads.items():
    print(f"{name:20} its ranks read {counts}, together {sum(counts)} of 10")

# %% [markdown]
# With PyTorch's sampler, the ranks read 12 samples in total. Two samples are read twice, so that all ranks have the same
# number of steps. In a validation, they count twice. The audit calls this *padding by repetition*.
#
# Our loader reads each of the 10 samples once, so two ranks have one more step than the others. In training, these ranks
# would wait for the others until a timeout (section 4), so set `drop_last=True`. Then two of the ten samples are left out.
# The next epoch has a new order, so it usually leaves out other samples. In a validation, do not set `drop_last`.
#
# Third, each epoch needs a new order. `DistributedSampler` only knows the epoch if you call `set_epoch`:

# %% tags=["slide"]
sampler, orders = DistributedSampler(range(samples), 4, 0), []
for epoch in range(2):
    sampler.set_epoch(epoch)  # change me: remove this line
    orders.append(list(sampler))
print("The second epoch has", "the same order." if orders[0] == orders[1] else "another order.")

# %% [markdown]
# **Your turn.** Remove the marked line. What changes?
#
# <details>
# <summary>Answer</summary>
#
# The second epoch has the same order. Nothing warns you
# ([pytorch#31771](https://github.com/pytorch/pytorch/issues/31771)), but the audit reports it. `make_loader` counts its
# epochs itself.
#
# </details>

# %% [markdown] tags=["optional"]
# ### Deal out tar shards
#
# *Optional, 8 minutes.* A tar file is read from front to back, so webdataset does not divide single samples. It divides
# whole shards, first over the ranks (`nodesplitter`), and then over the workers of each rank (`workersplitter`). [Notebook
# 05](05_shard_a_dataset.ipynb#4-·-Mix-across-workers) has a picture of it.
#
# The *folded* cell packs four shards of 100 images, and defines `read_epoch`, which counts how often all ranks together read
# each sample.

# %% jupyter={"source_hidden": true}
import webdataset as wds
from torch.utils.data import DataLoader

from smallfiles.formats import tar

in_shards = pack(source, Path(tempfile.mkdtemp(dir=setup.scratch)) / "train.tars", PackConfig(options=tar.Options(max_count=-(-samples // 4))))
shards = sorted(map(str, in_shards.path.glob("*.tar")))


def read_epoch(ranks=2, workers=2, **splitters):
    """Return how often each sample was read, and how many samples each rank read."""
    often, by_rank = Counter(), []
    for rank in range(ranks):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))  # as torchrun does
        # empty_check=False: a worker without a shard is not an error
        dataset = wds.WebDataset(shards, shardshuffle=False, empty_check=False, **splitters)
        keys = dataset.map(lambda sample: sample["__key__"])
        found = list(DataLoader(keys, batch_size=None, num_workers=workers, multiprocessing_context="fork"))
        often.update(found)
        by_rank.append(len(found))
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    return often, by_rank


# %% [markdown]
# > **Predict.** There are 2 ranks with 2 workers each. In the case "ranks only", the split over the workers is switched
# > off. How often is each sample read?

# %%
guess = None  # your guess: for example "once"

# %% tags=["slide"]
both = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
ways = {"both splits": both, "ranks only": {**both, "workersplitter": None}}
ways["yours"] = both  # change me: set "nodesplitter" to None
for name, splitters in ways.items():
    often, by_rank = read_epoch(**splitters)
    print(f"{name:12} {len(often)} of {samples} samples, in {often.total()} reads: {by_rank}")

# %% [markdown]
# Without the split over the workers, each sample is read twice, because both workers of a rank read all shards of this
# rank. No error is raised, but an epoch takes twice as long.
#
# **Your turn.** In `ways["yours"]`, set `nodesplitter` to `None`, and keep the split over the workers. What happens?
#
# <details>
# <summary>Answer</summary>
#
# Write `ways["yours"] = {**both, "nodesplitter": None}`. Then both ranks read all samples. With more GPUs, an epoch takes
# as long as before.
#
# </details>
#
# Whole shards cannot always be divided evenly. Three ranks share the four shards:

# %%
_, by_rank = read_epoch(ranks=3, **both)  # change me: the number of ranks
print(f"the ranks read {by_rank} of {samples} samples")

# %% [markdown]
# One rank gets two shards, so it has twice as many steps as the others. It waits for gradients that they never send, and
# training [hangs](https://github.com/webdataset/webdataset/issues/225) until the timeout.
#
# <details>
# <summary>How do I avoid this?</summary>
#
# - In webdataset, `WebLoader(…).repeat().with_epoch(batches)` ends the epoch of each rank after the same number of
#   batches. A rank with fewer samples then repeats some of them, and a rank with more samples skips some. Give each
#   worker several shards, and change their order in each epoch, so that it does not always skip the same ones.
# - Deal out samples and not whole shards. Our loader can do this even if the samples are stored in shards, with
#   `order="stream"` and `drop_last=True`.
#
# </details>

# %% [markdown] id="scale" tags=["core"]
# ## 4 · Train on all of them
#
# To train one model, the ranks must also exchange their gradients. `init_process_group` connects the ranks. They meet at
# the address of rank 0, which `rendezvous` returns. `DistributedDataParallel` (DDP) then averages the gradients of all
# ranks in each `backward()`.

# %%
from functools import partial

import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def connect(**options):
    here, address = ranks(), "tcp://{}:{}".format(*rendezvous())  # the address of rank 0
    dist.init_process_group("gloo", address, rank=here.rank, world_size=here.world_size, **options)
    return here.rank


# %% [markdown]
# <details>
# <summary>What changes with GPUs?</summary>
#
# Write `"nccl"` in place of `"gloo"`. Call `torch.cuda.set_device(here.local_rank % torch.cuda.device_count())`, and move
# the model and the batches to this GPU. This is what the local rank is for. The `%` is there because some sites show a
# task only its own GPU.
#
# </details>
#
# The *folded* cell defines `prepare`, which connects a rank and makes its model, its optimizer, and its loader. The next
# cell defines one training step.


# %% jupyter={"source_hidden": true}
def prepare():
    connect()
    torch.manual_seed(0)  # equal first weights; DDP would send those of rank 0
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    settings = LoaderConfig(batch=8, workers=1, mode="threads", drop_last=True)
    return model, optimizer, make_loader(packed, settings, transform=images.RandomResizedCrop(32))


# %% tags=["slide"]
def step(model, optimizer, batch):
    optimizer.zero_grad()
    floats = images.normalise(batch["image"].permute(0, 2, 3, 1))  # uint8 to floats
    loss = cross_entropy(model(floats), batch["target"])
    loss.backward()  # DDP: the gradients of all ranks are averaged here
    optimizer.step()
    return loss.item()


def one_step(wrap):
    model, optimizer, loader = prepare()
    loss = step(wrap(model), optimizer, next(iter(loader)))
    dist.destroy_process_group()
    return loss, model[1].weight.abs().sum().item()


# %% [markdown]
# Two ranks take one step, each with its own batch. Do they have the same loss? Do they have the same weights after the step?

# %% tags=["slide"]
two = [nodes.srun(rank, nodes=2, per_node=1) for rank in range(2)]  # two nodes with one rank each
for name, wrap in {"without DDP": lambda model: model, "with DDP": DDP}.items():
    for rank, (loss, weights) in enumerate(nodes.play(partial(one_step, wrap), two)):
        print(f"{name:12} rank {rank}: loss {loss:.4f}, sum of |weights| {weights:.6f}")

# %% [markdown]
# The losses differ, because each rank has its own batch. Without DDP, each rank applies its own gradient, and the models
# drift apart. With DDP, all ranks apply the same average, so their weights stay equal.
#
# The exchange needs every rank in every step. In the next cell, a step is only an `all_reduce`, which adds up a tensor over
# all ranks. Rank 0 takes three steps, and rank 1 takes only two and then sleeps for 5 s. The process of rank 1 is still
# alive, so rank 0 gets no message that the third step will never come.

# %%
from datetime import timedelta


def uneven():
    rank = connect(timeout=timedelta(seconds=3))
    try:
        for _ in range(3 - rank):  # change me: equal numbers for both ranks
            dist.all_reduce(torch.ones(1))
        time.sleep(5 * rank)  # rank 1 does something else
        return "done"
    except RuntimeError as error:
        return str(error).partition("] ")[2].partition(". ")[0]


for rank, end in enumerate(nodes.play(uneven, two)):
    print(f"rank {rank}: {end}")

# %% [markdown]
# Rank 0 waits for rank 1 until the timeout, so a training seems to hang. The timeout is 3 s here. By default, it is 10
# minutes with NCCL and 30 minutes with gloo. So give all ranks the same number of batches. The audit reports this fault as
# *ranks have different numbers of batches*.
#
# <details>
# <summary>What if the numbers must differ?</summary>
#
# Put the training loop into PyTorch's context manager
# [Join](https://docs.pytorch.org/tutorials/advanced/generic_join.html). A rank that has no batch left then still takes part
# in the exchange, until the last rank has finished.
#
# </details>

# %% [markdown] id="full" tags=["optional"]
# ## 5 · Add nodes until the storage saturates
#
# *Optional, 8 minutes.* Suppose that you add ranks and give each of them the same amount of work. This is called *weak
# scaling*. Ideally, twice as many ranks do twice the work per second. This ends when the ranks together need more bytes per
# second than the storage delivers.
#
# In each rank, a step takes 30 ms and needs 10 images of about 110 kB, together 1.1 MB. The storage delivers 80 MB per
# second to all ranks together.
#
# > **Predict.** For how many ranks is this storage fast enough?

# %%
guess = None  # your guess, a number of ranks: for example 4

# %%
rate, step_s = 80e6, 0.03  # change me: bytes per second of the storage, seconds per step
batch_bytes = 10 * source.manifest.sizes.mean()
needs = batch_bytes / step_s
print(f"A rank needs {needs / 1e6:.0f} MB/s. The storage is enough for {rate / needs:.1f} ranks.")

# %% [markdown]
# So the storage is fast enough for two ranks, but not for three. We simulate more ranks. Each rank requests its next batch
# when a step begins, and the storage sends one batch after the other. In a second case, each rank has a copy of the data
# set on its own disk, which is as fast as the shared storage.

# %% tags=["slide"]
import heapq


def steps_per_s(ranks, shared, steps=200):
    """Return the steps per second of all ranks, with one storage or with a copy for each rank."""
    free = [0.0] * ranks  # when each storage has sent everything that was requested before
    requests, end = [(0.0, rank, 0, 0.0) for rank in range(ranks)], 0.0
    while requests:
        now, rank, step, idle_from = heapq.heappop(requests)
        storage = 0 if shared else rank
        free[storage] = max(free[storage], now) + batch_bytes / rate
        begin = max(free[storage], idle_from)  # the batch is here, and the previous step is over
        end = max(end, begin + step_s)
        if step + 1 < steps:
            heapq.heappush(requests, (begin, rank, step + 1, begin + step_s))
    return ranks * steps / end


# %% [markdown]
# The *folded* cell draws the result.

# %% tags=["slide"] jupyter={"source_hidden": true}
numbers = range(1, 9)
copies, shared = ({n: 10 * steps_per_s(n, kind) for n in numbers} for kind in (False, True))
fed, gain = int(rate / needs), shared[8] / shared[1]
title = f"One storage suffices for {fed} rank{'s' * (fed != 1)}; eight are {gain:.1f} times as fast as one"
axes = {"x": "ranks", "y": "images per second, all ranks", "counted": True}
marks = {f"{rate / 1e6:.0f} / {needs / 1e6:.0f} = {rate / needs:.1f} ranks": rate / needs}
figures.lines({"a copy per rank": copies, "one storage": shared}, title, **axes, guess=guess, marks=marks)

# %% [markdown]
# Two ranks use almost 80 MB/s, so a third rank gains little and a fourth gains nothing. With a copy for each rank, the rate
# keeps growing with the number of ranks. But the copies cost time, so they must [pay
# off](07_stage_a_dataset.ipynb#4-·-Count-the-epochs). The job of section 7 measures the rate of your storage.
#
# Unpacked files have another limit, because each file must be opened. A rank needs 10 files in 30 ms, or 333 per second.
# The *folded* cell divides the files per second that you measured in [notebook 01](01_count_the_cost_of_small_files.ipynb)
# by 333. The result is a limit *per node*. The metadata servers, which all nodes share, are a second limit
# ([11](11_choose_a_format.ipynb)).

# %% jupyter={"source_hidden": true}
from smallfiles.advise import measure_folder

opens = worksheet.value("01", "opens_per_s", 0) or 1 / measure_folder(setup.path()).together_s  # 0: not noted there
worksheet.note("10", ranks_fed=int(opens / (10 / step_s)))

# %% [markdown] id="limit" tags=["core"]
# ## 6 · Outlive the time limit
#
# At its time limit, a job is killed. With `--signal=USR1@90`, Slurm sends the signal USR1 to the ranks about 90 seconds
# before the limit. The ranks then write a checkpoint and stop, and the next run continues from it.
#
# All ranks must stop after the *same* step, but the signal does not reach them at the same moment. So after each step, the
# ranks add up how many signals they have received. If the sum is not zero, all ranks stop and call `leave`, which saves the
# checkpoint.


# %%
import signal


def train(folder, epochs=3):
    """Train to the end, or until the signal; continue from a checkpoint if there is one."""
    signals, state, saved, loss = [], {}, folder / "checkpoint.pt", float("nan")
    signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    model, optimizer, loader = prepare()
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    parallel = DDP(model)
    for epoch in range(state.get("loader", {}).get("epoch", 0), epochs):
        for batch in loader:
            loss = step(parallel, optimizer, batch)
            stop = torch.tensor(len(signals))
            dist.all_reduce(stop)
            if stop:
                return leave(folder, {"model": model.state_dict(), "loader": loader.state_dict()})
        (folder / f"epoch {epoch} done").touch()
    return f"done, last loss {loss:.6f}"


# %% [markdown]
# The *folded* cell defines `leave`. Rank 0 saves the checkpoint under another name and then renames it, so a job that is
# killed while it saves does not leave an incomplete checkpoint. A real program would then end with exit code 75. Here,
# `leave` only returns a text with this number. The cell also defines a function that sends the signal in place of Slurm.


# %% jupyter={"source_hidden": true}
def leave(folder, state):
    if ranks().rank == 0:
        torch.save(state, folder / "part")
        os.replace(folder / "part", folder / "checkpoint.pt")
    dist.barrier()
    return f"stopped in epoch {state['loader']['epoch']}, batches done: {state['loader']['batch']}, exit code 75"


def slurm_sends_usr1(pids):
    while not (cut / "epoch 0 done").exists():
        time.sleep(0.005)
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)


# %% [markdown]
# The first run gets the signal in its second epoch (epoch 1), and the second run resumes. The third run is never stopped.
#
# Are the last losses of the second and the third run the same, almost the same, or clearly different?

# %% tags=["slide"]
cut, whole = (Path(tempfile.mkdtemp(dir=setup.scratch)) for _ in range(2))
print("first run: ", nodes.play(partial(train, cut), two, meanwhile=slurm_sends_usr1)[0])
print("second run:", nodes.play(partial(train, cut), two)[0])
print("in one go: ", nodes.play(partial(train, whole), two)[0])

# %% [markdown]
# The two losses are the same. The checkpoint contains the weights of the model and the position of the loader. The order
# and the random crops depend only on the seed, the epoch, and the sample. So the second run got the batches that were left.
#
# `smallfiles train` works in the same way. After the signal, its process ends with exit code 75, and the job script puts
# the job into the queue again:
#
# ```bash
# #SBATCH --signal=USR1@90                # to the ranks, 90 s before the limit
# #SBATCH --requeue --open-mode=append    # the job may be queued again, and its log is continued
# set -e                                  # the script ends at the first command that fails
# code=0
# srun … smallfiles train … || code=$?    # a failure in front of || does not end the script; we keep the code
# if ((code == 75)); then exec scontrol requeue "$SLURM_JOB_ID"; fi
# exit "$code"                            # any other code is the result of the job
# ```
#
# <details>
# <summary>What happens after code 75 without <code>|| code=$?</code>?</summary>
#
# `set -e` ends the script at `srun`, so no command puts the job into the queue again.
#
# </details>
#
# <details>
# <summary>What else does a real training need?</summary>
#
# - Momentum and Adam have a state. Save and load `optimizer.state_dict()`, too. Otherwise the losses differ, and no error
#   is raised.
# - The worker processes of a DataLoader get the signal, too, and may die of it. Ignore it in `worker_init_fn`.
# - GPUs may add numbers in another order, so expect losses that are almost equal.
# - With NCCL, `stop` is on the GPU, and asking for its value waits for the GPU. Ask every 20 steps, on all ranks.
# - A model with dropout also needs the state of its random generator (`torch.get_rng_state()`) on each rank.
# - If the job resumes with fewer ranks, they share the rest of the epoch. But the global batch is then smaller, so scale
#   the learning rate or the batch of a rank.
# - Start the ranks with `srun`. By default, torchrun dies of USR1, and it turns exit code 75 into 1.
#
# </details>

# %% [markdown] id="script" tags=["core"]
# ## 7 · Read a job script, and submit it
#
# The next cell prints a job script of the course. Its function `task` comes from `lib.sh` and calls `srun
# --cpus-per-task="$cpus"`. The command `smallfiles epoch` reads one epoch and writes down which samples it read.
#
# How many processes run `smallfiles epoch "$data"`, and how many run `smallfiles epoch --count`?

# %%
from helpers import jobs

print(jobs.find(Path(jobs.__file__).parents[2], "10_read").path.read_text())

# %% [markdown]
# Four processes read the data, because there are two nodes (`--nodes`) with two tasks each (`--ntasks-per-node`). The last
# command has no `task` in front of it, so one process runs it. It fails if a sample is missing or was read twice.
#
# The next cell submits the script to the site that `COURSE_SITE` names, or else to the local cluster of `slurm/local/up`.
# If there is neither, it only shows the command.

# %% tags=["slide"]
sent = nodes.submit("10_read", packed, "seen")
show.say(f"```bash\n{sent.command}\n```\n\n{sent.summary}")
print(sent.log or "No job, no log.")

# %% [markdown]
# <details>
# <summary>Recorded on the local cluster</summary>
#
# ```
# 10_read: job 1 of local, n[1-2], 2 CPUs per task
# …
# rank 3 on n2: 100 samples in 115 ms
# 4 ranks on 2 nodes read each of 400 samples exactly once, 2,058 samples/s
# ```
#
# The rate is the number of all samples, divided by the seconds of the slowest rank.
#
# </details>
#
# You can solve task 3 of [exercise 10](../exercises/10_run_it_on_many_nodes.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 10](../exercises/10_run_it_on_many_nodes.ipynb) you find the rank of a process, repair a training, and write a
# job script that survives its time limit.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Each rank of the job `10_train` runs this command, and runs it again to resume:

# %%
from smallfiles.training import TrainConfig

config = TrainConfig(loader=LoaderConfig(workers=2), checkpoint=Path("checkpoints"))
show.command(config, "train.arrow")

# %% [markdown]
# ```bash
# slurm/submit SITE 12_audit --sbatch=--nodes=2 -- torchrun --nproc-per-node 4 train.py   # audits your own training
# slurm/submit SITE 10_read -- train.arrow seen       # checks everything, shows the command, and submits it
# slurm/submit SITE 10_read --sbatch=--nodes=8 -- large.arrow seen8
# slurm/submit SITE 10_train                          # trains; stopped at the limit, it resumes
# squeue --me                                         # is it waiting or running, and why
# scancel NUMBER                                      # end it
# ```
#
# Give `10_read` a data set that is larger than the memory of all nodes together. If it reports fewer samples per second
# than all your ranks can train on, the storage is too slow.

# %% [markdown] id="key-points"
# ## Key points
#
# - Check the variables of torchrun first, and then those of the step of `srun`. A job script is a single process.
# - An `IterableDataset` must divide its samples over ranks and workers itself.
# - Only a count of each sample over all ranks shows that an epoch is complete. `smallfiles audit` counts in any training.
# - If one rank has more batches than the others, training hangs until a timeout ends it.
# - If the images per second stop growing with more nodes, the storage is saturated.
# - Request a signal before the time limit, write a checkpoint, and put the job into the queue again.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** In your job script you write `python train.py` without `srun`, with `--ntasks=8`. What happens? (a) Slurm
# starts it eight times. (b) It starts once. (c) There is an error.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. The script is one process on the first node, and so is the program that it starts. (a) is what `srun python
# train.py` does. (c) There is no error. The other seven tasks are never started, and a program that relies on
# `SLURM_NTASKS` waits for them until it times out.
#
# </details>
#
# **2.** Each of 4 ranks reports "epoch done, 320,000 samples" for a data set of 1,280,000. Was each sample read once? (a)
# Yes, that is a quarter each. (b) Not necessarily. (c) No, the ranks must report different numbers.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**. A count per rank does not say *which* samples were read. All four ranks may have read the same quarter. (a) is
# the mistake of section 3. (c) A correct division gives equal numbers, too.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [11 · Choose a format](11_choose_a_format.ipynb)
