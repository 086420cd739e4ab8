"""What fusions save: both ways give the same, with torch for the recipes; the bytes that stay away; the table."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from cookbook.measure import contest, records
from cookbook.recipe import catalog
from tools import fusions
from tools.publish import fusion_table

SMALL = {3: (24, 40, 32), 4: (24, 40, 16, 32)}  # by the number of extents
GPU = {"bytes_per_us": 4_000_000, "kernel_us": 2.0}


def into(product, out):
    return out.copy_(product)


def stub(name: str):
    """A recipe's `matmul` by torch, on the CPU."""

    def gated(a, b, *, epilogue, up, out):
        assert epilogue == "swiglu"
        return into(functional.silu(a @ b) * (a @ up), out)

    def fused(a, b, *, epilogue, out, bias=None, residual=None):
        if epilogue == "add_residual":
            return into(a @ b + residual, out)
        assert epilogue == "bias_gelu"
        return into(functional.gelu(a @ b + bias, approximate="tanh"), out)

    def grouped(a, b, offs, *, out):
        parts = zip(a.tensor_split(offs[:-1].cpu().long()), b, strict=True)
        return into(torch.cat([rows @ weight for rows, weight in parts]), out)

    def reducing(a, b, *, out, amax):
        return into(a @ b, out), amax.copy_(out.abs().amax())

    known = {
        fusions.PLAIN: lambda a, b, *, out: into(a @ b, out),
        fusions.FP8: lambda a, b, of_a, of_b, *, out: into(a.float() @ b.float() * of_a * of_b, out),
        "hopper/fused_epilogue_gemm": fused,
        "hopper/swiglu_gemm": gated,
        "hopper/back_to_back_gemm": lambda a, b, b2, *, out: into(a @ b @ b2, out),
        "hopper/grouped_gemm": grouped,
        fusions.NO_MAXIMUM: lambda a, b, *, out: into(a @ b, out),
    }
    return SimpleNamespace(matmul=known.get(name), matmul_amax=reducing)


def small(fusion):
    shape = (4, 24, 40, 32) if fusion.what == fusions.GROUPS else SMALL[len(fusion.shape)]
    return fusion._replace(shape=shape)


@pytest.mark.parametrize("fusion", {f.what: f for f in fusions.FUSIONS}.values(), ids=lambda f: f.what)
def test_both_ways_give_the_same_and_what_differs_is_seen(fusion, monkeypatch):
    monkeypatch.setattr(catalog, "load", stub)
    monkeypatch.setattr(contest, "how_many_sets", lambda size: 2)
    made = fusions.work(small(fusion), device="cpu")
    assert len(made.sets) == 2
    fusions.verify(small(fusion), made)
    wrong = made._replace(fused=lambda *operands: (made.fused(*operands), operands[-2].mul_(1.05)))
    with pytest.raises(RuntimeError, match="fused and apart differ by"):
        fusions.verify(small(fusion), wrong)
    with pytest.raises(RuntimeError, match="differ by nan"):
        fusions.verify(small(fusion), made._replace(apart=lambda *operands: None))


def test_bytes_that_stay_away_are_of_product_and_chain():
    first = {f.what: f for f in reversed(fusions.FUSIONS)}
    assert first[fusions.RESIDUAL].saved_bytes == 2 * 8192 * 4096 * 2  # written, and read again
    assert first[fusions.GATE].saved_bytes == 6 * 8192 * 4096 * 2
    assert first[fusions.CHAIN].saved_bytes == 2 * 8192 * 128 * 2
    assert first[fusions.AMAX].saved_bytes == 8192 * 8192 * 2  # what is stored is not read again
    assert first[fusions.GROUPS].saved_bytes == 0 and fusions.predicted(first[fusions.GROUPS], GPU) == 14.0
    residual = fusions.predicted(first[fusions.RESIDUAL], GPU)
    assert residual == pytest.approx(2 * 8192 * 4096 * 2 / 4e6 + 2.0)


def test_a_run_is_recorded_and_shown_until_the_code_changes(tmp_path):
    assert fusion_table.markdown(tmp_path) == "*Not measured*."
    taken = [{"what": f.what, "shape": list(f.shape), "apart": 100.0, "fused": 75.0} for f in fusions.FUSIONS]
    run = {"device": "NVIDIA H200", "date": "2026-01-01", "code": {}, "gpu": GPU, "fusions": taken}
    used = {name: records.code_of(name) for f in fusions.FUSIONS for name in (f.recipe, f.apart)}
    file = fusions.write(run | {"code": used}, tmp_path)
    assert file == tmp_path / "nvidia-h200" / "fusions.json"
    shown = fusion_table.markdown(tmp_path)
    assert "(recipes/hopper/swiglu_gemm.md) | 2048 x 5632 x 2048 | 100.0 | 75.0 |" in shown
    assert "| 8192 x (4096 -> 128 -> 128) |" in shown and "| 512 x 4096 x 4096, 8 groups |" in shown
    assert "| 14.0 | 25.0 |" in shown and "a copy moved 4000 GB/s" in shown
    fusions.write(run | {"code": used | {fusions.PLAIN: "older"}}, tmp_path)
    assert fusion_table.markdown(tmp_path) == "*Not measured since the code changed*."
