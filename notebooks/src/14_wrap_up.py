# %% [markdown] id="top"
# # 14 · Wrap up
#
# **Minutes** 40 · **Machine** any Linux computer with two CPUs · **Needs** 01 and 03; 11 and 13 help · **Data** 200
# synthetic images
#
# A folder arrives that nobody has seen: photographs of trees (here our shapes), with masks and a table. You look at it,
# pack what is whole, decide how to store the survey, stage, train, and defend your decision with numbers.

# %% [markdown] id="questions"
# ## Questions
#
# - What is wrong with a delivery, and who decides about it?
# - Which way of storing suits it, on how many nodes?
# - Is the copy worth its time?
# - Does loading limit *my* training?

# %% [markdown] id="objectives"
# ## After this you can
#
# - find the faults of a delivery before they become wrong samples,
# - forecast an epoch with your own measurements,
# - bring a data set from a folder to a running training,
# - defend a way of storing with numbers.

# %% [markdown] id="setup"
# ## Set up
#
# `worksheet` holds *my numbers*: what you measured in other notebooks.

# %% id="start"
import sys

sys.path.append("..")
from helpers import figures, show, start, worksheet

setup = start("14")

# %%
from helpers.delivery import delivered

seed = 2026  # change me: another seed is another delivery
delivery = delivered(setup.path(), setup.scratch / "delivery", seed).folder
print(*sorted(path.relative_to(delivery).as_posix() for path in delivery.rglob("*"))[:8], "…", sep="\n")

# %% [markdown] id="recall"
# > **Recall** (12). A worker fails with `unable to allocate shared memory`. Where do you look? And where do you look if
# > it was `killed by signal: Killed`?
#
# <details>
# <summary>Answer</summary>
#
# Look at the size of `/dev/shm`, which was full. Before PyTorch 2.10, such a worker was killed by a bus error. `Killed`
# is signal 9, so look at the memory limit of the job.
#
# </details>

# %% [markdown] id="look" tags=["core"]
# ## 1 · Look before you pack
#
# Read the README, and then try whether `sources.load` can read the folder as it is:

# %%
from smallfiles import sources
from smallfiles.errors import SourceError

print((delivery / "README.txt").read_text())
try:
    sources.load(delivery)
except SourceError as refusal:
    print(str(refusal).replace(f"{delivery}/", ""))

# %% [markdown]
# It refuses the folder, because a table names the samples and nobody said how its rows belong to the files.
# Templates say that: in `images/{id}.jpg`, `{id}` is the `id` of a row.

# %%
table = delivery / "survey" / "trees.csv"
print(*table.read_text().splitlines()[:3], sep="\n")
columns = ("image=images/{id}.jpg", "mask=masks/{id}.png", "label=species")
source = sources.load(table, columns=columns)
print(*(note.replace(f"{delivery}/", "") for note in source.notes), sep="\n")

# %% [markdown]
# > **Predict.** The table has 60 rows. How many of them make whole samples?

# %%
guess = 50  # change me: whole samples

# %%
import tempfile
from dataclasses import replace
from pathlib import Path

from smallfiles.errors import SmallfilesError
from smallfiles.pack import PackConfig, pack

packed = Path(tempfile.mkdtemp(dir=setup.scratch)) / "trees.arrow"  # a new one, so that this cell may run twice
source = replace(source, notes=())  # `pack` shows them, and they were printed above
try:
    pack(source, packed, PackConfig())
except SmallfilesError as error:
    show.error(error, without=f"{delivery}/")

# %% [markdown]
# `pack` refuses, and names every missing file. Leaving samples out is a decision about the data: ask the people who
# delivered it, or pass `--on-error skip` and keep the list.
#
# Two more faults are not in that message. One image is cut off, which only reading shows. Some images have no row:

# %%
report = pack(source, packed, PackConfig(on_error="skip"))
images = {path.stem for path in (delivery / "survey" / "images").glob("*.jpg")}
known = set(source.manifest.values["id"].to_pylist())
print(f"{report.samples} samples packed, {len(report.skipped)} rows left out:")
print(*("  " + one.reason.replace(f"{delivery}/survey/", "") for one in report.skipped), sep="\n")
print("images without a row:", *sorted(images - known))

# %% [markdown]
# The *folded* cell draws what each count hides:

