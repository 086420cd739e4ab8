"""The bits of an address and the wires of a swizzle."""

from __future__ import annotations

import re

import pytest
from pictures import (
    described,
    found,
    labels,
)

from cookbook import draw
from cookbook.swizzle import Swizzle


@pytest.mark.parametrize(
    ("swizzle", "wires", "masks"),
    [
        (Swizzle(3, 2, 3), ["5->2", "6->3", "7->4"], "yyy mask 0xe0, zzz mask 0x1c, period 256"),
        (Swizzle(2, 1, -3), ["1->4", "2->5"], "yyy mask 0x6, zzz mask 0x30, period 64"),
        (Swizzle(0, 4, 3), [], "yyy mask 0x0, zzz mask 0x0, period 128"),
    ],
)
def test_swizzle_bits_wires_every_changed_bit(swizzle, wires, masks):
    picture = draw.swizzle_bits(swizzle)
    assert [g.get("data-xor") for g in found(picture) if g.get("data-xor")] == wires
    assert masks in described(picture)
    for wire in wires:
        source, bit = wire.split("->")
        assert labels(found(picture, side="out", bit=bit)) == [f"b{bit}^b{source}"]


def test_swizzle_bits_says_what_its_wiring_does():
    """Reading the picture back as a function of the bits gives the swizzle."""
    swizzle = Swizzle(3, 2, 4)
    said = {int(g.get("data-bit")): labels([g])[0] for g in found(draw.swizzle_bits(swizzle, n=10), side="out")}
    for offset in range(1024):
        out = 0
        for bit, text in said.items():
            for source in re.findall(r"b(\d+)", text):
                out ^= (offset >> int(source) & 1) << bit
        assert out == swizzle(offset)


def test_swizzle_bits_names_fields_from_the_lowest_bit():
    picture = draw.swizzle_bits(Swizzle(3, 2, 3), fields={"byte": 2, "column": 3, "row": 3})
    assert [g.get("data-field") for g in found(picture) if g.get("data-field")] == ["byte", "column", "row"]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: draw.swizzle_bits("S<3,4,3>"), TypeError, "swizzle: got 'S<3,4,3>'"),
        (lambda: draw.swizzle_bits(Swizzle(3, 4, 3), n=9), ValueError, "n: got 9; needed 10"),
    ],
)
def test_bad_input_is_named(call, error, match):
    with pytest.raises(error, match=match):
        call()
