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


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.integers(0, 2**n - 1), min_size=n, max_size=n)))
def test_inverse_undoes_or_says_singular(rows):
    n = len(rows)
    matrix = np.array([[row >> i & 1 for i in range(n)] for row in rows])
    if gf2.rank(matrix) < n:
        with pytest.raises(ValueError, match=f"needed rank {n}"):
            gf2.inverse(matrix)
    else:
        assert np.array_equal(gf2.inverse(matrix) @ matrix % 2, np.eye(n))


@pytest.mark.parametrize("bad", [np.array([0, 1]), np.array([[2]])])
def test_only_bits(bad):
    with pytest.raises(ValueError, match="0 and 1"):
        gf2.rank(bad)


def test_only_square():
    with pytest.raises(ValueError, match="square"):
        gf2.inverse(np.zeros((2, 3), int))
    with pytest.raises(ValueError, match=">= 0"):
        gf2.rank_of_ints([-1])
