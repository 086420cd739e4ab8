"""A docstring begins with an act or a thing: it is read faster than a question that is left open."""

from __future__ import annotations

import ast
import re

from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
FOLDERS = ("cookbook", "tools", "recipes")
OPEN = re.compile(r"(What|Whether|Which|How|Who|Whose|Of|Those)\b")
MOST = 0.03  # of all docstrings
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def test_few_docstrings_begin_with_a_question_word():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    trees = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in files]
    nodes = [(path, node) for path, tree in trees for node in ast.walk(tree) if isinstance(node, _DOCUMENTED)]
    texts = [(path, text) for path, node in nodes if (text := ast.get_docstring(node))]
    begun = [f"{path.relative_to(ROOT)}: {text.splitlines()[0]}" for path, text in texts if OPEN.match(text)]
    assert len(texts) > 4000
    assert len(begun) <= MOST * len(texts), "\n".join(begun)
