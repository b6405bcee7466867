"""Every job, submitted to a real Slurm; its results looked at, not its exit code."""

import hashlib
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from helpers import formats, pack, sources


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def manifest(cluster):
    cluster.done("02_manifest", cluster.work / "data", cluster.work / "train.json")
    return cluster.work / "train.json"


def test_a_manifest_is_built(cluster, manifest):
    assert len(sources.load(manifest).manifest) == 240


@pytest.mark.parametrize(
    ("job", "name"), [("03_pack_arrow", "x.arrow"), ("04_pack_hdf5", "x.h5"), ("06_pack_squashfs", "x.sqfs")]
)
def test_a_packing_job_writes_what_the_source_holds(cluster, manifest, job, name):
    out = cluster.work / name
    cluster.done(job, manifest, out)
    assert pack.verify(out, sources.load(manifest)).intact


def test_an_array_of_parts_ends_in_the_bytes_of_one_run(cluster, manifest):
    parts, whole = cluster.work / "parts.tars", cluster.work / "whole.tars"
    options = ("-O", "max_bytes=4000000", "--shuffle", "3")
    cluster.done("05_pack_tar", manifest, parts, *options)
    pack.pack(
        sources.load(manifest),
        whole,
        pack.PackConfig(options=formats.get("tar").Options(max_bytes=4_000_000), shuffle=3),
    )
    assert len(list(parts.glob("*.tar"))) > 4  # so that each of the four parts had something to do
    assert contents(parts) == contents(whole)


def test_a_probe_leaves_a_record(cluster, manifest):
    out = cluster.work / "probe.arrow"
    pack.pack(sources.load(manifest), out, pack.PackConfig())
    log = cluster.done("01_probe", out, "--repeats", "3")
    (record,) = cluster.work.glob("probe-*.json")
    assert json.loads(record.read_text())
    assert "inside job" in log and "samples/s" in log


class TestTwoUsers:
    OTHER = "nobody"

    def test_their_jobs_run_at_once_and_each_owns_its_output(self, cluster, manifest, tmp_path):
        if os.geteuid():
            pytest.skip("only root can submit for another user")
        place = self.place_of_the_other(cluster, tmp_path)
        environment = {**cluster.at(place), "HOME": str(place), "COURSE_VENV": str(place / "venv")}
        command = (
            f"'{cluster.root}/slurm/submit' local 03_pack_arrow --json -- '{place}/data' '{place}/x.arrow'"
        )
        theirs = self.as_other(command, env=environment)
        assert theirs.returncode == 0, theirs.stderr
        ours = cluster.submit("03_pack_arrow", cluster.work / "data", cluster.work / "beside.arrow")
        (number,) = (each["number"] for each in json.loads(theirs.stdout)["jobs"])
        assert [cluster.wait(each) for each in (number, *ours)] == ["COMPLETED"] * 2, cluster.log(
            number, place
        )
        assert (place / "x.arrow").stat().st_uid == pwd.getpwnam(self.OTHER).pw_uid
        assert (place / "x.arrow").read_bytes() == (cluster.work / "beside.arrow").read_bytes()

    def as_other(self, command, **how):
        return subprocess.run(
            ["su", "-s", "/bin/sh", self.OTHER, "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            **how,
        )

    def place_of_the_other(self, cluster, tmp_path):
        """A folder of the other user's, with the data set and a Python that this user may run."""
        place = tmp_path / "of the other"
        shutil.copytree(cluster.work / "data", place / "data")
        packages = Path(formats.__file__).parents[2], Path(pytest.__file__).parents[1]
        python = place / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            f"#!/bin/sh\nPYTHONPATH='{packages[0]}:{packages[1]}' exec /usr/bin/python3 \"$@\"\n"
        )
        python.chmod(0o755)
        for path in [place, *place.rglob("*")]:
            shutil.chown(path, self.OTHER)
        for parent in [*tmp_path.parents, tmp_path]:
            if parent.is_relative_to("/tmp") and parent != Path("/tmp"):
                parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
        seen = self.as_other(
            f"'{python}' -c 'import pyarrow, helpers' && test -r '{cluster.root}/slurm/lib.sh'"
        )
        if seen.returncode:
            pytest.skip(f"another user has no Python with the packages here: {seen.stderr.strip()[-200:]}")
        return place


def test_a_node_is_clean_after_its_job(cluster):
    state = Path(cluster.environment["SLURM_CONF"]).parent
    assert not list(state.glob("n*/local/*"))


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
        cluster.wait(number, limit_s=40)
        assert not token_file.parent.exists()

    def announced(self, cluster, number):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            log = cluster.log(number)
            found = re.search(r"127\.0\.0\.1:(\d+) .*?token is in: +(/.*?/token) ", log, re.S)
            if found and self.bound_to(found[1]):
                return found[1], Path(found[2])
            time.sleep(0.5)
        raise AssertionError(f"it did not come up: {log}")

    def bound_to(self, port):
        """The addresses that listen on this port."""
        hexed = f":{int(port):04X}"
        lines = [
            *Path("/proc/net/tcp").read_text().splitlines(),
            *Path("/proc/net/tcp6").read_text().splitlines(),
        ]
        rows = (line.split() for line in lines[1:])
        return {row[1].partition(":")[0] for row in rows if row[1].endswith(hexed) and row[3] == "0A"}

    def asked(self, port, token, path="/api"):
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        request = Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"token {token}"})
        try:
            with urlopen(request, timeout=10) as answer:
                return answer.read().decode()
        except HTTPError as error:
            return error.read().decode()
