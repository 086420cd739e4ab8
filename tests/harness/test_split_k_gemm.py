"""K divided in a cluster on Hopper: every division, the rule, who does which part; and faults that must be found."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from mutations import Mutation, mutant  # noqa: E402
from planted import Suite, check_caught  # noqa: E402

from cookbook.harness import catalog, compiling  # noqa: E402
from cookbook.harness.evaluated import evaluated  # noqa: E402
from cookbook.harness.layout_check import check_layouts  # noqa: E402
from cookbook.harness.mailbox_check import mailbox_findings  # noqa: E402
from cookbook.harness.walk import walk, walk_evaluated  # noqa: E402
from cookbook.layouts import Layout  # noqa: E402

NAME = "hopper/split_k_gemm"
BF16 = cutlass.BFloat16
SMS = 132


def integers(m, n, k, seed=0):
    generator = np.random.default_rng(seed)
    return (generator.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))


def rounded(product):
    return torch.from_numpy(np.ascontiguousarray(product)).bfloat16().float().numpy()


def configured(**changes):
    module = catalog.load(NAME)
    return module, dataclasses.replace(module.CONFIG, **changes)


def failures(findings):
    return {f.name: f.detail for f in findings if not f.ok}


@pytest.mark.parametrize(("tile_n", "split_k"), [(8, 1), (8, 2), (8, 4), *product((16, 64, 128), (1, 2, 4, 8))])
@pytest.mark.parametrize("tile_m", [64, 128])
def test_every_width_and_division_of_k(tile_m, tile_n, split_k):
    """Layouts; the product with fewer k-tiles than CTAs, as many, and more; and more rows than one tile."""
    module, config = configured(tile_m=tile_m, tile_n=tile_n, split_k=split_k)
    assert not failures(check_layouts(module, BF16, config))
    assert config.smem_bytes <= 227 * 1024 and config.stages >= 5
    for m, n, k in ((5, 200, 64), (tile_n + 1, 40, 64 * split_k), (3, 130, 1000)):
        a, b = integers(m, n, k)
        assert np.array_equal(walk(module, a, b, BF16, config), rounded(a @ b))


@pytest.mark.parametrize(("tile_n", "split_k", "per_sm"), [(64, 2, 1), (16, 2, 1), (64, 8, 2)])
def test_k_tiles_of_two_atoms(tile_n, split_k, per_sm):
    """tile_k = 128: half as many barriers, and 256 bytes of a row at a time."""
    module, config = configured(tile_k=128, tile_n=tile_n, split_k=split_k, per_sm=per_sm)
    assert not failures(check_layouts(module, BF16, config))
    a, b = integers(70, 130, 1000)
    assert np.array_equal(walk(module, a, b, BF16, config), rounded(a @ b))
    assert compiling.compile_recipe(NAME, "sm_90a", "bfloat16", config=config).spills == 0


def test_a_thread_without_a_sum_for_every_cta_is_refused():
    with pytest.raises(ValueError, match="split_k: got 8; needed a divisor of 4"):
        configured(tile_n=8, split_k=8)


@pytest.mark.parametrize("variant", list(catalog.load(NAME).VARIANTS))
def test_what_is_sent_and_stored_is_what_the_sums_need(variant):
    """In the machine code: as many st.async and stores as a thread's sums take, and no spill."""
    config = catalog.load(NAME).VARIANTS[variant]
    built = compiling.compile_recipe(NAME, "sm_90a", "float16", config=config)
    vectors = config.sums // min(config.share, 4) if config.split_k > 1 else 0
    assert built.count("STAS") == built.ptx.count("st.async") == vectors
    assert built.count("STG.E.U16") == config.share
    assert built.count("ACQBULK") == 2  # who loads and who stores wait for the kernel before
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
    ("old", "new"),
    [
        ("rank * each, each)", "rank, each)"),
        ("rank * each, each)", "0, each)"),
        ("(k_tiles + config.split_k - 1)", "k_tiles"),
        ("cta % config.split_k", "cta % 2"),
    ],
)
def test_a_wrong_part_of_k_is_found(old, new, tmp_path):
    """Planted. The model walks the parts by their rule, not by the kernel's line: so that line is looked at here."""
    assert uncovered(mutant(Mutation(NAME, "another part of K", old, new), tmp_path))


def test_the_rule_takes_the_cheapest_and_each_variant_has_its_products():
    module = catalog.load(NAME)
    made_for = {
        "128x128": (4096, 4096, 4096),
        "128x128 in 2": (128, 4096, 4096),
        "128x64 in 2": (64, 8192, 8192),
        "64x64 in 2": (512, 512, 512),
        "64x64 in 4": (64, 1024, 8192),
        "128x16 in 2": (16, 8192, 8192),
        "64x16 in 4": (16, 1024, 4096),
    }
    assert list(made_for) == list(module.VARIANTS)
    for variant, shape in made_for.items():
        costs = {name: module.cost(config, *shape, SMS) for name, config in module.VARIANTS.items()}
        assert module.choose(*shape, SMS) == variant == min(costs, key=costs.get)


