"""The colour of who was timed: the same in every chart, of the site and of a notebook."""

from __future__ import annotations

from collections.abc import Iterable

from cookbook.measure import ceilings
from cookbook.measure.contest import OURS
from cookbook.measure.peers import QUACK, TORCH
from cookbook.products.integer import INTEGER
from cookbook.products.scaled import BLOCKWISE, FAST, SLOW
from cookbook.products.transpose import COPY, TORCH_TRANSPOSE

# In the middle of the scale: at least 3 : 1 against the light card and against the dark one.
OURS_COLOUR, VARIANT, OTHER_RECIPE, CEILING_COLOUR = "#d9700c", "#b08d57", "#b455c8", "#848e9a"
COLOURS = {
    OURS: OURS_COLOUR,
    TORCH: "#2f7fd1",
    TORCH_TRANSPOSE: "#2f7fd1",
    FAST: "#2f7fd1",
    BLOCKWISE: "#2f7fd1",
    INTEGER: "#2f7fd1",
    SLOW: "#1f9a9a",
    QUACK: "#2a9360",
    COPY: CEILING_COLOUR,
    ceilings.PEER: CEILING_COLOUR,
}


def colour_of(name: str) -> str:
    """The colour of who was timed: a peer's own, that of other recipes, or that of a recipe's other variants."""
    return COLOURS.get(name, OTHER_RECIPE if "/" in name else VARIANT)


def coloured(names: Iterable[str], ours: str | None = None) -> dict[str, str]:
    """The colour of each name; `ours` is what ours is called among them."""
    return {name: OURS_COLOUR if name == ours else colour_of(name) for name in names}
