"""Nodes that are played on one machine: places, counts, scaling, stopping, and where a job is sent."""

import dataclasses

import pytest

from helpers.experiments import nb10 as nodes
from helpers.experiments.nb10 import environments, reading, submitting, work
from helpers.experiments.nb10.scaling import OWN, SHARED
from helpers.figures import nodes as draw
from smallfiles.errors import ResourceError
from smallfiles.machine.ranks import ranks
from smallfiles.pack import PackConfig, pack
from smallfiles.slowfs import SlowConfig
from smallfiles.sources import load
from smallfiles.sources.synthetic import make

SAMPLES = 240


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    place = tmp_path_factory.mktemp("packed")
    make(place / "data", "folder", count=SAMPLES, size=(64, 48))
    return pack(load(place / "data"), place / "train.arrow", PackConfig(verify="none")).path


@pytest.fixture(scope="module")
def pool():
    running = nodes.WorkerPool(4)
    yield running
    running.close()
    assert not any(process.is_alive() for process in running._processes)


class TestEnvironments:
    def test_srun_and_torchrun_tell_the_same_places_and_the_script_is_alone(self):
        for rank in range(6):
            by_srun = ranks(environments.srun(rank, nodes=2, per_node=3))
            by_torchrun = ranks(environments.torchrun(rank, nodes=2, per_node=3))
            assert dataclasses.replace(by_srun, source="alone") == dataclasses.replace(
                by_torchrun, source="alone"
            )
            assert (by_srun.rank, by_srun.node, by_srun.local_rank) == (rank, rank // 3, rank % 3)
        assert ranks(environments.script()) == ranks({})

    def test_who_becomes_another_forgets_the_job_around(self, monkeypatch):
        monkeypatch.setenv("SLURM_PROCID", "7")
        monkeypatch.setenv("MASTER_ADDR", "far")
        before = dict(environments.os.environ)
        environments.become({"RANK": "1"})
        after = {name: environments.os.environ.get(name) for name in ("SLURM_PROCID", "MASTER_ADDR", "RANK")}
        environments.os.environ.clear()
        environments.os.environ.update(before)
        assert after == {"SLURM_PROCID": None, "MASTER_ADDR": None, "RANK": "1"}

    def test_the_table_tells_the_script_from_its_tasks(self):
        lines = environments.table({"script": environments.script(), "task": environments.srun(3)})
        rows = {line.split("  ")[0]: line.split()[-2:] for line in lines.splitlines() if line}
        assert rows["SLURM_NTASKS"] == ["4", "4"] and rows["rank"] == ["0", "3"] and rows["of"] == ["1", "4"]


class TestReading:
    def test_only_the_right_way_reads_each_sample_once(self, pool, packed):
        found = {each.way: each for each in nodes.compare_ways(pool, packed, SAMPLES)}
        assert found[reading.SRUN].exact and found[reading.SRUN].nodes == 2
        assert found[reading.LOCAL].times == {0: SAMPLES // 2, 2: SAMPLES // 2}
        assert found[reading.SCRIPT].summary == f"{SAMPLES} four times"
        all_ways = tuple(found.values())
        assert "4 ranks on 2 nodes" in reading.finding(all_ways)
        assert reading.LOCAL in reading.alt_text(all_ways)
        assert draw.readings(all_ways).get_axes()

    def test_a_lost_sample_is_said_in_the_title(self, pool, packed):
        right, *others = nodes.compare_ways(pool, packed, SAMPLES)
        cut = dataclasses.replace(right, shares=right.shares[:3])
        assert "did not read" in reading.finding((cut, *others)) and "60 never" in cut.summary

    def test_a_rank_that_is_bound_to_one_cpu_sees_one(self, pool, packed):
        (share,) = pool.run(work.read, [environments.srun(0)], path=str(packed), bound_to=1)
        assert share.cpus == 1
        (after,) = pool.run(work.read, [environments.srun(0)], path=str(packed))
        assert after.cpus >= 1 and after.place.world_size == 4

    def test_one_cpu_is_told_with_its_price_or_as_unclear(self):
        clear = reading.OneCpu({2: (1.0, 1.01, 1.02), 1: (2.0, 2.01, 2.02)}, {2: 2, 1: 1})
        unclear = reading.OneCpu({2: (1.0, 2.0, 3.0), 1: (0.9, 2.1, 2.9)}, {2: 2, 1: 1})
        assert "2.0 times" in clear.finding and "No clear effect" in unclear.finding
        assert "one CPU" in reading.OneCpu({1: (1.0,)}, {1: 1}).finding


class TestCrew:
    def test_a_rank_that_fails_is_told_and_the_crew_works_on(self, pool, packed):
        with pytest.raises(ResourceError, match=r"gone\.arrow"):
            pool.run(work.read, [environments.srun(0)], path="gone.arrow")
        assert pool.run(work.read, [environments.srun(0)], path=str(packed))

    def test_more_ranks_than_processes_are_refused(self, pool):
        with pytest.raises(ResourceError, match="5 ranks are wanted"):
            pool.run(work.default_workers_here, [environments.srun(0)] * 5)


def test_scaling_is_measured_on_both_storages_and_drawn(pool, packed):
    found = nodes.measure_scaling(pool, packed, SlowConfig(latency_s=0, bandwidth_bytes_s=1e6), rounds=1)
    assert set(found.runs) == {SHARED, OWN} and set(found.runs[OWN]) == {1, 2, 4}
    assert found.efficiency(OWN, 1) == 1.0 and "2 ranks reach" in found.summary(2)
    assert "worth" in found.finding or not found.storage
    assert found.finding in found.alt_text and draw.scaling(found).get_axes()


def test_a_stopped_training_goes_on_to_the_loss_of_one_that_was_not(pool, packed, tmp_path):
    found = nodes.measure_stop(pool, packed, tmp_path, epochs=3)
    assert found.first.interrupted and not found.second.interrupted and found.second.resumed_at is not None
    assert found.second.resumed_at > (1, 0)
    assert found.second.epochs[-1].loss == pytest.approx(found.whole.epochs[-1].loss, abs=1e-5)
    assert len(found.summary) == 3


class TestSubmitting:
    def test_without_slurm_the_reason_is_told_and_the_command(self, packed, monkeypatch, tmp_path):
        monkeypatch.setattr(submitting.os, "environ", {"PATH": str(tmp_path)})
        sent = nodes.read_on_cluster(packed)
        assert (
            "no `sbatch`" in sent.summary and sent.command == "slurm/submit SITE 10_read -- train.arrow seen"
        )

    def test_a_site_that_is_named_is_taken_and_a_wrong_one_is_told(self, packed, monkeypatch):
        monkeypatch.setenv("COURSE_SITE", "nowhere")
        assert nodes.site_here() == ("nowhere", "")
        assert "no site 'nowhere'" in nodes.read_on_cluster(packed).summary

    def test_a_local_cluster_that_is_down_is_no_site(self, tmp_path):
        sbatch = tmp_path / "sbatch"
        sbatch.write_text("#!/bin/sh\n")
        sbatch.chmod(0o755)
        told = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "SMALLFILES_CLUSTER": str(tmp_path / "cluster"),
        }
        assert "local cluster" in nodes.site_here(told)[1]
        (tmp_path / "cluster").mkdir()
        (tmp_path / "cluster" / "slurm.conf").touch()
        assert nodes.site_here(told) == ("local", "")

    def test_what_a_job_came_to_is_said(self):
        def summary(state, **more):
            return submitting.Submitted("x", "", "7", state, **more).summary

        assert "ended as FAILED" in summary("FAILED") and "cancelled" in summary("PENDING")
        assert summary("COMPLETED", count="all") == "Job 7 ended well: all."
