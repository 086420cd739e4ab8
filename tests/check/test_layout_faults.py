"""Every fault planted in a recipe's layouts is caught with no GPU, by the layout, model or compiled level."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from edits import In
from mutations import COMPILED_MUTATIONS, LAYOUT_MUTATIONS, Mutation
from planted import Suite, caught, check_caught

SUITES = [Suite(("layout", "model"), LAYOUT_MUTATIONS), Suite(("compiled",), COMPILED_MUTATIONS)]
CASES = [(suite, fault) for suite in SUITES for fault in suite.faults]


@pytest.mark.parametrize(("suite", "fault"), CASES, ids=[str(fault) for _, fault in CASES])
def test_planted_fault_is_caught_with_no_gpu(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)


@pytest.mark.parametrize(
    ("levels", "name", "variant"), sorted({(suite.levels, fault.recipe, fault.variant) for suite, fault in CASES})
)
def test_the_recipe_itself_is_not_accused(levels: tuple[str, ...], name: str, variant: str, tmp_path: Path) -> None:
    nothing = Mutation(name, "nothing", In(), variant)
    assert not caught(nothing, levels, tmp_path).level
