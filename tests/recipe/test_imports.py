"""A page imports what it takes over: what is written into the text, and which imports are allowed."""

from __future__ import annotations

import ast

import pytest

from cookbook.recipe import catalog, imports
from cookbook.recipe.cells import module_code

RECIPES = {recipe.name: recipe for recipe in catalog.recipes()}
BASE = '''\
# %%
from math import gcd

import cutlass

WIDTH = 4


# %%
class Config:
    size = WIDTH


# %%
# The comment above a definition belongs to it.
def halves(n):
    """Halve."""
    return gcd(n, WIDTH)


def twice(n):
    return halves(n) + halves(n)
'''
MIDDLE = """\
# %%
from cookbook.recipes.hopper.base import Config as BaseConfig, twice


class Config(BaseConfig):
    more = 1


def thrice(n):
    return twice(n) + n
"""
TOP = """\
# %% [markdown]
# Text.

# %%
from cookbook.recipes.hopper.middle import Config as MiddleConfig, thrice

# %%
class Config(MiddleConfig):
    last = 2


# %% tags=["lab"]
print("lab")

# %%
def top(n):
    return thrice(n)
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "hopper").mkdir()
    (tmp_path / "hopper/base.py").write_text(BASE)
    (tmp_path / "hopper/middle.py").write_text(MIDDLE)
    return tmp_path


def run(source):
    names = {}
    exec("\n\n".join(module_code(source)), names)
    return names


def test_imported_definitions_stand_above_their_use_and_work(root):
    text = imports.written_in(TOP, root)
    assert imports.PACKAGE not in text and "# The comment above a definition belongs to it." in text
    assert text.index("class BaseConfig") < text.index("class MiddleConfig(BaseConfig)") < text.index('print("lab")')
    assert text.index('print("lab")') < text.index("def halves") < text.index("def thrice") < text.index("def top")
    made = run(text)
    assert made["top"](6) == 2 * 2 + 6
    assert (made["Config"].size, made["Config"].more, made["Config"].last) == (4, 1, 2)


def test_what_a_page_calls_a_definition_is_the_last_word(root):
    """Also where it keeps the name of which another page made a new one."""
    (root / "hopper/middle.py").write_text(
        MIDDLE.replace(", twice", ", twice as doubled").replace("twice(n)", "doubled(n)")
    )
    page = "# %%\nfrom cookbook.recipes.hopper.base import twice\nfrom cookbook.recipes.hopper.middle import thrice\n\n"
    text = imports.written_in(page + "# %%\ndef five(n):\n    return twice(n) + thrice(n)\n", root)
    assert "doubled" not in text and run(text)["five"](8) == 8 + 16
    assert "def doubled" in imports.written_in(TOP, root)


def test_a_text_without_imports_of_recipes_stays_as_it_is(root):
    assert imports.written_in(BASE, root) is BASE


def test_what_only_checks_ask_for_is_written_in_too(root):
    """Where another definition of its recipe is used, or else last."""
    (root / "hopper/base.py").write_text(BASE + "\n\ndef asked(n):\n    return halves(n) + 1\n")
    lines = "# %%\nfrom cookbook.recipes.hopper.base import asked, twice\n\n# %%\nfirst = 1\n"
    text = imports.written_in(lines + "\n# %%\ndef four(n):\n    return 2 * twice(n)\n", root)
    assert text.index("first = 1") < text.index("def asked") < text.index("def four")
    made = run(imports.written_in(lines, root))
    assert made["asked"](6) == 3 and made["twice"](6) == 4


def test_two_meanings_of_a_name_are_refused(root):
    clash = "# %%\nfrom cookbook.recipes.hopper.base import twice\n\ndef halves(n):\n    return twice(n)\n"
    with pytest.raises(ValueError, match=r"halves: got a definition of this recipe and one of hopper/base; needed one"):
        imports.written_in(clash, root)


def test_a_name_that_is_not_there_is_refused(root):
    with pytest.raises(ValueError, match=r"import: got half of hopper/base; needed a name that it defines"):
        imports.written_in("# %%\nfrom cookbook.recipes.hopper.base import half\nhalf(1)\n", root)
    with pytest.raises(ValueError, match=r"import: got hopper/nothing; needed the name of a recipe"):
        imports.written_in("# %%\nfrom cookbook.recipes.hopper.nothing import half\nhalf(1)\n", root)


def test_a_local_name_is_not_the_modules(root):
    (root / "hopper/base.py").write_text(BASE + "\n\ndef local():\n    twice = 1\n    return twice\n")
    page = (
        "# %%\nfrom cookbook.recipes.hopper.base import local, twice as two\n\ndef f():\n    return local() + two(1)\n"
    )
    text = imports.written_in(page, root)
    assert "    twice = 1" in text and "def two(n)" in text and run(text)["f"]() == 3


def test_a_parameter_may_be_named_as_an_importers_definition(root):
    (root / "hopper/base.py").write_text(BASE + "\n\ndef call(twice):\n    return twice(2)\n")
    page = "# %%\nfrom cookbook.recipes.hopper.base import call\n\ndef twice(n):\n    return call(abs) + n\n"
    assert run(imports.written_in(page, root))["twice"](1) == 3


def test_a_readers_own_definition_takes_the_place_of_an_import(root):
    cells = TOP + "\n# %%\ndef thrice(n):\n    return 0\n"
    assert run(imports.written_in(cells, root))["top"](6) == 0


def test_what_to_bring_in_holds_every_user_of_the_definition(root):
    code = imports.needed_to_change(TOP, "halves", root)
    found = ast.parse(code).body
    assert [node.name for node in found if isinstance(node, ast.FunctionDef)] == ["halves", "twice", "thrice"]
    assert [ast.unparse(node) for node in found[:-3]] == [
        "from math import gcd",
        "from cookbook.recipes.hopper.base import WIDTH",
    ]
    with pytest.raises(ValueError, match=r"name: got 'top'; needed an imported definition: Config, WIDTH, halves"):
        imports.needed_to_change(TOP, "top", root)


def test_what_to_bring_in_has_the_names_of_the_page(root):
    (root / "hopper/base.py").write_text(BASE + "\n\ndef size_of(config: Config):\n    return config.size\n")
    page = MIDDLE.replace("twice\n", "size_of, twice\n") + "\n\nsize = size_of(Config())\n"
    assert imports.needed_to_change(page, "size_of", root).startswith("def size_of(config: BaseConfig):\n")


def ancestors(name: str) -> set[str]:
    found: set[str] = set()
    while (name := RECIPES[name].builds_on or "") and name not in found:
        found.add(name)
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_a_page_imports_from_its_ancestors_alone(name):
    source = RECIPES[name].file.read_text(encoding="utf-8")
    assert set(imports.recipes_of(source)) <= ancestors(name)
    catalog.code(RECIPES[name])  # each name has one meaning


@pytest.mark.parametrize("name", RECIPES)
def test_every_import_of_a_recipe_is_used(name):
    source = RECIPES[name].file.read_text(encoding="utf-8")
    used = {each.id for code in module_code(source) for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Name)}
    contract = {"compile_for", "config_for", "smem_layouts", "tiled_mma", "tiled_copies", "SmemLayouts", "TiledCopies"}
    contract |= {"scale_views", "to_atoms"}  # of block-scaled operands
    contract |= {"pack"}  # of packed weights
    contract |= {"EXPECTED_EXCESS"}  # of layouts whose conflicts are known
    assert set(imports.imported(source)) <= used | contract | {"gemm", "kernel", "prepare", "choose"}


def test_an_imported_definition_is_the_base_pages_own():
    for name, recipe in RECIPES.items():
        found = imports.imported(recipe.file.read_text(encoding="utf-8"))
        module = catalog.load(name) if found else None
        for here, (base, there) in found.items():
            assert getattr(module, here) is getattr(catalog.load(base), there), (name, here)
