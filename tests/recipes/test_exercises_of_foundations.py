"""The exercises of the foundations and of TMA's copies: wrong answers, each told what it gave and what is needed.

The right answers stand on the pages, as solutions: tests/check/test_exercises.py tries those.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from cookbook.check import exercises
from cookbook.recipe import catalog


class Page:
    """A page's code, loaded when it is first asked for something: to collect tests needs none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, what: str):
        return getattr(catalog.load(self.name), what)


BANKS = Page("foundations/bank_conflicts")
XOR = Page("foundations/xor_swizzle")
PARAMETERS = Page("foundations/swizzle_parameters")
SOLVING = Page("foundations/solving_for_a_swizzle")
ATOMS = Page("foundations/mma_smem_atoms")
FRAGMENTS = Page("foundations/fragments_and_ldmatrix")
DESCRIPTORS = Page("foundations/matrix_descriptors")
RASTER = Page("foundations/thread_block_swizzle")
SERPENTINE = Page("foundations/serpentine")
GPCS = Page("foundations/gpc_remapping")
RULE = Page("hopper/tile_heuristics")
MEMORY = Page("foundations/memory_ceiling")
CORES = Page("foundations/tensor_core_ceiling")
TMA = Page("hopper/tma_copy")


# --- bank_conflicts ---------------------------------------------------------------------------------------------------


