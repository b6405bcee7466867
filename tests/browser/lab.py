"""A JupyterLab server of our own, and a page that talks to its application rather than to its looks.

Cell states are read from the shared model, not from the DOM, which only holds what is in view; and
"Run All" is sent only when the kernel is connected and idle, since before that it is lost.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from programs import wait_for

CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
CHROMIUM_FLAGS += ["--disable-background-networking", "--disable-component-update"]
NO_NEWS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"


def copy_checkout(repository: Path, to: Path) -> Path:
    """What a participant has after `git clone`, without what our own runs left behind."""
    left_behind = shutil.ignore_patterns("__pycache__", ".ipynb_*")
    for name in ("helpers", "smallfiles", "notebooks", "exercises"):
        shutil.copytree(repository / name, to / name, ignore=left_behind)
    return to


@contextlib.contextmanager
def server(root: Path, private: Path):
    """Start JupyterLab on a free loopback port; yields its address and stops it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    log = (private / "server.log").open("w")
    flags = ["--no-browser", "--allow-root", "--expose-app-in-browser", "--ServerApp.ip=127.0.0.1"]
    flags += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}"]
    flags += [f"--ServerApp.root_dir={root}", "--KernelManager.transport_encryption=auto"]
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *flags],
        env=_environment(root, private),
        cwd=root,
        stdout=log,
        stderr=log,
        start_new_session=True,  # so that its kernels can be ended with it, and nothing else
    )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(f"{address}/api?token={token}", process), 90)
        yield f"{address}/lab?reset&token={token}"
    finally:
        _stop(process)
        log.close()


def _environment(root: Path, private: Path) -> dict[str, str]:
    settings = private / "settings"
    (settings / NO_NEWS).parent.mkdir(parents=True, exist_ok=True)
    (settings / NO_NEWS).write_text('{"fetchNews": "false", "checkForUpdates": false}')
    own = {f"JUPYTER_{kind}_DIR": str(private / kind.lower()) for kind in ("RUNTIME", "CONFIG", "DATA")}
    return {
        **{k: v for k, v in os.environ.items() if k not in ("COURSE_DATA", "COURSE_STRICT", "MPLBACKEND")},
        **own,
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "IPYTHONDIR": str(private / "ipython"),
        "PYTHONPATH": str(root),
        "COURSE_SIZE": "small",
        "COURSE_CACHE": str(private / "course_data"),
    }


def _answers(address: str, process: subprocess.Popen) -> bool:
    assert process.poll() is None, "JupyterLab did not start; see server.log"
    with contextlib.suppress(OSError):
        urllib.request.urlopen(address, timeout=5).close()
        return True
    return False


def _stop(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


class Lab:
    """One browser page with JupyterLab in it."""

    def __init__(self, page, address: str) -> None:
        self.page = page
        page.goto(address)
        page.wait_for_function("() => window.jupyterapp !== undefined", timeout=90_000)
        page.evaluate("async () => { await window.jupyterapp.restored; }")

    def open(self, path: str) -> None:
        """Open a notebook and wait until its kernel can be talked to."""
        self.page.evaluate(
            """async path => {
                const app = window.jupyterapp;
                const panel = await app.commands.execute('docmanager:open', {path, factory: 'Notebook'});
                await panel.context.ready;
                await panel.sessionContext.ready;
                app.shell.activateById(panel.id);
                window.coursePanel = panel;
            }""",
            path,
        )
        self.page.wait_for_function(
            """() => {
                const kernel = window.coursePanel.sessionContext.session?.kernel;
                return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
            }""",
            timeout=90_000,
        )

    def run_all(self, limit_s: float = 150) -> list[dict]:
        """Run every cell and wait for the last; returns the cells with their outputs."""
        self.page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
        self.page.wait_for_function(
            """() => window.coursePanel.model.sharedModel.cells
                .filter(cell => cell.cell_type === 'code')
                .every(cell => cell.execution_count !== null && cell.executionState === 'idle')""",
            timeout=limit_s * 1000,
        )
        return self.cells()

    def cells(self) -> list[dict]:
        """The cells of the notebook that is open, as they would be saved."""
        return self.page.evaluate("() => window.coursePanel.model.sharedModel.cells.map(c => c.toJSON())")

    def select(self, cell_id: str) -> None:
        """Make a cell the active one and scroll to it."""
        self.page.evaluate(
            """async id => {
                const notebook = window.coursePanel.content;
                const index = notebook.widgets.findIndex(w => w.model.sharedModel.id === id);
                notebook.activeCellIndex = index;
                notebook.deselectAll();
                await notebook.scrollToItem(index, 'center');
                window.coursePanel.node.focus();
            }""",
            cell_id,
        )

    def run_cell(self, cell_id: str, limit_s: float = 60) -> dict:
        """Run one cell with Shift+Enter, as a participant does."""
        self.select(cell_id)
        before = self.cell(cell_id).get("execution_count")
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Shift+Enter")
        self.page.wait_for_function(
            """([id, before]) => {
                const cell = window.coursePanel.model.sharedModel.cells.find(c => c.id === id);
                return cell.execution_count !== before && cell.execution_count !== null
                    && cell.executionState === 'idle';
            }""",
            arg=[cell_id, before],
            timeout=limit_s * 1000,
        )
        return self.cell(cell_id)

    def cell(self, cell_id: str) -> dict:
        """A cell as it would be saved."""
        return next(cell for cell in self.cells() if cell["id"] == cell_id)

    def replace_line(self, cell_id: str, line: str, typed: str) -> None:
        """Click on a line of a cell and type another one in its place."""
        self.select(cell_id)
        self.page.locator(".jp-Notebook .jp-mod-active .cm-line", has_text=line).click()
        self.page.keyboard.press("End")
        self.page.keyboard.press("Shift+Home")
        self.page.keyboard.type(typed)

    def screenshot(self, path: Path, height: int = 0) -> None:
        """A picture of the page; a height makes it tall enough for a whole notebook."""
        path.parent.mkdir(parents=True, exist_ok=True)
        usual = self.page.viewport_size
        if height:
            self.page.set_viewport_size({"width": usual["width"], "height": height})
            self.page.wait_for_timeout(500)
            self.page.evaluate("() => window.coursePanel.content.scrollToItem(0, 'start')")
            self.page.wait_for_timeout(1500)
        self.page.screenshot(path=path)
        self.page.set_viewport_size(usual)


def shown(cells: list[dict], kind: str) -> list[str]:
    """The outputs of one MIME type of all cells."""
    data = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return ["".join(entry[kind]) for entry in data if kind in entry]


def errors(cells: list[dict]) -> list[dict]:
    """The error outputs of all cells."""
    return [o for cell in cells for o in cell.get("outputs", []) if o["output_type"] == "error"]
