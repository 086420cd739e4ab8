"""The commands about layouts: what they say, as JSON too, and how they refuse."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from cookbook import cli, design
from cookbook.swizzle import Swizzle


def call(*arguments: str):
    return CliRunner().invoke(cli.app, arguments)


def said(*arguments: str):
    done = call(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "command",
    [("swizzle", "explain"), ("swizzle", "design"), ("swizzle", "solve"), ("atom",), ("banks",), ("draw",)],
)
def test_every_help_has_an_example(command):
    done = call(*command, "--help")
    assert done.exit_code == 0 and f"Example: cookbook {' '.join(command)}" in done.stdout


def test_explain_says_it_in_elements_and_draws_both():
    done = call("swizzle", "explain", "3", "4", "3", "--bits", "16")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert "on 16-bit elements  S<3,3,3>" in done.stdout and "bits 4-6 of the byte address ^= bits 7-9" in done.stdout
    assert any(line.split() == ["1", "144", "128", "176", "160", "208", "192", "240", "224"] for line in lines)
    assert any(line.split() == ["1", "72", "64", "88", "80", "104", "96", "120", "112"] for line in lines)


def test_explain_json_and_units():
    both = said("swizzle", "explain", "3", "4", "3", "--bits", "16")
    assert both["in_bytes"] == [3, 4, 3] and both["in_elements"] == [3, 3, 3]
    assert both["byte_addresses"][1][:2] == [144, 128] and both["element_offsets"][1][:2] == [72, 64]
    assert (both["yyy"], both["zzz"], both["period_bytes"]) == (0b111 << 7, 0b111 << 4, 1024)
    elements = said("swizzle", "explain", "3", "4", "3", "--bits", "16", "--unit", "elements")
    assert elements["in_bytes"] == [3, 5, 3] and "software must store" in elements["tma"]
    split = said("swizzle", "explain", "3", "0", "3", "--bits", "16")
    assert split["in_elements"] is None and "would split such an element" in split["why_not_in_elements"]
    below = said("swizzle", "explain", "2", "3", "-3", "--bits", "16")
    assert below["in_elements"] == [2, 2, -3]
    assert said("swizzle", "explain", "0", "4", "3")["byte_addresses"][0][0] == 0
    assert "none: " in call("swizzle", "explain", "3", "0", "3", "--bits", "16").stdout


def test_design_frees_row_and_column():
    found = said("swizzle", "design", "--row", "64", "--bits", "16", "--vector", "8")
    assert found["in_elements"] == [3, 3, 3] and found["in_bytes"] == [3, 4, 3]
    assert found["wavefronts"]["column read"] == {"plain": 32, "now": 4, "ideal": 4}
    assert found["wavefronts"]["row store"] == {"plain": 4, "now": 4, "ideal": 4}
    shown = call("swizzle", "design", "--row", "64", "--bits", "16", "--vector", "8")
    assert "S<3,3,3>" in shown.stdout and "writes it in mode 128B" in shown.stdout


def test_solve_prints_the_map_its_counts_and_its_code():
    arguments = ("swizzle", "solve", "--tile", "32x32", "--bits", "32", "--access", "1x32", "--access", "32x1")
    done = call(*arguments, "--access", "4x8")
    assert done.exit_code == 0
    assert "S<5,0,5> of the permuted layout ((4,8),32):((256,32),1)" in done.stdout
    assert any(line.split() == ["32x1", "32", "1", "1"] for line in done.stdout.splitlines())
    assert "cute.make_swizzle(5, 2, 5)" in done.stdout
    found = said(*arguments, "--access", "4x8")
    same = design.solve((32, 32), 32, [(1, 32), (32, 1), (4, 8)])
    assert found["kind"] == "permuted" and found["swizzle_in_elements"] == [5, 0, 5]
    assert found["cute_code"] == same.cute_code() and found["matrix"] == same.matrix.tolist()
    assert [a["now"] for a in found["accesses"]] == [1, 1, 1] == [a["ideal"] for a in found["accesses"]]


def test_solve_with_steps_a_basis_and_toy_banks():
    toy = ("swizzle", "solve", "--tile", "8x8", "--bits", "32", "--banks", "8", "--access", "1x8")
    assert said(*toy, "--access", "8x1")["swizzle_in_elements"] == [3, 0, 3]
    assert said(*toy, "--access", "4x2/2x1")["swizzle_in_elements"] == [2, 1, 3]
    assert said(*toy, "--access", "8,16,32")["swizzle_in_elements"] == [3, 0, 3]


def test_solve_gives_the_proof_when_there_is_none():
    three = [part for basis in ("1,2", "1,4", "1,6") for part in ("--access", basis)]
    arguments = ("swizzle", "solve", "--tile", "2x4", "--bits", "32", "--banks", "4", *three)
    done = call(*arguments)
    assert done.exit_code == 1
    assert "cannot be served together" in done.stdout and "proof checked: it holds" in done.stdout
    found = json.loads(call(*arguments, "--json").stdout)
    assert found["solvable"] is False and found["checked"] is True and found["conflicting"] == [0, 1, 2]


def test_atom_names_it_and_says_why():
    done = call("atom", "--major", "K", "--bits", "16", "--tile", "128x64")
    assert done.exit_code == 0 and "K_SW128" in done.stdout and "the widest there is" in done.stdout
    found = said("atom", "--major", "MN", "--bits", "32", "--tile", "64x32")
    assert found["name"] == "MN_SW128_32B" and found["swizzle"] == [2, 5, 2]
    hopper = said("atom", "--major", "K", "--bits", "16", "--tile", "128x32", "--arch", "sm_90a")
    fields = {f["field"]: f["encoded"] for f in hopper["descriptor"]}
    assert hopper["name"] == "K_SW64" and fields["swizzle mode"] == 2 and fields["stride byte offset"] == 512 // 16
    assert int(hopper["descriptor_bits"], 16) == 2 << 62 | 32 << 32 | 1 << 16


def test_banks_counts_and_shows_them():
    column = ("banks", "--tile", "32x32", "--bits", "32", "--access", "32x1")
    assert said(*column)[0]["wavefronts"] == 32
    assert said(*column, "--swizzle", "5,0,5")[0]["wavefronts"] == 1
    padded = said(*column, "--pitch", "33", "--access", "1x32")
    assert [row["wavefronts"] for row in padded] == [1, 1]
    assert padded[0]["words_by_bank_in_the_first_phase"] == [1] * 32
    shown = call(*column)
    assert shown.exit_code == 0 and any(line.split()[:2] == ["32", "0"] for line in shown.stdout.splitlines())


@pytest.mark.parametrize(
    ("what", "options", "contains"),
    [
        ("layout", ("--tile", "8x8", "--swizzle", "3,0,3", "--access", "8x1"), "S&lt;3,0,3&gt;"),
        (
            "layout",
            (
                "--tile",
                "8x8",
            ),
            "8 x 8 elements",
        ),
        ("lines", ("--tile", "8x64", "--bits", "16", "--swizzle", "3,3,3"), "S&lt;3,4,3&gt; on bytes"),
        ("masks", ("--swizzle", "3,4,3"), "S&lt;3,4,3&gt;"),
        ("matrix", ("--tile", "8x8", "--swizzle", "3,0,3", "--access", "8x1"), "bank 0"),
        ("access", ("--tile", "32x32", "--swizzle", "5,0,5", "--access", "32x1"), "wavefronts: 1, ideal 1"),
        ("access", ("--tile", "32x32", "--access", "32x1"), "wavefronts: 32, ideal 1"),
        ("atoms", ("--bits", "16"), "K_SW128"),
    ],
)
def test_draw_writes_a_picture(what, options, contains, tmp_path):
    file = tmp_path / "x.svg"
    done = call("draw", what, *options, "-o", str(file))
    assert done.exit_code == 0, done.stderr
    text = file.read_text()
    assert text.startswith("<svg") and contains in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("swizzle", "explain", "3", "4", "2"), "nearest legal swizzle is S<3,4,3>"),
        (("swizzle", "explain", "3", "4", "3", "--bits", "12"), "element_bits: got 12"),
        (("swizzle", "explain", "3", "4", "3", "--unit", "words"), "--unit: got 'words'"),
        (("swizzle", "design", "--row", "48"), "needed a power of two (nearest: 32)"),
        (("swizzle", "solve", "--tile", "8", "--access", "8x1"), "--tile: got '8'"),
        (("swizzle", "solve", "--tile", "8x8", "--access", "a"), "--access: got 'a'"),
        (("swizzle", "solve", "--tile", "8x8", "--access", "16x1"), "needed one inside 8x8"),
        (("swizzle", "solve", "--tile", "8x8", "--access", "8x1", "--banks", "7"), "banks: got 7"),
        (("atom", "--major", "Q", "--tile", "64x64"), "major: got 'Q'"),
        (("atom", "--major", "K", "--tile", "64x64", "--arch", "sm_80"), "multiply from registers"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--swizzle", "3,0"), "--swizzle: got '3,0'"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--pitch", "4"), "--pitch: got 4"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--bits", "20"), "element_bits: got 20"),
        (("draw", "cube", "-o", "x.svg"), "WHAT: got 'cube'"),
        (("draw", "masks", "-o", "x.svg"), "--swizzle: got none"),
        (("draw", "atoms", "--bits", "16", "-o", "x.png"), "ends in .svg"),
        (("draw", "access", "-o", "x.svg"), "--access: got none"),
    ],
)
def test_a_wrong_argument_is_exit_2_and_named(arguments, says):
    done = call(*arguments)
    assert done.exit_code == 2, done.stdout
    flat = " ".join(done.stderr.replace("│", " ").split())
    assert says in flat


def test_explained_numbers_are_the_swizzle():
    found = said("swizzle", "explain", "2", "5", "2", "--bits", "32")
    cells = [address for row in found["byte_addresses"] for address in row]
    assert cells == [Swizzle(2, 5, 2)(32 * i) for i in range(len(cells))] and len(cells) == 512 // 32
