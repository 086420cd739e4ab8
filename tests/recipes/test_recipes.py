"""What the recipes' texts claim of their layouts, against CuTe's own helpers; and the recipe contract."""

from __future__ import annotations

import ast
import inspect
import math
import re

import pytest

from cookbook.check import levels
from cookbook.layouts import SmemLayout, evaluate
from cookbook.recipe import catalog
from cookbook.recipe.cells import cells, module_code

RECIPES = catalog.recipes()
NAMES = [recipe.name for recipe in RECIPES]
GEMMS = [recipe.name for recipe in RECIPES if recipe.product.is_gemm]
TILED = [name for name in GEMMS if catalog.find(name).tensor_cores]
HALVES = [name for name in TILED if catalog.find(name).product.of_two_matrices]  # of 16 bits
LONGEST_FUNCTION = 70  # lines
LONGEST_CELL = 60  # lines, too
CONTRACT = {
    "gemm": ("matmul", "compile_for"),
    "transpose": ("transpose", "compile_for", "smem_layouts", "moves", "expected_excess"),
    "study": ("facts",),
}


EXTENTS = (8, 16, 24, 32, 40, 48, 64, 72, 96, 128, 192, 256)
CODE = {name: "\n".join(catalog.code(catalog.find(name))) for name in GEMMS}


def parameters(name: str) -> dict[str, list[str]]:
    """The names of every top-level function's parameters, read off the recipe's code: nothing is executed."""
    tree = ast.parse(CODE[name])
    return {f.name: [argument.arg for argument in f.args.args] for f in tree.body if isinstance(f, ast.FunctionDef)}


PARAMETERS = {name: parameters(name) for name in GEMMS}
# Recipes that choose an atom by the length of a row, as CuTe's selector does; those in which it is a k-tile's; and
# those that define the rule.
CHOOSERS = [name for name, found in PARAMETERS.items() if "contiguous" in found.get("smem_atom", ())]
BY_TILE_K = [name for name in CHOOSERS if re.search(r"smem_atom\(dtype, \w+\.tile_k\)", CODE[name])]
TEACHERS = [name for name in CHOOSERS if "def smem_atom(" in catalog.find(name).file.read_text(encoding="utf-8")]


def cutlass_dtypes() -> list:
    import cutlass

    return [cutlass.Float16, cutlass.BFloat16]


def test_the_lists_of_recipes_hold_some_of_every_track() -> None:
    """A rule that finds nothing any more would leave its tests empty."""
    for names in (GEMMS, HALVES, CHOOSERS):
        assert {name.split("/")[0] for name in names} == {"ampere", "hopper", "blackwell"}
    assert {"ampere/ldmatrix_gemm", "hopper/tma_wgmma_gemm"} <= set(TEACHERS)  # whose smem_atom the others import


@pytest.mark.parametrize("name", TEACHERS)
def test_atom_follows_the_rule_of_cutes_selector(name: str) -> None:
    """At every extent at once: CuTe is asked a single time for each dtype."""
    import cutlass.utils.hopper_helpers as helpers
    from cutlass.cute.nvgpu import warpgroup
    from cutlass.tensor_utils import LayoutEnum

    def theirs(dtype):
        kinds = [helpers.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, extent) for extent in EXTENTS]
        return [warpgroup.make_smem_layout_atom(kind, dtype) for kind in kinds]

    module = catalog.load(name)
    for dtype in cutlass_dtypes():
        ours = evaluate(lambda dtype: [module.smem_atom(dtype, extent) for extent in EXTENTS], dtype)
        differing = [e for e, x, y in zip(EXTENTS, ours, evaluate(theirs, dtype), strict=True) if x != y]
        assert len(ours) == len(EXTENTS) and differing == []


@pytest.mark.parametrize("name", [name for name in BY_TILE_K if name in HALVES])
@pytest.mark.parametrize("tile_k", [16, 32, 64, 128])
def test_staged_layouts_equal_cutes_helpers(name: str, tile_k: int) -> None:
    """CuTe's helper is told how many rows there are: of a pair that shares the MMA a CTA has half of the tile's."""
    import cutlass.utils.hopper_helpers as helpers
    from cutlass.tensor_utils import LayoutEnum

    module = catalog.load(name)
    config = unchecked(module.Config)(tile_k=tile_k)

    def theirs(dtype, rows_a, rows_b):
        tile = (rows_a, rows_b, config.tile_k)
        return (
            helpers.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, dtype, config.stages),
            helpers.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, dtype, config.stages),
        )

    for dtype in cutlass_dtypes():
        ours = evaluate(module.smem_layouts, dtype, config)
        rows = ours.a.outer.sizes[0], ours.b.outer.sizes[0]
        ctas = config.tile_m // rows[0]
        assert ctas in (1, 2) and (config.tile_m, config.tile_n) == tuple(ctas * each for each in rows)
        assert (ours.a, ours.b) == evaluate(theirs, dtype, *rows)


def unchecked(config: type) -> type:
    """The sizes of a kernel without their checks: layouts exist for tiles of which no kernel can be made."""
    return type(config.__name__, (config,), {"__post_init__": lambda self: None})


