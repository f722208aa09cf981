"""`python -m frame` is the `frame` command."""

import sys

from frame.cli import main

if __name__ == "__main__":
    sys.exit(main())
