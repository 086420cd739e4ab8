"""The ways of the data: each ends where C lies, and passes the memory that the architecture accumulates in."""

from __future__ import annotations

import pytest
from pictures import described, texts

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
