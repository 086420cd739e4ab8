"""`cookbook new`: a recipe that begins as a copy of another is one of the catalog, under a name of its own."""

from __future__ import annotations

import shutil

import pytest
from typer.testing import CliRunner

from cookbook.cli import app
from cookbook.recipe import catalog, new


@pytest.fixture
def root(tmp_path):
    """A checkout of the recipes alone."""
    shutil.copytree(catalog.recipes_root(), tmp_path / "recipes")
    (tmp_path / "tests" / "recipes").mkdir(parents=True)
    return tmp_path / "recipes"


@pytest.mark.parametrize("base", [r.name for r in catalog.recipes() if r.kind == "gemm"])
def test_a_copy_of_any_gemm_is_a_recipe(root, base):
    name = f"{base.partition('/')[0]}/my_gemm"
    for file, text in new.skeleton(name, base, root).items():
        file.write_text(text, encoding="utf-8")
    made, old = catalog.find(name, root), catalog.find(base, root)
    assert (made.title, made.builds_on, made.targets, made.dtypes) == ("My gemm", base, old.targets, old.dtypes)
    assert made == [recipe for recipe in catalog.recipes(root) if recipe.track == made.track][-1]
    own, before = (catalog.without_lab(recipe.file.read_text(encoding="utf-8")) for recipe in (made, old))
    assert catalog.normal_form(own) == catalog.normal_form(before)  # the code is the old one's, to the last node
    assert f'"{base}"' not in made.file.read_text(encoding="utf-8")
    assert (root.parent / "tests" / "recipes" / "test_my_gemm.py").is_file()


def test_the_test_of_another_track_s_recipe_is_not_overwritten(root):
    (root.parent / "tests" / "recipes" / "test_my_gemm.py").write_text("of another")
    files = {file.name for file in new.skeleton("hopper/my_gemm", "", root)}
    assert files == {"my_gemm.py", "test_hopper_my_gemm.py"}


@pytest.mark.parametrize(
    ("name", "base", "says"),
    [
        ("hopper", "", "name: got 'hopper'; needed <track>/<file_name>"),
        ("volta/my_gemm", "", "name: got 'volta/my_gemm'; needed"),
        ("hopper/My-Gemm", "", "name: got 'hopper/My-Gemm'; needed"),
        ("hopper/tuned_gemm", "", "name: got 'hopper/tuned_gemm', which exists; needed a new name"),
        ("hopper/my_gemm", "ampere/ldmatrix_gemm", "from: got 'ampere/ldmatrix_gemm'; needed one of hopper/"),
        ("foundations/my_gemm", "", "needed a track with a GEMM"),
    ],
)
def test_what_cannot_be_begun_is_refused(root, name, base, says):
    with pytest.raises(ValueError) as refused:
        new.skeleton(name, base, root)
    assert says in str(refused.value)


def test_without_tests_beside_the_recipes_there_is_no_checkout(tmp_path):
    shutil.copytree(catalog.recipes_root(), tmp_path / "_recipes")
    with pytest.raises(ValueError, match="needed a checkout of the repository"):
        new.skeleton("hopper/my_gemm", "", tmp_path / "_recipes")


def test_the_command_writes_them_and_says_what_is_next(root, monkeypatch):
    monkeypatch.setattr(catalog, "recipes_root", lambda: root)
    done = CliRunner().invoke(app, ["new", "hopper/my_gemm"])
    assert done.exit_code == 0 and (root / "hopper" / "my_gemm.py").is_file(), done.output
    assert "cookbook check hopper/my_gemm" in done.stderr
