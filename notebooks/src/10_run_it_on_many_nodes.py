# %% [markdown] id="top"
# # 10 · Run it on many nodes
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** nothing; uses Slurm if it is here · **Data**
# 400 synthetic images
#
# To read on two hundred nodes, each process must know its number and how many there are. Here our processes get the
# variables of two simulated nodes.

# %% [markdown] id="questions"
# ## Questions
#
# - How does a process know its number, and how many there are?
# - Is each sample read exactly once, and how would I notice if not?
# - What happens to the speed when I add nodes?
# - What happens at the time limit?

# %% [markdown] id="objectives"
# ## After this you can
#
# - read rank, local rank and node from the variables of `srun` or `torchrun`,
# - count over all ranks that an epoch was read exactly once,
# - measure by weak scaling whether the storage is the limit,
# - stop a training before its time limit and resume it.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("10")

# %% [markdown]
# The folded cell packs the images.

# %% jupyter={"source_hidden": true}
import os
import time
from pathlib import Path

import torch

from smallfiles import images
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(source, packed, PackConfig(verify="none"))

# %% [markdown] id="recall"
# > **Recall** (08). A step takes 20 ms and a batch 30 ms on average. Does a ring of 1,000 slots end the waiting?
#
# <details>
# <summary>Answer</summary>
#
# No: a buffer bridges stalls, but if batches come too slowly on average it runs empty. Make a batch cheaper, or use
# more CPUs.
#
# </details>

# %% [markdown] id="place" tags=["core"]
# ## 1 · Find your place
#
# `sbatch` puts a script into the queue. When the job starts, the script runs **once**, on the first node. In it, `srun`
# starts the *tasks*: on two nodes with two tasks each, four processes. A task's number is its *rank*, its number on its
# node the *local rank*.
#
# ![The job script runs once, on node 0; srun starts four tasks on two nodes. Ranks count over all nodes, local ranks from 0 on each.](pictures/script_and_tasks.svg)
#
# Each column of the table is a process, named after what started it. (`salloc` opens a shell in a job.) Below is what
# our `smallfiles.machine.ranks` makes of the variables.
#
# > **Predict.** Is each of these one of four, or alone (one of one)?

# %%
guess = {"job script": 4, "salloc shell": 4, "srun": 4, "torchrun": 4, "torchrun in srun": 4}  # change me
guess["laptop"] = 1

# %%
from helpers.experiments import nb10 as nodes

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
# The script and the salloc shell see `SLURM_NTASKS=4`, although each is one process. A program that uses this number
# reads a quarter of the data, or waits for three that do not exist.
#
# So use `SLURM_STEP_NUM_TASKS`: a *step* is what one `srun` starts. The script has no step variables. At many
# sites, as here, the salloc shell is a step of one task. But check torchrun's variables first: where `srun` started
# torchrun, Slurm counts the torchruns (2), not the ranks (4).
#
# <details>
# <summary>Where do ranks connect to each other?</summary>
#
# Slurm names the nodes in `SLURM_JOB_NODELIST`. All ranks use the first name, and a port that they compute alike from the
# job number. torchrun starts the ranks itself: start it once per node, with all CPUs that the job has there.
#
# ```bash
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 --cpus-per-task=$SLURM_CPUS_ON_NODE \
#   torchrun --nnodes=$SLURM_NNODES --nproc-per-node=2 \
#   --rdzv-backend=c10d --rdzv-endpoint=$first:$((20000 + SLURM_JOB_ID % 12000)) train.py
# ```
#
# Without `--ntasks`, `srun` takes the number of tasks from the job, ignores `--ntasks-per-node` with a warning, and
# here starts four torchruns.
#
# </details>
#
# A rank also needs the CPUs that the script requests with `--cpus-per-task=8`. But some versions of `srun` do not pass
# it on. Where a cluster binds tasks, each then runs on one core.
#
# <details>
# <summary>Which versions?</summary>
#
# Slurm 22.05 ([reframe#2655](https://github.com/reframe-hpc/reframe/issues/2655)) and 23.02; 23.11 does again
# ([ulhpc-docs#51](https://github.com/ULHPC/ulhpc-docs/issues/51)).
#
# </details>
#
# > **Predict.** A script requests eight CPUs for a rank, and the rank is bound to one. Which of these show the one:
# > `SLURM_CPUS_PER_TASK`, `os.cpu_count()`, `os.sched_getaffinity`, the workers of `make_loader`?

