"""One setting says where the repository is; with it or without, nothing that is published has a link that is broken."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell

from cookbook.recipe import catalog
from tools.publish import address, notebooks, pages

ADDRESS = "https://github.com/Someone/some-cookbook"
ROOT = catalog.recipes_root().parent


@pytest.fixture
def tree(tmp_path):
    """What the address is written into."""
    for name in ("pyproject.toml", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_all_that_is_published_takes_links_from_the_setting(tree):
    pages.move_to("", tree)
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    assert ADDRESS.encode() not in b"".join(before.values())
    settings = tree / "pyproject.toml"
    pages.move_to(ADDRESS, tree)

    assert address.repository(settings) == ADDRESS
    cited = yaml.safe_load((tree / "CITATION.cff").read_text())
    assert (cited["repository-code"], cited["url"]) == (ADDRESS, "https://someone.github.io/some-cookbook/")
    badges = re.findall(r"\[!\[(.*?)\]\((.*?)\)\]\((.*?)\)", (tree / "README.md").read_text())
    assert [name for name, _, _ in badges] == ["tests", "PyPI", "site", "Open in Colab"]
    first = notebooks.from_recipe("primer/hello_kernel", settings).cells[0]
    assert f"git+{ADDRESS}" in first.source and "setup" in first.metadata["tags"]
    for link in (badges[3][2], address.colab(address.FIRST, settings)):
        assert link.endswith(f"github/Someone/some-cookbook/blob/notebooks/{address.FIRST}")
    assert notebooks.notebook_path("primer/hello_kernel") == ROOT / address.FIRST

    pages.move_to("", tree)
    assert {path: path.read_bytes() for path in before} == before


def test_without_an_address_there_is_no_link(tree):
    settings = tree / "pyproject.toml"
    address.decide("", settings)
    assert address.repository(settings) == address.site(settings) == address.badges(settings) == ""
    assert address.colab("notebooks/a.ipynb", settings) == address.source_of("a.py", settings=settings) == ""
    assert "git+" not in notebooks.setup(settings)


@pytest.mark.parametrize("inside", ["recipes/primer", ""])
def test_without_an_address_the_package_is_the_clones(inside, tree, monkeypatch):
    """The name is nobody's on the index: whoever takes it there would be run by every notebook."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(ROOT / inside)
    assert first_cell(tree) == [("pip", f'install --quiet --editable "{ROOT}"')]


def test_without_an_address_and_a_clone_the_first_cell_says_so(tree, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(tree)
    with pytest.raises(ModuleNotFoundError, match=r"^cookbook: got no clone of it around .*; needed one: pip install"):
        first_cell(tree)


def test_where_the_package_is_nothing_is_installed(tree):
    assert first_cell(tree) == []


def first_cell(tree) -> list[tuple[str, str]]:
    """The magics that the first cell runs, with no address."""
    settings, shell, ran = tree / "pyproject.toml", InteractiveShell(), []
    address.decide("", settings)
    shell.run_line_magic = lambda magic, line, **_: ran.append((magic, shell.var_expand(line)))
    shell.run_cell(notebooks.setup(settings)).raise_error()
    return ran


def test_elsewhere_than_github_are_no_pages_badges_and_colab(tree):
    settings = tree / "pyproject.toml"
    address.decide("https://gitlab.com/a/b", settings)
    assert address.source_of("a.py", settings=settings) == "https://gitlab.com/a/b/blob/main/a.py"
    assert address.site(settings) == address.badges(settings) == address.colab("a.ipynb", settings) == ""


@pytest.mark.parametrize("wrong", ["http://github.com/a/b", "github.com/a/b", "https://github.com", "no address"])
def test_what_is_no_address_is_refused_and_nothing_is_written(wrong, tree):
    before = (tree / "pyproject.toml").read_text()
    with pytest.raises(ValueError, match=r"repository: got .*; needed an address such as"):
        address.decide(wrong, tree / "pyproject.toml")
    assert (tree / "pyproject.toml").read_text() == before


def test_workflows_are_yaml_and_pin_every_action_by_commit():
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert [file.stem for file in files] == ["release", "site", "tests"]
    for file in files:
        jobs = yaml.safe_load(file.read_text())["jobs"]
        used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
        assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in used)
        assert len(re.findall(r"@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", file.read_text(), re.M)) == len(used)


def test_the_site_pushes_the_branch_that_colab_opens():
    """It executes the pages, then commits the notebooks alone, with no history."""
    site = (ROOT / ".github" / "workflows" / "site.yml").read_text()
    job = yaml.safe_load(site)["jobs"]["notebooks"]
    assert job["needs"] == "build" and job["permissions"] == {"contents": "write"}
    assert f"HEAD:{address.EXECUTED}" in job["steps"][-1]["run"] and "--orphan" in job["steps"][-1]["run"]