def count_by(key):
    """Wavefronts, if a bank gave to all lanes at once what `key` of the byte makes of their addresses."""

    def count(addresses, banks=32):
        wanted = [set() for _ in range(banks)]
        for byte in addresses:
            wanted[byte // 4 % banks].add(key(byte))
        return max(map(len, wanted))

    return count


def lanes_of_the_busiest_bank(addresses, banks=32):
    found = [byte // 4 % banks for byte in addresses]
    return max(map(found.count, found))


# --- xor_swizzle ------------------------------------------------------------------------------------------------------


def transpose_by(read, write, store=XOR.store, load=XOR.load):
    """The toy transpose of 16 x 16 with other places: `read` and `write` of (block, i, t)."""

    def answer(flat):
        out, spent = [None] * 256, 0
        for block in ((0, 0), (0, 1), (1, 0), (1, 1)):
            tile = [[flat[read(block, i, t)] for t in range(8)] for i in range(8)]
            turned, took = XOR.transpose(tile, store, load)
            spent += sum(took)
            for i in range(8):
                for t in range(8):
                    out[write(block, i, t)] = turned[i][t]
        return out, spent

    return answer


def across(block, i, t):
    return XOR.index_of(block[::-1], i, t)


# --- solving_for_a_swizzle --------------------------------------------------------------------------------------------


def images(access, parameters):
    return [SOLVING.swizzled(vector, *parameters) & 7 for vector in access]


def bits_that_appear(access, parameters, bank_bits=3):
    seen = 0
    for image in images(access, parameters):
        seen |= image
    return 1 << len(access) - seen.bit_count()


# --- the others -------------------------------------------------------------------------------------------------------


def along_rows_of_atoms(m, k, rows, bits):
    """Atoms side by side first."""
    column, inside = divmod(k, 8 << bits)
    atom = m // 8 * (64 // (8 << bits)) + column
    return ATOMS.swizzle(atom * (128 << bits) + m % 8 * (16 << bits) + 2 * inside, bits)


def swizzled_in_elements(m, k, rows, bits):
    column, inside = divmod(k, 8 << bits)
    return 2 * ATOMS.swizzle((column * rows + m) * (8 << bits) + inside, bits)


def always_exchanged(layout, bits, k, base):
    near, far = (2 * DESCRIPTORS.offset(layout, place) for place in ((8 << bits, 0), (0, 8)))
    return DESCRIPTORS.Descriptor(base + 2 * DESCRIPTORS.offset(layout, (0, k)), far, near, bits)


def in_elements(layout, bits, k, base):
    near, far = (DESCRIPTORS.offset(layout, place) for place in ((8 << bits, 0), (0, 8)))
    near, far = (far, near) if bits == 0 else (near, far)
    return DESCRIPTORS.Descriptor(base + DESCRIPTORS.offset(layout, (0, k)), near, far, bits)


def without_min(cta, group, grid):
    band, inside = divmod(cta, group * grid[0])
    return inside // group, band * group + inside % group


def bands_by_width(cta, group, grid):
    band, inside = divmod(cta, group * grid[1])
    width = min(grid[1] - band * group, group)
    return inside // width, band * group + inside % width


def down_first(cta, group, grid):
    band, inside = divmod(cta, group * grid[0])
    return inside % grid[0], band * group + inside // grid[0]


def in_two_passes(seen):
    gpc = {sm: sm for cluster in seen for sm in cluster}
    for cluster in seen * 2:
        gpc |= dict.fromkeys(cluster, min(gpc[sm] for sm in cluster))
    return gpc


def by_first_sm(seen):
    """Moves all that the cluster meets, to the GPC of its first SM."""
    gpc = {sm: sm for cluster in seen for sm in cluster}
    for cluster in seen:
        met = {gpc[sm] for sm in cluster}
        gpc = {sm: gpc[cluster[0]] if each in met else each for sm, each in gpc.items()}
    return gpc


def forgets_the_table(numbers, gpcs, together):
    groups = [gpcs[first : first + together] for first in range(0, len(gpcs) - together + 1, together)]
    return sum(len(set(group)) == 1 for group in groups)


def forgets_to_turn_it(numbers, gpcs, together):
    return forgets_the_table(numbers, [gpcs[number] for number in numbers], together)


def with_the_rest(numbers, gpcs, together):
    by_number = [gpc for _, gpc in sorted(zip(numbers, gpcs, strict=True))]
    groups = [by_number[first : first + together] for first in range(0, len(gpcs), together)]
    return sum(len(set(group)) == 1 for group in groups)


WRONG = {
    "bank_conflicts": [
        ("smallest_pitch", lambda row, piece: row + piece, "rows of 132 bytes, pieces of 4: got 136; needed 132"),
        (
            "smallest_pitch",
            lambda row, piece: (row // piece | 1) * piece,
            "rows of 70 bytes, pieces of 4: got 68; needed 76",
        ),
        (
            "smallest_pitch",
            lambda row, piece: (-(-row // 4) | 1) * 4,
            "rows of 128 bytes, pieces of 16: got 132; needed",
        ),
        ("smallest_pitch", lambda row, piece: -(-row // 16) * 16 + piece, "rows of 132 bytes, pieces of 4: got 148"),
        ("count_wavefronts", count_by(lambda byte: byte // 2), "a row of bfloat16: got 2; needed 1"),
        ("count_wavefronts", count_by(lambda byte: byte // 4 % 32), "a column of float, pitch 32: got 1; needed 32"),
        ("count_wavefronts", lanes_of_the_busiest_bank, "a row of bfloat16: got 2; needed 1"),
    ],
    "xor_swizzle": [
        ("padded_columns", lambda rows, cols: 1 << (cols - 1).bit_length(), "1 rows, 6 columns: got 8; needed 6"),
        ("padded_columns", lambda rows, cols: -(-cols // 4) * 4, "1 rows, 1 columns: got 4; needed 1"),
        ("padded_columns", lambda rows, cols: -(-cols // rows) * rows, "5 rows, 1 columns: got 5; needed 8"),
        (
            "padded_columns",
            lambda rows, cols: -(-cols >> rows.bit_length()) << rows.bit_length(),
            "1 rows, 1 columns: got 2; needed 1",
        ),
        (
            "transpose_16",
            transpose_by(across, across),
            "row 0 of the output: got [0, 16, 32, 48, 64, 80, 96, 112, 8, 24",
        ),
        (
            "transpose_16",
            transpose_by(XOR.index_of, lambda block, i, t: across(block, t, i)),
            "row 0 of the output: got [0, 1, 2, 3, 4, 5, 6, 7, 128, 129",
        ),
        (
            "transpose_16",
            transpose_by(XOR.index_of, across, XOR.plain_store, XOR.plain_load),
            "wavefronts: got 288; needed 64",
        ),
    ],
    "swizzle_parameters": [
        (
            "bits_for",
            lambda rows, X, s, N: PARAMETERS.rule(X, s, N)[0],
            "4 rows of 64 elements of 2 bytes, vectors of 8:",
        ),
        (
            "bits_for",
            lambda rows, X, s, N: PARAMETERS.log2(rows),
            "8 rows of 32 elements of 2 bytes, vectors of 8: got 3",
        ),
        (
            "bits_for",
            lambda rows, X, s, N: min(PARAMETERS.rule(X, s, N)[0], PARAMETERS.log2(rows)),
            "2 rows of 32 elements of 2 bytes, vectors of 8: got 1; needed 0",
        ),
        (
            "byte_of",
            lambda row, col, X, s, N: PARAMETERS.swizzle(row * X + col, *PARAMETERS.rule(X, s, N)),
            "(1, 0) of rows of 64 x 2 bytes: got 72; needed 144",
        ),
        (
            "byte_of",
            lambda row, col, X, s, N: s * (row * X + col),
            "(1, 0) of rows of 64 x 2 bytes: got 128; needed 144",
        ),
        (
            "byte_of",
            lambda row, col, X, s, N: PARAMETERS.swizzle(s * (row * X + col), 3, 4, 3),
            "(1, 0) of rows of 32 x 4 bytes: got 144; needed 132",
        ),
    ],
    "solving_for_a_swizzle": [
        (
            "wavefronts_under",
            lambda members, access: 1 + len(set(members) & SOLVING.span(access)),
            "members (9, 18, 36), access [9, 18, 36]: got 4; needed 8",
        ),
        (
            "wavefronts_under",
            lambda members, access: 1 << len(set(members) & set(access)),
            "members (9, 18, 36), access [1, 8, 2]: got 1; needed 2",
        ),
        (
            "wavefronts_under",
            lambda members, access: 8 if SOLVING.span(list(members)) & SOLVING.span(access) - {0} else 1,
            "members (9, 18, 36), access [1, 8, 2]: got 8; needed 2",
        ),
        (
            "wavefronts_by_images",
            lambda access, p: 1 << len(access) - sum(image > 0 for image in images(access, p)),
            "access [1, 8, 16], S<3,0,3>: got 1; needed 2",
        ),
        ("wavefronts_by_images", bits_that_appear, "it raised ValueError: negative shift count"),
        (
            "wavefronts_by_images",
            lambda access, p: max(map(images(access, p).count, images(access, p))),
            "access [1, 2, 24], S<3,0,3>: got 1; needed 2",
        ),
    ],
    "mma_smem_atoms": [
        ("byte_in_tile", along_rows_of_atoms, "(9, 8) of 16 x 64, atoms with rows of 16 bytes: got 1168; needed 400"),
        ("byte_in_tile", swizzled_in_elements, "of 16 x 64, atoms with rows of 32 bytes: got"),
        (
            "byte_in_tile",
            lambda m, k, rows, bits: ATOMS.swizzle(128 * m + 2 * k, bits),
            "(1, 0) of 16 x 64, atoms with rows of 16 bytes: got 128; needed 16",
        ),
        (
            "atom_bits",
            lambda extent, dtype: max(b for b in range(4) if extent % (16 << b) == 0),
            "it raised ValueError",
        ),
        (
            "atom_bits",
            lambda extent, dtype: max(b for b in range(4) if extent % (8 << b) == 0),
            "16 elements of 8 bits: got 1; needed 0",
        ),
        ("atom_bits", lambda extent, dtype: min(3, extent * dtype.width // 8 // 32), "24 elements of 16 bits: got 1"),
    ],
    "fragments_and_ldmatrix": [
        (
            "row_of",
            lambda lane: (lane % 8 + 8 * (lane // 16), 8 * (lane // 8 % 2)),
            "values of thread 0: got [(0, 0), (0, 1), (0, 8), (0, 9), (8, 0)",
        ),
        ("row_of", lambda lane: (lane // 4, 2 * (lane % 4)), "values of thread 0: got [(0, 0), (0, 1), (2, 0)"),
        ("row_of", lambda lane: (lane % 16, 0), "values of thread 0: got [(0, 0), (0, 1), (8, 0), (8, 1), (0, 0)"),
        (
            "stored_at",
            lambda t, v, pitch: of_place(t, v, lambda p: (p % 8, p // 8), pitch),
            "thread 0, value 1, pitch 8",
        ),
        (
            "stored_at",
            lambda t, v, pitch: of_place(t, v, lambda p: divmod(p, 16), pitch),
            "value 1, pitch 8: got 8; needed 1",
        ),
        (
            "stored_at",
            lambda t, v, pitch: of_place(t, v, lambda p: (p % 16, p // 16), 8),
            "value 2, pitch 100: got 64; need",
        ),
    ],
    "matrix_descriptors": [
        (
            "word_at",
            lambda first, k, bits: first + 2 * k,
            "rows of 128 bytes, k = 16: got '0x40000040000100a0'; needed",
        ),
        ("word_at", lambda first, k, bits: first + 2 * k // 16, "rows of 64 bytes, k = 32: got"),
        (
            "word_at",
            lambda first, k, bits: first + (k // (8 << bits) * 128 * (16 << bits) + 2 * k) // 16,
            "rows of 64 bytes, k = 32: got",
        ),
        ("derived_along_m", always_exchanged, "rows of 128 bytes, chunks read from a wrong place, of 1024: got"),
        ("derived_along_m", in_elements, "rows of 128 bytes, chunks read from a wrong place, of 1024: got"),
    ],
    "thread_block_swizzle": [
        (
            "cta_of",
            lambda m, n, group, grid: m // group * group * grid[1] + n * group + m % group,
            "10 x 6 tiles, groups of 8: tile (8, 1): got 56; needed 50",
        ),
        ("cta_of", lambda m, n, group, grid: m * grid[1] + n, "8 x 6 tiles, groups of 4: tile (1, 0): got 6; needed 1"),
        (
            "cta_of",
            lambda m, n, group, grid: m // group * group * grid[0] + n * min(grid[0] - m, group) + m % group,
            "8 x 6 tiles, groups of 4: tile (4, 0): got 32; needed 24",
        ),
        ("in_groups_of_columns", without_min, "10 x 6 tiles, groups of 4: tiles that no CTA computes: got"),
        ("in_groups_of_columns", bands_by_width, "10 x 6 tiles, groups of 4: tiles that no CTA computes: got"),
        ("in_groups_of_columns", down_first, "8 x 8 tiles, groups of 4: CTA 1: got (1, 0); needed (0, 1)"),
    ],
    "serpentine": [
        (
            "k_tile_at",
            lambda i, iteration, k_tiles: i + (iteration & 1) * (k_tiles - 2 * i),
            "step 0 of 1, tile iteration 1: got 1; needed 0",
        ),
        (
            "k_tile_at",
            lambda i, iteration, k_tiles: i + iteration * (k_tiles - 1 - 2 * i),
            "step 0 of 2, tile iteration 2: got 2; needed 0",
        ),
        (
            "k_tile_at",
            lambda i, iteration, k_tiles: k_tiles - 1 - i,
            "step 0 of 2, tile iteration 0: got 1; needed 0",
        ),
        (
            "found_again",
            lambda lines, cache_bytes: [line in lines[:i] for i, line in enumerate(lines)],
            "lines ABCABC, room for 2: got [False, False, False, True, True, True]; needed [False",
        ),
        (
            "found_again",
            lambda lines, cache_bytes: SERPENTINE.hits(lines, cache_bytes - 1),
            "lines ABAB, room for 2: got [False, False, False, False]; needed [False, False, True, True]",
        ),
    ],
    "gpc_remapping": [
        ("groups_of_one_gpc", forgets_the_table, "GPCs abab, numbers [0, 2, 1, 3], 2 together: got 0; needed 2"),
        ("groups_of_one_gpc", forgets_to_turn_it, "GPCs aabbb, numbers [0, 2, 3, 4, 1], 2 together: got 1; needed 0"),
        ("groups_of_one_gpc", with_the_rest, "2 together: got 1; needed 0"),
        ("linked", in_two_passes, "got {6: 4, 7: 5"),
        ("linked", by_first_sm, "[3, 4]]: got {4: 2, 5: 2"),
    ],
    "tile_heuristics": [
        (
            "clusters_to_launch",
            lambda config, m, n, sms: sms // config.cluster,
            "128x256, C of 8192 x 8192, 132 SMs: got 66; needed 64",
        ),
        (
            "clusters_to_launch",
            lambda config, m, n, sms: math.prod(RULE.cluster_tiles(config, m, n)) // RULE.waves(config, m, n, sms),
            "128x64, C of 8192 x 8192, 132 SMs: got 65; needed 66",
        ),
        (
            "idle_clusters",
            lambda config, m, n, sms: RULE.at_once(config, sms) - RULE.clusters(config, m, n, sms),
            "128x256, C of 8192 x 8192, 132 SMs: got 2; needed 32",
        ),
        (
            "idle_clusters",
            lambda config, m, n, sms: math.prod(RULE.cluster_tiles(config, m, n)) % RULE.at_once(config, sms),
            "128x256, C of 8192 x 8192, 132 SMs: got 34; needed 32",
        ),
    ],
    "memory_ceiling": [
        (
            "ctas_needed",
            lambda rate, latency, sms, threads, unroll: -(-rate * latency // (threads * unroll * 16)),
            "4800 GB/s, 700 ns, 132 SMs, 512 threads, 4 vectors each: got 103; needed 1",
        ),
        (
            "ctas_needed",
            lambda rate, latency, sms, threads, unroll: -(-rate * latency // sms // (threads * 16)),
            "512 threads, 4 vectors each: got 4; needed 1",
        ),
        (
            "ctas_needed",
            lambda rate, latency, sms, threads, unroll: rate * latency // sms // (threads * unroll * 16),
            "512 threads, 4 vectors each: got 0; needed 1",
        ),
        (
            "vector_in_order",
            lambda chunk, step, thread, config: step * config.threads + thread,
            "64 threads, 2 vectors each: chunk 1, step 0, warp 1: got [32,",
        ),
        (
            "vector_in_order",
            lambda chunk, step, thread, config: (chunk + step) * config.threads + thread,
            "64 threads, 2 vectors each: chunk 1, step 0, warp 1: got [96,",
        ),
    ],
    "tensor_core_ceiling": [
        (
            "clocks_of",
            lambda config: CORES.flops(config.instruction) / 2 / CORES.MULTIPLY_ADDS[CORES.DTYPES[config.dtype].width],
            "bfloat16, N = 32, A from smem: got 16.0; needed 24",
        ),
        (
            "clocks_of",
            lambda config: CORES.instruction_bytes(config) / CORES.SMEM_BYTES,
            "bfloat16, N = 256, A from smem: got 80.0; needed 128",
        ),
        (
            "clocks_of",
            lambda config: max(32 * (64 + config.n) / 128, CORES.flops(config.instruction) / 4096),
            "bfloat16, N = 32, A from registers: got 24.0; needed 16",
        ),
        (
            "instructions_of_a_thread",
            lambda config: CORES.flops(config.tile) // CORES.flops(config.instruction),
            "got 512; needed 64",
        ),
        (
            "instructions_of_a_thread",
            lambda config: CORES.flops(config.tile) // CORES.flops(config.instruction) // (config.threads // 128),
            "got 256; needed 64",
        ),
    ],
    "tma_copy": [
        (
            "byte_at",
            lambda place, mode, lines: places_of_lines(place, mode, lines),
            "sw32, 16 lines, place",
        ),
        (
            "byte_at",
            lambda place, mode, lines: divmod(TMA.swizzle(place, TMA.MODES[mode]), 256),
            "none, 16 lines, place",
        ),
        ("waits", lambda tiles, stages: [(i % stages, i % 2) for i in range(tiles)], "7 tiles, 4 stages: got"),
        ("waits", lambda tiles, stages: [(i % stages, 0) for i in range(tiles)], "7 tiles, 4 stages: got"),
    ],
    "matrix_transpose": [
        ("diagonal", lambda t, side: (t // side ^ t % side, t % side), "blocks of a square of 6: got"),
        ("diagonal", lambda t, side: (t // side, t % side), "threads 0 to 7, side 8: got [1, 8]; needed [8, 8]"),
        ("diagonal", lambda t, side: (t % side, t % side), "blocks of a square of 8: got [(0, 0), (0, 0)"),
        ("slots_swizzle", lambda pitch, vector: (3, 4, 3), "pitch 256, every 4th row: slots of eight rows: got [0, 0"),
        (
            "slots_swizzle",
            lambda pitch, vector: (3, 4, pitch.bit_length() - 1 + vector),
            "slots of eight rows: got [0, 0",
        ),
        ("slots_swizzle", lambda pitch, vector: (3, 2, 6), "(whether |S| >= B, whether M >= 4): got (True, False)"),
    ],
}


def places_of_lines(place, mode, lines):
    """Without the swizzle."""
    number, inside = divmod(place, 16 << TMA.MODES[mode])
    box, line = divmod(number, lines)
    return line, box * (16 << TMA.MODES[mode]) + inside


def of_place(thread, value, row_and_column, pitch):
    offset = FRAGMENTS.offset
    m, n = row_and_column(offset((4, 8), (32, 1), thread) + offset((2, 2), (16, 8), value))
    return m * pitch + n


def of_page(page):
    """The name of a recipe by that of its page."""
    return next(r.name for r in catalog.recipes() if r.name in (f"foundations/{page}", f"hopper/{page}"))


CASES = [(page, *case) for page, cases in WRONG.items() for case in cases]


@pytest.mark.parametrize(("page", "name", "answer", "said"), CASES)
def test_wrong_answers_are_told_what_they_gave_and_must_give(page, name, answer, said):
    found = {one.name: one for one in exercises.tried(of_page(page), SimpleNamespace(**{name: answer}))}
    assert found[name].status == exercises.WRONG and said in found[name].detail
    assert [one.status for key, one in found.items() if key != name] == [exercises.OPEN]


def test_two_wrong_answers_of_each_exercise_fail():
    assert {of_page(page) for page in WRONG} >= {r.name for r in catalog.recipes() if r.track == "foundations"}
    for page, cases in WRONG.items():
        tried = [name for name, *_ in cases]
        assert [tried.count(name) >= 2 for name in exercises.tasks(of_page(page))] == [True, True]
