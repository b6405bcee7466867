"""What `submit` refuses before it submits, and what it shows; no cluster is needed."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers import jobs
from helpers.jobs import __main__ as command
from helpers.jobs import script, site
from smallfiles import cli, errors

ROOT = Path(__file__).resolve().parents[2]
JOBS = script.names(ROOT)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of its own, with an `sbatch` that only notes what it is given."""
    root = tmp_path / "a checkout"
    shutil.copytree(ROOT / "slurm", root / "slurm", ignore=shutil.ignore_patterns("*.my.env"))
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/python").touch()
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sbatch").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> "{tmp_path}/seen"\necho 4711\n')
    (tools / "sbatch").chmod(0o755)
    (root / "slurm/sites/here.env").write_text(
        f'SITE_ACCOUNT=none\nSITE_GPU_OPTIONS="--gpus-per-node=4"\nCOURSE_WORK="{tmp_path}/w o r k"\n'
        "COURSE_DATA=${COURSE_DATA:-$COURSE_WORK/data}\n"
    )
    for name in [key for key in os.environ if key.startswith(("SLURM", "SBATCH", "COURSE", "SITE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    (tmp_path / "w o r k" / "data").mkdir(parents=True)
    return root


@pytest.fixture
def mine(checkout):
    """Writes a user's own values for the site."""
    return (checkout / "slurm/sites/here.my.env").write_text


def refusal(checkout, *words, **how):
    with pytest.raises((errors.SubmitError, errors.UsageError)) as caught:
        jobs.plan(checkout, *words, **how)
    return str(caught.value)


class TestRefusals:
    def test_an_unknown_site_or_job_is_refused_with_the_nearest(self, checkout):
        assert "Did you mean here" in refusal(checkout, "her", "03_pack_arrow")
        assert "Did you mean 03_pack_arrow" in refusal(checkout, "here", "pack_arrow")

    def test_a_missing_account_is_refused_where_the_site_needs_one(self, checkout, mine):
        with (checkout / "slurm/sites/here.env").open("a") as file:
            file.write("SITE_ACCOUNT=required\n")
        assert "write SBATCH_ACCOUNT=" in refusal(checkout, "here", "03_pack_arrow")
        mine("SBATCH_ACCOUNT=training2611\n")
        (submission,) = jobs.plan(checkout, "here", "03_pack_arrow")
        assert submission.environment["SBATCH_ACCOUNT"] == "training2611"

    def test_no_slurm_here_is_told(self, checkout, monkeypatch, tmp_path):
        (tmp_path / "bin/sbatch").unlink()
        (tmp_path / "bin/bash").symlink_to(shutil.which("bash"))
        (tmp_path / "bin/env").symlink_to("/usr/bin/env")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        assert "there is no sbatch here" in refusal(checkout, "here", "03_pack_arrow")

    def test_missing_data_is_told_with_the_job_that_makes_it(self, checkout, tmp_path):
        (tmp_path / "w o r k/data").rmdir()
        assert "make it with: slurm/submit here 00_make_data" in refusal(checkout, "here", "03_pack_arrow")

    def test_too_little_room_is_told_with_the_numbers(self, checkout, tmp_path, monkeypatch):
        archive = tmp_path / "train.tar"
        archive.write_bytes(b"x" * 1000)
        monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=999))
        assert "needs about 1,050 bytes" in refusal(checkout, "here", "03_pack_arrow", [str(archive)])

    def test_an_unwritable_place_is_told(self, checkout):
        assert "cannot be written" in refusal(
            checkout, "here", "03_pack_arrow", [str(checkout), f"{checkout}/slurm/submit/y.arrow"]
        )

    @pytest.mark.parametrize(
        ("written", "said"),
        [
            ("SITE_ACOUNT=required", "Did you mean SITE_ACCOUNT"),
            ("SBATCH_ACCOUNT=a b", r"bash cannot read .*here\.my\.env: .*line 1"),
            ("no_such_command\nSITE_SETUP=", "no_such_command: command not found"),
            ("SITE_CPU_OPTIONS='--comment=\"two'", "SITE_CPU_OPTIONS of site here"),
            ("COURSE_WORK=work", "is no whole path"),
        ],
    )
    def test_what_no_site_may_say_is_told(self, checkout, mine, written, said):
        mine(f"{written}\n")
        assert re.search(said, refusal(checkout, "here", "03_pack_arrow"))

    def test_checkpoints_that_cannot_be_written_are_told(self, checkout, tmp_path):
        (tmp_path / "file").touch()
        words = [str(tmp_path / "file"), str(tmp_path / "file" / "kept")]
        assert "CHECKPOINTS" in refusal(checkout, "here", "10_train", words)

    def test_a_job_that_runs_your_program_is_not_sent_without_one(self, checkout):
        for job in ("12_profile", "12_audit"):
            assert f"submit here {job} -- python train.py" in refusal(checkout, "here", job)
            assert jobs.plan(checkout, "here", job, ["python", "mine.py"])

    def test_all_problems_are_told_at_once(self, checkout, tmp_path):
        (tmp_path / "w o r k/train.arrow").touch()
        shutil.rmtree(checkout / ".venv")
        text = refusal(checkout, "here", "03_pack_arrow")
        assert (
            "make setup" in text and "train.arrow exists already" in text and "Nothing was submitted" in text
        )

    def test_what_sbatch_says_is_told(self, checkout, tmp_path):
        (tmp_path / "bin/sbatch").write_text("#!/bin/sh\necho 'error: invalid partition' >&2\nexit 1\n")
        with pytest.raises(errors.SubmitError, match="invalid partition"):
            jobs.send(jobs.plan(checkout, "here", "03_pack_arrow"))


class TestSubmission:
    def test_the_shown_command_is_what_a_shell_would_need(self, checkout, tmp_path):
        words = ["--in-flight", "64"], ["--time=09:00:00"]
        (submission,) = jobs.plan(checkout, "here", "03_pack_arrow", *words)
        subprocess.run(["bash", "-c", submission.text()], check=True, capture_output=True)
        seen = (tmp_path / "seen").read_text().splitlines()
        assert seen == list(submission.argv[1:])
        assert seen[-2:] == ["--in-flight", "64"] and "--time=09:00:00" in seen
        assert seen[seen.index(str(submission.job.path)) + 1] == str(tmp_path / "w o r k/data")

    def test_planning_changes_nothing_and_sending_makes_the_folder_of_logs(self, checkout, tmp_path):
        chain = jobs.plan(checkout, "here", "03_pack_arrow")
        assert not (tmp_path / "seen").exists() and not (tmp_path / "w o r k/logs").exists()
        assert jobs.send(chain) == ["4711"]
        assert (tmp_path / "w o r k/logs").is_dir()

    def test_the_number_of_parts_is_a_number_and_not_counted_from_the_array(self, checkout, tmp_path):
        where = [str(tmp_path / "data"), "out.tars"]
        (tmp_path / "data").mkdir(exist_ok=True)
        for words, parts in ((where, "4"), ([*where, "8", "--verify", "full"], "8")):
            packing, merging = jobs.plan(checkout, "here", "05_pack_tar", words, ["--array=2-3"])
            for each in (packing, merging):
                assert each.argv[each.argv.index(str(each.job.path)) + 3] == parts
        assert "SLURM_ARRAY_TASK_ID/$parts" in packing.job.path.read_text()

    def test_a_url_is_passed_on_as_it_is(self, checkout, tmp_path):
        (tmp_path / "data").mkdir(exist_ok=True)
        words = [str(tmp_path / "data"), "s3://course/a set", str(tmp_path / "seen")]
        for given, expected in ((words, "s3://course/a set"), (words[:1], "s3://course/train")):
            (streaming,) = jobs.plan(checkout, "here", "09_stream", given)
            assert streaming.argv[streaming.argv.index(str(streaming.job.path)) + 2] == expected

    def test_the_log_of_each_job_is_told_by_its_name(self, checkout, tmp_path):
        logs = tmp_path / "w o r k/logs"
        packing, merging = jobs.plan(checkout, "here", "05_pack_tar")
        assert packing.log("7") == logs / "05_pack_tar-7_*.out"
        assert merging.log("8") == logs / "05_merge_tar-8.out"
        (named,) = jobs.plan(checkout, "here", "03_pack_arrow", options=["--job-name=mine"])
        assert named.log("9") == logs / "mine-9.out"
        (elsewhere,) = jobs.plan(checkout, "here", "03_pack_arrow", options=["--output=/scratch/%j.txt"])
        assert elsewhere.log("9") == Path("/scratch/9.txt")

    def test_the_queue_that_is_shown_is_that_of_the_site(self, checkout, tmp_path):
        (submission,) = jobs.plan(checkout, "here", "03_pack_arrow")
        assert submission.queue() == "squeue --me"
        conf = tmp_path / "slurm.conf"
        conf.touch()
        with (checkout / "slurm/sites/here.env").open("a") as file:
            file.write(f'SLURM_CONF="{conf}"\n')
        (submission,) = jobs.plan(checkout, "here", "03_pack_arrow")
        assert submission.queue() == f"SLURM_CONF={conf} squeue --me"

    def test_a_relative_path_is_meant_from_where_the_user_stands(self, checkout, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "mine").mkdir()
        (submission,) = jobs.plan(checkout, "here", "03_pack_arrow", ["mine", "out.arrow"])
        assert submission.argv[-2:] == (str(tmp_path / "mine"), str(tmp_path / "out.arrow"))

    def test_options_with_quotes_are_read_as_a_shell_reads_them(self, checkout, mine):
        mine("SITE_CPU_OPTIONS='--comment=\"two words\" -x n1'\n")
        assert site.load(checkout, "here").options("cpu") == ["--comment=two words", "-x", "n1"]

    def test_what_a_site_prints_is_no_variable(self, checkout, mine, tmp_path):
        mine("echo loaded modules\n")
        assert not [key for key in site.load(checkout, "here").environment if "loaded" in key]

    def test_an_account_may_be_an_option(self, checkout, mine):
        mine("SITE_ACCOUNT=required\n")
        options = ["--account=a", "--time=09:00:00"]
        packing, merging = jobs.plan(checkout, "here", "05_pack_tar", options=options)
        assert "--account=a" in merging.argv and "--time=09:00:00" not in merging.argv
        assert "--time=09:00:00" in packing.argv

    def test_the_numbers_of_a_job_around_do_not_reach_the_new_one(self, checkout, tmp_path, monkeypatch):
        monkeypatch.setenv("SLURM_JOB_ID", "1")
        monkeypatch.setenv("SLURM_CPUS_PER_TASK", "9")
        (tmp_path / "slurm.conf").touch()
        monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
        (submission,) = jobs.plan(checkout, "here", "03_pack_arrow")
        kept = [name for name in submission.environment if name.startswith("SLURM")]
        assert kept == ["SLURM_CONF"]
        assert submission.text().startswith("env -u SLURM_CPUS_PER_TASK -u SLURM_JOB_ID COURSE_")

    def test_personal_values_have_the_last_word_and_defaults_build_on_them(self, checkout, mine, tmp_path):
        mine(f'COURSE_WORK="{tmp_path}/mine"\nSITE_CPU_OPTIONS="--qos=short"\n')
        found = site.load(checkout, "here")
        assert found["COURSE_DATA"] == f"{tmp_path}/w o r k/data"  # this site leaves no choice of COURSE_WORK
        assert found.work == tmp_path / "mine" and found.options("cpu") == ["--qos=short"]

    def test_the_command_line_takes_flags_of_the_job_behind_two_dashes(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(jobs, "plan", lambda *words: print(json.dumps(words[1:])) or [])
        monkeypatch.setattr(jobs, "send", lambda chain: [])
        assert command.main(["local", "x", "--", "--json", "a b", "-O", "k=v"]) == 0
        assert json.loads(capsys.readouterr().out) == ["local", "x", ["--json", "a b", "-O", "k=v"], []]


def test_a_script_of_ones_own_is_a_job_like_those_of_the_course(tmp_path):
    path = tmp_path / "my job.sbatch"
    path.write_text("#!/bin/bash\n# Mine.\n# Args: DATA=x\n#SBATCH --nodes=3\nset -eo pipefail\n")
    job = jobs.find(ROOT, str(path))
    assert (job.path, job.name, job.directives) == (path, "my job", ("--nodes=3",))
    with pytest.raises(errors.UsageError, match="there is no job"):
        jobs.find(ROOT, str(tmp_path / "gone.sbatch"))


class TestScripts:
    @pytest.mark.parametrize("name", JOBS)
    def test_a_script_has_no_faults_is_short_and_says_what_it_does(self, name):
        assert script.faults(script.folder(ROOT) / f"{name}.sbatch") == []
        text = (script.folder(ROOT) / f"{name}.sbatch").read_text()
        assert len(text.splitlines()) <= 40
        assert text.startswith("#!/bin/bash\n# ") and "# Submit: " in text
        assert f"--job-name={name}\n" in text and "--output=logs/%x-" in text and "--time=" in text
        assert "COURSE_ROOT:?start me with slurm/submit" in text

    @pytest.mark.parametrize("name", JOBS)
    def test_each_command_of_a_script_is_one_of_ours(self, name):
        """Every `smallfiles` line parses, with stand-ins for what the shell puts in."""
        text = (script.folder(ROOT) / f"{name}.sbatch").read_text().replace("\\\n", " ")
        for line in re.findall(r"smallfiles ([^\n|&;)']+)", text):
            line = line.partition(" #")[0].replace('"$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"', "1/4")
            words = [re.sub(r"\$\{?\w+\}?", "7", word) for word in shlex.split(line) if word != "$@"]
            assert cli.parse(words).verb == words[0]

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ("cd x\n#SBATCH --time=1\nset -eo pipefail\n", "line 3: #SBATCH behind the first command"),
            ("#SBATCH --account=me\nset -eo pipefail\n", "belongs to the site file"),
            ("# Uses: gpus\nset -eo pipefail\n", "Uses: gpus"),
            ("echo\n", "goes on after a command that failed"),
        ],
    )
    def test_a_faulty_script_is_told(self, tmp_path, text, fault):
        path = tmp_path / "x.sbatch"
        path.write_text("#!/bin/bash\n" + text)
        (found,) = script.faults(path)
        assert fault in found

    def test_the_readme_lists_every_job_with_what_it_says_of_itself(self):
        text = (ROOT / "slurm/README.md").read_text()
        for name in JOBS:
            assert f"| `{name}` | {script.find(ROOT, name).what} |" in text

    def test_every_site_has_a_page_and_can_be_read(self):
        for name in site.names(ROOT):
            found = site.load(ROOT, name)
            assert found["SITE_TITLE"] and found["SITE_VERIFIED"]
            assert found["SITE_ACCOUNT"] in ("none", "required")
            page = site.folder(ROOT) / f"{name}.md"
            assert found["SITE_TITLE"] in page.read_text()
            assert name in ("local", "template") or "example, not verified" in page.read_text()
