"""The set-up cell: what it finds, what it makes, and the sentence when it cannot."""

import fcntl
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import matplotlib.figure
import matplotlib.pyplot as plt
import pytest
from IPython.core.interactiveshell import InteractiveShell
from programs import Program, wait_for

from helpers import cache, kernel, plans, setup, show, start
from helpers import show as showing
from smallfiles.atomic import drafted
from smallfiles.errors import MissingPackageError, ResourceError, SmallfilesError, UsageError
from smallfiles.machine import FileSystem
from smallfiles.pack import PackConfig
from smallfiles.sources import synthetic


@pytest.fixture(autouse=True)
def course_folder(tmp_path, monkeypatch, repository):
    """A cache of its own, and none of the caller's settings."""
    for name in ("COURSE_DATA", "COURSE_SIZE", "COURSE_STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(repository))  # for the kernels that tests start
    return tmp_path / "cache"


@pytest.fixture
def shell():
    """An IPython shell, as a kernel has one."""
    made = InteractiveShell.instance(colors="nocolor")
    yield made
    InteractiveShell.clear_instance()


def test_start_makes_the_data_says_what_it_is_and_finds_it_again(course_folder, capsys):
    before = set(threading.enumerate())  # not their number: threads of other tests may end meanwhile
    begun = start("01", 20)
    more = {thread.name for thread in set(threading.enumerate()) - before}
    assert more <= {"lock heartbeat"}  # which says that the data set is in use
    assert begun.count == len(list((course_folder / "folder-20").rglob("*.jpg"))) == 20
    assert begun.path() == course_folder / "folder-20"
    out = capsys.readouterr().out
    assert "Count the cost of small files: about 30 minutes" in out
    assert "CPUs" in out and "20 synthetic images, laid out as `folder`; made in" in out
    made = {p: p.stat().st_mtime_ns for p in (course_folder / "folder-20").rglob("*")}
    start("01", 20)
    assert {p: p.stat().st_mtime_ns for p in (course_folder / "folder-20").rglob("*")} == made
    assert "found, made earlier" in capsys.readouterr().out


@pytest.fixture
def program(request):
    """Starts a function beside the test."""

    def begin(function, *words):
        begun = Program(function, *words)
        request.addfinalizer(begun.end)
        return begun

    return begin


def test_two_kernels_that_start_at_once_make_the_data_once(course_folder, program):
    both = [program(lambda: print(start("01", 40).data["folder"].made_s)) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0]
    assert sorted(float(one.out.split()[-1]) > 0 for one in both) == [False, True]
    assert len(list((course_folder / "folder-40").rglob("*.jpg"))) == 40


def test_data_that_a_teacher_prepared_is_found_in_a_folder_that_cannot_be_written(course_folder, monkeypatch):
    made, _ = cache.find_or_make("folder", 20, course_folder)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: pytest.fail("wrote to it"))
    assert cache.find_or_make("folder", 20, course_folder) == (made, 0.0)


def test_a_cache_that_cannot_be_written_is_a_sentence_with_the_line_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ResourceError, match=r"cannot be written .*%env COURSE_CACHE="):
        start("01", 20)


def test_a_file_where_the_cache_should_be_is_a_sentence(course_folder):
    course_folder.write_text("no folder")
    with pytest.raises(ResourceError, match="cannot be written"):
        start("01", 20)


def test_a_full_disk_is_a_sentence(monkeypatch):
    real = os.statvfs

    def full(path):
        found = list(real(path))
        found[4] = 1  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", full)
    with pytest.raises(ResourceError, match="free"):
        cache.find_or_make("folder", 20, cache.cache_folder())


def draw(path):
    with drafted(path, "drawing"):
        print("drawing")
        time.sleep(100)


def test_a_lock_that_is_never_let_go_is_a_sentence(course_folder, monkeypatch, program):
    monkeypatch.setattr(cache, "LOCK_WAIT_S", 0.1)
    course_folder.mkdir()
    other = program(draw, course_folder / "folder-20")
    wait_for(lambda: other.out)
    with pytest.raises(ResourceError, match="Shut Down All Kernels"):
        cache.find_or_make("folder", 20, course_folder)


def test_a_file_system_without_locks_still_gets_its_data(course_folder, monkeypatch):
    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    made, seconds = cache.find_or_make("folder", 20, course_folder)
    assert made.is_dir() and seconds > 0


@pytest.mark.parametrize("size", ["huge", "19", "-5", "1e3", "2000001"])
def test_a_size_that_makes_no_sense_is_refused(size):
    with pytest.raises(UsageError, match="small, medium or a number"):
        start("00", size)


