import xml.etree.ElementTree as ET

import pytest

from cookbook import draw

GROUP = "{http://www.w3.org/2000/svg}g"


def groups(picture):
    return [g.attrib for g in ET.fromstring(picture.svg).iter(GROUP)]


def test_ranks_of_a_cluster_count_down_and_fetch_their_parts():
    found = groups(draw.cluster_view({"2x2": (2, 2), "3x1": (3, 1)}))
    assert [g["data-rank"] for g in found if g["data-cluster"] == "2x2" and g["data-what"] == "C"] == [
        "0",
        "2",
        "1",
        "3",
    ]
    for what in "ABC":  # every CTA has one part of each
        assert sorted(g["data-rank"] for g in found if g["data-cluster"] == "3x1" and g["data-what"] == what) == list(
            "012"
        )


def test_what_a_cluster_asks_for_is_said():
    shown = draw.cluster_view({"2x1": (2, 1), "1x2": (1, 2)}).svg
    assert "A + B/2 a CTA" in shown and "A/2 + B a CTA" in shown


@pytest.mark.parametrize("clusters", [{}, {"none": (0, 1)}, {"many": (3, 3)}])
def test_clusters_that_cannot_be_drawn(clusters):
    with pytest.raises(ValueError, match="clusters: "):
        draw.cluster_view(clusters)
