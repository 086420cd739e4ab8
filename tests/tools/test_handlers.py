"""Each operation has one handler, for whoever judges what comes of it."""

from __future__ import annotations

import pytest

from cookbook.check import pipeline, product  # noqa: F401, both have loaded what they need
from cookbook.check.pipeline.recorder import Recorder
from cookbook.check.product.follower import Follower
from cookbook.simulate import warp
from cookbook.simulate.judge import Judge
from tools import handlers


def test_an_operation_has_one_handler_and_it_is_the_simulator_s():
    assert len(warp.TABLE) > 240
    for name, entry in warp.TABLE.items():
        assert entry.handler.__module__.startswith("cookbook.simulate."), name


def test_a_second_handler_is_refused():
    with pytest.raises(ValueError, match=r"names: got cute\.gemm, which has a handler; needed operations without"):
        warp.handles("cute.gemm")(print)


@pytest.mark.parametrize("judge", [Recorder, Follower])
def test_a_judge_says_what_comes_of_each_step(judge):
    for name in (name for name in vars(Judge) if not name.startswith("_")):
        assert getattr(judge, name) is not getattr(Judge, name), name


def test_the_page_of_operations_is_of_today():
    """`python -m tools.handlers` writes it."""
    assert handlers.PAGE.read_text(encoding="utf-8") == handlers.table()
