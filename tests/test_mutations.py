"""Every fault planted in a recipe's layouts is caught with no GPU, by the layout, model or compiled level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mutations import LAYOUT_MUTATIONS, Mutation, mutant

from cookbook.harness import catalog, layout_check, walk


def caught(mutation: Mutation, root: Path) -> str:
    """How a level that needs no GPU catches the fault; empty if none does."""
    import cutlass

    module = mutant(mutation, root)
    target = catalog.find(mutation.recipe).targets[0]
    try:
        found = layout_check.check_layouts(module, cutlass.BFloat16, module.config_for(target))
    except ValueError as error:
        return f"layout: {error}"
    wrong = [f"{finding.name}: {finding.detail}" for finding in found if not finding.ok]
    if wrong:
        return "layout: " + "; ".join(wrong)
    generator = np.random.default_rng(0)
    a, b = (generator.integers(-3, 4, shape).astype(np.float32) for shape in ((200, 64), (64, 333)))
    got = walk.walk(module, a, b, cutlass.BFloat16, module.config_for(target))
    return "" if np.array_equal(got, a @ b) else "model: another product"


@pytest.mark.parametrize("mutation", LAYOUT_MUTATIONS, ids=str)
def test_planted_fault_is_caught_with_no_gpu(mutation: Mutation, tmp_path: Path) -> None:
    assert caught(mutation, tmp_path)


@pytest.mark.parametrize("name", sorted({mutation.recipe for mutation in LAYOUT_MUTATIONS}))
def test_the_recipe_itself_is_not_accused(name: str, tmp_path: Path) -> None:
    nothing = Mutation(name, "nothing", "CONFIG = Config()", "CONFIG = Config()")
    assert not caught(nothing, tmp_path)
