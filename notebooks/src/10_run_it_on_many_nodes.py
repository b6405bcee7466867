# %% [markdown] id="top"
# # 10 · Run it on many nodes
#
# **Minutes** 35 · **Machine** any Linux computer, two CPUs do · **Needs** nothing; a Slurm is used if there is one · **Data**
# 400 synthetic images
#
# The program that reads on a laptop shall read on two nodes, and on two hundred, without a changed line. For that, each
# process must know which of how many it is, and the job script must hand on what it was given.
#
# This notebook plays two nodes on this machine: processes that get the environment variables which real ones would get.
# Where Slurm is there, it submits the same reading as a real job at the end.

# %% [markdown] id="questions"
# ## Questions
#
# - How does a process know which of how many it is?
# - Does each sample come exactly once, and how would I notice if not?
# - What becomes of the speed when nodes are added?
# - What happens at the time limit?
# - What has to stand in a job script?

# %% [markdown] id="objectives"
# ## After this you can
#
# - tell rank, local rank and node from what `srun` or `torchrun` says,
# - count over all ranks that an epoch was read exactly once,
# - find out by weak scaling whether the storage is the limit,
# - stop a training before its time limit and go on,
# - read, write and submit a job script.

# %% [markdown] id="setup"
# ## Set up

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("10")

# %%
from helpers.experiments.nb05.place import fresh_folder
from smallfiles.pack import PackConfig, pack

source = setup.source()
packed = pack(source, fresh_folder(setup.scratch) / "train.arrow", PackConfig(verify="none")).path
samples = len(source.manifest)

# %% [markdown] id="place"
# ## 1 · Find your place
#
# `sbatch` puts a script into the queue. When its turn comes, the script runs **once**, on the first node. In it, `srun`
# starts the *tasks*: on two nodes with two tasks each, four processes. The number of a task among all is its *rank*, the
# number on its node its *local rank*. `torchrun` does the same with other words.
#
# Look at four processes: the job script itself, a task of `srun`, a process of `torchrun`, and one on a laptop.
#
# > **Predict.** Which of them should believe that they are one of four?

# %%
from helpers.experiments.nb10 import environments

launched = {
    "job script": environments.script(),
    "srun, task 3": environments.srun(3),
    "torchrun, process 3": environments.torchrun(3),
    "laptop": {},
}
print(environments.table(launched))

# %% [markdown]
# The lower half is what `smallfiles.machine.ranks` answers, for all of them by one code path. Look at the first column: the
# script sees `SLURM_NTASKS=4` too, although it is one process. A program that believes this reads a quarter of the data,
# or waits for three others that never come. Only what `srun` starts has `SLURM_STEP_ID`.
#
# Where do ranks meet? Slurm tells a list of nodes, and all ranks take the first name:

# %%
from smallfiles.machine.rendezvous import rendezvous

rendezvous({"SLURM_JOB_NODELIST": "n[07-12],gpu3", "SLURM_JOB_ID": "4711"})

# %% [markdown]
# The port comes from the job number, so that two jobs on a node do not meet. `MASTER_ADDR=localhost` is right on a
# laptop; in a job it sends the ranks of each node to themselves.
#
# Now four processes that will play ranks. They are started once, and get a new place for each experiment.

# %%
from helpers.experiments import nb10 as nodes

pool = nodes.WorkerPool(4)

# %% [markdown]
# A rank also has to get its CPUs. The script asks for them with `--cpus-per-task=2`. But from Slurm 22.05 on, `srun` does
# not take that over ([reframe#2655](https://github.com/reframe-hpc/reframe/issues/2655)): where a cluster binds
# tasks to CPUs, each gets one. `SLURM_CPUS_PER_TASK` still says 2, so a program that believes it starts two workers.
#
# > **Predict.** A rank decodes with two workers, bound to two CPUs or to one. How much longer does it take?

# %%
cost = nodes.cost_of_one_cpu(pool, packed)
show.say(cost.finding)

# %%
for cpus, workers in cost.workers.items():
    print(f"CPUs: {cpus}, workers that make_loader takes: {workers}")

