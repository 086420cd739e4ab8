import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook import gf2


def span_size(vectors):
    span = {0}
    for v in vectors:
        span |= {x ^ v for x in span}
    return len(span)


@given(st.lists(st.integers(0, 255), max_size=8))
def test_rank_counts_the_span(vectors):
    assert 2 ** gf2.rank_of_ints(vectors) == span_size(vectors)
    if vectors:
        rows = np.array([[v >> i & 1 for i in range(8)] for v in vectors])
        assert gf2.rank(rows) == gf2.rank(rows.T) == gf2.rank_of_ints(vectors)


@pytest.mark.parametrize("bad", [np.array([0, 1]), np.array([[2]])])
def test_only_bits(bad):
    with pytest.raises(ValueError, match="0 and 1"):
        gf2.rank(bad)


def test_only_integers_of_0_or_more():
    with pytest.raises(ValueError, match=">= 0"):
        gf2.rank_of_ints([-1])


@given(st.lists(st.integers(0, 255), max_size=8))
def test_span_echelon_and_annihilator(vectors):
    basis = gf2.echelon(vectors)
    assert len(basis) == gf2.rank_of_ints(vectors)
    assert set(gf2.span(basis).tolist()) == set(gf2.span(vectors).tolist())
    tops = [v.bit_length() - 1 for v in basis]
    assert tops == sorted(set(tops)) and all(sum(v >> t & 1 for v in basis) == 1 for t in tops)
    masks = gf2.annihilator(vectors, 8)
    assert len(masks) == 8 - len(basis)
    assert not any((mask & v).bit_count() % 2 for mask in masks for v in vectors)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=7))
def test_kernel_is_what_goes_to_zero(images):
    def image(vector):
        total = 0
        for bit, value in enumerate(images):
            total ^= value * (vector >> bit & 1)
        return total

    found = set(gf2.span(gf2.kernel(images)).tolist())
    assert found == {v for v in range(1 << len(images)) if image(v) == 0}