# %%
guess = "os.cpu_count()"  # change me: name one that shows it (the last is "make_loader")

# %% [markdown]
# The folded cell binds a rank to one CPU, and counts.

# %% jupyter={"source_hidden": true}
from functools import partial
from itertools import islice

from smallfiles.loading.config import default_workers
from smallfiles.machine.ranks import ranks, rendezvous


def bind_and_count():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    requested = int(os.environ["SLURM_CPUS_PER_TASK"])
    return requested, os.cpu_count(), len(os.sched_getaffinity(0)), default_workers(ranks())


whose = ("SLURM_CPUS_PER_TASK", "os.cpu_count()", "os.sched_getaffinity", "make_loader")
counts = dict(zip(whose, nodes.play(bind_and_count, [nodes.srun(0, nodes=1, per_node=1, cpus=8)])[0]))
right, misled = ([name for name in whose if (counts[name] == 1) == one] for one in (True, False))
title = f"Only {' and '.join(right)} count the one CPU"
figures.bars(counts, title, x="CPUs or workers of a rank that is bound to one CPU", guess=guess, base=misled, counted=True)

# %% [markdown]
# `os.cpu_count()` counts all CPUs of the node: here of your machine, since the request is only played.
# `os.sched_getaffinity` counts those that the rank may use, and `make_loader` asks it. So repeat the option:
# `srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python …`.
#
# You can now solve task 1 of [exercise 10](../exercises/10_run_it_on_many_nodes.ipynb).

# %% [markdown] id="once" tags=["core"]
# ## 2 · Read each sample once
#
# We read an epoch on two nodes with two ranks each:
#
# - as tasks of `srun`,
# - with a program whose own choice of rank is its local rank,
# - with a script that starts four pythons itself.


# %%
def read(rank=None, world_size=None):
    """Numbers of the samples that this process reads in an epoch."""
    settings = LoaderConfig(batch=10, workers=2, mode="threads", rank=rank, world_size=world_size)
    return [int(index) for batch in make_loader(packed, settings) for index in batch["index"]]


def read_by_own_choice():
    return read(int(os.environ["SLURM_LOCALID"]), int(os.environ["SLURM_NTASKS"]))


# %% [markdown]
# > **Predict.** Which of the three reads each sample once?

# %%
guess = "own choice of rank"  # change me: or "srun", or "4 × python & in the script"

# %%
tasks = [nodes.srun(rank) for rank in range(4)]
taken = {
    "srun": nodes.play(read, tasks),
    "own choice of rank": nodes.play(read_by_own_choice, tasks),
    "4 × python & in the script": nodes.play(read, [nodes.script()] * 4),
}

# %% [markdown]
# The folded cell counts and draws.

# %% jupyter={"source_hidden": true}
from collections import Counter

samples, words = len(source.manifest), {0: "never", 1: "once", 2: "twice", 4: "four times"}
often = {}
for way, shares in taken.items():
    times = Counter(index for share in shares for index in share)
    counts = Counter(words[times[index]] for index in range(samples))
    often[way] = {word: counts[word] for word in words.values() if counts[word]}
    print(f"{way:26} ranks read {[len(share) for share in shares]} samples: {often[way]}")
right = [way for way, counts in often.items() if list(counts) == ["once"]]
title = f"Only with {' and '.join(right) or 'none of them'} was each sample read exactly once"
show.figure(figures.bars(often, title, x="samples of the epoch, by how often they were read", guess=guess, counted=True))

