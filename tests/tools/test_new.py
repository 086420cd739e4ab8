"""`cookbook new`: a recipe that begins as a copy of another is one of the catalog, under a name of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cookbook.cli import app
from cookbook.recipe import catalog
from cookbook.recipe.cells import cells
from tools import new

EXAMPLE, NEW = "hopper/my_gemm", "newest_gemm"  # CONTRIBUTING.md's, which may be there; and a name that is not
GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.product.is_gemm and not recipe.name.endswith(f"/{NEW}")]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A checkout of the recipes alone, in which CONTRIBUTING's example has been followed."""
    root = tmp_path_factory.mktemp("checkout") / "recipes"
    shutil.copytree(catalog.recipes_root(), root, ignore=shutil.ignore_patterns(f"{NEW}*"))
    (root.parent / "tests" / "recipes").mkdir(parents=True)
    if not (root / f"{EXAMPLE}.py").exists():
        begin(EXAMPLE, "", root)
    return root


@pytest.fixture
def root(checkout):
    """That checkout, whose front matter is read once; what a test adds is taken away again."""
    before = set(checkout.parent.rglob("*"))
    yield checkout
    for file in set(checkout.parent.rglob("*")) - before:
        shutil.rmtree(file, ignore_errors=True) if file.is_dir() else file.unlink(missing_ok=True)


def begin(name, base, root):
    """Write the files of a new recipe."""
    files = new.skeleton(name, base, root)
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    return files


@pytest.mark.parametrize("base", GEMMS)
def test_a_copy_of_any_gemm_is_a_recipe(root, base):
    name = f"{base.partition('/')[0]}/{NEW}"
    begin(name, base, root)
    made, old = catalog.find(name, root), catalog.find(base, root)
    assert (made.title, made.builds_on, made.targets, made.dtypes) == ("Newest gemm", base, old.targets, old.dtypes)
    assert made == [recipe for recipe in catalog.recipes(root) if recipe.track == made.track][-1]
    own, before = (catalog.without_lab(recipe.file.read_text(encoding="utf-8")) for recipe in (made, old))
    assert catalog.normal_form(own) == catalog.normal_form(before)  # the code is the old one's, to the last node
    assert f'"{base}"' not in made.file.read_text(encoding="utf-8")
    assert (root.parent / "tests" / "recipes" / f"test_{NEW}.py").is_file()


def test_every_line_is_as_ruff_wants_it_with_the_longest_name(root):
    """`make lint` after `cookbook new`: of each GEMM."""
    made = []
    for base in GEMMS:
        name = f"{base}_{NEW}"
        made += begin(name + "x" * (new._LONGEST - len(name)), base, root)
    here = str(catalog.recipes_root().parent / "pyproject.toml")
    checked = ["check", "--config", here, "--config", 'lint.isort.known-first-party=["cookbook"]', "--no-cache"]
    for command in (checked, ["format", "--check", "--config", here, "--no-cache"]):
        run = [sys.executable, "-m", "ruff", *command, *map(str, made)]
        done = subprocess.run(run, capture_output=True, text=True, cwd=root.parent, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    tests = [file for file in made if file.parent.name == "recipes" and file.name.startswith("test_")]
    assert max(len(line) for file in tests for line in file.read_text().splitlines()) <= 120
    with pytest.raises(ValueError, match=f"needed {new._LONGEST} characters at most"):
        new.skeleton("hopper/" + "x" * new._LONGEST, "", root)


@pytest.mark.parametrize("base", GEMMS)
def test_a_new_page_has_no_appendix_of_the_old_one(root, base):
    """What that one counts, draws and measures is not the new recipe's: a path, a check and a comparison are."""
    name = f"{base.partition('/')[0]}/{NEW}"
    text = begin(name, base, root)[root / f"{name}.py"]
    lab = [cell for cell in cells(text) if "lab" in cell.tags]
    assert sum(cell.stop - cell.start for cell in lab) <= 60
    code = "\n".join("\n".join(text.splitlines()[cell.start : cell.stop]) for cell in lab if cell.kind == "code")
    for needed in (f'check_cells(\n    "{name}",', f'compare(\n    "{name}",\n    matmul,', f'results_table("{name}")'):
        assert needed in code
    for stop in catalog.find(base, root).path.split(" -> "):
        assert f'draw.Stop("{stop}", "", "")' in code


def test_the_figure_of_a_new_page_is_drawn(root):
    from cookbook import draw

    text = begin(f"hopper/{NEW}", "", root)[root / "hopper" / f"{NEW}.py"]
    call = text[text.index("draw.flow(") : text.index("\n\n# %%", text.index("draw.flow("))]
    assert "wgmma" in str(eval(call, {"draw": draw}))


def test_the_test_of_another_track_s_recipe_is_not_overwritten(root):
    (root.parent / "tests" / "recipes" / f"test_{NEW}.py").write_text("of another")
    files = {file.name for file in new.skeleton(f"hopper/{NEW}", "", root)}
    assert files == {f"{NEW}.py", f"test_hopper_{NEW}.py"}


@pytest.mark.parametrize(
    ("name", "base", "says"),
    [
        ("hopper", "", "name: got 'hopper'; needed <track>/<file_name>"),
        ("volta/my_gemm", "", "name: got 'volta/my_gemm'; needed"),
        ("hopper/My-Gemm", "", "name: got 'hopper/My-Gemm'; needed"),
        ("hopper/tuned_gemm", "", "name: got 'hopper/tuned_gemm', which exists; needed a new name"),
        (f"hopper/{NEW}", "ampere/ldmatrix_gemm", "from: got 'ampere/ldmatrix_gemm'; needed one of hopper/"),
        (f"foundations/{NEW}", "", "needed a track with a GEMM"),
    ],
)
def test_what_cannot_be_begun_is_refused(root, name, base, says):
    with pytest.raises(ValueError) as refused:
        new.skeleton(name, base, root)
    assert says in str(refused.value)


def test_without_tests_beside_the_recipes_there_is_no_checkout(tmp_path):
    shutil.copytree(catalog.recipes_root(), tmp_path / "_recipes")
    with pytest.raises(ValueError, match="needed a checkout of the repository"):
        new.skeleton(f"hopper/{NEW}", "", tmp_path / "_recipes")


def test_the_command_writes_them_and_says_what_is_next(root, monkeypatch):
    monkeypatch.setattr(catalog, "recipes_root", lambda: root)
    done = CliRunner().invoke(app, ["new", f"hopper/{NEW}"])
    assert done.exit_code == 0 and (root / "hopper" / f"{NEW}.py").is_file(), done.output
    assert f"cookbook check hopper/{NEW}" in done.stderr
