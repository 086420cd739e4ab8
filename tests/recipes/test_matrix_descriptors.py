"""Matrix descriptors: the page derives them from the layout as the package and CuTe do."""

from __future__ import annotations

import pytest

from cookbook import atoms as atoms_library
from cookbook.layouts import Layout, SmemLayout
from cookbook.model import operand_descriptors
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

PAGE = catalog.load("foundations/matrix_descriptors")


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("bits", range(4))
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_descriptors_derived_from_the_layout_equal_the_librarys(major, bits, order) -> None:
    layout = SmemLayout(Layout(*PAGE.shape_and_stride(major, bits, order)), Swizzle(bits, 4, 3), 16)
    derived = PAGE.blocks(major, bits, order)
    model = operand_descriptors(layout, rows=128, base=2048, major=major)
    assert [PAGE.hopper(d) for d in derived] == [d.encode() for d in model]
    for d, k in zip(derived, range(0, 64, 16), strict=True):
        theirs = atoms_library.descriptor(layout, major, "sm_100a", rows=128, origin=(0, k), base=2048)
        assert PAGE.blackwell(d) == theirs.encode()


@pytest.mark.parametrize("major", ["K", "MN"])
def test_the_tensor_core_reads_the_layout_by_its_distances(major: str) -> None:
    for bits in range(4):
        for order in ((0, 1), (1, 0)):
            assert PAGE.misread(major, bits, order) == 0
            assert PAGE.misread(major, bits, order, exchanged=True) > 0


def test_blackwells_word_is_hoppers_with_a_constant() -> None:
    for bits in range(4):
        d = PAGE.Descriptor(2080, 16, 1024, bits)
        assert PAGE.blackwell(d) == PAGE.hopper(d) | 1 << 46
