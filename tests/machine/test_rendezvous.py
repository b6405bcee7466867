"""Where ranks meet, from recorded environments."""

import pytest

from smallfiles.errors import UsageError
from smallfiles.machine.rendezvous import first_node, rendezvous


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


def test_torchrun_has_the_last_word():
    told = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert rendezvous(told) == ("10.0.0.1", 29500)


def test_all_ranks_of_a_step_find_the_same_and_other_jobs_another():
    job = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    address, port = rendezvous(job)
    assert address == "n1" and rendezvous(job | {"SLURM_PROCID": "3"}) == (address, port)
    assert len({rendezvous(job | {"SLURM_JOB_ID": str(n)})[1] for n in range(4000, 4100)}) == 100
    assert 20_000 <= port < 32_000


def test_a_step_on_some_of_the_nodes_meets_on_its_own_first():
    assert rendezvous({"SLURM_STEP_NODELIST": "n2", "SLURM_JOB_NODELIST": "n[1-2]"})[0] == "n2"
