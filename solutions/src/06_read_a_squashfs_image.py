# %% [markdown] id="top"
# # Exercise 06 · Fix a reader that returns wrong samples
#
# ★★☆ · 30 minutes · after [notebook 06](../notebooks/06_read_a_squashfs_image.ipynb)
#
# A read from a parallel file system mostly waits. So a colleague lets four threads in each worker read from one large
# squashfs file. Samples that cannot be decoded are skipped. Since then, the accuracy of the training is lower. In exercise
# 04 you fixed a reader that forked workers shared. This reader contains that fix already, and it is still wrong.

# %% id="start"
import sys

sys.path.append("..")
from helpers import show, start

setup = start("ex06")

# %% [markdown] id="look"
# ## Look at the reader
#
# `places` contains the position of the first byte and the size of each sample.

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
# Write a reader that is correct in concurrent threads, in forked workers, and after pickling. All threads share one open
# file. Never read the whole file into memory. If a read returns too few bytes, read the rest. If the file ends,
# raise an error:
#
# `Reader(path: Path, places: list[tuple[int, int]])`, `reader[index: int] -> bytes`

# %% id="answer"
class Reader:
    """Samples of one file, right in every process and thread."""

    # --8<-- solution
    def __init__(self, path, places):
        self.path, self.places = path, places
        self.file = open(path, "rb")  # workers and threads may share it: nobody moves its position

    def __getitem__(self, index):
        start, size = self.places[index]
        parts = []
        while size:
            part = os.pread(self.file.fileno(), size, start)
            if not part:
                raise EOFError(f"{self.path} ends at byte {start}")
            parts.append(part)
            start, size = start + len(part), size - len(part)
        return b"".join(parts)

    def __reduce__(self):
        return type(self), (self.path, self.places)  # a spawned worker opens the file itself

    # --8<-- stub
    # def __init__(self, path, places):
    #     raise NotImplementedError  # your code: remember what is needed
    #
    # def __getitem__(self, index):
    #     raise NotImplementedError  # your code: where are the bytes, and have all of them come?
    #
    # def __reduce__(self):
    #     raise NotImplementedError  # your code: return the class and its arguments
    # --8<-- end


# %% id="check"
from exercises.checks import ex06_read_a_squashfs_image as check

solved = check.reader(Reader)
solved

# %% [markdown] id="hints"
# <details>
# <summary>Hint 1: what is shared</summary>
#
# An open file has one file position. All threads of a process share it, and so do forked workers that inherit the file. A
# spawned worker gets only objects that can be pickled, and an open file cannot be pickled.
#
# </details>
#
# <details>
# <summary>Hint 2: a lock, or a file for each thread?</summary>
#
# Both are correct, and both have a cost. With a lock, only one thread reads at a time. With a file for each thread, each thread
# must open it. A read that does not use the file position needs neither: `os.pread(descriptor, size, start)`, where the number
# of bytes comes first. Then even forked workers may share the open file, and you do not need `os.getpid()`. The descriptor
# is `file.fileno()`.
#
# </details>
#
# <details>
# <summary>Hint 3: pickling, and short reads</summary>
#
# `__reduce__` returns `(type(self), (self.path, self.places))`. The other process then makes a new reader, which opens the
# file itself. For short reads, write a loop `while size:`. Add the length of each part to `start`, and subtract it from
# `size`. If a part is empty, the file has ended.
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
    forked = count_wrong(mine.__getitem__, truth)
    show.say(forked.summary("In two forked workers, with your reader"))
    threads = count_wrong(mine.__getitem__, truth, threads=True)
    show.say(threads.summary("In four threads, with your reader"))
