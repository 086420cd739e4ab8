"""hopper/pdl_chain: what comes before griddepcontrol.wait, what a chain launches and refuses; and planted faults."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402
from pretend import pretended  # noqa: E402
from walked import failures, integers, rounded  # noqa: E402

from cookbook.check import compiled, pipeline, product  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

NAME = "hopper/pdl_chain"
BF16 = cutlass.BFloat16
MODULE = catalog.load(NAME)
SM_SMEM = 228 * 1024
TILES = MODULE.TILES


def sizes(tile) -> tuple[int, ...]:
    return tile.tile_m, tile.tile_n, tile.tile_k, tile.stages


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, sizes(tile))))
def test_layouts_and_product_of_every_tile(tile):
    """Ragged in M, N and K; C by vectors of 8 elements and by single ones, down the rows of the swapped product."""
    assert not failures(check_layouts(MODULE, BF16, tile))
    for m, n, k in ((5, 200, 64), (tile.tile_n + 1, tile.tile_m + 3, 3 * tile.tile_k + 8), (3, 130, 1000)):
        a, b = integers(m, n, k)
        assert np.array_equal(simulate(MODULE, a, b, BF16, tile), rounded(a @ b))


@pytest.mark.parametrize(
    "variant", [pytest.param(x, marks=pytest.mark.slow if n else ()) for n, x in enumerate(MODULE.VARIANTS)]
)
def test_what_matmul_takes_for_large_products_is_followed_too(variant):
    """Levels look at VARIANTS, which have the first tile. The last one, in every order and to each element of C."""
    config = MODULE.tiled(MODULE.VARIANTS[variant], TILES[-1])
    run = pipeline.Run(MODULE, "sm_90a", BF16, config)
    explored = pipeline.explored(run)
    assert explored and all(one.ok for one in explored)
    found = product.computed(run)
    assert found and all(one.ok for one in found)


def test_the_tile_is_the_smallest_whose_ctas_run_at_once():
    for m, n in ((512, 512), (1024, 1024), (1, 1), (64, 8192), (4096, 4096)):
        taken = MODULE.config_of(MODULE.DEFAULT, m, n, 132)
        at_once = [tile for tile in TILES if -(-n // tile.tile_m) * -(-m // tile.tile_n) <= 132]
        assert sizes(taken) == sizes(at_once[0] if at_once else TILES[-1])


def test_a_weight_is_loaded_early_where_two_kernels_have_room():
    for size, variant in ((64, "early weight"), (512, "early weight"), (1024, "late weight"), (4096, "late weight")):
        assert MODULE.in_chain(size, size, 132) == variant
    assert MODULE.in_chain(512, 512, 127) == "late weight"  # 64 CTAs, two times


@cache
def built(variant: str):
    return compiled.compile_recipe(NAME, "sm_90a", "bfloat16", config=MODULE.VARIANTS[variant])


@pytest.mark.parametrize("variant", MODULE.VARIANTS)
def test_what_comes_before_the_wait(variant):
    """In the PTX: loads of the weight alone, where it is early; no store, no spill."""
    config, code = MODULE.VARIANTS[variant], built(variant)
    before = code.ptx[: code.ptx.index("griddepcontrol.wait")]
    loads = len(re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared", before))
    boxes = config.tile_k // 64  # TMA's 128-byte mode
    assert loads == boxes * config.early
    assert "st.global" not in before and "mbarrier.init" in before
    assert code.count("ACQBULK") >= 2  # of the warp that loads, and of those that store
    assert code.count("STSM") == config.tile_n // 16 and code.spills == 0


# --- the chain -------------------------------------------------------------------------------------------------------


def weights(*sizes: int, dtype=torch.bfloat16) -> list:
    """Of a chain of these widths, K-major, in rows of whole 16 bytes."""
    made = [torch.zeros(n, -(-k // 8) * 8, dtype=dtype) for k, n in pairwise(sizes)]
    return [each[:, :k].T for each, k in zip(made, sizes, strict=False)]


def test_a_chain_reads_the_kernel_before_and_waits_first(monkeypatch):
    module = pretended(NAME, monkeypatch)
    x, given = torch.zeros(40, 64, dtype=torch.bfloat16), weights(64, 24, 333, 100, 8)
    out = module.chain(x, given)
    assert out.shape == (40, 8)
    read = [arguments[0] for _, arguments in module.launched]
    written = [arguments[2] for _, arguments in module.launched]
    assert read == [x.data_ptr(), *written[:-1]] and written[-1] == out.data_ptr()
    assert [arguments[1] for _, arguments in module.launched] == [weight.data_ptr() for weight in given]
    assert written[0] == written[2] != written[1]  # two buffers in turn
    configs = [which[2] for which, _ in module.launched]
    assert [(each.pdl, each.early) for each in configs] == [(False, True)] + 3 * [(True, True)]
    # what is between is written in rows of whole 16 bytes: TMA reads them
    assert all(arguments[4][2] % 8 == 0 for _, arguments in module.launched)


def test_buffers_between_hold_the_widest_and_do_not_overlap(monkeypatch):
    module = pretended(NAME, monkeypatch)
    x = torch.zeros(3, 8, dtype=torch.bfloat16)
    made = module.between(x, weights(8, 7, 1000, 8, 64, 5))
    assert [each.shape for each in made] == [(3, 7), (3, 1000), (3, 8), (3, 64)]
    assert all(each.stride(0) % 8 == 0 and each.data_ptr() % 16 == 0 for each in made)
    for one, other in pairwise(made):
        assert not set(addresses(one)) & set(addresses(other))


def addresses(x) -> list[int]:
    return [x[i].data_ptr() + 2 * j for i in range(x.shape[0]) for j in range(x.shape[1])]


def test_a_chain_of_one_is_a_product(monkeypatch):
    module = pretended(NAME, monkeypatch)
    x, out = torch.zeros(5, 64, dtype=torch.float16), torch.zeros(5, 24, dtype=torch.float16)
    assert module.chain(x, weights(64, 24, dtype=torch.float16), out=out) is out
    ((which, _),) = module.launched
    assert not which[2].pdl


FLAT = torch.zeros(1 << 14, dtype=torch.bfloat16)
SQUARE, SPREAD = FLAT[: 64 * 64].view(64, 64), FLAT[8192:].view(64, 128)[:, :64]
REFUSED = {
    "no sequence": (lambda: {"weights": SQUARE}, TypeError, "weights: got Tensor; needed a list or tuple"),
    "no weight": (lambda: {"weights": []}, ValueError, "weights: got none of them; needed at least one"),
    "another K": (lambda: {"weights": weights(64, 24, 32)[::-1]}, ValueError, r"weights\[0\]: got shape \(24, 32\)"),
    "another dtype": (
        lambda: {"weights": [*weights(64, 24), *weights(24, 8, dtype=torch.float16)]},
        TypeError,
        r"weights\[1\]: got torch.float16; needed torch.bfloat16",
    ),
    "by columns": (
        lambda: {"weights": [torch.zeros(64, 24, dtype=torch.bfloat16)]},
        ValueError,
        r"weights\[0\]: got stride 24 along K",
    ),
    "out is x": (lambda: {"out": SQUARE}, ValueError, "out: got memory that overlaps x"),
    "out is an earlier weight": (
        lambda: {"weights": [SPREAD.T, *weights(64, 64)], "out": FLAT[8320:12416].view(64, 64)},
        ValueError,
        r"out: got memory that overlaps weights\[0\]",
    ),
    "out of another shape": (
        lambda: {"out": torch.zeros(64, 32, dtype=torch.bfloat16)},
        ValueError,
        r"out: got shape \(64, 32\); needed \(64, 64\)",
    ),
    "x is tracked": (
        lambda: {"x": torch.zeros(64, 64, dtype=torch.bfloat16, requires_grad=True)},
        ValueError,
        "x: got requires_grad=True",
    ),
    "x is a list": (lambda: {"x": [1]}, TypeError, "x: got list; needed a torch.Tensor"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_chain_refuses_before_anything_is_launched(what, monkeypatch):
    module = pretended(NAME, monkeypatch)
    change, error, message = REFUSED[what]
    given = {"x": SQUARE, "weights": weights(64, 64, 64)} | change()
    with pytest.raises(error, match=message):
        module.chain(given.pop("x"), given.pop("weights"), **given)
    assert not module.launched


# --- faults ----------------------------------------------------------------------------------------------------------

EARLY = "early weight"
FAULTS = [
    (EARLY, "activations are loaded before the wait", In("produce").drop("cute.arch.griddepcontrol_wait()")),
    (EARLY, "the weight is loaded early, and no one says that it is at rest",
     In("at_rest").replace("('a',) if _config.early else ()", "()")),
    (EARLY, "C is stored before the wait", In("kernel").drop("cute.arch.griddepcontrol_wait()")),
    (EARLY, "an early stage never gets its activations",
     In("produce").replace("for _k_tile in cutlass.range(_ahead, unroll=1): ...\nfor _ in _: ...",
      "for _k_tile in cutlass.range(0, unroll=1): ...\nfor _ in _: ...")),
    (EARLY, "a stage is given back while it is read",
     In("consume").replace("warpgroup.wait_group(1)", "warpgroup.wait_group(2)")),
    (EARLY, "C overwrites stages that are still read", In("consume").drop("warpgroup.wait_group(0)")),
    (EARLY, "C is read before all have written it",
     In("store").drop("_barrier.arrive_and_wait()", before="_ = _copies.s2g_c.get_slice(...)")),
]  # fmt: skip
WRONG = [
    (EARLY, "activations come from the wrong k-tile",
     In("produce").where("_ = cute.size(_a.gX, mode=[1])")
      .where("load_k_tile(_, _a, _, _state)\nload_k_tile(_, _b, _, _state)")
      .replace("load_k_tile(_pipe, _b, _k_tile, _state)", "load_k_tile(_pipe, _b, 0, _state)", times=2)),
    (EARLY, "C is not transposed",
     In("tiled_copies").replace("warp.StMatrix8x8x16bOp(transpose=True, num_matrices=4)",
      "warp.StMatrix8x8x16bOp(transpose=False, num_matrices=4)")),
]  # fmt: skip
SUITES = [
    Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS]),
    Suite(("layout", "product"), [Mutation(NAME, *change, variant) for variant, *change in WRONG]),
]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)
