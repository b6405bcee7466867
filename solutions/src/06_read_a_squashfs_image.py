# %% [markdown] id="top"
# # Exercise 06 · Cure a reader that returns wrong samples
#
# ★★☆ · 30 minutes · after [notebook 06](../notebooks/06_read_a_squashfs_image.ipynb)
#
# A read from a parallel file system mostly waits. So a colleague lets each worker read with four threads, from one
# large squashfs file. Since then the accuracy is lower, and there is no error. Exercise 04 cured a reader that forked
# workers shared; this one has that cure already.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex06")

# %% [markdown] id="look"
# ## Look at the reader
#
# `places` holds the first byte and the size of each sample in the file.

# %% id="pack"
from smallfiles import formats
from smallfiles.pack import PackConfig, pack

path = setup.scratch / "train.sqfs"
path.unlink(missing_ok=True)
packed = pack(setup.source(), path, PackConfig(verify="none"))
with formats.open(path) as reader:
    spans = [reader.span(index) for index in range(len(reader))]
    truth = [bytes(reader.read(index)) for index in range(len(reader))]
places = [(start, stop - start) for _, start, stop in spans]


# %% id="buggy"
import os


class Colleague:
    def __init__(self, path, places):
        self.path, self.places = path, places
        self.process = None

    def __getitem__(self, index):
        if self.process != os.getpid():  # the first read of this process
            self.file, self.process = open(self.path, "rb"), os.getpid()
        start, size = self.places[index]
        self.file.seek(start)
        return self.file.read(size)


# %% id="symptom"
from exercises.checks.ex06_read_a_squashfs_image import count_wrong

read = Colleague(path, places).__getitem__
alone = sum(read(index) != truth[index] for index in range(len(truth)))
show.say(f"One after the other, {alone} of {len(truth)} samples are wrong.")
show.say(count_wrong(read, truth).summary("In two forked workers"))
show.say(count_wrong(read, truth, threads=True).summary("In four threads"))

# %% [markdown] id="task"
# ## Task
#
# Write a reader that is right in threads that read at once, in forked workers, also if the parent has read before, and
# after pickling, as for spawned workers. Open the file once per process, for all threads, and never hold all
# of it. Eight to fifteen lines:
#
# `Reader(path: Path, places: list[tuple[int, int]])`, `reader[index: int] -> bytes`

# %% id="answer"
class Reader:
    """Samples of one file, right in every process and thread."""

    # --8<-- solution
    def __init__(self, path, places):
        self.path, self.places = path, places
        self.opened = (0, -1)  # process, descriptor

    def __getitem__(self, index):
        start, size = self.places[index]
        if self.opened[0] != os.getpid():
            self.opened = (os.getpid(), os.open(self.path, os.O_RDONLY))
        return os.pread(self.opened[1], size, start)

    def __getstate__(self):
        return {**self.__dict__, "opened": (0, -1)}

    # --8<-- stub
    # def __init__(self, path, places):
    #     raise NotImplementedError  # your code: remember what is needed, open nothing yet
    #
    # def __getitem__(self, index):
    #     raise NotImplementedError  # your code: which process am I in, and where are the bytes?
    #
    # def __getstate__(self):
    #     raise NotImplementedError  # your code: what may travel to another process?
    # --8<-- end


# %% id="check"
from exercises.checks import ex06_read_a_squashfs_image as check

solved = check.reader(Reader)
solved

# %% [markdown] id="hints"
# <details>
# <summary>Hint 1: what is shared</summary>
#
# An open file has one offset. All threads of a process use it, and so does a forked worker that inherits the file. A
# spawned worker gets only what can be pickled, and none of the parent's open files.
#
# </details>
#
# <details>
# <summary>Hint 2: a lock, or a file for each thread?</summary>
#
# Both are right, and both cost: behind a lock only one thread reads; a file for each thread is an open for each. A read
# without an offset needs neither: `os.pread(descriptor, size, start)`. The number of bytes comes first.
#
# </details>
#
# <details>
# <summary>Hint 3: once per process</summary>
#
# Keep the number of the process that opened the file (`os.getpid()`) with the descriptor. `__getstate__` returns what
# is pickled: all but the descriptor.
#
# </details>

# %% [markdown] id="use"
# ## With your reader
#
# The same workers and threads read again, with your reader.

# %% id="cured"
if not solved:
    show.say("Solve the task first; then this cell reads with your reader.")
else:
    mine = Reader(path, places)
    show.say(count_wrong(mine.__getitem__, truth).summary("In two forked workers, with your reader"))
    show.say(count_wrong(mine.__getitem__, truth, threads=True).summary("In four threads, with your reader"))
