"""What a GEMM's kernel is launched with, at the edges of what numbers hold: huge strides and sizes, rows of any width.

No GPU: CPU tensors pass for CUDA's. Huge ones have an address and no memory. Where the kernel's stores matter, a
stand-in writes what the real one may write: whole vectors, at the addresses it was launched with.
"""

from __future__ import annotations

import ctypes
import inspect
import random

import numpy as np
import pytest
import torch
from pretend import pretended

from cookbook.recipe import catalog, entry, shared_sums

GEMMS = [r.name for r in catalog.recipes() if r.product.of_two_matrices]
FAR = 2**31 + 8  # elements from row to row: no 32-bit number
BF16 = torch.bfloat16


@pytest.fixture(params=GEMMS)
def module(request, monkeypatch):
    return pretended(request.param, monkeypatch)


def fake(address: int, shape: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
    """A bfloat16 matrix that has a place in memory and none of its bytes."""
    return torch.empty_strided(shape, strides, dtype=BF16, device="meta").as_subclass(_at(address))


def _at(address: int) -> type:
    return type("Fake", (torch.Tensor,), {"data_ptr": lambda self: address})


def tuples(arguments: tuple) -> list[tuple]:
    """(M, N, K) and the strides: two of the arguments, or two fields of one."""
    whole = [x for x in arguments if hasattr(x, "mnk")]
    return [whole[0].mnk, whole[0].strides] if whole else [x for x in arguments if isinstance(x, tuple)]


def test_strides_beyond_31_bits_reach_the_kernel_whole(module):
    a, b = fake(1 << 44, (3, 64), (FAR, 1)), fake(2 << 44, (64, 24), (1, FAR + 8))
    out = fake(3 << 44, (3, 24), (FAR + 16, 1))
    assert module.matmul(a, b, out=out) is out
    ((_, arguments),) = module.launched
    assert arguments[:3] == (a.data_ptr(), b.data_ptr(), out.data_ptr())
    assert tuples(arguments) == [(3, 24, 64), (FAR, FAR + 8, FAR + 16)]


def fields(annotation: object) -> dict[str, object]:
    """Types by name, of a named tuple."""
    return annotation.__annotations__ if hasattr(annotation, "_fields") else {}


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes() if r.product.is_gemm])
def test_strides_are_64_bits_wide_in_what_is_compiled(name):
    """What the kernel makes of them, tests/check/pipeline/test_pipeline.py looks at."""
    import cutlass

    said = {p.name: p.annotation for p in inspect.signature(catalog.load(name).gemm).parameters.values()}
    (strides,) = (each["strides"] for each in (said, *map(fields, said.values())) if "strides" in each)
    assert set(strides.__args__) == {cutlass.Int64}


@pytest.mark.parametrize("name", GEMMS[:1] + [n for n in GEMMS if n.startswith("hopper/")][:1])
@pytest.mark.parametrize(
    ("mnk", "named"),
    [((2**31, 8, 64), "a: got M"), ((8, 2**31, 64), "b: got N"), ((8, 8, 2**31), "a: got K")],
)
def test_sizes_beyond_31_bits_are_refused(name, mnk, named, monkeypatch):
    m, n, k = mnk
    module = pretended(name, monkeypatch)
    a, b, out = fake(1 << 44, (m, k), (k, 1)), fake(2 << 44, (k, n), (1, k)), fake(3 << 44, (m, n), (n, 1))
    with pytest.raises(ValueError, match=rf"{named} = {2**31}; needed at most {entry.LARGEST}"):
        module.matmul(a, b, out=out)
    assert not module.launched


