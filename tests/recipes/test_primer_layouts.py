"""The primer's page on layouts: what it says of composition, and its exercises with right and wrong answers."""

from __future__ import annotations

from types import SimpleNamespace

import cutlass.cute as cute
import pytest

from cookbook.check import exercises
from cookbook.layouts import Layout, evaluate
from cookbook.recipe import catalog

NAME = "primer/layouts"


def test_every_claim_holds():
    assert [name for name, holds, _ in catalog.load(NAME).facts() if not holds] == []


def test_a_composition_that_is_no_layout_is_refused():
    assert [Layout((4, 3), (3, 1)).table().T.ravel()[i] for i in (0, 3, 6)] == [0, 9, 7]
    with pytest.raises(Exception, match="unable to compute the following composition"):
        evaluate(lambda: cute.composition(cute.make_layout((4, 3), stride=(3, 1)), cute.make_layout(3, stride=3)))
    assert "unable to compute the following composition" in catalog.find(NAME).file.read_text(encoding="utf-8")


def padded_columns(rows, cols):
    return cute.make_layout((rows, cols), stride=(1, -(-rows // 8) * 8))


def every_other_column(layout):
    return cute.composition(layout, cute.make_layout((4, 3), stride=(1, 8)))


def tile_by_tile():
    return cute.make_layout(((4, 2), (4, 2)), stride=((4, 32), (1, 16)))


def test_right_answers_are_right():
    answers = SimpleNamespace(
        padded_columns=padded_columns, every_other_column=every_other_column, tile_by_tile=tile_by_tile
    )
    assert [one.line for one in exercises.tried(NAME, answers) if one.status != exercises.RIGHT] == []


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("padded_columns", lambda rows, cols: cute.make_layout((rows, cols)), "offset of (0, 1): got 6; needed 8"),
        (
            "padded_columns",
            lambda rows, cols: cute.make_layout((rows, cols), stride=(1, 8)),
            "(0, 1): got 8; needed 16",
        ),
        (
            "padded_columns",
            lambda rows, cols: cute.make_layout((rows, cols), stride=(1, 8 * (rows // 8 + 1))),
            "(0, 1): got 16; needed 8",
        ),
        ("padded_columns", lambda rows, cols: cute.make_layout((rows, cols), stride=(8, 1)), "(1, 0): got 8; needed 1"),
        ("padded_columns", lambda rows, cols: cute.make_layout((8, cols), stride=(1, 8)), "size: got 32; needed 24"),
        (
            "every_other_column",
            lambda layout: cute.composition(layout, cute.make_layout((4, 3), stride=(1, 4))),
            "(0, 1): got 1; needed 2",
        ),
        (
            "every_other_column",
            lambda layout: cute.composition(layout, cute.make_layout((2, 2, 3), stride=(1, 2, 8))),
            "size of each mode: got [2, 2, 3]; needed [4, 3]",
        ),
        ("every_other_column", lambda layout: cute.make_layout((4, 3), stride=(6, 2)), "(1, 0): got 6; needed 1"),
        ("every_other_column", lambda layout: layout, "size: got 24; needed 12"),
        (
            "tile_by_tile",
            lambda: cute.make_layout(((4, 2), (4, 2)), stride=((4, 16), (1, 32))),
            "(4, 0): got 16; needed",
        ),
        (
            "tile_by_tile",
            lambda: cute.make_layout(((4, 2), (4, 2)), stride=((1, 32), (4, 16))),
            "(1, 0): got 1; needed 4",
        ),
        ("tile_by_tile", lambda: cute.make_layout((8, 8), stride=(8, 1)), "(1, 0): got 8; needed 4"),
        (
            "tile_by_tile",
            lambda: cute.make_layout((4, 2, 4, 2), stride=(4, 32, 1, 16)),
            "size of each mode: got [4, 2, 4, 2]; needed [8, 8]",
        ),
        ("tile_by_tile", lambda: 1 / 0, "it raised ZeroDivisionError: division by zero"),
    ],
)
def test_wrong_answers_are_told_what_they_gave_and_must_give(name, answer, said):
    found = {one.name: one for one in exercises.tried(NAME, SimpleNamespace(**{name: answer}))}
    assert found[name].status == exercises.WRONG and said in found[name].detail
