"""The FP8 GEMM with mma.sync where there is no GPU: swizzle, machine code, planted faults, model and host side."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from edits import In
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import compiled, scaled
from cookbook.check.model.fp8 import simulate_fp8
from cookbook.layouts import evaluate
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

NAME, HOPPER = "ampere/fp8_gemm", "hopper/fp8_gemm"
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


# --- the swizzle ---------------------------------------------------------------------------------------------


def test_the_16_bit_swizzle_is_the_same_in_bytes_only(module):
    import cutlass

    narrow = evaluate(module.smem_layouts, cutlass.BFloat16, module.CONFIG, element_bits=8).a
    other = catalog.load("ampere/ldmatrix_gemm")
    wide = evaluate(other.smem_layouts, cutlass.BFloat16, other.CONFIG).a
    assert narrow.swizzle == wide.swizzle == Swizzle(3, 4, 3)
    assert narrow.swizzle.in_elements(8) == Swizzle(3, 4, 3) and wide.swizzle.in_elements(16) == Swizzle(3, 3, 3)
    assert np.array_equal(narrow.byte_offsets()[:, ::16, 0], wide.byte_offsets()[:, ::8, 0])


# --- the machine code ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "opcodes"),
    [("sm_89", {"QMMA.16832.F32.E4M3.E4M3": 1}), ("sm_90a", {"HMMA.16816.F32": 2, "FADD": 4})],
)
def test_one_mma_sync_is_one_instruction_or_several(target, opcodes):
    """QMMA on Ada; on Hopper two HMMA, and an addition to each of a lane's four accumulators."""
    made = compiled.compile_recipe(NAME, target, "bfloat16")
    mmas = made.ptx.count("mma.sync.aligned.m16n8k32")
    assert mmas and {code: made.sass_counts.get(code, 0) / mmas for code in opcodes} == opcodes


def test_e5m2_has_its_own_instruction(module, tmp_path):
    import cutlass

    module.compile_for("sm_89", cutlass.Float16, element=module.E5M2, options=f"--keep-ptx --dump-dir {tmp_path}")
    (file,) = tmp_path.glob("*.ptx")
    assert "mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32" in file.read_text(encoding="utf-8")


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
        "a k-tile has as many k-blocks as of 16 bits",
        In("Config.k_blocks").replace("self.tile_k // 32", "self.tile_k // 64"),
    ),
    (
        "product",
        "a row's factor is that of the row 8 below",
        In("scaled").replace("_row + 8 * _i", "_row + 8 - 8 * _i"),
    ),
    (
        "product",
        "a thread's columns are those of another warp",
        In("scaled").replace("_warp_idx // _config.warps_m", "_warp_idx % _config.warps_n"),
    ),
    (
        "product",
        "every tile takes the factors of the first",
        In("load_scales").replace(
            "cutlass.min(_first + _at, cute.size(_scale) - 1)", "cutlass.min(_at, cute.size(_scale) - 1)"
        ),
    ),
    ("pipeline", "a tile is read one group early", In("mainloop").replace("_stages - 2", "_stages - 1")),
    (
        "pipeline",
        "C is written over a stage that is read",
        In("store").drop("cute.arch.sync_threads()", before="cute.copy(...)"),
    ),
]


@pytest.mark.parametrize(("level", "what", "edit"), FAULTS, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, tmp_path):
    assert caught(Mutation(NAME, what, edit), (level,), tmp_path).level == level


# --- the model -----------------------------------------------------------------------------------------------


def test_a_factor_multiplies_its_row_or_its_column(module):
    import cutlass

    a, b = scaled.integers(140, 160, "fp8", 1), scaled.integers(270, 160, "fp8", 2)
    before = simulate_fp8(module, a, b, cutlass.Float16, module.CONFIG)
    assert np.array_equal(before, (a.values() @ b.values().T).astype(np.float16).astype(np.float32))
    a.scales[137, 0] *= 4
    b.scales[5, 0] *= 8
    ratio = simulate_fp8(module, a, b, cutlass.Float16, module.CONFIG)[before != 0] / before[before != 0]
    wanted = np.outer(1 + 3.0 * (np.arange(140) == 137), 1 + 7.0 * (np.arange(270) == 5))[before != 0]
    assert np.array_equal(ratio, wanted)


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=32, n=48, k=64):
    a, b = torch.zeros(m, k).to(E4M3), torch.zeros(n, k).to(E4M3).T
    return {"a": a, "b": b, "scale_a": torch.ones(m, 1), "scale_b": torch.ones(1, n)}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given = operands() | {"scale_a": torch.ones(32, 5)[:, 2:3], "scale_b": torch.tensor(2.0)}
    out = torch.empty(32, 52, dtype=torch.bfloat16)[:, :48]
    assert ours.matmul(**given, out=out) is out
    (((arch, _, config, vec, element), arguments),) = ours.launched
    assert (arch, config, vec, element) == ("", ours.CONFIG_99K, 4, ours.E4M3)
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], out, given["scale_a"], given["scale_b"]))
    assert arguments == (*addresses, ((32, 48, 64), (64, 64, 52), 5, 0), 7)


def test_each_type_has_a_kernel_of_its_own(ours):
    given = operands()
    ours.matmul(**given)
    ours.matmul(**given | {"a": given["a"].to(E5M2), "b": given["b"].to(E5M2)})
    assert [which[-1] for which, _ in ours.launched] == [ours.E4M3, ours.E5M2]


def test_it_takes_what_hoppers_takes_but_for_variants(ours, monkeypatch):
    """The calling form is one: the same keywords in the same order, the same kinds of scale factors."""
    import inspect

    ours_takes, theirs = (list(inspect.signature(m.matmul).parameters) for m in (ours, catalog.load(HOPPER)))
    assert [*ours_takes, "variant"] == theirs


WRONG = [
    ({"a": torch.zeros(32, 64)}, TypeError, "a: got torch.float32; needed torch.float8_e4m3fn or"),
    ({"b": torch.zeros(48, 64).to(E5M2).T}, TypeError, "b: got torch.float8_e5m2; needed torch.float8_e4m3fn, the dty"),
    ({"b": torch.zeros(64, 48).to(E4M3)}, ValueError, "b: got stride 48 along K; needed 1: K-major"),
    ({"a": torch.zeros(32, 80).to(E4M3)[:, 8:72]}, ValueError, "a: got address .*; needed a multiple of 16 bytes"),
    ({"out_dtype": torch.float32}, TypeError, "out_dtype: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"out": torch.zeros(32, 48)}, TypeError, "out: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"scale_a": torch.ones(31, 1)}, ValueError, r"scale_a: got shape \(31, 1\); needed \(32, 1\), or one element"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


def test_a_k_of_no_whole_16_bytes_is_named(ours):
    a, b = torch.zeros(32, 80).to(E4M3)[:, :72], torch.zeros(48, 80).to(E4M3)[:, :72].T
    with pytest.raises(ValueError, match="a: got K = 72; needed a multiple of 16: whole 16-byte pieces"):
        ours.matmul(a, b, torch.ones(32, 1), torch.ones(1, 48))
    assert not ours.launched


def test_an_older_gpu_is_named(ours, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ValueError, match=r"a: got a GPU of compute capability \(8, 6\); needed \(8, 9\) or later"):
        ours.matmul(**operands())
