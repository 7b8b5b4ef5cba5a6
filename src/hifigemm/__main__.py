"""`python -m hifigemm`."""

import sys

from hifigemm.cli import main

if __name__ == "__main__":
    sys.exit(main())
