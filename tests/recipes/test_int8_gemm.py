"""The INT8 GEMM where there is no GPU: how long a sum may be, planted faults, host side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from edits import In
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import compiled
from cookbook.recipe import catalog

NAME = "hopper/int8_gemm"


# --- exact sums ----------------------------------------------------------------------------------------------


def test_int32_holds_every_sum_that_matmul_takes():
    exact_k = catalog.load(NAME).EXACT_K
    products = np.multiply.outer(np.arange(-128, 128), np.arange(-128, 128))
    assert exact_k * products.max() <= 2**31 - 1 < (exact_k + 1) * products.max()
    assert exact_k * products.min() >= -(2**31)


def test_the_compiler_asks_for_sums_that_saturate():
    """The page says so. A version of CuTe DSL that wraps would be as right, for no such sum leaves int32."""
    module = catalog.load(NAME)
    built = compiled.compile_module(module, NAME, "sm_90a", "int32", module.VARIANTS["at once"])
    assert ".satfinite.s32.s8.s8" in built.ptx
    assert [x.ok for x in compiled.type_findings(built, "int8")] == [True]
    assert [x.ok for x in compiled.type_findings(built, "e4m3")] == [False]


# --- planted faults ------------------------------------------------------------------------------------------

FAULTS = [
    (
        "layout",
        "the swizzle is dropped",
        In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
    ),
    (
        "layout",
        "the byte swizzle is that of 16-bit elements",
        In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(_bits, 3, 3)"),
    ),
    (
        "product",
        "the two rows of a thread change places",
        In("store_subtile").replace(
            "(None, _row, _i * (_config.epi_n // 8) + _j)", "(None, 1 - _row, _i * (_config.epi_n // 8) + _j)"
        ),
    ),
    ("product", "the tiles of C change places", In("store_subtile").replace("_tile[1]", "_tile[0]")),
    (
        "product",
        "other parts are kept than are stored late",
        In("compute").replace(
            "subtile_of(_main.acc, _config.at_once + _j, _config)", "subtile_of(_main.acc, _j, _config)"
        ),
    ),
    (
        "product",
        "rows past the last one are not told apart",
        In("store_subtile").replace("cute.elem_less(_cPair[0], _epi.limit)", "cute.elem_less(0, 1)"),
    ),
    (
        "product",
        "a work tile adds to the one before",
        In("first_k_tile").replace("issue_wgmmas(_, _.index, ...)", "issue_wgmmas(_, _.index)"),
    ),
    (
        "pipeline",
        "a stage is given back early",
        In("next_k_tile").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
    ),
    (
        "pipeline",
        "accumulators are read while wgmma adds to them",
        In("last_k_tile").drop("warpgroup.wait_group(0)"),
    ),
    (
        "compiled",
        "operands are taken for unsigned",
        In("wgmma_int8").replace("warpgroup.MmaI8Op(ELEMENT, ...)", "warpgroup.MmaI8Op(cutlass.Uint8, ...)"),
    ),
]


@pytest.mark.parametrize(("level", "what", "edit"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, tmp_path):
    assert caught(Mutation(NAME, what, edit, "overlapped"), (level,), tmp_path).level == level


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=48, k=64):
    return {"a": torch.zeros(m, k, dtype=torch.int8), "b": torch.zeros(n, k, dtype=torch.int8).T}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given, out = operands(), torch.empty(32, 48, dtype=torch.int32)
    assert ours.matmul(**given, out=out, variant="at once") is out
    (((arch, element, config, vec), arguments),) = ours.launched
    assert (arch, element.__name__, config.overlapped, vec) == ("", "Int32", 0, 2)
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], out))
    assert arguments == (*addresses, ((32, 48, 64), (64, 64, 48), 1), 7)


def test_c_is_int32(ours):
    assert ours.matmul(**operands()).dtype == torch.int32


@pytest.mark.parametrize(
    ("n", "gap", "start", "vec"),
    [(48, 0, 0, 2), (48, 4, 4, 2), (45, 0, 0, 1), (48, 1, 0, 1), (48, 0, 1, 1), (1, 0, 0, 1)],
)
def test_stores_are_as_wide_as_rows_allow(ours, n, gap, start, vec):
    out = torch.empty(33 * (n + gap), dtype=torch.int32).as_strided((32, n), (n + gap, 1), start)
    ours.matmul(**operands(n=n), out=out)
    ((which, arguments),) = ours.launched
    assert which[3] == vec and arguments[2] == out.data_ptr() and arguments[3].strides[2] == n + gap


def zeros(*shape, dtype=torch.int8):
    return torch.zeros(*shape, dtype=dtype)


WRONG = [
    ({"a": 3}, TypeError, "a: got int; needed a torch.Tensor"),
    ({"a": zeros(32, 64, dtype=torch.uint8)}, TypeError, "a: got torch.uint8; needed torch.int8"),
    ({"b": zeros(48, 64).bfloat16().T}, TypeError, "b: got torch.bfloat16; needed torch.int8"),
    ({"a": zeros(0, 64)}, ValueError, r"a: got shape \(0, 64\); needed no empty dimension"),
    ({"b": zeros(63, 48)}, ValueError, r"b: got shape \(63, 48\); needed \(64, N\)"),
    ({"b": zeros(64, 48)}, ValueError, "b: got stride 48 along K; needed 1: K-major"),
    ({"a": zeros(32, 72)[:, :64]}, ValueError, "a: got K = 64, rows 72 bytes apart; needed rows a mult"),
    (operands(1, 1, 131088), ValueError, "a: got K = 131088; needed at most 131071: of more products int32 may not"),
    ({"variant": "slow"}, ValueError, "variant: got 'slow'; needed one of overlapped, at once"),
    ({"out": zeros(32, 48)}, TypeError, "out: got torch.int8; needed torch.int32"),
    ({"out": zeros(48, 32, dtype=torch.int32)}, ValueError, r"out: got shape \(48, 32\); needed \(32, 48\)"),
    ({"out": zeros(48, 32, dtype=torch.int32).T}, ValueError, "out: got stride 32 along N; needed 1"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


def test_out_must_not_overlap_an_operand(ours):
    memory = torch.zeros(4096, dtype=torch.int32)
    given = operands() | {"a": memory.view(torch.int8)[: 32 * 64].view(32, 64)}
    with pytest.raises(ValueError, match="out: got memory that overlaps a; needed memory of its own"):
        ours.matmul(**given, out=memory[256 : 256 + 32 * 48].view(32, 48))
    assert not ours.launched


def test_it_needs_a_gpu():
    with pytest.raises(ValueError, match="a: got device cpu; needed a CUDA device"):
        catalog.load(NAME).matmul(**operands())
