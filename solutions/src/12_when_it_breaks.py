# %% [markdown] id="top"
# # Exercise 12 · Diagnose six broken jobs
#
# ★★☆ · 30 minutes · after [notebook 12](../notebooks/12_when_it_breaks.ipynb)
#
# Six colleagues have sent you a job that failed, with the end of its log. First find the cause of each failure. Then change one
# line of each job. The tables of notebook 12 will help you.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex12")

# %% [markdown] id="jobs"
# ## The jobs
#
# In each job, the line that you will change is marked with `# <--`.
#
# **A** is slow.
#
# ```bash
# #SBATCH --ntasks=1 --cpus-per-task=8
# srun python train.py --workers 8              # <--
# ```
# ```
# slurm 23.02 · os.cpu_count() 128 · CPUs that this process may use: 1
# epoch 0: 96 images/s, waiting for data 91 %
# ```
#
# **B** works on the login node. There, the weights are in `$SCRATCH/torch/hub/checkpoints`, and jobs can read this folder.
#
# ```bash
# srun python finetune.py --model resnet50      # <--
# ```
# ```
# Downloading: "https://download.pytorch.org/models/resnet50-11ad3fa6.pth" to "~/.cache/torch/hub/checkpoints/…"
# URLError: <urlopen error [Errno -3] Temporary failure in name resolution>
# ```
#
# **C** dies in its first epoch. Each image is an array of 3 x 224 x 224 floats.
#
# ```bash
# srun --cpus-per-task=16 python train.py --workers 16 --prefetch 8 --batch 256     # <--
# ```
# ```
# pytorch 2.8 · RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error.
# df -H /dev/shm, while it ran:    Size 8.0G   Used 8.0G   Avail 0
# ```
#
# **D** overfits as if its crops were not random. It has two workers. `self.random` is `np.random.default_rng(0)`, and it is made in
# `__init__`.
#
# ```python
# def __getitem__(self, index):
#     random = self.random                      # <--
#     return crop(self.images[index], corner=random.integers(0, 32, size=2))
# ```
# ```
# epoch 0: worker 0 at (27, 20), (16, 8) …      worker 1 at (27, 20), (16, 8) …
# epoch 1: worker 0 at (27, 20), (16, 8) …      worker 1 at (27, 20), (16, 8) …
# ```
#
# **E** keeps all batches of a small validation set.
#
# ```python
# kept = []
# for batch in DataLoader(images, num_workers=8):
#     kept.append(batch)                        # <--
# ```
# ```
# RuntimeError: Too many open files. Communication with the workers is no longer possible.
# ```
#
# **F** reads only half of the samples, with any number of workers. This program wrote the tar file:
#
# ```python
# for stem in stems:                            # "cat.v1", "cat.v2", "dog.v1", "dog.v2" …
#     name = f"{stem}.jpg"                      # <--
#     archive.addfile(member(name, data[stem]), io.BytesIO(data[stem]))
# ```
# ```
# 1,000 images written; webdataset: 500 samples, cat: ['v1.jpg', 'v2.jpg'] …
# ```

# %% [markdown] id="causes"
# ## Task 1: the causes
#
# Write down the cause of each failure, in the words of this list:
#
# `causes: dict[str, str]`

# %% id="causes-list"
from exercises.checks import ex12_when_it_breaks as check

print(*check.CAUSES, sep="\n")

# %% id="causes-answer"
causes = {
    # --8<-- solution
    "A": "one CPU for all workers",
    "B": "no network on compute nodes",
    "C": "shared memory is full",
    "D": "a random generator copied by the fork",
    "E": "files kept open by tensors",
    "F": "names cut at the first dot",
    # --8<-- stub
    # "A": None,  # your answers: six texts from the list
    # "B": None,
    # "C": None,
    # "D": None,
    # "E": None,
    # "F": None,
    # --8<-- end
}

# %% id="causes-check"
found = check.causes(causes)
found

