"""A real browser opens the course in JupyterLab, runs it, and solves an exercise by typing."""

import pytest
from lab import errors, shown

pytestmark = pytest.mark.timeout(300)


def test_a_picture_of_a_mechanism_is_shown_as_large_as_it_was_drawn(lab, pictures):
    lab.open("notebooks/05_shard_a_dataset.ipynb")
    image = lab.page.locator(".jp-Notebook img[alt^='Eight shards']")
    lab.select("deal")
    image.wait_for(state="visible", timeout=20_000)
    for colours in ("light", "dark"):
        lab.page.emulate_media(color_scheme=colours)
        lab.screenshot(pictures / f"picture_{colours}.png")
        assert image.evaluate("element => element.naturalWidth") == 700
        assert image.bounding_box()["width"] == pytest.approx(700, abs=1), "text would be smaller than drawn"


def test_notebook_03_runs_and_shows_a_progress_bar_and_its_figure(lab, pictures):
    lab.open("notebooks/03_pack_arrow.ipynb")
    cells = lab.run_all()
    lab.screenshot(pictures / "notebook_03.png", height=9000)
    assert not errors(cells)
    assert shown(cells, "application/vnd.jupyter.widget-view+json"), "no progress bar"
    lab.select("start")
    lab.page.locator(".jp-Notebook .widget-hprogress, .jp-Notebook .jupyter-widgets").first.wait_for(
        state="visible", timeout=20_000
    )
    figures = [page for page in shown(cells, "text/html") if "<img alt=" in page]
    assert figures, "no figure"
    image = lab.page.locator(".jp-Notebook img[alt]").last
    image.scroll_into_view_if_needed()
    image.wait_for(state="visible", timeout=20_000)
    assert image.evaluate("element => element.naturalWidth") > 600
    breaks = "elements => elements.map(element => getComputedStyle(element).wordBreak)"
    assert set(lab.page.locator(".jp-OutputArea-output pre").evaluate_all(breaks)) == {"normal"}


def test_exercise_00_is_solved_by_typing(lab, pictures):
    lab.open("exercises/00_start_here.ipynb")
    cells = lab.run_all()
    assert not errors(cells)
    assert any("○" in text for text in shown(cells, "text/plain"))
    lab.screenshot(pictures / "exercise_00_not_started.png", height=1500)

    inodes = "(bytes_free if inodes_free is None else inodes_free)"
    both = f"return min(bytes_free // bytes_of_a_copy, {inodes} // {{}})"
    lab.replace_line("answer", "raise NotImplementedError", both.format("files"))
    lab.run_cell("answer")
    cell = lab.run_cell("check")
    assert any("✗" in t and "folders take an inode" in t for t in shown([cell], "text/plain"))
    lab.screenshot(pictures / "exercise_00_not_yet.png", height=1500)

    lab.replace_line("answer", both.format("files"), both.format("(files + folders)"))
    lab.run_cell("answer")
    cell = lab.run_cell("check")
    assert any("✓" in text for text in shown([cell], "text/plain"))
    verdict = lab.page.locator(".jp-Notebook [role=status]", has_text="✓")
    verdict.wait_for(state="visible", timeout=20_000)
    lab.screenshot(pictures / "exercise_00_passed.png", height=1500)
    assert not errors(lab.cells())
