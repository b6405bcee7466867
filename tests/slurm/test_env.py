"""The environment as one file: built, mounted, used."""

import os
import re
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def small_venv(tmp_path):
    venv = tmp_path / "a venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    (packages / "only_in_the_image.py").write_text("found = 42\n")
    return venv


def build(repository, *words, **how):
    command = [repository / "slurm/env/build.sh", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **how)


def test_a_venv_in_an_image_runs_where_it_is_mounted(repository, need_tool, small_venv, tmp_path):
    need_tool("mksquashfs", "squashfs-tools")
    mount, unmount = need_tool("squashfuse_ll", "squashfuse"), need_tool("fusermount3", "fuse3")
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("/dev/fuse is not open to this user")
    image, folder = tmp_path / "one file.sqfs", tmp_path / "mounted"
    done = build(repository, image, small_venv)
    assert done.returncode == 0, done.stderr
    folder.mkdir()
    subprocess.run([mount, image, folder], check=True)
    try:
        code = "import sys, only_in_the_image as m; print(m.found, sys.prefix)"
        seen = subprocess.run([folder / "bin/python", "-c", code], capture_output=True, text=True)
    finally:
        subprocess.run([unmount, "-u", folder], check=True)
    assert seen.stdout.split(maxsplit=1) == ["42", f"{folder}\n"], seen.stderr


def test_the_same_venv_gives_the_same_bytes(repository, need_tool, small_venv, tmp_path):
    need_tool("mksquashfs", "squashfs-tools")
    images = [tmp_path / f"{number}.sqfs" for number in range(20)]
    for image in images:
        done = build(repository, image, small_venv, env={**os.environ, "SOURCE_DATE_EPOCH": "1"})
        assert done.returncode == 0
    assert len({image.read_bytes() for image in images}) == 1


def test_what_is_missing_or_in_the_way_is_told(repository, need_tool, small_venv, tmp_path):
    need_tool("mksquashfs", "squashfs-tools")
    (tmp_path / "there.sqfs").touch()
    assert "exists already" in build(repository, tmp_path / "there.sqfs", small_venv).stderr
    assert "make setup" in build(repository, tmp_path / "x.sqfs", tmp_path).stderr
    for tool in ("bash", "env", "dirname"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    bare = build(repository, tmp_path / "y.sqfs", env={"PATH": str(tmp_path)})
    assert "apt-get install squashfs-tools" in bare.stderr
    assert not list(tmp_path.glob("*.part"))


def test_the_container_installs_what_the_project_needs(repository):
    text = (repository / "slurm/env/apptainer.def").read_text()
    for name in re.findall(r"^    (\S+) /opt/smallfiles/", text.partition("%post")[0], re.M):
        assert (repository / name).exists(), name
    assert "make setup" in text and "packages.sh" in text


@pytest.mark.parametrize(("count", "asked"), [("1", ["setstripe -c 4 {}"]), ("8", []), ("", [])])
def test_a_job_stripes_the_folder_of_a_large_file_where_it_has_one_target(repository, count, asked, tmp_path):
    folder, stand_in = tmp_path / "an output", tmp_path / "bin" / "lfs"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f"#!/bin/sh\nif [ $1 = getstripe ]; then echo {count}; else echo $@ >> '{tmp_path}/asked'; fi\n"
    )
    stand_in.chmod(0o755)
    script = f"source '{repository}/slurm/lib.sh'; PATH='{stand_in.parent}':$PATH; stripe '{folder}/x.arrow'"
    environment = {**os.environ, "COURSE_ROOT": str(repository), "COURSE_SITE": "local"}
    subprocess.run(["bash", "-ec", script], env=environment, check=True, capture_output=True)
    found = (tmp_path / "asked").read_text().splitlines() if (tmp_path / "asked").exists() else []
    assert found == [line.format(folder) for line in asked] and folder.is_dir()


def test_a_job_of_ones_own_uses_an_environment_by_the_line_that_its_build_prints(
    repository, need_tool, small_venv, tmp_path
):
    """In a shell that stands in for the job; the step runs here, without options."""
    need_tool("mksquashfs", "squashfs-tools")
    done = build(repository, tmp_path / "one file.sqfs", small_venv)
    (line,) = re.findall("^  (source .*)$", done.stdout, re.M)
    tools, node = tmp_path / "bin", tmp_path / "a node"
    tools.mkdir()
    node.mkdir()
    stand_ins = {"srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"', "sbcast": 'exec cp "$@"'}
    for name, text in stand_ins.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    code = "import only_in_the_image as m, sys; print(m.found, sys.prefix)"
    script = f'{line}; python -c "{code}"; echo "$COURSE_ROOT${{an_unset_variable_is_no_error}}"'
    without = {key: value for key, value in os.environ.items() if not key.startswith(("COURSE", "SLURM"))}
    job = {"PATH": f"{tools}:{without['PATH']}", "SLURM_JOB_ID": "7", "SLURM_TMPDIR": str(node)}
    how = {"capture_output": True, "text": True, "timeout": 60}
    ran = subprocess.run(["bash", "-ec", script], env=without | job, cwd="/", **how)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == [f"42 {node}/environment-7/venv", str(repository)]
    assert not list(node.iterdir())
    relative = "source slurm/lib.sh; use_environment x.sqfs"
    outside = subprocess.run(["bash", "-c", relative], env=without, cwd=repository, **how)
    assert "use_environment works inside a job" in outside.stderr and outside.returncode


def test_the_set_up_keeps_the_python_of_a_job_of_ones_own(repository):
    script = 'before=$(command -v python3); source slurm/lib.sh; [[ $(command -v python3) == "$before" ]]'
    without = {key: value for key, value in os.environ.items() if not key.startswith("COURSE")}
    subprocess.run(["bash", "-ec", script], env=without, cwd=repository, check=True)
