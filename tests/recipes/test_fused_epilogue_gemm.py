"""The fused GEMM where there is no GPU: its functions, planted faults in what feeds them, and its host side."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import cutlass
import pytest
import torch
from edits import In
from marks import first_of_each
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import compiled, fused, layout, pipeline, product
from cookbook.recipe import cache, catalog

NAME = "hopper/fused_epilogue_gemm"
BIAS, BOTH, ALL = list(fused.PROBES)[:3]  # with which a planted fault is looked for


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


# --- the functions -------------------------------------------------------------------------------------------


def test_every_function_is_what_its_reference_says(module):
    found = fused.function_findings(module)
    assert [finding.name for finding in found] == list(module.EPILOGUES) == list(module.REFERENCES)
    assert [finding for finding in found if not finding.ok] == []


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x, bias: x - bias, "relative error"),
        (lambda x, column: x + column, "operands: got column; needed some of bias, residual"),
        (lambda x, residual: x + residual, "operands: got residual; needed bias, as its reference has"),
    ],
    ids=("another function", "an operand that there is not", "another operand"),
)
def test_a_function_that_is_another_is_found(module, monkeypatch, function, says):
    monkeypatch.setitem(module.EPILOGUES, "add_bias", function)
    (bad,) = (finding for finding in fused.function_findings(module) if not finding.ok)
    assert bad.name == "add_bias" and bad.detail.startswith(says)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("scaled", lambda x, row_scale, column_scale: x * row_scale),
        ("alpha_beta", lambda x, residual, alpha, beta: alpha * x + beta),
        ("alpha_beta", lambda x, residual, alpha, beta: alpha * (x + beta * residual)),
    ],
    ids=("no column scale", "beta without residual", "alpha times both"),
)
def test_a_scale_factor_that_is_elsewhere_is_found(module, monkeypatch, name, function):
    monkeypatch.setitem(module.EPILOGUES, name, function)
    (bad,) = (finding for finding in fused.function_findings(module) if not finding.ok)
    assert bad.name == name and bad.detail.startswith("relative error")


def test_every_operand_has_room_in_every_variant(module):
    """Of a function that takes them all: shared memory is what runs out first."""
    with fused.probed(module, ALL) as config:
        for variant in module.VARIANTS.values():
            each = replace(variant, epilogue=config.epilogue)
            assert set(each.vectors) == set(module.ALONG) and each.smem_bytes <= 227 << 10
            found = layout.check_layouts(module, cutlass.BFloat16, each)
            assert found and not [finding for finding in found if not finding.ok]


def test_a_readers_own_function_compiles_without_other_changes(module, monkeypatch):
    monkeypatch.setitem(module.EPILOGUES, "mine", lambda x, bias, residual: module.gelu(x + bias) + residual)
    gelu = partial(torch.nn.functional.gelu, approximate="tanh")
    monkeypatch.setitem(module.REFERENCES, "mine", lambda x, bias, residual: gelu(x + bias) + residual)
    assert fused.function_findings(module)[-1].ok
    built = compiled.compile_module(module, NAME, "sm_90a", "bfloat16", module.fused("mine"))
    assert built.spills == 0 and "tanh.approx.f32" in built.ptx


@pytest.mark.parametrize(("name", "count"), [("product", 2), ("add_both", 2), ("scaled", 4), ("alpha_beta", 4)])
def test_a_launch_takes_as_many_addresses_as_it_is_told(module, name, count, tmp_path):
    """As `matmul` compiles it: TVM-FFI makes the signature, and refuses a tuple of another size."""
    compiled_as_called = module.compile_for("sm_90a", cutlass.BFloat16, module.fused(name), options=cache.TVM_FFI)
    compiled_as_called.export_to_c(str(tmp_path / "kernel.o"), "kernel")
    launch = cache.load_object((tmp_path / "kernel.o").read_bytes(), "kernel")
    assert len(module.told(fused.operands_of(module, name))) == count
    with pytest.raises(ValueError, match=f"expected tuple size={count}"):
        launch(0, 0, 0, (0,) * (count + 1), module.Sizes((8, 8, 8), (8, 8, 8), 8, 1), 0)


@pytest.mark.parametrize("variant", ["128x192", "128x160", "128x128", "128x64"])
def test_a_residual_comes_in_time_in_every_variant(module, variant):
    """With one buffer a warpgroup would wait for a subtile that it asks for behind the wait."""
    config = replace(module.VARIANTS[variant], epilogue="add_residual")
    found = pipeline.findings(pipeline.explored(pipeline.Run(module, "sm_90a", cutlass.BFloat16, config)))
    assert found and not [finding for finding in found if not finding.ok]
    with pytest.raises(ValueError, match="epi_stages: got 1; needed half of 2, and 2 or more"):
        replace(module.VARIANTS["128x64"], epilogue="add_residual", epi_n=64, epi_stages=1)


def test_a_residual_has_buffers_for_half_of_a_tile(module):
    """Each buffer's mbarrier then has two phases for a work tile, and its parity is a constant."""
    with pytest.raises(
        ValueError, match="epi_stages: got 2; needed half of 6, and 2 or more: two phases of an mbarrier"
    ):
        replace(module.CONFIG, epi_stages=2, epilogue="add_residual")


