"""One JupyterLab and one browser for all tests of this folder."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def lab_address(repository, tmp_path_factory):
    from lab import copy_checkout, server

    private = tmp_path_factory.mktemp("jupyter")
    root = copy_checkout(repository, tmp_path_factory.mktemp("checkout"))
    with server(root, private) as address:
        yield address


@pytest.fixture(scope="session")
def chromium(need_tool):
    if not os.environ.get("CI"):  # in CI it must be there
        pytest.importorskip("playwright.sync_api", reason="the Python package playwright is missing")
    from lab import CHROMIUM_FLAGS
    from playwright import sync_api as playwright

    path = need_tool("chromium", "chromium")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def lab(chromium, lab_address):
    from lab import Lab

    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    yield Lab(page, lab_address)
    page.close()


@pytest.fixture(scope="session")
def pictures(repository):
    """Where screenshots are kept."""
    return repository / "test_output" / "browser"
