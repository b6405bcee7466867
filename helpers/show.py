"""Show something under a cell: a sentence, a figure with alt text, the command for the cluster.

The trap: JupyterLab gives a PNG output no alt text, whatever its metadata says, so a figure goes out
as HTML with a described image. Notebook 00 draws the first.
"""

from __future__ import annotations

import base64
import html
import io
import sys
from typing import TYPE_CHECKING, Any, Protocol

from smallfiles.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 144
CSS_DPI = 96


class HasCommandLine(Protocol):
    """A configuration that prints its own command, such as `smallfiles.pack.PackConfig`."""

    def to_cli(self, *paths: str) -> str:
        """The command that does the same run."""


def say(markdown: str) -> None:
    """Show a computed sentence as Markdown; as plain text outside a notebook."""
    _show({"text/markdown": markdown, "text/plain": markdown.replace("**", "")})


def figure(fig: Figure, *, alt: str) -> None:
    """Show a figure with a description for those who cannot see it, and close it.

    Args:
        fig: From matplotlib.
        alt: What the figure shows, the finding first; computed from the measurement.

    Raises:
        UsageError: There is no description.
    """
    if not alt.strip():
        raise UsageError(
            "the figure has an empty description",
            expected="a sentence or two on what it shows",
            next_step="Compute it from what was measured: show.figure(fig, alt=f'…')",
        )
    target = io.BytesIO()
    fig.savefig(target, format="png", dpi=DPI, facecolor="white", bbox_inches="tight")
    _close(fig)
    data = target.getvalue()
    width = int.from_bytes(data[16:20], "big") * CSS_DPI // DPI  # a PNG tells its width there
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    image = f'<img alt="{html.escape(alt)}" width="{width}" src="{source}">'
    _show({"text/html": image, "text/plain": f"Figure: {alt}"})


def _close(fig: Figure) -> None:
    """Or a notebook would show it a second time at the end of the cell."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(fig)


def command(config: HasCommandLine, *paths: str) -> None:
    """Show the command line that does a configuration's run as a job.

    Args:
        config: What the notebook ran.
        paths: What its `to_cli` takes, usually the source and the output.
    """
    line = config.to_cli(*paths)
    _show({"text/markdown": f"```bash\n{line}\n```", "text/plain": line})


def _show(bundle: dict[str, Any]) -> None:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None:
        shell.display_pub.publish(bundle)
    else:
        sys.stdout.write(bundle["text/plain"] + "\n")