def written(arguments: tuple, vec: int, padded: bool) -> None:
    """Do what a kernel's stores do: rows of C, each to a multiple of `vec` elements, at the addresses given."""
    (m, n, _), strides = tuples(arguments)
    ldc, wide = strides[2], -(-n // vec) * vec
    assert arguments[2] % (2 * vec) == 0 and (ldc % vec == 0 or m == 1), "a store is not aligned"
    assert padded or wide == n, "a store sticks out of its row"
    for row in range(m):
        values = np.arange(wide, dtype=np.int16) + 100 * row + 1
        ctypes.memmove(arguments[2] + 2 * row * ldc, values.tobytes(), 2 * wide)


def test_stores_hit_every_element_of_out_and_nothing_else(module):
    """Rows of any length, any distance apart, from any address on: what the widest store allowed may write."""
    draw = random.Random(0).randrange
    vectors = "vec" in inspect.signature(module.compile_for).parameters
    for _ in range(60):
        m, n, gap, offset = draw(1, 4), draw(1, 34), draw(0, 18), draw(0, 9)
        memory = torch.full((4 * 64 + 16,), -1, dtype=torch.int16)
        out = memory.as_strided((m, n), (n + gap, 1), offset).view(BF16)
        module.launched.clear()
        module.matmul(torch.zeros(m, 32, dtype=BF16), torch.zeros(n, 32, dtype=BF16).T, out=out)
        ((which, arguments),) = module.launched
        if arguments[2] != out.data_ptr():
            assert module.GEMM.padded and tuples(arguments)[1][2] == -(-n // 8) * 8
            continue  # rows of whole 16 bytes elsewhere, which torch copies
        vec = which[-1] if vectors else 8 if module.GEMM.padded else 1
        written(arguments, vec, padded=False)
        expected = np.full(len(memory), -1, np.int16)
        for row in range(m):
            first = offset + row * (n + gap)
            expected[first : first + n] = np.arange(n) + 100 * row + 1
        assert np.array_equal(memory.numpy(), expected)


def test_a_plan_launches_what_a_call_without_plans_would(module):
    """Calls at random, again and again: whatever tells two kinds apart is in the key of their plans."""
    rng = random.Random(1)
    memory = torch.zeros(4096, dtype=BF16)

    def matrix(rows: int, columns: int, gap: int, offset: int) -> torch.Tensor:
        return memory.as_strided((rows, columns), (columns + gap, 1), offset)

    for _ in range(150):
        m, n, k = rng.choice((1, 2, 3)), rng.choice((1, 8, 12, 24)), rng.choice((32, 64))
        a = torch.zeros(m, k + 8 * rng.randrange(3), dtype=BF16)[:, :k]
        b = torch.zeros(n, k + 8 * rng.randrange(3), dtype=BF16)[:, :k].T
        out = None if rng.random() < 0.3 else matrix(m, n, rng.choice((0, 1, 4, 8)), rng.choice((0, 1, 4, 8)))
        found = []
        for fresh in (False, True):
            if fresh:
                kept = dict(module.GEMM.plans), dict(module.GEMM.kernels)
                module.GEMM.plans.clear()
                module.GEMM.kernels.clear()
            module.launched.clear()
            module.matmul(a, b, out=out)
            ((which, arguments),) = module.launched
            direct = out is not None and arguments[2] == out.data_ptr()
            new = isinstance(module.GEMM, shared_sums.SharedSums) or hasattr(module, "matmul_amax")  # sums, amax
            found.append((which, direct, arguments[3 + new :]))
        assert found[0] == found[1]
        module.GEMM.plans.update(kept[0])
        module.GEMM.kernels.update(kept[1])
    assert len(module.GEMM.plans) > 20


def test_packed_elements_are_counted_two_to_a_byte(monkeypatch):
    """K is twice the extent of what torch holds: at half of 2**31 already it is too large."""
    module = pretended("blackwell/nvfp4_gemm", monkeypatch)
    packed, columns = torch.float4_e2m1fn_x2, 2**30
    a, b = (torch.empty(8, columns, dtype=packed, device="meta").as_subclass(_at(n << 44)) for n in (1, 2))
    scale = torch.empty(512, dtype=torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=rf"a: got K = {2**31}; needed at most {entry.LARGEST}"):
        module.matmul(a, b.T, scale, scale)
