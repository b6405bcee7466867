"""Each rule of the lint catches what it is there for, and a good notebook passes."""

import pytest
from lint_notebooks import SHOWS, lint, main, words
from percent import Cell, to_notebook

PROSE = "Reading many small files costs more than reading one large file of the same size. " * 4


ANSWER = f"<details>\n<summary>Answer</summary>\n\n{'word ' * 900}\n\n</details>\n"


def experiment(number: int) -> list[Cell]:
    optional = "" if number < 3 else "*Optional, 5 minutes.* "
    text = f"## {number} · Count inodes\n\n{optional}{PROSE}\n\n> **Predict.** How many?"
    head = Cell("markdown", text, tags=("core" if number < 3 else "optional",))
    return [head, *[Cell("code", f"count({number}, {i})") for i in range(5)]]


def good_notebook() -> list[Cell]:
    return [
        Cell(
            "markdown",
            "# 01 · Count the cost\n\n**Minutes** 20 · **Machine** any · **Needs** 00 · **Data** made",
        ),
        Cell("markdown", f"## Questions\n\n{PROSE}"),
        Cell("markdown", f"## After this you can\n\n{PROSE}"),
        Cell("markdown", f"## Set up\n\n{PROSE}"),
        Cell("code", 'from helpers import show, start\n\nsetup = start("01")'),
        Cell("code", "\n".join(SHOWS["01"])),
        *[cell for number in (1, 2, 3) for cell in experiment(number)],
        Cell("code", "guess = 7"),
        Cell("code", "show.figure(figures.bars(runs, guess=guess))"),
        Cell("markdown", f"## Exercise\n\n{PROSE * 3}"),
        Cell("markdown", f"## On the cluster\n\n{PROSE * 3}"),
        Cell("code", "show.command(text)"),
        Cell("markdown", f"## Key points\n\n{PROSE * 3}"),
        Cell("markdown", f"## Check yourself\n\n{ANSWER * 2}"),
        Cell("markdown", f"## Next\n\n{PROSE * 2}"),
    ]


def good_exercise() -> list[Cell]:
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
        (Cell("code", "%matplotlib inline"), "not plain Python"),
        (Cell("code", " "), "a cell is empty"),
        (Cell("markdown", "[there](02_missing.ipynb)"), "02_missing.ipynb leads nowhere"),
        (Cell("markdown", "[there](#no-heading)"), "leads to no heading"),
        (Cell("markdown", "![](figure.png)"), "has no alt text"),
    ],
)
def test_what_the_manner_forbids_is_found(problems, cell, said):
    assert any(said in problem for problem in problems([*good_notebook(), cell]))


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
        (drop("perf_counter_ns"), "open_slow is taught here, and stands in no code cell"),
        (drop("## Check yourself"), "the parts are"),
        (with_one_answer(), "two or three questions"),
        (untagged(), "an experiment is not tagged core or optional"),
        (unmarked(), "an optional part does not say"),
        (drop("guess = 7"), "no guess is kept"),
        ([Cell("markdown", "# 01 · Count"), *good_notebook()[1:]], "does not say **Minutes**"),
        ([*good_notebook(), Cell("markdown", PROSE * 30)], "words, not 900 to 1800"),
        ([*good_notebook(), *[Cell("code", "1")] * 20], "code cells, not 15 to 35"),
        ([*good_notebook(), *[Cell("code", "1\n" * 9)] * 30], "a median of 9"),
        (good_notebook()[:7] + good_notebook()[19:], "not 15 to 35"),
    ],
)
def test_a_notebook_without_its_anatomy_or_over_its_budget_is_found(problems, cells, said):
    cells = [Cell(c.kind, c.text, tags=c.tags) for c in cells]
    assert any(said in problem for problem in problems(cells))


def test_an_experiment_that_asks_for_no_guess_is_found(problems):
    cells = [Cell(c.kind, c.text.replace("**Predict.**", "Think.")) for c in good_notebook()]
    assert sum("asks for no guess" in problem for problem in problems(cells)) == 3


def test_an_appendix_begins_with_the_symptoms_and_has_no_exercise(problems):
    found = problems(drop("## Exercise"), name="12_breaks.ipynb")
    assert any("not ['Find your symptom', 'Set up', 'On the cluster'" in problem for problem in found)


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


def test_the_notebooks_of_this_checkout_keep_the_budgets(repository, capsys):
    assert main(["--root", str(repository)]) == 0, capsys.readouterr().out


def test_the_table_names_every_notebook(repository, capsys):
    assert main(["--root", str(repository), "--table"]) == 0
    built = list((repository / "notebooks").glob("*.ipynb"))
    assert capsys.readouterr().out.count("notebooks/") == len(built)
