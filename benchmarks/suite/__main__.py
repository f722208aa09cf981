"""Run the suite: `python -m benchmarks.suite`, or `python benchmarks/suite`."""

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.suite.command import main

if __name__ == "__main__":
    sys.exit(main())
