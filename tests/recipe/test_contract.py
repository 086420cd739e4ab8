"""Every recipe's module defines what the contract asks of it, and one that lacks a name is told so."""

from __future__ import annotations

from types import ModuleType

import pytest

from cookbook.recipe import catalog, contract, formats

RECIPES = {recipe.name: recipe for recipe in catalog.recipes()}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fulfils_what_its_front_matter_says(name):
    recipe, module = RECIPES[name], catalog.load(name)
    assert contract.missing(recipe, module) == []
    assert all(isinstance(module, protocol) for protocol in contract.asked_of(recipe))
    form = formats.FORMATS.get(recipe.operands)
    assert isinstance(module, contract.FloatScaled) == bool(form and form.scale)
    assert isinstance(module, contract.Reduces) == (recipe.kind == "reducing")
    assert isinstance(module, contract.BlockScaled) == bool(form and form.by_mma)
    divided = isinstance(module, contract.DividedK)
    assert divided == (getattr(getattr(module, "CONFIG", None), "split_k", 1) > 1)


def test_what_a_study_measures_decides_what_it_defines():
    asked = {name: [one.__name__ for one in contract.asked_of(recipe)] for name, recipe in RECIPES.items()}
    assert asked["foundations/tensor_core_ceiling"] == ["Study", "Ceilings", "InstructionCeilings"]
    assert asked["hopper/tma_copy"] == ["Study", "Copies"]
    assert asked["foundations/thread_block_swizzle"] == ["Study", "ExperimentStudy"]
    assert asked["foundations/mma_smem_atoms"] == ["Study"]
    assert asked["hopper/tma_wgmma_gemm"] == ["Gemm", "TensorCores"] and asked["hopper/gemv"] == ["Gemm"]


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.kind == "study"])
def test_every_fact_of_a_study_holds_and_says_what_was_found(name):
    found = catalog.load(name).facts()
    assert found and len(found) == len({fact for fact, _, _ in found})
    assert [(fact, detail) for fact, holds, detail in found if not holds] == []
    assert all(detail for _, _, detail in found)


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.baselines])
def test_a_baseline_is_a_variant_and_not_the_default(name):
    module, baselines = catalog.load(name), set(RECIPES[name].baselines)
    assert baselines < set(module.VARIANTS) and module.DEFAULT not in baselines


def test_what_a_module_lacks_is_named():
    module = ModuleType("mine")
    module.Config = module.CONFIG = module.smem_layouts = module.tiled_copies = module.matmul = object
    recipe = RECIPES["hopper/tma_wgmma_gemm"]
    lacking = ["Gemm: GEMM", "Gemm: compile_for", "Gemm: prepare", "TensorCores: tiled_mma"]
    assert contract.missing(recipe, module) == lacking
