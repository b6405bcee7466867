"""Every job, submitted to a real Slurm; its results looked at, not its exit code."""

import hashlib
import io
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from PIL import Image
from programs import wait_for

from helpers.experiments.nb10 import players as environments
from helpers.jobs import script
from smallfiles import formats, objectstore, pack, sources
from smallfiles import measure as bench
from smallfiles.measure import ranks
from smallfiles.measure.table import STAGES, advice
from smallfiles.training import checkpoint

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "notebooks"))

from running import execute  # noqa: E402  # a script beside the tests of notebooks


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_without_a_network_address_the_local_cluster_says_so_at_once(repository, cluster):
    alone = ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this system lets nobody have a network name space")
    another = cluster.environment["SMALLFILES_CLUSTER"] + "2"
    environment = cluster.environment | {"SMALLFILES_CLUSTER": another}
    command = [*alone, repository / "slurm/local/up"]
    up = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert up.returncode == 1 and "has no network address but loopback" in up.stderr
    assert "ip address add" in up.stderr and not Path(another).exists()


@pytest.fixture(scope="session")
def manifest(cluster):
    cluster.done("02_manifest", cluster.work / "data", cluster.work / "train.json")
    assert len(sources.load(cluster.work / "train.json").manifest) == 240
    return cluster.work / "train.json"


@pytest.mark.parametrize("name", script.names(ROOT))
def test_slurm_accepts_the_directives(cluster, name):
    command = ["sbatch", "--test-only", script.folder(ROOT) / f"{name}.sbatch"]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, cwd=cluster.work)
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("job", "name"), [("03_pack_arrow", "x.arrow"), ("04_pack_hdf5", "x.h5"), ("06_pack_squashfs", "x.sqfs")]
)
def test_a_packing_job_writes_what_the_source_holds(cluster, manifest, job, name):
    out = cluster.work / name
    cluster.done(job, manifest, out)
    assert pack.verify(out, sources.load(manifest)).intact


@pytest.mark.parametrize("given", ["twins", "table"])
def test_a_packing_job_packs_masks_and_tables_too_and_scales_them_together(cluster, given):
    data, out = cluster.work / f"with {given}", cluster.work / f"{given}.arrow"
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (data / folder).mkdir(parents=True)
        for n in range(4):
            Image.effect_noise((96, 64), 90).convert(mode).save(data / folder / f"{n}.png")
    rows = "".join(f"{n},{n / 2},{'ab'[n % 2]}\n" for n in range(4))
    if given == "table":
        (data / "t.csv").write_text(f"id,age,label\n{rows}")
    fields = ["--field", "image=images/{id}.png", "--field", "mask=masks/{id}.png"] * (given == "table")
    cluster.done("03_pack_arrow", data / "t.csv" if fields else data, out, *fields, "--resize", "32")
    with closing(formats.open(out)) as reader:
        assert len(reader) == 4 and ("age" in reader.fields) == bool(fields)
        for n in range(4):
            with Image.open(io.BytesIO(bytes(reader.blob("mask").read(n)))) as mask:
                assert mask.size == (48, 32)


def test_an_array_of_which_two_parts_were_packed_goes_on_and_ends_in_the_bytes_of_one_run(cluster, manifest):
    parts, whole = cluster.work / "parts.tars", cluster.work / "whole.tars"
    words = ("05_pack_tar", manifest, parts, 4, "-O", "max_bytes=4000000", "--shuffle", "3")
    packing, merging = cluster.submit(*words, options=["--array=2-3"])
    assert (cluster.wait(packing), cluster.wait(merging)) == ("COMPLETED", "FAILED")
    folders = sorted(path.name for path in parts.with_name("parts.tars.parts").iterdir())
    assert folders == ["part-00002-of-00004", "part-00003-of-00004"]
    cluster.done(*words, options=["--array=1,4%1"])  # those that are missing, one at a time
    options = formats.get("tar").Options(max_bytes=4_000_000)
    pack.pack(sources.load(manifest), whole, pack.PackConfig(options=options, shuffle=3))
    assert len(list(parts.glob("*.tar"))) > 4  # so that each of the four parts had something to do
    assert contents(parts) == contents(whole)


