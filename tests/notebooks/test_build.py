"""The build makes what the sources say, and says so when it does not."""

import json
import re
import shutil

import pytest
from build_notebooks import main
from build_slides import build as build_slides
from build_slides import packed
from expected import table
from percent import from_notebook

NOTEBOOK = "# %% [markdown]\n# # 01 · Count\n\n# %%\nprint(1)\n"
SOLUTION = "# %%\n# --8<-- solution\nanswer = 42\n# --8<-- stub\n# answer = None\n# --8<-- end\n"


@pytest.fixture
def checkout(tmp_path):
    for folder, name, text in (
        ("notebooks/src", "01_count.py", NOTEBOOK),
        ("solutions/src", "01_count.py", SOLUTION),
        ("solutions/src", "10_nodes.sbatch", "#!/bin/bash\n" + SOLUTION.replace("# %%\n", "")),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    return tmp_path


def run(checkout, *flags):
    return main(["--root", str(checkout), *flags])


def code_of(path):
    return [
        "".join(cell["source"])
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


def test_one_source_gives_exercise_and_solution(checkout):
    assert run(checkout) == 0
    assert code_of(checkout / "exercises/01_count.ipynb") == ["answer = None"]
    assert code_of(checkout / "solutions/01_count.ipynb") == ["answer = 42"]
    assert (checkout / "exercises/10_nodes.sbatch").read_text() == "#!/bin/bash\nanswer = None\n"
    assert (checkout / "solutions/10_nodes.sbatch").read_text() == "#!/bin/bash\nanswer = 42\n"


def test_a_second_build_changes_no_byte_and_no_file(checkout, capsys):
    run(checkout)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in checkout.rglob("*.ipynb")}
    capsys.readouterr()
    assert run(checkout) == 0
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in checkout.rglob("*.ipynb")} == before
    assert capsys.readouterr().out == ""


def test_the_check_passes_after_a_build(checkout):
    run(checkout)
    assert run(checkout, "--check") == 0


def test_the_check_prints_the_changed_line_and_builds_nothing(checkout, capsys):
    run(checkout)
    source = checkout / "notebooks/src/01_count.py"
    source.write_text(source.read_text().replace("print(1)", "print(2)"))
    built = (checkout / "notebooks/01_count.ipynb").read_bytes()
    assert run(checkout, "--check") == 1
    out = capsys.readouterr().out
    assert '-    "print(1)"' in out and '+    "print(2)"' in out
    assert (checkout / "notebooks/01_count.ipynb").read_bytes() == built


