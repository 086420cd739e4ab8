"""K divided in a cluster on Hopper: every division, the rule, who does which part; and faults that must be found."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from edits import In  # noqa: E402
from mutations import Mutation, mutant  # noqa: E402
from planted import Suite, check_caught  # noqa: E402
from rules import lost, recorded  # noqa: E402
from walked import failures, integers, rounded, with_changes  # noqa: E402

from cookbook.check import compiled  # noqa: E402
from cookbook.check.evaluated import evaluated  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate, simulate_evaluated  # noqa: E402
from cookbook.check.reduction_buffer import reduction_buffer_findings  # noqa: E402
from cookbook.layouts import Layout  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

NAME = "hopper/split_k_gemm"
BF16 = cutlass.BFloat16
SMS = 132
configured = partial(with_changes, NAME)


@pytest.mark.parametrize(("tile_n", "split_k"), [(8, 1), (8, 2), (8, 4), *product((16, 64, 128), (1, 2, 4, 8))])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_every_width_and_division_of_k(tile_m, tile_n, split_k):
    """Layouts; the product with fewer k-tiles than CTAs, as many, and more; and more rows than one tile."""
    module, config = configured(tile_m=tile_m, tile_n=tile_n, split_k=split_k, per_sm=1)
    assert not failures(check_layouts(module, BF16, config))
    assert config.smem_bytes <= 227 * 1024 and config.stages >= 5
    for m, n, k in ((5, 200, 64), (tile_n + 1, 40, 64 * split_k), (3, 130, 1000)):
        a, b = integers(m, n, k)
        assert np.array_equal(simulate(module, a, b, BF16, config), rounded(a @ b))


@pytest.mark.parametrize(("tile_n", "split_k", "per_sm"), [(64, 2, 1), (16, 2, 1), (64, 8, 2)])
def test_k_tiles_of_two_atoms(tile_n, split_k, per_sm):
    """tile_k = 128: half as many barriers, and 256 bytes of a row at a time."""
    module, config = configured(tile_m=128, tile_k=128, tile_n=tile_n, split_k=split_k, per_sm=per_sm)
    assert not failures(check_layouts(module, BF16, config))
    a, b = integers(70, 130, 1000)
    assert np.array_equal(simulate(module, a, b, BF16, config), rounded(a @ b))
    assert compiled.compile_recipe(NAME, "sm_90a", "bfloat16", config=config).spills == 0


def test_a_thread_without_a_sum_for_every_cta_is_refused():
    with pytest.raises(ValueError, match="split_k: got 8; needed a divisor of 4"):
        configured(tile_n=8, split_k=8)


@pytest.mark.parametrize("variant", list(catalog.load(NAME).VARIANTS))
def test_what_is_sent_and_stored_is_what_the_sums_need(variant):
    """In the machine code: as many st.async and stores as a thread's sums take, and no spill."""
    config = catalog.load(NAME).VARIANTS[variant]
    built = compiled.compile_recipe(NAME, "sm_90a", "float16", config=config)
    vectors = config.accumulators // config.vec if config.split_k > 1 else 0
    assert built.count("STAS") == built.ptx.count("st.async") == vectors
    assert built.count("STG.E.U16") == config.share
    assert built.count("ACQBULK") == 2  # who loads and who stores wait for the kernel before
    assert built.count("WARPGROUP.DEPBAR") == 2  # in the loop and after it, not after every wgmma
    assert built.spills == 0 and built.registers * config.threads * config.per_sm <= 65536
    assert config.per_sm * (config.smem_bytes + 1024) <= 228 * 1024
    assert built.ptx.count("barrier.cluster.wait") == (2 if config.split_k > 1 else 0)