@pytest.fixture(scope="session")
def arrow(cluster, manifest):
    out = cluster.work / "for later jobs.arrow"
    pack.pack(sources.load(manifest), out, pack.PackConfig())
    return out


def test_a_probe_leaves_a_record(cluster, arrow):
    log = cluster.done("01_probe", arrow, "--share", "--repeats", "1")
    (shared,) = cluster.work.glob("share-*.json")
    assert str(cluster.work) not in shared.read_text() and "4096 bytes, 8 in flight" in shared.read_text()
    (record,) = cluster.work.glob("probe-*.json")
    assert json.loads(record.read_text())
    assert "inside job" in log and "samples/s" in log


def copies_of(cluster, source):
    """What lies of it in memory and on the disk of the nodes; other tests use those that nodes share."""
    disk = Path(cluster.environment["SLURM_CONF"]).with_name("local")
    return "".join(cluster.on_nodes("find", "/dev/shm", disk, "-name", f"*{source.name}*").values())


@pytest.mark.parametrize("job", ["05_shuffle_memory", "05_shuffle_disk"])
def test_a_tar_of_tars_is_shuffled_fully_and_nothing_stays_on_the_node(cluster, manifest, job, tmp_path):
    source = tmp_path / "a tar of tars.tar"
    with tarfile.open(source, "w") as outer:
        for folder in sorted((cluster.work / "data").iterdir()):
            inner = tmp_path / f"{folder.name}.tar"
            with tarfile.open(inner, "w") as tar:
                for path in sorted(folder.iterdir()):
                    tar.add(path, path.name)
            outer.add(inner, inner.name)
    cluster.done(job, source, tmp_path / "out.tars", work=tmp_path)
    with closing(formats.open(tmp_path / "out.tars")) as reader:
        keys = [reader.key(number) for number in range(len(reader))]
        assert len(keys) == 240 and keys != sorted(keys)
        assert len({key.partition("/")[0] for key in keys[:40]}) > 3  # classes are mixed
    assert not copies_of(cluster, source)


def test_what_the_archive_holds_is_fetched_verified_and_staged(cluster, manifest, tmp_path):
    archive, scratch = tmp_path / "archive", tmp_path / "scratch"
    archive.mkdir()
    pack.pack(sources.load(manifest), archive / "train.tars", pack.PackConfig())
    log = cluster.done("07_fetch", archive / "train.tars", scratch, work=tmp_path)
    assert contents(scratch / "train.tars") == contents(archive / "train.tars")
    assert "samples/s" in log and "removed" in log
    assert {path.name.partition("-")[0] for path in tmp_path.glob("*-*.json")} == {"original", "staged"}


def test_a_broadcast_job_reads_every_sample_from_copies_that_are_gone_afterwards(cluster, arrow, tmp_path):
    log = cluster.done("07_broadcast", arrow, tmp_path / "seen", work=tmp_path)
    assert "240" in log and "removed" in log
    if os.geteuid() == 0:  # only then each node has a disk of its own
        assert "sent to 2 nodes by sbcast" in log
    assert not copies_of(cluster, arrow)


def test_a_broadcast_job_that_is_queued_again_starts_over_without_leftovers(cluster, arrow, tmp_path):
    (number,) = cluster.submit("07_broadcast", arrow, tmp_path / "seen", work=tmp_path)
    wait_for(lambda: "ready after" in cluster.log(number, tmp_path), 60)
    assert copies_of(cluster, arrow)
    cluster.run("scontrol", "requeue", number)
    cluster.start_soon(number)
    assert cluster.wait(number) == "COMPLETED", cluster.log(number, tmp_path)
    assert "read each of 240 samples exactly once" in cluster.log(number, tmp_path)
    assert not copies_of(cluster, arrow)


