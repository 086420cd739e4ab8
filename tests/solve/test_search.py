"""The solver against brute force: banks counted element by element, kernels and swizzles gone through one and all."""

from __future__ import annotations

import dataclasses
import itertools
import random
from functools import cache

import numpy as np
import pytest
import solver_requests

from cookbook import gf2
from cookbook.solve.avoiding import BankMap, Undecided, avoid, avoidable
from cookbook.solve.design import Block, Solution, Span, Unsolvable, solve
from cookbook.solve.patterns import Banks
from cookbook.solve.search import linear_problem, permuted_labels, solve_linear
from cookbook.swizzle import Swizzle

WORD = 32  # bits: in the toy requests an element is a word


def some_request(rng: random.Random, most_bits: int = 6) -> tuple[tuple[int, int], list, int]:
    """A tile of words, some accesses and a number of banks, all small enough for exhaustive search."""
    bits = rng.randint(2, most_bits)
    columns = rng.randint(0, bits)
    tile = (1 << bits - columns, 1 << columns)
    accesses = [some_access(rng, bits, columns) for _ in range(rng.randint(1, 5))]
    return tile, accesses, rng.choice((2, 4, 8))


def some_access(rng: random.Random, bits: int, columns: int) -> Block | Span:
    if rng.random() < 0.3:
        vectors = [rng.randrange(1, 1 << bits) for _ in range(rng.randint(1, 3))]
        return Span(tuple(gf2.echelon(vectors)))
    sides = []
    for size in (bits - columns, columns):
        count = rng.randint(0, min(3, size))
        sides.append((1 << count, 1 << rng.randint(0, size - count)))
    return Block(sides[0][0], sides[1][0], sides[0][1], sides[1][1])


def elements(tile: tuple[int, int], access: Block | Span) -> list[int]:
    """The offsets of an access at the tile's corner, in lane order, by plain loops."""
    if isinstance(access, Block):
        return [
            r * access.row_step * tile[1] + c * access.column_step
            for r in range(access.rows)
            for c in range(access.columns)
        ]
    found = [0]
    for v in access.offsets:
        found += [x ^ v for x in found]
    return found


def neighbours(offsets: list[int]) -> int:
    """How many elements an access takes in a row, aligned: 1, 2 or 4."""
    return max(k for k in (1, 2, 4) if {x - x % k + i for x in offsets for i in range(k)} == set(offsets))