def test_what_is_counted_of_a_plain_product_has_no_residual(module):
    assert layout.predicted_wavefronts(module, cutlass.BFloat16, module.CONFIG) == {"r2s": 4}


CHOICES = [  # M, N, K; the waves of each variant on 132 SMs; the tile
    # The first five were timed on an H100 with bias and GELU: the tile is the fastest, or within 1% of it.
    ((8192, 4096, 4096), (11, 11, 13, 16, 32), "128x160"),
    ((4096, 4096, 4096), (6, 6, 7, 8, 16), "128x128"),
    ((4096, 16384, 4096), (21, 21, 26, 32, 63), "128x192, 16 rows"),
    ((2048, 4096, 4096), (3, 3, 4, 4, 8), "128x128"),
    ((2048, 11008, 4096), (8, 8, 9, 11, 21), "128x128"),
    ((3072, 3072, 3072), (3, 3, 4, 5, 9), "128x192, 16 rows"),
    ((4096, 2560, 4096), (4, 4, 4, 5, 10), "128x160"),
    ((2048, 2048, 2048), (2, 2, 2, 2, 4), "128x128"),
    ((512, 1024, 1024), (1, 1, 1, 1, 1), "128x64"),
]


@pytest.mark.parametrize(("shape", "waves", "variant"), CHOICES, ids=str)
def test_the_tile_with_the_fewest_clocks_is_chosen(module, shape, waves, variant):
    assert tuple(module.waves(config, *shape[:2], 132) for config in module.VARIANTS.values()) == waves
    assert module.choose(*shape, 132) == variant


# --- planted faults ------------------------------------------------------------------------------------------

