"""The Ampere ladder: what each variant's layouts and code must be, and that a variant is chosen by its name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cookbook.harness import catalog, checking, compiling, layout_check
from cookbook.layouts import evaluate

cutlass = pytest.importorskip("cutlass")

SMEM = "ampere/smem_gemm"
WITH_VARIANTS = [SMEM]


def layout_of_a(variant: str):
    module = catalog.load(SMEM)
    return evaluate(module.smem_layouts, cutlass.BFloat16, module.VARIANTS[variant]).a


# --- smem_gemm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "wavefronts"),
    [("plain", {"g2s": 4, "s2r": 32}), ("padded", {"g2s": 4, "s2r": 4}), ("swizzled", {"g2s": 4, "s2r": 4})],
)
def test_wavefronts_of_each_layout(variant, wavefronts):
    module = catalog.load(SMEM)
    found = layout_check.predicted_wavefronts(module, cutlass.BFloat16, module.VARIANTS[variant])
    assert found == wavefronts | {"r2s": 1, "s2g": 4}


def test_where_row_1_and_stage_1_begin():
    """Rows 128 or 144 bytes apart, or chunk 0 of row 1 in slot 1; a stage is 128 rows."""
    first = {variant: layout_of_a(variant).byte_offsets() for variant in ("plain", "padded", "swizzled")}
    assert {variant: int(at[1, 0, 0]) for variant, at in first.items()} == {
        "plain": 128,
        "padded": 144,
        "swizzled": 144,
    }
    assert {int(at[0, 0, 1]) // 128 for at in first.values()} == {128, 144}
    assert first["swizzled"][1, 8, 0] == 128  # and chunk 1 of row 1 in slot 0


def test_swizzled_rows_are_the_atoms_of_ldmatrix_gemm():
    other = catalog.load("ampere/ldmatrix_gemm")
    config = dataclasses.replace(other.CONFIG, stages=3)
    theirs = evaluate(other.smem_layouts, cutlass.BFloat16, config).a
    assert np.array_equal(layout_of_a("swizzled").byte_offsets(), theirs.byte_offsets())


def test_conflicts_that_are_not_expected_fail(monkeypatch):
    module = catalog.load(SMEM)
    monkeypatch.setattr(module, "expected_excess", lambda config: {})
    for variant, config in module.VARIANTS.items():
        found = layout_check.check_layouts(module, cutlass.BFloat16, config)
        bad = {finding.name for finding in found if not finding.ok}
        assert bad == ({"s2r_a.wavefronts", "s2r_b.wavefronts"} if variant == "plain" else set())


# --- what all recipes with variants share -----------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_every_target_has_every_variant_and_no_two_are_equal(name):
    module, recipe = catalog.load(name), catalog.find(name)
    assert module.CONFIG in module.VARIANTS.values()
    for target in recipe.targets:
        found = compiling.variants(module, target)
        assert list(found) == list(module.VARIANTS) and len(set(found.values())) == len(found)
        assert all(config.smem_bytes <= compiling.smem_limit(target) for config in found.values())
        assert module.config_for(target) in found.values()


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_a_check_covers_every_variant(name):
    recipe, module = catalog.find(name), catalog.load(name)
    for found in (
        checking.layout_levels(recipe, "float16", ("sm_90a",)),
        checking.model_levels(recipe, "float16", (40, 56, 72), ("sm_90a",)),
        checking.compiled_levels(recipe, "sm_90a", "float16"),
    ):
        assert [level.variant for level in found] == list(module.VARIANTS)
        assert all(level.status in (checking.PASSED, checking.NOT_CHECKED) for level in found), found


@pytest.mark.parametrize("name", WITH_VARIANTS)
def test_an_unknown_variant_is_named(name):
    import torch

    a = torch.zeros(8, 8, dtype=torch.float16)
    with pytest.raises(ValueError, match="variant: got 'none such'; needed one of "):
        catalog.load(name).matmul(a, a.T, variant="none such")
