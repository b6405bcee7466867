"""Measure whether what `profile` proposes helps: faults are planted and cured.

    python tools/measure_profile_remedies.py [KIND ...]

Both runs are watched, and the seconds of a step compared with the forecast of the first. A remedy has kept
its promise if the step got shorter by at least half of what the middle of the forecast says.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOOPS = Path(__file__).resolve().parents[1] / "tests/profile/loops.py"
FAULTS = (
    *("few_workers", "no_workers", "many_workers", "few_cpus", "restarted"),
    *("cold", "small_reads", "threads", "decode", "copies"),
)
NOW = {"restarted": "whole_s", "cold": "early_s"}


def watched(kind: str, fault: str, folder: str, **environment: str) -> Any:
    """The record of one run."""
    record = Path(folder, "record.json")
    command = [sys.executable, "-m", "smallfiles", "profile", "--save", str(record), "--"]
    subprocess.run(
        [*command, sys.executable, str(LOOPS), kind, fault, str(Path(folder, "data"))],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
    )
    return json.loads(record.read_text())


def main(*kinds: str) -> None:
    kept: list[bool] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").mkdir()
        Path(folder, "data", "one.bin").write_bytes(bytes(200_000))
        for kind in kinds:
            for fault in FAULTS:
                first = watched(kind, fault, folder)
                verdict = first["verdict"]
                workers = re.fullmatch(r"num_workers=(\d+)", verdict["next"])
                how = {"WORKERS": workers[1]} if workers else {"CURED": "1"}
                after = watched(kind, fault, folder, **how)
                ranks = [record["ranks"][0] for record in (first, after)]
                was, came = (1000 * (rank[NOW.get(fault, "period_s")] or rank["period_s"]) for rank in ranks)
                about = f"{kind} {fault}: {verdict['name']}, {verdict['next']}; {was:.1f} ms, "
                if verdict["step_s"]:
                    low, high = (1000 * seconds for seconds in verdict["step_s"])
                    kept.append(was - came >= (was - (low + high) / 2) / 2)
                    about += f"forecast {low:.1f} to {high:.1f}, {'' if kept[-1] else 'NOT KEPT, '}"
                print(f"{about}came {came:.1f}", flush=True)
    print(f"{sum(kept)} of {len(kept)} forecasts kept")


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["plain", "webdataset"]))
