"""Claims that hold: what a page's first lines say of figures, in words, is what its kernel and its records have.

Every claim that compares or counts has a row in HELD, with the words that it holds.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import executed
import pytest
import torch

from cookbook.measure import records
from cookbook.recipe import catalog
from cookbook.recipe.formats import FORMATS
from tools.publish import notebooks

WORDS = {"five": 5, "eight": 8, "two dozen": 24}


def lines_of(*functions) -> int:
    """Lines of code of these functions, docstrings left out."""
    count = 0
    for function in functions:
        (tree,) = ast.parse(inspect.getsource(function)).body
        tree.body = tree.body[1:] if ast.get_docstring(tree) else tree.body
        count += len(ast.unparse(tree).splitlines())
    return count


@pytest.mark.parametrize(
    ("name", "claim", "functions"),
    [
        ("foundations/bank_conflicts", "{} lines of Python count the wavefronts", ["bank_of", "wavefronts"]),
        ("foundations/thread_block_swizzle", "{} lines of integer arithmetic halve it", ["in_groups"]),
        ("foundations/serpentine", "in {} lines predicts", ["k_order", "lines_of", "hits", "bytes_read"]),
    ],
)
def test_a_claim_of_so_many_lines(name, claim, functions):
    module, said = catalog.load(name), catalog.find(name).claim
    (word,) = (word for word in WORDS if claim.format(word) in " ".join(said.split()))
    assert lines_of(*(getattr(module, each) for each in functions)) <= WORDS[word]


def test_the_order_of_tiles_halves_what_is_read():
    """The claim of the thread-block swizzle, as counted on a GPU."""
    counted = [r for r in records.select("foundations/thread_block_swizzle", "counted") if not records.is_stale(r)]
    assert counted
    for record in counted:
        read = {order: each["read_bytes"] for order, each in record["figures"].items()}
        assert min(read.values()) < 0.55 * read["row by row"], record["device"]


def test_a_rank_is_of_independent_rows():
    """Different rows are not enough, as the page on solving says."""
    rank = catalog.load("foundations/solving_for_a_swizzle").rank
    assert rank([1, 2, 1 ^ 2]) == 2 and rank([1, 2, 4]) == 3


def test_a_transpose_is_no_faster_than_a_copy():
    """As the page on memory's ceilings says: the device's own copy of the same bytes, in the same run."""
    timed = [r for r in records.select("foundations/matrix_transpose", "timed") if not records.is_stale(r)]
    assert timed
    for record in timed:
        copy = record["peers"]["device copy"]["median_ms"]
        assert record["figures"]["median_ms"] > 0.97 * copy, (record["device"], record["shape"])


def test_the_widest_swizzled_column_read_is_as_the_page_says():
    """4 wavefronts with the right three numbers, 32 without: counted by the profiler."""
    text = catalog.find("foundations/swizzle_parameters").file.read_text(encoding="utf-8")
    assert "takes 4 wavefronts, the least for 16 bytes a lane" in text and "without a swizzle it takes 32" in text
    counted = [r for r in records.select("foundations/swizzle_parameters", "counted") if not records.is_stale(r)]
    assert counted
    for record in counted:
        loads = {k: f["wavefronts"] / f["executed"] for k, f in record["figures"].items() if "LDS" in k}
        assert {min(loads.values()), max(loads.values())} == {4, 32}, (record["device"], loads)


# --- every claim that compares or counts ------------------------------------------------------------------------------

COMPARES = re.compile(
    r"\b(faster|slower|hal(?:f|ves?)|quarter|eighth|twice|most(?!ly)|nearly|pays|more than|a third (?:fewer|less)|"
    r"(?:five|eight) lines|two dozen|eleven|slow)\b"
)


def timed(name: str, **wanted: Any) -> list[dict]:
    """The current timed records of a recipe, at least one, in bfloat16 unless another dtype is asked for."""
    found = records.select(name, "timed", wanted.pop("dtype", "bfloat16"))
    kept = [r for r in found if not records.is_stale(r) and all(r[key] == value for key, value in wanted.items())]
    assert kept, f"{name}: got no current record; needed one"
    return kept


def speedup(record: dict, peer: str) -> float:
    return record["peers"][peer]["ratio"]


def config(name: str) -> Any:
    return catalog.load(name).CONFIG


def operand_rows(rows: int, cols: int) -> float:
    """Rows of A and of B that come for each product of a tile."""
    return (rows + cols) / (rows * cols)


def the_first_gemm_is_slow() -> bool:
    return all(speedup(r, "torch.matmul") < 0.5 for r in timed("ampere/first_gemm") if min(r["shape"]) >= 4096)


def a_fast_product_is_near_cublas() -> bool:
    return all(speedup(r, "torch.matmul") > 0.95 for r in timed("hopper/tma_wgmma_gemm", shape=[4096] * 3))


def modes_with_more_lines_are_slower() -> bool:
    modes = ("interleave", "sw32", "sw64")
    return all(
        narrow > wide * 0.99
        for r in timed("hopper/swizzle_modes_gemm")
        if set(modes) <= r["peers"].keys()
        for narrow, wide in pairwise(speedup(r, mode) for mode in modes)
    )


def promises_more_than_it_gets() -> bool:
    """By the page's own table: each gain over two stages that is counted, and the one that was measured."""
    page = notebooks.written(executed.notebook("ampere/pipelined_gemm"))
    found = re.findall(r"\| fragments ahead \|[^|]*\| ([\d.]+)x / ([\d.]+)x \|", page)
    return bool(found) and all(float(counted) > float(measured) for counted, measured in found)


