import numpy as np
import pytest

from cookbook import atoms, descriptors
from cookbook.model import SharedMemory, TensorMemory, from_float32
from cookbook.model.tcgen05 import InstructionDescriptor, mma
from cookbook.model.tmem import TmemAddress, ld

ATOM_NAMES = {0: "INTER", 32: "SW32", 64: "SW64", 128: "SW128"}
MODES = (0, 32, 64, 128)


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def tile(major, mode, shape, bits=16, order="column"):
    return atoms.tile(atoms.atom(f"{major}_{ATOM_NAMES[mode]}", bits), shape, order)


def fill(smem, base, layout, values):
    """An operand (MN, K) of raw patterns, each element where the layout puts it."""
    places = base + layout.byte_offsets()
    smem.write(places, values[..., None])


def blocks(layout, major, rows, base):
    """The descriptors of a tile, one for every 32 bytes of K."""
    step = 32 // layout.element_bytes
    ks = range(0, layout.outer.sizes[1], step)
    return [descriptors.describe(layout, major, False, rows, (0, k), base) for k in ks]


def gathered(tmem, d, m, n):
    """D from tensor memory by four warps' tcgen05.ld.32x32b, for one CTA."""
    whole = np.concatenate(
        [ld(tmem, TmemAddress(32 * w, d.column), w, "32x32b", 1 << (n - 1).bit_length()) for w in range(4)]
    ).view(np.float32)
    lanes = np.arange(128) if m == 128 else np.arange(64) // 16 * 32 + np.arange(64) % 16 + d.lane
    return whole[lanes, :n]


def product(m, n, k, majors=("K", "K"), mode=128, dtype="bfloat16", order="column"):
    a, b = integers((m, k), 1), integers((n, k), 2)
    layouts = [tile(major, mode, x.shape, order=order) for major, x in zip(majors, (a, b), strict=True)]
    base_b = -(-layouts[0].size_bytes // 1024) * 1024
    smem, tmem = SharedMemory(base_b + layouts[1].size_bytes), TensorMemory()
    for base, layout, x in zip((0, base_b), layouts, (a, b), strict=True):
        fill(smem, base, layout, from_float32(x, dtype))
    d = tmem.alloc(max(32, 1 << (n - 1).bit_length()))
    idesc = InstructionDescriptor("f16", m, n, dtype, a_major=majors[0], b_major=majors[1])
    steps = zip(blocks(layouts[0], majors[0], m, 0), blocks(layouts[1], majors[1], n, base_b), strict=True)
    for i, (left, right) in enumerate(steps):
        mma(smem, tmem, d, left.encode(), right.encode(), idesc, accumulate=i > 0)
    return gathered(tmem, d, m, n), a @ b.T


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("majors", [("K", "K"), ("MN", "K"), ("K", "MN"), ("MN", "MN")], ids="-".join)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("m", [64, 128])
def test_the_product(m, mode, majors, dtype):
    got, true = product(m, 64, 64, majors, mode, dtype)
    assert np.array_equal(got, true)
