"""The fused GEMM where there is no GPU: its functions, planted faults in what feeds them, and its host side."""

from __future__ import annotations

import pytest
import torch
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import compiled, fused, product
from cookbook.recipe import catalog, entry

NAME = "hopper/fused_epilogue_gemm"
VECTORS, RESIDUAL = fused.PROBES  # which operand a planted fault is looked for with


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
        (lambda x, column: x - column, "relative error"),
        (lambda x, columns: x + columns, "operands: got columns; needed some of row, column, residual, alpha, beta"),
    ],
    ids=("another function", "an operand that there is not"),
)
def test_a_function_that_is_another_is_found(module, monkeypatch, function, says):
    monkeypatch.setitem(module.EPILOGUES, "bias", function)
    (bad,) = (finding for finding in fused.function_findings(module) if not finding.ok)
    assert bad.name == "bias" and bad.detail.startswith(says)


def test_a_function_of_a_readers_own_is_compiled_without_a_change_elsewhere(module, monkeypatch):
    """All five operands at once: more than any function of the page has."""
    monkeypatch.setitem(
        module.EPILOGUES,
        "mine",
        lambda x, row, column, residual, alpha, beta: alpha * module.gelu(x * row + column) + beta * residual,
    )
    monkeypatch.setitem(module.REFERENCES, "mine", lambda x, row, column, residual, alpha, beta: (
        alpha * torch.nn.functional.gelu(x * row + column, approximate="tanh") + beta * residual
    ))  # fmt: skip
    assert fused.function_findings(module)[-1].ok
    built = compiled.compile_module(module, NAME, "sm_90a", "bfloat16", module.fused("mine"))
    assert built.spills == 0 and "tanh.approx.f32" in built.ptx


def test_a_residual_needs_buffers_for_a_band(module):
    with pytest.raises(ValueError, match=r"epi_stages: got 2; needed a buffer for each of the 5 subtiles of a band"):
        module.Config(tile_n=160, epi_n=32, epilogue="add")


# --- planted faults ------------------------------------------------------------------------------------------

SWIZZLE, ARRIVED = "cute.make_swizzle(bits, 4, 3)", "cute.arch.mbarrier_wait(me.arrived, band)"
THERE = "me.barrier.arrive_and_wait()  # TMA has read what was in this buffer"
READ = "cp_async_bulk_wait_group(0, read=True)  # TMA has read all"
OF_BAND, BEFORE = "where = subtile_at(me, band * config.across + j, config)", "wait_group({})  # the groups before"
FENCE = 'cute.arch.fence_proxy("async.shared", space="cta")'
FAULTS = [
    ("layout", "the swizzle is dropped", SWIZZLE, "cute.make_swizzle(0, 4, 3)", "256x160"),
    ("product", "the bands change places in C", "i // across * 2 + me", "(1 - i // across) * 2 + me", "256x128"),
    ("product", "rows of the other warpgroup", "+ group * 64 + own", "+ (1 - group) * 64 + own", VECTORS),
    ("product", "columns of another lane", "me.thread % 4 * 2", "me.thread % 2 * 2", VECTORS),
    ("product", "the last column has its neighbour's", "cute.size(me.op.column) - 1", "cute.size(me.op.column) - 2",
     VECTORS),
    ("product", "the first band's residual for both", OF_BAND, "where = subtile_at(me, j, config)", RESIDUAL),
    ("pipeline", "a band is finished while it is multiplied", "wait_group(1)  # the first band",
     "wait_group(2)  # the first band", "256x160"),
    ("pipeline", "a stage is given back early", BEFORE.format(1), BEFORE.format(2), "256x160"),
    ("pipeline", "no fence between stmatrix and TMA", FENCE, "pass", "256x160"),
    ("pipeline", "vectors are read before all are there", THERE, "pass  #", VECTORS),
    ("pipeline", "a residual is read before it has come", ARRIVED, "pass", RESIDUAL),
    ("pipeline", "a residual comes while C leaves", READ, READ.replace("(0", "(1"), RESIDUAL),
]  # fmt: skip


@pytest.mark.parametrize(("level", "what", "old", "new", "variant"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, old, new, variant, tmp_path):
    assert caught(Mutation(NAME, what, old, new, variant), (level,), tmp_path).level == level


def test_operands_are_followed_to_their_elements(module):
    for probe in fused.PROBES:
        with fused.probed(module, probe) as config:
            found = product.computed(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config, every=False)
        assert found and all(one.ok for one in found), found


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=48, k=64):
    a, b = torch.zeros(m, k, dtype=torch.bfloat16), torch.zeros(n, k, dtype=torch.bfloat16).T
    return {"a": a, "b": b}


