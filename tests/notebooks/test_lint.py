"""Each rule of the lint catches what it is there for, and a good notebook passes."""

import re
from dataclasses import replace

import pytest
from lint_notebooks import EXPERIMENT, SHOWS, Page, lint, main, unmade, words
from percent import Cell, from_notebook, to_notebook

PROSE = "Reading many small files costs more than reading one large file of the same size. " * 4


IMPORTED = "ThreadPoolExecutor, measure, open_slow, os, perf_counter_ns"
ANSWER = f"<details>\n<summary>Answer</summary>\n\n{'word ' * 900}\n\n</details>\n"


def experiment(number):
    optional = "" if number < 3 else "*Optional, 5 minutes.* "
    text = f"## {number} · Count inodes\n\n{optional}{PROSE}\n\n> **Predict.** How many?"
    head = Cell("markdown", text, tags=("core" if number < 3 else "optional",))
    return [head, *[Cell("code", f"sum(({number}, {i}))") for i in range(5)]]


def good_notebook():
    return [
        Cell(
            "markdown",
            "# 01 · Count the cost\n\n**Minutes** 20 · **Machine** any · **Needs** 00 · **Data** made",
        ),
        Cell("markdown", f"## Questions\n\n{PROSE}"),
        Cell("markdown", f"## After this you can\n\n{PROSE}"),
        Cell("markdown", f"## Set up\n\n{PROSE}"),
        Cell("code", 'from helpers import figures, show, start\n\nsetup = start("01")'),
        Cell("code", "\n".join([f"from course import {IMPORTED}", *SHOWS["01"]])),
        *[cell for number in (1, 2, 3) for cell in experiment(number)],
        Cell("code", "guess = 7"),
        Cell("code", "show.figure(figures.bars(setup, guess=guess))"),
        Cell("markdown", f"## Exercise\n\n{PROSE * 3}"),
        Cell("markdown", f"## On the cluster\n\n{PROSE * 3}"),
        Cell("code", "show.command(setup)"),
        Cell("markdown", f"## Key points\n\n{PROSE * 3}"),
        Cell("markdown", f"## Check yourself\n\n{ANSWER * 2}"),
        Cell("markdown", f"## Next\n\n{PROSE * 2}"),
    ]


def good_exercise():
    return [
        Cell("markdown", "# Exercise 01 · Fit the quota\n\n★☆☆ · 10 minutes"),
        Cell("markdown", "## Task\n\nWrite `fit(n: int) -> int`."),
        Cell("code", "def fit(n: int) -> int:\n    raise NotImplementedError"),
        Cell("code", "from exercises.checks import ex01_fit as check\n\ncheck.fit(fit)"),
        Cell("markdown", "<details>\n<summary>Hint</summary>\n\nDivide.\n\n</details>"),
    ]


@pytest.fixture
def problems(tmp_path):
    def run(cells, folder="notebooks", name="01_count.ipynb"):
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(to_notebook(cells))
        return lint(path)

    return run


def test_a_good_notebook_and_a_good_exercise_pass(problems):
    assert problems(good_notebook()) == []
    assert problems(good_exercise(), "exercises") == []


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (Cell("code", "!pip install torch"), "installs or downloads"),
        (Cell("code", "%pip install torch"), "installs"),
        (Cell("code", "!wget https://example.org"), "installs or downloads"),
        (Cell("code", "open('/home/ana/data')"), "absolute path"),
        (Cell("markdown", "See /scratch/data for it"), "absolute path"),
        (Cell("markdown", ":::{note}\ntext\n:::"), "`:::`"),
        (Cell("markdown", "> [!NOTE]\n> text"), "[!NOTE]"),
        (Cell("markdown", "Well done \U0001f389"), "emoji"),
        (Cell("code", "plt.show()"), "show.figure"),
        (Cell("code", "\n".join(f"a{i} = {i}" for i in range(21))), "has 21 lines, more than 20"),
        (Cell("code", "def f():\n" + "    a = 1\n" * 20), "the function f has 21 lines"),
        (Cell("code", f"a = '{'b' * 95}'"), "has a line of 101 characters, more than 100"),
        (Cell("code", "%matplotlib inline"), "not plain Python"),
        (Cell("code", " "), "a cell is empty"),
        (Cell("markdown", "A folder\nis no file."), "'is no file' is hard to read; write: is not a ..."),
        (Cell("markdown", "[there](02_missing.ipynb)"), "02_missing.ipynb leads nowhere"),
        (Cell("markdown", "[there](#no-heading)"), "leads to no heading"),
        (Cell("markdown", "![](figure.png)"), "has no alt text"),
        (Cell("markdown", "```bash time ls\nls -l ```"), "'```bash time ls' holds more than a language"),
        (Cell("markdown", "```bash\nls -l ```"), "'```bash' is not closed"),
        (
            Cell("markdown", "```bash\nls ```\n\n```python\n1\n```"),
            "'```bash' is not closed before '```python'",
        ),
    ],
)
def test_what_the_manner_forbids_is_found(problems, cell, said):
    assert any(said in problem for problem in problems([*good_notebook(), cell]))


