"""Copy a packed output to storage of this node: once per node, verified, reused, cleaned up.

    copy = staging.stage("train.arrow")          # other ranks wait and use the same copy
    reader = formats.open(copy.path)             # removed when the last process that uses it ends
    with staging.staged("val.arrow") as copy: …  # or at the end of a block

A job script uses the command line; its copy belongs to the job:

    staged=$(smallfiles stage train.arrow)
    trap 'smallfiles unstage "$staged"' EXIT

The trap: inside `$(…)` that `trap` fires at the end of the subshell, before the data is used.
Notebook 07 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.staging.broadcast import stage_broadcast as stage_broadcast
    from smallfiles.staging.config import StageConfig as StageConfig
    from smallfiles.staging.config import Staged as Staged
    from smallfiles.staging.run import listing as listing
    from smallfiles.staging.run import stage as stage
    from smallfiles.staging.run import stage_for_job as stage_for_job
    from smallfiles.staging.run import staged as staged
    from smallfiles.staging.run import sweep_all as sweep_all
    from smallfiles.staging.run import unstage as unstage
    from smallfiles.staging.run import unstage_all as unstage_all
    from smallfiles.staging.transfer import stage_to as stage_to

__getattr__ = lazy.names(__name__)
