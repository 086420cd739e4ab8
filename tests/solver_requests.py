"""Random requests to the solver, and judges that share no code with it.

`judge(request)` asks `design.solve` and raises AssertionError unless the answer is right. An answer is counted bank by
bank at every place of every access. A proof must pass its own check; and where the tile is small, no map of the kind
that the proof excludes may serve the request. Linear maps are gone through by their kernels, and on up to 8 vectors one
by one; a count is tried on every permutation of the vectors; swizzles of tiles of any size are tried one by one.

`python tests/solver_requests.py 20000` judges 20000 requests and counts the kinds of answers.
"""

from __future__ import annotations

import collections
import itertools
import math
import random
import sys
from dataclasses import dataclass
from functools import cache

import numpy as np

from cookbook.solve.design import Block, Instruction, Solution, Span, Unsolvable, solve
from cookbook.solve.proofs import CountingProof, TreeProof

MOST_VECTOR = 16  # bytes


@dataclass(frozen=True)
class Request:
    tile: tuple[int, int]
    bits: int
    accesses: tuple
    vector: int | None
    banks: int
    bank_bytes: int

    @property
    def linear(self) -> bool:
        return all(x & x - 1 == 0 for x in self.tile)

    @property
    def size(self) -> int:
        return self.tile[0] * self.tile[1]


# --- requests ---------------------------------------------------------------------------------------------------


def some_request(rng: random.Random) -> Request:
    """A valid request: toys of few banks and the real 32, words of 1 to 8 bytes, tiles of any size, instructions.

    One in four is of many spans on a small tile, which often have no map; one in ten of scalars in long vectors.
    """
    if (kind := rng.random()) < 0.35:
        return _hard_request(rng) if kind < 0.25 else _wide_request(rng)
    while True:
        bits = rng.choice((8, 8, 16, 16, 32, 32, 64, 128))
        real = rng.random() < 0.4
        banks, bank_bytes = (32, 4) if real else (rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 2, 4, 4, 8)))
        if banks * bank_bytes * 8 >= bits:
            break
    if rng.random() < 0.3:
        tile = rng.randint(1, 12), rng.choice((3, 5, 6, 7, 9, 10, 12, 20, 24, 37, 40, 48))
    else:
        n = rng.randint(0, 10 if real else 7)
        columns = rng.randint(0, n)
        tile = 1 << n - columns, 1 << columns
    most = min(MOST_VECTOR, banks * bank_bytes) * 8 // bits
    fitting = [v for v in (1, 2, 4, 8, 16) if v <= most and tile[1] % v == 0]
    vector = rng.choice(fitting) if rng.random() < 0.4 and fitting else None
    accesses = []
    while len(accesses) < rng.choice((1, 2, 2, 3, 3, 4, 6)):
        if (access := _some_access(rng, tile, bits, real)) is not None:
            accesses.append(access)
    return Request(tile, bits, tuple(accesses), vector, banks, bank_bytes)


