"""From a manifest to a packed file: many opens in flight, one sequential write, nothing faked.

    report = pack(sources.load(Path("imagenet")), Path("imagenet.tars"), PackConfig(shuffle=0))

`verify` finds every changed byte later. Notebooks 03, 04 and 05 teach it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.pack.annotating import Annotated as Annotated
    from smallfiles.pack.annotating import annotate as annotate
    from smallfiles.pack.annotating import split as split
    from smallfiles.pack.config import PackConfig as PackConfig
    from smallfiles.pack.config import PackPlan as PackPlan
    from smallfiles.pack.config import PackReport as PackReport
    from smallfiles.pack.config import Skipped as Skipped
    from smallfiles.pack.config import parse_part as parse_part
    from smallfiles.pack.run import pack as pack
    from smallfiles.pack.run import plan as plan
    from smallfiles.pack.run import refuse_finished as refuse_finished
    from smallfiles.pack.verifying import VerifyReport as VerifyReport
    from smallfiles.pack.verifying import verify as verify

__getattr__ = lazy.names(__name__)