# %% jupyter={"source_hidden": true}
masks = {path.stem for path in (delivery / "survey" / "masks").glob("*.png")}
whole = known - {Path(one.key).stem for one in report.skipped}
places = {"row": known, "image": images, "mask": masks}
faults = {"whole": whole, "cut off": known & images & masks - whole}
faults |= {f"no {name}": (known | images | masks) - there for name, there in places.items()}
counts = {
    f"{name}s": {fault: float(len(there & ids)) for fault, ids in faults.items() if there & ids}
    for name, there in places.items()
}
title = f"{len(known)} rows and {len(images)} images, but only {len(whole)} whole samples"
figures.bars(counts, title, x="rows, images, masks", guess=guess, counted=True)

# %% [markdown]
# You can now solve task 1 of [exercise 14](../exercises/14_wrap_up.ipynb).

# %% [markdown] id="decide" tags=["core"]
# ## 2 · Decide with your numbers
#
# The whole survey has 500,000 trees, on a shared file system. You train on 1 to 64 nodes. What takes seconds to
# measure is measured now. Of *my numbers*, the forecast of [11](11_choose_a_format.ipynb) needs only the time to
# decode, so the others may be missing.

# %%
worksheet.measure_missing(setup.path())

# %% [markdown]
# What only your site knows has defaults, which decide here:

# %%
from smallfiles.scaling import WAYS, Storage, Work, simulate, ways_of

trees, sample_bytes = 500_000, report.payload_bytes // report.samples
decode_s = worksheet.value("08", "cpu_ms") / 1000
work = Work(samples=trees, sample_bytes=sample_bytes, decode_s=decode_s)
storage = Storage()  # change me: your site's numbers, such as metadata_ops_s=50_000
twice = {"files": {"operations": 4, "requests": 2}, "packed": {"requests": 2}}  # a tree has an image and a mask
ways = ways_of(sample_bytes) | {name: replace(WAYS[name], **counts) for name, counts in twice.items()}

# %% [markdown]
# The *folded* cell lists the numbers that matter most:

# %% jupyter={"source_hidden": true}
mine, ask, yours = "measured by you", "default: ask your site", "default: put in your training"
assumptions = {
    "a tree": (f"{sample_bytes / 1000:,.0f} kB", f"{mine} on {report.samples}"),
    "decode, crop, change colours": (f"{1000 * work.decode_s:.1f} ms of a CPU", f"{mine} in 08, without a mask"),
    "metadata operations": (f"{storage.metadata_ops_s:,.0f} per second of all servers", ask),
    "storage targets": (f"{storage.targets} of {storage.target_bytes_s / 1e9:g} GB/s, each of many hard disks", ask),
    "a read request": (f"{1000 * storage.request_s:g} ms of a target (assumed)", ask),
    "the packed file": (f"on {storage.stripes} targets", ask),
    "page cache": (f"{storage.cache_bytes / 1e9:g} GB", ask),
    "network of a node": (f"{storage.node_bytes_s / 1e9:g} GB/s", ask),
    "a node": (f"{work.gpus} GPUs with {work.workers} workers each", ask),
    "a step": (f"{work.batch} samples per GPU in {1000 * work.step_s:g} ms", yours),
}
rows = (f"| {name} | {value} | {origin} |" for name, (value, origin) in assumptions.items())
show.say("\n".join(["| number | value | from |", "|---|---|---|", *rows]))

# %% [markdown]
# > **Predict.** On 64 nodes, which way has the shortest epoch: `files`, one `packed` file, `shards`, or a copy per node
# > (`staged`)?

# %%
guess = "shards"  # change me: files, packed, shards or staged

# %% [markdown]
# The *folded* cell simulates an epoch of each way, and names its limit:

# %% jupyter={"source_hidden": true}
nodes = (1, 2, 4, 8, 16, 32, 64)
order = ("packed", "shards", "staged", "files")
epochs = {name: {n: simulate(work, storage, ways[name], n).epoch_s for n in nodes} for name in order}
fastest = min(epochs, key=lambda name: epochs[name][64])
assumed = f"a model: {storage.metadata_ops_s:,.0f} operations/s, {storage.targets} targets, {1000 * storage.request_s:g} ms per request"
drawn = {f"{name} ◂ your guess" if name == guess else name: line for name, line in epochs.items()}
title = f"Forecast: on 64 nodes {fastest} has the shortest epoch"
show.figure(figures.lines(drawn, title, x="nodes", y="seconds per epoch", log="xy", note=assumed, counted=True))
for name in order:
    last = simulate(work, storage, ways[name], 64)
    print(f"{name:7} {last.epoch_s:5.1f} s on 64 nodes, limited by {last.limit}; metadata servers are busy {last.use['metadata']:4.0%}")

