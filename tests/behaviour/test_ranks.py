"""Which rank a process is: each sample is read exactly once, or the program stops with a sentence."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from smallfiles.cli import main
from smallfiles.errors import UsageError
from smallfiles.loading import LoaderConfig, make_loader
from smallfiles.machine.ranks import ranks

RECORDED = Path(__file__).parents[1] / "machine" / "environments"
VARIABLES = re.compile(
    "SLURM|SRUN|RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|OMPI_|PMI|MV2_|PALS_|TORCHELASTIC|FLUX_|JSM_"
)
INHERITED = "slurm-22.05.8-inherited"
COUNT = 24


def recorded(name, section):
    text = (RECORDED / f"{name}.txt").read_text(encoding="utf-8")
    lines = re.search(rf"^\[{re.escape(section)}\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S)[1]
    return dict(line.split("=", 1) for line in lines.split())


def alone(**variables):
    """The environment of a process that nobody started, and some variables."""
    return {name: text for name, text in os.environ.items() if not VARIABLES.match(name)} | variables


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for name in ("ant", "bee"):
        (folder / "data" / name).mkdir(parents=True)
        for number in range(COUNT // 2):
            (folder / "data" / name / f"{number}.npy").write_bytes(b"\x93NUMPY\x01\x00\x46\x00" + HEADER)
    out = folder / "train.arrow"
    assert main(["pack", str(folder / "data"), str(out)]) == 0
    return out


HEADER = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }".ljust(69) + b"\n\x07"


@pytest.fixture
def no_launcher(monkeypatch):
    for name in [name for name in os.environ if VARIABLES.match(name)]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def group(no_launcher):
    """Initialises torch.distributed as one of several ranks, without the others."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def initialise(rank, world_size):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    yield initialise
    if dist.is_initialized():
        dist.destroy_process_group()


def run(code, env, *words, cwd):
    command = [*words, sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("name", "section", "expected"),
    [
        *((INHERITED, f"inner {n}", (n, 2)) for n in (1,)),
        (INHERITED, "salloc", (0, 1)),
        (INHERITED, "submitted", (0, 1)),
        *((INHERITED, f"below {n}", (n, 4)) for n in range(4)),
        *((INHERITED, f"both {n}", (n, 5)) for n in range(5)),
        *((INHERITED, f"one {n}", (n, 2)) for n in range(2)),
        *(("openmpi-4.1.4", f"mpirun {n}", (n, 2)) for n in range(2)),
    ],
)
def test_recorded_processes_know_their_rank(name, section, expected):
    place = ranks(recorded(name, section))
    assert (place.rank, place.world_size) == expected


STEP = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "4"}
TORCHRUN = BY_HAND | {
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "1",
    "TORCHELASTIC_RUN_ID": "7",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, (0, 1)),
        (STEP, (1, 4)),
        (BY_HAND, (1, 4)),
        (BY_HAND | STEP, (1, 4)),
        (OPEN_MPI, (3, 8)),
        (OPEN_MPI | STEP, (3, 8)),  # mpirun starts a daemon on each node by srun
        (OPEN_MPI | {"PMIX_RANK": "3"}, (3, 8)),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, (1, 2)),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}, (1, 2)),
        ({"JSM_NAMESPACE_RANK": "1", "JSM_NAMESPACE_SIZE": "2", "PMIX_RANK": "1"}, (1, 2)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, (5, 6)),
        ({"PMI_RANK": "5", "PMI_SIZE": "6"}, (5, 6)),
        (STEP | {"PMI_RANK": "1", "PMI_SIZE": "4"}, (1, 4)),  # srun --mpi=pmi2
        (STEP | {"PMIX_RANK": "1"}, (1, 4)),  # srun --mpi=pmix
        (STEP | {"WORLD_SIZE": "4"}, (1, 4)),
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, (0, 1)),
        (STEP | TORCHRUN | {"GROUP_WORLD_SIZE": "4", "RANK": "9", "WORLD_SIZE": "16"}, (9, 16)),
    ],
)  # fmt: skip
def test_launchers_are_asked_from_the_innermost_outwards(env, expected, recwarn):
    place = ranks(env)
    assert (place.rank, place.world_size) == expected and not recwarn


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK": "3"}, "RANK is '3', but WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is '4', but RANK is not set"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({"PMI_SIZE": "2"}, "PMI_RANK is not set"),
        ({"PMIX_RANK": "3"}, "rank 3, but not of how many"),
        ({"PALS_RANKID": "0"}, "rank 0, but not of how many"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"}, "SLURM_STEP_NUM_TASKS is not set"),
        (
            {"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_SIZE": "4"},
            "Open MPI says that this is rank 4 of 4",
        ),
        ({"PMI_RANK": "one", "PMI_SIZE": "4"}, "PMI_RANK is 'one'"),
        (
            STEP | {"RANK": "0", "WORLD_SIZE": "4"},
            "rank 0 of 4, but srun started this process as rank 1 of 4",
        ),
        (STEP | {"RANK": "0", "WORLD_SIZE": "1"}, "rank 0 of 1, but srun started"),
        (OPEN_MPI | {"RANK": "0", "WORLD_SIZE": "2"}, "rank 0 of 2, but Open MPI started"),
    ],
)
def test_incomplete_or_contradictory_variables_are_refused(env, message):
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        ranks(env)
    assert "--rank and --world-size" in str(caught.value) or "unset" in str(caught.value)


def test_a_torchrun_that_does_not_know_the_other_tasks_is_reported():
    with pytest.warns(UserWarning, match="rank 1 of 4, but srun started this process as rank 1 of 8"):
        assert ranks(STEP | {"SLURM_STEP_NUM_TASKS": "8"} | TORCHRUN).world_size == 4