FAULTS = [
    ("layout", "the swizzle is dropped",
     In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"), "128x192"),
    ("product", "the halves change places in C",
     In("finish_tile").replace("_i // _config.across", "1 - _i // _config.across"), "128x128"),
    ("product", "the bias of another lane", In("vector_values").replace("_epi.thread % 4", "_epi.thread % 2"), BIAS),
    ("product", "the last column has its neighbour's bias",
     In("bring_vectors").replace("cute.size(_vector) - 1", "cute.size(_vector) - 2"), BIAS),
    ("product", "the bias of the columns before", In("vector_values").replace("_i % _config.across", "0"), BIAS),
    ("product", "the residual of another subtile",
     In("load_residual").where("_buffer, _ = _ % _.epi_stages, _").replace("_i // _config.across",
      "_buffer // _config.across"), BOTH),
    ("product", "the scale factor of another row",
     In("vector_values").replace("_epi.thread % 32 // 4", "_epi.thread % 32 % 4"), ALL),
    ("product", "the lower half of a tile has the factors of the upper one",
     In("vector_values").replace("_i // _config.across", "0 // _config.across"), ALL),
    ("product", "a row has the scale factor of another one",
     In("vector_values").replace("(0, 1, 0)", "(0, 0, 0)"), ALL),
    ("product", "a column has its neighbour's scale factor",
     In("vector_values").replace("(1, 0, 2)", "(0, 0, 2)"), ALL),
    ("product", "the scale factors of the first tile",
     In("bring_vectors").replace("(*_tile, 0)[ALONG[_name]]", "(0, 0, 0)[ALONG[_name]]"), ALL),
    ("product", "beta is alpha",
     In("bring_vectors").replace("getattr(_fetch.operands, _name)",
      "getattr(_fetch.operands, 'alpha' if _name == 'beta' else _name)"), ALL),
    ("product", "a function of what is rounded",
     In("finish").where("return EPILOGUES[_](_, **_).to(_epi.sC.element_type)")
      .replace("subtile_of(_acc, _i, _config).load()",
       "subtile_of(_acc, _i, _config).load().to(_epi.sC.element_type).to(cutlass.Float32)"), ALL),
    ("pipeline", "the bias is read before all of it is there",
     In("bring_vectors")
      .drop("pipeline.NamedBarrier(barrier_id=1 + _epi.warpgroup, num_threads=128).arrive_and_wait()"), BIAS),
    ("pipeline", "a stage is released early",
     In("next_k_tile").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)"), "128x192"),
    ("pipeline", "no fence between stmatrix and TMA",
     In("finish_tile").drop("cute.arch.fence_proxy('async.shared', space='cta')"), "128x192"),
    ("pipeline", "a residual is read before it has come",
     In("residual_values").drop("cute.arch.mbarrier_wait(_fetch.arrived + _buffer, _i // _config.epi_stages)"), BOTH),
    ("pipeline", "a residual comes while C leaves",
     In("load_residual").replace("0 if _i < _config.epi_stages else 1", "0 if _i < _config.epi_stages else 2"), BOTH),
]  # fmt: skip


OF_A_KIND = first_of_each(FAULTS, lambda fault: (fault[0], fault[3]))  # a level and a variant


@pytest.mark.parametrize(("level", "what", "edit", "variant"), OF_A_KIND, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, variant, tmp_path):
    assert caught(Mutation(NAME, what, edit, variant), (level,), tmp_path).level == level


def test_operands_are_followed_to_their_elements(module):
    for probe in fused.probes(module):
        with fused.probed(module, probe) as config:
            given = module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config, catalog.find(NAME).product
            found = product.computed(pipeline.Run(*given), every=False)
        assert found and all(one.ok for one in found), found


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=48, k=64):
    a, b = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).T
    return {"a": a, "b": b}