# %% [markdown]
# Where a line halves with twice the nodes, the nodes are the limit. Where it is flat, they wait for what they share.
#
# With these defaults, files and the packed file are flat early. A sample needs two reads at random, image and mask,
# and each takes 0.5 ms of a target. So on many nodes one file read at random is no faster than many. Only files also
# keep the metadata servers busy.
#
# The shortest epoch need not give the shortest training. Before its first epoch `staged` copies the survey to every
# node. With a *broadcast* ([notebook 07](07_stage_a_dataset.ipynb)) one node reads it and sends it to the
# others. We forecast whole trainings, copy included:

# %%
planned = 10  # change me: epochs of your training


def whole_training(epochs=planned, work=work, storage=storage, nodes=64):
    """Seconds of a training for each way, copying included."""
    found = {name: simulate(work, storage, way, nodes, epochs) for name, way in ways.items()}
    return {name: one.first_epoch_s + (epochs - 1) * one.epoch_s for name, one in found.items()}


copied, read = trees * sample_bytes / 1e9, storage.targets * storage.target_bytes_s / 1e9
print(f"64 nodes copy {copied:.0f} GB each, which each must have free in memory or on disk;")
print(f"targets deliver {read:.0f} GB/s in all")

# %% [markdown]
# > **Predict.** After how many epochs has the copy of each node paid off, compared with shards? Divide the seconds of
# > the copy (64 × 57 GB at 17 GB/s) by those that it saves per epoch (shards minus staged, above).

# %%
guess = 5  # change me: epochs

# %% [markdown]
# The *folded* cell computes it, also for a broadcast, and draws the time of a whole training:

# %% jupyter={"source_hidden": true}
from smallfiles.measure.drawing import INK


def first_paid(copy):
    """The first number of epochs after which the copy is no longer slower than shards; None if there is none."""
    way, shards = (simulate(work, storage, ways[name], 64) for name in (copy, "shards"))
    ahead = way.first_epoch_s - shards.first_epoch_s, shards.epoch_s - way.epoch_s
    return next((n for n in range(1, 10_000) if ahead[0] <= (n - 1) * ahead[1]), None)


paid = {name: first_paid(name) for name in ("staged", "broadcast")}
trained = {n: whole_training(n) for n in (1, 2, 5, 10, 20, 40, 80)}
drawn = {name: {n: times[name] for n, times in trained.items()} for name in (*order, "broadcast")}
now = whole_training()
title = f"Forecast: on 64 nodes, {planned} epochs take least with {min(now, key=now.get)}"
axes = {"x": "epochs", "y": "seconds of training", "log": "xy", "marks": {"planned": planned}}
is_under = all(abs(times["packed"] / times["files"] - 1) < 0.1 for times in trained.values())
note = assumed + "; packed lies under files" * is_under + "; ring: paid off"
drawing = figures.lines(drawn, title, **axes, guess=guess, note=note, counted=True)
(axes,) = drawing.figure.axes
axes.set_ylim(top=8 * trained[80]["packed"])  # the words are above the lines
for name, n in paid.items():
    if n and n <= 80:
        crossing = n, whole_training(n)["shards"]
        axes.plot(*crossing, "o", ms=9, mfc="none", mec=INK, zorder=6)
        where, side = ((4, 6), "right") if name == "staged" else ((4, -14), "left")  # clear of the lines
        axes.annotate(f"{n} {name}", crossing, where, textcoords="offset points", ha=side, fontsize=9, zorder=6)
show.figure(drawing)
print(f"{planned} epochs:", ", ".join(f"{name} {seconds:,.0f} s" for name, seconds in now.items()))
for name, n in paid.items():
    print(f"{name:9} pays off against shards after {n:,} epochs" if n else f"{name} never pays off against shards")

# %% [markdown] id="pack" tags=["core"]
# ## 3 · Verify and stage
#
# Our few samples are in one file since section 1. `verify` reads it again:

# %%
from smallfiles.pack import verify

checked = verify(packed)
print(f"{checked.samples} samples read again, problems: {checked.problems or 'none'}")

# %% [markdown]
# > **Predict.** The file was just read. How many times as fast is an epoch from a copy in `/dev/shm`: 10, 2, or not
# > faster?

