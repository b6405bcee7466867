"""One solution text gives both sides."""

import pytest
from gaps import choose_cells, derive
from hypothesis import given
from hypothesis import strategies as st
from percent import SourceTextError, parse

SOURCE = """\
# %%
def total(sizes: list[int]) -> int:
    # --8<-- solution
    return sum(sizes)
    # --8<-- stub
    # # your line here
    #
    # raise NotImplementedError("return a whole number")
    # --8<-- end
"""

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
# --8<-- solution
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" smallfiles pack a b
# --8<-- stub
# srun ____ smallfiles pack a b
# --8<-- end
"""


def test_the_solution_keeps_the_code_and_no_marker():
    assert derive(SOURCE, "solution") == (
        "# %%\ndef total(sizes: list[int]) -> int:\n    return sum(sizes)\n"
    )


def test_the_exercise_gets_the_stub_uncommented_at_its_indent():
    assert derive(SOURCE, "exercise").split("\n")[2:5] == [
        "    # your line here",
        "    ",
        '    raise NotImplementedError("return a whole number")',
    ]


def test_a_job_script_gets_its_gap():
    assert "srun ____ smallfiles" in derive(SCRIPT, "exercise")
    assert "srun --cpus-per-task" not in derive(SCRIPT, "exercise")
    assert derive(SCRIPT, "solution").startswith("#!/bin/bash\n#SBATCH --nodes=2\nsrun --cpus")


def test_a_gap_in_markdown_gives_markdown_on_both_sides():
    source = (
        "# %% [markdown]\n# A\n# --8<-- solution\n# answer\n# --8<-- stub\n# # Write here.\n# --8<-- end\n"
    )
    assert parse(derive(source, "solution"))[0].text == "A\nanswer"
    assert parse(derive(source, "exercise"))[0].text == "A\nWrite here."


@given(st.text(st.characters(exclude_characters="#\r"), max_size=80))
def test_a_text_without_markers_stays_as_it_is(text):
    assert derive(text, "solution") == derive(text, "exercise") == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# --8<-- stub\n", "line 1: the marker 'stub' stands where 'solution' is due"),
        ("# --8<-- solution\n# --8<-- end\n", "line 2: the marker 'end' stands where 'stub' is due"),
        ("# --8<-- solution\n1\n", "'stub' is missing"),
        ("# --8<-- solution\n1\n# %%\n", "line 3: the gap before this cell is not closed"),
        ("# --8<-- solution\n# --8<-- stub\nx = 1\n# --8<-- end\n", "line 3: a stub's lines are comments"),
    ],
)
@pytest.mark.parametrize("side", ["solution", "exercise"])
def test_a_gap_that_is_not_whole_is_refused_on_both_sides(text, said, side):
    with pytest.raises(SourceTextError, match=said):
        derive(text, side)


def test_a_cell_of_one_side_is_left_out_on_the_other():
    cells = parse('# %% tags=["solution-only", "x"]\n1\n\n# %% tags=["exercise-only"]\n2\n')
    assert [(c.text, c.tags) for c in choose_cells(cells, "solution")] == [("1", ("x",))]
    assert [(c.text, c.tags) for c in choose_cells(cells, "exercise")] == [("2", ())]