def further(m=32, n=48):
    residual, beta = torch.zeros(m, n + 8, dtype=torch.bfloat16)[:, :n], torch.ones(1)
    scales = {"row_scale": torch.ones(m, 1), "column_scale": torch.ones(n), "alpha": torch.ones(1), "beta": beta}
    return {"bias": torch.zeros(n, dtype=torch.bfloat16), "residual": residual} | scales


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's; every epilogue's host side notes its launches."""
    module = pretended(NAME, monkeypatch)
    monkeypatch.setattr(module, "GEMMS", {"product": module.GEMM})
    monkeypatch.setattr(module, "compile_for", module.GEMM.compile_for)
    return module


def test_a_function_gets_its_operands_and_no_others(ours):
    given, more = operands(), further()
    for name in ours.EPILOGUES:
        names = fused.operands_of(ours, name)
        for _ in range(2):  # the second call finds a plan
            ours.matmul(**given, epilogue=name, **{key: more[key] for key in names})
        ((_, _, config), arguments) = ours.launched[-1]
        assert config.epilogue == name and len(ours.GEMMS[name].plans) == 1
        told = ours.told(names)
        assert told[:2] == ("bias", "residual") and {*told[2:]} == {*names} - {"bias", "residual"}
        assert list(arguments[3]) == [more[key].data_ptr() if key in names else 0 for key in told]
        assert arguments[4].stride_residual == (56 if "residual" in names else 0)


def test_out_must_not_overlap_what_is_read(ours):
    memory = torch.zeros(4096, dtype=torch.bfloat16)
    out = memory[: 32 * 48].view(32, 48)
    with pytest.raises(ValueError, match="out: got memory that overlaps bias; needed memory of its own"):
        ours.matmul(**operands(), epilogue="add_bias", bias=memory[1500:1548], out=out)
    with pytest.raises(ValueError, match="out: got memory that overlaps residual"):
        ours.matmul(**operands(), epilogue="add_residual", residual=out, out=out)
    scales = {"row_scale": torch.ones(32, 1), "column_scale": memory[1440:1536].view(torch.float32)}
    with pytest.raises(ValueError, match="out: got memory that overlaps column_scale"):
        ours.matmul(**operands(), epilogue="scaled", **scales, out=out)
    assert not ours.launched
    ours.matmul(**operands(), epilogue="add_bias", bias=memory[1536:1584], out=out)


BIAS_OF_48, HALF = torch.zeros(48, dtype=torch.bfloat16), {"dtype": torch.bfloat16}
SCALED = {"epilogue": "scaled", "row_scale": torch.ones(32, 1), "column_scale": torch.ones(48)}
BLAS = {
    "epilogue": "alpha_beta",
    "residual": torch.zeros(32, 48, **HALF),
    "alpha": torch.ones(1),
    "beta": torch.ones(1),
}
WRONG = [
    ({"epilogue": "relu"}, ValueError, "epilogue: got 'relu'; needed one of product, add_bias,"),
    ({"epilogue": ["add_bias"]}, ValueError, r"epilogue: got \['add_bias'\]; needed one of"),
    ({"bias": BIAS_OF_48}, ValueError, "bias: got Tensor; needed None: the epilogue takes none"),
    ({"epilogue": "add_bias"}, TypeError, "bias: got NoneType; needed a torch.Tensor"),
    ({"epilogue": "add_bias", "bias": 1.0}, TypeError, "bias: got float; needed a torch.Tensor"),
    ({"epilogue": "add_bias", "bias": BIAS_OF_48[:40]}, ValueError, r"bias: got shape \(40,\); needed \(48,\)"),
    ({"epilogue": "add_bias", "bias": BIAS_OF_48[None]}, ValueError, r"bias: got 2 dimension\(s\); needed 1"),
    ({"epilogue": "add_bias", "bias": torch.zeros(96, **HALF)[::2]}, ValueError, "bias: got stride 2; needed 1: adj"),
    ({"epilogue": "add_bias", "bias": BIAS_OF_48.float()}, TypeError, "bias: got torch.float32; needed torch.bfloat16"),
    ({"epilogue": "add_bias", "bias": BIAS_OF_48, "residual": BIAS_OF_48}, ValueError,
     "residual: got Tensor; needed None: the epilogue takes bias"),
    ({"epilogue": "add_residual"}, TypeError, "residual: got NoneType; needed a torch.Tensor"),
    ({"epilogue": "add_residual", "residual": torch.zeros(32, 48)}, TypeError, "residual: got torch.float32; needed"),
    ({"epilogue": "add_residual", "residual": torch.zeros(32, 52, **HALF)[:, :48]}, ValueError,
     "residual: got N = 48, rows 104 bytes apart; needed rows a multiple of 16 bytes apart"),
    ({"scale": 1.0}, TypeError, "operands: got scale; needed some of bias, residual, row_scale, colu"),
    ({"alpha": torch.ones(1)}, ValueError, "alpha: got Tensor; needed None: the epilogue takes none"),
    (SCALED | {"row_scale": torch.ones(32)}, ValueError, r"row_scale: got 1 dimension\(s\); needed 2"),
    (SCALED | {"row_scale": torch.ones(1, 32)}, ValueError, r"row_scale: got shape \(1, 32\); needed \(32, 1\)"),
    (SCALED | {"row_scale": torch.ones(32, 2)[:, :1]}, ValueError, "row_scale: got stride 2; needed 1: adjacent"),
    (SCALED | {"row_scale": torch.ones(32, 1, **HALF)}, TypeError, "row_scale: got torch.bfloat16; needed torch.fl"),
    (SCALED | {"column_scale": torch.ones(47)}, ValueError, r"column_scale: got shape \(47,\); needed \(48,\)"),
    (SCALED | {"column_scale": None}, TypeError, "column_scale: got NoneType; needed a torch.Tensor"),
    (SCALED | {"column_scale": torch.ones(48, device="meta")}, ValueError, "column_scale: got device meta; needed cpu"),
    (BLAS | {"alpha": 2.0}, TypeError, "alpha: got float; needed a torch.Tensor"),
    (BLAS | {"beta": torch.ones(2)}, ValueError, r"beta: got shape \(2,\); needed \(1,\)"),
    (BLAS | {"beta": torch.ones(())}, ValueError, r"beta: got 0 dimension\(s\); needed 1"),
    (BLAS | {"residual": None}, TypeError, "residual: got NoneType; needed a torch.Tensor"),
    ({"variant": "64x64"}, ValueError, "variant: got '64x64'; needed one of auto, 128x192, 16 rows, 128x192"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**operands() | given)
    assert not ours.launched


def test_the_host_side_is_the_shared_one(module):
    assert {each.name for each in module.GEMM.operands} == {"a", "b", "bias", "residual"}
