import xml.etree.ElementTree as ET

import numpy as np
import pytest

from cookbook import draw
from cookbook.model.scale_factors import atom_offsets

GROUP = "{http://www.w3.org/2000/svg}g"
BYTES = np.arange(512)


def copied(step=4, lane=1 << 18):
    """(source, target) of a copy of an atom to every warp's lanes: 16 bytes of a line to four columns."""
    source = np.tile(BYTES, 4)
    warp = np.repeat(np.arange(4), 512)
    inside = source % 16
    return source, (source // 16 + 32 * warp) * lane + inside // 4 * step + inside % 4


def boxes(picture):
    return [g.attrib for g in ET.fromstring(picture.svg).iter(GROUP)]


def test_every_word_and_every_block_of_cells_is_drawn():
    found = boxes(draw.scale_atom(atom_offsets(128, 4), *copied(), block=32, per_step=1))
    words = {(g["data-line"], g["data-word"]): g["data-row"] for g in found if "data-word" in g}
    assert len(words) == 128 and words["0", "1"] == "32" and words["5", "3"] == "101"
    cells = {(g["data-warp"], g["data-column"]): g["data-rows"] for g in found if "data-column" in g}
    assert cells == {(str(w), str(c)): f"rows {32 * c}-{32 * c + 31}" for w in range(4) for c in range(4)}


@pytest.mark.parametrize(("per_step", "steps"), [(1, 4), (2, 2), (4, 1)])
def test_which_mma_reads_which_bytes(per_step, steps):
    picture = draw.scale_atom(atom_offsets(128, 4), *copied(), block=16, per_step=per_step)
    assert sum(f"tcgen05.mma {step}<" in picture.svg for step in range(4)) == (steps if steps > 1 else 0)
    assert ("one tcgen05.mma" in picture.svg) == (steps == 1)
    assert "k 48-63" in picture.svg


def test_a_copy_that_mixes_rows_shows():
    source, target = copied()
    picture = draw.scale_atom(
        atom_offsets(128, 4), np.roll(source.reshape(4, 32, 16), 1, axis=1).ravel(), target, 32, 1
    )
    assert {g["data-rows"] for g in boxes(picture) if "data-column" in g} == {"mixed"}


@pytest.mark.parametrize(
    ("offsets", "pair", "says"),
    [
        (atom_offsets(128, 4).T.reshape(128, 4), copied(), "got factors of a row apart"),
        (atom_offsets(64, 4), copied(), "needed (128, 4)"),
        (atom_offsets(128, 4), copied(step=8), "column 6; needed 128 lanes, 4 columns"),
        (atom_offsets(128, 4), copied(lane=2 << 18), "got lane 254"),
        (atom_offsets(128, 4), [x[:512] for x in copied()], "cells that nothing is copied to"),
        (atom_offsets(128, 4), (copied()[0], copied()[1] + 1), "words in cells"),
    ],
)
def test_what_is_no_atom_is_refused(offsets, pair, says):
    with pytest.raises(ValueError, match=r"(offsets|target): got") as raised:
        draw.scale_atom(offsets, *pair, block=32, per_step=1)
    assert says in str(raised.value)
