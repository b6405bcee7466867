# %% [markdown] id="top"
# # Exercise 11 · Recommend a way of storing
#
# ★★★ · 40 minutes · after [notebook 11](../notebooks/11_choose_a_format.ipynb)
#
# Three groups ask you how they should store their images. First you estimate by hand how long each part of a cluster
# would need for an epoch if it were the only limit. Then you recommend a way for each group and give the numbers.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex11")

# %% [markdown] id="given"
# `Work`, `Storage`, and the ways are the same as in notebook 11. You need the fields that the next cell prints.
# `help(Storage)` explains them.

# %% id="fields"
from smallfiles.scaling import WAYS, Storage, Work

work, storage = Work(), Storage()
print(f"{work.samples=} {work.sample_bytes=} {work.batch=} {work.gpus=} {work.step_s=}")
print(f"{storage.metadata_ops_s=} {storage.targets=} {storage.stripes=} {storage.target_bytes_s=}")
print(f"{storage.request_s=} {storage.node_bytes_s=}")
WAYS["packed"]

# %% [markdown] id="parts"
# ## Task 1: the parts
#
# Return the seconds per epoch that each part needs on its own, as a dict:
#
# - `"metadata"` does the operations.
# - `"targets"` read the bytes and need `request_s` per request. If `way.striped`, one file lies on `storage.stripes`
#   targets. Otherwise, many files lie on all `storage.targets`.
# - `"network"`: each node has one.
# - `"GPUs"` do the steps.
#
# `parts(work, storage, way, nodes) -> dict[str, float]`


# %% id="parts-answer"
def parts(work, storage, way, nodes) -> dict[str, float]:
    """Return the seconds that each part needs for an epoch."""
    # --8<-- solution
    spread = storage.stripes if way.striped else storage.targets
    reading_s = work.sample_bytes / storage.target_bytes_s + way.requests * storage.request_s
    return {
        "metadata": work.samples * way.operations / storage.metadata_ops_s,
        "targets": work.samples * reading_s / spread,
        "network": work.samples * work.sample_bytes / (nodes * storage.node_bytes_s),
        "GPUs": work.samples / (nodes * work.gpus * work.batch) * work.step_s,
    }
    # --8<-- stub
    # raise NotImplementedError  # your code: about eight lines
    # --8<-- end


# %% id="parts-check"
from exercises.checks import ex11_choose_a_format as check

parts_verdict = check.parts(parts)
parts_verdict

# %% [markdown] id="parts-hints"
# <details>
# <summary>Hint 1: one sample first</summary>
#
# Ask what one sample costs in each part. Multiply that cost by the number of samples, and divide it by the number of
# units that work at the same time.
#
# </details>
#
# <details>
# <summary>Hint 2: shared or not</summary>
#
# All nodes share the metadata servers and the targets. Each node has a network and GPUs of its own.
#
# </details>

# %% [markdown] id="training"
# ## Task 2: a whole training
#
# All parts work at the same time. If `way.staged`, each node first receives the whole data set over its network. For this,
# all targets together read it `nodes` times (ignore `request_s`). The copy takes as long as the slower of these two. Then
# only the GPUs count. Return the seconds:
#
# `training_s(work, storage, way, nodes, epochs) -> float`


# %% id="training-answer"
def training_s(work, storage, way, nodes, epochs) -> float:
    """Return the seconds of all epochs, with the copy if there is one."""
    # --8<-- solution
    seconds = parts(work, storage, way, nodes)
    if not way.staged:
        return epochs * max(seconds.values())
    everything = work.samples * work.sample_bytes
    by_network = everything / storage.node_bytes_s
    by_targets = nodes * everything / (storage.targets * storage.target_bytes_s)
    return max(by_network, by_targets) + epochs * seconds["GPUs"]
    # --8<-- stub
    # raise NotImplementedError  # your code: about seven lines that call parts
    # --8<-- end


# %% id="training-check"
training_verdict = check.training_s(training_s)
training_verdict

# %% [markdown] id="training-hints"
# <details>
# <summary>Hint: what adds up</summary>
#
# Parts that work at the same time do not add up, because the slowest of them decides. The copy comes first, so you add
# its time.
#
# </details>

# %% [markdown] id="choice"
# ## Task 3: three projects
#
# - *microscopy*: tiles of 100 kB, 32 nodes, 50 epochs
# - *ImageNet-21k*: 16 nodes, 30 epochs
# - *hard negatives*: ImageNet on 2 nodes, 90 epochs; any sample at any time; your share of the metadata servers is
#   5,000 operations per second
#
# For each project, give the fastest way that is possible there, and its hours:
#
# `choice: dict[str, tuple[str, float]]`

# %% id="projects"
for name, project in check.PROJECTS.items():
    everything = project.work.samples * project.work.sample_bytes
    sizes = f"{everything / 1e9:,.0f} GB, room for {project.room_bytes / 1e9:,.0f} GB"
    print(f"{name}: {sizes}, jumps: {project.jumps}")
    for way in WAYS if parts_verdict and training_verdict else ():
        which = project.work, project.storage, WAYS[way]
        seconds = training_s(*which, project.nodes, project.epochs)
        print(f"    {way:7} {seconds / 3600:6.2f} h")

# %% id="choice-answer"
# --8<-- solution
choice = {"microscopy": ("staged", 0.11), "ImageNet-21k": ("shards", 2.89)}
choice["hard negatives"] = "packed", 6.26
# --8<-- stub
# choice = ...  # your answer: {"microscopy": ("files", 1.5), "ImageNet-21k": …, …}
# --8<-- end

# %% id="choice-check"
chosen = check.choice(choice)
chosen

# %% [markdown] id="use"
# ## Does the simulation agree?
#
# Your estimate ignores queues and decoding. `simulate` includes both, and all of its GPUs step together.

# %% id="compare"
from smallfiles.scaling import simulate

for name, project in check.PROJECTS.items() if chosen else ():
    way, hours = choice[name]
    found = simulate(project.work, project.storage, WAYS[way], project.nodes)
    total = (found.first_epoch_s + (project.epochs - 1) * found.epoch_s) / 3600
    limit = f"The limit is {found.limit}."
    show.say(f"**{name}**, {way}: {hours:.2f} h by hand, {total:.2f} h simulated. {limit}")
if not chosen:
    show.say("Solve the three tasks first. Then this cell compares.")

# %% [markdown] id="differ"
# For which project do the two numbers differ most? Which part of the model does your estimate ignore?
#
# <details>
# <summary>Answer</summary>
#
# They differ most for *microscopy*, because its limit is the workers, which your estimate ignores. A node has 32 workers,
# and each needs 3 ms to decode an image, so together they decode 10,700 images per second. The GPUs could process 20,500.
#
# </details>
