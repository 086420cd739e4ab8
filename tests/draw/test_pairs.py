import xml.etree.ElementTree as ET

import pytest

from cookbook import draw

GROUP = "{http://www.w3.org/2000/svg}g"


def groups(picture, **wanted):
    found = (g.attrib for g in ET.fromstring(picture.svg).iter(GROUP))
    return [g for g in found if all(g.get(f"data-{key}") == value for key, value in wanted.items())]


def test_every_cta_has_rows_of_c_and_fetches_one_part():
    shown = draw.pair_view({"pair": (1, 1), "down": (2, 1), "2x2": (2, 2)})
    for name, ranks in (("pair", "01"), ("down", "0123"), ("2x2", "01234567")):
        for what in "ABC":
            assert [g["data-rank"] for g in groups(shown, cluster=name, what=what)] == list(ranks)


def test_a_half_of_b_is_divided_among_the_pairs_of_a_column():
    """Ranks 0 and 2 have the same half: they lie side by side, before 1 and 3."""
    shown = ET.fromstring(draw.pair_view({"down": (2, 1)}).svg)
    at = {}
    for g in shown.iter(GROUP):
        if g.get("data-what") == "B":
            at[g.get("data-rank")] = float(g.find("{http://www.w3.org/2000/svg}rect").get("x"))
    assert sorted(at, key=at.get) == ["0", "2", "1", "3"]


def test_what_a_cta_asks_for_is_said():
    shown = draw.pair_view({"pair": (1, 1), "across": (1, 2), "down": (2, 1)}).svg
    for said in ("128 rows of A, 128 columns of B", "64 rows of A, 128 columns of B", "128 rows of A, 64 columns of B"):
        assert said in shown


@pytest.mark.parametrize("clusters", [{}, {"none": (0, 1)}, {"many": (3, 2)}])
def test_clusters_that_cannot_be_drawn(clusters):
    with pytest.raises(ValueError, match="clusters: "):
        draw.pair_view(clusters)