def together(offsets: list[int], banks: int) -> list[int]:
    """What the banks serve at once: whole vectors of neighbours, in lane order."""
    own = neighbours(offsets)
    starts = [x for x in offsets if x % own == 0]
    lanes = max(1, banks // own)
    return [x + i for x in starts[:lanes] for i in range(own)][:banks]


@cache
def kernels(n: int, dimension: int) -> np.ndarray:
    """Every subspace of that dimension, as a mask of the non-zero vectors in it."""
    found = set()
    for pivots in itertools.combinations(range(n), dimension):
        free = [[i for i in range(p) if i not in pivots] for p in pivots]
        for fill in itertools.product(*(range(1 << len(f)) for f in free)):
            rows = [
                1 << p | sum(1 << b for k, b in enumerate(f) if x >> k & 1)
                for p, f, x in zip(pivots, free, fill, strict=True)
            ]
            found.add(sum(1 << v for v in gf2.span(rows).tolist() if v))
    return np.array(sorted(found), np.uint64)


def linear_map_exists(groups: list[list[int]], n: int, vector: int, banks: int) -> bool:
    """Go through all kernels: two words at one place of two vectors conflict iff the vectors differ by a kernel's."""
    if banks < vector:
        return all(len(set(g)) <= banks for g in groups)
    differences = {
        (a ^ b) // vector for g in groups for a, b in itertools.combinations(g, 2) if a % vector == b % vector
    }
    bits = n - vector.bit_length() + 1
    bank_bits = min(bits, (banks // vector).bit_length() - 1)
    forbidden = np.uint64(sum(1 << d for d in differences))
    return bool((kernels(bits, bits - bank_bits) & forbidden == 0).any())


@cache
def swizzled(n: int, vector: int) -> np.ndarray:
    """(swizzles, offsets): every legal swizzle of n bits that keeps vectors whole, of either sign."""
    legal = [Swizzle(0, 0, 0)] + [
        Swizzle(b, m, s)
        for b in range(1, n // 2 + 1)
        for m in range(vector.bit_length() - 1, n)
        for s in range(-n, n + 1)
        if abs(s) >= b and m + b + abs(s) <= n
    ]
    return np.array([s(np.arange(1 << n)) for s in legal])


def conflict_free(tables: np.ndarray, groups: list[list[int]], banks: int) -> np.ndarray:
    """Which of the maps (maps, offsets) put the words of each group into different banks."""
    good = np.ones(len(tables), bool)
    for group in groups:
        used = np.sort(tables[:, group] % banks, axis=1)
        good &= (used[:, 1:] != used[:, :-1]).all(axis=1)
    return good


def attempt(tile, accesses, banks) -> Solution | Unsolvable:
    try:
        return solve(tile, WORD, accesses, banks=banks)
    except Unsolvable as error:
        return error


@pytest.mark.parametrize("requests", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_requests_agree_with_brute_force(requests):
    rng = random.Random(20)
    seen = dict.fromkeys(("plain", "permuted", "neither", "none"), 0)
    for _ in range(requests):
        tile, accesses, banks = some_request(rng)
        n = (tile[0] * tile[1]).bit_length() - 1
        whole = [elements(tile, access) for access in accesses]
        vector = min(banks, *map(neighbours, whole))
        groups = [together(offsets, banks) for offsets in whole]
        found = attempt(tile, accesses, banks)
        assert isinstance(found, Solution) == linear_map_exists(groups, n, vector, banks), (tile, accesses, banks)
        by_swizzle = conflict_free(swizzled(n, vector), groups, banks).any()
        assert by_swizzle == (isinstance(found, Solution) and found.kind == "plain"), (tile, accesses, banks)
        if isinstance(found, Solution):
            check_by_counting(found, whole, banks)
        else:
            assert found.proof.check()
        seen[found.kind if isinstance(found, Solution) else "none"] += 1
    assert min(seen.values()) > requests // 200, seen  # every kind of answer was among them


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_answers_and_proofs_hold_before_independent_judges(seed):
    """`python tests/solver_requests.py 20000` asks more: sub-word elements, toys, tiles of any size, instructions."""
    seen = solver_requests.run(150, seed)
    assert sum(seen.values()) == 150 and min(seen[kind] for kind in ("plain", "permuted", "exhausted", "tree")) > 0


def test_the_judges_see_what_is_wrong(monkeypatch):
    """An answer that conflicts, a proof that does not check, and one of something that is not so."""
    request = solver_requests.Request((8, 8), 32, (Block(8, 1), Block(1, 8)), None, 8, 4)
    assert solver_requests.judge(request) == "plain"
    plain = solve((8, 8), 32, [(1, 1)], banks=8)
    monkeypatch.setattr(solver_requests, "solve", lambda *_, **__: plain)
    with pytest.raises((AssertionError, IndexError)):
        solver_requests.judge(request)
    planes = [Span((1, 2)), Span((1, 4)), Span((1, 6))]
    proof = attempt((2, 4), planes, 4).proof

    def refuse(*_, **__):
        raise Unsolvable("none", proof)

    monkeypatch.setattr(solver_requests, "solve", refuse)
    assert solver_requests.judge(solver_requests.Request((2, 4), 32, tuple(planes), None, 4, 4)) == "tree"
    with pytest.raises(AssertionError):
        solver_requests.judge(solver_requests.Request((2, 4), 32, (*planes[:2], Span((2, 4))), None, 4, 4))


def test_the_proofs_that_were_false():
    """A count of bytes where the banks give words; and a swizzle of single bytes that was not tried."""
    with pytest.raises(Unsolvable, match="under every address map that keeps 16 neighbours") as caught:
        solve((16, 32), 8, [Span((17, 34, 64, 128, 256))], vector_elements=16)
    assert caught.value.proof.vectors == 32 and caught.value.proof.places == 8 and caught.value.proof.check()
    found = solve((10, 37), 8, [(2, 8), (10, 2)])
    assert found.swizzle == Swizzle(1, 1, -2) and found.wavefronts == (1, 1) == found.ideal


def test_search_says_that_it_excludes_linear_maps_and_no_others():
    planes = [Span((1, 2)), Span((1, 4)), Span((1, 6))]
    with pytest.raises(Unsolvable, match="no linear address map serves") as caught:
        solve((2, 4), 32, planes, banks=4)
    assert "by maps that are linear and that keep 2 neighbours together; any 2 of them can. Linear: each bit" in str(
        caught.value.proof
    )


def test_checks_are_quick_and_tell_how_far_they_are():
    rng = random.Random(2)
    spans = [Span(tuple(gf2.echelon(rng.randrange(1, 4096) for _ in range(5)))) for _ in range(30)]
    with pytest.raises(Unsolvable) as caught:
        solve((64, 64), 32, spans)
    proof, told = caught.value.proof, []
    assert proof.steps > 2000 and proof.check(lambda done, total: told.append((done, total)))
    assert len(told) == proof.steps // 256 and {total for _, total in told} == {proof.steps}
    with pytest.raises(Unsolvable) as caught:
        solve((48, 1365), 8, [(1, 32), (48, 1), (7, 3)])
    assert caught.value.proof.check(lambda *_: told.append(None)) and told[-1] is None
    fewer = dataclasses.replace(caught.value.proof, witnesses=caught.value.proof.witnesses[:-1])
    assert not fewer.check()
    elsewhere = tuple((0, 0) for _ in caught.value.proof.witnesses)
    assert not dataclasses.replace(caught.value.proof, witnesses=elsewhere).check()


def test_too_much_to_search_says_what_to_reduce():
    rng = random.Random(1)
    spans = [Span(tuple(gf2.echelon(rng.randrange(1, 1 << 14) for _ in range(5)))) for _ in range(40)]
    with pytest.raises(Undecided, match=r"accesses: got 40 .* needed fewer accesses, rows or banks"):
        solve((128, 128), 32, spans)
    with pytest.raises(ValueError, match=r"accesses: got 16x16, which can lie at .* Take fewer rows"):
        solve((255, 257), 16, [(16, 16)])
    with pytest.raises(ValueError, match="Take fewer accesses or fewer rows"):
        solve((240, 273), 32, [(32, 1), (1, 32), (16, 2), (2, 16), (8, 4), (4, 8)])
    with pytest.raises(ValueError, match="accesses: got 200; needed 1 to 64"):
        solve((8, 8), 32, [(8, 1)] * 200)
    with pytest.raises(ValueError, match="banks: got 268435456; needed a power of two, 1 to 256"):
        solve((8, 8), 32, [(8, 1)], banks=268435456)


def check_by_counting(found: Solution, whole: list[list[int]], banks: int) -> None:
    """The map is a bijection, and each access, wherever it lies, takes the wavefronts that were promised."""
    address = found.offsets.reshape(-1)
    assert np.array_equal(np.sort(address), np.arange(address.size))
    for offsets, promised, ideal in zip(whole, found.wavefronts, found.ideal, strict=True):
        group = np.array(together(offsets, banks))
        used = address[np.arange(address.size)[:, None] ^ group] % banks  # every coset
        counts = (used[:, :, None] == np.arange(banks)).sum(axis=1)
        assert counts.max() == 1 and promised == ideal == len(offsets) // len(group)


def test_neither_means_that_no_bit_permutation_has_a_swizzle():
    rng = random.Random(7)
    checked = {"permuted": 0, "neither": 0}
    while min(checked.values()) < 12:
        tile, accesses, banks = some_request(rng, most_bits=5)
        found = attempt(tile, accesses, banks)
        if not isinstance(found, Solution) or found.kind == "plain" or checked[found.kind] >= 12:
            continue
        n = (tile[0] * tile[1]).bit_length() - 1
        whole = [elements(tile, access) for access in accesses]
        groups, vector = [together(o, banks) for o in whole], min(banks, *map(neighbours, whole))
        low = vector.bit_length() - 1
        any_works = any(
            conflict_free(swizzled(n, vector)[:, permuted(n, low, order)], groups, banks).any()
            for order in itertools.permutations(range(low, n))
        )
        assert any_works == (found.kind == "permuted"), (tile, accesses, banks)
        checked[found.kind] += 1


def permuted(n: int, low: int, order: tuple[int, ...]) -> np.ndarray:
    x = np.arange(1 << n)
    return sum((x >> bit & 1) << place for place, bit in enumerate((*range(low), *order)))


def test_two_accesses_never_stick():
    """The greedy choice: one step for each vector of the kernel and no dead end, whatever the two spans."""
    rng = random.Random(3)
    for _ in range(300):
        n = rng.randint(2, 12)
        rank = rng.randint(1, min(n, 5))
        spans = [gf2.echelon(rng.randrange(1, 1 << n) for _ in range(rng.randint(1, rank))) for _ in range(2)]
        found = avoid(spans, n, rank)
        largest = max(map(len, spans))
        assert isinstance(found, BankMap)
        total = gf2.rank_of_ints(spans[0] + spans[1])
        assert found.nodes == (total - largest + 1 if total > rank else 0)
        for span in spans:
            assert gf2.rank_of_ints(image(found, v) for v in span) == len(span)


def image(found: BankMap, vector: int) -> int:
    total = 0
    for bit, value in enumerate(found.images):
        total ^= value * (vector >> bit & 1)
    return total


def test_three_accesses_fail_together_with_planes_of_one_line():
    """n = 3, 4 banks: of the 7^3 triples of planes the 7 * 3! with one common line cover all directions, and fail."""
    planes = sorted({tuple(gf2.echelon(basis)) for basis in itertools.combinations(range(1, 8), 2)})
    assert len(planes) == 7
    failed = 0
    for triple in itertools.product(planes, repeat=3):
        covered = {v for plane in triple for v in gf2.span(plane).tolist() if v}
        solvable = isinstance(avoid(triple, 3, 2), BankMap)
        assert solvable == (len(covered) < 7)
        failed += not solvable
    assert failed == 7 * 6


def test_any_request_of_12_bits_is_quick():
    """Steps, not seconds: a step is well under 0.1 ms. Blocks with steps on 64x64, and random spans, up to six."""
    rng = random.Random(11)
    most = 0
    for _ in range(150):
        if rng.random() < 0.7:
            accesses = [big_block(rng) for _ in range(rng.randint(1, 8))]
        else:
            spans = [gf2.echelon(rng.randrange(1, 4096) for _ in range(5)) for _ in range(rng.randint(1, 6))]
            accesses = [Span(tuple(s)) for s in spans]
        problem = linear_problem((64, 64), 32, accesses, None, solve((2, 2), 32, [(1, 1)]).banks)
        found = avoid(problem.spans, problem.vector_bits, problem.bank_bits)
        steps = found.nodes if isinstance(found, BankMap) else found[1].nodes
        _, labelled = permuted_labels(problem.spans, problem.vector_bits, problem.bank_bits)
        assert steps <= 200, accesses
        most = max(most, steps + labelled // 20)  # a step of labelling is far cheaper
    assert most > 5


def test_dozens_of_spans_just_too_many_or_just_few_enough():
    """Where the search is hardest: what it finds holds, and so do the proofs; they say whether they are shortened."""
    rng, seen = random.Random(29), {True: 0, False: 0, "not shortened": 0, "checked": 0}
    banks = Banks()
    for _ in range(12):
        spans = [Span(tuple(gf2.echelon(rng.randrange(1, 4096) for _ in range(5)))) for _ in range(rng.randint(12, 60))]
        problem = linear_problem((64, 64), 32, spans, None, banks)
        try:
            found = solve_linear(problem, spans)
        except Unsolvable as error:
            seen[False] += 1
            seen["not shortened"] += not error.proof.smallest
            if error.proof.tree.nodes < 2000:  # to check more takes seconds
                seen["checked"] += 1
                assert error.proof.check()
            assert ("any" in str(error.proof).split(".")[0]) == error.proof.smallest
        else:
            seen[True] += 1
            for span in spans:
                offsets = found(gf2.span(span.offsets)) % banks.count
                assert len(set(offsets.tolist())) == len(offsets)
    assert min(seen.values()) > 0, seen


def test_a_search_that_is_given_too_few_steps_says_so():
    spans = [gf2.echelon([1, 2]), gf2.echelon([1, 4]), gf2.echelon([2, 4])]
    possible, nodes = avoidable(spans, 3, 2, 1000)
    assert possible and nodes >= 1
    with pytest.raises(Undecided, match="most: got 0"):
        avoidable(spans, 3, 2, 0)


@pytest.mark.parametrize("rank", [1, 3, 6, 7, 8])
def test_positions_narrower_and_wider_than_a_word(rank):
    """Kernels of 2 to 256 positions a coset, against all subspaces of that dimension."""
    rng = random.Random(rank)
    n = rank + 2
    for _ in range(40 if rank < 8 else 10):
        spans = [gf2.echelon(rng.randrange(1, 1 << n) for _ in range(rank)) for _ in range(rng.randint(1, 12))]
        forbidden = {v for span in spans for v in gf2.span(span).tolist()} - {0}
        planes = {frozenset((a, b, a ^ b)) for a in range(1, 1 << n) if a not in forbidden for b in range(1, a)}
        assert isinstance(avoid(spans, n, rank), BankMap) == any(not plane & forbidden for plane in planes)


def big_block(rng: random.Random) -> Block:
    rows = rng.randint(0, 5)
    columns = 5 - rows
    return Block(1 << rows, 1 << columns, 1 << rng.randint(0, 6 - rows), 1 << rng.randint(0, 6 - columns))
