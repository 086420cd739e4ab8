"""The mixed-input GEMM on a GPU: any shape of every variant, every kind of weight, with and without zero points.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import poisoning, ran
from cookbook.recipe import catalog

pytestmark = ON_HOPPER

NAME = "hopper/mixed_input_gemm"
KINDS = ("int4", "int4 with zero points", "int8", "int8 by rows", "e4m3")
DTYPES = ("bfloat16", "float16")


def weight(kind: str, n: int, k: int, dtype: str):
    """A random weight of a kind, what `pack` takes of it, and what it stands for in float64."""
    groups, where = k // 128, {"device": "cuda"}
    scales = torch.rand(n, 1 if kind == "int8 by rows" else groups, **where).add(0.5).div(8).to(getattr(torch, dtype))
    along = scales.double().expand(n, groups).repeat_interleave(128, 1)
    if kind.startswith("int8"):
        q = torch.randint(-128, 128, (n, k), dtype=torch.int8, **where)
        return (q, scales), q.double() * along
    if kind == "e4m3":  # every number there is, subnormals and both zeros
        finite = torch.tensor([byte for byte in range(256) if byte % 128 < 127], dtype=torch.uint8, **where)
        q = finite[torch.randint(0, len(finite), (n, k), **where)].view(torch.float8_e4m3fn)
        return (q, scales), q.double() * along
    q = torch.randint(0, 16, (n, k), dtype=torch.uint8, **where)
    if kind == "int4":
        return (q, scales), (q.double() - 8) * along
    zeros = torch.randint(0, 16, (n, groups), dtype=torch.uint8, **where)
    return (q, scales, zeros), (q.double() - zeros.double().repeat_interleave(128, 1)) * along


def run(shape, kind: str, dtype: str, variant: str) -> None:
    """The product is right to rounding, no worse than torch's of the rounded weight, and the same bits again."""
    (m, n, k), module = shape, catalog.load(NAME)
    given, exact = weight(kind, n, k, dtype)
    packed = module.pack(*given)
    a = torch.randn(m, k, dtype=getattr(torch, dtype), device="cuda")
    out, intact = ran.guarded(m, n, dtype, row_stride=(n, n + 24, n + 8)[m % 3])
    poisoning.shared_memory()
    assert module.matmul(a, *packed, out=out, variant=variant) is out
    reference = a.double() @ exact.T
    peer = ran.relative_error(a @ exact.to(a.dtype).T, reference)
    error = ran.relative_error(out, reference)
    assert error <= ran.tolerance(dtype), (shape, kind, error)
    assert m * n < ran.RATIO_ELEMENTS or error <= ran.RATIO_LIMIT * peer, (shape, kind, error, peer)
    assert intact(), (shape, kind)
    assert torch.equal(module.matmul(a, *packed, variant=variant), out), (shape, kind)


def drawn(count: int) -> list[tuple[int, int, int]]:
    rng = random.Random(count)
    return [(int(2 ** rng.uniform(0, 7.3)), 64 * rng.randint(1, 40), 128 * rng.randint(1, 40)) for _ in range(count)]


def test_a_hundred_random_shapes_are_right_with_the_same_bits():
    for number, shape in enumerate(drawn(100)):
        run(shape, KINDS[number % len(KINDS)], DTYPES[number // len(KINDS) % 2], "auto")


@pytest.mark.parametrize("variant", catalog.load(NAME).VARIANTS)
def test_every_variant_takes_any_rows_and_every_kind(variant):
    dtype = DTYPES[len(variant) % 2]
    for number, m in enumerate((1, 7, 16, 33, 64, 130)):
        run((m, 64 * (5 + number), 128 * (3 + 2 * number)), KINDS[number % len(KINDS)], dtype, variant)


@pytest.mark.parametrize("shape", [(1, 8192, 8192), (16, 14336, 4096), (64, 4096, 14336)])
def test_large_weights(shape):
    run(shape, "int4", "bfloat16", "auto")


def test_it_is_captured_in_a_graph():
    module = catalog.load(NAME)
    given, _ = weight("int4 with zero points", 1024, 1024, "bfloat16")
    packed, a = module.pack(*given), torch.randn(16, 1024, dtype=torch.bfloat16, device="cuda")
    first, out = module.matmul(a, *packed), torch.full((16, 1024), float("nan"), dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.matmul(a, *packed, out=out)
    graph.replay()
    assert torch.equal(out, first)
