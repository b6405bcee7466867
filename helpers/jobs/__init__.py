"""Job scripts: find them, check everything before they are sent, send them.

The trap: a job that waits an hour in the queue and then fails because `logs/` or an account is missing.
So `submit` checks all of it first, reports each problem in a sentence, and shows the exact command.
Notebook 10 teaches it; `slurm/submit` is its short form.
"""

from helpers.jobs.script import Argument, Job, find, names
from helpers.jobs.site import Site, load
from helpers.jobs.submission import Submission, outputs, plan, send

__all__ = ["Argument", "Job", "Site", "Submission", "find", "load", "names", "outputs", "plan", "send"]