def test_the_size_comes_from_the_argument_then_the_environment_then_small(monkeypatch):
    plan = plans.Plan("x", 1, 1, small=300)
    assert plans.count_of(plan, None) == 300
    monkeypatch.setenv("COURSE_SIZE", "medium")
    assert plans.count_of(plan, None) == 4_000
    assert plans.count_of(plan, "123") == plans.count_of(plan, 123) == 123
    with pytest.raises(UsageError, match="or a number of images from 400 to"):
        plans.count_of(plans.plan_of("03"), 120)


def test_an_unknown_notebook_and_a_data_set_that_a_notebook_has_not_are_refused():
    with pytest.raises(UsageError, match="the notebook '77' is unknown"):
        start("77")
    with pytest.raises(UsageError, match="has no data set kaggle"):
        start("01", 20).path("kaggle")


def test_scratch_goes_with_its_kernel_no_worker_of_it_and_what_a_killed_one_left_with_the_next(course_folder):
    code = "from helpers import show, start; import os, sys; s = start('00').scratch; "
    code += "os.fork() or sys.exit(); os.wait(); print(s.is_dir(), s, flush=True)"
    end = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert end.stdout.split()[-2] == "True" and not Path(end.stdout.split()[-1]).exists()
    killed = subprocess.run([sys.executable, "-c", code + "; os._exit(9)"], capture_output=True, text=True)
    left = Path(killed.stdout.split()[-1])
    assert left.exists()
    living = cache.scratch_folder(course_folder, "01")
    assert not left.exists()
    assert cache.scratch_folder(course_folder, "02") != living and living.exists()


def test_a_shared_file_system_is_told_with_its_cap_and_a_larger_size_to_take_longer(tmp_path):
    place = FileSystem("lustre", True, 4096, 1 << 40, 1 << 39, None, None, Path("/"))
    plan = plans.Plan("x", 30, 40)
    begun = setup.Setup("01", plan, 10 * plan.small, {}, tmp_path, 2, 1 << 30, place)
    assert begun.shared and "computes 400 s" in begun.summary()
    assert "this lustre too" in begun.summary() and "20,000 operations" in begun.summary()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return synthetic.make(tmp_path_factory.mktemp("own") / "own", "folder", count=60).path


class TestOwnData:
    """`COURSE_DATA` puts a participant's own data in place of the synthetic one."""

    @pytest.fixture
    def own(self, made, monkeypatch):
        monkeypatch.setenv("COURSE_DATA", str(made))
        return made

    def test_it_is_sampled_the_same_way_each_time_and_a_smaller_set_taken_whole(
        self, own, course_folder, capsys
    ):
        first, second = (start("01", 30).source().manifest for _ in range(2))
        assert len(first) == 30 and first.digest == second.digest
        assert start("01", 30).path() == own
        assert "30 samples of your own data" in capsys.readouterr().out
        assert not (course_folder / "folder-30").exists()
        assert len(start("01", 100).source().manifest) == 60

    def test_an_archive_has_no_folder_of_small_files(self, own, tmp_path, monkeypatch):
        assert start("01", 30).folder() == own
        with tarfile.open(tmp_path / "own.tar", "w") as archive:
            archive.add(own, "own")
        monkeypatch.setenv("COURSE_DATA", str(tmp_path / "own.tar"))
        with pytest.raises(UsageError, match=r"are in .*own\.tar.*COURSE_DATA"):
            start("01", 30).folder()

    def test_labels_do_not_stand_for_captions(self, own):
        with pytest.raises(UsageError, match="has labels"):
            start("ex03", 20)

    def test_they_do_not_stand_for_images_with_masks(self, own):
        assert start("13", 20).path("segmentation") != own

    def test_a_folder_that_is_no_data_set_is_a_sentence(self, own, tmp_path, monkeypatch):
        (tmp_path / "empty").mkdir()
        monkeypatch.setenv("COURSE_DATA", str(tmp_path / "empty"))
        with pytest.raises(SmallfilesError, match="empty"):
            start("01", 20)


