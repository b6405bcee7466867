# %% [markdown] id="top"
# # Exercise 07 · Stage a file that others stage too
#
# A ★★☆ · 20 minutes, B ★★★ · 20 minutes, optional · after [notebook 07](../notebooks/07_stage_a_dataset.ipynb)
#
# Copying a file is one line of Python. But several jobs may copy to the same node at the same moment, a job may be killed
# while it copies, and other users may create links where you expect your files. Here you write the few lines that make a
# copy safe.
#
# A copy is *good* if it is complete: it has the size and the modification time of the source. Use only the standard library.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex07")

# %% [markdown] id="task-a"
# ## Task A: lock and rename
#
# ★★☆ · 20 minutes. Copy `src` into `folder`, which you create with mode 700. Two jobs may call the function at the same time. If
# one is killed, **the next call removes what it left**. Half a copy never has the final name. A good copy is reused, an
# old one replaced:
#
# `stage(src: Path, folder: Path) -> Path`

# %% id="imports"
import fcntl
import os
import shutil
import signal
from pathlib import Path


# %% tags=["solution-only"] id="good"
def is_good(src: Path, copy: Path) -> bool:
    """Tell whether a copy exists, is not a link, and has the size and the time of the source."""
    if copy.is_symlink() or not copy.is_file():
        return False
    one, other = src.stat(), copy.stat()
    return (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


# %% id="answer-a"
def stage(src: Path, folder: Path) -> Path:
    """A complete copy of `src` in `folder`, made now or by another job."""
    # --8<-- solution
    folder.mkdir(mode=0o700, exist_ok=True)
    copy = folder / src.name
    part = folder / f"{src.name}.part"
    with (folder / f".{src.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # waits; closing the file lets go, and so does dying
        if not is_good(src, copy):
            shutil.copy2(src, part)  # keeps the modification time
            os.replace(part, copy)
    return copy
    # --8<-- stub
    # raise NotImplementedError  # your code: about 12 lines; more functions above are welcome
    # --8<-- end


# %% id="check-a"
from exercises.checks import ex07_stage_a_dataset as check

verdict = check.stage(stage)
verdict

# %% [markdown] id="hints-a"
# <details>
# <summary>Hint 1: the order of steps</summary>
#
# Create the folder and take a lock. Check whether there is a good copy. If not, copy to another name in the same folder, and
# then rename the copy with `os.replace`. The second job waits for the lock, and then it finds the copy.
#
# </details>
#
# <details>
# <summary>Hint 2: a lock that dies with its owner</summary>
#
# Open a separate small file for writing and call `fcntl.flock(file, fcntl.LOCK_EX)`. The call waits until the lock is free.
# The lock becomes free when the file is closed, and also when the process dies. The small file may stay.
#
# </details>
#
# <details>
# <summary>Hint 3: what a killed job leaves</summary>
#
# After `kill -9` no handler runs. But if the temporary name is always the same, the next job overwrites what is left, while it
# has the lock. `shutil.copy2` keeps the modification time, so you can recognise a good copy.
#
# </details>

# %% [markdown] id="task-b"
# ## Task B: signals and links
#
# ★★★ · 20 minutes, optional. Make your function safe. After SIGTERM or a full disk (which raises `OSError`), nothing is left,
# and the previous handler is restored. Do not follow links that others created as `folder`, under the final name, or as your
# lock file:
#
# `stage_safely(src: Path, folder: Path) -> Path`

# %% tags=["solution-only"] id="aside"
def copy_aside(src: Path, copy: Path) -> None:
    """Copy under another name and rename; on SIGTERM too nothing is left."""
    part = copy.with_name(f"{copy.name}.part")
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        part.unlink(missing_ok=True)  # of a job that was killed; we hold the lock
        shutil.copy2(src, part)
        os.replace(part, copy)
    finally:
        part.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, before)


# %% id="answer-b"
def stage_safely(src: Path, folder: Path) -> Path:
    """As `stage`; whatever ends it leaves nothing, and no link leads it astray."""
    # --8<-- solution
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise FileExistsError(f"{folder} is a symbolic link, or the folder of another user")
    copy = folder / src.name
    lock = os.open(folder / f".{src.name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_good(src, copy):
            copy_aside(src, copy)
    finally:
        os.close(lock)
    return copy
    # --8<-- stub
    # raise NotImplementedError  # your code: stage, and about 8 lines more
    # --8<-- end


# %% id="check-b"
check.stage_safely(stage_safely)

# %% [markdown] id="hints-b"
# <details>
# <summary>Hint 1: what runs when</summary>
#
# `finally` runs after an exception, such as the `OSError` of a full disk. Remove the temporary file there. After SIGTERM,
# `finally` runs only if a handler turns the signal into an exception:
# `signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))`. This call returns the old handler, which you must restore.
#
# </details>
#
# <details>
# <summary>Hint 2: links</summary>
#
# `mkdir(exist_ok=True)` accepts a link to a folder. So check `folder.is_symlink()`, and raise an `OSError`. A link under the
# final name is not a good copy, and `os.replace` replaces the link, not its target. `open("w")` empties the file behind a
# link, so open the lock file with `os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)`. The folder may also belong
# to another user. The check cannot test this, but you can: compare `folder.stat().st_uid` with `os.getuid()`.
#
# </details>

# %% [markdown] id="use"
# ## With your function
#
# The first cell packs the images and finds a folder on this node. The second cell stages the file twice with your function,
# opens the copy, and removes everything again.

# %% id="place"
from smallfiles.pack import PackConfig, pack
from smallfiles.staging import placement

packed = setup.scratch / "train.arrow"
if not packed.exists():
    pack(setup.source(), packed, PackConfig(verify="none"))
candidates, _ = placement.candidates(placement.AUTO, packed)
roomy = [one.path for one in candidates if one.free_bytes > 2 * packed.stat().st_size + (512 << 20)]
place = roomy[0] if roomy else setup.scratch
show.say(f"Staged to: `{place}`.")

# %% id="read"
from time import perf_counter

from smallfiles import formats
from smallfiles.measure.scratch import memory_folder

if not verdict:
    show.say("Solve task A first; then this cell stages with your function.")
else:
    with memory_folder(packed.stat().st_size, place) as here:
        for number in ("first", "second"):
            began = perf_counter()
            copy = stage(packed, here / "mine")
            show.say(f"The {number} call took **{1000 * (perf_counter() - began):.1f} ms**.")
        reader = formats.open(copy)
        show.say(f"The copy holds {len(reader):,} images; the first has {reader.size(0):,} bytes.")
        reader.close()
