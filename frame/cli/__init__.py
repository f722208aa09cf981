"""The `frame` command."""

from frame.cli.app import main

__all__ = ["main"]
