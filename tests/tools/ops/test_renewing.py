"""`cookbook results --restamp` of the operator's records, with no GPU: kernels are compiled, times are made up."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from cookbook.cli.app import app
from cookbook.measure import records
from tools.ops import measuring, renewing, unseen
from tools.records import device_code, freshness

GPU = measuring.choice.Gpu((9, 0), 132)
CASE, DEVICE = measuring.Case((4, 256, 512)), "A Hopper"


def recorded(case=CASE):
    """A record of two kernels, the chosen one and the next; nothing says what they compile to."""
    chosen, other, *_ = measuring.kernels(case, GPU).items()
    of = {name: records.code_of(each.recipe) for _, each in (chosen, other) for name in [each.recipe]}
    us = {chosen[0]: 1.0, other[0]: 2.0, "ops.matmul": 1.0, "torch.matmul": 1.5}
    about = {"shape": list(case.shape), "majors": case.majors, "dtype": case.dtype, "gpu": list(GPU)}
    return about | {"us": us, "slow": [], "code": of, "versions": records.versions()}


@pytest.fixture
def results(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    measuring.write(DEVICE, [recorded()])
    unseen.write(DEVICE, 7, [recorded()])
    return tmp_path


def only():
    (shape,) = measuring.read()[DEVICE]["shapes"].values()
    return shape


def read_otherwise(monkeypatch):
    """The text of every recipe reads otherwise from now on."""
    hashed = device_code.device_hash
    monkeypatch.setattr(device_code, "device_hash", lambda name: "0" + hashed(name)[1:])


def test_a_record_is_stamped_and_renewed(results, monkeypatch):
    assert renewing.wanted() == 2 and renewing.restamp(jobs=1) == (0, 0, 2, [])
    stamped = only()
    assert set(stamped["kernels"]) == set(stamped["us"]) - set(measuring.PEERS) and all(stamped["kernels"].values())
    assert renewing.wanted() == 0 and renewing.restamp(jobs=1) == (2, 0, 0, [])
    read_otherwise(monkeypatch)
    assert measuring.is_stale(only())
    run = CliRunner().invoke(app, ["results", "--restamp", "--json", "--jobs", "1"])
    assert run.exit_code == 0 and "products of the operator: 0 left as they were, 2 renewed" in run.stderr
    assert json.loads(run.stdout)["operator"] == {"left": 0, "renewed": 2, "stamped": 0, "refused": []}
    assert not measuring.is_stale(only()) and only()["kernels"] == stamped["kernels"]
    assert not measuring.is_stale(unseen.read()[DEVICE][7][0])


def test_what_compiles_to_something_else_is_refused(results, monkeypatch):
    renewing.restamp(jobs=1)
    before = results.joinpath("a-hopper", measuring.FILE).read_text()
    read_otherwise(monkeypatch)
    compiled = freshness.code
    monkeypatch.setattr(freshness, "code", lambda kernel: compiled(kernel)._replace(launch="another"))
    run = CliRunner().invoke(app, ["results", "--restamp", "--jobs", "1"])
    assert run.exit_code == 1 and "2 refused" in run.stderr and "compiles to something else, or is gone" in run.stderr
    assert results.joinpath("a-hopper", measuring.FILE).read_text() == before and measuring.is_stale(only())


def test_a_name_that_stands_for_nothing_is_refused(results, monkeypatch):
    renewing.restamp(jobs=1)
    read_otherwise(monkeypatch)
    named = measuring.name_of
    monkeypatch.setattr(measuring, "name_of", lambda option: f"{named(option)} of old")
    left, renewed, stamped, refused = renewing.restamp(jobs=1)
    assert (left, renewed, stamped, len(refused)) == (0, 0, 0, 2) and f"{DEVICE}, seed 7, 4x256x512" in refused[1]


def test_nothing_to_compare_with_is_left_alone(results, monkeypatch):
    read_otherwise(monkeypatch)
    assert renewing.wanted() == 0 and renewing.restamp(jobs=1) == (2, 0, 0, [])
    old = recorded() | {"versions": {freshness.DSL: "1.2.3"}}
    measuring.write(DEVICE, [old])
    assert renewing.restamp(jobs=1) == (1, 0, 0, [])


def test_what_is_compiled_is_what_a_plan_would_compile():
    """An odd N is stored by single elements, on any recipe; a kernel of no variant is told by its fields."""
    kernels = renewing.kernels_of(recorded(measuring.Case((640, 4097, 512))))
    assert len(kernels) == 2 and all(kernel and kernel.target == "sm_90a" for kernel in kernels.values())
    shape = recorded() | {"us": {"ampere/tuned_gemm 128x256": 1.0, "hopper/decode_gemm 64x48, split_k 5": 1.0}}
    for n, vec in ((256, 8), (260, 4), (258, 2), (257, 1)):
        ampere = renewing.kernels_of(shape | {"shape": [4, n, 512], "us": dict.fromkeys(ranked(n), 1.0)})
        assert {kernel.vec for name, kernel in ampere.items() if name.startswith("ampere/tuned")} == {vec}
    decode = renewing.kernels_of(shape)["hopper/decode_gemm 64x48, split_k 5"]
    assert dict(decode.changes)["split_k"] == 5 and dict(decode.changes)["tile_n"] == 48


def ranked(n):
    case = measuring.Case((4, n, 512))
    return [measuring.name_of(x) for x in measuring.choice.ranked(*measuring.laid(case), case.dtype, GPU)]
