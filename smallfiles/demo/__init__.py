"""The whole road once: data, manifest, every format, measurement, one page.

    result = run(DemoConfig(count=500), print)

Everything is done by the same functions as the single verbs; the demo only puts them in a row. The
trap: numbers of a demo on a laptop say nothing about a parallel file system. Run it there, on your
own data, before you decide. Notebook 00 points here.
"""

from smallfiles.demo.config import DemoConfig
from smallfiles.demo.steps import DemoResult, run

__all__ = ["DemoConfig", "DemoResult", "run"]
