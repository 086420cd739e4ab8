"""Which tests run, and in which order; hypothesis draws the same examples in CI.

GPU tests are skipped where there is no CUDA device. Planted faults whose like is tried anyway are slow.
"""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _mark_faults(items)
    # Workers begin at the front of their share and take from the back of another's: first, the site is built once.
    items.sort(key=lambda item: "site" not in getattr(item, "fixturenames", ()))
    wants_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not wants_gpu:
        return
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device here")
    for item in wants_gpu:
        item.add_marker(skip)


def _mark_faults(items: list[pytest.Item]) -> None:
    """A fault is slow unless it is the first of its recipe at a level, or the first that a rule catches."""
    if "planted" not in sys.modules:
        return  # no test that was collected plants any
    import planted
    from mutations import Mutation

    for item in items:
        given = getattr(item, "callspec", None)
        for value in given.params.values() if given else ():
            fault = getattr(value, "mutation", value)
            if isinstance(fault, Mutation) and not planted.first_of_its_kind(fault):
                item.add_marker(pytest.mark.slow)
