"""8 threads whose first calls are of three copied recipes, at once, in fresh processes: no abort, all products right.

`pytest -m gpu`; skipped where there is no Hopper GPU, which runs all three.
"""

from __future__ import annotations

import pytest
import torch
from marks import ON_HOPPER
from threads import FIRST_CALLS, run_beside_copies

from cookbook.check import ran
from cookbook.recipe import catalog, remapping

pytestmark = ON_HOPPER


@pytest.mark.parametrize("again", range(20))
def test_8_threads_first_call_three_copied_recipes_at_once(tmp_path, again):
    done = run_beside_copies(tmp_path, FIRST_CALLS)
    assert (done.returncode, done.stdout.split()) == (0, ["8", "right"]), done.stderr[-2000:]


@pytest.mark.parametrize("name", ["hopper/tuned_gemm", "hopper/majors_gemm"])
def test_a_call_after_a_capture_is_remapped(name, monkeypatch):
    module = catalog.load(name)
    monkeypatch.setattr(remapping, "REMAPS", {})
    monkeypatch.setattr(module.GEMM, "plans", {})
    a, b = ran.inputs((8192, 8192, 512), "bfloat16")
    out, graph = torch.empty(8192, 8192, dtype=a.dtype, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        module.matmul(a, b, out=out, variant="128x256")
    assert not module.GEMM.plans and not remapping.REMAPS
    module.matmul(a, b, out=out, variant="128x256")
    ((call, _, arguments),) = module.GEMM.plans.values()
    assert call.mnk == (8192, 8192, 512) and arguments[0] == next(iter(remapping.REMAPS.values())).data_ptr()


def test_a_negative_view_is_refused_its_resolved_copy_right():
    a, b = ran.inputs((256, 256, 256), "bfloat16")
    matmul = catalog.load("hopper/tma_wgmma_gemm").matmul
    product = matmul(a, b)
    with pytest.raises(ValueError, match="a: got a view with PyTorch's neg bit"):
        matmul(torch._neg_view(a), b)
    assert torch.equal(matmul(torch._neg_view(a).resolve_neg(), b), -product)