# %% [markdown]
# Whatever it costs, no error and no warning tells of it. Say it again, and it is right in all versions:
# `srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python …`. And count CPUs by what the process may use, as `make_loader`
# does.

# %% [markdown] id="once"
# ## 2 · Read each sample once
#
# An epoch on two nodes with two ranks each, and two workers a rank. It is read three times: by tasks of `srun`; by a
# program that takes the local rank for the rank; and by a script that forgot `srun` and starts python on each
# node by itself.
#
# > **Predict.** How often does each sample come, in each of the three?

# %%
found = nodes.compare_ways(pool, packed, samples)

# %%
from helpers.experiments.nb10 import reading
from helpers.figures import nodes as draw

show.figure(draw.readings(found), alt=reading.alt_text(found))

# %% [markdown]
# Nothing failed in the wrong runs. The loss falls in both; one simply trains on less data, and the other does the
# same work on each rank. A rank cannot notice, since it sees each of its samples once. So count once over all ranks, as the
# job below does, before you train for days.
#
# What if the samples cannot be divided evenly? PyTorch's `DistributedSampler` repeats some, so that all ranks take
# equally many steps.
#
# > **Predict.** 10 samples, 4 ranks: how many are read by PyTorch's sampler, and how many by ours?

# %%
from torch.utils.data import DistributedSampler

from smallfiles.loading import EpochPlan

theirs = [len(list(DistributedSampler(range(10), 4, rank))) for rank in range(4)]
ours = [sum(map(len, EpochPlan(10, rank=rank, world_size=4).batches(0))) for rank in range(4)]
print("PyTorch:", theirs, "ours:", ours)

# %% [markdown]
# In validation a repeated sample is a wrong accuracy. Unequal shares have a danger of their own: a rank that takes a
# step more waits for the others, in the sum of the gradients, until a timeout ends the job. `smallfiles.training` lets a
# rank without samples take part with a weight of zero.
#
# The second trap of that sampler: it must be told the epoch.
#
# > **Predict.** Which of the four lines are equal?

# %%
sampler = DistributedSampler(range(samples), 4, 0)
for call in ("first", "second"):
    print(f"PyTorch, {call} epoch:", list(sampler)[:8])
plan = EpochPlan(samples, world_size=4)
for epoch in (0, 1):
    print(f"ours,    {('first', 'second')[epoch]} epoch:", plan.batches(epoch)[0][:8].tolist())

# %%
sampler.set_epoch(1)
print("after set_epoch(1):   ", list(sampler)[:8])

# %% [markdown]
# Without `sampler.set_epoch(epoch)` each epoch has the same order
# ([pytorch#31771](https://github.com/pytorch/pytorch/issues/31771)). `make_loader` counts epochs by itself.

# %% [markdown] id="scale"
# ## 3 · Add nodes
#
# *Weak scaling*: as many samples for each rank, and more and more ranks. Ideally twice the ranks read twice as much in
# the same time. Here each rank plays a node. A training step is imitated by waiting 30 ms, so that the ranks do not
# fight for this machine's CPUs. Data comes from one slow storage of 50 MB per second, and then from copies, as after staging.
#
# > **Predict.** How many ranks is the storage good for? An image has about 100 KB, and a step takes 10 of them.

# %%
scaled = nodes.measure_scaling(pool, packed)
show.figure(draw.scaling(scaled), alt=scaled.alt_text)

# %%
for ranks in (2, 4):
    show.say(scaled.summary(ranks) + ".")

# %% [markdown]
# Where a line bends, more nodes buy little. The bend moves to the right if each node reads less from the shared storage
# ([notebook 07](07_stage_a_dataset.ipynb)), or reads it better. On a cluster the others use the same storage, so
# repeat this at another hour.

# %% [markdown] id="limit"
# ## 4 · Outlive the time limit
#
# Every job has a time limit, and at the limit it is killed. With `--signal=USR1@90` Slurm tells the ranks 90 seconds before.
# `smallfiles train` then writes a checkpoint, with its place in the epoch, and exits with code 75. The script asks to be queued
# again, under its number, and the next run goes on.
#
# Two ranks train now, and are sent the signal in the second epoch. Then the same call again; and once more
# without a stop, for comparison.
#
# > **Predict.** Will the last loss of the interrupted training be the same, almost the same, or clearly another one?

