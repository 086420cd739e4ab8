"""`cookbook swizzle solve` and `design`: accesses as instructions, code, bounds, and what they refuse in a line."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from cookbook import cli
from cookbook.cli import layouts
from cookbook.solve.design import Banks, Unsolvable, phases_in, wavefronts_of
from cookbook.solve.design import solve as solver


def call(*arguments: str):
    return CliRunner().invoke(cli.app, arguments)


def said(*arguments: str):
    return json.loads(call(*arguments, "--json").stdout)


SOLVE = ("swizzle", "solve", "--tile", "128x64", "--bits", "16")


def test_solve_takes_an_ldmatrix_and_explains_its_block():
    found = said(*SOLVE, "--access", "ldmatrix.x4@16x16", "--access", "1x64")
    assert found["swizzle_in_elements"] == [3, 3, 3] and [a["now"] for a in found["accesses"]] == [4, 1]
    shown = call(*SOLVE, "--access", "16x16", "--access", "1x64").stdout
    assert "S<2,5,2> over bytes = S<2,4,2> over 16-bit elements" in shown
    assert "16x16 is taken along its rows; an ldmatrix of it is ldmatrix.x4@16x16" in shown
    assert "ldmatrix.x4@16x16" in call("swizzle", "solve", "--help").stdout
    count = said("banks", *SOLVE[2:], "--swizzle", "2,5,2", "--access", "ldmatrix.x4@16x16")
    assert count[0]["wavefronts"] == 8


def test_solve_keeps_vectors_on_tiles_of_any_size():
    found = said("swizzle", "solve", "--tile", "24x64", "--bits", "16", "--vector", "8", "--access", "8x8")
    assert found["swizzle_in_elements"][1] >= 3


@pytest.mark.parametrize(
    ("tile", "bits", "accesses"),
    [
        ((96, 80), 16, ["ldmatrix.x4@16x16", "cp.async16@8x32"]),
        ((12, 36), 32, ["ld32@12x1", "ld32@1x18", "ld32@6x3", "ld32@3x6"]),
        ((24, 40), 16, ["ldmatrix.x4@16x16", "ld128@4x40/3x1"]),
        ((6, 10), 32, ["ld32@6x5", "ld32@5x6"]),
    ],
)
def test_advice_was_tried(tile, bits, accesses):
    """What it says helps, does; what it says does not, does not; by a count that shares no code with it."""
    with pytest.raises(Unsolvable) as refused:
        solver(tile, bits, accesses)
    advice = refused.value.advice
    assert advice.startswith("Tried besides: rows that lie ") and advice in str(refused.value)

    def serves(offsets):
        return all(wavefronts_of(offsets, bits, a) == phases_in(tile, bits, a, Banks())[1] for a in accesses)

    rows, columns = np.indices(tile)
    pitch = re.search(r"rows that lie (\d+) (?:to (\d+) )?elements apart", advice)
    if pitch[2] is None:
        assert "serve all of them" in advice and serves(rows * int(pitch[1]) + columns)
    else:
        assert "none helps" in advice
        assert not any(serves(rows * each + columns) for each in range(tile[1], 2 * int(pitch[2])) if each % 8 == 0)
    for shape, fits in re.findall(r"a tile of (\d+x\d+) is (served by|not served either)", advice):
        larger = tuple(map(int, shape.split("x")))
        if fits == "served by":
            assert solver(larger, bits, accesses).wavefronts
        else:
            with pytest.raises(Unsolvable):
                solver(larger, bits, accesses)


@pytest.mark.parametrize("given", [("--no-check",), ()])
def test_a_proof_is_checked_or_not(given):
    toy = ("swizzle", "solve", "--tile", "2x4", "--banks", "4", "--access", "1,2", "--access", "1,4", "--access", "1,6")
    done = call(*toy, *given)
    assert done.exit_code == 1
    assert ("proof not checked" if given else "proof checked: it holds") in done.stdout
    assert said(*toy, *given)["checked"] is (None if given else True)


def test_a_long_check_says_how_far_it_is(capsys, monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) * 1.5)
    tell = layouts._progress("checking the proof")
    for done in (256, 512, 768, 1024):
        tell(done, 1024)
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("checking the proof: 512 of 1024 steps\n")


def test_design_gives_the_code_and_the_way_on():
    done = call("swizzle", "design", "--row", "64", "--bits", "16", "--vector", "8")
    assert "cute.make_layout((rows, 64), stride=(64, 1))" in done.stdout and "cute.make_swizzle(3, 4, 3)" in done.stdout
    assert "cute.make_composed_layout(swizzle, 0, outer)" in done.stdout
    line = next(line for line in done.stdout.splitlines() if "cookbook swizzle solve" in line)
    arguments = line.partition("cookbook ")[2].removesuffix(" --access ...").split()
    assert arguments[-4:] == ["--access", "st128@4x64", "--access", "ld128@32x8"]
    found = said(*arguments)
    assert found["swizzle_in_elements"] == [3, 3, 3] and "make_swizzle(3, 4, 3)" in found["cute_code"]


@pytest.mark.parametrize("row", ["4096", "1048576"])
def test_design_takes_rows_longer_than_a_tile_can_be(row):
    found = said("swizzle", "design", "--row", row, "--bits", "32")
    assert found["wavefronts"]["column read"] == {"plain": 32, "now": 1, "ideal": 1}
    assert found["other_accesses"].startswith("cookbook swizzle solve, of tiles of up to 65536")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("solve", "--tile", "4x8x64", "--access", "1x8"),
            "--tile: got '4x8x64'; needed two integers: flatten the leading",
        ),
        (
            ("solve", "--tile", "8x8", "--access", "8x1", "--banks", "268435456"),
            "--banks: got 268435456; needed a power",
        ),
        (("solve", "--tile", "8x8", "--access", "8x1", "--vector", "3"), "--vector: got 3; needed a power of two"),
        (("solve", "--tile", "10x37", "--access", "8x1", "--vector", "2"), "--vector: got 2 for rows of 37 elements"),
        (("solve", "--tile", "8x8", "--access", "ld999@8x1"), "--access: got 'ld999@8x1'; needed one of ld8"),
        (
            ("solve", "--tile", "8x8", "--access", "ld32@64x1"),
            "--access: got ld32@64x1 of 32-bit elements, which is 64",
        ),
        (("solve", "--tile", "10x37", "--access", "1,2"), "--tile: got 10x37 for span(1,2); needed powers of two"),
        (("solve", "--tile", "255x257", "--bits", "16", "--access", "16x16"), "--access: got 16x16, which can lie at"),
        (("solve", "--tile", "999999999999x9", "--access", "1x1"), "--tile: got 999999999999; needed"),
        (("solve", "--tile", "8x8", "--access", "8x1", "--bits", "8.5"), "--bits: got '8.5'"),
        (("design", "--row", "2097152"), "--row: got 2097152; needed a power of two, 1 to 1048576"),
        (("design", "--row", "-4"), "--row: got -4"),
        (("design", "--row", "64", "--vector", "64"), "--vector: got 64"),
    ],
)
def test_what_is_refused_is_one_line(arguments, says):
    done = call("swizzle", *arguments)
    assert done.exit_code == 2 and done.stderr.startswith(says) and done.stderr.count("\n") == 1, done.stderr
