"""The SwiGLU GEMM where there is no GPU: its gates, planted faults in how two weights meet, and its host side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from edits import In
from mutations import Mutation
from planted import Suite, check_caught
from pretend import pretended

from cookbook.check import compiled, fused, pipeline, product
from cookbook.ops import choice, gated
from cookbook.recipe import catalog

NAME = "hopper/swiglu_gemm"
FIRST, SECOND = "the first product", fused.SECOND  # probes, with which a planted fault is looked for


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


# --- the gates -----------------------------------------------------------------------------------------------


def test_every_gate_is_what_its_reference_says(module):
    found = fused.function_findings(module)
    assert [finding.name for finding in found] == list(module.EPILOGUES) == list(module.REFERENCES)
    assert [finding for finding in found if not finding.ok] == []


def test_a_gate_with_exchanged_operands_is_found(module, monkeypatch):
    monkeypatch.setitem(module.EPILOGUES, "swiglu", lambda x, up: module.swiglu(up, x))
    (bad,) = (finding for finding in fused.function_findings(module) if not finding.ok)
    assert bad.name == "swiglu" and bad.detail.startswith("relative error")


def test_a_readers_own_gate_compiles_without_other_changes(module, monkeypatch):
    monkeypatch.setitem(module.EPILOGUES, "bilinear", lambda x, up: x * up)
    monkeypatch.setitem(module.REFERENCES, "bilinear", lambda x, up: x * up)
    assert fused.function_findings(module)[-1].ok
    built = compiled.compile_module(module, NAME, "sm_90a", "bfloat16", module.fused("bilinear"))
    assert built.spills == 0 and "tanh.approx.f32" not in built.ptx


# --- the kernel ----------------------------------------------------------------------------------------------


def test_each_product_is_followed_by_a_probe_of_its_own(module):
    assert fused.probes(module) == (FIRST, SECOND)
    for probe in fused.probes(module):
        with fused.probed(module, probe) as config:
            given = module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config, catalog.find(NAME).product
            found = product.computed(pipeline.Run(*given), every=False)
        assert found and all(one.ok for one in found), found


def test_a_gate_halves_the_columns_of_a_tile_and_nothing_else(module):
    for config in module.VARIANTS.values():
        both = replace(config, epilogue="swiglu")
        assert (2 * both.out_n, both.stage_bytes, both.smem_bytes) == (
            config.out_n,
            config.stage_bytes,
            config.smem_bytes,
        )
        assert module.clusters(both.stored, 4096, 5632, 132) == module.clusters(config, 4096, 2 * 5632, 132)


def test_no_variant_needs_more_than_an_sm_has(module):
    for name, config in module.VARIANTS.items():
        built = compiled.compile_module(module, NAME, "sm_90a", "bfloat16", replace(config, epilogue="swiglu"))
        assert built.spills == 0 and built.smem_bytes <= 227 * 1024, name


FAULTS = {
    "layout": [("the swizzle is dropped",
                In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"), "")],
    "product": [
        ("the weights change places",
         In("gemm").replace("(make_load(_x, _b_stage, _half, 1) for _x in (_mB, _mU))",
          "(make_load(_x, _b_stage, _half, 1) for _x in (_mU, _mB))"), FIRST),
        ("the first weight stands for both",
         In("gemm").replace("(make_load(_x, _b_stage, _half, 1) for _x in (_mB, _mU))",
          "(make_load(_x, _b_stage, _half, 1) for _x in (_mB, _mB))"), SECOND),
        ("the second weight has the first one's row stride",
         In("gemm").where("_, _ldb, _, _ldu = (cute.assume(...) for _ in _)")
          .replace("cute.make_layout(_, stride=(_ldu, 1))", "cute.make_layout(_, stride=(_ldb, 1))"), SECOND),
        ("the second weight's box is one further", In("place").replace("(_m, _n, _n)", "(_m, _n, _n + 1)"), SECOND),
        ("the halves of B change places", In("partition_loads").replace("(_i, 0, 0)", "(1 - _i, 0, 0)"), FIRST),
        ("the gate meets its neighbour's product",
         In("finish").replace("_first + _config.across", "_first + _config.across - 1"), SECOND),
        ("a tile of C has the columns of both weights",
         In("Config.out_n").replace("self.tile_n // 2", "self.tile_n"), FIRST),
        ("without a gate both boxes are the first", In("place").replace("2 * _n + 1", "2 * _n"), ""),
    ],
    "pipeline": [
        ("a stage is full when one weight has come",
         In("make_pipeline").replace("_c.stage_bytes", "_c.stage_bytes - _c.tile_n * _c.tile_k"), FIRST),
        ("a stage is released early",
         In("next_k_tile").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"), FIRST),
        ("no fence between stmatrix and TMA",
         In("write_subtile").drop("cute.arch.fence_proxy('async.shared', space='cta')"), FIRST),
        ("a buffer is written while TMA reads it",
         In("write_subtile").replace("_config.epi_stages - 1", "_config.epi_stages"), FIRST),
    ],
}  # fmt: skip
SUITES = [Suite((level,), [Mutation(NAME, *fault) for fault in faults]) for level, faults in FAULTS.items()]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=48, k=64):
    a, b = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).T
    return {"a": a, "b": b}


UP = torch.zeros(48, 72, dtype=torch.bfloat16)[:, :64].T


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's; every epilogue's host side notes its launches."""
    module = pretended(NAME, monkeypatch)
    monkeypatch.setattr(module, "GEMMS", {"product": module.GEMM})
    monkeypatch.setattr(module, "compile_for", module.GEMM.compile_for)
    return module


