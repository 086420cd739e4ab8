"""The ways of the data: each ends where C lies, and passes the memory that the architecture accumulates in."""

from __future__ import annotations

import pytest
from pictures import described, found, texts

from cookbook import draw

ACCUMULATES = {"ampere": "registers", "hopper": "registers", "blackwell": "tensor memory"}


@pytest.mark.parametrize("name", ACCUMULATES)
def test_a_way_leads_from_the_matrices_to_c(name):
    picture = draw.data_path(name)
    stops = described(picture).split(" -> ")
    assert stops[0] == "A, B" and stops[-1] == "C" and "tensor core" in stops
    after = stops[stops.index("tensor core") + 1]
    said = [str(t) for t in texts(picture)]
    assert ACCUMULATES[name] in said and after in said
    assert ("tensor memory" in said) == (name == "blackwell")


def test_another_architecture_is_refused():
    with pytest.raises(ValueError, match="architecture: got 'volta'; needed"):
        draw.data_path("volta")


def test_a_kind_of_memory_has_one_colour_in_all_pictures():
    colours = {}
    for name in ACCUMULATES:
        picture = draw.data_path(name)
        stops = {g.get("data-stop"): g[0].get("fill") for g in found(picture) if g.get("data-stop")}
        for stop, where in (("A, B", "global"), ("sA, sB", "shared"), ("tCrC", "registers"), ("tensor core", "core")):
            colours.setdefault(where, set()).add(stops[stop])
    assert all(len(each) == 1 for each in colours.values()) and len(set.union(*colours.values())) == 4
