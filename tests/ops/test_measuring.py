"""`cookbook bench --regret` and `--calls` with no GPU: what is timed is pretended, the rest is real."""

from __future__ import annotations

import json
from itertools import chain, repeat

import pytest
import torch
from typer.testing import CliRunner
from without_gpu import pretend

from cookbook.cli.app import app
from cookbook.measure import contest, peers, records
from cookbook.ops import measuring

TUNED, DECODE = "hopper/tuned_gemm", "hopper/decode_gemm"


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A Hopper that is none, and a folder for its results."""
    pretend(monkeypatch)

    def input_sets(shape, dtype, majors):
        (m, n, k), kind = shape, {"dtype": getattr(torch, dtype)}
        return [(torch.randn(m, k, **kind), torch.randn(n, k, **kind).T, torch.empty(m, n, **kind))]

    monkeypatch.setattr(peers, "input_sets", input_sets)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A Hopper")
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    monkeypatch.setattr(records, "driver_version", lambda: "1")
    monkeypatch.setattr(contest, "elapsed_ms", lambda batch: batch() or 1.0)
    return tmp_path


def timed(us):
    """A `time_contest` that knows the answer."""

    def time(found, rounds, batch_ms):
        assert set(us) <= set(found.variants) and len(found.sets) == 1
        return {name: {"median_ms": us.get(name, 100.0) / 1000} for name in found.variants}

    return time


def test_a_hundred_cases():
    assert len(measuring.CASES) == len(set(measuring.CASES)) == 100
    rows = [case.shape[0] for case in measuring.CASES]
    assert min(rows) == 1 and max(rows) == 16384
    assert {case.majors for case in measuring.CASES} == {"tn", "tt", "nn", "nt"}


def test_the_regret_of_a_choice(here):
    case = measuring.Case((4, 256, 512))
    us = {TUNED: 8.0, DECODE: 10.0, "ops.matmul": 10.5, "torch.matmul": 9.0}
    record = measuring.measure(case, 7, timed(us))
    assert record["us"] | us == record["us"] and record["code"][TUNED] == records.code_of(TUNED)
    (found,) = measuring.regrets([record])
    assert (found.chosen, found.best, round(found.part, 6)) == (DECODE, TUNED, 0.25)
    assert found.against_torch == pytest.approx(9 / 10)
    assert measuring.summary([found]) == (
        "1 product: regret 25.0% in the mean, 25.0% at worst (4x256x512, bfloat16); what is chosen has 0.900 of "
        "torch.matmul's speed in the geometric mean, 0.900 at worst (4x256x512, bfloat16)"
    )


def test_a_recipe_far_from_the_best_is_timed_once(here, monkeypatch):
    """The chosen one is timed in rounds however slow it looks."""
    looks = chain([1.0] * 3 + [4.0] * 3 + [1.3] * 3, repeat(9.0))  # of each recipe in the order of the catalogue, in ms
    monkeypatch.setattr(contest, "elapsed_ms", lambda batch: batch() or next(looks))
    case, seen = measuring.Case((4, 256, 512)), []
    time = timed({})
    record = measuring.measure(case, 7, lambda found, *given: seen.extend(found.variants) or time(found, *given))
    serving = list(record["code"])
    chosen = measuring.choose(case, measuring.choice.Gpu((9, 0), 132))
    slow = {serving[1], *serving[3:]} - {chosen}
    assert (
        chosen in seen
        and record["slow"] == sorted(slow)
        and set(seen) == {*serving, "ops.matmul", "torch.matmul"} - slow
    )
    assert {record["us"][name] for name in slow} <= {500.0, 1125.0} and set(record["us"]) == {
        *serving,
        "ops.matmul",
        "torch.matmul",
    }


def test_a_wrong_product_is_not_timed(here, monkeypatch):
    from cookbook.recipe import catalog

    module = catalog.load(TUNED)
    monkeypatch.setattr(module, "matmul", lambda a, b, out=None: torch.zeros(a.shape[0], b.shape[1]))
    with pytest.raises(RuntimeError, match=f"{TUNED} is wrong"):
        measuring.measure(measuring.Case((16, 24, 32)), 7, timed({}))


def test_a_run_that_was_cut_short_is_taken_up_where_it_ended(here):
    first, second = measuring.CASES[:2]
    assert measuring.pending("A Hopper") == list(measuring.CASES)
    record = {"shape": list(first.shape), "majors": first.majors, "dtype": first.dtype, "us": {TUNED: 1.0}, "code": {}}
    measuring.write("A Hopper", [record | {"code": {TUNED: records.code_of(TUNED)}}])
    assert measuring.pending("A Hopper")[0] == second
    measuring.write("A Hopper", [record | {"code": {TUNED: "older"}}])
    assert measuring.pending("A Hopper")[0] == first
    measuring.write("A Hopper", [record | {"code": {"hopper/gone": "any"}}])
    assert measuring.pending("A Hopper")[0] == first
    measuring.write("A Hopper", called={"us": {"ops.matmul": 5.0}})
    known = measuring.read()["A Hopper"]
    assert known["calls"]["us"] == {"ops.matmul": 5.0} and set(known["shapes"]) == {first}
    assert records.read() == []  # it is none of the recipes' files


def test_a_file_that_is_none(here):
    file = here / "a-hopper" / measuring.FILE
    file.parent.mkdir()
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"operator.json: not a record of the operator"):
        measuring.read()


def test_the_command_measures_records_and_shows(here, monkeypatch):
    cases = (measuring.Case((4, 256, 512)), measuring.Case((16, 24, 32)))
    monkeypatch.setattr(measuring, "CASES", cases)
    times = timed({TUNED: 8.0, DECODE: 7.9, "ops.matmul": 8.0, "torch.matmul": 9.0})
    real = measuring.measure
    monkeypatch.setattr(measuring, "measure", lambda case, rounds: real(case, rounds, times))
    run = CliRunner().invoke(app, ["bench", "--regret", "--record"])
    assert run.exit_code == 0 and "4x256x512" in run.stdout and "2 products: regret" in run.stderr
    assert len(measuring.read()["A Hopper"]["shapes"]) == 2 and measuring.pending("A Hopper") == []
    monkeypatch.setattr(measuring, "measure", None)  # nothing is measured twice
    again = CliRunner().invoke(app, ["bench", "--regret", "--record", "--json"])
    assert len(json.loads(again.stdout)["A Hopper"]) == 2
    monkeypatch.setattr(measuring, "measure", lambda case, rounds: real(case, rounds, times))
    halves = CliRunner().invoke(app, ["bench", "--regret", "--dtype", "f16"])  # not to be recorded
    assert halves.exit_code == 0 and "tn float16" in halves.stdout and len(measuring.read()["A Hopper"]["shapes"]) == 2


def test_the_cost_of_each_way_of_a_call(here, monkeypatch):
    monkeypatch.setattr(contest, "HOST_CALLS", 3)
    found = measuring.calls(lambda: None, device="cpu")
    assert list(found["us"])[:3] == ["the launch alone", "the recipe's matmul", "ops.matmul"]
    assert all(us > 0 for us in found["us"].values()) and "torch.library.custom_op" in found["us"]


def test_wrong_command_lines():
    for arguments, said in (
        (["--regret", "--dtype", "bf16", "--dtype", "f16"], "--dtype: got bf16, f16; needed one of them"),
        (["--regret", "--calls"], "--regret: got --calls beside it"),
        (["--regret", TUNED], f"--regret: got {TUNED} beside it"),
        (["--calls", "--dtype", "bf16"], "--calls: got bf16 beside it"),
    ):
        run = CliRunner().invoke(app, ["bench", *arguments])
        assert run.exit_code == 2 and said in run.stderr


def test_without_a_gpu_the_commands_say_so():
    for option in ("--regret", "--calls"):
        run = CliRunner().invoke(app, ["bench", option])
        assert run.exit_code == 1 and "no CUDA device" in run.stderr
