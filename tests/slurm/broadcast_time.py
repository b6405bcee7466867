"""What a broadcast saves: `python tests/slurm/broadcast_time.py [NODES [MB_PER_S [ROUNDS]]]`, as root.

Nodes with memory of their own stage 200 MB from a slow folder whose bandwidth they share: by a broadcast, and
each by itself, in turns. No file is read twice, for nodes on one machine share the cache of the mount.
"""

import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from local_slurm import started  # noqa: E402
from test_broadcast import Allocation  # noqa: E402

from smallfiles import slowfs  # noqa: E402
from smallfiles.digests import digest_file, sidecar  # noqa: E402

BYTES = 200 << 20


@contextmanager
def timed(shared, kind):
    """Print the seconds of the block, and what it read of the slow folder."""
    before, began = shared.counts()["bytes"], time.monotonic()
    found = []
    yield found
    found += [time.monotonic() - began, (shared.counts()["bytes"] - before) / BYTES]
    print(f"{kind}: {found[0]:.1f} s, read {found[1]:.2f} times", flush=True)


def separately(job, place, number):
    """Each node stages a file of its own."""
    name = f"'{place}'/{number}-$SLURM_NODEID.arrow"
    stage = f"'{sys.executable}' -m smallfiles stage {name} --where /dev/shm --leave-bytes 0"
    words = ("srun", "--overlap", f"-N{len(job.names)}", f"-n{len(job.names)}", "--ntasks-per-node=1")
    subprocess.run([*words, "sh", "-c", stage], **job.how, check=True)


def main(count=4, mb_per_s=50, rounds=3):
    root = Path(__file__).resolve().parents[2]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for name in ("all", *range(count)):
                path = Path(folder, "set", f"{number}-{name}.arrow")
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(os.urandom(BYTES))
                digest_file(path).save(sidecar(path))
        config = slowfs.SlowConfig(latency_s=0.002, bandwidth_bytes_s=1e6 * mb_per_s)
        work = Path(folder, "work")
        work.mkdir()
        with slowfs.mounted(Path(folder, "set"), config) as shared, started(root, work, count, 2) as nodes:
            job = Allocation(nodes, count)
            for number in range(rounds):
                with timed(shared, "separate copies") as alone:
                    separately(job, shared.path, number)
                job.unstage()
                with timed(shared, "a broadcast") as together:
                    job.stage(shared.path / f"{number}-all.arrow")
                job.unstage()
                ratios.append(together[0] / alone[0])
            job.end()
    spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"{count} nodes, {mb_per_s} MB/s: a broadcast takes {spread} of the time")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
