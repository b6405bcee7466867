"""`smallfiles VERB`: the same as the console command `smallfiles VERB`."""

import sys

from smallfiles.cli import main

if __name__ == "__main__":
    sys.exit(main())