def test_the_cure_for_contradictory_variables_works(packed, no_launcher, capsys, tmp_path):
    no_launcher.setenv("RANK", "3")
    command = ["epoch", str(packed), str(tmp_path / "seen"), "--json", "--workers", "0"]
    assert main(command) == 2
    assert main([*command, "--rank", "1", "--world-size", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rank"], found["world_size"], found["samples"]) == (1, 4, COUNT // 4)
    no_launcher.delenv("RANK")
    assert main(["epoch", str(packed), str(tmp_path / "all"), "--json", "--workers", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == COUNT


SHELL = """
    import sys
    from smallfiles.machine.ranks import ranks
    print(ranks().rank, ranks().world_size)
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["bash", "-c", 'SLURM_TASK_PID=$$ exec "$@"', "task"],
            "0 2",
        ),  # srun --pty python, or inside the shell
        (["bash", "-c", 'export SLURM_TASK_PID=$$; "$@"; true', "task"], "0 2"),  # srun --pty bash job.sh
        # An interactive shell starts each command in a process group of its own.
        (["bash", "-c", 'export SLURM_TASK_PID=$$; setsid --wait "$@"; true', "task"], "0 1"),
    ],
)
def test_only_a_program_typed_into_an_interactive_step_is_alone(words, expected, tmp_path):
    done = run(SHELL, alone(**recorded(INHERITED, "shell")), "setsid", "--wait", *words, cwd=tmp_path)
    assert done.stdout.strip() == expected, done.stderr
    assert ("interactive shell of a step of 2 tasks" in done.stderr) == (expected == "0 1")


def test_a_typed_program_reads_all_samples_and_says_why(packed, tmp_path):
    command = [sys.executable, "-m", "smallfiles", "epoch", str(packed), str(tmp_path / "seen"), "--json"]
    env = alone(**recorded(INHERITED, "shell"))
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["samples"] == COUNT and "note: this program was started" in done.stderr


ONE_PER_NODE = {
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
}

SPAWNED = """
    import json, os, sys
    import torch.distributed as dist, torch.multiprocessing as mp
    from smallfiles.loading import LoaderConfig, make_loader
    from smallfiles.training.group import joined

    def numbers(**settings):
        loader = make_loader("{packed}", LoaderConfig(batch=4, **settings))
        return [number for batch in loader for number in batch["index"].tolist()]

    def main(rank):
        meet = "file://" + os.path.abspath("meet")
        dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
        ways = [dict(mode="main", order=order) for order in ("random", "stream")]
        ways += [dict(mode="processes", workers=1, start_method=how) for how in ("fork", "spawn")]
        with joined() as group:
            total = group.total(1)
        found = [numbers(**each) for each in ways] + [total, dist.is_initialized()]
        json.dump(found, open("found%d" % rank, "w"))
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(main, nprocs=2)
"""


def test_spawned_ranks_of_a_process_group_share_the_samples(packed, tmp_path):
    program = tmp_path / "spawned.py"
    program.write_text(textwrap.dedent(SPAWNED.replace("{packed}", str(packed))), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, program], env=alone(), cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = (json.loads((tmp_path / f"found{rank}").read_text()) for rank in range(2))
    for one, other in zip(ours[:4], theirs[:4], strict=True):
        assert len(one) == len(other) == COUNT // 2 and sorted(one + other) == [*range(COUNT)]
    assert ours[4:] == theirs[4:] == [[2.0], True]


def test_a_loader_made_before_the_process_group_is_refused(packed, group):
    early = make_loader(packed, LoaderConfig(mode="main"))
    given = make_loader(packed, LoaderConfig(mode="main", rank=0, world_size=1))
    group(1, 2)
    with pytest.raises(UsageError, match=r"made for rank 0 of 1.*rank 1 of 2.*before make_loader"):
        next(iter(early))
    assert sum(len(batch["index"]) for batch in given) == COUNT
    assert sum(len(batch["index"]) for batch in make_loader(packed, LoaderConfig(mode="main"))) == COUNT // 2


@pytest.mark.parametrize(
    ("env", "place", "local"),
    [
        ({}, (1, 2), (1, 2)),
        (BY_HAND, (1, 4), (1, 4)),
        (STEP | ONE_PER_NODE, (6, 16), (2, 4)),  # each task of srun spawned four
    ],
)
def test_a_process_group_is_asked_first(env, place, local, group, no_launcher, recwarn):
    for name, text in env.items():
        no_launcher.setenv(name, text)
    group(*place)
    found = ranks()
    assert (found.rank, found.world_size) == place
    assert (found.local_rank, found.local_world_size) == local and not recwarn


def test_a_process_group_that_the_launcher_contradicts(group, no_launcher, packed):
    for name, text in BY_HAND.items():
        no_launcher.setenv(name, text)
    group(1, 2)
    with pytest.raises(
        UsageError, match=r"rank 1 of 2, but torchrun started 4 processes.*rank and world_size"
    ):
        make_loader(packed)
    assert len(make_loader(packed, LoaderConfig(batch=1, rank=0, world_size=2))) == COUNT // 2


def test_a_process_group_with_another_order_of_ranks_is_reported(group, no_launcher):
    for name, text in BY_HAND.items():
        no_launcher.setenv(name, text)
    group(3, 4)
    with pytest.warns(UserWarning, match="uses the numbers of torch.distributed"):
        assert (ranks().rank, ranks().world_size) == (3, 4)


def test_asking_for_the_rank_does_not_import_torch(tmp_path):
    code = "import sys, smallfiles.machine.ranks as r; r.ranks(); print('torch' in sys.modules)"
    assert run(code, alone(), cwd=tmp_path).stdout.strip() == "False"
