"""Accesses said as instructions: which lanes go where, what goes together, and what the solver makes of them."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import solver_requests

import cookbook
from cookbook import access as lanes_of
from cookbook import banks
from cookbook.check.evaluated import evaluated
from cookbook.solve.design import Block, Instruction, Span, Unsolvable, solve, wavefronts_of
from cookbook.solve.instructions import NAMES, as_pattern, parse
from cookbook.swizzle import Swizzle


def unswizzled(rows, columns, bits):
    return np.arange(rows * columns).reshape(rows, columns) * (bits // 8)


# --- the defect that this is for --------------------------------------------------------------------------------


def test_an_ldmatrix_block_counts_along_rows_instructions_down():
    block = solve((128, 64), 16, [(16, 16), (1, 64)])
    assert block.swizzle == Swizzle(2, 4, 2)  # right for lanes along the rows
    matrix = solve((128, 64), 16, ["ldmatrix.x4@16x16", (1, 64)])
    assert matrix.swizzle == Swizzle(3, 3, 3) and matrix.wavefronts == (4, 1) and matrix.before == (32, 1)
    assert wavefronts_of(block.offsets, 16, "ldmatrix.x4@16x16") == 8
    assert wavefronts_of(matrix.offsets, 16, "ldmatrix.x4@16x16") == 4
    for found, counted in ((block, 8), (matrix, 4)):
        at = parse("ldmatrix.x4@16x16").access(found.byte_offsets(), 16, 32, 16)
        assert at.kind == "ldmatrix" and banks.wavefronts(at.addresses, at.width).actual == counted


@pytest.mark.parametrize(
    ("tile", "bits", "accesses", "swizzle"),
    [
        ((128, 64), 16, ["ldmatrix.x4@16x16", "cp.async16@4x64"], (3, 3, 3)),
        ((128, 32), 16, ["ldmatrix.x4.trans@16x16", "st128@8x32"], (2, 3, 3)),
        ((64, 64), 8, ["ldmatrix.x2@8x32", "stmatrix.x1@8x16"], (2, 4, 3)),
        ((32, 32), 32, ["ld32@32x1", "st128@8x16"], None),  # scalars cannot be read down a column of 16-byte vectors
        ((32, 32), 32, ["ld32@32x1", "st32@1x32"], (5, 0, 5)),
        ((32, 128), 32, ["ld128@32x4", "st128@1x128"], (3, 2, 5)),
        ((24, 64), 16, ["ldmatrix.x4@16x16", "st128@4x64"], (3, 3, 3)),
        ((9, 24), 32, ["ld32@8x1"], (1, 2, 3)),
    ],
)
def test_instructions_are_solved_for(tile, bits, accesses, swizzle):
    if swizzle is None:
        with pytest.raises(Unsolvable, match="alone conflicts under every address map that keeps 4 neighbours"):
            solve(tile, bits, accesses)
        return
    found = solve(tile, bits, accesses)
    assert found.wavefronts == found.ideal and found.swizzle == Swizzle(*swizzle)
    assert [str(access) for access in found.accesses] == accesses


# --- what an instruction asks for -------------------------------------------------------------------------------


def test_the_lanes_of_ldmatrix_are_rows_of_one_matrix_a_time():
    lanes = parse("ldmatrix.x4@16x16").access(unswizzled(32, 64, 16), 16).addresses.reshape(4, 8)
    corners = [(0, 0), (8, 0), (0, 8), (8, 8)]  # as the A of mma.m16n8k16 wants them
    assert lanes.tolist() == [[(r + i) * 128 + c * 2 for i in range(8)] for r, c in corners]
    two = parse("ldmatrix.x2.trans@16x8").access(unswizzled(32, 64, 16), 16).addresses
    assert (two[16:] == -1).all() and np.array_equal(two[:16], lanes.reshape(-1)[:16])
    wide = parse("stmatrix.x2@8x16").access(unswizzled(32, 64, 16), 16)
    assert wide.kind == "stmatrix" and wide.addresses[8] == 16


def test_the_lanes_of_ldmatrix_m16n16_are_16_rows_of_bytes():
    table = unswizzled(64, 128, 8)
    below = parse("ldmatrix.m16n16.x2.trans.b8@32x16").access(table, 8)
    assert below.addresses.tolist() == [128 * row for row in range(32)] and below.kind == "ldmatrix"
    beside = parse("ldmatrix.m16n16.x2.trans.b8@16x32").access(table, 8).addresses
    assert beside.tolist() == [128 * row + 16 * matrix for matrix in (0, 1) for row in range(16)]
    one = parse("ldmatrix.m16n16.x1.trans.b8@16x16").access(table, 8).addresses
    assert one[:16].tolist() == beside[:16].tolist() and (one[16:] == -1).all()
    name = "ldmatrix.m16n16.x2.trans.b8@32x16"
    found = solve((64, 128), 8, [name, "cp.async16@4x128"])  # the atom MN_SW128 of bytes
    assert found.swizzle == Swizzle(3, 4, 3) and (found.before, found.wavefronts) == ((32, 4), (4, 4))
    for bits, instead in ((16, "ldmatrix.x4.trans"), (32, "ldmatrix.x4.trans")):
        with pytest.raises(ValueError, match=f"got {bits} for {name}; needed 8, .*or {instead}"):
            parse(name).check((64, 128), bits)
    with pytest.raises(ValueError, match=r"needed 2 matrices of 16x16, such as ldmatrix.m16n16.x2.trans.b8@32x16"):
        parse("ldmatrix.m16n16.x2.trans.b8@8x64").check((64, 128), 8)


def test_lanes_run_along_rows_or_down_in_steps_and_vectors():
    table = unswizzled(32, 64, 16)
    assert parse("ld64@8x16").access(table, 16).addresses[:5].tolist() == [0, 8, 16, 24, 128]
    assert parse("ld64@8x16/down").access(table, 16).addresses[:9].tolist() == [*range(0, 1024, 128), 8]
    assert parse("ld64@8x16/2x3").access(table, 16).addresses[:5].tolist() == [0, 24, 48, 72, 256]
    few = parse("cp.async16@3x24").access(table, 16)
    assert few.kind == "cp_async" and few.addresses.tolist()[:4] == [0, 16, 32, 128] and (few.addresses[9:] == -1).all()
    moved = parse("st128@2x8").access(table, 16, row=5, column=24)
    assert moved.kind == "ldst" and moved.addresses[:3].tolist() == [5 * 128 + 48, 6 * 128 + 48, -1]


def test_lanes_are_those_of_cutes_tiled_copies():
    """The first instruction of each copy of a GEMM that reads operands by ldmatrix, lane for lane."""
    cutlass = pytest.importorskip("cutlass")
    module = cookbook.load("ampere/ldmatrix_gemm")
    found = evaluated(module, cutlass.BFloat16, module.CONFIG)
    smem = {name: layout.byte_offsets() for name, layout in found.smem.items()}
    for copy, of, side, kind, said in (
        ("s2r_a", "a", "src", "ldmatrix", "ldmatrix.x4@16x16"),
        ("g2s_a", "a", "dst", "cp_async", "cp.async16@4x64"),
        ("r2s_c", "c", "dst", "ldst", "st32@8x8"),
    ):
        first = lanes_of.of_copy(found.smem[of], found.copies[copy], side, kind)[0]
        table = smem[of][..., 0] if smem[of].ndim == 3 else smem[of]
        mine = parse(said).access(table, 16)
        assert (mine.width, mine.kind) == (first.width, first.kind), said
        assert np.array_equal(mine.addresses, first.addresses), said


@pytest.mark.parametrize("seed", range(4))
def test_counts_are_those_of_the_bank_model_at_every_place(seed):
    """Random instructions under random swizzles, on tiles of any size: `wavefronts_of` against `cookbook.banks`."""
    rng, done = random.Random(seed), 0
    while done < 60:
        bits, tile = rng.choice((8, 16, 32, 64)), (rng.choice((8, 16, 20, 32)), rng.choice((16, 32, 48, 64)))
        linear = all(x & x - 1 == 0 for x in tile)
        access = solver_requests._some_instruction(rng, tile, bits, linear)
        if access is None:
            continue
        v, table = access.vector(bits), np.arange(tile[0] * tile[1])
        low = v.bit_length() - 1
        b = rng.randint(0, 3)
        moved = Swizzle(b, low + rng.randint(0, 2), rng.randint(b, 4))(table).reshape(tile)
        rows, columns = access.starts(tile, bits)
        counts = [
            banks.wavefronts(at.addresses, at.width).actual
            for r, c in itertools.product(rows, columns)
            for at in [access.access(moved * (bits // 8), bits, r, c)]
        ]
        assert max(counts) == wavefronts_of(moved, bits, access), (tile, bits, access)
        done += 1


def test_a_start_is_never_in_the_middle_of_a_vector():
    rows, columns = parse("ld64@3x8").starts((8, 20), 16)
    assert rows == list(range(6)) and columns == [0, 4, 8, 12]
    pairs = solve((5, 6), 16, [(3, 4)])  # blocks whose lanes take two 16-bit elements: at even columns
    assert pairs.ideal == (1,)
    odd = np.arange(30).reshape(5, 6)
    assert wavefronts_of(odd, 16, (1, 4)) == 1  # from column 1 it would take three words: no such place is counted


# --- how they are said ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_read_and_written(name):
    matrices = {".x1": "8x8", ".x2": "16x8", ".x4": "16x16", ".m16n16.x1": "16x16", ".m16n16.x2": "32x16"}
    plain = name.removesuffix(".b8").removesuffix(".trans")
    shape = matrices[plain[len("ldmatrix") :]] if "matrix" in name else "1x32"
    access = parse(f"{name}@{shape}")
    assert str(access) == f"{name}@{shape}" and as_pattern(str(access)) == access
    bits = 16 if "matrix" in name else min(access.width * 8, 128)
    bits = 8 if "m16n16" in name else bits if bits != 128 else 64
    access.check((32, 32), bits)
    assert access.access(unswizzled(32, 32, bits), bits).width == access.width


def test_other_accesses_are_texts_too():
    assert (
        parse("4x2/2x1") == Block(4, 2, 2, 1)
        and parse("32X1") == Block(32, 1)
        and parse("1,33,66") == Span((1, 33, 66))
    )
    assert parse("ld128@8x32/2x1/down") == Instruction("ld128", 8, 32, 2, 1, True)
    assert as_pattern((8, 4)) == Block(8, 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ldmatrix.x3@16x16", "text: got 'ldmatrix.x3@16x16'; needed one of ld8, ld16"),
        ("ld128@", "needed RxC, RxC/RSxCS"),
        ("ld128@8x8x8", "needed RxC, RxC/RSxCS"),
        ("ld128@0x8", "text: got 'ld128@0x8'; needed rows: an integer, 1 to 65536"),
        ("ldmatrix.x1@8x8/down", "needed down: False"),
        ("1,2,3", "needed offsets: independent offsets"),
        ("", "needed RxC"),
        (7, "text: got 7"),
        (None, "text: got None"),
    ],
)
def test_texts_that_are_none(text, says):
    with pytest.raises((TypeError, ValueError), match=says):
        parse(text)


@pytest.mark.parametrize(
    ("access", "tile", "bits", "says"),
    [
        ("ldmatrix.x4@16x8", (64, 64), 16, "needed 4 matrices of 8x8, such as ldmatrix.x4@16x16"),
        ("ldmatrix.x2@12x8", (64, 64), 16, "needed 2 matrices of 8x8, such as ldmatrix.x2@16x8"),
        ("ld128@33x8", (64, 64), 16, "which is 33 lanes; needed 32 at most, such as ld128@32x8"),
        ("ld128@4x4", (64, 64), 16, "needed columns that are a multiple of 8"),
        ("ld32@4x4", (64, 64), 64, "element_bits: got 64 for ld32@4x4; needed 32 at most"),
        ("ld128@8x8", (4, 8), 16, "tile: got 4x8; needed 8x8 at least to hold ld128@8x8"),
        ("ld128@8x8", (16, 12), 16, "tile: got 16x12 for ld128@8x8 of 16-bit elements; needed columns"),
        ("ld32@3x2", (16, 16), 16, "accesses: got ld32@3x2, with rows = 3; needed a power of two, 2"),
    ],
)
def test_instructions_that_cannot_be(access, tile, bits, says):
    with pytest.raises(ValueError, match=says):
        solve(tile, bits, [access])


def test_other_refusals():
    with pytest.raises(ValueError, match="banks: got 8 of 4 bytes with ld32@8x1; needed 32 of 4 bytes"):
        solve((8, 8), 32, ["ld32@8x1"], banks=8)
    with pytest.raises(ValueError, match="column: got 4; needed"):
        parse("ld128@8x8").access(unswizzled(16, 64, 16), 16, column=4)
    with pytest.raises(ValueError, match="row: got 9; needed"):
        parse("ld128@8x8").access(unswizzled(16, 64, 16), 16, row=9)
    with pytest.raises(ValueError, match="byte_offsets: got the elements of one vector of ld128@8x8 at bytes"):
        parse("ld128@8x8").access(Swizzle(2, 2, 5)(unswizzled(16, 64, 16)), 16)
    for field, value in (("rows", 8.0), ("columns", True), ("row_step", "2"), ("down", 1), ("name", 5)):
        given = {"name": "ld32", "rows": 8, "columns": 1, field: value}
        with pytest.raises(TypeError, match=f"{field}: got"):
            Instruction(**given)