# %% [markdown]
# The wrong runs did not fail. In one, each rank read the right number of samples. So count over all ranks.
#
# **Your turn.** Cure `read_by_own_choice` with another variable of the table, and run from there again.
#
# <details>
# <summary>Answer</summary>
#
# `SLURM_PROCID` in place of `SLURM_LOCALID`. Then each sample is read once.
#
# </details>
#
# What if samples cannot be divided evenly? The folded cell tries two samplers.
#
# > **Predict.** 10 samples, 4 ranks: how many does PyTorch's sampler read, and how many does ours?

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
# PyTorch reads two samples twice, so that all ranks take equally many steps. In validation these count twice.
#
# Ours reads each once, so some ranks may have one more step, and then wait forever for the others. Set `drop_last=True`
# in training.
#
# Each epoch also needs a new order:

# %%
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
# ([pytorch#31771](https://github.com/pytorch/pytorch/issues/31771)). `make_loader` counts its epochs itself.
#
# </details>

# %% [markdown]
# ### Deal tar shards out
#
# A tar file is read from front to back, so webdataset does not deal out samples. It deals out whole shards, and it does so
# twice: first over the ranks (`nodesplitter`), and then over the workers of each rank (`workersplitter`).
# [Notebook 05](05_shard_a_dataset.ipynb#4-·-Mix-across-workers) has a picture of it.
#
# The *folded* cell packs four shards of 100 images. It also defines `read_epoch`, which plays all ranks one after the
# other and counts how often each sample is read.

# %% jupyter={"source_hidden": true}
import tempfile
from itertools import chain

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

# %%
both = {"nodesplitter": wds.split_by_node, "workersplitter": wds.split_by_worker}
ways = {"both splits": both, "ranks only": {**both, "workersplitter": None}}
ways["yours"] = both  # change me: switch off the other split
for name, splitters in ways.items():
    often, by_rank = read_epoch(**splitters)
    print(f"{name:12} {len(often)} of {samples} samples, in {often.total()} reads; the ranks read {by_rank}")

# %% [markdown]
# Without the split over the workers, each sample is read twice. No error reports it, and training only becomes slower.
#
# **Your turn.** Let `ways["yours"]` switch off the other split. What happens?
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
# One rank gets two shards, so it has twice as many steps as the others. At the end it waits for their gradients, and
# training [hangs](https://github.com/webdataset/webdataset/issues/225). There are two remedies:
#
# - In webdataset, `WebLoader(…).repeat().with_epoch(batches)` ends the epoch of each rank after the same number of
#   batches. A rank with fewer samples then repeats some of them, and a rank with more samples skips some. Give each
#   worker several shards, and change their order in each epoch, so that it does not always skip the same ones.
# - Deal out samples instead of shards. Our loader does so for shards, too, with `order="stream"`. Here `drop_last` skips
#   16 samples:

# %%
by_rank = []
for rank in range(3):
    settings = LoaderConfig(batch=32, workers=2, order="stream", drop_last=True, rank=rank, world_size=3)
    batches = make_loader(in_shards.path, settings)
    by_rank.append([index for batch in batches for index in batch["index"].tolist()])
print("the ranks read", [len(read) for read in by_rank], "samples,", len({*chain(*by_rank)}), "of them different")

# %% [markdown] id="scale" tags=["core"]
# ## 3 · Train on all of them
#
# `init_process_group` connects the ranks. `DistributedDataParallel` (DDP) averages their gradients in each
# `backward()`.
#
# <details>
# <summary>What changes with GPUs?</summary>
#
# Write `"nccl"`, call `torch.cuda.set_device(here.local_rank % torch.cuda.device_count())` (a task may see only one),
# and move model and batches there: this is what the local rank is for.
#
# </details>

# %%
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def connect(**options):
    here, meeting = ranks(), "tcp://{}:{}".format(*rendezvous())  # where rank 0 is
    dist.init_process_group("gloo", meeting, rank=here.rank, world_size=here.world_size, **options)
    return here.rank


# %% [markdown]
# The folded cell defines `meet`, which connects and makes this rank's model, optimizer and loader.


# %% jupyter={"source_hidden": true}
def meet():
    connect()
    torch.manual_seed(0)  # equal first weights; DDP would send those of rank 0
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    settings = LoaderConfig(batch=8, workers=1, mode="threads", drop_last=True)
    return model, optimizer, make_loader(packed, settings, transform=images.RandomResizedCrop(32))


