"""What the playground opens of a recipe is what CuTe makes of the recipe's own functions."""

from __future__ import annotations

import json

import pytest

from cookbook.layouts import Layout, SmemLayout, evaluate
from cookbook.recipe import catalog
from cookbook.solve.instructions import parse
from cookbook.swizzle import Swizzle
from tools.publish import playground

cutlass = pytest.importorskip("cutlass")


def read(tile: dict) -> SmemLayout:
    """The tile that an entry says."""
    shape, stride = (json.loads(part.replace("(", "[").replace(")", "]")) for part in tile["layout"].split(":"))
    return SmemLayout(Layout(nested(shape), nested(stride)), Swizzle(*tile["swizzle"]), tile["bits"])


def nested(value):
    return tuple(map(nested, value)) if isinstance(value, list) else value


def test_a_gemm_opens_with_its_tiles_and_stages():
    module = catalog.load("hopper/tma_wgmma_gemm")
    smem = evaluate(module.smem_layouts, cutlass.BFloat16, module.CONFIG)
    entry = playground.tiles(catalog.find("hopper/tma_wgmma_gemm"))
    assert entry["stages"] == module.CONFIG.stages and list(entry["tiles"]) == ["a", "b", "c"]
    for name, tile in entry["tiles"].items():
        whole = getattr(smem, name).byte_offsets()
        assert (read(tile).byte_offsets() == (whole[..., 0] if whole.ndim == 3 else whole)).all()


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("hopper/tma_wgmma_gemm", {"a": "ld128@8x8 wgmma", "b": "ld128@8x8 wgmma", "c": "stmatrix.x4@16x16"}),
        ("hopper/fp8_gemm", {"a": "ld128@8x16 wgmma", "b": "ld128@8x16 wgmma", "c": "stmatrix.x4@16x16"}),
        ("ampere/ldmatrix_gemm", {"a": "ldmatrix.x4@16x16", "b": "ldmatrix.x4@lanes", "c": "st32@8x8"}),
        ("blackwell/pipelined_gemm", {"a": "ld128@8x8 tcgen05.mma", "b": "ld128@8x8 tcgen05.mma", "c": "st128@32x8"}),
        ("blackwell/geforce_gemm", {"a": "ldmatrix.x4@16x16", "b": "ldmatrix.x4@lanes", "c": "stmatrix.x4@16x16/1x2"}),
    ],
)
def test_a_tile_opens_under_what_the_recipe_does(name, asked):
    """A Hopper tile is read by wgmma, by no ldmatrix."""
    tiles = playground.tiles(catalog.find(name))["tiles"]
    assert {tile: f"{found['access']} {found.get('read_by', '')}".strip() for tile, found in tiles.items()} == asked
    for found in tiles.values():
        assert ("lanes" in found) == found["access"].endswith("@lanes")
        assert "lanes" not in found or len(found["lanes"].split()) == 32


def test_variants_that_lay_out_the_same_tile_otherwise_open_too():
    tiles = playground.tiles(catalog.find("ampere/smem_gemm"))["tiles"]
    assert read(tiles["a"]).swizzle == Swizzle(3, 4, 3) and read(tiles["a, plain"]).swizzle.bits == 0
    assert read(tiles["a, padded"]).outer == Layout((128, 64), (72, 1))


def test_a_study_opens_with_the_tiles_that_are_counted():
    tiles = playground.tiles(catalog.find("foundations/bank_conflicts"))["tiles"]
    found = {name: parse(tile["access"]).access(read(tile).byte_offsets(), 32) for name, tile in tiles.items()}
    assert {name: access.width for name, access in found.items()} == {"pitch 32": 4, "pitch 33": 4}


def test_a_recipe_without_a_tile_has_no_address():
    assert playground.address(catalog.find("primer/hello_kernel")) is None
    assert playground.address(catalog.find("ampere/smem_gemm")) == "?recipe=ampere/smem_gemm"


def test_the_json_is_written_once(tmp_path, monkeypatch):
    one = [catalog.find("foundations/bank_conflicts")]
    monkeypatch.setattr(playground.catalog, "recipes", lambda root=None: one)
    path = tmp_path / "recipes.json"
    assert not playground.is_current(path)
    playground.write(path)
    assert playground.is_current(path) and list(json.loads(path.read_text())) == ["foundations/bank_conflicts"]