def an_addition_takes_more_than_two_clocks() -> bool:
    found = [r["figures"]["variants"]["256 x 128"] for r in records.select("hopper/fp8_blockwise_gemm", "limits")]
    clocks = [each["where"]["FFMA"][1] for each in found if "FFMA" in each.get("where", {})]
    return bool(clocks) and min(clocks) > 2


def half_of_c_goes_out_under_the_next_loop() -> bool:
    c = config("hopper/int8_gemm")
    return c.overlapped * 2 * c.epi_n == c.tile_n and torch.int32.itemsize == 2 * torch.bfloat16.itemsize


def bits(name: str) -> int:
    return FORMATS[catalog.find(name).operands].bits


def pingpong_gains_more_where_k_is_short() -> bool:
    gained = {r["shape"][2]: speedup(r, "cooperative") for r in timed("hopper/pingpong_gemm") if r["shape"][0] == 8192}
    by_k = [gained[k] for k in sorted(gained)]
    return len(by_k) >= 3 and by_k == sorted(by_k, reverse=True) and by_k[0] > 1.05


def an_early_weight_pays_where_two_kernels_have_room() -> bool:
    module = catalog.load("hopper/pdl_chain")
    return "early weight" in module.VARIANTS and all(
        speedup(r, "early weight") < 1 for r in timed("hopper/pdl_chain", shape=[512] * 3)
    )


def a_weight_is_nearly_all_bytes() -> bool:
    rows, n, k = 16, 8192, 8192
    return n * k / (n * k + rows * (n + k)) > 0.95


def promotion_costs_little_for_few_rows() -> bool:
    return all(
        r["peers"][f"{name}, promoted"]["ratio"] < 1.1 * r["peers"][name]["ratio"]
        for r in timed("hopper/fp8_decode_gemm")
        if r["shape"][0] <= 64 and "64x16, promoted" in r["peers"]
        for name in [min((n for n in r["peers"] if "promoted" not in n and "x" in n), key=lambda n: speedup(r, n))]
    )


def a_pair_loads_a_third_less() -> bool:
    pair, one = config("blackwell/two_cta_gemm"), config("blackwell/pipelined_gemm")
    loaded = (pair.tile_m + pair.tile_n) / 2, one.tile_m + one.tile_n  # rows of A and B for an SM's 128 x 256
    return loaded[0] * 3 == loaded[1] * 2 and (pair.stages, one.stages) == (6, 4)


def two_ctas_share_b() -> bool:
    c = config("hopper/multicast_gemm")
    return c.cluster_m * c.cluster_n == 2 and (c.tile_m + c.tile_n / 2) * 3 == (c.tile_m + c.tile_n) * 2


def faster_than_ampere_on_hopper() -> bool:
    return all(speedup(r, "ampere/tuned_gemm") > 1 for r in timed("blackwell/geforce_gemm"))