def test_two_nodes_stream_what_was_pushed_and_no_log_holds_a_key(cluster, manifest, tmp_path):
    shards, options = tmp_path / "train.tars", formats.get("tar").Options(max_count=20)
    pack.pack(sources.load(manifest), shards, pack.PackConfig(options=options))
    (tmp_path / "store" / "course").mkdir(parents=True)
    server = objectstore.Server(tmp_path / "store")
    try:
        known = replace(cluster, environment={**cluster.environment, **server.environment})
        where = (shards, "s3://course/train", tmp_path / "seen")
        log = known.done("09_stream", *where, work=tmp_path)
    finally:
        server.close()
    found = ranks.count(tmp_path / "seen")
    assert found.exact and found.shares[0].of == 240
    assert [share.node for share in found.shares] == ["n1", "n1", "n2", "n2"]
    assert f"read each of {found.shares[0].of} samples exactly once" in log
    assert server.keys.secret not in log and server.keys.key_id not in log


class TestTraining:
    @pytest.mark.slow  # the solved exercise trains on as many ranks
    def test_two_nodes_train_one_model(self, cluster, arrow, tmp_path):
        words = ("--epochs", "2", "--size", "32", "--batch", "16")
        log = cluster.done("10_train", arrow, tmp_path / "kept", *words)
        assert re.findall(r"rank (\d) on node (\d): 60 samples", log) == [
            ("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")
        ]  # fmt: skip
        assert (tmp_path / "kept" / "last.pt").exists()

    WORDS = ("--size", "32", "--batch", "4", "--every", "1")  # a checkpoint a step: long enough to be stopped
    FEW = ("--ntasks-per-node=1", "--cpus-per-task=1")  # no more processes than a small machine has CPUs

    @pytest.mark.timeout(400)
    def test_asked_to_stop_it_is_queued_again_and_finishes(self, cluster, arrow, tmp_path):
        """The signal that Slurm sends before a time limit, sent by hand."""
        words = ("--epochs", 3, *self.WORDS)
        (number,) = cluster.submit("10_train", arrow, tmp_path / "kept", *words, options=self.FEW)
        wait_for(lambda: (tmp_path / "kept" / "last.pt").exists())
        cluster.run("scancel", "--signal=USR1", number)
        cluster.start_soon(number)
        self.look_at_the_end(cluster, number, epochs=3)

    @pytest.mark.timeout(400)
    def test_what_two_nodes_began_and_were_cancelled_one_node_finishes(self, cluster, arrow, tmp_path):
        """Nothing of it runs on; each sample of the epoch that was begun comes once, on fewer ranks."""
        kept, words = tmp_path / "kept", ("--epochs", 2, *self.WORDS)
        (number,) = cluster.submit("10_train", arrow, kept, *words, options=self.FEW)
        wait_for(lambda: (kept / "last.pt").exists())
        assert self.running(kept)
        cluster.run("scancel", number)
        assert cluster.wait(number) == "CANCELLED"
        wait_for(lambda: not self.running(kept), 40)
        begun = checkpoint.load(kept).loader
        assert begun["plan"]["world_size"] == 2
        log = cluster.done("10_train", arrow, kept, *words, options=("--nodes=1", *self.FEW))
        assert f"resumed at epoch {begun['epoch']}, step {begun['batch']}" in log
        samples = dict(re.findall(r"^epoch (\d+): ([\d,]+) samples", log, re.M))
        assert set(samples.values()) == {"240"} and len(samples) == 2
        (rank,) = checkpoint.load(kept).epochs[begun["epoch"]]["ranks"]
        assert rank["samples"] == 240 - 8 * begun["batch"]

    def running(self, kept):
        return subprocess.run(["pgrep", "-f", str(kept)], capture_output=True).returncode == 0

    @pytest.mark.slow
    @pytest.mark.timeout(900)
    def test_stopped_before_its_limit_it_is_queued_again_and_finishes(self, cluster, arrow, tmp_path):
        """Slurm looks at limits every half a minute or so, and may signal a minute early."""
        epochs = self.epochs_of(150, cluster, arrow, tmp_path)
        options = ("--time=00:02:00", "--signal=USR1@30", *self.FEW)
        words = ("--epochs", epochs, *self.WORDS)
        (number,) = cluster.submit("10_train", arrow, tmp_path / "kept", *words, options=options)
        wait_for(lambda: "stopped by a signal" in cluster.log(number), 200)
        cluster.start_soon(number)
        cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=15")  # one stop is enough here
        self.look_at_the_end(cluster, number, epochs)

    def epochs_of(self, seconds, cluster, arrow, tmp_path):
        """As many of 240 samples as take so long on this machine."""
        words = (arrow, tmp_path / "trial", "--epochs", 3, *self.WORDS)
        log = cluster.done("10_train", *words, options=self.FEW)
        rates = [int(text.replace(",", "")) for text in re.findall(r"([\d,]+) samples/s", log)]
        return round(seconds * max(rates) / 240)

    def look_at_the_end(self, cluster, number, epochs):
        state, log = cluster.wait(number, 600), cluster.log(number)
        assert state == "COMPLETED", log
        assert "stopped by a signal" in log and "resumed at epoch" in log
        assert "Restarts=0" not in cluster.run("scontrol", "show", "job", number)
        assert len(set(re.findall(r"^epoch (\d+):", log, re.M))) == epochs