class TestKernel:
    """A kernel that cannot run the course is refused before a library fails."""

    def test_missing_packages_are_named_with_the_way_out(self, monkeypatch):
        monkeypatch.setattr(kernel, "NEEDED", ("numpy", "no_such_package"))
        with pytest.raises(MissingPackageError, match=r"has no no_such_package.*make lab"):
            kernel.check_kernel()

    def test_the_helpers_of_another_checkout_are_refused(self, tmp_path):
        other = tmp_path / "other"
        (other / "helpers").mkdir(parents=True)
        (other / "helpers/kernel.py").touch()
        (other / "notebooks").mkdir()
        with pytest.raises(UsageError, match=r"expected those of .*other.*Change Kernel"):
            kernel.check_kernel(other / "notebooks")

    def test_notebooks_outside_any_checkout_are_fine(self, tmp_path):
        kernel.check_kernel(tmp_path)

    def test_without_packages_the_first_import_works_and_start_says_one_sentence(self, repository):
        code = f"import sys; sys.path.append({str(repository)!r})\n"
        code += "from helpers import show, start; print(start); start('00')"
        end = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True)
        last = end.stderr.strip().splitlines()[-1]
        assert end.stdout.startswith("<function start")
        assert "MissingPackageError" in last and "has no numpy and no pyarrow" in last and "make lab" in last


class TestShownFailures:
    """In a notebook a failure is its sentence; other errors keep their traceback and get a hint."""

    def run(self, shell, capsys, code):
        kernel.install_handlers()
        result = shell.run_cell(code)
        return result, capsys.readouterr().out

    def test_our_own_errors_are_three_lines_without_traceback(self, shell, capsys):
        code = "from smallfiles import errors\nraise errors.UsageError('a b', expected='c', next_step='Do d')"
        result, out = self.run(shell, capsys, code)
        assert not result.success
        assert "Traceback" not in out and "raise" not in out
        assert "a b." in out and "Do d." in out and "Next step" in out

    def test_long_parts_are_broken_between_words(self):
        words = [f"word-{number:02}-of-a-long-path" for number in range(20)]
        lines = kernel.as_lines(UsageError("got", expected=" ".join(words), next_step="Do d"))
        assert max(map(len, lines)) <= 125
        assert set(words) <= {word.rstrip(".") for line in lines for word in line.split()}

    def test_flags_of_our_commands_come_with_their_keywords(self):
        error = UsageError("a", expected="b", next_step="Use --on-error skip, or --field mask=x; --mem")
        keywords = kernel.as_lines(error)[-1]
        assert keywords.endswith("--on-error is the keyword on_error, --field is the keyword columns.")

    def test_an_unknown_name_keeps_its_traceback_and_gets_the_hint(self, shell, capsys):
        _, out = self.run(shell, capsys, "rates + 1")
        assert "----> 1 rates + 1" in out
        assert "rates is not known yet" in out and "Run All Above Selected Cell" in out

    def test_a_missing_module_gets_the_hint(self, shell, capsys):
        _, out = self.run(shell, capsys, "import no_such_module")
        assert "has no no_such_module" in out and "make kernel" in out

    def test_strict_mode_leaves_errors_alone(self, shell, capsys, monkeypatch):
        monkeypatch.setenv("COURSE_STRICT", "1")
        code = "from smallfiles.errors import UsageError\nraise UsageError('a', expected='b', next_step='c')"
        _, out = self.run(shell, capsys, code)
        assert "Traceback" in out


class TestShowing:
    def drawn(self):
        fig = matplotlib.figure.Figure(figsize=(4, 2))
        fig.subplots().plot([1, 2])
        return fig

    def published(self, shell, monkeypatch):
        bundles = []
        monkeypatch.setattr(shell.display_pub, "publish", lambda data, **_: bundles.append(data))
        return bundles

    def test_a_figure_carries_its_description(self, shell, monkeypatch):
        bundles = self.published(shell, monkeypatch)
        show.figure(self.drawn(), alt='Two points, "rising" <b>')
        assert 'alt="Two points, &quot;rising&quot; &lt;b&gt;"' in bundles[0]["text/html"]
        assert bundles[0]["text/plain"].startswith("Figure: Two points")
        assert 300 < int(bundles[0]["text/html"].split('width="')[1].split('"')[0]) < 400

    def test_a_figure_is_closed_so_that_it_is_not_shown_twice(self, shell, monkeypatch):
        self.published(shell, monkeypatch)
        fig, _ = plt.subplots()
        show.figure(fig, alt="nothing")
        assert not plt.fignum_exists(fig.number)

    def test_a_figure_without_description_is_refused(self):
        with pytest.raises(UsageError, match="empty description"):
            show.figure(self.drawn(), alt=" ")

    def test_the_command_is_what_one_types(self, capsys):
        show.command(PackConfig(shuffle=7), "my data", "train.arrow")
        assert capsys.readouterr().out.strip() == "smallfiles pack 'my data' train.arrow --shuffle 7"

    def test_sentences_are_markdown_in_a_notebook_and_plain_elsewhere(self, shell, monkeypatch):
        bundles = self.published(shell, monkeypatch)
        showing.say("**Found** it")
        assert bundles == [{"text/markdown": "**Found** it", "text/plain": "Found it"}]
