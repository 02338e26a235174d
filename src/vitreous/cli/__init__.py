"""The command line: thin commands over the public API; torch is imported only when a command needs it."""

from vitreous.cli.main import main

__all__ = ["main"]
