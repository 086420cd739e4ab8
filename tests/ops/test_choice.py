"""Tiles as a family: every member is a kernel that `matmul` takes, and the choice is among all of them."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter
from functools import partial

import pytest
import torch
from pretend import pretended
from without_gpu import pretend

from cookbook import ops
from cookbook.ops import choice, predict
from cookbook.recipe import catalog
from cookbook.recipe.contract import Family

FAMILIES = [
    recipe.name for recipe in catalog.recipes() if recipe.serves and isinstance(catalog.load(recipe.name), Family)
]
MOST_SMEM, MOST_CTAS = 227 * 1024, 8


def members(name):
    return {variant: config for variant, _, config in choice.family(name)}


@pytest.mark.parametrize("name", FAMILIES)
def test_members_are_many_and_each_has_a_name_of_its_own(name):
    found, module = choice.family(name), catalog.load(name)
    names, configs = [each[0] for each in found], [each[2] for each in found]
    assert len(found) >= 200 and len(set(names)) == len(set(configs)) == len(found)
    for variant, kernel, config in found:
        assert kernel == variant and module.VARIANTS[variant] == config if isinstance(kernel, str) else kernel == config
    spoken_of = set(module.VARIANTS) - set(catalog.find(name).baselines)
    assert spoken_of <= set(names) and not set(catalog.find(name).baselines) & set(names)


@pytest.mark.parametrize("name", FAMILIES)
def test_members_fit_an_sm(name):
    for config in members(name).values():
        assert config.smem_bytes <= MOST_SMEM and config.stages >= 2
        assert getattr(config, "cluster", config.__dict__.get("split_k", 1)) <= MOST_CTAS


@pytest.mark.parametrize("name, size, eights", [("hopper/decode_gemm", 511, 248), ("hopper/tuned_gemm", 1267, 400)])
def test_how_many_members_a_family_has(name, size, eights):
    """All, and those whose tile is an odd multiple of 8 wide."""
    widths = [config.tile_n for config in members(name).values()]
    assert len(widths) == size and sum(width % 16 == 8 for width in widths) == eights


def test_members_of_the_tuned_family_by_cluster():
    """One CTA, several that share an operand, and those that share both: as many of each form."""
    configs = members("hopper/tuned_gemm").values()
    counted = Counter((config.cluster_m, config.cluster_n) for config in configs)
    both = {form for form in counted if 1 not in form}
    assert both == {(2, 2), (2, 4), (4, 2)} and max(m * n for m, n in counted) == MOST_CTAS
    assert all(config.swap_ab for config in configs if config.tile_n % 16)


def test_there_are_two_families():
    assert len(FAMILIES) == 2


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"tile_m": 96}, "tile_m: got 96; needed a multiple of 128"),
        ({"tile_n": 264}, "tile_n: got 264; needed a multiple of epi_n, 64, up to 256"),
        ({"tile_n": 160, "epi_stages": 1}, "tile_n: got 160; needed a multiple of epi_n, 64, up to 256"),
        ({"tile_m": 256, "tile_n": 256}, "tile_m x tile_n: got 256 accumulators"),
        ({"stages": 6}, "stages: got .* bytes; needed at most 232448"),
        ({"epi_n": 48, "tile_n": 192}, "epi_n: got 48; needed"),
    ],
)
def test_what_is_no_member_of_the_tuned_family(fields, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(catalog.load("hopper/tuned_gemm").CONFIG, **fields)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"tile_m": 192}, "tile_m: got 192; needed 64 or 128"),
        ({"tile_n": 20}, "tile_n: got 20; needed a multiple of 8 up to 256"),
        ({"split_k": 9, "tile_n": 64}, "split_k: got 9; needed 1 to 8"),
        ({"tile_n": 256, "tile_k": 256}, "stages: got room for"),
    ],
)
def test_what_is_no_member_of_the_decode_family(fields, said):
    with pytest.raises(ValueError, match=said):
        dataclasses.replace(catalog.load("hopper/decode_gemm").CONFIG, **fields)


@pytest.mark.parametrize("name", FAMILIES)
def test_matmul_takes_any_member_and_plans_each_once(name, monkeypatch):
    module = pretended(name, monkeypatch)
    a, b = torch.randn(64, 256).bfloat16(), torch.randn(256, 256).bfloat16().T
    picked = random.Random(name).sample([each for each in choice.family(name) if not isinstance(each[1], str)], 5)
    for _, kernel, config in picked * 2:
        module.matmul(a, b, variant=kernel)
        compiled = module.launched[-1][0][-1]
        assert (compiled.tile_m, compiled.tile_n) == (config.tile_m, config.tile_n)
    assert len(module.planned) == 5
    with pytest.raises(ValueError, match=r"variant: got .*; needed one of .*, or a Config"):
        module.matmul(a, b, variant=predict.H200)


def test_a_recipe_without_a_family_takes_names_alone(monkeypatch):
    module = pretended("hopper/split_k_gemm", monkeypatch)
    a, b = torch.randn(64, 256).bfloat16(), torch.randn(256, 256).bfloat16().T
    with pytest.raises(ValueError, match=r"variant: got Config.*; needed one of auto, .*64x16 in 2$"):
        module.matmul(a, b, variant=module.CONFIG)


def test_the_operator_runs_the_member_that_it_chose(monkeypatch):
    compiled = pretend(monkeypatch)
    a, b = torch.randn(256, 512).bfloat16(), torch.randn(2048, 512).bfloat16().T
    best = choice.ranked(choice.laid(a), choice.laid(b), "bfloat16", choice.H200)[0]
    assert best.recipe in FAMILIES and ops.explain(a, b).variant == best.variant
    made = ops.matmul(a, b)
    assert compiled == [best.recipe]
    assert torch.allclose(made.float(), a.float() @ b.float(), rtol=2e-2, atol=1e-1)


def test_what_the_choice_takes_where_one_wave_is_nearly_full():
    """128 x 160 is 128 tiles of 256 x 10240: one wave of 132 SMs. No variant of a page is one of so few tiles."""
    options = choice.ranked(choice.laid((256, 8192)), choice.Laid((8192, 10240), (1, 8192)), "bfloat16", choice.H200)
    best = options[0]
    module = catalog.load(best.recipe)
    config = best.kernel if not isinstance(best.kernel, str) else module.VARIANTS[best.kernel]
    named = next(each for each in options if each.recipe == "hopper/tuned_gemm" and isinstance(each.kernel, str))
    assert best.us < named.us and not isinstance(best.kernel, str) and config.tile_m * config.tile_n >= 128 * 128


def test_a_kernel_is_ranked_in_few_calls():
    """A first call of a shape ranks some 1,800 kernels: what is a Config's alone is not computed for each product."""
    a, counted = choice.laid((256, 8192)), Counter()

    def count(_, event, called):
        counted[event] += 1

    rank = partial(choice.ranked, a, choice.Laid((8192, 10240), (1, 8192)), "bfloat16", choice.H200)
    kernels, known = len(rank()), predict._facts.cache_info().misses
    sys.setprofile(count)
    try:
        rank()
    finally:
        sys.setprofile(None)
    assert predict._facts.cache_info().misses == known
    assert kernels > 1700 and counted["call"] / kernels < 25 and counted["c_call"] / kernels < 35


def test_an_odd_n_costs_a_copy_of_c():
    a = choice.laid((512, 1024))
    even, odd = (choice.Laid((1024, n), (1, 1024)) for n in (4096, 4097))
    of = lambda b: next(  # noqa: E731
        each for each in choice.ranked(a, b, "bfloat16", choice.H200) if each.recipe == "hopper/tuned_gemm"
    )
    assert of(even).copy_us == 0 and of(odd).copy_us == predict.narrow_us(512 * 4097) and not of(odd).copies