# %%
stopped = nodes.measure_stop(pool, packed, fresh_folder(setup.scratch))
for sentence in stopped.summary:
    show.say(sentence)

# %%
pool.close()

# %% [markdown]
# A checkpoint at the end of each epoch only would lose up to an epoch at each limit. And a run that starts its epoch
# anew sees the first samples twice. Both are avoided because the loader's order is a function of seed and
# epoch: the place in it is one number.

# %% [markdown] id="script"
# ## 5 · Read a job script, and submit it
#
# This is the whole script of the reading above, as `slurm/jobs` has it:

# %%
from helpers import jobs

job = jobs.find(nodes.ROOT, "10_read")
print(job.path.read_text())

# %% [markdown]
# Lines with `#SBATCH` are read by Slurm, up to the first command; later ones are ignored without a word. `--ntasks-per-node`
# says how many ranks, `%x-%j` is the name of the log, whose folder must exist. `set -eo pipefail` ends the job at the
# first command that fails. `task` comes from `lib.sh`: it is `srun --cpus-per-task="$cpus"`. No account and no partition: they belong
# to the site's file, so that the script runs everywhere. Nor a GPU, since reading needs none.
#
# Packing needs no ranks that talk to each other, so it is a *job array*: independent jobs, each with a number.
#
# > **Predict.** What does task 3 of 4 pack, if the array is `--array=1-4`?

# %%
array = jobs.find(nodes.ROOT, "05_pack_tar")
print(*[word for word in array.directives if "array" in word])
print(array.path.read_text().splitlines()[-1])
print("then:", array.then)

# %% [markdown]
# Part `3/4`, cut at borders of shards that all tasks compute alike. The job named behind *then* is sent with a
# *dependency*: it starts when all parts ended well, and joins them to the bytes of a single run.
#
# Now the real thing. `submit` looks first for mistakes that would show only after an hour in the queue. The job is sent
# to the local cluster, if `slurm/local/up` has started one; or to your site, if `COURSE_SITE` names it.

# %%
sent = nodes.read_on_cluster(packed)
show.say(f"```bash\n{sent.command}\n```")
show.say(sent.summary)

# %%
print("\n\n".join(filter(None, [sent.queue, sent.log])) or "No job, no log.")

# %% [markdown] id="exercise"
# ## Exercise
#
# In [Exercise 10](../exercises/10_run_it_on_many_nodes.ipynb) you compute a process's place, and write a job script that
# trains on two nodes and outlives its time limit.

# %% [markdown] id="cluster"
# ## On the cluster
#
# This trains, on each rank of `10_train`; stopped, the same line goes on:

# %%
from pathlib import Path

from smallfiles.loading import LoaderConfig
from smallfiles.training import TrainConfig

config = TrainConfig(loader=LoaderConfig(workers=2), checkpoint=Path("checkpoints"))
show.command(config, "train.arrow")

# %% [markdown]
# ```bash
# slurm/submit SITE 10_read -- train.arrow seen       # check, show, send
# slurm/submit SITE 10_train --sbatch=--nodes=8       # options of sbatch win over those of the script
# squeue --me                                         # does it wait or run, and why
# scancel NUMBER                                      # end it
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - A process is what its launcher says: under `srun` rank and local rank, under `torchrun` too, else alone. The job script
#   itself is alone.
# - Only a count over all ranks shows that each sample came exactly once.
# - When more nodes do not read faster, the storage gives no more: stage, or stay with fewer.
# - Ask for a signal before the time limit, write a checkpoint, exit with a code of its own, and be queued again.
# - A job script asks for nodes, tasks, CPUs and time, hands the CPUs on to `srun`, and names nothing of a site.

# %% [markdown] id="next"
# ## Next
#
# That is the road: described, packed, staged, fed, on many nodes. Take it to your own data: `slurm/submit`
# without arguments lists the sites and the jobs.
