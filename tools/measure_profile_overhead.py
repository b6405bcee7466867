"""Measure what watching costs: ten loops run with and without `profile`, in turns.

    python tools/measure_profile_overhead.py [ROUNDS]

Compared are processor seconds per step of the program and its workers, from the start of the loop to its end.
The last line is the upper 95 % bound of the mean ratio over all pairs.
"""

import python_version  # noqa: F401 - it ends this tool if this Python is too old

# isort: split
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev

LOOPS = Path(__file__).resolve().parents[1] / "tests/profile/loops.py"
TEN = [
    *(
        ("plain", fault)
        for fault in ("healthy", "healthy_cpu", "few_workers", "no_workers", "decode", "small_reads")
    ),
    *(("webdataset", fault) for fault in ("healthy", "healthy_cpu", "few_workers", "decode")),
]


def cpu_s(kind: str, fault: str, folder: str, *before: str) -> float:
    """Processor seconds per step of one run."""
    command = [*before, sys.executable, str(LOOPS), kind, fault, folder]
    done = subprocess.run(
        command, env={**os.environ, "COUNT_CPU": "1"}, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split("cpu_s_per_step")[1])


def main(rounds: int) -> None:
    watched = (sys.executable, "-m", "smallfiles", "profile", "--")
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data.bin").write_bytes(bytes(200_000))
        for number in range(rounds):
            for kind, fault in TEN:
                pair = [cpu_s(kind, fault, folder, *how) for how in ((), watched)[:: 1 - 2 * (number % 2)]]
                alone, with_us = pair[:: 1 - 2 * (number % 2)]
                ratios.append(with_us / alone)
                print(
                    f"{kind} {fault}: {1000 * alone:.2f} and {1000 * with_us:.2f} ms, {ratios[-1]:.3f}",
                    flush=True,
                )
    bound = mean(ratios) + 1.645 * stdev(ratios) / len(ratios) ** 0.5
    print(f"mean ratio {mean(ratios):.3f} of {len(ratios)} pairs; upper 95 % bound {bound:.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
