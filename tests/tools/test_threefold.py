"""A contest measured three ways, with no GPU: clocks, times and joules are told."""

from __future__ import annotations

import json

import cutlass
import pytest
import torch
from typer.testing import CliRunner

from cookbook.cli.app import app
from cookbook.measure import contest
from cookbook.recipe.cache import TVM_FFI
from cookbook.recipe.entry import compile_host
from tools import threefold

OURS, PEER = contest.OURS, "torch.matmul"


class Told:
    """Clocks that follow one another: what runs between two of them says which one it was."""

    def __init__(self, mhz):
        self.mhz_of, self.ran = mhz, ""

    def note(self):
        return None

    def mhz(self, before, behind):
        return self.mhz_of[self.ran]


@pytest.fixture
def held(monkeypatch):
    """Ours draws less power: alone its clock is higher, and it takes fewer microseconds and joules."""
    clock = Told({OURS: 1600.0, PEER: 1500.0})
    state = {"joules": 0.0}
    us = {OURS: 100.0, PEER: 110.0}

    def call_of(name):
        def call(a, b, out):
            clock.ran = name
            state["joules"] += {OURS: 0.05, PEER: 0.06}[name]

        return call

    def elapsed_ms(batch):
        before = state["joules"]
        batch()
        return us[clock.ran] / 1000 * max(1, round((state["joules"] - before) / {OURS: 0.05, PEER: 0.06}[clock.ran]))

    monkeypatch.setattr(contest, "elapsed_ms", elapsed_ms)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(contest, "WARM_UP_MS", 1.0)
    monkeypatch.setattr(threefold, "ALONE_MS", 1.0)
    monkeypatch.setattr(threefold, "SHARED_MS", 1.0)
    calls = {OURS: call_of(OURS), PEER: call_of(PEER)}
    return contest.Contest(calls, [(None, None, None)], PEER, 1.0, graphs=False), clock, lambda: state["joules"]


def test_time_clock_and_joules_of_each_variant(held):
    found = threefold.measure(*held)
    assert found[OURS] == pytest.approx(threefold.Measured(100.0, 100.0, 1600.0, 0.05))
    assert found[PEER] == pytest.approx(threefold.Measured(110.0, 110.0, 1500.0, 0.06))
    assert found[OURS].cycles == pytest.approx(160.0)
    record = threefold.record_of("hopper/tuned_gemm", (8, 8, 8), "bfloat16", PEER, found)
    assert threefold.pairs(record) == [(OURS, PEER)]
    quotients = threefold.quotients(record, OURS, PEER)
    assert quotients["alone"] == pytest.approx(1.1) and quotients["joules"] == pytest.approx(1.2)
    assert quotients["equal clock"] == pytest.approx(1.1 * 1500 / 1600)


def test_each_epilogue_is_compared_with_torchs_own_call_for_it():
    one = threefold.Measured(1.0, 1.0, 1.0, 1.0)
    found = dict.fromkeys((OURS, PEER, "bias_gelu", "torch._addmm_activation (bias_gelu)"), one)
    record = threefold.record_of("hopper/tuned_gemm", (8, 8, 8), "bfloat16", PEER, found)
    assert threefold.pairs(record) == [(OURS, PEER), ("bias_gelu", "torch._addmm_activation (bias_gelu)")]


def test_the_clock_is_that_of_sms_that_both_moments_have():
    before, behind = torch.zeros(512, 2, dtype=torch.int64), torch.zeros(512, 2, dtype=torch.int64)
    for sm, mhz in enumerate((1500, 1500, 1700)):
        before[sm] = torch.tensor([10**6, 10**9])
        behind[sm] = torch.tensor([10**6 + mhz * 1000, 10**9 + 10**6])
    behind[3] = torch.tensor([5, 10**9])  # noted once alone
    assert threefold.Clock.mhz(object.__new__(threefold.Clock), before, behind) == pytest.approx(1500)


def test_the_kernel_that_notes_clocks_compiles():
    compile_host(threefold.stamped, "sm_90a", ((cutlass.Int64, 16),), (), TVM_FFI)


def test_records_are_kept_by_contest(tmp_path):
    one = threefold.Measured(1.0, 1.0, 1.0, 1.0)
    old, new, other = (
        threefold.record_of("hopper/tuned_gemm", shape, "bfloat16", PEER, {OURS: one, PEER: one._replace(alone_us=us)})
        for shape, us in (((8, 8, 8), 1.0), ((8, 8, 8), 2.0), ((16, 8, 8), 3.0))
    )
    threefold.write("A GPU", [old, other], tmp_path)
    threefold.write("A GPU", [new], tmp_path)
    assert threefold.read(tmp_path) == {"A GPU": [new, other]}
    (tmp_path / "a-gpu" / threefold.FILE).write_text(json.dumps([]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"threefold.json: not a record of contests measured three ways"):
        threefold.read(tmp_path)


def test_without_a_gpu_the_command_says_so():
    run = CliRunner().invoke(app, ["bench", "hopper/tuned_gemm", "--shape", "64,64,64", "--threefold"])
    assert run.exit_code == 1 and "no CUDA device" in run.stderr


def test_joules_without_a_counter(monkeypatch):
    monkeypatch.setattr(threefold.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError("not here")))
    with pytest.raises(threefold.power.Unmeasurable, match="NVML has no counter of energy here"):
        threefold.joules_now()


def test_the_table_of_the_page(tmp_path):
    from tools.publish import benchmarks

    assert benchmarks.threefold_table(tmp_path) == "*Not measured*."
    one = threefold.Measured(100.0, 100.0, 1500.0, 0.1)
    found = {OURS: one, PEER: threefold.Measured(110.0, 105.0, 1400.0, 0.12)}
    record = threefold.record_of("hopper/tuned_gemm", (4096, 4096, 4096), "bfloat16", PEER, found)
    threefold.write("A GPU", [record], tmp_path)
    assert "| 1.100 | 1.050 | 1.027 | 1.200 | 1500 / 1400 |" in benchmarks.threefold_table(tmp_path)
    threefold.write("A GPU", [record | {"code": "older"}], tmp_path)
    assert benchmarks.threefold_table(tmp_path) == "*Not measured since the code changed*."