def test_blocks_of_code_that_are_shown_as_they_stand_pass(problems):
    blocks = "```bash\nls\n```\n\nor\n\n```\nls\n```\n\n> ```python\n> 1\n> ```"
    assert problems([*good_notebook(), Cell("markdown", blocks)]) == []


def fold(text, number):
    """The cell that begins with this text, folded; `number` says which one."""
    cells = good_notebook()
    place = [n for n, cell in enumerate(cells) if cell.text.startswith(text)][number]
    cells[place] = Cell("code", cells[place].text, metadata={"jupyter": {"source_hidden": True}})
    return cells, place


def test_folded_code_counts_no_lines_and_shows_nothing(problems, monkeypatch):
    monkeypatch.setattr("lint_notebooks.MAX_VISIBLE_LINES", 25)
    assert any("visible lines of code, more than 25" in problem for problem in problems(good_notebook()))
    cells, place = fold("from course", 0)
    cells.insert(place, Cell("markdown", "The folded cell imports."))
    found = problems(cells)
    assert not any("visible lines" in problem for problem in found)
    assert any("os.open is taught here" in problem for problem in found)


def test_a_folded_cell_without_a_sentence_on_what_it_does_is_found(problems):
    cells, place = fold("sum((1, 0", 0)
    assert any("does not say what the *folded* cell does" in problem for problem in problems(cells))
    cells[place - 1] = replace(cells[place - 1], text=cells[place - 1].text + "\n\nThe folded cell adds.")
    assert problems(cells) == []


def test_too_many_visible_lines_in_the_median_are_found(problems, monkeypatch, tmp_path, capsys):
    problems(good_notebook())
    assert main(["--root", str(tmp_path)]) == 0
    monkeypatch.setattr("lint_notebooks.MAX_MEDIAN_VISIBLE_LINES", 10)
    assert main(["--root", str(tmp_path)]) == 1
    assert "a median of" in capsys.readouterr().out


def test_folded_answers_count_no_words():
    assert words(ANSWER) == 0 and words(PROSE) > 40


def with_one_answer():
    return [Cell(c.kind, c.text.replace(ANSWER * 2, ANSWER), tags=c.tags) for c in good_notebook()]


def untagged():
    return [Cell(c.kind, c.text) for c in good_notebook()]


def unmarked():
    return [Cell(c.kind, c.text.replace("*Optional, 5 minutes.* ", ""), tags=c.tags) for c in good_notebook()]


def drop(title):
    return [cell for cell in good_notebook() if not cell.text.startswith(title)]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (drop("# 01"), "the first heading is not `# 01 · Title`"),
        (drop("## Key points"), "the parts are"),
        (drop("## Next"), "the parts are"),
        (drop("from helpers"), 'does not call start("01")'),
        (drop("## 2 ·"), "2 experiments"),
        (drop("show.figure"), "no figure is drawn"),
        (drop("from course"), "open_slow is taught here, and no visible cell shows it"),
        (drop("## Check yourself"), "the parts are"),
        (with_one_answer(), "two or three questions"),
        (untagged(), "an experiment is not tagged core or optional"),
        (unmarked(), "an optional part does not say"),
        (drop("guess = 7"), "no guess is kept"),
        ([Cell("markdown", "# 01 · Count"), *good_notebook()[1:]], "does not say **Minutes**"),
        ([*good_notebook(), Cell("markdown", PROSE * 60)], "words, not 900 to 2640"),
        ([*good_notebook(), *[Cell("code", "1")] * 20], "code cells, not 15 to 35"),
        ([*good_notebook(), *[Cell("code", "1\n" * 9)] * 30], "a median of 9"),
        (good_notebook()[:7] + good_notebook()[19:], "not 15 to 35"),
    ],
)
def test_a_notebook_without_its_anatomy_or_over_its_budget_is_found(problems, cells, said):
    cells = [Cell(c.kind, c.text, tags=c.tags) for c in cells]
    assert any(said in problem for problem in problems(cells))


