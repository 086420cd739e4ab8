"""Changes of a copied recipe that are right: no level accuses one.

Each is what somebody may do to a file of his own: other names, a loop unrolled or not, an expression hoisted, steps
that do not depend on one another exchanged, another tile, other stages. The levels look at one configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from cookbook.check import compiled, levels, subjects
from cookbook.recipe import catalog
from cookbook.recipe.majors import configured


class Change(NamedTuple):
    """What is replaced in the copied file, and the configuration that is looked at."""

    recipe: str
    what: str
    edits: tuple[tuple[str, str], ...] = ()
    config: Mapping[str, Any] = MappingProxyType({})
    variant: str = ""
    majors: str = "tn"

    def __str__(self) -> str:
        return f"{self.recipe}: {self.what}"


FIRST, MULTICAST, PERSISTENT, SPLIT_K = (
    f"hopper/{name}_gemm" for name in ("tma_wgmma", "multicast", "persistent", "split_k")
)
PRODUCE = "def produce(pipe: pipeline.PipelineTmaAsync, loads: tuple[Load, ...], config: cutlass.Constexpr):\n"
KEEP_FULL = '    """Keep the stages full."""\n'
INSIDE = "if cute.elem_less(tCcC[0, m, n], limit):"
ROW, COLUMN = "tCcC[0, m, n][0]", "tCcC[0, m, n][1]"
MASKS = "masks = multicast_masks(scheduler.rank, config)"
INLINED = """row, column = sum(1 << n * config.cluster_m for n in range(config.cluster_n)), (1 << config.cluster_m) - 1
            rank = scheduler.rank
            masks = cutlass.Int16(row) << rank[0], cutlass.Int16(column) << rank[1] * config.cluster_m"""
SHARE = """    for i in cutlass.range(config.share, unroll_full=True):
        row, column = tCcC[part.rank * config.share + i]"""
FACTORS = ["cute.make_tensor(rR.iterator, by_row).load()", "cute.make_tensor(rN.iterator, by_column).load()"]
K_SIZE = "cute.size(tCrA, mode=[2])"
K_BLOCKS = f"cutlass.range_constexpr({K_SIZE})"

CHANGES = [
    Change(FIRST, "other names", (("tXgX", "src"), ("tXsX", "dst"), ("tCrB", "fragments_b"))),
    Change(FIRST, "the main loop unrolled twice", (("range(k_tiles - 1, unroll=1)", "range(k_tiles - 1, unroll=2)"),)),
    Change(FIRST, "the epilogue unrolled", (("cutlass.range(cute.size(tCsC, mode=[1]), unroll=8)",
                                             "cutlass.range_constexpr(cute.size(tCsC, mode=[1]))"),)),
    Change(FIRST, "the epilogue a loop", (("cutlass.range_constexpr(cute.size(tCsC, mode=[2]))",
                                           "cutlass.range(cute.size(tCsC, mode=[2]))"),)),
    Change(FIRST, "three stages", config={"stages": 3}),
    Change(FIRST, "a smaller tile, two stages", config={"stages": 2, "tile_n": 128}),
    Change(FIRST, "B is loaded first", (("for load in loads:", "for load in loads[::-1]:"),)),
    Change(FIRST, "an idle warp", (("return self.consumer_threads + 32", "return self.consumer_threads + 64"),
                                   ("    else:\n        gC = ",
                                    "    elif warp_idx < config.consumer_threads // 32:\n        gC = "))),
    Change(FIRST, "groups of three rows of tiles", config={"swizzle_size": 3}),
    Change(MULTICAST, "a guard for each mode", ((INSIDE, f"if {ROW} < limit[0] and {COLUMN} < limit[1]:"),),
           variant="2x2"),
    Change(MULTICAST, "a guard by what is outside", ((INSIDE, f"if not ({ROW} >= limit[0] or {COLUMN} >= limit[1]):"),),
           variant="2x1"),
    Change(MULTICAST, "two parameters in one", ((PRODUCE + KEEP_FULL, f"def produce(both, config: cutlass.Constexpr):\n"
                                                                      f"{KEEP_FULL}    pipe, loads = both\n"),
                                                ("produce(cta.pipe, (load_a, load_b), config)",
                                                 "produce((cta.pipe, (load_a, load_b)), config)")),
           variant="2x2"),
    Change("hopper/pingpong_gemm", "a function inlined", ((MASKS, INLINED),)),
    Change(PERSISTENT, "narrow subtiles, four buffers", config={"epi_n": 32, "epi_stages": 4}),
    Change(PERSISTENT, "wide subtiles, one buffer", config={"epi_n": 128, "epi_stages": 1}),
    Change(SPLIT_K, "a hoisted sum", ((SHARE, """    first = part.rank * config.share
    for i in cutlass.range_constexpr(config.share):
        row, column = tCcC[first + i]"""),)),
    Change(SPLIT_K, "the peers from the last", (("cutlass.range_constexpr(senders):\n        for i",
                                                 "reversed(range(senders)):\n        for i"),), variant="64x64 in 4"),
    Change("hopper/fp8_gemm", "factors of columns first", ((f"{FACTORS[0]} * {FACTORS[1]}",
                                                            f"{FACTORS[1]} * {FACTORS[0]}"),)),
    Change("hopper/warp_specialized_gemm", "k-tiles of 64 bytes", config={"tile_k": 32}),
    Change("hopper/overlapped_epilogue_gemm", "two subtiles overlap", config={"overlapped": 2}),
    Change("ampere/smem_gemm", "a guard by what is outside", (("coords[0, m, 0, 0][0] < mX.shape[0]",
                                                               "not (coords[0, m, 0, 0][0] >= mX.shape[0])"),)),
    Change("ampere/ldmatrix_gemm", "cleared by a store", (("acc.fill(0.0)", "acc.store(cute.full_like(acc, 0.0))"),)),
    Change("ampere/pipelined_gemm", "loads spread over the k-blocks",
           config={"branch_free": True, "loads": "spread", "stages": 3}),
    Change("ampere/majors_gemm", "B is fetched first", (("    fetch_block(a, read, 0)\n    fetch_block(b, read, 0)",
                                                         "    fetch_block(b, read, 0)\n    fetch_block(a, read, 0)"),),
           majors="nt"),
    Change("ampere/persistent_gemm", "one epilogue stage", config={"epi_stages": 1}),
    Change("ampere/tuned_gemm", "a smaller tile, three stages", config={"tile_n": 128, "stages": 3}),
    Change("blackwell/tma_tcgen05_gemm", "k-blocks a loop",
           ((K_BLOCKS, f"cutlass.range({K_SIZE}, unroll_full=True)"),)),
    Change("blackwell/pipelined_gemm", "the main loop unrolled twice", (("cutlass.range(k_tiles, unroll=1)",
                                                                        "cutlass.range(k_tiles, unroll=2)"),)),
    Change("blackwell/pipelined_gemm", "narrow subtiles, four buffers", config={"epi_n": 32, "epi_stages": 4}),
    Change("blackwell/two_cta_gemm", "a hoisted product", (("epi.bSgC[None, m, n * subtiles + i]",
                                                            "epi.bSgC[None, m, i + subtiles * n]"),),
           variant="2 pairs down"),
    Change("blackwell/mxfp8_gemm", "scale factors of B first", (("for x in (a, b):", "for x in (b, a):"),)),
    Change("blackwell/nvfp4_gemm", "two stages, groups of three", config={"swizzle_size": 3, "stages": 2}),
    Change("blackwell/low_latency_gemm", "the peers from the second on", (
        ("cutlass.range_constexpr(senders):\n        for i", "(*range(1, senders), 0):\n        for i"),),
        variant="split K"),
    Change("blackwell/geforce_gemm", "two stages, groups of four", config={"stages": 2, "swizzle_size": 4},
           variant="square"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_legal_change_is_not_accused(change, tmp_path: Path, monkeypatch):
    source = catalog.standalone_source(change.recipe)
    for old, new in change.edits:
        assert old in source, f"the recipe no longer holds {old!r}: fix the change"
        source = source.replace(old, new)
    file = tmp_path / "my_gemm.py"
    file.write_text(source, encoding="utf-8")
    recipe = subjects.of_file(file, change.recipe)
    module, target = recipe.module, recipe.targets[0]
    named = module.VARIANTS[change.variant] if change.variant else compiled.config_for(module, target)
    config = configured(replace(named, **change.config), change.majors)
    monkeypatch.setattr(type(recipe.product), "variants", lambda *which: {"": config})
    chosen = levels.chosen(recipe, (), recipe.dtypes[:1], (target,), (change.majors,))
    steps = [step for step in levels.plan(recipe, *chosen) if step.level not in ("model", *levels.LEVELS[3:])]
    found = [level for step in steps for level in levels.run_step(step)]
    assert {level.level for level in found} >= {"layout", "product", "host", "pipeline", "compiled"}
    assert [level.reason for level in found if level.status == "failed"] == []
