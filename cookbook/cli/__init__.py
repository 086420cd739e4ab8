"""The `cookbook` command, one file a family of commands."""

import os

# The models multiply many matrices of 128 x 16 elements, one at a time: with several threads each of these products
# takes six times as long. Whoever says otherwise is obeyed. It counts for numpy, which is imported later.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from cookbook.cli.app import app, main

__all__ = ["app", "main"]
