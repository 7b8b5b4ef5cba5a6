"""`python -m hifigemm`."""

import sys

from hifigemm.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
