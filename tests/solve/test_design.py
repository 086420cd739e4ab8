"""The closed form and the solver on the cookbook's worked examples, and what CuTe makes of the answers."""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cookbook import banks as hardware
from cookbook import gf2
from cookbook.layouts import evaluate
from cookbook.solve.design import (
    Banks,
    Block,
    Span,
    Unsolvable,
    column_code,
    column_counts,
    column_swizzle,
    phases_in,
    solve,
    wavefronts_of,
)
from cookbook.solve.irregular import candidates, phases_of, worst
from cookbook.swizzle import Swizzle

LANE = np.arange(32)
TOY = {"banks": 8}
POWERS = (8, 16, 32, 64, 128)


def warp_wavefronts(offsets, element_bits, vector, rows):
    """(actual, ideal) of a warp whose lanes read a vector each, down the rows or along one row, through `banks`."""
    lanes = LANE % (offsets.shape[0] if rows else offsets.shape[1] // vector)
    places = offsets[lanes, 0] if rows else offsets[0, lanes * vector]
    counted = hardware.wavefronts(places * element_bits // 8, vector * element_bits // 8)
    return counted.actual, counted.ideal


def row_major(rows, columns, swizzle):
    return swizzle(np.arange(rows * columns)).reshape(rows, columns)


# --- facts ------------------------------------------------------------------------------------------------------


def every_column_case():
    for element_bits in POWERS:
        for vector in (1 << i for i in range(5)):
            for row in (1 << i for i in range(11)):
                fits = vector * element_bits <= 128 and row * element_bits >= max(32, vector * element_bits)
                if fits:
                    yield row, element_bits, vector


@pytest.mark.parametrize(("row", "element_bits", "vector"), list(every_column_case()))
def test_closed_form_is_free_for_every_power_of_two(row, element_bits, vector):
    swizzle = column_swizzle(row, element_bits, vector)
    offsets = row_major(64, row, swizzle)
    assert swizzle(offsets.reshape(-1)).max() == offsets.size - 1
    for down in (True, False):
        actual, ideal = warp_wavefronts(offsets, element_bits, vector, down)
        assert actual == ideal
    starts = offsets[:, ::vector, None] + np.arange(vector)  # vectors stay in one piece
    assert np.array_equal(starts.reshape(offsets.shape), offsets)


def common_rule(row, element_bits, vector):
    """(B, M, S) as often given: M = log2 N, S = log2 X - M, B = log2(128 / bytes) - M."""
    base = vector.bit_length() - 1
    return (1024 // element_bits).bit_length() - 1 - base, base, row.bit_length() - 1 - base


def test_examples_and_the_common_rule_failing():
    assert column_swizzle(64, 16, 8) == Swizzle(3, 3, 3) == Swizzle(*common_rule(64, 16, 8))
    assert common_rule(32, 16, 8) == (3, 3, 2)  # rows of 64 bytes: illegal
    with pytest.raises(ValueError, match="needed \\|shift\\| >= bits"):
        Swizzle(3, 3, 2)
    mended = row_major(8, 32, Swizzle(2, 3, 2))  # B = min(B, S) does not fix it: two-way
    assert warp_wavefronts(mended, 16, 8, True) == (8, 4)
    assert column_swizzle(32, 16, 8) == Swizzle(2, 3, 3)
    assert warp_wavefronts(row_major(8, 32, Swizzle(2, 3, 3)), 16, 8, True) == (4, 4)
    scalar = Swizzle(*common_rule(64, 16, 1))  # vectors under 4 bytes: legal, and two-way
    assert warp_wavefronts(row_major(64, 64, scalar), 16, 1, True) == (2, 1)
    assert warp_wavefronts(row_major(64, 64, column_swizzle(64, 16, 1)), 16, 1, True) == (1, 1)


def test_an_access_is_a_span_and_the_rank_counts():
    column = Span((8, 16, 32))  # 8x1 of 8x8
    plain, swizzled = np.arange(64).reshape(8, 8), row_major(8, 8, Swizzle(3, 0, 3))
    assert wavefronts_of(plain, 32, column, Banks(8)) == 8 == 2 ** (3 - 0)
    assert wavefronts_of(swizzled, 32, column, Banks(8)) == 1
    found = solve((8, 8), 32, [(8, 1), (1, 8)], **TOY)
    assert found.swizzle == Swizzle(3, 0, 3) and found.kind == "plain" and found.before == (8, 1)
    assert found.matrix.shape == (6, 6) and np.array_equal(found.matrix, Swizzle(3, 0, 3).matrix(6))
    bank_rows_on_the_column = found.matrix[:3, 3:]
    assert gf2.rank(bank_rows_on_the_column) == 3


def test_wider_and_narrower():
    assert solve((8, 32), 32, [(8, 1), (1, 8)], **TOY).swizzle == Swizzle(3, 0, 5)
    wide_by_three = row_major(8, 32, Swizzle(3, 0, 3))  # a shift by 3 reads two column bits and one row bit
    assert wavefronts_of(wide_by_three, 32, (8, 1), Banks(8)) == 4
    with pytest.raises(ValueError, match="nearest legal"):
        Swizzle(3, 0, 2)
    x = np.arange(32)
    by_hand = (x ^ (x >> 2 & 7)).reshape(8, 4)  # what <3,0,2> would be, and what is then asked of the banks
    assert [wavefronts_of(by_hand, 32, a, Banks(8)) for a in ((8, 1), (4, 2), (2, 4))] == [1, 1, 1]
    legal = row_major(8, 4, Swizzle(2, 0, 3))
    assert [wavefronts_of(legal, 32, a, Banks(8)) for a in ((8, 1), (2, 4), (4, 2))] == [1, 1, 2]
    found = solve((8, 4), 32, [(8, 1), (4, 2), (2, 4)], **TOY)
    assert found.kind == "permuted" and found.swizzle == Swizzle(2, 0, 3)
    assert repr(found.layout) == "((2,2,2),4):((4,16,8),1)" and found.wavefronts == (1, 1, 1)


def test_several_columns_at_once():
    found = solve((8, 8), 32, [(4, 2), (1, 8)], **TOY)
    assert found.swizzle == Swizzle(2, 1, 2)
    assert np.array_equal(found.offsets[4:] - 32, found.offsets[:4])  # period 4 rows
    assert solve((8, 8), 32, [(4, 2, 2, 1), (1, 8)], **TOY).swizzle == Swizzle(2, 1, 3)  # every other row


def test_rows_that_are_no_power_of_two():
    by_row = np.arange(8)[:, None] * 24 + (np.arange(24) ^ np.arange(8)[:, None])
    assert np.array_equal(np.sort(by_row.reshape(-1)), np.arange(192))
    found = solve((8, 24), 32, [(8, 1), (1, 24)], **TOY)
    assert found.swizzle == Swizzle(3, 0, 3) and found.kind == "plain" and repr(found.layout) == "(8,24):(24,1)"
    for offsets in (by_row, found.offsets):
        assert [wavefronts_of(offsets, 32, a, Banks(8)) for a in ((8, 1), (1, 24))] == [1, 3]
    # Both are free, with different keys: XOR by the row, and by (3 * row + column // 8) mod 8.
    key = (3 * np.arange(8)[:, None] + np.arange(24) // 8) % 8
    assert np.array_equal(found.offsets, np.arange(8)[:, None] * 24 + (np.arange(24) ^ key))


def test_pairing_the_rows_of_8x9():
    toy, block = Banks(8), Block(4, 2)
    phases, _ = phases_of((8, 9), 32, block, toy)
    plain = [c for c in candidates((8, 9), 1) if c.layout.shape == (8, 9)]
    assert len(plain) > 10 and all(worst(c.offsets().reshape(-1), phases, 32, toy) > 1 for c in plain)
    found = solve((8, 9), 32, [block], **TOY)
    assert found.kind == "permuted" and not found.swizzle.bits
    assert (found.offsets[:, 0] // 9).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert np.array_equal(found.offsets[:4].reshape(4, 9)[:, 0], np.arange(4) * 18)  # 4x18
    assert found.wavefronts == (1,) and found.before == (2,)


def test_two_always_three_not_always():
    rng = random.Random(1)
    for _ in range(200):
        pair = [Span(tuple(gf2.echelon(rng.randrange(1, 1024) for _ in range(5)))) for _ in range(2)]
        solve((32, 32), 32, pair)
    three = [Span((1, 6)), Span((2, 4)), Span((3, 4))]  # planes of 3 bits: 4 banks, one kernel vector wanted
    planes = [Span((1, 2)), Span((1, 4)), Span((1, 6))]  # all with the line 1: together all directions
    assert solve((2, 4), 32, three, banks=4).wavefronts == (1, 1, 1)
    with pytest.raises(Unsolvable) as caught:
        solve((2, 4), 32, planes, banks=4)
    proof = caught.value.proof
    assert proof.conflicting == (0, 1, 2) and proof.check()
    assert "lie in one of the spans: none is left" in str(caught.value)
    for left_out in range(3):
        solve((2, 4), 32, [p for i, p in enumerate(planes) if i != left_out], banks=4)


def test_a_proof_with_something_missing_does_not_check():
    rng = random.Random(5)
    caught = None
    while caught is None or not caught.proof.tree.branches:
        try:
            solve(
                (8, 8), 32, [Span(tuple(gf2.echelon(rng.randrange(1, 64) for _ in range(3)))) for _ in range(9)], **TOY
            )
        except Unsolvable as error:
            caught = error
    proof = caught.proof
    assert proof.check()
    position = next(iter(proof.tree.branches))
    fewer = {p: t for p, t in proof.tree.branches.items() if p != position}
    assert not dataclasses.replace(proof, tree=dataclasses.replace(proof.tree, branches=fewer)).check()
    assert not dataclasses.replace(proof, bank_bits=proof.bank_bits + 1).check()
    assert not dataclasses.replace(proof, spans=(*proof.spans[:-1], proof.spans[-1][:1])).check()
    again = dataclasses.replace(proof.tree, coset=0)
    assert not dataclasses.replace(proof, tree=again).check()


def test_unshared_vector_bits_are_a_count():
    """Scalars down a column of 16-byte vectors that must stay whole: 32 of them, 8 places."""
    with pytest.raises(Unsolvable, match="at least 4 wavefronts") as caught:
        solve((64, 64), 16, [(1, 64), (32, 1)], vector_elements=8)
    proof = caught.value.proof
    assert (proof.access, proof.vectors, proof.places) == (1, 32, 8) and proof.check()
    assert not dataclasses.replace(proof, offsets=proof.offsets[:8]).check()
    assert solve((64, 64), 16, [(1, 64), (8, 8)], vector_elements=8).swizzle == Swizzle(3, 3, 3)


@pytest.mark.parametrize("i", range(6))
def test_row_write_and_block_read(i):
    found = solve((32, 32), 32, [(1, 32), (1 << i, 32 >> i)])
    assert found.kind == "plain"
    if i:
        assert found.swizzle == Swizzle(i, 5 - i, i)
    assert found.wavefronts == (1, 1) and found.before == (1, 1 << i)


def test_bit_reversed_rows_serve_all_six_shapes():
    found = solve((32, 32), 32, [(1 << i, 32 >> i) for i in range(6)])
    assert found.kind == "permuted" and found.swizzle == Swizzle(5, 0, 5)
    assert repr(found.layout) == "((2,2,2,2,2),32):((512,256,128,64,32),1)"
    reverse = np.array([int(f"{row:05b}"[::-1], 2) for row in range(32)])
    assert np.array_equal(found.offsets % 32, np.arange(32) ^ reverse[:, None])
    assert found.wavefronts == (1,) * 6 and found.before == (1, 2, 4, 8, 16, 32)


# --- the solver on real banks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("element_bits", POWERS)
def test_answers_hold_in_the_bank_model_for_every_element_width(element_bits):
    """Lanes with the widest vectors that all accesses share, through cookbook.banks, everywhere in the tile."""
    rng = random.Random(element_bits)
    size = element_bits // 8
    for _ in range(40):
        vector = 1 << rng.randint(0, 4 - (size.bit_length() - 1))
        accesses = [lanes_of(rng, vector) for _ in range(2)]
        found = solve((64, 64), element_bits, accesses)
        for access in accesses:
            for row, column in ((0, 0), (64 - access.rows, 64 - access.columns)):
                counted = hardware.wavefronts(lane_addresses(found, access, vector, row, column), vector * size)
                assert counted.excess == 0, (accesses, access, found.swizzle)


def lanes_of(rng, vector):
    """A block of 32 vectors."""
    rows = 1 << rng.randint(max(0, (32 * vector).bit_length() - 7), 5)
    return Block(rows, 32 // rows * vector)


def lane_addresses(found, access, vector, row, column):
    per_row = access.columns // vector
    offsets = found.offsets[row + LANE // per_row, column + LANE % per_row * vector]
    inside = found.offsets[row + LANE // per_row, column + LANE % per_row * vector + vector - 1]
    assert (inside - offsets == vector - 1).all()
    return offsets * (found.element_bits // 8)


def test_row_counts_that_are_no_power_of_two():
    found = solve((24, 32), 16, [(8, 8), (1, 32)])
    assert np.array_equal(np.sort(found.offsets.reshape(-1)), np.arange(24 * 32))
    assert found.swizzle == Swizzle(2, 3, 3) and found.wavefronts == (1, 1)


def test_an_irregular_request_that_none_serves_is_exhausted():
    with pytest.raises(Unsolvable, match="candidates conflict") as caught:
        solve((7, 9), 32, [(4, 2), (2, 4), (7, 1)], **TOY)
    assert caught.value.proof.check() and caught.value.proof.conflicting == (0, 1, 2)
    assert not dataclasses.replace(caught.value.proof, accesses=(Block(1, 1),)).check()


def test_irregular_answers_are_the_first_free_candidate():
    """Against counting every candidate in full, one after the other."""
    rng, kinds = random.Random(12), set()
    for _ in range(60):
        tile, memory = (rng.randint(3, 12), rng.choice((3, 5, 6, 7, 9, 12, 24))), Banks(8)
        accesses = [Block(rng.randint(1, min(4, tile[0])), rng.randint(1, 3)) for _ in range(rng.randint(1, 3))]
        phases = [phases_of(tile, 32, access, memory)[0] for access in accesses]
        kept = min(access.vector(tile, 32) for access in accesses)
        free = (
            c for c in candidates(tile, kept) if all(worst(c.offsets().reshape(-1), p, 32, memory) == 1 for p in phases)
        )
        first = next(free, None)
        if first is None:
            with pytest.raises(Unsolvable):
                solve(tile, 32, accesses, banks=8)
            kinds.add("none")
            continue
        found = solve(tile, 32, accesses, banks=8)
        assert (found.layout, found.swizzle) == (first.layout, first.swizzle)
        assert np.array_equal(np.sort(found.offsets.reshape(-1)), np.arange(tile[0] * tile[1]))
        kinds.add(found.kind)
    assert kinds == {"plain", "permuted", "none"}


# --- CuTe -------------------------------------------------------------------------------------------------------

REQUESTS = {
    "plain": ((32, 32), 32, [(1, 32), (32, 1)], {}),
    "plain 16-bit": ((8, 64), 16, [(1, 64), (8, 8)], {}),
    "permuted": ((32, 32), 32, [(1 << i, 32 >> i) for i in range(6)], {}),
    "neither": ((8, 8), 32, [(2, 4), (4, 2), (8, 1), (4, 2, 2, 1), (2, 4, 4, 1), (2, 4, 1, 2)], TOY),
    "8x24": ((8, 24), 32, [(8, 1)], TOY),
    "8x9": ((8, 9), 32, [(4, 2)], TOY),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_cute_code_builds_the_map_byte_for_byte(name, tmp_path):
    pytest.importorskip("cutlass")
    tile, element_bits, accesses, memory = REQUESTS[name]
    found = solve(tile, element_bits, accesses, **memory)
    file = tmp_path / "made.py"
    file.write_text(found.cute_code())
    made: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), made)
    if found.kind == "neither":
        coords = list(np.ndindex(tile))
        theirs = evaluate(lambda: [made["smem_offset"](r, c) for r, c in coords])
        assert np.array_equal(np.array(theirs).reshape(tile), found.offsets)
    else:
        theirs = evaluate(made["smem_layout"], element_bits=element_bits)
        assert theirs == found.smem_layout
        assert np.array_equal(theirs.byte_offsets(), found.byte_offsets())
        assert np.array_equal(cutes_own_bytes(made["smem_layout"], tile, element_bits // 8), found.byte_offsets())


def cutes_own_bytes(smem_layout, tile, size):
    """Every coordinate through CuTe's own swizzle: the layout's offset in bytes is what the swizzle gets."""
    import cutlass.cute as cute

    def addresses():
        layout = smem_layout()
        in_bytes = cute.make_composed_layout(layout.inner, 0, cute.make_layout(1 << 16))
        return [in_bytes(layout.outer((r, c)) * size) for r, c in np.ndindex(tile)]

    return np.array(evaluate(addresses)).reshape(tile)


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((48, 16, 8), r"row_elements: got 48; needed a power of two \(nearest: 32\)"),
        ((64, 16, 3), "vector_elements: got 3"),
        ((64, 16, 16), "needed 8 at most: 16 bytes"),
        ((4, 16, 8), "row_elements: got 4; needed 8 at least"),
        ((64, 12, 1), "element_bits: got 12"),
    ],
)
def test_column_swizzle_refuses(arguments, says):
    with pytest.raises(ValueError, match=says):
        column_swizzle(*arguments)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (((8, 0), 32, [(8, 1)]), "tile: got"),
        (((1024, 1024), 32, [(8, 1)]), "65536 elements at most"),
        (((8, 8), 24, [(8, 1)]), "element_bits: got 24"),
        (((8, 8), 32, []), "accesses: got none"),
        (((8, 8), 32, [(16, 1)]), "tile: got 8x8; needed 16x1 at least"),
        (((8, 8), 32, [(3, 1)]), "rows = 3; needed a power of two, 2"),
        (((8, 8), 32, [(0, 1)]), "rows: got 0"),
        (((8, 8), 32, [Span((64,))]), "needed offsets below 64"),
        (((8, 9), 32, [Span((8,))]), "needed powers of two, or a block or an instruction"),
        (((8, 9), 32, [(9, 1)]), "tile: got 8x9; needed 9x1 at least"),
    ],
)
def test_solve_refuses(request_, says):
    with pytest.raises(ValueError, match=says):
        solve(*request_)


def test_solve_refuses_other_things():
    with pytest.raises(TypeError, match=r"needed \(rows, columns\)"):
        solve((8, 8), 32, [(1, 2, 3)])
    with pytest.raises(ValueError, match="independent offsets"):
        Span((1, 2, 3))
    with pytest.raises(ValueError, match="banks: got 12"):
        solve((8, 8), 32, [(8, 1)], banks=12)
    with pytest.raises(ValueError, match="vector_elements: got 8; needed a power of two, 1 to 4"):
        solve((8, 8), 32, [(8, 1)], vector_elements=8)
    with pytest.raises(ValueError, match="vector_elements: got 4 for rows of 9 elements; needed a divisor of that, 1"):
        solve((8, 9), 32, [(8, 1)], vector_elements=4)


def test_the_reference_page_says_what_its_code_prints(capsys):
    page = Path(__file__).parents[2] / "docs" / "api" / "design.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.S | re.M)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})
    printed = capsys.readouterr().out
    for claim in (
        "S<5,2,5> over bytes = S<5,0,5> over 32-bit elements, of the permuted layout ((4,8),32):((256,32),1)",
        "(1, 32, 4) (1, 1, 1)",
        "K_SW128",
        "True",
        "S<3,4,3> over bytes = S<3,3,3> over 16-bit elements, of the plain",
        "S<2,4,2> 8",
    ):
        assert claim in printed


def test_design_needs_neither_torch_nor_cute():
    code = "import sys, cookbook.solve.design; print([m for m in ('torch', 'cutlass') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# --- the closed form's counts and code, and what is refused -----------------------------------------------------


@pytest.mark.parametrize(
    ("row", "bits", "vector"), [(64, 16, 8), (4096, 32, 1), (8, 32, 1), (1 << 20, 128, 1), (4, 8, 2)]
)
def test_column_counts_are_those_of_brute_force(row, bits, vector):
    swizzle = column_swizzle(row, bits, vector)
    counts = column_counts(swizzle, row, bits, vector)
    assert set(counts) == {"row store", "column read"} and all(now == ideal for _, now, ideal in counts.values())
    if row * 32 > 1 << 16:
        assert counts["column read"][0] == 32
        return
    tiles = np.arange(32 * row).reshape(32, row), row_major(32, row, swizzle)
    name = f"{vector * bits}@32x{vector}"
    assert counts["column read"][:2] == tuple(wavefronts_of(tile, bits, f"ld{name}") for tile in tiles)


def test_column_code_builds_the_layout_in_cute():
    pytest.importorskip("cutlass")
    swizzle, made = column_swizzle(64, 16, 8), {}
    exec(column_code(swizzle, 64, 16), made)
    theirs = evaluate(made["smem_layout"], 32, element_bits=16)
    assert repr(theirs.outer) == "(32,64):(64,1)" and theirs.swizzle == Swizzle(3, 4, 3)
    assert np.array_equal(theirs.byte_offsets(), row_major(32, 64, swizzle) * 2)


def test_vectors_stay_together_on_tiles_of_any_size():
    found = solve((12, 24), 16, [(1, 24), (12, 1)], vector_elements=2)
    assert found.swizzle.base >= 1 and found.wavefronts == found.ideal
    pieces = found.offsets.reshape(-1, 2)
    assert (pieces[:, 1] == pieces[:, 0] + 1).all() and not (pieces[:, 0] % 2).any()
    with pytest.raises(Unsolvable, match="keeps 8 neighbours together"):
        solve((24, 40), 16, ["ldmatrix.x4@16x16", "st128@8x32"])


def test_the_phases_of_an_access_add_up_at_each_place():
    """An access of 40 lanes on a padded tile: its two phases, not twice the worse one."""
    padded = np.arange(48)[:, None] * 33 + np.arange(32)
    assert wavefronts_of(padded, 32, (40, 1)) == 2
    steep = np.where(np.arange(64) < 32, np.arange(64) * 32, 32 * 32 + np.arange(64))[:, None]  # 32-way, then free
    assert wavefronts_of(steep, 32, (64, 1)) == 33
    assert phases_in((64, 32), 32, (64, 1), Banks())[1] == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tile": 8}, "tile: got 8; needed"),
        ({"tile": (8.0, 8)}, r"tile: got \(8.0, 8\); needed"),
        ({"tile": (True, 8)}, r"tile: got \(True, 8\)"),
        ({"tile": (4, 8, 64)}, r"tile: got \(4, 8, 64\); needed \(rows, columns\): flatten it to \(32, 64\)"),
        ({"accesses": None}, "accesses: got None; needed"),
        ({"accesses": "8x1"}, "accesses: got '8x1'; needed a list"),
        ({"accesses": [(8.5, 1)]}, r"accesses: got \(8.5, 1\); needed a Block \(rows: got 8.5"),
        ({"accesses": [(-8, 1)]}, "needed a Block"),
        ({"accesses": ["ldmatrix.x9@8x8"]}, "accesses: got 'ldmatrix.x9@8x8'; needed one of ld8"),
        ({"banks": "8"}, "banks: got '8'; needed"),
        ({"banks": True}, "banks: got True"),
        ({"banks": float("nan")}, "banks: got nan"),
        ({"bank_bytes": 3}, "bank_bytes: got 3; needed a power of two"),
        ({"banks": 2, "bank_bytes": 1}, "banks: got 2 of 1 bytes; needed 4 at least, to give one element"),
        ({"element_bits": 32.0}, "element_bits: got 32.0"),
        ({"vector_elements": 16}, "vector_elements: got 16; needed a power of two"),
        ({"vector_elements": True}, "vector_elements: got True"),
        ({"tile": (8, 2), "accesses": [(8, 1)], "vector_elements": 4}, "vector_elements: got 4 for rows of 2 elements"),
        ({"tile": (10, 37), "accesses": [Span((1, 2))]}, r"tile: got 10x37 for span\(1,2\); needed powers of two"),
    ],
)
def test_solve_names_the_argument_that_is_wrong(change, says):
    given = {"tile": (8, 8), "element_bits": 32, "accesses": [(1, 8), (8, 1)]} | change
    with pytest.raises((TypeError, ValueError), match=says):
        solve(**given)


def test_counting_refuses_what_it_would_have_counted_wrong():
    with pytest.raises(ValueError, match=r"offsets: got 10x37 for span\(1,2\); needed powers of two"):
        wavefronts_of(np.arange(370).reshape(10, 37), 32, Span((1, 2)))
    with pytest.raises(ValueError, match="offsets: got -1; needed"):
        wavefronts_of(np.full((8, 8), -1), 32, (8, 1))
    with pytest.raises(TypeError, match="offsets: got an array of float64"):
        wavefronts_of(np.zeros((8, 8)), 32, (8, 1))
    for wrong in ((1.5, 2), (True,), ("1",)):
        with pytest.raises(TypeError, match="offsets: got"):
            Span(wrong)
    assert Block(np.int64(8), np.int32(1)) == Block(8, 1) and type(Block(np.int64(8), 1).rows) is int
    assert solve((np.int64(8), 8), np.int64(32), [(np.int32(8), 1)], banks=np.int64(8)).wavefronts == (1,)
