from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.banks import wavefronts
from cookbook.gf2 import rank_of_ints
from cookbook.swizzle import Swizzle

LANE = np.arange(32)


def linear(images, width):
    """The count by linear algebra, of addresses that are the XOR of `images` over the set bits of the lane.

    Within a phase the words form a subspace on which each bank in use gets 2**(rank of the word bits - rank of the bank
    bits) of them, and every phase is a coset of the same one.
    """
    phases = {8: 2, 16: 4}.get(width, 1)
    inside = [4 << i for i in range(max(1, width // 4).bit_length() - 1)]
    words = [image // 4 for image in (*images[: 5 - (phases.bit_length() - 1)], *inside)]
    return phases << (rank_of_ints(words) - rank_of_ints(word % 32 for word in words))


def brute(addresses, width):
    """Serve phase by phase, bank by bank, one word at a time."""
    total = 0
    lanes = 32 // max(1, width // 4)
    for first in range(0, 32, lanes):
        wanted = defaultdict(set)
        for a in addresses[first : first + lanes]:
            if a >= 0:
                for byte in range(a, a + width):
                    wanted[byte // 4 % 32].add(byte // 4)
        while any(wanted.values()):
            total += 1
            for words in wanted.values():
                if words:
                    words.pop()
    return total


widths = st.sampled_from((1, 2, 4, 8, 16))


@given(widths, st.lists(st.integers(-1, 300), min_size=32, max_size=32))
def test_any_addresses(width, units):
    addresses = np.array([u * width if u >= 0 else -1 for u in units])
    counted = wavefronts(addresses, width)
    assert counted.actual == brute(addresses.tolist(), width)
    assert counted.ideal <= counted.actual and counted.excess == counted.actual - counted.ideal


@given(widths, st.lists(st.integers(0, 1023), min_size=5, max_size=5))
def test_linear_count_is_the_brute_count(width, units):
    images = [u * width for u in units]
    addresses = np.zeros(32, int)
    for i, image in enumerate(images):
        addresses ^= (LANE >> i & 1) * image
    assert linear(images, width) == wavefronts(addresses, width).actual == brute(addresses, width)


@pytest.mark.parametrize(
    ("addresses", "width", "actual", "ideal"),
    [
        (LANE * 4, 4, 1, 1),
        (LANE * 0, 4, 1, 1),  # broadcast
        (LANE * 128, 4, 32, 1),  # column of 32x32 fp32
        (LANE % 8 * 32 + LANE // 8 * 4, 4, 2, 1),  # columns of 8x8 fp32: two-way on 32 banks
        (LANE * 33 * 4, 4, 1, 1),  # padded by one word
        (LANE * 8, 8, 2, 2),
        (LANE * 16, 16, 4, 4),
        (LANE * 128, 16, 32, 4),
        (np.where(LANE < 8, LANE * 16, -1), 16, 1, 1),
        (np.full(32, -1), 4, 0, 0),
        (LANE * 2, 2, 1, 1),
    ],
)
def test_known_counts(addresses, width, actual, ideal):
    counted = wavefronts(addresses, width)
    assert (counted.actual, counted.ideal) == (actual, ideal)


def test_swizzle_frees_the_column():
    column = Swizzle(5, 2, 5)(LANE * 128)
    counted = wavefronts(column, 4)
    assert counted.actual == 1 and counted.phases[0].per_bank == (1,) * 32
    rows = Swizzle(3, 4, 3)(LANE % 8 * 128 + LANE // 8 * 16)
    assert wavefronts(rows, 16).actual == 4
    assert [p.wavefronts for p in wavefronts(LANE % 8 * 128, 16).phases] == [8] * 4


def test_padding_bf16_wants_34_not_33():
    """bf16, 32 columns, column read: with a pitch of 33 elements the odd columns are two-way."""
    assert {wavefronts((LANE * 34 + column) * 2, 2).actual for column in range(32)} == {1}
    assert {wavefronts((LANE * 33 + column) * 2, 2).actual for column in range(1, 32, 2)} == {2}


def test_refuses():
    with pytest.raises(ValueError, match="width: got 12"):
        wavefronts(LANE * 4, 12)
    with pytest.raises(ValueError, match="got 8 from lane 1; needed multiples of 16 bytes"):
        wavefronts(LANE * 8, 16)
    with pytest.raises(ValueError, match=">= 0"):
        wavefronts(LANE - 4, 1)


def test_shapes():
    with pytest.raises(ValueError, match="32 integers"):
        wavefronts(LANE[:16] * 4, 4)


LANE = np.arange(32)


@pytest.mark.parametrize(
    "units, width, load, store",
    [
        (LANE, 16, 4, 4),
        (LANE >> 1, 16, 2, 4),  # lanes t, t^1 share throughout
        (LANE & 1 | LANE >> 2 << 1, 16, 2, 4),  # lanes t, t^2
        (LANE & 3 | LANE >> 3 << 2, 16, 4, 4),  # lanes t, t^4: no
        (np.where(LANE < 16, LANE >> 1, LANE), 16, 3, 4),  # one half-warp of two
        (np.where(LANE % 2 == 0, LANE // 2, -1), 16, 2, 4),  # lanes that take no part share with anyone
        (LANE >> 1, 8, 1, 2),
        (np.where(LANE < 16, LANE >> 1, LANE), 8, 2, 2),  # 8 bytes a lane: the whole warp, or not
        ((LANE >> 1) * 8, 16, 16, 16),  # sharing, but in the same banks: nothing is gained
        (LANE >> 1, 4, 1, 1),
    ],
)
def test_phases_of_a_load_whose_lanes_share_addresses_are_one(units, width, load, store):
    """As counted on an H200 by `python -m tools.probes`."""
    addresses = np.where(units < 0, -1, units * width)
    assert wavefronts(addresses, width, load=True).actual == load
    assert wavefronts(addresses, width).actual == store


@pytest.mark.parametrize(
    "width, sources, expected",
    [
        (16, LANE * 16, 4),  # whole lines
        (16, LANE // 8 * 4096 + LANE % 8 * 16, 4),  # rows of 128 bytes
        (16, LANE // 8 * 4096 + LANE % 8 * 16 + 64, 4),  # the same, half a line further: two lines a phase, no matter
        (16, LANE // 4 * 4096 + LANE % 4 * 16, 8),  # rows of 64 bytes: both read the first half of their lines
        (16, LANE * 4096, 32),
        (16, LANE * 0, 32),  # one address for all: 32 copies of it are made one by one
        (8, LANE // 8 * 4096 + LANE % 8 * 8, 4),
        (4, LANE // 16 * 4096 + LANE % 16 * 4, 2),
    ],
)
def test_cp_async_has_banks_at_both_ends(width, sources, expected):
    """As counted on an H200 by `python -m tools.probes`; the writes alone are free of conflicts."""
    assert wavefronts(LANE * width, width).excess == 0
    assert wavefronts(LANE * width, width, sources=sources).actual == expected


@pytest.mark.parametrize(
    "written, read, least, most",
    [
        (LANE, LANE // 8, 8, 8),  # eight lanes at each of four places, and no two at one bank
        (LANE // 8, LANE, 8, 8),  # and the other way round: a word that eight lanes write is written eight times
        (LANE // 8 * 32, LANE, 32, 32),  # in one bank
        (
            [0, 0, 1, 1],
            [0, 1, 0, 2],
            2,
            4,
        ),  # a chain: lanes 1 and 0 meet at a bank, 0 and 2 at a place, 2 and 3 at a bank
        ([0, 0, 1, 1], [0, 0, 1, 1], 2, 2),  # two chains
        ([0, 0, 0, 1, 1], [0, 1, 2, 3, 3], 3, 3),  # two chains: the shorter one is done meanwhile
        ([0, 32, 1], [0, 1, 33], 2, 3),
        ([], [], 0, 0),
    ],
)
def test_a_copy_takes_from_the_busiest_end_to_the_longest_chain(written, read, least, most):
    """In words of 4 bytes; the lanes that are not given take no part."""
    ends = [np.full(32, -1) for _ in "wr"]
    for end, words in zip(ends, (written, read), strict=True):
        end[: len(words)] = np.array(words, int) * 4
    counted = wavefronts(ends[0], 4, sources=np.maximum(ends[1], 0))
    assert (counted.actual, counted.at_most, counted.exact) == (least, most, least == most)


@given(widths.filter(lambda w: w >= 4), st.lists(st.tuples(*[st.integers(0, 200)] * 2), min_size=32, max_size=32))
def test_no_order_of_serving_lanes_leaves_the_range(width, units):
    """Lanes one after the other, each in the first wavefront that has its place and its bank free."""
    written, read = np.array(units).T * width
    counted, total = wavefronts(written, width, sources=read), 0
    lanes = 32 // (width // 4)
    for first in range(0, 32, lanes):
        taken: list[set] = []
        for w, r in zip(written[first : first + lanes] % 128, read[first : first + lanes] % 128, strict=True):
            wanted = {("bank", w), ("place", r)}
            slot = next((s for s in taken if not s & wanted), None)
            taken.append(wanted) if slot is None else slot.update(wanted)
        total += len(taken)
    assert counted.ideal <= counted.actual <= total <= counted.at_most


def test_load_that_rests_on_lanes_that_take_no_part_has_a_range():
    shared = (LANE >> 1) * 16
    assert wavefronts(shared, 16, load=True).exact
    counted = wavefronts(np.where(LANE == 3, -1, shared), 16, load=True)
    assert (counted.actual, counted.at_most, counted.exact) == (2, 3, False)
    whole_pairs = wavefronts(np.where(LANE // 2 == 3, -1, shared), 16, load=True)
    assert (whole_pairs.actual, whole_pairs.exact) == (2, True)


def past_l1(*moves):
    """Wavefronts of a copy past L1 of 16-byte chunks (from, to); all other lanes do as the first one."""
    moves = [*moves, *[moves[0]] * (32 - len(moves))]
    sources, written = (np.array([16 * end for end in ends]) for ends in zip(*moves, strict=True))
    return wavefronts(written, 16, sources=sources, past_l1=True)


@pytest.mark.parametrize(
    "moves, count, why",
    [
        ([(0, 0), (1, 1)], 1, "two halves of one sector"),
        ([(0, 0), (2, 2)], 1, "the same half of two sectors"),
        ([(0, 0), (3, 3)], 2, "the first half of one sector, the second of another"),
        ([(0, 0), (1, 1), (2, 2)], 2, "a whole sector and a half"),
        ([(0, 1), (2, 3)], 1, "the halves change places in both"),
        ([(0, 1), (2, 2)], 2, "they do in one of them"),
        ([(0, 2), (4, 4)], 2, "one goes to the next sector, the other stays"),
        ([(0, 0), (2, 6)], 1, "the other 64 bytes of the line: each sector's own affair"),
        ([(0, 0), (8, 1)], 2, "from two lines"),
        ([(0, 0), (1, 9)], 2, "to two lines"),
        ([(0, 0), (5, 0)], 1, "of lanes that write one place only the first counts"),
        ([(c, c ^ 5) for c in range(8)], 1, "a line to a line, swizzled"),
        ([(c, c ^ r) for r, c in [(0, 0), (0, 1), (1, 2), (1, 3), (0, 4), (0, 5), (1, 6), (1, 7)]], 2, "two XORs"),
        ([(8 * (c // 4) + c % 4, c) for c in range(8)], 2, "rows of 64 bytes: a line filled from two"),
        ([(t, 8 * t) for t in range(32)], 32, "to 32 lines"),
    ],
)
def test_a_copy_past_l1_moves_sectors_of_a_line_in_one_way(moves, count, why):
    counted = past_l1(*moves)
    assert (counted.actual, counted.at_most) == (count, count), why


@pytest.mark.parametrize(
    "moves, count",
    [  # counted on an H200, lanes in this order
        ([(3, 0), (4, 1), (3, 2), (4, 3), (7, 6), (7, 4)], 6),
        ([(0, 2), (4, 6), (0, 4)], 3),
        ([(0, 4), (0, 2), (4, 6)], 2),
        ([(2, 0), (5, 5), (1, 7), (1, 1), (5, 3)], 5),
        ([(3, 7), (3, 5), (5, 1), (0, 6), (5, 0), (0, 2)], 6),
    ],
)
def test_copies_of_one_chunk_past_l1_serve_the_last_lane_first(moves, count):
    assert past_l1(*moves).actual == count


def test_a_copy_past_l1_has_a_phase_for_each_line_it_writes():
    counted = past_l1(*[(t, t ^ (t >> 3 & 7)) for t in range(32)])
    assert (counted.actual, counted.ideal, counted.excess) == (4, 4, 0)
    assert [sum(phase.per_bank) for phase in counted.phases] == [32] * 4


@pytest.mark.parametrize("arguments", [{"width": 8, "sources": np.arange(32) * 8}, {"width": 16}])
def test_a_copy_past_l1_is_of_16_bytes_and_has_two_ends(arguments):
    width = arguments.pop("width")
    with pytest.raises(ValueError, match=r"past_l1: got .*; needed width 16 and sources"):
        wavefronts(np.arange(32) * width, width, past_l1=True, **arguments)