# %%
def step(model, optimizer, batch):
    optimizer.zero_grad()
    floats = images.normalise(batch["image"].permute(0, 2, 3, 1))  # uint8 to floats
    loss = cross_entropy(model(floats), batch["target"])
    loss.backward()  # DDP: the gradients of all ranks are averaged here
    optimizer.step()
    return loss.item()


def one_step(wrap):
    model, optimizer, loader = meet()
    loss = step(wrap(model), optimizer, next(iter(loader)))
    dist.destroy_process_group()
    return loss, model[1].weight.abs().sum().item()


# %% [markdown]
# > **Predict.** After one step: are the losses of two ranks equal? And their weights?

# %%
two = [nodes.srun(rank, nodes=2, per_node=1) for rank in range(2)]
for name, wrap in {"without DDP": lambda model: model, "with DDP": DDP}.items():
    for rank, (loss, weights) in enumerate(nodes.play(partial(one_step, wrap), two)):
        print(f"{name:12} rank {rank}: loss {loss:.4f}, sum of |weights| {weights:.6f}")

# %% [markdown]
# Each rank has its own batch and loss. Without DDP the models drift apart; with DDP they stay equal.
#
# > **Predict.** Rank 0 takes three steps, rank 1 only two, and then writes a checkpoint for 5 s. What happens to rank 0?

# %%
from datetime import timedelta


def uneven():
    rank = connect(timeout=timedelta(seconds=3))
    try:
        for _ in range(3 - rank):  # change me: equal numbers for both ranks
            dist.all_reduce(torch.ones(1))
        time.sleep(5 * rank)  # rank 1 writes a checkpoint
        return "done"
    except RuntimeError as error:
        return str(error).partition("] ")[2].partition(". ")[0]


for rank, end in enumerate(nodes.play(uneven, two)):
    print(f"rank {rank}: {end}")

# %% [markdown]
# Rank 0 waits until its timeout, so training seems to hang: here for 3 s, by default for 10 minutes with NCCL and 30
# with gloo.
#
# The checkpoint is not the fault: it comes after the last step.

# %% [markdown] id="full" tags=["core"]
# ## 4 · Add nodes until the storage is full
#
# *Weak scaling* means more ranks with the same work for each: here 20 steps of 30 ms. A simulated storage
# sends 80 MB per second. First all share it. Then each has a copy, as after staging.
#
# > **Predict.** An image is about 110 kB, and a step takes 10 of them. For how many ranks is one storage fast enough?

# %%
guess = 1  # change me: one storage is fast enough for so many ranks


def twenty_steps(storage, begin):
    """Seconds from `begin` for 20 steps; each rank reads from all 400 samples, as only the rate matters here."""
    settings = LoaderConfig(batch=10, workers=1, mode="threads", rank=0, world_size=1)
    loader = make_loader(packed, settings, transform=storage())
    time.sleep(max(0, begin - time.perf_counter()))
    for _ in islice(loader, 20):
        time.sleep(0.03)  # a simulated training step
    return time.perf_counter() - begin


# %%
rate = 80e6  # change me: bytes per second
one = nodes.Storage(rate)
storages = {"one storage": lambda: one, "a copy per rank": lambda: nodes.Storage(rate)}
scaled = {where: {} for where in storages}
soon = lambda: time.perf_counter() + 0.5  # when all ranks are there
for where, storage in storages.items():
    for n in (1, 2, 3, 4):
        places = [nodes.srun(rank, nodes=n, per_node=1) for rank in range(n)]
        seconds = [max(nodes.play(partial(twenty_steps, storage, soon()), places)) for _ in range(3)]
        scaled[where][n] = [200 * n / slowest for slowest in seconds]

# %% [markdown]
# The folded cell draws.

# %% jupyter={"source_hidden": true}
from statistics import median