@pytest.mark.parametrize("name", [recipe.name for recipe in RECIPES if len(recipe.majors) > 1])
@pytest.mark.parametrize("extent", [16, 32, 64, 128, 256])
def test_mn_major_atom_follows_the_rule_of_cutes_selector(name: str, extent: int) -> None:
    """As the tile that the recipe makes of it: mode 0 is contiguous, in lines as wide as CuTe's atom."""
    import cutlass.utils.hopper_helpers as helpers
    from cutlass.cute.nvgpu import warpgroup
    from cutlass.tensor_utils import LayoutEnum

    from cookbook.recipe import majors

    def theirs(dtype):
        kind = helpers.get_smem_layout_atom(LayoutEnum.COL_MAJOR, dtype, extent)
        return warpgroup.make_smem_layout_atom(kind, dtype)

    module = catalog.load(name)
    config = majors.configured(unchecked(module.Config)(tile_m=extent), "nn")
    if majors.swaps(module, config):  # its A is b
        config = majors.configured(config, "tt")
    for dtype in cutlass_dtypes():
        ours, atom = evaluate(module.smem_layouts, dtype, config).a, evaluate(theirs, dtype)
        width, lines = atom.outer.sizes
        assert ours.swizzle == atom.swizzle
        assert (ours.outer.table()[:width, :lines, 0] == atom.outer.table()).all()


@pytest.mark.parametrize("name", HALVES)
def test_byte_true_offset_of_element_1_0(name: str) -> None:
    module = catalog.load(name)
    layout: SmemLayout = evaluate(module.smem_layouts, cutlass_dtypes()[1], module.CONFIG).a
    if not layout.swizzle.bits:  # a first GEMM
        assert layout.byte_offsets()[1, 0, 0] == 2 * layout.outer.table()[1, 0, 0]
        return
    assert layout.byte_offsets()[1, 0, 0] == 2 * 72
    assert layout.swizzle(64) == 64  # the trap: the byte swizzle applied to a count of elements
    assert layout.swizzle.in_elements(16)(64) == 72


@pytest.mark.parametrize("name", TILED)
def test_tiles_fit_the_shared_memory_that_the_config_asks_for(name: str) -> None:
    from cookbook.check.compiled import config_for
    from cookbook.check.evaluated import evaluated

    module = catalog.load(name)
    for config in {config_for(module, target) for target in catalog.find(name).targets}:
        found = evaluated(module, cutlass_dtypes()[1], config)
        sizes = {which: layout.size_bytes for which, layout in found.smem.items()}
        c = sizes.pop("c", 0)
        if found.stores_boxes:
            assert c > 0 and sum(sizes.values()) + c <= config.smem_bytes  # C lies beside A and B
        else:
            assert c <= sum(sizes.values()) <= config.smem_bytes  # C is staged there, if at all
        assert sizes.get("a", 0) % found.smem["b"].alignment == 0  # B follows A, if A is there: packed words are not
        for which, rows in (("a", config.tile_m), ("b", config.tile_n)):
            if which not in sizes:
                continue
            elements = rows // found.ctas * config.tile_k * config.stages
            bits = found.scaled.bits if found.scaled else 16
            layout = found.smem[which]
            assert math.prod(layout.outer.sizes) * layout.element_bits == elements * bits


@pytest.mark.parametrize("name", NAMES)
def test_functions_are_short_and_public_ones_documented(name: str) -> None:
    tree = ast.parse(catalog.find(name).file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name
    module, tiles = catalog.load(name), ("smem_layouts", "tiled_mma", "tiled_copies") if name in TILED else ()
    kind = catalog.find(name).kind
    for function in (*CONTRACT[kind if kind in CONTRACT else "gemm"], *tiles):
        assert inspect.getdoc(getattr(module, function)), function


@pytest.mark.parametrize("name", GEMMS)
def test_no_cell_of_code_is_long(name: str) -> None:
    """A reader sees a step whole, and the text before it. Docstrings are text, as the roles of a kernel's warps are."""
    text = catalog.find(name).file.read_text(encoding="utf-8")
    starts = [one.start + 1 for one in cells(text) if one.kind == "code" and "lab" not in one.tags]
    lengths = map(lines_of_code, module_code(text))
    assert {line: n for line, n in zip(starts, lengths, strict=True) if n > LONGEST_CELL} == {}


def lines_of_code(cell: str) -> int:
    """The lines of a cell, but for its docstrings."""
    defined = (node for node in ast.walk(ast.parse(cell)) if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    blocks = [node.body[0] for node in defined if ast.get_docstring(node)]
    return len(cell.strip("\n").splitlines()) - sum(each.end_lineno - each.lineno + 1 for each in blocks)


def layouts():
    """Of each recipe the first target is quick: on the others some configurations differ in their stages."""
    for name in TILED:
        for number, target in enumerate(catalog.find(name).targets):
            yield pytest.param(name, target, marks=pytest.mark.slow if number else ())


@pytest.mark.parametrize(("name", "target"), list(layouts()))
def test_every_layout_holds_on_every_target(name, target):
    """Of each variant, for operands of all majors; one dtype: the others have as many bits."""
    recipe, found = catalog.find(name), []
    for which in recipe.majors:
        found += levels.layout_levels(recipe, recipe.dtypes[0], (target,), which)
    assert found and [(one.target, one.variant, one.reason) for one in found if one.status != levels.PASSED] == []
