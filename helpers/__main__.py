"""`python -m helpers VERB`: the same as the console command `smallfiles VERB`."""

import sys

from helpers.cli import main

if __name__ == "__main__":
    sys.exit(main())