speed = {where: {n: median(runs) for n, runs in line.items()} for where, line in scaled.items()}
need = 10 * source.manifest.sizes.mean() / 0.03  # bytes per second of a rank
feeds, gain = int(rate / need), speed["one storage"][4] / speed["one storage"][1]
title = f"One storage feeds {feeds} rank{'s' * (feeds != 1)}; four are {gain:.1f} times as fast as one"
lines = {where: scaled[where] for where in reversed(scaled)}  # the copies first: a solid line beside the dashed one
lines |= {"n x one rank": {n: n * speed["a copy per rank"][1] for n in (1, 2, 3, 4)}}
axes = {"x": "ranks, one per node", "y": "samples per second, all ranks", "ideal": "n x one rank"}
marks = {f"{rate / 1e6:.0f} MB/s / {need / 1e6:.0f} MB/s = {rate / need:.1f} ranks": rate / need}
figures.lines(lines, title, **axes, guess=guess, marks=marks)

# %% [markdown]
# Each rank needs 37 MB per second. Of 80 MB hardly anything is left for a third. Staging moves this limit.
# But each node first reads the whole set, which must [pay off](07_stage_a_dataset.ipynb#4-·-Count-the-epochs).
#
# The folded cell computes the same for opens of unpacked files, without decoding, on *one node* and this file system.
# Do not multiply it by the nodes: on a cluster they share the servers.

# %% jupyter={"source_hidden": true}
from smallfiles.advise import measure_folder

opens = worksheet.value("01", "opens_per_s", 0) or 1 / measure_folder(setup.path()).together_s  # 0: not noted there
worksheet.note("10", ranks_fed=int(opens / (10 / 0.03)))

# %% [markdown] id="limit" tags=["core"]
# ## 5 · Outlive the time limit
#
# A job is killed at its time limit. With `--signal=USR1@90`, Slurm sends a signal to what `srun` started, not to the
# script: 90 seconds before, or up to a minute earlier. Then the ranks write a checkpoint and stop, and the next run
# resumes from it.
#
# All ranks must stop at the *same* step, or one waits for the others. So they add up their signals, and all stop if
# there is one. This comes after each step, so that weights and loader agree on the next batch.

# %%
import signal


def train(folder, epochs=3):
    """Train to the end, or until the signal; continue from a checkpoint if there is one."""
    signals, state, saved, loss = [], {}, folder / "checkpoint.pt", float("nan")
    signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    model, optimizer, loader = meet()
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
# The folded cell defines `leave`, which saves the checkpoint under another name and renames it: a kill never leaves half
# a file. It also plays Slurm's signal.


# %% jupyter={"source_hidden": true}
import tempfile


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
# The first run gets the signal in its second epoch, the second resumes, and the third is never stopped.
#
# > **Predict.** Does the interrupted training end with the same loss, almost the same, or a clearly different one?

# %%
guess = "almost the same"  # change me

# %%
cut, whole = (Path(tempfile.mkdtemp(dir=setup.scratch)) for _ in range(2))
print("first run: ", nodes.play(partial(train, cut), two, meanwhile=slurm_sends_usr1)[0])
print("second run:", nodes.play(partial(train, cut), two)[0])
print("in one go: ", nodes.play(partial(train, whole), two)[0], f"(your guess: {guess})")

# %% [markdown]
# The losses are equal, because order and crops depend only on seed, epoch and sample. `smallfiles train` does this too,
# and exits with code 75. Then the script queues its job again:
#
# ```bash
# #SBATCH --signal=USR1@90                # to the ranks, 90 s before the limit
# #SBATCH --requeue --open-mode=append    # the job may be queued again, and keeps its log
# set -e                                  # the script ends at the first command that fails
# code=0
# srun … smallfiles train … || code=$?    # its exit code; what stands before || may fail
# if ((code == 75)); then exec scontrol requeue "$SLURM_JOB_ID"; fi
# exit "$code"                            # any other code is the job's own
# ```
#
# > **Predict.** What happens after code 75 without `|| code=$?`?
#
# <details>
# <summary>Answer</summary>
#
# `set -e` ends the script at `srun`, so nothing requeues the job.
#
# </details>
#
# <details>
# <summary>What else does a real training need?</summary>
#
# - Momentum and Adam have a state: save and load `optimizer.state_dict()` too, or the losses differ without an error.
# - A DataLoader's processes get the signal too, and may die: ignore it in `worker_init_fn`.
# - On GPUs sums may run in another order: expect almost equal losses.
# - With NCCL `stop` lies on the GPU, and the test waits for it: make it every 20 steps, on all ranks.
# - A model with dropout also needs the state of its generator (`torch.get_rng_state()`), of each rank.
# - If the job resumes with fewer ranks, they share what is left of the epoch. But the global batch is smaller: scale the
#   learning rate, or the batch of a rank.
# - Start it with `srun`: by default torchrun dies of USR1, and it turns code 75 into 1.
#
# </details>