def test_a_ring_is_filled_by_one_step_and_emptied_by_another(cluster, arrow):
    log = cluster.done("08_ring", arrow)
    assert re.findall(r"^epoch (\d): 240 samples", log, re.M) == ["0", "1", "2"]
    assert "24 of them trained" in log and "you have no ring in /dev/shm" in log  # as `ring clean` says
    assert "smallfiles-ring" not in "".join(cluster.on_nodes("find", "/dev/shm", "-name", "job-*").values())


def test_a_loader_is_tuned_and_the_best_setting_recommended(cluster, arrow, tmp_path):
    words = ("--repeats", "1", "--count", "64", "--batch", "8", "--size", "48")
    log = cluster.done("08_tune_loader", arrow, *words, options=("--cpus-per-task=2",), work=tmp_path)
    (record,) = tmp_path.glob("loader-*.json")
    epochs = [each for each in bench.load(record) if each.what != STAGES]
    assert {(each.workers, each.name.rpartition(", ")[2]) for each in epochs} == {
        (workers, mode) for workers in (1, 2) for mode in ("processes", "threads", "ring")
    }
    assert all(each.repeats == 1 and min(each.rates_per_s) > 0 and each.samples == 64 for each in epochs)
    (best,) = advice(epochs)
    assert f"\n{best.sentence}\n" in log and best.sentence.startswith("recommended for arrow")
    assert record.with_suffix(".png").stat().st_size > 10_000 and record.with_suffix(".svg").exists()


def test_a_training_is_watched_on_its_node_and_keeps_its_exit_code(cluster, tmp_path):
    text = "import torch, time\nfor x in torch.utils.data.DataLoader(range(320), 8): time.sleep(0.01)\n"
    (tmp_path / "their train.py").write_text(text)
    log = cluster.done("12_profile", "python", tmp_path / "their train.py", work=tmp_path)
    assert "verdict: loading is not the limit" in log and "40 steps of 8 samples" in log
    assert len(list(tmp_path.glob("profile-*-0.json"))) == 1


