"""Workers of a check as threads: they see what a test has patched, and the order of their steps can be seen."""

from __future__ import annotations

import multiprocessing
import threading
from types import SimpleNamespace

from cookbook.check import workers


class Thread(workers.Worker):
    """As a worker, without a process; `started` counts them."""

    started = 0

    def __init__(self, function, begin):
        Thread.started += 1
        self.pipe, theirs = multiprocessing.Pipe()
        thread = threading.Thread(target=workers._serve, args=(theirs, function, ()), daemon=True)
        self.process = SimpleNamespace(terminate=lambda: None, join=thread.join)
        thread.start()
