import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cookbook.swizzle import Swizzle


@st.composite
def swizzles(draw):
    bits, base = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    return Swizzle(bits, base, draw(st.integers(bits, 6)) * draw(st.sampled_from((1, -1))))


def bit_by_bit(s, x):
    """An independent statement of Swizzle<B,M,S>: one bit at a time."""
    low = s.base
    high = s.base + abs(s.shift)
    source, target = (high, low) if s.shift >= 0 else (low, high)
    for i in range(s.bits):
        x ^= (x >> (source + i) & 1) << (target + i)
    return x


@given(swizzles(), st.integers(0, 2**20))
def test_apply(s, x):
    assert s(x) == bit_by_bit(s, x)
    assert s(s(x)) == x
    assert s(x + s.period) == s(x) + s.period
    array = np.array([x, x + 1])
    assert s(array).tolist() == [s(x), s(x + 1)]
    assert s(array).dtype == array.dtype and array[0] == x


@given(swizzles())
def test_bijection_of_one_period(s):
    assert sorted(s(np.arange(s.period)).tolist()) == list(range(s.period))
    assert s.period == 2 ** (s.bits + s.base + abs(s.shift))
    assert s.bits == 0 or not s.yyy & s.zzz


@given(swizzles(), st.integers(0, 2**15 - 1))
def test_matrix_is_the_map(s, x):
    matrix = s.matrix(15)
    bits = np.array([x >> i & 1 for i in range(15)])
    assert sum(int(b) << i for i, b in enumerate(matrix @ bits % 2)) == s(x)
    assert np.array_equal(matrix @ matrix % 2, np.eye(15, dtype=int))  # its own inverse


@given(swizzles(), st.sampled_from((8, 16, 32, 64)), st.integers(0, 2**14))
def test_bytes_and_elements_agree(s, element_bits, x):
    size = element_bits // 8
    assert s.in_bytes(element_bits)(x * size) == s(x) * size
    assert s.in_bytes(element_bits).in_elements(element_bits) == s


def test_the_byte_swizzle_of_bf16():
    s = Swizzle(3, 4, 3)
    assert s.in_elements(16) == Swizzle(3, 3, 3)
    assert s.in_elements(16)(64) == 72 and s(64) == 64  # element (1, 0) of a 64-element row: 72, never 64
    assert repr(s) == "S<3,4,3>"
    assert (s.yyy, s.zzz) == (0b111 << 7, 0b111 << 4)
    assert (Swizzle(2, 1, -3).yyy, Swizzle(2, 1, -3).zzz) == (0b110, 0b110000)


def test_worked_tables():
    rows = Swizzle(3, 2, 3)(np.arange(64) * 4).reshape(8, 8) // 4 % 8
    assert rows[1].tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    assert [int("".join(map(str, r))) for r in rows][-1] == 76543210
    column = Swizzle(3, 2, 3)(np.arange(8) * 32)
    assert column.tolist() == [0, 36, 72, 108, 144, 180, 216, 252]
    by_four = Swizzle(4, 0, 4)(np.arange(512)).reshape(32, 16)
    assert [r for r in range(32) if (by_four[r] == np.arange(16) + 16 * r).all()] == [0, 16]


@pytest.mark.parametrize(("args", "legal"), [((3, 4, 2), "S<3,4,3>"), ((2, 0, -1), "S<2,0,-2>")])
def test_illegal_shift_names_the_nearest(args, legal):
    with pytest.raises(ValueError) as caught:
        Swizzle(*args)
    assert legal in str(caught.value) and "silently becomes the identity S<0,4,3>" in str(caught.value)


def test_both_units_are_said():
    assert Swizzle(3, 4, 3).both(16) == "S<3,4,3> over bytes = S<3,3,3> over 16-bit elements"
    assert Swizzle(3, 4, 3).both(4) == "S<3,4,3> over bytes = S<3,5,3> over 4-bit elements"
    assert Swizzle(5, 0, 5).both(32) == "S<5,0,5> over bytes, which would split 32-bit elements"
    assert Swizzle(0, 4, 3).both(16) == "no swizzle"


@given(st.integers(1, 3), st.integers(1, 5), st.integers(3, 5), st.sampled_from((1, 2, 4)), st.integers(0, 1 << 20))
def test_elements_that_share_a_byte(bits, base, shift, element_bits, offset):
    """A swizzle of bytes moves such elements with their byte, and keeps their order in it."""
    s, each = Swizzle(bits, base, shift), 8 // element_bits
    moved = s.in_elements(element_bits)
    assert moved(offset) == s(offset // each) * each + offset % each and moved.in_bytes(element_bits) == s


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"element_bits.*nearest swizzle of bytes that keeps it whole is S<3,1,3>"):
        Swizzle(3, 0, 3).in_elements(16)
    with pytest.raises(ValueError, match="nearest S<0,4,3>"):
        Swizzle(-1, 4, 3)
    with pytest.raises(ValueError, match="power of two"):
        Swizzle(3, 4, 3).in_elements(24)
    with pytest.raises(ValueError, match="packed, 2 lie in 3 bytes: count bytes"):
        Swizzle(3, 4, 3).in_bytes(12)
    with pytest.raises(ValueError, match="needed M of 1 at least, which keeps a byte together"):
        Swizzle(3, 0, 3).in_bytes(4)
    with pytest.raises(ValueError, match="both >= 0"):
        Swizzle(-1, 4, 3)
    with pytest.raises(TypeError, match="base"):
        Swizzle(1, 4.0, 3)
    with pytest.raises(TypeError, match="offset"):
        Swizzle(1, 4, 3)(1.5)
    with pytest.raises(TypeError, match="offset"):
        Swizzle(1, 4, 3)(np.ones(2))
    with pytest.raises(ValueError, match="too narrow"):
        Swizzle(3, 4, 3)(np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="at least 10"):
        Swizzle(3, 4, 3).matrix(9)
    assert Swizzle(0, 0, 3).in_elements(16)(5) == 5


def test_cute_agrees():
    cute = pytest.importorskip("cutlass.cute")
    from cookbook.layouts import evaluate

    def images():
        found = []
        for b, m, s in ((3, 4, 3), (2, 3, 3), (1, 0, -2), (3, 1, 4)):
            layout = cute.make_composed_layout(cute.make_swizzle(b, m, s), 0, cute.make_layout(512))
            found.append(((b, m, s), [layout(i * 7) for i in range(73)]))
        return found

    for args, theirs in evaluate(images):
        assert theirs == [Swizzle(*args)(i * 7) for i in range(73)]


def test_to_and_from_cute():
    cute = pytest.importorskip("cutlass.cute")
    from cookbook.layouts import evaluate

    legal = [Swizzle(b, m, s) for b in range(1, 4) for m in range(5) for s in (-4, -3, 3, 4)]

    def there_and_back():
        illegal = Swizzle.from_cute(cute.make_swizzle(3, 4, 2))
        same = [Swizzle.from_cute(s.to_cute()) for s in legal]
        return [(s.bits, s.base, s.shift) for s in (illegal, *same)]

    illegal, *same = evaluate(there_and_back)
    assert [Swizzle(*args) for args in same] == legal
    assert Swizzle(*illegal) == Swizzle(0, 4, 3)  # CuTe's silent answer, which the message of Swizzle tells of
    with pytest.raises(TypeError, match=r"needed a cute.Swizzle"):
        Swizzle.from_cute(3)
