"""`python -m pytest -p cookbook.pytest_plugin --cute-check`: each kernel that a test gives to CuTe is checked.

A test whose kernel has a fault fails, and so does one of whose kernel not all is followed. Without a GPU nothing is
lowered: what `cute.compile` returns does nothing when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

OPTION = "--cute-check"


def pytest_addoption(parser: Any) -> None:
    """The options of the plugin."""
    group = parser.getgroup("cute")
    group.addoption(OPTION, action="store_true", help="check each kernel that CuTe traces, with no GPU")
    group.addoption("--cute-arch", default="", metavar="ARCH", help="the compile target of what names none: sm_90a")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    """Run a test, then fail if a kernel of it has a fault, or was not followed."""
    if not item.config.getoption(OPTION):
        return (yield)
    from cookbook.check.kernels.watching import watching

    with watching(item.config.getoption("--cute-arch")) as watch:
        result = yield
    if wrong := [str(report) for report in watch.reports if not report.ok]:
        pytest.fail("\n".join(wrong), pytrace=False)
    return result
