"""The largest |C| in the epilogue, on a GPU: to the bit, whatever was in `amax`; and its time next to two kernels.

`pytest -m gpu -s tests/gpu/test_amax_epilogue_gemm.py`; skipped where there is no Hopper GPU. `-s` shows the times.
"""

from __future__ import annotations

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran
from cookbook.measure import contest, peers
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME, DTYPES = "hopper/amax_epilogue_gemm", ["bfloat16", "float16"]
RAGGED = [(1, 1, 8), (1, 4096, 4096), (64, 64, 16), (127, 129, 144), (200, 333, 64), (513, 1031, 272), (3000, 8, 48)]
POISON = [float("nan"), float("inf"), -1.0, 1e30]


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_shape_to_the_bit(dtype):
    module = catalog.load(NAME)
    drawn = [(m, n, -(-k // 8) * 8) for m, n, k in ran.drawn(len(dtype), count=40)]
    for number, shape in enumerate([*RAGGED, *drawn]):
        a, b = ran.inputs(shape, dtype)
        amax = torch.full((1,), POISON[number % len(POISON)], device="cuda")
        poisoning.shared_memory()
        c, found = module.matmul_amax(a, b, amax=amax)
        assert found is amax and amax.item() == c.abs().amax().item(), shape
        wanted = torch.matmul(a, b).abs().amax().item()
        assert amax.item() == pytest.approx(wanted, rel=2**-7, abs=1e-30), shape


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_of_one_element(value):
    module, (a, b) = catalog.load(NAME), ran.inputs((200, 328, 64), "bfloat16")
    a[199, 63] = value
    c, amax = module.matmul_amax(a, b)
    assert torch.equal(amax.isnan(), c.isnan().any()[None]) and not amax.isfinite().item()


def test_infinities_of_b_make_nothing_of_rows_outside():
    """Rows behind the last one are zeros to the tensor cores: times an infinity they are NaN, and C has none."""
    module = catalog.load(NAME)
    a, b = torch.ones(3, 64, device="cuda").bfloat16(), torch.ones(64, 64, device="cuda").bfloat16().T
    b[5, 7] = float("inf")
    assert module.matmul_amax(a, b)[1].item() == float("inf")


def test_zeros_and_the_smallest():
    module = catalog.load(NAME)
    a, b = torch.zeros(130, 64, device="cuda").bfloat16(), torch.ones(72, 64, device="cuda").bfloat16().T
    assert module.matmul_amax(-a, b)[1].view(torch.int32).item() == 0
    a[129, 0] = -(2.0**-126)
    assert module.matmul_amax(a, b)[1].item() == 2.0**-126


def test_each_replay_of_a_graph_begins_with_0():
    module, (a, b) = catalog.load(NAME), ran.inputs((512, 768, 640), "bfloat16")
    out, amax = torch.empty(512, 768, dtype=a.dtype, device="cuda"), torch.empty(1, device="cuda")
    module.matmul_amax(a, b, out=out, amax=amax)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul_amax(a, b, out=out, amax=amax)
    for scale in (4.0, 0.25):
        a *= scale
        graph.replay()
        assert amax.item() == out.abs().amax().item() == module.matmul_amax(a, b)[1].item()


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (8192, 8192, 1024), (16384, 14336, 1024)])
def test_its_time_next_to_two_kernels(shape):
    """Shown, not judged: our GEMM with its amax, and the GEMM that it is built on, alone and with torch's amax."""
    ours, alone = catalog.load(NAME), catalog.load("hopper/tma_wgmma_gemm")
    amax, inf = torch.empty(1, device="cuda"), float("inf")
    calls = {
        "amax in the epilogue": lambda a, b, out: ours.matmul_amax(a, b, out=out, amax=amax),
        "the GEMM alone": lambda a, b, out: alone.matmul(a, b, out=out),
        "the GEMM, abs().amax()": lambda a, b, out: alone.matmul(a, b, out=out).abs().amax(),
        "the GEMM, vector_norm": lambda a, b, out: torch.linalg.vector_norm(alone.matmul(a, b, out=out), inf),
    }
    sets = peers.input_sets(shape, "bfloat16", catalog.find(NAME).majors[0])
    m, n, k = shape
    timed = contest.time_contest(contest.Contest(calls, sets, "the GEMM alone", 2.0 * m * n * k, graphs=False), 7)
    for who in calls:
        print(f"{shape} {who}: {1000 * timed[who]['median_ms']:.1f} us ({1000 * timed[who]['min_ms']:.1f} at least)")
        assert timed[who]["median_ms"] > 0
