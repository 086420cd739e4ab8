"""The `cookbook` command, one file a family of commands."""

from cookbook.cli.app import app, main

__all__ = ["app", "main"]
