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
from cookbook.ops import evidence, tuner
from tools.ops import measuring

TUNED = "hopper/tuned_gemm"


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
    monkeypatch.setattr(evidence, "untried", evidence.untried.__wrapped__)  # kept for the process: of other records
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


def two(case):
    """The kernel that is chosen on a pretended Hopper, and one more of those that are timed."""
    chosen, other, *_ = measuring.kernels(case, measuring.choice.Gpu((9, 0), 132))
    return chosen, other


def test_the_regret_of_a_choice(here):
    case = measuring.Case((4, 256, 512))
    chosen, other = two(case)
    us = {other: 8.0, chosen: 10.0, "ops.matmul": 10.5, "torch.matmul": 9.0}
    record = measuring.measure(case, 7, timed(us))
    recipe = other.split()[0]
    assert record["us"] | us == record["us"] and record["code"][recipe] == records.code_of(recipe)
    (found,) = measuring.regrets([record])
    assert (found.chosen, found.best, round(found.part, 6)) == (chosen, other, 0.25)
    assert found.against_torch == pytest.approx(9 / 10)
    predicted = measuring.kernels(case, measuring.choice.Gpu((9, 0), 132))[chosen].us
    assert found.slower == pytest.approx(10 / predicted)
    assert measuring.summary([found]) == (
        "1 product: regret 25.0% in the mean, 25.0% at worst (4x256x512, bfloat16); what is taken has 0.900 of "
        "torch.matmul's speed in the geometric mean, 0.900 at worst (4x256x512, bfloat16)"
    )


def test_the_regret_of_what_tuning_takes(here):
    case = measuring.Case((4, 256, 512))
    chosen, other = two(case)
    record = measuring.measure(case, 7, timed({other: 8.0, chosen: 10.0, "torch.matmul": 9.0}))
    assert record["tuned"] in list(measuring.kernels(case, measuring.choice.Gpu((9, 0), 132)))[:4]
    (found,) = measuring.regrets([record | {"tuned": other}], tuned=True)
    assert (found.chosen, found.part) == (other, 0.0)


def test_the_chosen_kernel_is_always_timed_and_none_is_far_off():
    for shape in ((1, 151936, 896), (300, 5120, 8192), (8192, 8192, 8192)):
        found = measuring.kernels(measuring.Case(shape), measuring.choice.Gpu((9, 0), 132))
        first, *others = found.values()
        best = measuring.choice.ranked(
            *measuring.laid(measuring.Case(shape)), "bfloat16", measuring.choice.Gpu((9, 0), 132)
        )
        assert first == best[0] and len(found) >= measuring.LIKELY
        assert all(each.us < measuring.FAR * first.us or each in best[: measuring.LIKELY] for each in others)


def test_a_kernel_far_from_the_best_is_timed_once(here, monkeypatch):
    """Those that tuning would time are timed in rounds however slow they look."""
    case, seen = measuring.Case((4, 256, 512)), []
    names = list(measuring.kernels(case, measuring.choice.Gpu((9, 0), 132)))
    looks = chain(*([ms] * 3 for ms in (*[9.0] * tuner.KERNELS, 1.0, 4.0)), repeat(1.3))  # of each kernel, in ms
    monkeypatch.setattr(contest, "elapsed_ms", lambda batch: batch() or next(looks))
    time = timed({})
    record = measuring.measure(case, 7, lambda found, *given: seen.extend(found.variants) or time(found, *given), False)
    late = names[tuner.KERNELS + 1]
    slow = {late}
    assert record["slow"] == sorted(slow) and set(seen) == {*names, "ops.matmul", "torch.matmul"} - slow
    assert record["us"][late] == 500.0 and set(record["us"]) == {*names, "ops.matmul", "torch.matmul"}


def test_a_wrong_product_is_not_timed(here, monkeypatch):
    from cookbook.recipe import catalog

    case = measuring.Case((16, 24, 32))
    recipe = two(case)[0].split()[0]
    zeros = lambda a, b, out=None, variant="": torch.zeros(a.shape[0], b.shape[1])  # noqa: E731
    monkeypatch.setattr(catalog.load(recipe), "matmul", zeros)
    with pytest.raises(RuntimeError, match=f"{recipe} .*is wrong"):
        measuring.measure(case, 7, timed({}))


def test_a_run_that_was_cut_short_is_taken_up_where_it_ended(here):
    first, second = measuring.CASES[:2]
    assert measuring.pending("A Hopper") == list(measuring.CASES)
    record = {
        "shape": list(first.shape),
        "majors": first.majors,
        "dtype": first.dtype,
        "gpu": [[9, 0], 132],
        "slow": [],
    }
    record |= {"us": {two(first)[0]: 1.0, "torch.matmul": 1.0}, "code": {}}
    measuring.write("A Hopper", [record | {"code": {TUNED: records.code_of(TUNED)}}])
    assert measuring.pending("A Hopper")[0] == second
    measuring.write("A Hopper", [record | {"us": {TUNED: 1.0, "torch.matmul": 1.0}}])  # not the kernel that is chosen
    assert measuring.pending("A Hopper")[0] == first
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
    times = timed({"ops.matmul": 8.0, "torch.matmul": 9.0})
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
        (["--unseen", "7"], "--unseen: got no --regret beside it; needed both"),
        (["--regret", "--unseen", "7", "--dtype", "f16"], "--unseen: got --dtype f16 beside it; needed bf16, or none"),
        ([TUNED, "--threefold"], "--threefold: got no --shape beside it; needed one or more"),
        (["--calls", "--dtype", "bf16"], "--calls: got bf16 beside it"),
    ):
        run = CliRunner().invoke(app, ["bench", *arguments])
        assert run.exit_code == 2 and said in run.stderr


def test_without_a_gpu_the_commands_say_so():
    for option in ("--regret", "--calls"):
        run = CliRunner().invoke(app, ["bench", option])
        assert run.exit_code == 1 and "no CUDA device" in run.stderr