def test_a_gate_is_launched_with_both_weights(ours):
    given = operands()
    for name in ours.EPILOGUES:
        further = {} if name == "product" else {"up": UP}
        for _ in range(2):  # the second call finds a plan
            ours.matmul(**given, epilogue=name, **further)
        ((_, _, config), arguments) = ours.launched[-1]
        assert config.epilogue == name and len(ours.GEMMS[name].plans) == 1
        assert list(arguments[:2]) == [given["a"].data_ptr(), given["b"].data_ptr()]
        assert (arguments[3], arguments[4].stride_up) == ((UP.data_ptr(), 72) if further else (0, 0))


def test_out_must_not_overlap_the_second_weight(ours):
    memory = torch.zeros(48, 64, dtype=torch.bfloat16)
    out = memory.flatten()[: 32 * 48].view(32, 48)
    with pytest.raises(ValueError, match="out: got memory that overlaps up; needed memory of its own"):
        ours.matmul(**operands(), epilogue="swiglu", up=memory.T, out=out)
    assert not ours.launched


WRONG = [
    ({"epilogue": "relu"}, ValueError, "epilogue: got 'relu'; needed one of product, swiglu,"),
    ({"epilogue": ["swiglu"]}, ValueError, r"epilogue: got \['swiglu'\]; needed one of"),
    ({"up": UP}, ValueError, "up: got Tensor; needed None: the epilogue takes none"),
    ({"epilogue": "swiglu"}, TypeError, "up: got NoneType; needed a torch.Tensor"),
    ({"epilogue": "swiglu", "up": 1.0}, TypeError, "up: got float; needed a torch.Tensor"),
    ({"epilogue": "swiglu", "up": UP[:, :40]}, ValueError,
     r"up: got shape \(64, 40\); needed \(64, 48\), for b is \(64, 48\)"),
    ({"epilogue": "swiglu", "up": UP.float()}, TypeError, "up: got torch.float32; needed torch.bfloat16"),
    ({"epilogue": "swiglu", "up": UP.contiguous()}, ValueError, "up: got stride 48 along K; needed 1: K-major"),
    ({"epilogue": "swiglu", "up": torch.zeros(48, 68, dtype=torch.bfloat16)[:, :64].T}, ValueError,
     "up: got K = 64, columns 136 bytes apart; needed columns a multiple of 16 bytes apart"),
    ({"variant": "64x64"}, ValueError, "variant: got '64x64'; needed one of auto,"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**operands() | given)
    assert not ours.launched


def test_the_host_side_is_the_shared_one(module):
    assert module.GEMM.operands[2].name == "up"


# --- the choice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "variant"),
    [
        ((4096, 14336, 4096), "256x160"),
        ((2048, 5632, 2048), "128x128 pingpong"),
        ((4096, 8192, 4096), "128x192 pingpong"),
        ((512, 14336, 4096), "128x128 pingpong"),
    ],
)
def test_the_tile_is_the_one_that_fills_the_last_wave(module, shape, variant):
    m, n, k = shape
    assert module.choose(m, 2 * n, k, 132) == variant


def test_few_rows_take_two_products_and_many_one_kernel():
    found = {m: gated.chosen(m, 14336, 4096, "bfloat16", choice.H200).recipe for m in (1, 64, 128, 512, 4096)}
    assert found == {1: "", 64: NAME, 128: NAME, 512: NAME, 4096: NAME}


def test_a_gpu_without_such_a_kernel_takes_two_products():
    assert gated.chosen(4096, 4096, 4096, "bfloat16", choice.Gpu((8, 0), 108)).recipe == ""
