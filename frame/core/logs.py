"""Loggers that import the standard library's `logging` when they first have something to say.

A process that starts from a filled cache has nothing to report, and the import takes longer than
reading the cache does.
"""

from __future__ import annotations

import sys

from frame.core.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Logger:
    """Writes to the logger of this name, with the methods of `logging.Logger`."""

    name: str

    def warning(self, message: str, *arguments: object) -> None:
        """Log a message with arguments for its % signs."""
        import logging

        logging.getLogger(self.name).warning(message, *arguments, stacklevel=2)

    def info(self, message: str, *arguments: object) -> None:
        """Log a message that nobody sees unless somebody set up logging."""
        if "logging" in sys.modules:  # else no handler and no level are set: it would be dropped
            import logging

            logging.getLogger(self.name).info(message, *arguments, stacklevel=2)

    def debug(self, message: str, *arguments: object) -> None:
        """Log a message that nobody sees unless somebody set up logging."""
        if "logging" in sys.modules:
            import logging

            logging.getLogger(self.name).debug(message, *arguments, stacklevel=2)