@pytest.mark.parametrize(
    ("optional", "core", "needed"),
    [
        ("import io", "io.StringIO()", ["io"]),
        ("size = 4", "[size for _ in range(2)]", ["size"]),
        ("size = 4", "def f(n):\n    return [n * size for _ in 'ab']", ["size"]),
        ("size = 4", "class A:\n    area = size\n    half = area / 2", ["size"]),
        ("", "def f(n):\n    return n * size\n\n\nsize = 4\nf(2)", []),
        ("", "def f():\n    global size\n    size = 4\n\n\nf()\nprint(size, __name__)", []),
        ("", "with open('a') as file, open('b') as b:\n    (n := len([*file, *b]))\nprint(n, file)", []),
        ("import io", "try:\n    import io.a\nexcept OSError as error:\n    print(error)\nio.a", []),
        ("size = 4", "%time size", []),
    ],
)
def test_a_core_section_that_needs_an_optional_one_is_found(problems, optional, core, needed):
    cells = good_notebook()
    more = Cell("markdown", "## More", tags=("core",))
    cells[21:21] = [Cell("code", optional or "1"), more, Cell("code", core)]
    found = [problem for problem in problems(cells) if "optional sections only" in problem]
    assert [re.search(r"needs (\w+)", problem)[1] for problem in found] == needed
    assert all(repr(core.split("\n")[0]) in problem for problem in found)


def test_the_sections_of_the_plans_run_without_those_that_are_skipped(repository):
    guide = (repository / "docs/instructor_guide.md").read_text()
    rows = re.findall(r"\| \[?(\d\d)(?:\]\([^)]*\))? sections? (\d(?: to \d|, \d)*)", guide)
    assert len(rows) == 15
    for number, listed in rows:
        chosen = set(re.sub(r"(\d) to (\d)", lambda m: str([*range(int(m[1]), int(m[2]) + 1)]), listed))
        path = next((repository / "notebooks").glob(f"{number}_*.ipynb"))
        cells = from_notebook(path.read_text(encoding="utf-8"))
        skipped = [cell for cell in cells if EXPERIMENT.search(cell.text) and cell.text[3] not in chosen]
        assert not list(unmade(Page(path, cells), skipped.__contains__)), f"{path.name}, sections {listed}"


def test_a_notebook_asks_for_three_or_four_guesses(problems):
    for text, said in (("> Think.", "0 guesses"), ("> **Predict.**" * 2, "6 guesses")):
        cells = [replace(c, text=c.text.replace("> **Predict.**", text)) for c in good_notebook()]
        assert sum(said in problem for problem in problems(cells)) == 1


def test_a_reference_begins_with_the_symptoms(problems):
    found = problems(good_notebook(), name="12_breaks.ipynb")
    assert any("not ['Find your symptom', 'Set up', 'Exercise', 'On the cluster'" in p for p in found)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# Exercise 01 ·", "# Count ·", "first heading"),
        ("★☆☆", "easy", "stars"),
        ("from exercises.checks", "from elsewhere", "no check"),
        ("</summary>\n\n", "</summary>\n", "blank line"),
        ("<details>", "", "no folded hint"),
        ("Write `fit", PROSE * 2 + "`fit", "more than 60"),
    ],
)
def test_an_exercise_that_lacks_something_is_found(problems, old, new, said):
    cells = [Cell(c.kind, c.text.replace(old, new)) for c in good_exercise()]
    assert any(said in problem for problem in problems(cells, "exercises"))


def test_words_count_what_is_read():
    assert words("Two words\n\n```\ncode here\n```\n\n[a link](target.md) <b>bold</b>") == 5
    assert words("three: `<module '__main__'>`, and 3 < 4, so all of this counts: <br>> a quote") == 13


def test_a_reference_is_looked_up_in_the_rows_of_its_tables(problems):
    table = Cell("markdown", f"| Symptom | Cause |\n|---|---|\n| a job hangs | {PROSE * 60} |")
    cells = [*good_notebook(), table]
    assert any("words, not 900 to 2640" in problem for problem in problems(cells))
    assert not any("words" in problem for problem in problems(cells, name="12_breaks.ipynb"))
    much = [*cells, Cell("markdown", PROSE * 50)]
    assert any("words, not 900 to 2640" in problem for problem in problems(much, name="12_breaks.ipynb"))


def test_the_notebooks_of_this_checkout_keep_the_budgets(repository, capsys):
    assert main(["--root", str(repository)]) == 0, capsys.readouterr().out


def test_the_table_names_every_notebook(repository, capsys):
    assert main(["--root", str(repository), "--table"]) == 0
    built = list((repository / "notebooks").glob("*.ipynb"))
    assert capsys.readouterr().out.count("notebooks/") == len(built)
