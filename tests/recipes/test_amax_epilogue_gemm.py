"""The largest |C| in the epilogue where there is no GPU: planted faults, the trick with the bits, the host side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from edits import In
from mutations import Mutation
from planted import Suite, check_caught
from pretend import pretended

from cookbook.check import compiled
from cookbook.recipe import catalog

NAME = "hopper/amax_epilogue_gemm"

# --- planted faults ------------------------------------------------------------------------------------------

FAULTS = [
    (
        "what lies outside of C takes part",
        In("store")
        .where("_largest = cutlass.max(_largest, _)")
        .where("cute.autovec_copy(_tCsC[None, _m, _n], _)")
        .insert_before(
            "if cute.elem_less(_, _): ...",
            """
            every = magnitude(_tCsC[None, _m, _n].load())
            for v in cutlass.range_constexpr(cute.size(every.shape)):
                _largest = cutlass.max(_largest, every[v])
            """,
        ),
    ),
    (
        "an element of each piece is left out",
        In("store").replace("cutlass.range_constexpr(cute.size(_piece))", "cutlass.range_constexpr(1, 8)"),
    ),
    ("only the last piece counts", In("store").replace("cutlass.max(_largest, _bits[_v])", "_bits[_v]")),
    (
        "the sign is kept",
        In("magnitude").replace(
            "_values.to(cutlass.Float32).bitcast(cutlass.Int32) & 0x7FFFFFFF",
            "_values.to(cutlass.Float32).bitcast(cutlass.Int32)",
        ),
    ),
    (
        "only the first warpgroup reports",
        In("kernel")
        .where("_warp_idx = cute.arch.make_warp_uniform(...)")
        .replace("report(_largest, _mAmax)", "if _warp_idx < 4: report(_largest, _mAmax)"),
    ),
    (
        "each lane for itself, and one reports",
        In("report").replace("cute.arch.warp_redux_sync(_largest, 'max')", "_largest"),
    ),
    (
        "a store in place of the atomic",
        In("report").replace(
            "cute.arch.atomic_max(_mAmax.iterator, _largest, sem='relaxed', scope='gpu')", "_mAmax[0] = _largest"
        ),
    ),
    ("nobody reports", In("kernel").drop("report(_largest, _mAmax)")),
]
SUITES = [Suite(("product",), [Mutation(NAME, *fault) for fault in FAULTS])]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)


def test_one_reduction_and_one_atomic_for_each_warp():
    module = catalog.load(NAME)
    built = compiled.compile_module(module, NAME, "sm_90a", "bfloat16", module.CONFIG)
    assert built.ptx.count("redux.sync.max.s32") == 1
    assert (
        sum(built.ptx.count(each) for each in ("atom.relaxed.gpu", "atom.gpu", "red.relaxed.gpu", "atom.global")) == 1
    )


# --- the trick -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits_without_the_sign_compare_as_magnitudes_do(dtype):
    """All numbers of the type: in their order, NaN above all of them, and -0 is 0."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).short().view(dtype).float()
    bits = numbers.view(torch.int32) & 0x7FFFFFFF
    real = ~numbers.isnan()
    order = bits[real].argsort()
    assert torch.equal(numbers[real].abs()[order], numbers[real].abs().sort().values)
    assert bits[~real].min() > bits[real].max() == torch.tensor(float("inf")).view(torch.int32)
    assert bits[numbers == 0].unique().tolist() == [0]


# --- the host side -------------------------------------------------------------------------------------------


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def operands(m=32, n=48, k=64):
    return {"a": torch.zeros(m, k).bfloat16(), "b": torch.zeros(n, k).bfloat16().T}


def test_amax_is_0_when_the_kernel_begins(ours):
    given, amax = operands(), torch.tensor([float("nan")])
    c, found = ours.matmul_amax(**given, amax=amax)
    assert found is amax and amax.item() == 0 and c.shape == (32, 48)
    ((_, arguments),) = ours.launched
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], c, amax))
    assert arguments == (*addresses, ((32, 48, 64), (64, 64, 48)), 7)


def test_it_is_set_before_the_launch_and_behind_all_checks(ours, monkeypatch):
    given, amax, seen = operands(), torch.ones(1), []
    launch = lambda *arguments: seen.append(amax.item())  # noqa: E731
    monkeypatch.setattr(ours.GEMM, "compile_for", lambda *which, options: launch)
    for _ in range(2):
        ours.matmul_amax(**given, amax=amax.fill_(3.0))
    assert seen == [0.0, 0.0]


def test_amax_is_made_if_not_given(ours):
    c, amax = ours.matmul_amax(**operands())
    assert amax.shape == (1,) and amax.dtype == torch.float32 and amax.item() == 0
    assert ours.launched[0][1][2:4] == (c.data_ptr(), amax.data_ptr())


WRONG = [
    ({"a": 3}, TypeError, "a: got int; needed a torch.Tensor"),
    ({"amax": 0.0}, TypeError, "amax: got float; needed a torch.Tensor"),
    ({"amax": torch.ones(1).bfloat16()}, TypeError, "amax: got torch.bfloat16; needed torch.float32"),
    ({"amax": torch.ones(2)}, ValueError, r"amax: got shape \(2,\); needed \(1,\)"),
    ({"amax": torch.ones(())}, ValueError, "amax: got 0 dimension"),
    ({"out": torch.zeros(48, 32).bfloat16()}, ValueError, r"out: got shape \(48, 32\); needed \(32, 48\)"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named_and_amax_is_as_it_was(ours, given, error, message):
    amax = torch.ones(1)
    with pytest.raises(error, match=message):
        ours.matmul_amax(**(operands() | {"amax": amax} | given))
    assert not ours.launched and amax.item() == 1


@pytest.mark.parametrize("name", ["a", "b", "out"])
def test_amax_has_memory_of_its_own(ours, name):
    given = operands() | {"out": torch.ones(32, 48).bfloat16()}
    amax = given[name].as_strided((2,), (1,)).fill_(1).view(torch.float32)
    before = amax.item()
    with pytest.raises(ValueError, match="memory that overlaps"):
        ours.matmul_amax(**given, amax=amax)
    assert not ours.launched and amax.item() == before