# %% [markdown] id="script" tags=["core"]
# ## 6 · Read a job script, and submit it
#
# In the script below, `task` is a function of `lib.sh`: `srun --cpus-per-task="$cpus"`.
#
# > **Predict.** How many processes run `smallfiles epoch "$data"`, and how many `smallfiles epoch --count`?

# %%
from helpers import jobs

print(jobs.find(Path(jobs.__file__).parents[2], "10_read").path.read_text())

# %% [markdown]
# Four processes read (`--nodes` times `--ntasks-per-node`), and the script counts, once.
#
# We submit it to the local cluster (`slurm/local/up`), or to the site in `COURSE_SITE`:

# %%
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
# The rate is all samples by the seconds of the slowest rank.
#
# </details>
#
# You can now solve task 2 of [exercise 10](../exercises/10_run_it_on_many_nodes.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 10](../exercises/10_run_it_on_many_nodes.ipynb): compute a rank, and write a job script that survives its
# time limit.

# %% [markdown] id="cluster"
# ## On the cluster
#
# Each rank of `10_train` runs this command, also to resume:

# %%
from smallfiles.training import TrainConfig

show.command(TrainConfig(loader=LoaderConfig(workers=2), checkpoint=Path("checkpoints")), "train.arrow")

# %% [markdown]
# ```bash
# slurm/submit SITE 10_read -- train.arrow seen       # check, show, send
# # It reads a fixed set (so each rank reads less: strong scaling), without training.
# # Try 1, 2, 4, 8 nodes: where samples/s stop growing, the storage is full.
# # Compare that rate with ranks x what one rank trains per second. Take a set larger than the memory of all nodes.
# slurm/submit SITE 10_read --sbatch=--nodes=8 -- large.arrow seen8
# slurm/submit SITE 10_train                          # trains; stopped at the limit, it resumes
# squeue --me                                         # is it waiting or running, and why
# scancel NUMBER                                      # end it
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - Check torchrun's variables first, then the step of `srun`. A job script, an salloc shell and a laptop are alone.
# - Only a count over all ranks shows that each sample was read once.
# - Shards must be dealt out twice, over the ranks and over the workers. A forgotten split raises no error.
# - If more nodes read no faster, but with a copy each they do, the storage is full: stage, or use fewer nodes.
# - Request a signal before the time limit, write a checkpoint, and requeue the job.
# - A job script passes the CPUs on to `srun`.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** In your job script you write `python train.py` without `srun`, with `--ntasks=8`. What happens? (a) Slurm
# starts it eight times. (b) It starts once. (c) There is an error.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: the script is one process on the first node, and so is the program it starts. (a) is what `srun python
# train.py` does. There is no error (c): the other seven tasks are never started, and a program that uses `SLURM_NTASKS`
# waits for them until it times out.
#
# </details>
#
# **2.** Each of 4 ranks reports "epoch done, 320,000 samples" for a set of 1,280,000. Was each sample read once? (a)
# Yes, that is a quarter each. (b) Not necessarily. (c) No, the ranks must report different numbers.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: counts per rank say nothing about *which* samples; all four may have read the same quarter. (a) is the
# mistake of section 2. (c): a right split gives equal numbers, too.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# [11 · Choose a format](11_choose_a_format.ipynb)
