"""The wheel and the sdist, built from this tree: complete, and of use where there is no source tree.

The environment that they are installed into is new. What they depend on is lent to it by this one, so that nothing is
downloaded but the build's own tool; this one's cookbook is not, for that is installed as a link to the source tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from cookbook.recipe import catalog
from tools.publish import notebooks

pytestmark = pytest.mark.slow
pytest.importorskip("build")
ROOT = catalog.recipes_root().parent


def run(*command, cwd, **variables):
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")} | variables
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, made of the sdist, as PyPI's users who build for themselves have it."""
    folder = tmp_path_factory.mktemp("dist")
    made = run(sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT), cwd=folder)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of an environment's commands, in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    done = run(python, "-m", "pip", "install", "--quiet", "--no-deps", str(built[1]), cwd=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "lib").glob("python*/site-packages")
    (packages / "lent.pth").write_text("\n".join(lent()) + "\n")
    return folder / "bin"


def lent():
    """Lines of a .pth file: where this environment's packages are, and what they add, without its link to a source
    tree."""
    here = Path(sysconfig.get_paths()["purelib"])
    others = [line for file in sorted(here.glob("*.pth")) for line in file.read_text().splitlines()]
    return [str(here), *(line for line in others if line.startswith("import "))]


def test_wheel_has_recipes_and_records_and_says_what_it_needs(built):
    with zipfile.ZipFile(built[1]) as wheel:
        names = wheel.namelist()
        metadata = HeaderParser().parsestr(wheel.read(next(n for n in names if n.endswith("METADATA"))).decode())
    for recipe in catalog.recipes():
        assert f"cookbook/_recipes/{recipe.name}.py" in names
    records = {str(path.relative_to(ROOT / "results")) for path in (ROOT / "results").rglob("*.json")}
    assert {name.removeprefix("cookbook/_results/") for name in names if name.endswith(".json")} == records
    assert not [name for name in names if name.startswith(("tests/", "tools/", "notebooks/"))]
    assert metadata["Name"] == "cute-cookbook" and "torch>=2.6" in metadata.get_all("Requires-Dist")
    assert metadata.get_all("Project-URL", []) == []  # while the repository's address is not decided


def test_the_sdist_has_the_tests_and_what_builds_it(built):
    with tarfile.open(built[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"pyproject.toml", "hatch_build.py", "LICENSE", "Makefile", "CITATION.cff", "tests/conftest.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", "site/", "notebooks/"))]


def test_it_runs_where_there_is_no_source_tree(installed, tmp_path):
    said = run(installed / "python", "-c", "import cookbook; print(cookbook.__file__)", cwd=tmp_path).stdout
    assert str(installed.parent) in said
    cookbook = installed / "cookbook"
    listed = run(cookbook, "list", cwd=tmp_path)
    assert listed.returncode == 0 and "tma_wgmma_gemm" in listed.stdout
    copied = run(cookbook, "copy", "hopper/tma_wgmma_gemm", "my_gemm.py", cwd=tmp_path)
    assert copied.returncode == 0 and (tmp_path / "my_gemm.py").is_file(), copied.stderr
    checked = run(cookbook, "check", "my_gemm.py", cwd=tmp_path)
    assert checked.returncode == 0 and "product" in checked.stdout, checked.stdout + checked.stderr
    assert "Usage" in run(cookbook, "bench", "--help", cwd=tmp_path).stdout


def test_a_notebook_runs_where_there_is_no_source_tree(installed, tmp_path):
    notebook = tmp_path / "made.ipynb"
    notebook.write_text(notebooks.written(notebooks.from_recipe("primer/layouts")), encoding="utf-8")
    command = ["-m", "nbconvert", "--to", "notebook", "--execute", "--output", "run.ipynb", str(notebook)]
    done = run(installed / "python", *command, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run.ipynb").is_file()
