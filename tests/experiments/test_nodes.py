"""Nodes that are played on one machine: places, ranks that work, and where a job is sent."""

import dataclasses
import os
import signal
import time

import pytest

from helpers.experiments import nb10 as nodes
from helpers.experiments.nb10 import players, submitting
from smallfiles.errors import ResourceError
from smallfiles.machine.ranks import ranks


class TestEnvironments:
    def test_srun_and_torchrun_tell_the_same_places(self):
        for rank in range(6):
            by_srun = ranks(nodes.srun(rank, nodes=2, per_node=3))
            for inside in (False, True):
                by_torchrun = ranks(nodes.torchrun(rank, nodes=2, per_node=3, inside_srun=inside))
                assert dataclasses.replace(by_srun, source="torchrun") == by_torchrun
            assert (by_srun.rank, by_srun.node, by_srun.local_rank) == (rank, rank // 3, rank % 3)

    @pytest.mark.parametrize("told", [nodes.script(), nodes.salloc(), {}], ids=["script", "salloc", "laptop"])
    def test_a_process_that_srun_did_not_start_is_alone(self, told):
        assert (ranks(told).rank, ranks(told).world_size) == (0, 1)

    def test_the_table_tells_the_script_from_its_tasks_and_shows_a_guess(self):
        launched = {"script": nodes.script(), "task": nodes.srun(3)}
        lines = [line for line in nodes.table(launched, {"script": 4}).splitlines() if line]
        rows = {line.split("  ")[0]: line.split()[-2:] for line in lines}
        assert rows["SLURM_NTASKS"] == ["4", "4"] and rows["rank"] == ["0", "3"] and rows["of"] == ["1", "4"]
        assert rows["your guess: of"] == ["4", "-"]


class TestPlaying:
    def test_each_rank_finds_its_place_and_nothing_of_the_job_around(self, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_NAME", "around")
        places = [nodes.srun(n) for n in range(3)]
        found = nodes.play(lambda: (ranks().rank, "SLURM_JOB_NAME" in os.environ), places)
        assert found == [(0, False), (1, False), (2, False)]
        assert os.environ["SLURM_JOB_NAME"] == "around"

    def test_a_rank_that_fails_or_dies_is_told(self):
        with pytest.raises(ResourceError, match="ZeroDivisionError"):
            nodes.play(lambda: 1 / 0, [nodes.srun(0)])
        with pytest.raises(ResourceError, match="without a word"):
            nodes.play(lambda: os._exit(3), [nodes.srun(0)])

    def test_ranks_can_be_sent_a_signal_while_they_work(self):
        def until_told():
            came = []
            signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
            os.write(ready, b"x")
            end = time.monotonic() + 20
            while not came and time.monotonic() < end:
                time.sleep(0.01)
            return len(came)

        def tell(pids):
            os.read(seen, 1), os.read(seen, 1)
            for pid in pids:
                os.kill(pid, signal.SIGUSR1)

        seen, ready = os.pipe()
        assert nodes.play(until_told, [nodes.srun(0), nodes.srun(1)], meanwhile=tell) == [1, 1]

    def test_a_rank_that_says_nothing_is_ended(self, monkeypatch):
        monkeypatch.setattr(players, "_LIMIT_S", 0.2)
        monkeypatch.setattr(players, "_END_S", 0.1)
        with pytest.raises(ResourceError, match="sent nothing"):
            nodes.play(lambda: time.sleep(60), [nodes.srun(0)])


class TestSubmitting:
    def test_without_slurm_the_reason_is_told_and_the_command(self, monkeypatch, tmp_path):
        monkeypatch.setattr(submitting.os, "environ", {"PATH": str(tmp_path)})
        sent = nodes.submit("10_read", tmp_path / "train.arrow", "seen")
        assert "no `sbatch`" in sent.summary
        assert sent.command == "slurm/submit SITE 10_read -- train.arrow seen"

    def test_a_site_that_is_named_is_taken_and_a_wrong_one_is_told(self, monkeypatch, tmp_path):
        monkeypatch.setenv("COURSE_SITE", "nowhere")
        assert nodes.site_here() == ("nowhere", "")
        assert "no site 'nowhere'" in nodes.submit("10_read", tmp_path / "train.arrow", "seen").summary

    def test_a_local_cluster_that_is_down_is_no_site(self, tmp_path):
        sbatch = tmp_path / "sbatch"
        sbatch.write_text("#!/bin/sh\n")
        sbatch.chmod(0o755)
        told = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
        told["SMALLFILES_CLUSTER"] = str(tmp_path / "cluster")
        assert "local cluster" in nodes.site_here(told)[1]
        (tmp_path / "cluster").mkdir()
        (tmp_path / "cluster" / "slurm.conf").touch()
        assert nodes.site_here(told) == ("local", "")

    def test_what_a_job_came_to_is_said(self):
        assert "ended as FAILED" in submitting.outcome("7", "FAILED")
        assert "cancelled" in submitting.outcome("7", "PENDING")
        assert submitting.outcome("7", "COMPLETED") == "Job 7 ended well."
