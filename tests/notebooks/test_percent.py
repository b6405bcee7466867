"""py:percent text, cells and notebook JSON say the same thing."""

import difflib
import json

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from percent import HEADER, Cell, SourceTextError, emit, from_notebook, ids, parse, to_notebook

SOURCE = """\
# %% [markdown] id="top"
# # 00 · Title
#
#   indented *text* with ü and `%%`

# %% tags=["hide-input"] collapsed=true
import sys

print(sys.path)
"""

line = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=30)
body = st.lists(line, max_size=6).map(lambda lines: "\n".join(lines).strip("\n"))


def fits(cell):
    prefix = "# " if cell.kind == "markdown" else ""
    return not any(HEADER.match(prefix + text) for text in cell.text.split("\n"))


cells = st.lists(
    st.builds(
        Cell,
        st.sampled_from(["markdown", "code"]),
        body,
        st.none(),
        st.lists(st.text("ab-ü ", min_size=1, max_size=8), max_size=2, unique=True).map(tuple),
        st.dictionaries(
            st.sampled_from(["a", "b-c", "key"]), st.booleans() | st.text(max_size=5), max_size=2
        ),
    ).filter(fits),
    max_size=8,
)


def test_a_source_is_read_as_its_cells():
    first, second = parse(SOURCE)
    assert first == Cell("markdown", "# 00 · Title\n\n  indented *text* with ü and `%%`", "top")
    assert second.tags == ("hide-input",)
    assert second.metadata == {"collapsed": True}
    assert second.text == "import sys\n\nprint(sys.path)"


def test_a_canonical_source_comes_back_to_the_letter():
    assert emit(parse(SOURCE)) == SOURCE


@given(cells)
def test_writing_and_reading_gives_the_same_cells(given_cells):
    assert parse(emit(given_cells)) == given_cells


@given(cells)
def test_building_and_reading_the_notebook_gives_the_source_back(given_cells):
    built = to_notebook(given_cells)
    back = from_notebook(built)
    assert [cell.id for cell in back] == ids(given_cells)
    without_ids = [Cell(c.kind, c.text, None, c.tags, c.metadata) for c in back]
    assert emit(without_ids) == emit(given_cells)
    assert to_notebook(back) == built  # explicit ids change nothing


@given(cells)
def test_a_built_notebook_is_valid_and_holds_no_output(given_cells):
    notebook = nbformat.reads(to_notebook(given_cells), as_version=4)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert all(
        not cell.outputs and cell.execution_count is None for cell in notebook.cells if "outputs" in cell
    )


@given(cells)
def test_every_id_is_unique(given_cells):
    found = ids(given_cells)
    assert len(set(found)) == len(found)


def changed_lines(old, new):
    diff = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [entry for entry in diff if entry[0] in "+-" and entry[:3] not in ("+++", "---")]


@pytest.mark.parametrize(
    "edit", [("# # 00 · Title", "# # 00 · Another title"), ("import sys", "import os"), ("*text*", "words")]
)
def test_a_change_of_one_line_is_a_difference_of_one_line(edit):
    old, new = to_notebook(parse(SOURCE)), to_notebook(parse(SOURCE.replace(*edit)))
    assert len(changed_lines(old, new)) == 2


def test_a_new_cell_moves_no_id_of_another_section():
    text = "# %% [markdown]\n# # A\n\n# %%\n1\n\n# %% [markdown]\n# ## B\n\n# %%\n2\n"
    old, new = ids(parse(text)), ids(parse(text.replace("# %%\n1\n", "# %%\n0\n\n# %%\n1\n")))
    assert set(old) < set(new)
    assert old[2:] == new[3:] == ["s02-01", "s02-02"]


def test_a_heading_with_an_id_names_the_cells_of_its_section():
    text = '# %% [markdown] id="cost"\n# ## Cost\n\n# %%\n1\n'
    assert ids(parse(text)) == ["cost", "cost-02"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print(1)\n# %%\n", "line 1: text before the first"),
        ("# %% [markdown]\n# a\nnaked\n", "line 3: a Markdown line begins with"),
        ("# %% tags=hide\n", "line 1: the value of tags is not JSON"),
        ("# %% a title\n", "line 1: expected key=JSON"),
        ('# %% tags="a"\n', "tags are a JSON list"),
        ('# %% id="a b"\n', "the id 'a b'"),
    ],
)
def test_a_mistake_in_a_source_is_named_with_its_line(text, said):
    with pytest.raises(SourceTextError, match=said):
        parse(text)


def test_metadata_that_jupyter_would_refuse_is_refused():
    with pytest.raises(SourceTextError, match="no valid notebook"):
        to_notebook(parse('# %% tags=["a,b"]\n1\n'))


def test_an_id_used_twice_is_refused():
    with pytest.raises(SourceTextError, match="line 4: the id 'a' is used twice"):
        ids(parse('# %% id="a"\n1\n\n# %% id="a"\n2\n'))


def test_a_line_that_would_begin_a_new_cell_is_refused():
    with pytest.raises(SourceTextError, match="would begin a new one"):
        emit([Cell("markdown", "%% not a header")])


def test_the_json_is_laid_out_as_jupyter_saves_it():
    built = to_notebook(parse(SOURCE))
    assert built == json.dumps(json.loads(built), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
