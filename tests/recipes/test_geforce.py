"""blackwell/geforce_gemm: addresses made by hand, fragments in place, which tiles are computed, and what fits where."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
import cutlass.cute as cute  # noqa: E402

torch = pytest.importorskip("torch")

import planted  # noqa: E402
from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite  # noqa: E402

from cookbook import access  # noqa: E402
from cookbook.check import compiled as compiling  # noqa: E402
from cookbook.check import layout as layout_check  # noqa: E402
from cookbook.check.evaluated import evaluated  # noqa: E402
from cookbook.check.model.product import simulate  # noqa: E402
from cookbook.layouts import evaluate  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402
from cookbook.swizzle import Swizzle  # noqa: E402

NAME = "blackwell/geforce_gemm"
MODULE = catalog.load(NAME)
ARCHES = ["sm_90a", "sm_120a"]
EACH = [(arch, variant) for arch in ARCHES for variant in MODULE.VARIANTS]
IN_PLACE = [(arch, variant) for arch, variant in EACH if MODULE.VARIANTS[variant].b_slots]
Work = MODULE.Work


# --- addresses ------------------------------------------------------------------------------------------------


def by_hand(config, first, step, piece, k):
    """Where `fetch_fragment` looks in stage 0. first: each thread's row of piece 0, not swizzled; step: rows apart."""
    address = first ^ ((first >> 3) & (0x70 if config.tile_k % 64 == 0 else 0x30))
    return (address ^ (32 * k)) + piece * step * 2 * config.tile_k


class Rows(NamedTuple):
    """What every ldmatrix of an operand reads."""

    first: np.ndarray  # (threads,) addresses of piece 0 and k-block 0 in stage 0, without the swizzle
    at: dict[tuple[int, int], np.ndarray]  # (threads,) addresses in stage 0 by (piece, k-block)
    stage_bytes: set[int]


