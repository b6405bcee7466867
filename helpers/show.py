"""Show something under a cell: a sentence, a figure with alt text, the command for the cluster.

The trap: JupyterLab gives PNG output no alt text, whatever its metadata are, so a figure is shown as HTML
with an image that has a description. Notebook 00 draws the first.
"""

from __future__ import annotations

import base64
import html
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from helpers.kernel import as_lines, broken
from smallfiles.errors import SmallfilesError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CSS_DPI = 96
_BETWEEN_WORDS = (
    "<style>.jp-OutputArea-output pre {word-break: normal !important; overflow-wrap: anywhere}</style>"
)


class HasCommandLine(Protocol):
    """A configuration that prints its own command, such as `smallfiles.pack.PackConfig`."""

    def to_cli(self, *paths: str) -> str:
        """The command that does the same run."""


def break_between_words() -> None:
    """Let JupyterLab break the long lines of all outputs between words; it breaks them anywhere."""
    if "IPython" in sys.modules:
        _show({"text/html": _BETWEEN_WORDS, "text/plain": ""})


def style_figures() -> None:
    """Let figures that a cell draws with matplotlib look like those of `figures`."""
    import matplotlib

    from smallfiles.measure.drawing import STYLE

    matplotlib.rcParams.update(STYLE)


def say(markdown: str) -> None:
    """Show a computed sentence as Markdown; as plain text outside a notebook."""
    _show({"text/markdown": markdown, "text/plain": markdown.replace("**", "")})


def error(caught: BaseException, without: str = "") -> None:
    """Print an error that a cell has caught, broken between words as one that it raises.

    Args:
        caught: The error.
        without: A part of paths to leave out, such as a temporary folder.
    """
    text = f"{caught}"
    lines = as_lines(caught, without) if isinstance(caught, SmallfilesError) else broken(text, without)
    sys.stdout.write("".join(f"{line}\n" for line in lines))


@dataclass(frozen=True)
class Drawing:
    """A figure and its description; the last value of a cell shows itself.

    Args:
        figure: From matplotlib.
        alt: What it shows, the finding first; computed from the measurement.

    Raises:
        UsageError: There is no description.
    """

    figure: Figure
    alt: str

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise UsageError(
                "the figure has an empty description",
                expected="a sentence or two on what it shows",
                next_step="Compute it from what was measured: show.figure(fig, alt=f'…')",
            )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        from smallfiles.measure.drawing import as_page  # `start` looks at the kernel's packages first

        svg = as_page(self.figure)
        source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
        width = round(CSS_DPI * self.figure.get_figwidth())
        image = f'<img alt="{html.escape(self.alt)}" width="{width}" src="{source}">'
        return {"text/html": image, "text/plain": f"Figure: {self.alt}"}


def figure(drawn: Drawing | Figure, *, alt: str = "") -> None:
    """Show a figure with a description for people who cannot see it, and close it.

    Args:
        drawn: A `Drawing`, or a figure from matplotlib.
        alt: What a figure from matplotlib shows, the finding first; computed from the measurement.

    Raises:
        UsageError: There is no description.
    """
    drawing = drawn if isinstance(drawn, Drawing) else Drawing(drawn, alt)
    _show(drawing._repr_mimebundle_())
    _close(drawing.figure)


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
