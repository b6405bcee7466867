"""Constraints for an environment that builds on a site's own packages.

A cluster's PyTorch is built for its GPUs and its network; a second one from a package index costs 5 GB
and may not run. So what the site has stays as it is: its PyTorch family is pinned to the site's own
versions, its other packages lose their pins, and only what is missing is pinned as everywhere else.

Usage: python tools/site_constraints.py requirements.lock > constraints.txt
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import re
import sys
from importlib.metadata import distributions
from pathlib import Path

TORCH_FAMILY = ("torch", "torchvision", "triton")
NOT_OURS = re.compile(r"(nvidia|cuda)-")


def canonical(name: str) -> str:
    """One spelling a package: `Jinja2`, `jinja_2` and `jinja.2` are `jinja2` or `jinja-2`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints(lock: str, site: dict[str, str]) -> list[str]:
    """Lines of the constraints file.

    Args:
        lock: Text of requirements.lock.
        site: Version of each package that the site has, by canonical name.
    """
    lines = [f"{name}=={site[name]}" for name in TORCH_FAMILY if name in site]
    for line in lock.splitlines():
        name = canonical(re.split(r"[=<> ;\[]", line, maxsplit=1)[0])
        if name and name not in site and name not in TORCH_FAMILY and not NOT_OURS.match(name):
            lines.append(line)
    return lines


def site_packages(venv: Path) -> dict[str, str]:
    """Version of each package that is visible from `venv` and lies outside of it."""
    return {
        canonical(found.name): found.version
        for found in distributions()
        if found.name and not Path(str(found.locate_file(""))).resolve().is_relative_to(venv.resolve())
    }


def main() -> int:
    site = site_packages(Path(sys.prefix))
    if "torch" not in site:
        print(
            f"setup: SYSTEM_SITE=1 was asked for, but the Python in {sys.base_prefix} has no torch; load the "
            "PyTorch module of your site first (module avail PyTorch), or leave SYSTEM_SITE out.",
            file=sys.stderr,
        )
        return 1
    print("\n".join(constraints(Path(sys.argv[1]).read_text(encoding="utf-8"), site)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
