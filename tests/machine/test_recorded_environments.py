"""One code path for Slurm 22.05, Slurm 24.11, torchrun and a laptop, from environments recorded there.

What changed between the versions, by their release notes: 22.05, "srun will no longer read in
SLURM_CPUS_PER_TASK", but the new SRUN_CPUS_PER_TASK; 23.11, "Replace SRUN_CPUS_PER_TASK with
SLURM_CPUS_PER_TASK and get back to the behavior before Slurm 22.05", and "Requesting --cpus-per-task will now
set SLURM_TRES_PER_TASK".
"""

import os
import re
from pathlib import Path

import pytest

from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig, default_workers, place
from smallfiles.machine.ranks import Ranks, first_node, ranks, rendezvous

FOLDER = Path(__file__).parent / "environments"
SLURMS = ("slurm-22.05.8", "slurm-24.11.5")
LAUNCHERS = ("SLURM", "SRUN", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_")


def recorded(name):
    """The environments of a file by section; those of tasks with what they share with the script."""
    text = "\n".join(line for line in (FOLDER / f"{name}.txt").read_text().splitlines() if line[:1] != "#")
    parts = re.split(r"^\[(.+)\]$", text, flags=re.M)[1:]
    told = {
        section: dict(line.split("=", 1) for line in lines.split())
        for section, lines in zip(parts[::2], parts[1::2], strict=True)
    }
    return {section: {**told.get("script", {}), **own} for section, own in told.items()}


def tasks(name, how):
    return [env for section, env in recorded(name).items() if section.startswith(f"{how} ")]


@pytest.fixture
def here(monkeypatch):
    """Makes this process one of the recorded ones, with so many CPUs of so many."""

    def become(env, usable, present):
        for name in [key for key in os.environ if key.startswith(LAUNCHERS)]:
            monkeypatch.delenv(name)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("smallfiles.machine.usable_cpus", lambda: usable)
        monkeypatch.setattr(os, "cpu_count", lambda: present)

    return become


@pytest.mark.parametrize("name", SLURMS)
def test_seven_ranks_on_five_nodes_know_their_places(name):
    places = [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2), (2, 0, 1), (3, 0, 1), (4, 0, 1)]
    expected = [
        Ranks(rank, 7, local, many, node, 5, "slurm") for rank, (node, local, many) in enumerate(places)
    ]
    for how in ("srun", "bare"):  # options of srun change no place
        assert [ranks(env) for env in tasks(name, how)] == expected
    assert ranks(recorded(name)["script"]) == Ranks()  # one process, though it sees seven tasks


@pytest.mark.parametrize("name", SLURMS)
def test_a_step_on_a_part_of_the_job_is_a_world_of_its_own(name):
    told = [ranks(env) for env in tasks(name, "part")]
    assert [(each.rank, each.world_size, each.nodes) for each in told] == [(n, 3, 2) for n in range(3)]
    assert [(each.node, each.local_rank, each.local_world_size) for each in told] == [
        (0, 0, 2), (0, 1, 2), (1, 0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("name", SLURMS)
def test_all_ranks_of_a_step_meet_on_its_first_node(name):
    for how in ("srun", "bare", "part"):
        (where,) = {rendezvous(env) for env in tasks(name, how)}
        assert where[0] == tasks(name, how)[0]["SLURMD_NODENAME"] == "gpu-2"
    steps = {rendezvous(tasks(name, how)[0])[1] for how in ("srun", "bare", "part")}
    assert len(steps) == 3  # steps of one job may run beside each other


@pytest.mark.parametrize("name", SLURMS)
@pytest.mark.parametrize(
    ("usable", "workers"),
    [
        pytest.param(2, 2, id="bound to the CPUs of the task"),
        pytest.param(4, 2, id="a node that binds nothing"),
        pytest.param(1, 1, id="bound to one, as 22.05 does without --cpus-per-task"),
    ],
)
def test_workers_are_as_many_as_the_task_has_cpus(name, usable, workers, here):
    for how in ("srun", "bare"):
        for env in tasks(name, how):
            here(env, usable, 4)
            assert default_workers(place(LoaderConfig())) == workers


@pytest.mark.parametrize("name", SLURMS)
def test_torchrun_takes_the_same_path_and_has_the_last_word_inside_a_job(name, here):
    told = tasks("torchrun-2.15.0", "torchrun")
    for around in ({}, tasks(name, "bare")[2]):
        assert [ranks(around | env) for env in told] == [
            Ranks(rank, 4, rank % 2, 2, rank // 2, 2, "torchrun") for rank in range(4)
        ]
        assert {rendezvous(around | env) for env in told} == {("127.0.0.1", 29571)}
    here(told[3], 4, 4)
    assert default_workers(place(LoaderConfig())) == 2  # two ranks share the CPUs of their node
    assert place(LoaderConfig(rank=0, world_size=1)) == Ranks()  # what is given counts


@pytest.mark.parametrize(
    ("text", "told"), [*((text, "RANK") for text in ("two", "-1", "1.5", "²")), ("4", "rank 4 of 4")]
)
def test_a_rank_that_is_no_number_or_beyond_the_world_is_named(text, told):
    with pytest.raises(UsageError, match=told):
        ranks({"RANK": text, "WORLD_SIZE": "4"})


def test_a_laptop_takes_the_same_path(here):
    here({}, 8, 8)
    assert place(LoaderConfig()) == Ranks() and default_workers(Ranks()) == 8
    assert rendezvous({})[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n[1-2]", "n1"),
        ("n[01-03,7],gpu2", "n01"),
        ("jwb[0021,0033-0040]", "jwb0021"),
        ("nid[001234-001240]", "nid001234"),
        ("rack1-node[5,9]-ib", "rack1-node5-ib"),
        ("login.cluster.example,n2", "login.cluster.example"),
    ],
)
def test_the_first_node_of_a_list(nodes, first):
    assert first_node(nodes) == first


@pytest.mark.parametrize("nodes", ["[", "(null)", ",", "n["])
def test_what_is_no_list_is_refused(nodes):
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        first_node(nodes)


def test_all_ranks_of_a_step_find_the_same_and_other_jobs_another():
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    address, port = rendezvous(job)
    assert address == "n1" and rendezvous(job | {"SLURM_PROCID": "3"}) == (address, port)
    assert len({rendezvous(job | {"SLURM_JOB_ID": str(n)})[1] for n in range(4000, 4100)}) == 100
    assert 20_000 <= port < 32_000
    assert rendezvous(job | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}) == ("10.0.0.1", 29500)
