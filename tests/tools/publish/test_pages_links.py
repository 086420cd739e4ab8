"""Links of recipes: notebooks name each other's .ipynb and files of docs/, their pages each other's page and docs'."""

from __future__ import annotations

import nbformat
import pytest

from tools.publish import pages


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("Next: [b](b.ipynb).", "Next: [b](b.md)."),
        ("[c](../hopper/c.ipynb) and [d](d.py)", "[c](../hopper/c.md) and [d](d.py)"),
        ("`x.ipynb` is text", "`x.ipynb` is text"),
        ("[e](../../docs/e.md#how)", "[e](../../e.md#how)"),
    ],
)
def test_a_link_to_a_notebook_becomes_one_to_its_page(source, shown):
    assert pages._cell(nbformat.v4.new_markdown_cell(source), "") == [shown]