# %%
guess = 2  # change me: so many times as fast; 1 if not faster

# %%
from smallfiles import formats, measure, staging


def read_epoch(path):
    """Read image and mask of every sample."""
    reader = formats.open(path)
    masks = reader.blob("mask")
    return len([bytes(reader.read(i)) + bytes(masks.read(i)) for i in range(len(reader))])


with staging.staged(packed, config=staging.StageConfig(leave_bytes=256 << 20)) as copy:
    places = {"where it is": lambda: read_epoch(packed), "staged": lambda: read_epoch(copy.path)}
    reading = measure.compare(places, rounds=5, unit="samples")
print(f"copied in {copy.seconds:.3f} s;", *(f" an epoch {name}: {reading.seconds(name):.4f} s" for name in places))
print(f"from the copy {reading.times('staged', 'where it is').median:.1f} times as fast; your guess was {guess}")

# %% [markdown]
# The copy gains nothing: the packed file was in the page cache, so both are in memory, and beside decoding neither
# counts. Most of a survey larger than the memory is read from storage in each epoch. Then a copy can pay off
# ([07](07_stage_a_dataset.ipynb)).
#
# You can now solve tasks 2 and 3 of [exercise 14](../exercises/14_wrap_up.ipynb).

# %% [markdown] id="train" tags=["core"]
# ## 4 · Train, and look at the waiting
#
# A batch has images and their masks, cropped together, the heights, and the ids as bytes with offsets:

# %%
from smallfiles.images import RandomResizedCrop
from smallfiles.loading import Image, LoaderConfig, Mask, make_loader

view = RandomResizedCrop(96)
fields = {"image": Image(view), "mask": Mask(view)}
batch = next(iter(make_loader(packed, LoaderConfig(batch=8), fields=fields)))
for field, value in batch.items():
    if hasattr(value, "dtype"):
        print(f"{field:10} {value.dtype} {tuple(value.shape)}")

# %% [markdown]
# > **Predict.** Without workers, which share of the time does a training wait for its data?

# %%
guess = 50  # change me: percent

# %%
import torch

from smallfiles.training import TrainConfig, train

torch.set_num_threads(1)  # one CPU trains, so that the other can load
waits = {}
for workers in (0, 2):
    loader = LoaderConfig(batch=4, workers=workers, mode="main" if workers == 0 else "threads")
    done = train(packed, config=TrainConfig(loader=loader, target="mask", size=64, epochs=3))
    waits[f"{workers} workers"] = [round(100 * epoch.waiting_share, 1) for epoch in done.epochs]

# %% [markdown]
# The *folded* cell draws the waiting of each epoch:

# %% jupyter={"source_hidden": true}
from statistics import median

title = f"Without workers this training waits for {median(waits['0 workers']):.0f}% of its time"
figures.bars(waits, title, x="share of the time spent waiting (%)", dots="epochs", guess=guess, guess_of="0", note="without the first batch of each epoch")

# %% [markdown]
# Without workers every batch is made while the model waits. Two workers (threads here) make the next ones during a
# step. A GPU makes the steps shorter, but not the decoding, so two may be too few there.

# %% [markdown] id="profile"
# ### Watch your own training
#
# `smallfiles profile` runs a training unchanged, and says whether loading limits it. Without a training of yours, it
# watches a stand-in. Its 1 worker needs 32 ms for a batch; a step takes 10 ms.
#
# > **Predict.** How many workers will it propose for the stand-in? (It adds one as a spare.)

# %%
guess = 2  # change me: workers that it proposes for the stand-in
program = []  # change me: the words that start your training, such as ["python", "/path/to/train.py"]

# %% [markdown]
# **Your turn.** Name your training above, if you have one here, for a minute or two: the report appears when it ends.
# The *folded* cell writes the stand-in, and runs `smallfiles profile -- …`:

# %% jupyter={"source_hidden": true}
import os
import subprocess

STAND_IN = """
import sys
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Waits(Dataset):
    def __len__(self):
        return 600
    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.zeros(3, 32, 32)

began = time.perf_counter()
for batch in DataLoader(Waits(), batch_size=8, num_workers=int(sys.argv[1]), multiprocessing_context="fork"):
    time.sleep(0.01)
print(f"{time.perf_counter() - began:.1f} s")
"""
_ = (setup.scratch / "stand_in.py").write_text(STAND_IN)

