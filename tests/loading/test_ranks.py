"""Which process this is, from what torchrun and SLURM write into the environment."""

import pytest

from smallfiles.errors import UsageError
from smallfiles.machine.ranks import Ranks, ranks

SBATCH = {"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "2"}
STEP = SBATCH | {
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "4,3",
}
TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
}


def test_a_process_without_launcher_is_alone():
    assert ranks({}) == Ranks(0, 1, 0, 1, 0, 1, "alone")


def test_torchrun_is_believed_first():
    assert ranks(STEP | TORCHRUN) == Ranks(5, 8, 1, 4, 1, 2, "torchrun")


def test_a_launcher_in_the_manner_of_torchrun_may_leave_things_out():
    assert ranks({"RANK": "3", "WORLD_SIZE": "4"}) == Ranks(3, 4, 3, 4, 0, 1, "torchrun")


def test_a_step_of_slurm_counts_and_not_its_job():
    assert ranks(STEP) == Ranks(6, 7, 2, 3, 1, 2, "slurm")


def test_the_script_of_sbatch_is_one_process_though_it_sees_eight_tasks():
    assert ranks(SBATCH) == Ranks()


def test_tasks_a_node_may_be_told_in_short():
    env = STEP | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}
    assert ranks(env).local_world_size == 2


def test_unreadable_tasks_a_node_are_worked_out():
    assert ranks(STEP | {"SLURM_STEP_TASKS_PER_NODE": "four"}).local_world_size == 4


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "²"])
def test_a_word_where_a_number_should_be_is_named(text):
    with pytest.raises(UsageError, match="RANK"):
        ranks(TORCHRUN | {"RANK": text})


def test_a_rank_beyond_the_world_is_refused():
    with pytest.raises(UsageError, match="rank 8 of 8"):
        ranks(TORCHRUN | {"RANK": "8"})
    with pytest.raises(UsageError, match="slurm says that this is rank 7 of 7"):
        ranks(STEP | {"SLURM_PROCID": "7"})
