"""`python -m pysquashfs VERB`: see `pysquashfs.cli`."""

import sys

from pysquashfs.cli import main

if __name__ == "__main__":
    sys.exit(main())
