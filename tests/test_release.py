"""A release: one version, a changelog that names what went, and files that hold what a stranger needs."""

import json
import re

import pytest
import yaml

from smallfiles import __version__


@pytest.fixture
def release(repository, monkeypatch):
    monkeypatch.syspath_prepend(str(repository / "tools"))
    import release

    return release


def test_a_public_name_that_went_stands_in_the_changelog(release):
    assert release.unexplained() == [], "say in CHANGELOG.md what to use in place of them"


def test_a_name_that_goes_without_a_line_is_found(release, tmp_path, monkeypatch):
    (tmp_path / "names").write_text(
        "\n".join([*release.public_names(), "smallfiles.loading.gone", "smallfiles melt"])
    )
    (tmp_path / "changes").write_text("### Removed\n\n- `smallfiles melt`: use `smallfiles pack`.\n")
    monkeypatch.setattr(release, "NAMES", tmp_path / "names")
    monkeypatch.setattr(release, "CHANGES", tmp_path / "changes")
    assert release.unexplained() == ["smallfiles.loading.gone"]


def test_the_list_of_public_names_holds_what_the_recipes_use(release, repository):
    names = set(release.NAMES.read_text().splitlines())
    assert {
        "smallfiles.loading.make_loader",
        "smallfiles.formats.open",
        "smallfiles pack",
        "pysquashfs.SquashFS",
    } <= names


def test_changelog_and_citation_have_the_version(repository):
    released = re.findall(
        r"^## \[(\d[^]]*)\] - (\d{4}-\d\d-\d\d)$", (repository / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    citation = yaml.safe_load((repository / "CITATION.cff").read_text())
    assert released[0] == (__version__, str(citation["date-released"]))
    assert citation["version"] == __version__


def test_a_file_that_lacks_something_or_holds_too_much_is_refused(release, tmp_path):
    import tarfile
    import zipfile

    with zipfile.ZipFile(tmp_path / "x.whl", "w") as wheel:
        wheel.writestr("helpers/__init__.py", "")
    with tarfile.open(tmp_path / "x.tar.gz", "w"):
        pass
    found = release.faults(tmp_path / "x.tar.gz", tmp_path / "x.whl")
    assert "helpers does not belong into the wheel" in found
    assert {"smallfiles/py.typed is missing", "CHANGELOG.md is missing"} <= set(found)


def test_both_forges_run_the_whole_of_ci_on_each_python_and_build_release_and_site(repository, release):
    github = yaml.safe_load((repository / ".github/workflows/check.yml").read_text())["jobs"]
    gitlab = yaml.safe_load((repository / ".gitlab-ci.yml").read_text())
    said = {
        "github": {
            name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in github.items()
        },
        "gitlab": {name: " ".join(job["script"]) for name, job in gitlab.items() if "script" in (job or {})},
    }
    for forge in said.values():
        assert "bash .ci/run" in forge["test"] and "make release" in forge["release"]
        assert any("make site" in script for script in forge.values())
    (matrix,) = gitlab["test"]["parallel"]["matrix"]
    assert github["test"]["strategy"]["matrix"]["python"] == matrix["VERSION"] == list(release.VERSIONS[:3])


def test_the_devcontainer_and_the_app_for_open_ondemand_name_only_what_exists(repository):
    container = json.loads((repository / ".devcontainer/devcontainer.json").read_text())
    steps = [container[name] for name in ("postCreateCommand", "postStartCommand", "postAttachCommand")]
    targets = (repository / "Makefile").read_text()
    assert all(step in ("make setup", "make lab") or (repository / step).exists() for step in steps)
    assert all(f"\n{step.removeprefix('make ')}: " in targets for step in steps if step.startswith("make "))
    app = repository / "slurm/ondemand"
    form = yaml.safe_load((app / "form.yml").read_text())
    asked = set(
        re.findall(r"(?:context\.|<%= )(\w+)", "".join(each.read_text() for each in app.rglob("*.sh.erb")))
    )
    assert "course" in asked and asked - {"require"} <= set(form["form"]) >= set(form["attributes"])
    assert yaml.safe_load((app / "manifest.yml").read_text())["role"] == "batch_connect"
