"""What each known mistake is told: why it hurts other jobs of the node, and what to write instead.

The trap: "your copy is wrong" helps nobody; most of these copies are right, and wrong only at the
moment when another job looks. Exercise 07.
"""

from __future__ import annotations

NO_FOLDER = "`folder` need not be there: make it with folder.mkdir(mode=0o700, exist_ok=True)"
OTHER_NAME = "the copy is `folder / src.name`, so that whoever knows the two finds it"
LINK_MADE = "a link is no copy: each read still goes to the slow storage"
OPEN_FOLDER = (
    "in /dev/shm everybody may look: make the folder with mode=0o700, or others read the data, or put "
    "their own in its place"
)
HANDLER_LEFT = (
    "after your function, SIGTERM still calls your handler, in a program that is not yours; "
    "signal.signal returns the one before: put that back in `finally`"
)
LEFT_BESIDE = "a temporary file stays behind; it takes memory from the job, so rename it or remove it"
COPIED_AGAIN = (
    "a good copy was there, of the same size and modification time as the source, and you copied it "
    "again; then each job of the node copies (shutil.copy2 keeps the time, shutil.copyfile does not)"
)
DELETES = "copies of other jobs lie in the folder and are in use; remove only the file that you made"
OLD_COPY = (
    "the source was replaced by another file of this name, and you gave out the old copy: that the name "
    "exists says little, so compare size and modification time (st_mtime_ns) with the source"
)
OVERWRITTEN = (
    "a job still had the old copy open, and you wrote over it: its batches change while it reads. "
    "Write to another name, then os.replace: who has the old file open keeps it"
)
HALF_REUSED = (
    "half a copy lay under the final name, left by a job that died, and you gave it out: that the name "
    "exists does not say that the copy is complete, so compare its size with the source"
)
FOLLOWED = (
    "somebody planted a symbolic link under the name, and you went after it: look with lstat (or "
    "is_symlink), write to a name of your own and os.replace, which replaces the link itself"
)
FOLDER_FOLLOWED = (
    "`folder` was a symbolic link, planted by somebody who wants your data elsewhere; "
    "mkdir(exist_ok=True) is content with it, so look with folder.is_symlink() and raise OSError"
)
FULL_IGNORED = "the disk was full, and you gave out a path all the same; let the OSError through"
FULL_HALF = (
    "the disk was full, and half a copy stayed under the final name, where the next job takes it for a "
    "copy; write to another name, and rename when it is complete"
)
FULL_PART = (
    "the disk was full, and the temporary file stayed: it keeps the disk full. Remove it in `finally`, "
    "which also runs when an exception passes"
)

FINAL_NAME = (
    "half a copy lies under the final name while you copy, and any other job takes it for a copy; write to "
    "another name in the same folder, then os.replace, which is one step"
)
GIVEN_HALF = (
    "the second job found the name and gave it out while the first was still copying: to look whether "
    "something exists, and to act on it, are two steps. Take a lock (fcntl.flock) before you look"
)
SHARED_NAME = (
    "two jobs came into each other's way: both write to one temporary name, or one removes what the other "
    "is writing. Hold a lock (fcntl.flock) while you copy, or use a name of your own (tempfile, os.getpid)"
)
REFUSED = "the second job failed because the first was copying; it should wait, or copy for itself"
STUCK = "when the first job had finished, the second still waited; let go of the lock when you are done"
TERM_PART = (
    "SIGTERM ends a Python process at once, and no `finally` runs; a handler that raises makes it run: "
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"
)
TERM_HALF = (
    "SIGTERM came while you wrote under the final name, and half a copy stays there; write to another name, "
    "and remove that when the signal comes"
)
TERM_IGNORED = (
    "SIGTERM was ignored and the copy went on; some seconds later SIGKILL comes, and then nothing can be "
    "cleaned up. Clean up and end, with a code other than 0"
)
KILL_STUCK = (
    "after kill -9 of the first job the next one waits for ever: a lock *file* stays when its owner "
    "dies. The kernel lets go of fcntl.flock by itself"
)
KILL_LEFT = (
    "what a killed job had copied stays for ever, and a new name each time fills the memory; under a "
    "lock, one fixed temporary name is enough, and the next job removes or overwrites it"
)

NO_RETURN = (
    "it waits for ever, or it calls os._exit; a function that stages returns a path, or raises OSError"
)
FULL_OTHER = "let the OSError of the copy through, or raise one; the job must know why"
NOTHING = "you gave out a path where nothing is; the copy must stay when your function returns"