def test_the_check_refuses_a_built_notebook_with_outputs(checkout, capsys):
    run(checkout)
    path = checkout / "notebooks/01_count.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": ["1\n"]}]
    path.write_text(json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    assert run(checkout, "--check") == 1
    assert "stream" in capsys.readouterr().out


def test_the_check_names_a_missing_file_and_one_without_source(checkout, capsys):
    run(checkout)
    (checkout / "exercises/01_count.ipynb").rename(checkout / "exercises/02_gone.ipynb")
    assert run(checkout, "--check") == 1
    out = capsys.readouterr().out
    assert "--- exercises/01_count.ipynb" in out
    assert "exercises/02_gone.ipynb has no source" in out


def test_a_source_that_cannot_be_read_is_named_with_file_and_line(checkout, capsys):
    (checkout / "solutions/src/01_count.py").write_text("# %%\n# --8<-- stub\n")
    assert run(checkout) == 2
    assert "01_count.py, line 2: the marker 'stub'" in capsys.readouterr().err


def test_the_notebooks_of_this_checkout_are_what_their_sources_say(repository, capsys):
    assert main(["--root", str(repository), "--check"]) == 0, capsys.readouterr().out[-3000:]


def test_each_row_of_the_symptoms_leads_to_a_heading(repository):
    """The tables of notebook 12 and their page in the docs are one text."""
    page = (repository / "docs/symptoms.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(\.\./notebooks/([^)#]+)#?([^)]*)\)", page)
    assert len(targets) > 40 and "](#" not in page
    assert "| decoding is the limit |" in page and "details>" not in page, "it hides nothing"
    for name, anchor in targets:
        cells = from_notebook((repository / "notebooks" / name).read_text(encoding="utf-8"))
        found = [title.replace(" ", "-") for c in cells for title in re.findall(r"^#+ (.+)$", c.text, re.M)]
        assert not anchor or anchor in found, f"{name} has no heading {anchor}"


def test_the_slides_of_each_plan_explain_each_section_and_load_nothing(repository):
    """A lecture hall may have no network. Each section ends with its explanation, below code or a picture."""
    decks = build_slides(repository, None)
    assert set(decks) == {"three_hours.html", "one_day.html", "two_days.html"}
    parts = (repository / "docs/instructor_guide.md").read_text().split("\n### ")
    row = re.compile(r"^\| \d:\d\d \| \d+ \| (?:Welcome; )?\[?(\d\d)\b", re.MULTILINE)
    planned = {part.partition("\n")[0].lower().replace(" ", "_"): row.findall(part) for part in parts}
    for name, deck in decks.items():
        pages = deck.split("<section>")[1:]
        explained = [page for page in pages if '<div class="takeaway">' in page]
        assert len(explained) == sum("<strong>Hook.</strong>" in page for page in pages) >= 12, name
        assert all("<img " in page or "<pre class" in page for page in explained), name
        assert all("<strong>Bridge.</strong>" in page for page in explained), name
        assert set(planned[name[:-5]]) == set(re.findall(r"<h1>(\d\d) · ", deck)), name
        shown = re.sub(r"<pre.*?</pre>", "", deck, flags=re.DOTALL)  # code may name addresses
        loaded = re.findall(r"""(?:src|href)=["']([^"']+)|url\(([^)]+)\)|@import""", shown)
        assert loaded and all(one.startswith("data:") for one, _ in loaded)


GUIDE = """## Three plans

### Three hours

| From | Minutes | What | Skip |
|---|---|---|---|
| 0:00 | 20 | Welcome; [01](../notebooks/01_count.ipynb) section 2: opens | section 1 |
| 0:20 | 15 | Break | |

### When you are late

### 01 · Count

**Section 2, opens.**
*Hook*: "Why so slow?" Wait.
*Ask*: How many opens?
*Wrong answers*: "None." There are some.
*Explanation*: Each file
is opened.
*Bridge*: And then?
"""
SECTIONS = """# %% [markdown]
# # 01 · Count
#
# %% [markdown]
# ## 1 · First
#
# %% [markdown]
# ## 2 · Second
#
# %% tags=["slide"]
opens = 203
# %%
not_on_a_slide = 0
"""


def test_a_slide_shows_code_and_figure_of_a_tagged_cell_and_the_notes_what_the_guide_says(checkout):
    (checkout / "notebooks/src/01_count.py").write_text(SECTIONS)
    (checkout / "docs").mkdir()
    (checkout / "docs/instructor_guide.md").write_text(GUIDE)
    run(checkout)
    notebook = json.loads((checkout / "notebooks/01_count.ipynb").read_text())
    figure = {"text/html": '<img alt="203 opens" src="data:,">', "text/plain": "Figure"}
    drawn = {"output_type": "display_data", "metadata": {}, "data": figure}
    printed = {"output_type": "stream", "name": "stdout", "text": ["203 opens\n"]}
    notebook["cells"][3]["outputs"] = [printed, drawn]
    (checkout / "executed").mkdir()
    (checkout / "executed/01_count.ipynb").write_text(json.dumps(notebook))
    (deck,) = build_slides(checkout, checkout / "executed").values()
    cover, title, question, code, pause = deck.split("<section>")[1:]
    assert "Three hours" in cover and "01 · Count" in title and "section 1" in title and "Break" in pause
    assert "Why so slow?" in question and "How many opens?" in question and "There are some" in question
    assert "opens" in code and ">203 opens</pre>" in code and '<img alt="203 opens"' in code
    assert "Each file\nis opened." in code and "And then?" in code
    assert "not_on_a_slide" not in deck and "0:00 · 20 minutes" in code


@pytest.mark.parametrize(("lines", "slides"), [(22, 1), (23, 2)])
def test_bodies_share_a_slide_if_there_is_room(lines, slides):
    assert len(packed([(11, "a"), (lines - 11, "b")])) == slides


def test_expected_numbers_follow_the_records(repository, tmp_path):
    shutil.copytree(repository / "results", tmp_path / "results")
    before = table(tmp_path / "results")
    assert before == (repository / "docs/expected.md").read_text(encoding="utf-8")
    path = tmp_path / "results" / "slow.json"
    found = json.loads(path.read_text())
    serial = next(one for one in found["records"] if one["name"] == "serial script")
    serial["rates_per_s"][0] = 17.0
    path.write_text(json.dumps(found))
    assert "one file after the other | 17 to " in table(tmp_path / "results")
