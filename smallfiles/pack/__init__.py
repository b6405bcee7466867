"""From a manifest to a packed file: many opens in flight, one sequential write, nothing faked.

    report = pack(sources.load(Path("imagenet")), Path("imagenet.tars"), PackConfig(shuffle=0))

`verify` finds every changed byte later. Notebooks 03, 04 and 05 teach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.pack.config import PackConfig, PackReport, Plan, Skipped, parse_part
    from smallfiles.pack.run import pack, plan, refuse_finished
    from smallfiles.pack.verifying import VerifyReport, verify

__all__ = [
    "PackConfig",
    "PackReport",
    "Plan",
    "Skipped",
    "VerifyReport",
    "pack",
    "parse_part",
    "plan",
    "refuse_finished",
    "verify",
]

__getattr__ = lazy.names(
    __name__,
    {
        "config": ["PackConfig", "PackReport", "Plan", "Skipped", "parse_part"],
        "run": ["pack", "plan", "refuse_finished"],
        "verifying": ["VerifyReport", "verify"],
    },
)