def test_a_training_on_two_nodes_is_audited_as_one_and_reported_once(cluster, tmp_path):
    text = (
        "import torch, torch.distributed as d\nfrom torch.utils.data import *\nd.init_process_group('gloo')\n"
    )
    text += "data = TensorDataset(torch.arange(32.))\nfor x in DataLoader(data, 4, sampler={}): pass\n"
    for sampler, said in (
        ("DistributedSampler(data)", "exactly once"),
        ("None", "samples are seen by several"),
    ):
        (tmp_path / "their train.py").write_text(text.format(sampler))
        words = ("12_audit", "torchrun", "--nproc-per-node=1", tmp_path / "their train.py")
        (number,) = cluster.submit(*words, options=("--nodes=2",), work=tmp_path)
        state, log = cluster.wait(number), cluster.log(number, tmp_path)
        assert (state == "COMPLETED") == (said == "exactly once") and re.findall("verdict: .*", log), log
        assert log.count("verdict: ") == 1 and f"verdict: {said}" in log and "records of 2 of 2 nodes" in log
        assert (tmp_path / f"audit-{number}.svg").exists() and "srun: error" not in log


def test_formats_are_packed_by_an_array_and_compared_in_one_run(cluster, manifest):
    out = cluster.work / "compared"
    log = cluster.done("11_compare", manifest, out)
    names = {record["name"] for record in json.loads((out / "read.json").read_text())["records"]}
    assert names == {"arrow", "hdf5", "tar", "squashfs", "lmdb"}
    assert (out / "read.png").stat().st_size > 10_000 and (out / "read.svg").exists()
    assert "Random reads, warm cache" in log
    assert "packed: nodes" in log and "10,000" in log


class TestTwoUsers:
    OTHER = "nobody"

    def test_their_jobs_run_at_once_and_each_owns_its_output(self, cluster, manifest, tmp_path):
        if os.geteuid():
            pytest.skip("only root can submit for another user")
        place = self.place_of_the_other(cluster, tmp_path)
        environment = {**cluster.at(place), "HOME": str(place), "COURSE_VENV": str(place / "venv")}
        words = f"local 03_pack_arrow --json -- '{place}/data' '{place}/x.arrow'"
        theirs = self.as_other(f"'{cluster.root}/slurm/submit' {words}", env=environment)
        assert theirs.returncode == 0, theirs.stderr
        ours = cluster.submit("03_pack_arrow", cluster.work / "data", cluster.work / "beside.arrow")
        (number,) = (each["number"] for each in json.loads(theirs.stdout)["jobs"])
        ends = [cluster.wait(each) for each in (number, *ours)]
        assert ends == ["COMPLETED"] * 2, cluster.log(number, place)
        assert (place / "x.arrow").stat().st_uid == pwd.getpwnam(self.OTHER).pw_uid
        assert (place / "x.arrow").read_bytes() == (cluster.work / "beside.arrow").read_bytes()

    def as_other(self, command, **how):
        command = ["su", "-s", "/bin/sh", self.OTHER, "-c", command]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **how)

    def place_of_the_other(self, cluster, tmp_path):
        """A folder of the other user's, with the data set and a Python that this user may run."""
        place = tmp_path / "of the other"
        shutil.copytree(cluster.work / "data", place / "data")
        packages = f"{Path(formats.__file__).parents[2]}:{Path(pytest.__file__).parents[1]}"
        python = place / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\nPYTHONPATH='{packages}' exec /usr/bin/python3 \"$@\"\n")
        python.chmod(0o755)
        for path in [place, *place.rglob("*")]:
            shutil.chown(path, self.OTHER)
        for parent in [*tmp_path.parents, tmp_path]:
            if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
                parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
        read = f"test -r '{cluster.root}/slurm/lib.sh'"
        seen = self.as_other(f"'{python}' -c 'import pyarrow, smallfiles' && {read}")
        if seen.returncode:
            pytest.skip(f"another user has no Python with the packages here: {seen.stderr.strip()[-200:]}")
        return place


def test_a_node_is_clean_after_its_job(cluster):
    state = Path(cluster.environment["SLURM_CONF"]).parent
    folders = [*state.glob("n*/local"), *state.glob("local")]
    assert "".join(cluster.on_nodes("find", *folders, "-mindepth", 1).values()) == ""