stand_in = [sys.executable, setup.scratch / "stand_in.py"]
chosen = program or [*stand_in, "1"]
watch = [sys.executable, "-m", "smallfiles", "profile", "--seconds", "300" if program else "3", "--", *chosen]
where = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
told = subprocess.run(watch, env=where, capture_output=True, text=True).stderr
print(*(line for line in told.splitlines() if "unknown" not in line), sep="\n")

# %% [markdown]
# For a few steps `profile` has batches ready, to measure the *headroom*. *Other* is work that is neither reading nor
# decoding, here the sleep. The verdict names the limit and the next step. The *folded* cell tries that step:

# %% jupyter={"source_hidden": true}
import re

proposed = re.search(r"num_workers=(\d+)", told)
if not program:
    print(f"it proposes {proposed[1] if proposed else 'no number of'} workers; your guess was {guess}")
for workers in ("1", proposed[1]) if proposed and not program else ():
    done = subprocess.run([*stand_in, workers], capture_output=True, text=True)
    print(f"num_workers={workers}: an epoch takes {done.stdout.strip()}")

# %% [markdown]
# <details>
# <summary>Why this number, and why is the gain smaller?</summary>
#
# On a calm machine four workers make a batch per step, and one is spare. They mostly sleep, so they may outnumber the
# CPUs. The forecast leaves out the start of the workers, which a longer epoch hides.
#
# </details>

# %% [markdown] id="defend" tags=["core"]
# ## 5 · Defend it

# %%
worksheet.page()

# %% [markdown]
# **Your turn.** Write down which way you defend for 64 nodes, and the number from section 2 that decides.

# %%
way = None  # change me: "files", "packed", "shards", "staged" or "broadcast"
because = f"{planned} epochs take … s"  # change me: the number that decides

# %% [markdown]
# The *folded* cell puts your way beside the forecast:

# %% jupyter={"source_hidden": true}
times = whole_training()
best = min(times, key=times.get)
if way not in ways:
    show.say(f"You have not decided yet: write one of {', '.join(ways)} in place of {way!r} above, and run both cells.")
else:
    limits = {name: simulate(work, storage, ways[name], 64).limit for name in (way, best)}
    wasted = 64 * work.gpus * (times[way] - times[best]) / 3600
    show.say(
        f"You defend **{way}** for {trees:,} trees, because {because}. On 64 nodes {planned} epochs take {times[way]:,.0f} s, limited by {limits[way]}. "
        + (
            "No other way is shorter."
            if way == best
            else f"The shortest is **{best}**, {times[best]:,.0f} s, limited by {limits[best]}: yours costs {wasted:,.1f} GPU-hours more."
        )
        + f" Files: {times['files']:,.0f} s and {2 * trees:,} inodes."
    )

# %% [markdown]
# Would it hold if a number is wrong? Change one at a time.
#
# > **Predict.** How many of these five change the shortest way: a tenth of the operations per second, a tenth of the
# > time per request, a file on one target, four nodes, ten times the epochs?

# %%
guess = 3  # change me: how many of the five

# %%
changes = {  # change me: add the number that you doubt most
    "as it is": {},
    "a tenth of the operations/s": {"storage": replace(storage, metadata_ops_s=storage.metadata_ops_s / 10)},
    "a tenth of the time per request": {"storage": replace(storage, request_s=storage.request_s / 10)},
    "the file on one target": {"storage": replace(storage, stripes=1)},
    "on 4 nodes": {"nodes": 4},
    "10 times the epochs": {"epochs": 10 * planned},
}
results = {what: whole_training(**change) for what, change in changes.items()}
shortest = [min(times, key=times.get) for times in results.values()]
print(f"{'seconds of a training':31}", *(f"{name:>9}" for name in ways), "  shortest")
for (what, times), name in zip(results.items(), shortest):
    print(f"{what:31}", *(f"{seconds:9,.0f}" for seconds in times.values()), f"  {name}")
turned = sum(name != shortest[0] for name in shortest)
print(f"{turned} of {len(changes) - 1} change the shortest way; your guess was {guess}")

