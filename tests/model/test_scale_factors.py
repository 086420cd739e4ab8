"""Scale factors of the block-scaled kinds against CuTe's layouts, and faults in them."""

import cutlass.utils.blockscaled_layout as blockscaled
import dsl_tcgen05 as dsl
import numpy as np
import pytest
from dsl_tcgen05 import Case
from planted import WORDS, Caught, check
from tcgen05_stage import FP4, FP8, UE4M3, UE8M0, Stage, caught, random_patterns

from cookbook.layouts import Layout, evaluate
from cookbook.model import TensorMemory, TmemAddress
from cookbook.model.scale_factors import atom_offsets, read_scales, to_atoms

SCALED_CASE = Case("mxf8f6f4", 128, 128, 128, FP8, scale=UE8M0)
FP4_CASE = Case("mxf4", 128, 128, 256, FP4, scale=UE8M0)
NVFP4_CASE = Case("mxf4nvf4", 128, 128, 256, FP4, scale=UE4M3)
PLAIN_ADDRESS = (1 << 30) - 1


def with_ids(shift_a, shift_b, step=1):
    """Scale factor ids moved on, in the descriptor and with no byte in the address to give it away."""

    def changed(_, word):
        a, b = (word.idesc >> 29) + shift_a * step & 3, (word.idesc >> 4) + shift_b * step & 3
        idesc = word.idesc & ~(3 << 29 | 3 << 4) | a << 29 | b << 4
        addresses = {key: getattr(word, key) & PLAIN_ADDRESS for key in ("scale_a", "scale_b")}
        return word._replace(idesc=idesc, **addresses)

    return changed


SCALE_FAULTS = {
    "sfa id": (SCALED_CASE, with_ids(1, 0)),
    "sfb id": (SCALED_CASE, with_ids(0, 1)),
    "sfa id of mxf4": (FP4_CASE, with_ids(1, 0, 2)),
    "an odd sfa id of mxf4": (FP4_CASE, with_ids(1, 0)),
    "sfb id of four factors": (NVFP4_CASE, with_ids(0, 2)),
    "id in the address alone": (SCALED_CASE, lambda _, w: w._replace(idesc=w.idesc & ~(3 << 29))),
    "no advance of the scale factors": (NVFP4_CASE, lambda i, w: w._replace(scale_a=w.scale_a - 4 * i)),
    "A's and B's change places": (SCALED_CASE, lambda _, w: w._replace(scale_a=w.scale_b, scale_b=w.scale_a)),
    "a column on": (NVFP4_CASE, lambda _, w: w._replace(scale_b=w.scale_b + 1)),
    "blocks of 32 for 16": (NVFP4_CASE, lambda _, w: w._replace(block=32)),
    "ue8m0 for ue4m3": (NVFP4_CASE, lambda _, w: w._replace(idesc=w.idesc | 1 << 23)),
}


@pytest.mark.parametrize("name", SCALE_FAULTS)
def test_a_fault_in_the_scale_factors_is_caught(name):
    case, change = SCALE_FAULTS[name]
    check(Caught("model", caught(Stage(case), change=change)), WORDS, name)
    assert not caught(Stage(case), change=with_ids(0, 0))


def test_scale_factors_for_one_warp_alone_are_refused():
    stage = Stage(SCALED_CASE)
    column = stage.multiplied[0].scale_a
    stage.tmems[0].write(np.arange(96, 128)[:, None], np.arange(column, column + 4), np.uint32(0x7F7F7F7F))
    with pytest.raises(ValueError, match="scale_a: got other scale factors in lanes 96 to 127"):
        stage.multiply()


def test_scale_factors_of_b_must_agree_between_the_ctas():
    stage = Stage(Case("mxf8f6f4", 256, 128, 128, FP8, ctas=2, scale=UE8M0))
    lanes, columns = np.arange(128)[:, None], stage.multiplied[0].scale_b + np.arange(4)
    stage.tmems[1].write(lanes, columns, np.uint32(0x7F7F7F7F))
    with pytest.raises(ValueError, match="needed the same"):
        stage.multiply()


def test_scale_factors_never_copied_make_nan():
    stage = Stage(SCALED_CASE)
    columns = stage.multiplied[0].scale_b + np.arange(4)
    stage.tmems[0].write(np.arange(128)[:, None], columns, np.uint32(0xFFFFFFFF))
    assert np.isnan(stage.multiply()).all()


def test_b_scale_factors_of_two_ctas_of_64_rows_lie_in_halves():
    """M = 128 over two CTAs: CuTe's layout of SFB has the second half of the columns 64 lanes on."""
    case = Case("mxf8f6f4", 128, 128, 128, FP8, ctas=2, scale=UE8M0)
    _, layouts = evaluate(lambda: dsl.scale_layouts(case), arch=dsl.ARCH)
    # bytes by (row, copy) of A; by (row of the half, half, copy) of B
    by_a, by_b = (Layout(x.shape[0][0], x.stride[0][0]).table() for x in layouts)
    assert (by_a.shape, by_b.shape) == ((128, 4), (64, 2, 2))
    scales = {name: random_patterns((128, 4), "ue8m0", seed) for seed, name in enumerate("ab")}
    tmems = [TensorMemory(), TensorMemory()]
    for cta, tmem in enumerate(tmems):
        first = {"a": tmem.alloc(32).column, "b": tmem.alloc(32).column}
        own = scales["a"][64 * cta :][:64]
        rows_b = np.broadcast_to(np.arange(128).reshape(2, 64).T[..., None], by_b.shape)
        for places, codes, name in ((by_a[:64], own[:, None], "a"), (by_b, scales["b"][rows_b], "b")):
            cells = np.broadcast_to(codes, (*places.shape, 4)).copy().view(np.uint32)[..., 0]
            tmem.write(places // 4 >> 16, first[name] + (places // 4 & 0xFFFF), cells)
    got_a, got_b = read_scales(tmems, 128, 128, 4, *(TmemAddress(0, first[x]) for x in "ab"), 0, 0)
    assert np.array_equal(got_a, scales["a"]) and np.array_equal(got_b, scales["b"])


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize(("rows", "k"), [(128, 128), (256, 512), (384, 1024)])
def test_the_order_of_scale_factors_in_memory_is_cutes(rows, k, block):
    def made():
        return blockscaled.tile_atom_to_shape_SF((rows, k, 1), block)

    table = evaluate(made, arch=dsl.ARCH).table()[..., 0]  # (rows, K) -> byte
    assert np.array_equal(atom_offsets(rows, k // block), table[:, ::block])
    assert np.array_equal(table, np.repeat(table[:, ::block], block, axis=1))
    scales = np.random.default_rng(0).integers(0, 255, (rows, k // block), np.uint8)
    assert np.array_equal(to_atoms(scales)[table[:, ::block]], scales)


def test_a_part_of_an_atom_is_padded_with_zeros():
    atoms = to_atoms(np.full((130, 5), 9, np.uint8))
    assert (atoms.size, np.count_nonzero(atoms)) == (4 * 512, 650)
