"""From a manifest to a packed file: many opens in flight, one sequential write, nothing faked.

    report = pack(sources.load(Path("imagenet")), Path("imagenet.tars"), PackConfig(shuffle=0))

`verify` finds every changed byte later. Notebooks 03, 04 and 05 teach it.
"""

from helpers.pack.config import PackConfig, PackReport, Plan, Skipped, parse_part
from helpers.pack.run import pack, plan, refuse_finished
from helpers.pack.verify import VerifyReport, verify

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