# %% [markdown]
# Of these five, only more epochs change the decision. Files and packed *as it is* differ by chance in the simulation.
#
# - *A tenth of the operations* slows files, and little else.
# - *A tenth of the time per request*, as on flash, helps the packed file most.
# - *One target* for a file is Lustre's default. It makes the packed file and the copy of each node some 20 times as slow;
#   a broadcast, which reads once, not even twice. Stripe the folder *before* packing
#   ([11](11_choose_a_format.ipynb)).
# - *On 4 nodes* the ways are closest: the nodes are nearly the limit. The copy makes staged and broadcast
#   slower than shards.
#
# The broadcast assumes that `sbcast` fills the network: measure it. A node's page cache would change little: in 10
# epochs each of 64 nodes seldom reads a tree twice. With 4 nodes, or 100 epochs, it changes more, as could a cache of
# the servers that holds 57 GB.
#
# You can now solve task 4 of [exercise 14](../exercises/14_wrap_up.ipynb).

# %% [markdown] id="exercise"
# ## Exercise
#
# [Exercise 14](../exercises/14_wrap_up.ipynb): find the faults of another delivery, pack it, and defend your decision.

# %% [markdown] id="cluster"
# ## On the cluster
#
# The *folded* cell shows the commands of *your* way:

# %% jupyter={"source_hidden": true}
from smallfiles.formats import tar
from smallfiles.staging import StageConfig

taken = way if way in ways else None
out = "trees.tars" if taken == "shards" else "trees.arrow"
first = "" if taken == "shards" else "lfs setstripe -c -1 FOLDER   # on Lustre, before packing into FOLDER\n"
fields = " ".join(f"--field '{column}'" for column in columns)
how = {"shuffle": seed, "options": tar.Options(max_bytes=100_000_000)} if taken == "shards" else {}
command = f"{PackConfig(on_error='skip', **how).to_cli('survey/trees.csv', out)} {fields}"
if taken is None:
    say = "Decide in section 5; then run this cell again, and the commands of your way appear here. Until then, ask `advise`:"
    show.say(f"{say}\n\n```bash\nsmallfiles advise survey/trees.csv --nodes 64 --epochs {planned} {fields}\n```")
    show.say("It counts one read per sample, and only the files that it finds. So run it on the whole survey, and trust section 2 where they differ.")
else:
    show.say("Your way is files, so nothing is packed." if taken == "files" else f"```bash\n{first}{command}\n```")
if taken == "shards":
    show.say(f"{64 * work.gpus * work.workers:,} workers want as many shards, or a loader that splits shards as ours does.")
if taken in ("staged", "broadcast"):
    show.say(f"```bash\n{StageConfig().to_cli(out)}{' --broadcast' * (taken == 'broadcast')}\n```")

# %% [markdown]
# ```bash
# smallfiles inspect trees.arrow --picture sheet.html    # or trees.tars: look at image and mask
# smallfiles profile -- python train.py                  # or as a job: slurm/submit SITE 12_profile
# ```

# %% [markdown] id="key-points"
# ## Key points
#
# - Compare rows, images and masks by name before packing: equal counts can hide gaps.
# - `pack` refuses what is missing; leaving samples out is a decision to write down.
# - A forecast rests on many numbers, most of them your site's: try which change the decision.
# - A copy is paid once: compare whole trainings, not epochs.
# - A packed file is as fast as its targets: stripe its folder before you pack. On hard disks random requests limit it.
# - The share of waiting in your own training is what all this is for: `smallfiles profile` tells it.

# %% [markdown] id="quiz"
# ## Check yourself
#
# **1.** A table has 60 rows, a folder 60 images. May you zip them? (a) Yes, the counts agree. (b) Yes, after sorting.
# (c) No, join them by name.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: here two rows have no image and two images no row, yet the counts agree. (b) After sorting, a gap shifts
# the pairs that follow.
#
# </details>
#
# **2.** Your forecast says that GPUs are the limit for shards and for one packed file. Which do you take? (a) Shards.
# (b) One file. (c) Either, by what else you need.
#
# <details>
# <summary>Answer</summary>
#
# **(c)**: both keep the GPUs busy. Random access speaks for one file, streaming from an object store for shards.
#
# </details>
#
# **3.** A copy takes 60 s and saves 2 s per epoch, and you train 10 epochs. (a) Stage: each epoch is
# shorter. (b) Do not stage. (c) Stage: from the second epoch on, the copy is free.
#
# <details>
# <summary>Answer</summary>
#
# **(b)**: it pays off after 30 epochs. (a) Ten shorter epochs save 20 s, and the copy takes 60 s.
# (c) Its reason is true, but these epochs do not save what the copy took before the first.
#
# </details>

# %% [markdown] id="next"
# ## Next
#
# Your own training. Keep the page of your numbers, and look up what breaks in [12](12_when_it_breaks.ipynb).