def test_the_rule_counts_the_clusters_that_fit():
    """Of two CTAs as many as there are pairs of SMs; of four, 30 on 132 SMs; and each turn of them costs its clocks."""
    module = catalog.load(NAME)
    fits = {name: module.clusters_at_once(config, SMS) for name, config in module.VARIANTS.items()}
    assert {fits[name] for name in fits if name.endswith("in 2")} == {66}
    assert {fits[name] for name in fits if name.endswith("in 4")} == {30}
    config = module.VARIANTS["64x64 in 2"]
    loaded, exchange = 512 * config.stage_bytes, module.EXCHANGE + config.mail_bytes / module.MAIL
    alone = dataclasses.replace(config, per_sm=1)  # two turns one after the other, or two CTAs side by side
    assert module.cost(alone, 64, 64 * 67, 65536, SMS) == 2 * (loaded / module.SM_LOAD + exchange)
    assert module.cost(config, 64, 64 * 67, 65536, SMS) == 2 * loaded / module.SM_LOAD + exchange
    assert module.cost(config, 64, 64 * 66, 65536, SMS) == 132 * loaded / module.L2 + exchange


def test_what_is_sent_to_another_place_is_caught():
    """A mailbox whose senders share places, or whose vectors overlap: a finding, and a wrong or a refused product."""
    module, config = configured()
    right = evaluated(module, BF16, config)
    shape = right.mailbox.shape
    threads, vectors = shape[0], shape[1][1]
    step = 4 * threads
    a, b = integers(64, 128, 512)
    for stride in ((4, (1, step), 0), (2, (1, step), step * vectors), (4, (1, step), step)):
        wrong = dataclasses.replace(right, mailbox=Layout(shape, stride))
        assert "mailbox.bijective" in failures(mailbox_findings(wrong, config))
        try:
            got = walk_evaluated(wrong, wrong, b.T, a.T, "bfloat16", config).T
        except ValueError as refused:
            assert "needed" in str(refused)
        else:
            assert (got != rounded(a @ b)).mean() > 0.25
    assert not failures(mailbox_findings(right, config))


def test_a_mailbox_for_another_number_of_threads_is_a_finding():
    """One warpgroup's, where two multiply."""
    module, config = configured()
    right = evaluated(module, BF16, config)
    half = dataclasses.replace(right, mailbox=Layout((128, (4, 4), 2), (4, (1, 512), 2048)))
    assert {"mailbox.bijective", "mailbox.fits"} <= set(failures(mailbox_findings(half, config)))


def test_conflicts_in_a_mailbox_are_findings():
    """A thread's vectors side by side: one thread after the other writes to the same banks."""
    module, config = configured()
    found = evaluated(module, BF16, config)
    threads, (vec, vectors), senders = found.mailbox.shape
    strides = (vec * vectors, (1, vec), vec * vectors * threads)
    spread = dataclasses.replace(found, mailbox=Layout((threads, (vec, vectors), senders), strides))
    assert set(failures(mailbox_findings(spread, config))) == {"mailbox.wavefronts"}


TWO = "128x64 in 2"
FAULTS = [
    (TWO, "sums are sent to CTAs that may not have begun", "cute.arch.cluster_wait()  # all", "pass  # all"),
    (TWO, "the mailbox's barrier is made after the cluster's", "cute.arch.cluster_arrive_relaxed()\n    return pipe",
     "cute.arch.cluster_arrive_relaxed()\n    cute.arch.mbarrier_init(arrived, 1)\n    return pipe"),
    (TWO, "the mailbox is read before it is full", "cute.arch.mbarrier_wait(arrived, 0)", "pass"),
    (TWO, "half of the mail is expected", "expect_tx(arrived, config.mail_bytes)",
     "expect_tx(arrived, config.mail_bytes // 2)"),
    ("64x64 in 4", "all senders write to one place", "(None, i), part.rank]", "(None, i), 0]"),
    (TWO, "the mailbox lies in the first stages", "sMail = smem.allocate_tensor(cutlass.Float32, mailbox(config), 16)",
     "sMail = cute.make_tensor(cute.recast_ptr(sA.iterator, dtype=cutlass.Float32), mailbox(config))"),
    (TWO, "one warpgroup of two gives a stage back", "Agent.Thread, 4 * config.warpgroups)", "Agent.Thread, 4)"),
    (TWO, "a stage is given back while it is read", "warpgroup.wait_group(1)", "warpgroup.wait_group(2)"),
    (TWO, "sums are sent before they are there", "warpgroup.wait_group(0)", "pass"),
    (TWO, "A and B are loaded too early", "cute.arch.griddepcontrol_wait()  # before", "pass  # before"),
    (TWO, "C is stored too early", "cute.arch.griddepcontrol_wait()  # whoever", "pass  # whoever"),
]  # fmt: skip


SUITES = [Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS])]


@pytest.mark.parametrize("fault", SUITES[0].faults, ids=str)
def test_planted_pipeline_fault_is_found(fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, SUITES[0], tmp_path)