SMALL_STEPS = "test_small_steps.py"
Holds = Callable[[], bool] | str  # or the test that holds it, in the file of this folder that is named
HELD: dict[str, list[tuple[str, Holds]]] = {
    "foundations/bank_conflicts": [("eight lines", "test_claims.py::test_a_claim_of_so_many_lines")],
    "foundations/thread_block_swizzle": [
        ("five lines of integer arithmetic", "test_claims.py::test_a_claim_of_so_many_lines"),
        ("halve it", "test_claims.py::test_the_order_of_tiles_halves_what_is_read"),
    ],
    "foundations/serpentine": [
        ("two dozen lines", "test_claims.py::test_a_claim_of_so_many_lines"),
        (
            "within 5% what ten of eleven",
            "test_serpentine.py::test_the_model_predicts_within_5_percent_what_kernels_read",
        ),
    ],
    "ampere/first_gemm": [("It is slow", the_first_gemm_is_slow)],
    "ampere/wide_tile_gemm": [
        ("twice as wide", f"{SMALL_STEPS}::test_wide_tile_is_the_first_gemm_with_one_number_changed"),
        ("a third fewer", f"{SMALL_STEPS}::test_a_wide_tile_reads_a_third_fewer_fragments"),
    ],
    "ampere/staged_epilogue_gemm": [
        ("pays where K is short", f"{SMALL_STEPS}::test_an_epilogue_in_shared_memory_pays_where_k_is_short")
    ],
    "hopper/wide_tile_gemm": [
        (
            words,
            f"{SMALL_STEPS}::test_hoppers_wide_tile_loads_a_quarter_fewer_bytes",
        )
        for words in ("twice as wide", "a quarter fewer")
    ],
    "ampere/swizzled_gemm": [("waits for most", f"{SMALL_STEPS}::test_the_swizzle_takes_an_eighth_and_moves_no_row")],
    "ampere/pipelined_gemm": [("more than the GPU gives", promises_more_than_it_gets)],
    "hopper/swizzled_gemm": [
        ("an eighth of the lines", f"{SMALL_STEPS}::test_tma_writes_a_swizzled_tile_in_an_eighth_of_the_lines")
    ],
    "hopper/multistage_gemm": [
        ("faster at 4096³ and slower at 8192³", f"{SMALL_STEPS}::test_stages_gain_at_4096_and_lose_at_8192")
    ],
    "hopper/tma_wgmma_gemm": [("nearly all that a fast matrix product needs", a_fast_product_is_near_cublas)],
    "hopper/swizzle_modes_gemm": [("which modes are slow, and about how slow", modes_with_more_lines_are_slower)],
    "hopper/warp_specialized_gemm": [("two dozen", lambda: config("hopper/warp_specialized_gemm").registers[0] == 24)],
    "hopper/multicast_gemm": [("half of their common tile", two_ctas_share_b), ("a third fewer", two_ctas_share_b)],
    "hopper/pingpong_gemm": [("pays most where K is short", pingpong_gains_more_where_k_is_short)],
    "hopper/mixed_input_gemm": [
        ("nearly all of the time", a_weight_is_nearly_all_bytes),
        ("a quarter of them", lambda: 4 * bits("hopper/mixed_input_gemm") == 16),
    ],
    "hopper/pdl_chain": [("That pays where", an_early_weight_pays_where_two_kernels_have_room)],
    "hopper/tile_heuristics": [
        (
            "within 1% of the best of eleven, for each recorded product of more than 64 rows",
            "test_pingpong_and_majors.py::test_the_heuristics_lose_little_of_what_was_recorded",
        )
    ],
    "hopper/tuned_gemm": [("eleven tiles", lambda: len(catalog.load("hopper/tuned_gemm").VARIANTS) == 11)],
    "hopper/fp8_decode_gemm": [
        ("halves them", lambda: 2 * bits("hopper/fp8_decode_gemm") == 16),
        ("cost little", promotion_costs_little_for_few_rows),
    ],
    "hopper/fp8_blockwise_gemm": [("more than two clocks", an_addition_takes_more_than_two_clocks)],
    "hopper/int8_gemm": [
        ("twice the bytes", half_of_c_goes_out_under_the_next_loop),
        ("half of them go out", half_of_c_goes_out_under_the_next_loop),
    ],
    "blackwell/two_cta_gemm": [
        ("half of its operands", a_pair_loads_a_third_less),
        ("a third less", a_pair_loads_a_third_less),
    ],
    "blackwell/nvfp4_gemm": [
        ("twice as many", lambda: 2 * bits("blackwell/nvfp4_gemm") == bits("blackwell/mxfp8_gemm"))
    ],
    "blackwell/geforce_gemm": [("faster than an Ampere kernel, on a Hopper too", faster_than_ampere_on_hopper)],
}


def said(name: str) -> str:
    return " ".join(catalog.find(name).claim.split())


def test_every_claim_that_compares_or_counts_is_held():
    """Each such word stands in words that a row holds."""
    unheld = {}
    for recipe in catalog.recipes():
        left = said(recipe.name)
        for phrase, _ in HELD.get(recipe.name, []):
            left = left.replace(phrase, "")
        if words := COMPARES.findall(left):
            unheld[recipe.name] = words
    assert not unheld


EXECUTES = {"ampere/pipelined_gemm"}  # its claim is held to a table of its notebook


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in EXECUTES else ()) for name in HELD]
)
def test_a_claim_says_what_its_page_and_its_records_have(name):
    for phrase, holds in HELD[name]:
        assert phrase in said(name)
        if isinstance(holds, str):
            file, test = holds.split("::")
            assert f"def {test}(" in (Path(__file__).parent / file).read_text(encoding="utf-8")
        else:
            assert holds(), phrase