class TestJupyter:
    def test_it_serves_tells_its_token_to_nobody_and_cleans_up(self, cluster):
        (number,) = cluster.submit("00_jupyter")
        try:
            port, token_file = self.announced(cluster, number)
            assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
            token = token_file.read_text()
            assert token not in cluster.log(number)
            assert token not in subprocess.run(["ps", "axww"], capture_output=True, text=True).stdout
            assert self.bound_to(port) == {"0100007F"}  # 127.0.0.1, as the kernel writes it
            assert '"version"' in self.asked(port, token)
            assert "Forbidden" in self.asked(port, "wrong", path="/api/kernels")
        finally:
            cluster.run("scancel", "--signal=TERM", "--full", number)
        cluster.wait(number)
        assert not token_file.parent.exists()

    def announced(self, cluster, number):
        def found():
            return re.search(r"127\.0\.0\.1:(\d+) .*?token is in: +(/.*?/token) ", cluster.log(number), re.S)

        wait_for(lambda: found() and self.bound_to(found()[1]))
        return found()[1], Path(found()[2])

    def bound_to(self, port):
        """The addresses that listen on this port."""
        hexed = f":{int(port):04X}"
        text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        rows = map(str.split, text.splitlines())
        return {row[1].partition(":")[0] for row in rows if row[1].endswith(hexed) and row[3] == "0A"}

    def asked(self, port, token, path="/api"):
        request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"token {token}"})
        try:
            with urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except HTTPError as error:
            return error.read().decode()


# ---- notebook 10 and its exercise, where Slurm is


@pytest.fixture
def participant(cluster, tmp_path, monkeypatch):
    """Somebody who sits at a machine with the local cluster."""
    for name in [name for name in os.environ if name.startswith(("COURSE", "SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    for name in ("SMALLFILES_CLUSTER", "COURSE_VENV", "PATH"):
        monkeypatch.setenv(name, cluster.environment[name])
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "a work folder"))
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COURSE_SIZE", "120")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def test_what_slurm_tells_is_what_the_notebook_says_that_it_tells(cluster, tmp_path):
    line = f"cd '{tmp_path}'; env > script; srun -c2 sh -c 'env > task-$SLURM_PROCID'"
    asked = ("--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2")
    cluster.run("sbatch", "--wait", *asked, f"--output={tmp_path}/log", "--wrap", line)
    shell = ("srun", "--interactive", "--preserve-env", "sh", "-c", f"env > '{tmp_path}/salloc'")
    cluster.run("salloc", *asked, *shell)  # what use_interactive_step makes of a bare salloc
    for name, told in {
        "script": environments.script(),
        "salloc": environments.salloc(),
        **{f"task-{rank}": environments.srun(rank) for rank in range(4)},
    }.items():
        lines = (tmp_path / name).read_text().splitlines()
        found = dict(line.split("=", 1) for line in lines if line.startswith("SLURM"))
        assert {**told, "SLURM_JOB_ID": found["SLURM_JOB_ID"]}.items() <= found.items()


@pytest.mark.timeout(600)
def test_the_notebook_submits_and_tells_what_the_job_counted(participant, tmp_path):
    path = ROOT / "notebooks" / "10_run_it_on_many_nodes.ipynb"
    executed = execute(path, participant, sections=("start", "setup", "place-02", "place-03", "script"))
    assert "4 ranks on 2 nodes read each of 120 samples exactly once" in executed.text
    shares = re.findall(r"rank (\d) on (\w+): (\d+) samples", executed.text)
    assert shares == [("0", "n1", "30"), ("1", "n1", "30"), ("2", "n2", "30"), ("3", "n2", "30")]
    assert "slurm/submit local 10_read" in executed.text
    assert [path.name for path in (tmp_path / "a work folder").iterdir()] == ["logs"]


@pytest.mark.timeout(600)
def test_the_solved_script_trains_on_two_nodes(participant, monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    executed = execute(ROOT / "solutions" / "10_run_it_on_many_nodes.ipynb", participant)
    assert "ended well" in executed.text and "rank 3 on node 1: 30 samples" in executed.text