def rows_of(config, name):
    """Of the tiled copy over the layout, as CuTe evaluates both."""
    found = evaluated(MODULE, cutlass.BFloat16, config)
    layout, copy = found.smem[name], found.copies[f"s2r_{name}"]
    stages = [access.copy_addresses(layout, copy, "src", stage) for stage in range(config.stages)]
    bare = access.copy_addresses(dataclasses.replace(layout, swizzle=Swizzle(0, 4, 3)), copy, "src", 0)
    far = bare - bare[0]  # (instructions, threads): of each from the first, the same for all threads
    assert (far == far[:, :1]).all()
    pieces, rest = np.divmod(far[:, 0], step_of(config, name) * 2 * config.tile_k)
    at = {(int(p), int(r) // 32): row for p, r, row in zip(pieces, rest, stages[0], strict=True)}
    return Rows(bare[0], at, {int(x) for a, b in itertools.pairwise(stages) for x in np.unique(b - a)})


def step_of(config, name):
    return config.step_m if name == "a" else config.step_n


@pytest.mark.parametrize(("arch", "variant"), EACH)
@pytest.mark.parametrize("name", ["a", "b"])
def test_addresses_made_by_hand_are_those_of_the_tiled_copies(arch, variant, name):
    config = MODULE.config_for(arch, variant)
    pieces, rows = (config.fragments_m, config.tile_m) if name == "a" else (config.fragments_n, config.tile_n)
    found = rows_of(config, name)
    assert set(found.at) == set(itertools.product(range(pieces), range(config.k_blocks)))
    for (piece, k), addresses in found.at.items():
        assert np.array_equal(by_hand(config, found.first, step_of(config, name), piece, k), addresses)
    assert found.stage_bytes == {2 * rows * config.tile_k}


@pytest.mark.parametrize(("arch", "variant"), EACH)
def test_pieces_a_wrong_number_of_rows_apart_are_caught(arch, variant):
    """As if all rows of warps lay between two pieces of A, those of the other warpgroup too, or one row fewer."""
    config = MODULE.config_for(arch, variant)
    found = rows_of(config, "a")
    for wrong in (16 * config.warps_m, config.step_m - 1):
        off = {p for (p, k), at in found.at.items() if (by_hand(config, found.first, wrong, p, k) != at).all()}
        assert off == set(range(1, config.fragments_m))  # all but the first


@pytest.mark.parametrize(("arch", "variant"), EACH)
def test_a_slot_of_registers_is_eight_in_a_row(arch, variant):
    """ldmatrix fills registers in the order in which the tiled copy hands them to mma."""
    config = MODULE.config_for(arch, variant)

    def slots(config):
        copies, mma = MODULE.tiled_copies(cutlass.BFloat16, config), MODULE.tiled_mma(cutlass.BFloat16, config)
        buffers = 1 if config.b_slots else 2
        columns = config.step_n * (config.b_slots or config.fragments_n)
        shapes = mma.partition_shape_A((config.tile_m, 16 * buffers)), mma.partition_shape_B((columns, 16 * buffers))
        found = []
        for copy, shape in zip((copies.s2r_a, copies.s2r_b), shapes, strict=True):
            into = copy.get_slice(0).retile(cute.make_rmem_tensor(shape, cutlass.BFloat16))
            found.append(cute.logical_divide(cute.coalesce(into), 8).layout)
        return tuple(found)

    buffers = 1 if config.b_slots else 2
    counts = config.fragments_m * buffers, (config.b_slots or config.fragments_n * buffers)
    for layout, count in zip(evaluate(slots, config), counts, strict=True):
        assert layout.table().size == 8 * count
        assert np.array_equal(layout.table().ravel(order="F"), np.arange(8 * count))


# --- fragments in place ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "variant"), IN_PLACE)
def test_fragments_are_the_mmas_and_none_of_a_released_stage(arch, variant):
    """`multiply_in_place`, followed in numbers: a slot holds the (k-tile, k-block, piece) it is multiplied as."""
    config = MODULE.config_for(arch, variant)
    slots, blocks = config.b_slots, config.k_blocks
    for width in config.widths:
        pieces = width // config.step_n
        assert blocks * pieces % slots == 0 and width % config.epi_n == 0
        stage, b, a = 0, {j: (0, 0, j) for j in range(slots)}, (0, 0)
        for k_tile, k, j in itertools.product(range(3), range(blocks), range(pieces)):
            slot, (further, later) = (k * pieces + j) % slots, divmod(j + slots, pieces)
            assert b[slot] == (k_tile, k, j) and a == (k_tile, k)
            if j == pieces - 1:
                a = (stage, (k + 1) % blocks)
            if k == blocks - 1 and j == pieces - slots:  # `next_stage`: from here on nothing may read the old one
                stage += 1
            b[slot] = (stage, (k + further) % blocks, later)


# --- which tile is next ---------------------------------------------------------------------------------------

SHAPES = [(4096, 4096), (8192, 8192), (1, 1), (256, 192), (257, 193), (1000, 5000), (300, 64), (20000, 130)]


@cute.jit
def all_tiles(
    out: cute.Tensor, down: cutlass.Int32, wide: cutlass.Int32, narrow: cutlass.Int32, config: cutlass.Constexpr
):
    work = Work(down, wide, narrow, cutlass.Int32(1))
    for number in range(cute.size(out, mode=[0])):
        row, column, width = MODULE.work_tile(cutlass.Int32(number), work, config)
        out[number, 0], out[number, 1], out[number, 2] = row, column, width


def tiles(config, m, n, sms=132):
    """(row of cluster tiles, first column, columns) of every tile, by the kernel's own `work_tile`, on a CPU."""
    down, wide = -(-m // (config.tile_m * config.cluster)), MODULE.wide_columns(config, m, n, sms)
    narrow = -(-max(0, n - wide * config.tile_n) // config.tail_n) if config.tail_n else 0
    out = torch.full((down * (wide + narrow), 3), -1, dtype=torch.int32)
    all_tiles(cute.runtime.from_dlpack(out), down, wide, narrow, config)
    return out.numpy() * np.array([1, config.epi_n, config.epi_n])


@pytest.mark.parametrize(("arch", "variant"), EACH)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_tiles_cover_c_once(arch, variant, shape):
    config = MODULE.config_for(arch, variant)
    (m, n), rows = shape, config.tile_m * config.cluster
    found = tiles(config, m, n)
    unit = np.gcd.reduce([config.tile_n, *config.widths])
    cover = np.zeros((-(-m // rows), -(-n // unit) + config.tile_n // unit), int)
    for row, column, width in found:
        assert width in config.widths and column < n and column % config.epi_n == 0
        cover[row, column // unit : (column + width) // unit] += 1
    assert (cover[:, : -(-n // unit)] == 1).all()


def test_a_narrow_tile_after_the_wide_ones():
    """4096 x 4096 on 66 clusters: the narrow tiles have the highest numbers, and begin where the wide ones end."""
    config = MODULE.CONFIG
    found = tiles(config, 4096, 4096)
    widths = found[:, 2].tolist()
    assert widths == sorted(widths, reverse=True) and set(widths) == {config.tile_n, config.tail_n}
    wide = MODULE.wide_columns(config, 4096, 4096, 132)
    assert found[widths.index(config.tail_n), 1] == wide * config.tile_n


@pytest.mark.parametrize("sms", [132, 170, 48])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("arch", ARCHES)
def test_no_other_wide_columns_give_the_busiest_cluster_less(arch, shape, sms):
    """By going through the schedule, tile by tile."""
    config, (m, n) = MODULE.config_for(arch), shape
    clusters, down = sms // config.cluster, -(-m // (config.tile_m * config.cluster))

    def busiest(wide):
        narrow = -(-max(0, n - wide * config.tile_n) // config.tail_n)
        order = [config.tile_n] * (down * wide) + [config.tail_n] * (down * narrow)
        return max(sum(order[first::clusters]) for first in range(clusters))

    costs = [busiest(wide) for wide in range(-(-n // config.tile_n) + 1)]
    assert costs[MODULE.wide_columns(config, m, n, sms)] == min(costs)


def test_without_narrow_tiles_all_columns_are_wide():
    square = MODULE.VARIANTS["square"]
    assert [MODULE.wide_columns(square, 999, n, 132) for n in (1, 256, 257, 4096)] == [1, 1, 2, 16]


# --- the data path --------------------------------------------------------------------------------------------


def test_warps_dealt_rows_in_turn_are_caught(monkeypatch):
    """Without the permutation a piece of 64 rows is in both warpgroups, and no warpgroup can send it."""

    def in_turn(dtype, config=MODULE.CONFIG):
        warps = cute.make_layout((config.warps_m, config.warps_n, 1), stride=(config.warps_n, 1, 0))
        return cute.make_tiled_mma(MODULE.mma_op(dtype), warps, permutation_mnk=(64, config.step_n, 16))

    config = dataclasses.replace(MODULE.CONFIG, swizzle_size=7)  # one that nobody else has evaluated
    monkeypatch.setattr(MODULE, "tiled_mma", in_turn)
    a, b = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((256, 64), (64, 192)))
    with pytest.raises(ValueError, match=r"r2s_c|warpgroup"):
        simulate(MODULE, a, b, cutlass.BFloat16, config)


@pytest.mark.parametrize(("arch", "variant"), EACH)
def test_no_copy_has_a_conflict(arch, variant):
    config = MODULE.config_for(arch, variant)
    assert layout_check.predicted_wavefronts(MODULE, cutlass.BFloat16, config) == {"s2r": 4, "r2s": 4}


FAULTS = [
    ("a stage is read before it is full",
     In("next_stage").drop("_pipe.consumer_wait(_read)") + In("multiply_tile").drop("_pipe.consumer_wait(_read)"),
     ("race", "early arrival")),
    ("a stage is filled before it is empty", In("load_tile").drop("_pipe.producer_acquire(_state)"), ("race",)),
    ("a stage counts the warps of one CTA only",
     In("make_pipeline").replace("8 * _config.cluster", "8"), ("race", "deadlock")),
    ("C is written while TMA reads it", In("store").replace("_config.epi_stages - 1", "1"), ("race",)),
]  # fmt: skip


SUITES = [Suite(("pipeline",), [Mutation(NAME, *fault[:2], "square, shared B") for fault in FAULTS])]


@pytest.mark.parametrize(("fault", "rules"), list(zip(SUITES[0].faults, (f[2] for f in FAULTS), strict=True)), ids=str)
def test_a_fault_in_the_pipeline_is_found(fault, rules, tmp_path):
    """By going through the orders in which the warps may run; without the fault none is found: level "pipeline"."""
    found = planted.caught(fault, SUITES[0].levels, tmp_path)
    planted.check(found, fault.recipe, fault.what, fault.variant)
    assert found.by in rules


# --- sizes ----------------------------------------------------------------------------------------------------


def test_each_variant_changes_what_its_name_says():
    changed = []
    for before, after in itertools.pairwise(dataclasses.asdict(c) for c in MODULE.VARIANTS.values()):
        changed.append({field for field in before if before[field] != after[field]})
    shape = {"tile_m", "tile_n", "stages", "warps_m", "warps_n", "b_slots", "swizzle_size", "epi_stages"}
    assert changed == [{"cluster"}, shape, {"tail_n"}]


@pytest.mark.parametrize("variant", MODULE.VARIANTS)
def test_a_geforce_keeps_the_tile_and_shares_nothing(variant):
    large, small = (MODULE.config_for(arch, variant) for arch in ARCHES)
    assert (small.tile_m, small.tile_n, small.cluster) == (large.tile_m, large.tile_n, 1)
    assert small.smem_bytes <= compiling.SMEM_LIMITS[120] < large.smem_bytes <= compiling.SMEM_LIMITS[90]
    assert MODULE.config_for("sm_121a", variant) == small and MODULE.config_for("", variant) == large


@pytest.mark.parametrize(("arch", "variant", "multicasts"), [
    ("sm_90a", "square", False), ("sm_90a", "square, shared B", True), ("sm_120a", "square, shared B", False),
])  # fmt: skip
def test_only_a_cluster_multicasts(arch, variant, multicasts):
    try:
        compiled = compiling.compile_recipe(NAME, arch, "float16", config=MODULE.config_for(arch, variant))
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))
    assert (".multicast::cluster" in compiled.ptx) == multicasts == (compiled.count("UTMALDG.2D.MULTICAST") > 0)
    assert compiled.spills == 0