# %% [markdown] id="causes-hints"
# <details>
# <summary>Hint 1: where to look</summary>
#
# In A, compare the two numbers of CPUs. In C, look at the signal. In D, ask what repeats. In E, ask what is "open". In F, look at the
# dots.
#
# </details>
#
# <details>
# <summary>Hint 2: five causes of the list that fit no job</summary>
#
# A job that exceeds its memory limit is `Killed` with signal 9. If inodes run out, the error is `No space left on device`. A shared
# position of an open file gives wrong bytes, and only with two workers or more. After an interrupted copy, images are missing. If every
# epoch has the same order, the samples repeat, and not only the crops.
#
# </details>

# %% [markdown] id="lines"
# ## Task 2: the job scripts
#
# Repair A, B and C by rewriting the marked line. In A, keep 8 workers. In C, keep the batch size of 256 and at least 8 workers. The
# check runs your line in bash, with a simulated `srun`:
#
# `cures: dict[str, str]`

# %% id="lines-answer"
cures = {
    # --8<-- solution
    "A": 'srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python train.py --workers 8',
    "B": 'TORCH_HOME="$SCRATCH/torch" srun python finetune.py --model resnet50',
    "C": "srun --cpus-per-task=16 python train.py --workers 16 --prefetch 2 --batch 256",
    # --8<-- stub
    # "A": "srun python train.py --workers 8",  # your code: one line for each job
    # "B": "srun python finetune.py --model resnet50",
    # "C": "srun --cpus-per-task=16 python train.py --workers 16 --prefetch 8 --batch 256",
    # --8<-- end
}

# %% id="lines-check"
scripts = check.lines(cures)
scripts

# %% [markdown] id="lines-hints"
# <details>
# <summary>Hint 1: C in numbers</summary>
#
# `workers * prefetch * batch * 3 * 224 * 224 * 4` bytes wait in `/dev/shm`, which has 8 GB. They should be at most 80 % of
# it.
#
# </details>
#
# <details>
# <summary>Hint 2: B</summary>
#
# PyTorch looks for weights in `$TORCH_HOME/hub/checkpoints`, and downloads them if they are not there. Without the variable, it looks
# in your home directory.
#
# </details>

# %% [markdown] id="programs"
# ## Task 3: the programs
#
# Repair D, E and F in the same way. In D, every sample must get another crop in each epoch, even if the workers are kept alive. In F,
# two different stems must never get the same name, and the suffix must stay `.jpg`:
#
# `more: dict[str, str]`

# %% id="programs-answer"
more = {
    # --8<-- solution
    "D": "random = np.random.default_rng(torch.randint(1 << 62, ()).item())",
    "E": "kept.append(batch.clone())",
    "F": 'name = stem.replace("%", "%25").replace(".", "%2E") + ".jpg"',
    # --8<-- stub
    # "D": "random = self.random",  # your code: one line for each job
    # "E": "kept.append(batch)",
    # "F": 'name = f"{stem}.jpg"',
    # --8<-- end
}

# %% id="programs-check"
programs = check.programs(more)
programs

# %% [markdown] id="programs-hints"
# <details>
# <summary>Hint 1: D and E</summary>
#
# In D, use PyTorch's own generator: PyTorch gives it another seed in each worker, and it continues from epoch to epoch. Draw
# the seed of the NumPy generator from it (`torch.randint`). In E, a tensor has a method that copies it to its own memory.
#
# </details>
#
# <details>
# <summary>Hint 2: F</summary>
#
# `cat.v1` must not become `cat` or `cat_v1`, because another image may have this name. In web addresses, `%2E` stands for a dot. But a
# stem may contain `%2E` already. So first replace each percent sign by `%25`.
#
# </details>

# %% [markdown] id="use"
# ## Your own job

# %% id="compare"
if not (found and scripts and programs):
    show.say("Solve all tasks first.")
else:
    show.say("Think of your last job that failed. Which row of notebook 12 describes it?")
    show.say("If there is none, what would you write into this row?")
