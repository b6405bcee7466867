"""Register this environment as a Jupyter kernel of the user, and start it once. `make kernel` calls it.

Nothing is written but the user's own folder of kernels, so a shared installation may be read-only. A server
that starts the kernel later (JupyterHub, Open OnDemand) has loaded no modules and read no shell profile; so
what the kernel needs of the present environment is kept with it.

Source: jupyter-client, "Making kernels for Jupyter", "Kernel specs".
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import os
import sys
from pathlib import Path
from typing import Any

from ipykernel.kernelspec import install
from jupyter_client.manager import start_new_kernel

NAME = "smallfiles"
TITLE = "Small Files, Big Machines"
COURSE = ("COURSE_CACHE", "COURSE_DATA", "COURSE_SIZE", "COURSE_WORK")
OF_MODULES = ("LD_LIBRARY_PATH", "PATH", "PYTHONPATH")
CHECK = "import helpers, torch; print(helpers.__file__)"
START_S = 120
ROOT = Path(__file__).resolve().parents[1]


def kept() -> dict[str, str]:
    """Variables that go with the kernel: the course's, and those by which modules offer a site's PyTorch."""
    names = COURSE + OF_MODULES * on_site_packages()
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def on_site_packages() -> bool:
    """Whether the environment was made with SYSTEM_SITE=1."""
    settings = Path(sys.prefix, "pyvenv.cfg")
    return settings.is_file() and "include-system-site-packages = true" in settings.read_text()


def try_out() -> str:
    """Start the kernel as a server would, outside the checkout; what a cell printed."""
    manager, client = start_new_kernel(
        kernel_name=NAME, startup_timeout=START_S, cwd=str(Path.home()), extra_arguments=["--log-level=ERROR"]
    )
    lines: list[str] = []
    try:
        client.execute_interactive(
            CHECK, timeout=START_S, output_hook=lambda message: lines.append(_text(message))
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return "".join(lines).strip()


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content.get("text") or content.get("evalue") or ""


def main() -> int:
    """Register, try, say what was done and what to do next."""
    try:
        place = install(user=True, kernel_name=NAME, display_name=TITLE, env=kept())
        printed = try_out()
    except (OSError, RuntimeError) as error:
        print(f"kernel: it could not be registered or started: {error}", file=sys.stderr)
        return 1
    if Path(printed) != ROOT / "helpers" / "__init__.py":
        print(f"kernel: it does not run this course ({ROOT}): {printed}", file=sys.stderr)
        return 1
    print(
        f'registered and started once: choose the kernel "{TITLE}" ({place}; remove that folder to undo it)'
    )
    if not os.access(ROOT, os.W_OK):
        print(
            f"{ROOT} is not yours to write to. Work on copies: "
            f"mkdir -p ~/smallfiles && cp -r '{ROOT}/notebooks' '{ROOT}/exercises' ~/smallfiles/ && "
            f"ln -sfn '{ROOT}/docs' '{ROOT}/solutions' ~/smallfiles/"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
