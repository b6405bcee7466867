"""What data_manifests/ holds: manifests of the demo sets, made again and compared; a README that is true."""

import json
import re
import subprocess
import sys

from smallfiles.manifest import Manifest

KEPT = ("folder.json", "imagenet_train.json", "imagenet_val.json", "flickr30k_train.json")


def test_kept_manifests_are_what_the_synthetic_sets_give_today(repository, tmp_path):
    tool = repository / "tools" / "write_demo_manifests.py"
    subprocess.run([sys.executable, tool, tmp_path], check=True, timeout=120)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(KEPT)
    for name in KEPT:
        assert (tmp_path / name).read_text() == (repository / "data_manifests" / name).read_text(), name


def test_the_table_of_kept_manifests_is_true_and_each_is_small(repository):
    text = (repository / "data_manifests/README.md").read_text()
    rows = re.findall(r"^\| `(\w+\.json)` .*\| (\d+) with", text, re.M)
    assert [name for name, _ in rows] == list(KEPT)
    for name, count in rows:
        path = repository / "data_manifests" / name
        assert len(Manifest.load(path)) == int(count) > 5 and path.stat().st_size < 50_000


def test_the_examples_of_the_readme_are_manifests(repository, tmp_path):
    text = (repository / "data_manifests/README.md").read_text()
    flat, ours = re.findall(r"```json\n(.*?)```", text, re.S)
    (tmp_path / "flat.json").write_text(flat)
    assert Manifest.load(tmp_path / "flat.json").targets.to_pylist() == [0, 1]
    without_digest = {name: value for name, value in json.loads(ours).items() if name != "digest"}
    (tmp_path / "ours.json").write_text(json.dumps(without_digest))
    manifest = Manifest.load(tmp_path / "ours.json")
    assert manifest.classes == ("cat", "dog")
    assert manifest.digest.startswith(json.loads(ours)["digest"].rstrip("…"))
    manifest.save(tmp_path / "again.json")
    shortened = re.sub(r"(sha256:\w{8})\w+", r"\1…", (tmp_path / "again.json").read_text())
    assert shortened == ours


def test_the_measuring_command_prints_what_each_way_costs(repository):
    tool = repository / "tools" / "measure_manifest.py"
    done = subprocess.run(
        [sys.executable, tool, "--rows", "20000", "--repeats", "1"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    assert found["rows"] == 20_000
    assert {"dict of flat", "flat", "columns"} < set(found["load"])
    assert all(way["load_s"] > 0 and way["worker_uss_MiB"] > 0 for way in found["load"].values())
