"""Which tests run, and in which order; hypothesis draws the same examples in CI.

Where there is no CUDA device, GPU tests are skipped: of each function one case, which stands for all.
Planted faults whose like is tried anyway are slow.
"""

from __future__ import annotations

import gc
import os
import re
import sys

# The models multiply thousands of matrices of 128 x 16 elements: with threads of its own each of the two workers takes
# ten times as long for one, as they wait for one another. Before anything imports numpy.
for _name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

# CuTe keeps many objects, none of them in circles that matter here: to go through them again and again takes a
# twentieth of the time of all tests.
gc.set_threshold(100_000, 50, 100)
os.environ["COOKBOOK_CACHE"] = "off"  # no kernel of an earlier run, and none is left behind

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _mark_faults(items)
    # Workers begin at the front of their share and take from the back of another's: first, the site is built once. A
    # recipe's tests on a GPU stand together, so that a worker compiles the kernels of few recipes.
    items.sort(key=lambda item: ("site" not in getattr(item, "fixturenames", ()), _recipe_on_gpu(item)))
    if any(item.get_closest_marker("gpu") for item in items):
        _skip_gpu(config, items)


def _recipe_on_gpu(item: pytest.Item) -> str:
    found = re.search(r"(?:ampere|hopper|blackwell)/\w+", item.nodeid) if item.get_closest_marker("gpu") else None
    return found[0] if found else ""


def _skip_gpu(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thousands of cases that all say the same take a minute to skip, and hide the others."""
    import torch

    if torch.cuda.is_available():
        return
    kept: dict[object, pytest.Item] = {}
    for item in items:
        gpu = item.get_closest_marker("gpu") is not None
        if kept.setdefault(getattr(item, "function", item) if gpu else item, item) is item and gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))
    chosen = set(kept.values())
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = kept.values()


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