def further(m=32, n=48):
    residual = torch.zeros(m, n + 8, dtype=torch.bfloat16)[:, :n]
    return {"row": torch.zeros(m), "column": torch.zeros(n, dtype=torch.bfloat16), "residual": residual} | {
        "alpha": 2,
        "beta": 0.5,
    }


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
        ours.matmul(**given, epilogue=name, **{key: more[key] for key in names})
        ((_, _, config, row, column), arguments) = ours.launched[-1]
        assert config.epilogue == name
        assert (row.__name__, column.__name__) == ("Float32" if "row" in names else "BFloat16", "BFloat16")
        wanted = [more[key].data_ptr() if key in names else 0 for key in ("row", "column", "residual")]
        wanted += [float(more[key]) if key in names else 0.0 for key in ("alpha", "beta")]
        assert list(arguments[3]) == wanted
        assert arguments[4].stride_residual == (56 if "residual" in names else 0)


def test_numbers_are_of_the_call_and_not_of_its_plan(ours):
    given, more = operands(), further()
    del more["row"], more["column"]
    out = torch.empty(32, 48, dtype=torch.bfloat16)
    for beta in (0.5, -3.0):
        assert ours.matmul(**given, epilogue="addmm", **more | {"beta": beta}, out=out) is out
    assert [arguments[3][4] for _, arguments in ours.launched] == [0.5, -3.0]
    assert len(ours.GEMMS["addmm"].plans) == 1


def test_out_must_not_overlap_what_is_read(ours):
    memory = torch.zeros(4096, dtype=torch.bfloat16)
    out = memory[: 32 * 48].view(32, 48)
    with pytest.raises(ValueError, match="out: got memory that overlaps column; needed memory of its own"):
        ours.matmul(**operands(), epilogue="bias", column=memory[1500:1548], out=out)
    with pytest.raises(ValueError, match="out: got memory that overlaps residual"):
        ours.matmul(**operands(), epilogue="add", residual=out, out=out)
    assert not ours.launched
    ours.matmul(**operands(), epilogue="bias", column=memory[1536:1584], out=out)


COLUMN = torch.zeros(48, dtype=torch.bfloat16)
WRONG = [
    ({"epilogue": "relu"}, ValueError, "epilogue: got 'relu'; needed one of product, bias,"),
    ({"epilogue": ["bias"]}, ValueError, r"epilogue: got \['bias'\]; needed one of"),
    ({"column": COLUMN}, ValueError, "column: got Tensor; needed None: the epilogue takes no operand"),
    ({"epilogue": "bias"}, TypeError, "column: got NoneType; needed a torch.Tensor"),
    ({"epilogue": "bias", "column": 1.0}, TypeError, "column: got float; needed a torch.Tensor"),
    ({"epilogue": "bias", "column": COLUMN[:40]}, ValueError, r"column: got shape \(40,\); needed \(48,\)"),
    ({"epilogue": "bias", "column": COLUMN[None]}, ValueError, r"column: got 2 dimension\(s\); needed 1"),
    ({"epilogue": "bias", "column": torch.zeros(96)[::2]}, ValueError, "column: got stride 2; needed 1: adjacent"),
    ({"epilogue": "bias", "column": COLUMN.double()}, TypeError, "column: got torch.float64; needed torch.bfloat16 or"),
    ({"epilogue": "bias", "column": COLUMN, "row": COLUMN}, ValueError, "row: got Tensor; needed None: the .* column"),
    ({"epilogue": "add"}, TypeError, "residual: got NoneType; needed a torch.Tensor"),
    ({"epilogue": "add", "residual": torch.zeros(32, 48)}, TypeError, "residual: got torch.float32; needed"),
    ({"epilogue": "add", "residual": torch.zeros(32, 52, dtype=torch.bfloat16)[:, :48]}, ValueError,
     "residual: got N = 48, rows 104 bytes apart; needed rows a multiple of 16 bytes apart"),
    ({"epilogue": "addmm", "residual": torch.zeros(32, 48, dtype=torch.bfloat16), "alpha": 1.0}, TypeError,
     "beta: got NoneType; needed a number"),
    ({"variant": "128x256"}, ValueError, "variant: got '128x256'; needed one of auto, 256x160, 256x128"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**operands() | given)
    assert not ours.launched


def test_the_host_side_is_the_shared_one(module):
    assert isinstance(module.GEMM, entry.FusedGemm)