def uncovered(module):
    """Variants and sizes whose parts are not every tile and all of K, once, in clusters that share a tile."""
    wrong = []
    for (name, config), (m, n, k_tiles) in product(module.VARIANTS.items(), [(300, 500, 7), (1, 1, 1), (128, 64, 5)]):
        down, across, ctas = -(-m // config.tile_m), -(-n // config.tile_n), config.split_k
        parts = [module.part_of(cta, (m, n), k_tiles, config) for cta in range(down * across * ctas)]
        done = [(p.m, p.n, k) for p in parts for k in range(p.first, p.first + p.k_tiles) if k < k_tiles]
        clusters = [parts[first : first + ctas] for first in range(0, len(parts), ctas)]
        together = all(len({p[:2] for p in c}) == 1 and [p.rank for p in c] == list(range(ctas)) for c in clusters)
        alike = len({p.k_tiles for p in parts}) == 1 and parts[0].k_tiles > 0
        if not (sorted(done) == list(product(range(down), range(across), range(k_tiles))) and together and alike):
            wrong.append((name, m, n, k_tiles))
    return wrong


def test_parts_cover_every_tile_and_all_of_k_once():
    """Also where k-tiles are no multiple of the CTAs: a part may lie outside K, some or all of it; none is shorter."""
    module = catalog.load(NAME)
    assert uncovered(module) == []
    last = module.part_of(3, (64, 64), 5, module.VARIANTS["64x64 in 4"])
    assert last.first >= 5 and last.k_tiles == 2  # it multiplies zeros


@pytest.mark.parametrize(
    ("edit"),
    [
        (In("part_of").replace("_rank * _each", "_rank")),
        (In("part_of").replace("_rank * _each", "0")),
        (In("part_of").replace("_k_tiles + _config.split_k - 1", "_k_tiles")),
        (In("part_of").replace("_cta % _config.split_k", "_cta % 2")),
    ],
)
def test_a_wrong_part_of_k_is_found(edit, tmp_path):
    """The model simulates the parts by their rule, not by the kernel's line: so that line is looked at here."""
    assert uncovered(mutant(Mutation(NAME, "another part of K", edit), tmp_path))


MADE_FOR = {
    "128x128": (4096, 4096, 4096),
    "128x128 in 2": (1024, 1024, 4096),
    "64x128 in 2": (128, 4096, 4096),
    "64x64": (768, 768, 768),
    "64x64 in 2": (64, 4096, 4096),
    "64x64 in 4": (64, 1024, 8192),
    "64x32 in 2": (32, 8192, 8192),
    "64x16 in 2": (16, 1024, 4096),
}


def test_the_rule_takes_the_cheapest_and_each_variant_is_taken():
    module = catalog.load(NAME)
    assert list(MADE_FOR) == list(module.VARIANTS)
    for variant, shape in MADE_FOR.items():
        costs = {name: module.cost(config, *shape, SMS) for name, config in module.VARIANTS.items()}
        assert module.choose(*shape, SMS) == variant == min(costs, key=costs.get)


def test_the_rule_loses_little_of_what_was_recorded():
    module, measured = catalog.load(NAME), recorded(NAME)
    assert len(measured) >= 10
    losses = lost(measured, module.VARIANTS, lambda *shape: module.choose(*shape, SMS))
    assert max(losses) < 0.1 and np.mean(losses) < 0.01
    for one in module.VARIANTS:  # no variant is as good for all of them
        assert np.mean(lost(measured, module.VARIANTS, lambda *_, one=one: one)) > 0.4


def test_rule_predicts_the_times_of_the_variants_that_divide_k():
    """The better a variant is, the nearer."""
    module = catalog.load(NAME)
    near, far = [], []
    for shape, times in recorded(NAME).items():
        for config, us in zip(module.VARIANTS.values(), times, strict=True):
            if config.split_k > 1:
                off = abs(np.log(module.cost(config, *shape, SMS) / 1000 / us))
                (near if us < 1.1 * min(times) else far).append(off)
    assert max(near) < 0.2 and np.mean(near) < 0.07
    assert max(far) < 0.4 and np.mean(far) < 0.15


def differences(gpu, every=True):
    """log(predicted / recorded) of each time, less of those that are far from the fastest of their size."""
    module = catalog.load(NAME)
    return np.array(
        [
            min(times) / us * np.log(module.cost(config, *shape, SMS, gpu) / 1000 / us)
            for shape, times in recorded(NAME).items()
            for config, us in zip(module.VARIANTS.values(), times, strict=True)
            if every or config.split_k > 1
        ]
    )


def misfit(gpu, every=True):
    """Root mean square of the differences."""
    return np.sqrt(np.mean(differences(gpu, every) ** 2))


def test_no_other_figures_fit_the_records_much_better():
    """Least squares, from the recipe's own figures: Gauss-Newton on their logarithms, half a step each."""
    module = catalog.load(NAME)
    logs, nudge = np.log(module.H200), 1e-4
    for _ in range(15):
        at = differences(module.Figures(*np.exp(logs)))
        moved = [differences(module.Figures(*np.exp(logs + nudge * unit))) for unit in np.eye(len(logs))]
        slopes = (np.array(moved) - at).T / nudge
        logs = logs - 0.5 * np.linalg.lstsq(slopes, at, rcond=None)[0]
    assert misfit(module.Figures(*np.exp(logs))) <= misfit(module.H200) < 1.2 * misfit(module.Figures(*np.exp(logs)))


@pytest.mark.parametrize("figure", catalog.load(NAME).Figures._fields)
def test_no_figure_of_the_rule_is_idle(figure):
    """Without it the times are predicted less well: much less, but for the latency: the load of an SM is near."""
    module = catalog.load(NAME)
    free = module.H200._replace(**{figure: 1e-9 if figure in ("start", "latency") else 1e12})
    assert misfit(module.H200, every=False) < 0.08
    assert misfit(free, every=False) > (1.05 if figure == "latency" else 1.3) * misfit(module.H200, every=False)


def test_the_rule_grows_with_the_work_and_not_with_the_gpu():
    """More of K, more whole tiles either way: never cheaper. More SMs: never dearer."""
    module = catalog.load(NAME)
    for config in module.VARIANTS.values():
        step = config.tile_k * config.split_k
        costs = {
            "k": [module.cost(config, 64, 4096, step * i, SMS) for i in range(1, 40)],
            "n": [module.cost(config, 100, config.tile_m * i, 4096, SMS) for i in range(1, 200)],
            "m": [module.cost(config, config.tile_n * i, 2048, 4096, SMS) for i in range(1, 40)],
            "sms": [module.cost(config, 64, 8192, 4096, sms) for sms in range(400, 16, -1)],
        }
        for name, values in costs.items():
            assert all(0 < x <= y for x, y in pairwise(values)), (config, name)


def test_what_lies_outside_costs_more_than_what_is_read():
    """Fewer rows in the same tile are dearer, as was measured; where a tile is full, nothing lies outside."""
    module = catalog.load(NAME)
    config = module.VARIANTS["64x64 in 2"]
    terms = [module.nanoseconds(config, m, 8192, 8192, SMS) for m in (64, 32, 16)]
    assert terms[0]["L2"] == 2 * 8192 * (8192 + 128 * 64) / module.H200.l2
    assert terms[0]["L2"] < terms[1]["L2"] < terms[2]["L2"]
    costs = [module.cost(config, m, 8192, 8192, SMS) for m in (64, 32, 16)]
    assert costs == sorted(costs) and costs[2] > 1.3 * costs[0]


def test_the_rule_counts_the_clusters_that_fit():
    """Of two CTAs as many as there are pairs of SMs; of four, 30 on 132 SMs; CTAs side by side, or in turns."""
    module = catalog.load(NAME)
    fits = {name: module.clusters_at_once(config, SMS) for name, config in module.VARIANTS.items()}
    assert {fits[name] for name in fits if name.endswith("in 2")} == {66}
    assert {fits[name] for name in fits if name.endswith("in 4")} == {30}
    config, gpu = module.VARIANTS["64x64 in 2"], module.H200
    alone = dataclasses.replace(config, per_sm=1)
    for each, tiles, ctas, turns in ((config, 66, 1, 1), (config, 67, 2, 1), (alone, 67, 2, 2), (config, 133, 3, 2)):
        terms = module.nanoseconds(each, 64, 64 * tiles, 65536, SMS)
        assert terms["load"] == ctas * 512 * each.stage_bytes / module.SM_LOAD
        assert terms["multiply"] == ctas * 512 * 4 * 32 / module.GHZ
        assert terms["wait"] == turns * 512 / each.stages * gpu.latency
        assert terms["start"] == turns * gpu.start
        assert terms["send"] == turns * (64 * 64 * 4 + 64 * 64 * 2 / 2) / gpu.send


def test_weight_that_l2_cannot_hold_is_read_again_in_each_turn():
    module = catalog.load(NAME)
    config = module.VARIANTS["64x16 in 2"]
    small, large = (4096, 4096), (8192, 8192)
    memory = {
        (m, shape): module.nanoseconds(config, m, *shape, SMS)["memory"] * module.H200.memory
        for m in (16, 64)
        for shape in (small, large)
    }
    assert memory[64, small] - memory[16, small] == pytest.approx(2 * 48 * (4096 + 4096))
    assert memory[64, large] - memory[16, large] == pytest.approx(2 * 48 * (8192 + 8192) + 3 * 2 * 8192 * 8192)


def test_what_is_sent_to_another_place_is_caught():
    """Senders that share places, or vectors that overlap: a finding, and a wrong or a refused product."""
    module, config = configured()
    right = evaluated(module, BF16, config)
    shape = right.reduction_buffer.shape
    threads, vectors = shape[0], shape[1][1]
    step = 4 * threads
    a, b = integers(64, 128, 512)
    for stride in ((4, (1, step), 0), (2, (1, step), step * vectors), (4, (1, step), step)):
        wrong = dataclasses.replace(right, reduction_buffer=Layout(shape, stride))
        assert "reduction_buffer.bijective" in failures(reduction_buffer_findings(wrong, config))
        try:
            got = simulate_evaluated(wrong, wrong, b.T, a.T, "bfloat16", config).T
        except ValueError as refused:
            assert "needed" in str(refused)
        else:
            assert (got != rounded(a @ b)).mean() > 0.25
    assert not failures(reduction_buffer_findings(right, config))


def test_a_reduction_buffer_for_other_threads_is_a_finding():
    """One warpgroup's, where two multiply."""
    module, config = configured(tile_m=128, per_sm=1)
    right = evaluated(module, BF16, config)
    half = dataclasses.replace(right, reduction_buffer=Layout((128, (4, 4), 2), (4, (1, 512), 2048)))
    assert {"reduction_buffer.bijective", "reduction_buffer.fits"} <= set(
        failures(reduction_buffer_findings(half, config))
    )


def test_conflicts_in_a_reduction_buffer_are_findings():
    """A thread's vectors side by side: one thread after the other writes to the same banks."""
    module, config = configured()
    found = evaluated(module, BF16, config)
    threads, (vec, vectors), senders = found.reduction_buffer.shape
    strides = (vec * vectors, (1, vec), vec * vectors * threads)
    spread = dataclasses.replace(found, reduction_buffer=Layout((threads, (vec, vectors), senders), strides))
    assert set(failures(reduction_buffer_findings(spread, config))) == {"reduction_buffer.wavefronts"}


TWO = "64x64 in 2"
FAULTS = [
    (TWO, "sums are sent to CTAs that may not have begun", In("exchange").drop("cute.arch.cluster_wait()")),
    (TWO, "the reduction buffer's barrier is made after the cluster's",
     In("set_up").where("_arrived = _.allocate_array(cutlass.Int64, 1)").insert_before("return Cta(...)",
      "cute.arch.mbarrier_init(_arrived, 1)")),
    (TWO, "the reduction buffer is read before it is full",
     In("exchange").drop("cute.arch.mbarrier_wait(_arrived, 0)")),
    (TWO, "half of the bytes of the reduction are expected",
     In("expect_shares").replace("_config.reduction_bytes", "_config.reduction_bytes // 2")),
    ("64x64 in 4", "all senders write to one place", In("exchange").replace("_part.rank", "0")),
    (TWO, "the reduction buffer lies in the first stages",
     In("set_up").where("_sA = _.allocate_tensor(_, _.a.outer, ...)")
      .replace("_.allocate_tensor(cutlass.Float32, reduction_buffer(_config), 16)",
      "cute.make_tensor(cute.recast_ptr(_sA.iterator, dtype=cutlass.Float32), reduction_buffer(_config))")),
    ("128x128 in 2", "one warpgroup of two gives a stage back",
     In("make_pipeline").replace("4 * _config.warpgroups", "4")),
    (TWO, "a stage is given back while it is read",
     In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)")),
    (TWO, "sums are sent before they are there", In("consume").drop("warpgroup.wait_group(0)")),
    (TWO, "A and B are loaded too early", In("produce").drop("cute.arch.griddepcontrol_wait()")),
    (TWO, "C is stored too early", In("kernel").drop("cute.arch.griddepcontrol_wait()")),
]  # fmt: skip


SUITES = [Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS])]


@pytest.mark.parametrize("fault", SUITES[0].faults, ids=str)
def test_planted_pipeline_fault_is_found(fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, SUITES[0], tmp_path)