def _hard_request(rng: random.Random) -> Request:
    n, bank_bits, bits = rng.randint(3, 6), rng.randint(1, 3), rng.choice((16, 32, 64))
    bank_bytes = rng.choice((2, 4))
    count = max(1 << bank_bits, bits // 8 // bank_bytes)
    spans = []
    while len(spans) < rng.choice((3, 4, 6, 9, 12)):
        basis: list[int] = []
        for v in (
            rng.randrange(1, 1 << n)
            for _ in range(bank_bits + rng.choice((-1, 0, 0, 0, 0, 0, 0, 1) if bank_bits > 1 else (0,)))
        ):
            if v not in _sums(basis):
                basis.append(v)
        spans.append(Span(tuple(basis)))
    columns = rng.randint(0, n)
    return Request((1 << n - columns, 1 << columns), bits, tuple(spans), None, count, bank_bytes)


def _wide_request(rng: random.Random) -> Request:
    bits, n = rng.choice((8, 8, 16, 32)), rng.randint(5, 9)
    columns = rng.randint(4, n)
    tile, real = (1 << n - columns, 1 << columns), rng.random() < 0.5
    made = [a for a in (_some_access(rng, tile, bits, real) for _ in range(rng.randint(1, 3))) if a is not None]
    most = 128 // bits
    return Request(
        tile,
        bits,
        tuple([Block(tile[0], 1), *made] if rng.random() < 0.5 else made or [Block(1, 1)]),
        rng.choice((most, most // 2)),
        32 if real else 16,
        4,
    )


def _some_access(rng: random.Random, tile: tuple[int, int], bits: int, real: bool):
    linear = all(x & x - 1 == 0 for x in tile)
    kind = rng.random()
    if real and kind < 0.4:
        return _some_instruction(rng, tile, bits, linear)
    if linear and kind < 0.65:
        n = (tile[0] * tile[1]).bit_length() - 1
        vectors, basis = [rng.randrange(1, 1 << n) for _ in range(rng.randint(1, 6))] if n else [], []
        for v in vectors:
            if v not in _sums(basis):
                basis.append(v)
        return Span(tuple(basis)) if basis else None
    sides = []
    for size in tile:
        counts = [1 << i for i in range(size.bit_length())] if linear else range(1, min(size, 8) + 1)
        count = rng.choice(list(counts))
        steps = [s for s in ((1, 1, 2, 4) if linear else (1, 1, 2, 3)) if (count - 1) * s < size]
        if linear:
            steps = [s for s in steps if count * s <= size]
        sides.append((count, rng.choice(steps)))
    return Block(sides[0][0], sides[1][0], sides[0][1], sides[1][1])


def _some_instruction(rng: random.Random, tile: tuple[int, int], bits: int, linear: bool):
    name = rng.choice(("ld", "st", "cp", "ldmatrix", "stmatrix"))
    if name in ("ldmatrix", "stmatrix"):
        num = rng.choice((1, 2, 4))
        v, high = 128 // bits, rng.choice([h for h in (1, 2, 4) if h <= num])
        made = Instruction(f"{name}.x{num}", 8 * high, v * (num // high), rng.choice((1, 1, 2)))
    else:
        width = rng.choice([w for w in ((4, 8, 16) if name == "cp" else (1, 2, 4, 8, 16)) if w * 8 >= bits])
        v = width * 8 // bits
        if linear:
            rows = rng.choice((1, 2, 4, 8, 16, 32))
            across = rng.choice([c for c in (1, 2, 4, 8, 16, 32) if c * rows <= 32])
        else:
            rows = rng.randint(1, min(12, tile[0]))
            across = rng.randint(1, 32 // rows)
        steps = rng.choice((1, 1, 2)), rng.choice((1, 1, 2))
        said = f"cp.async{width}" if name == "cp" else f"{name}{width * 8}"
        made = Instruction(said, rows, across * v, *steps, rng.random() < 0.5)
    across = made.columns // v
    fits = made.rows * made.row_step <= tile[0] and across * made.column_step * v <= tile[1]
    return made if fits and tile[1] % v == 0 else None


# --- what an access asks for, by plain loops --------------------------------------------------------------------


def _sums(basis) -> list[int]:
    found = [0]
    for v in basis:
        found += [x ^ v for x in found]
    return found


def phases_at_the_corner(request: Request, access) -> list[list[tuple[int, int]]]:
    """The (row, column) of the elements of each phase of an access at the tile's corner."""
    if isinstance(access, Instruction):
        lanes = lanes_of(access, request.bits)
        together = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width_of(access)]
    else:
        lanes, v = _lanes_of_elements(request, access)
        together = min(request.banks * v, request.banks * request.bank_bytes * 8 // request.bits) // v
        if not together:  # a vector wider than what the banks give
            v = request.banks * request.bank_bytes * 8 // request.bits
            lanes, together = [lane[i : i + v] for lane in lanes for i in range(0, len(lane), v)], 1
    return [list(itertools.chain(*lanes[i : i + together])) for i in range(0, len(lanes), together)]


def width_of(access: Instruction) -> int:
    """Bytes a lane, as the name says."""
    if "matrix" in access.name:
        return 16
    digits = int("".join(c for c in access.name if c.isdigit()))
    return digits if access.name.startswith("cp") else digits // 8


def lanes_of(access: Instruction, bits: int) -> list[list[tuple[int, int]]]:
    v = width_of(access) * 8 // bits
    across = access.columns // v
    if "matrix" in access.name:
        order = [(m * 8 + r, c) for c in range(across) for m in range(access.rows // 8) for r in range(8)]
    elif access.down:
        order = [(r, c) for c in range(across) for r in range(access.rows)]
    else:
        order = [(r, c) for r in range(access.rows) for c in range(across)]
    return [[(r * access.row_step, c * access.column_step * v + i) for i in range(v)] for r, c in order]


def _lanes_of_elements(request: Request, access) -> tuple[list[list[tuple[int, int]]], int]:
    """The vectors of a block or span in lane order, and their length."""
    columns = request.tile[1]
    if isinstance(access, Span):
        cells = [divmod(x, columns) for x in _sums(access.offsets)]
    else:
        cells = [
            (r * access.row_step, c * access.column_step) for r in range(access.rows) for c in range(access.columns)
        ]
    most = MOST_VECTOR * 8 // request.bits
    if request.linear:
        offsets = {r * columns + c for r, c in cells}
        v = max(
            v for v in (1, 2, 4, 8, 16) if v <= most and {x - x % v + i for x in offsets for i in range(v)} == offsets
        )
    else:
        row = columns if request.tile[0] > 1 else access.columns
        v = 1 if access.column_step > 1 else math.gcd(row, access.columns, most)
    groups: dict[int, list[tuple[int, int]]] = {}
    for r, c in cells:
        offset = r * columns + c
        start = offset - offset % v if request.linear else (r, c - c % v)
        groups.setdefault(start, []).append((r, c))
    assert all(len(g) == v for g in groups.values())
    return [sorted(g) for g in groups.values()], v


def all_phases(request: Request, access) -> tuple[np.ndarray, int]:
    """(places * phases, elements) offsets at every place of an access, short phases filled up; phases of an access."""
    columns = request.tile[1]
    phases = [[r * columns + c for r, c in phase] for phase in phases_at_the_corner(request, access)]
    most = max(map(len, phases))
    table = np.array([phase + phase[-1:] * (most - len(phase)) for phase in phases])
    if isinstance(access, Span):
        return (np.arange(request.size)[:, None, None] ^ table).reshape(-1, most), len(phases)
    v = 1
    if isinstance(access, Instruction):
        v = width_of(access) * 8 // request.bits
        across = access.columns // v
    elif not request.linear:
        v = len(_lanes_of_elements(request, access)[0][0])
        across = access.columns
    else:
        across = access.columns
    unit = v if isinstance(access, Instruction) else 1
    rows = _starts(request.tile[0], access.rows, access.row_step)
    starts = [x * unit for x in _starts(columns // unit, across, access.column_step)]
    starts = [x for x in starts if x % v == 0]
    corners = np.array([r * columns + c for r in rows for c in starts])
    return (corners[:, None, None] + table).reshape(-1, most), len(phases)


def _starts(size: int, count: int, step: int) -> list[int]:
    """Aligned to the whole where that divides the side, anywhere else otherwise."""
    whole = count * step
    if size % whole == 0:
        return [x for x in range(size) if x % whole < step]
    return [x for x in range(size) if x + (count - 1) * step < size]


# --- judges -----------------------------------------------------------------------------------------------------


def counts(tables: np.ndarray, request: Request, phases: np.ndarray) -> np.ndarray:
    """(maps, phases) the most words that one bank is asked for, under maps of (maps, offsets)."""
    size = request.bits // 8
    first = tables[:, phases] * size
    words = (first[..., None] + np.arange(0, size, min(size, request.bank_bytes))) // request.bank_bytes
    words = np.sort(words.reshape(*first.shape[:2], -1), axis=2)
    fresh = np.concatenate([np.ones_like(words[..., :1], bool), words[..., 1:] != words[..., :-1]], axis=2)
    banks = np.where(fresh, words % request.banks, request.banks)
    return np.stack([(banks == bank).sum(axis=2) for bank in range(request.banks)]).max(axis=0)


def kept_of(request: Request) -> tuple[int, int]:
    """(elements that must stay together, elements of a word), by what the documentation of `solve` says."""
    word = max(1, request.bank_bytes * 8 // request.bits) if request.linear else 1
    instructions = [width_of(a) * 8 // request.bits for a in request.accesses if isinstance(a, Instruction)]
    blocks = [_lanes_of_elements(request, a)[1] for a in request.accesses if not isinstance(a, Instruction)]
    if request.linear and not instructions:
        blocks.append(max(1, min(MOST_VECTOR, request.banks * request.bank_bytes) * 8 // request.bits))
    vector = max(word, max(instructions) if instructions else min(blocks), request.vector or 1)
    return min(vector, request.size) if request.linear else vector, min(word, request.size)


def judge(request: Request) -> str:
    """Ask the solver; what kind of answer it gave, once it is seen to be right."""
    try:
        found = solve(
            request.tile,
            request.bits,
            request.accesses,
            vector_elements=request.vector,
            banks=request.banks,
            bank_bytes=request.bank_bytes,
        )
    except Unsolvable as error:
        proof = error.proof
        assert proof.check() is True, request
        if not request.linear:
            _no_candidate_serves(request)
            return "exhausted"
        assert proof.kept.elements == kept_of(request)[0], request
        if isinstance(proof, CountingProof):
            _no_order_serves(request, proof)
            return "counted"
        assert isinstance(proof, TreeProof)
        _no_linear_map_serves(request, proof.conflicting)
        return "tree"
    _holds(request, found)
    return found.kind if request.linear else f"any size, {found.kind}"


def _holds(request: Request, found: Solution) -> None:
    table = found.offsets.reshape(1, -1)
    assert sorted(table[0].tolist()) == list(range(request.size)), request
    plain = np.arange(request.size)[None]
    for index, access in enumerate(request.accesses):
        phases, per_access = all_phases(request, access)
        now, before = (counts(t, request, phases)[0].reshape(-1, per_access).sum(axis=1) for t in (table, plain))
        assert now.max() == per_access == found.wavefronts[index] == found.ideal[index], (request, access)
        assert before.max() == found.before[index], (request, access)
    kept, _ = kept_of(request)
    vectors = found.offsets.reshape(-1, kept) if request.size % kept == 0 else found.offsets[:, :, None]
    assert (vectors - vectors[..., :1] == np.arange(vectors.shape[-1])).all(), request
    assert request.size % kept or (vectors[..., 0] % kept == 0).all(), request


def _vector_words(request: Request, accesses) -> list[list[tuple[int, int]]]:
    """Of every phase at every place: the (vector, word in it) that are asked for."""
    kept, word = kept_of(request)
    found = set()
    for access in accesses:
        for phase in all_phases(request, access)[0].tolist():
            found.add(frozenset((x // kept, x % kept // word) for x in phase))
    return [sorted(phase) for phase in found]


def _places(request: Request) -> int:
    return request.banks * request.bank_bytes * 8 // request.bits // kept_of(request)[0]


def _no_linear_map_serves(request: Request, conflicting) -> None:
    """All kernels of maps of vectors, where there are few enough; and on 8 vectors all maps themselves."""
    kept, _ = kept_of(request)
    bits = (request.size // kept).bit_length() - 1
    bank_bits = _places(request).bit_length() - 1
    phases = _vector_words(request, [request.accesses[i] for i in conflicting])
    differences = {a ^ b for phase in phases for (a, p), (b, q) in itertools.combinations(phase, 2) if p == q}
    if bits <= 6:
        assert bits > bank_bits
        forbidden = np.uint64(sum(1 << d for d in differences))
        assert (kernels(bits, bits - bank_bits) & forbidden != 0).all(), request
    if bits <= 3:
        for images in itertools.product(range(1, 1 << bits), repeat=bits):
            if len(set(order := _sums(images))) == 1 << bits:
                assert not _serves(order, phases, _places(request)), request


def _no_order_serves(request: Request, proof: CountingProof) -> None:
    """Whatever order the vectors are put in, where there are few enough to try all."""
    kept, _ = kept_of(request)
    if request.size // kept <= 8:
        phases = _vector_words(request, [request.accesses[proof.access]])
        for order in itertools.permutations(range(request.size // kept)):
            assert not _serves(order, phases, _places(request)), request


def _serves(order, phases, places: int) -> bool:
    return all(len({(order[v] % places, p) for v, p in phase}) == len(phase) for phase in phases)


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
            found.add(sum(1 << v for v in _sums(rows) if v))
    return np.array(sorted(found), np.uint64)


def _no_candidate_serves(request: Request) -> None:
    """Every legal swizzle of every order of rows that stays inside the tile conflicts somewhere."""
    kept, _ = kept_of(request)
    phases = [all_phases(request, access)[0] for access in request.accesses]
    for order in _row_orders(request):
        tables = _swizzled(request.size, kept)[:, order]
        alive = np.ones(len(tables), bool)
        for part in phases:
            for some in np.array_split(part, max(1, len(part) // 16)):
                if alive.any():
                    alive[np.flatnonzero(alive)] = (counts(tables[alive], request, some) == 1).all(axis=1)
        assert not alive.any(), request


def _row_orders(request: Request) -> list[np.ndarray]:
    rows, columns = request.tile
    orders = [list(range(rows))]
    orders += [[r % p * (rows // p) + r // p for r in range(rows)] for p in range(2, rows) if rows % p == 0]
    return [(np.array(order)[:, None] * columns + np.arange(columns)).reshape(-1) for order in orders]


@cache
def _swizzled(size: int, kept: int) -> np.ndarray:
    """(swizzles, offsets): every XOR of B bits with B others |S| away, either way, that stays below `size`."""
    x, n, low = np.arange(size), size.bit_length() + 1, kept.bit_length() - 1
    found = {tuple(x.tolist())}
    for b, m in itertools.product(range(1, n), range(low, n)):
        for s in range(b, n):
            mask = (1 << b) - 1 << m
            for moved in (x ^ (x >> s & mask), x ^ (x & mask) << s):
                if moved.max() < size:
                    found.add(tuple(moved.tolist()))
    return np.array(sorted(found))


def run(count: int, seed: int) -> collections.Counter:
    """Judge `count` requests; how many there were of each kind of answer."""
    rng, seen = random.Random(seed), collections.Counter()
    for done in range(count):
        seen[judge(some_request(rng))] += 1
        if not (done + 1) % 1000:
            print(done + 1, dict(seen), file=sys.stderr, flush=True)
    return seen


if __name__ == "__main__":
    print(dict(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
