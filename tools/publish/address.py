"""Where the repository is: `[tool.cookbook] repository` of pyproject.toml, the one setting, and links made of it.

`python -m tools.publish.pages address ADDRESS` sets it, and writes what cannot ask for it: CITATION.cff and README's
badges. "" takes all of them out again.
"""

from __future__ import annotations

import re
from pathlib import Path

from cookbook.recipe import catalog

BRANCH = "main"
EXECUTED = "notebooks"  # the branch that holds the executed notebooks of `BRANCH`: .github/workflows/site.yml pushes it
FIRST = "notebooks/primer/hello_kernel.ipynb"  # where a reader begins
_SETTING = re.compile(r'^\[tool\.cookbook\]\n(?:[^\[\n]*\n)*?repository = "(?P<address>[^"\n]*)"', re.M)


def repository(settings: Path | None = None) -> str:
    """The repository's address without a slash at the end; "" while it is not decided.

    Args:
        settings: a pyproject.toml; this tree's if left out. Read as text: tomllib came with Python 3.11.

    Raises:
        ValueError: the file has no such setting, or an address that is not of https.
    """
    settings = settings or catalog.recipes_root().parent / "pyproject.toml"
    found = _SETTING.search(settings.read_text(encoding="utf-8"))
    if not found:
        raise ValueError(f"settings: got {settings} without the setting; needed [tool.cookbook] with repository = ...")
    address = found["address"].rstrip("/")
    if address and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+)+", address):
        raise ValueError(f"repository: got {address!r}; needed an address such as https://github.com/OWNER/NAME")
    return address


def site(settings: Path | None = None) -> str:
    """Return where GitHub Pages serves the site of the repository; "" if it has none, or lies elsewhere."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+)/([\w.-]+)", repository(settings))
    return f"https://{found[1].lower()}.github.io/{found[2]}/" if found else ""


def colab(path: str, settings: Path | None = None) -> str:
    """Return where Colab opens an executed notebook of the repository; "" if it is not on GitHub.

    Args:
        path: from the root: "notebooks/primer/layouts.ipynb".
    """
    found = re.fullmatch(r"https://github\.com/(.+)", repository(settings))
    return f"https://colab.research.google.com/github/{found[1]}/blob/{EXECUTED}/{path}" if found else ""


def badges(settings: Path | None = None) -> str:
    """README's badges as markdown; "" while the repository has no address on GitHub."""
    address = repository(settings)
    if not address.startswith("https://github.com/"):
        return ""
    tests = f"{address}/actions/workflows/tests.yml"
    made = {
        "tests": (f"{tests}/badge.svg", tests),
        "PyPI": ("https://img.shields.io/pypi/v/cute-cookbook", "https://pypi.org/project/cute-cookbook/"),
        "site": ("https://img.shields.io/badge/site-read-teal", site(settings)),
        "Open in Colab": ("https://colab.research.google.com/assets/colab-badge.svg", colab(FIRST, settings)),
    }
    return "\n".join(f"[![{name}]({picture})]({link})" for name, (picture, link) in made.items())


def cited(text: str, settings: Path | None = None) -> str:
    """CITATION.cff with the lines of the addresses as they are now."""
    lines = [line for line in text.splitlines() if not line.startswith(("repository-code:", "url:"))]
    known = {"repository-code": repository(settings), "url": site(settings)}
    return "\n".join([*lines, *(f"{key}: {value}" for key, value in known.items() if value)]) + "\n"


def decide(address: str, settings: Path) -> None:
    """Write the setting.

    Raises:
        ValueError: it is no address; nothing has been written.
    """
    before = settings.read_text(encoding="utf-8")
    settings.write_text(_SETTING.sub(lambda found: found[0].replace(f'"{found["address"]}"', f'"{address}"'), before))
    try:
        repository(settings)
    except ValueError:
        settings.write_text(before, encoding="utf-8")
        raise


def source_of(path: str, edit: bool = False, settings: Path | None = None) -> str:
    """The address of a file of the repository, to read or to edit it; "" while the repository has none.

    Args:
        path: from the root: "recipes/hopper/tma_copy.py".
    """
    address = repository(settings)
    return f"{address}/{'edit' if edit else 'blob'}/{BRANCH}/{path}" if address else ""
