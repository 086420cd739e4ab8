"""What CuTe DSL 4.8 moved: taken from one place by recipes, and by a copied file from where its DSL has it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import cutlass.memory
import cutlass.tensor_utils
import pytest

from cookbook.recipe import catalog, moved

TRIES = [node for node in ast.parse(Path(moved.__file__).read_text(encoding="utf-8")).body if isinstance(node, ast.Try)]
NEW_PLACES = {node.body[0].module for node in TRIES}


def tried(source: str) -> dict[str, str | None]:
    """Name -> the module that a `try` of this text imports it from first."""
    imports = (node.body[0] for node in ast.parse(source).body if isinstance(node, ast.Try))
    return {alias.name: each.module for each in imports if isinstance(each, ast.ImportFrom) for alias in each.names}


def test_the_names_are_those_of_the_new_places():
    assert moved.SmemAllocator is cutlass.memory.SmemAllocator
    assert moved.TmemAllocator is cutlass.memory.TmemAllocator
    assert moved.LayoutEnum is cutlass.tensor_utils.LayoutEnum


@pytest.mark.parametrize("recipe", catalog.recipes(), ids=lambda recipe: recipe.name)
def test_a_copied_recipe_tries_both_places_for_what_it_uses(recipe):
    own = ast.parse("\n".join(catalog.code(recipe)))
    from_new = [node for node in ast.walk(own) if isinstance(node, ast.Attribute) and ast.unparse(node) in NEW_PLACES]
    imported = {each.name for node in ast.walk(own) if isinstance(node, ast.Import) for each in node.names}
    imported |= {node.module for node in ast.walk(own) if isinstance(node, ast.ImportFrom)}
    assert not from_new and not NEW_PLACES & imported, "needed imports of cookbook.recipe.moved"
    used = {node.id for node in ast.walk(own) if isinstance(node, ast.Name)} & set(moved.__all__)
    known = tried(Path(moved.__file__).read_text(encoding="utf-8"))
    assert tried(catalog.standalone_source(recipe.name)) == {name: known[name] for name in used}


def test_without_the_new_places_a_copied_file_takes_the_old(tmp_path):
    """As earlier versions are: an interpreter that does not find the new modules."""
    (tmp_path / "mine.py").write_text(catalog.standalone_source("blackwell/tma_tcgen05_gemm"), encoding="utf-8")
    earlier = f"import sys, cutlass\nsys.modules.update(dict.fromkeys({sorted(NEW_PLACES)}))\nimport mine\n"
    shown = "print(mine.SmemAllocator.__module__, mine.TmemAllocator.__module__)"
    done = subprocess.run([sys.executable, "-c", earlier + shown], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == ["cutlass.utils.smem_allocator", "cutlass.utils.tmem_allocator"], done.stderr
