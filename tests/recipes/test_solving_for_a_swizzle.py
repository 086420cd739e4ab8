"""The page's few lines of linear algebra against the library's solver and brute force."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

import cookbook
from cookbook.solve import design
from cookbook.swizzle import Swizzle

NAME = "foundations/solving_for_a_swizzle"
TOY = {"banks": 8}


@pytest.fixture(scope="module")
def recipe():
    return cookbook.load(NAME)


def test_ranks_equal_counting_for_every_legal_swizzle(recipe) -> None:
    rng = random.Random(3)
    accesses = [[rng.randrange(1, 256) for _ in range(rng.randrange(1, 5))] for _ in range(20)]
    for bits, base, shift in itertools.product(range(4), range(4), range(1, 5)):
        if shift >= bits:
            for access in accesses:
                assert recipe.wavefronts(access, (bits, base, shift)) == recipe.brute(access, (bits, base, shift))


@pytest.mark.parametrize(
    ("name", "tile", "accesses"),
    [
        ("8x8: row, column", (8, 8), [(1, 8), (8, 1)]),
        ("8x32: 1x8, 8x1", (8, 32), [(1, 8), (8, 1)]),
        ("8x8: 4x2", (8, 8), [(4, 2)]),
        ("8x8: 4x2 of every other row", (8, 8), [(4, 2, 2, 1)]),
        ("8x4: 8x1, 2x4", (8, 4), [(8, 1), (2, 4)]),
    ],
)
def test_simplest_swizzle_is_among_those_the_library_accepts(recipe, name, tile, accesses) -> None:
    parameters = recipe.serving(*recipe.questions[name])[0]
    solved = design.solve(tile, 32, accesses, **TOY)
    assert solved.kind == "plain" and solved.wavefronts == solved.ideal
    mine = Swizzle(*parameters)(solved.layout.table())
    assert all(design.wavefronts_of(mine, 32, access, design.Banks(8)) == 1 for access in accesses)


def test_the_illegal_swizzle_is_refused_here_and_silent_in_cute(recipe) -> None:
    with pytest.raises(ValueError, match="silently becomes the identity"):
        Swizzle(3, 0, 2)
    assert recipe.ask_cute(recipe.made_by_cute, 3, 0, 2) == "S<0,4,3>"
    assert recipe.ask_cute(recipe.made_by_cute, 2, 0, 3) == "S<2,0,3>"


def test_the_null_space_meets_no_access_as_the_library_says(recipe) -> None:
    rng = random.Random(7)
    verdicts = set()
    for _ in range(60):
        accesses = [[rng.randrange(1, 8) for _ in range(2)] for _ in range(3)]
        if any(recipe.rank(access) < 2 for access in accesses):
            continue
        found = recipe.null_space(accesses, 3, 2)
        try:
            design.solve((2, 4), 32, [design.Span(tuple(access)) for access in accesses], banks=4)
            solvable = True
        except design.Unsolvable:
            solvable = False
        assert (found is not None) == solvable
        verdicts.add(solvable)
    assert verdicts == {True, False}


def test_library_finds_the_bit_reversed_rows_for_all_six_shapes(recipe) -> None:
    solved = design.solve((32, 32), 32, [(1 << i, 32 >> i) for i in range(6)])
    assert (solved.kind, solved.swizzle) == ("permuted", Swizzle(5, 0, 5))
    assert repr(solved.layout) == "((2,2,2,2,2),32):((512,256,128,64,32),1)"
    banks = [[c ^ recipe.reversed_bits(r) for c in range(32)] for r in range(32)]
    assert (solved.offsets % 32).tolist() == banks


def test_the_published_mask_is_4_way():
    page = cookbook.load("foundations/solving_for_a_swizzle")
    column = np.arange(0, 256, 32)
    moved = np.array([page.published(int(offset)) for offset in column])
    assert sorted({page.published(offset) for offset in range(256)}) == list(range(256))  # a bijection, and a poor one
    assert np.bincount(moved % 8).max() == np.bincount(Swizzle(3, 0, 3)(column) % 8).max() == 4
    assert np.bincount(Swizzle(3, 0, 5)(column) % 8).max() == 1
