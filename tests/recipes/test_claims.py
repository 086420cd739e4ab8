"""Claims that hold: what the first lines of a foundations page say in words is what the page and its records have."""

from __future__ import annotations

import ast
import inspect

import pytest

from cookbook.measure import records
from cookbook.recipe import catalog

WORDS = {"five": 5, "eight": 8}


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
