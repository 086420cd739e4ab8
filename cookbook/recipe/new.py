"""A recipe to begin with: the text of an existing GEMM under a front matter of its own, and a test beside it."""

from __future__ import annotations

import re
from pathlib import Path

from cookbook.recipe import catalog

_NAME = re.compile(r"[a-z][a-z0-9_]*/[a-z][a-z0-9_]*")
# What a new recipe does not take over: what was said or asked of the old one alone.
_NOT_KEPT = ("bench_shapes", "compared_with", "tuned")
_TEST = '''\
"""{name}: what is its own. What every recipe must hold, tests/recipes/test_recipes.py and others ask of all of them."""

from __future__ import annotations

from cookbook.check import levels

NAME = "{name}"


def test_its_layouts_its_model_and_its_code_hold():
    report = levels.check(NAME, shapes=[(200, 136, 72)], dtypes=["{dtype}"], targets=["{target}"])
    assert report.failed == ()
'''


def skeleton(name: str, base: str = "", root: Path | None = None) -> dict[Path, str]:
    """The files of a new GEMM recipe with their text: the recipe, and its test.

    Args:
        name: `<track>/<file name>` of the new one.
        base: the GEMM whose text it begins with; the first of its track if left out.
        root: the folder of the recipes; the source tree's if left out.

    Raises:
        ValueError: a name that is none or is taken, a base that is no GEMM of the same track, or no source tree.
    """
    root = root or catalog.recipes_root()
    track, _, stem = name.partition("/")
    if not _NAME.fullmatch(name) or track not in catalog.TRACKS:
        raise ValueError(f"name: got {name!r}; needed <track>/<file_name>, a track of {', '.join(catalog.TRACKS)}")
    tests = root.parent / "tests" / "recipes"
    if not tests.is_dir():
        raise ValueError(f"name: got {name!r} where {root} has no tests beside it; needed a checkout of the repository")
    if (root / f"{name}.py").exists():
        raise ValueError(f"name: got {name!r}, which exists; needed a new name")
    known = [recipe for recipe in catalog.recipes(root) if recipe.track == track]
    gemms = [recipe for recipe in known if recipe.kind == "gemm"]
    old = next((recipe for recipe in gemms if base in ("", recipe.name, recipe.name.partition("/")[2])), None)
    if old is None:
        names = ", ".join(recipe.name for recipe in gemms)
        raise ValueError(f"from: got {base!r}; needed {f'one of {names}' if names else 'a track with a GEMM'}")
    text = _retold(old, name, order=max(recipe.order for recipe in known) + 10)
    test = _TEST.format(name=name, dtype=old.dtypes[0], target=old.targets[0])
    beside = tests / f"test_{stem}.py"
    if beside.exists():  # of a recipe of another track
        beside = tests / f"test_{track}_{stem}.py"
    return {root / f"{name}.py": text, beside: test}


def _retold(old: catalog.Recipe, name: str, order: int) -> str:
    """The text of `old` as that of `name`: title, claim, order and base are new, and it names itself."""
    source = old.file.read_text(encoding="utf-8")
    title = name.partition("/")[2].replace("_", " ").capitalize()
    new = {"title": title, "claim": f"What {title} changes, and what that brings.", "order": str(order)}
    header, body = source.split("\n# ---\n", 1)
    kept, skipping = [], False
    for line in header.splitlines():
        key = re.match(r"#     (\w+):", line)
        if key:
            skipping = key[1] in (*_NOT_KEPT, "builds_on")
            if key[1] in new:
                kept.append(f"#     {key[1]}: {new[key[1]]}")
                skipping = True
        if not skipping:
            kept.append(line)
    kept.append(f"#     builds_on: {old.name}")
    body = re.sub(r"^# # .*$", f"# # {title}", body, count=1, flags=re.MULTILINE)
    body = re.sub(rf"(?<=[\"']){re.escape(old.name)}(?=[\"'])", name, body)
    return "\n".join(kept) + "\n# ---\n" + body
