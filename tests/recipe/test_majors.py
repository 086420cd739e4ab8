"""The two letters of operand majors, and what follows from them."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from cookbook.recipe import majors


@dataclasses.dataclass(frozen=True)
class Config:
    tile_m: int = 128
    a_major: str = "k"
    b_major: str = "k"


def test_letters_are_those_of_blas():
    """BLAS computes C = op(A) op(B) on matrices stored by columns; op is the transpose where the letter is t."""
    for which, said in majors.MAJORS.items():
        assert majors.letters(*said) == which
        by_columns = {"t": torch.empty(5, 3), "n": torch.empty(3, 5).T}  # A (5, 3) by rows: its transpose by columns
        assert (said[0] == "k") == (by_columns[which[0]].stride(1) == 1)
        by_columns = {"t": torch.empty(3, 7), "n": torch.empty(7, 3).T}
        assert (said[1] == "k") == (by_columns[which[1]].stride(0) == 1)


def test_configured_and_back():
    for which, said in majors.MAJORS.items():
        made = majors.configured(Config(64), which)
        assert majors.of_config(made) == said and made.tile_m == 64
    plain = dataclasses.make_dataclass("Plain", ["tile_m"])(64)
    assert majors.configured(plain) is plain and majors.of_config(plain) == ("k", "k")
    with pytest.raises(ValueError, match="majors: got nt; needed tn: Plain has no a_major"):
        majors.configured(plain, "nt")
    with pytest.raises(ValueError, match="majors: got 'xy'; needed one of tn, tt, nn, nt"):
        majors.configured(plain, "xy")
    with pytest.raises(ValueError, match="a_major, b_major: got 'k', 'm'"):
        majors.letters("k", "m")


@pytest.mark.parametrize(
    ("which", "shape", "extent", "aligned"),
    [
        ("tn", (3, 5, 12), "K = 12", (3, 5, 16)),
        ("tn", (3, 5, 16), "", (3, 5, 16)),
        ("tt", (3, 5, 16), "N = 5", (3, 8, 16)),
        ("nn", (3, 5, 16), "M = 3", (8, 5, 16)),
        ("nt", (8, 16, 7), "", (8, 16, 7)),
        ("nt", (9, 16, 7), "M = 9", (16, 16, 7)),
    ],
)
def test_extents_in_whole_pieces(which, shape, extent, aligned):
    assert majors.misfit(shape, which) == extent
    assert majors.align(shape, which) == aligned and majors.misfit(aligned, which) == ""


@pytest.mark.parametrize(("which", "kernels"), [("tn", "tn"), ("tt", "nn"), ("nn", "tt"), ("nt", "nt")])
def test_a_kernel_that_swaps_operands_has_swapped_majors(which, kernels):
    """Its A is b, transposed: an N-major b is M-major there. A field of the Config goes before one of the module."""
    config = majors.configured(Config(), which)
    plain, swapping = SimpleNamespace(), SimpleNamespace(TRANSPOSED=True)
    assert majors.of_kernel(plain, config) == majors.MAJORS[which] and not majors.swaps(plain, config)
    assert majors.of_kernel(swapping, config) == majors.MAJORS[kernels] and majors.swaps(swapping, config)
    told = SimpleNamespace(a_major=config.a_major, b_major=config.b_major, swap_ab=False)
    assert majors.of_kernel(swapping, told) == majors.MAJORS[which]
