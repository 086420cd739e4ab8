"""The commands about layouts: what they say, as JSON too, and how they refuse."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cookbook import cli
from cookbook.solve import design
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
    assert "S<5,2,5> over bytes = S<5,0,5> over 32-bit elements, of the permuted layout" in " ".join(
        done.stdout.split()
    )
    assert any(line.split() == ["32x1", "32", "1", "1"] for line in done.stdout.splitlines())
    assert "cute.make_swizzle(5, 2, 5)" in done.stdout
    found = said(*arguments, "--access", "4x8")
    same = design.solve((32, 32), 32, [(1, 32), (32, 1), (4, 8)])
    assert found["kind"] == "permuted" and found["swizzle_in_elements"] == [5, 0, 5]
    assert found["swizzle_in_bytes"] == [5, 2, 5]
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
    assert found["read_by"] == "tcgen05.mma" and "make_swizzle(2, 5, 2)" in found["cute_code"]
    hopper = said("atom", "--major", "K", "--bits", "16", "--tile", "128x32", "--arch", "sm_90a")
    fields = {f["field"]: f["encoded"] for f in hopper["descriptor"]}
    assert hopper["name"] == "K_SW64" and fields["swizzle mode"] == 2 and fields["stride byte offset"] == 512 // 16
    assert int(hopper["descriptor_bits"], 16) == 2 << 62 | 32 << 32 | 1 << 16


@pytest.mark.parametrize(("arch", "major"), [("sm_80", "K"), ("sm_89", "MN"), ("sm_120a", "K")])
def test_atom_of_what_ldmatrix_reads(arch, major):
    """Those recipes choose their atoms by the same rule; there is no descriptor."""
    found = said("atom", "--major", major, "--tile", "64x64", "--arch", arch)
    assert found["name"] == f"{major}_SW128" and found["descriptor"] == [] and found["descriptor_bits"] is None
    assert found["read_by"] == ("ldmatrix" if major == "K" else "ldmatrix.trans")
    shown = call("atom", "--major", major, "--tile", "64x64", "--arch", arch).stdout
    assert found["read_by"] in shown and "cute.make_swizzle(3, 4, 3)" in shown and "descriptor" not in shown


def test_atom_of_4_bit_elements_is_laid_out_in_bytes():
    """As recipes/blackwell/nvfp4_gemm.py does it."""
    found = said("atom", "--major", "K", "--bits", "4", "--tile", "128x256")
    assert found["name"] == "K_SW128" and found["atom"] == {"shape": [8, 128], "stride": [128, 1], "element_bits": 8}
    assert "(128, 128, stages)" in found["cute_code"] and "Two elements lie in a byte" in found["reason"]


def test_bytes_are_the_unit_and_every_answer_says_both(tmp_path):
    """The layout that the home page and `atom` name is free of conflicts by the numbers that they name it with."""
    both = "S<3,4,3> over bytes = S<3,3,3> over 16-bit elements"
    tile = ("--tile", "128x64", "--bits", "16")
    read = ("--access", "ldmatrix.x4@16x16")
    (row,) = said("banks", *tile, *read, "--swizzle", "3,4,3")
    assert (row["wavefronts"], row["ideal"]) == (4, 4)
    assert (row["swizzle_in_bytes"], row["swizzle_in_elements"]) == ([3, 4, 3], [3, 3, 3])
    assert said("banks", *tile, *read, "--swizzle", "3,3,3", "--unit", "elements") == [row]
    file = str(tmp_path / "x.svg")
    for command in (
        ("banks", *tile, *read, "--swizzle", "3,4,3"),
        ("banks", *tile, *read, "--swizzle", "3,3,3", "--unit", "elements"),
        ("draw", "lines", *tile, "--swizzle", "3,4,3", "-o", file),
        ("draw", "matrix", *tile, "--swizzle", "3,3,3", "--unit", "elements", "-o", file, "--force"),
        ("swizzle", "design", "--row", "64", "--bits", "16", "--vector", "8"),
        ("swizzle", "solve", *tile, *read),
        ("atom", "--major", "K", *tile),
    ):
        assert both in " ".join(call(*command).stdout.split()), command


@pytest.mark.parametrize("numbers", [("3,4,3",), ("3", "4", "3"), ("3,4", "3")])
def test_explain_takes_commas_or_spaces(numbers):
    found = said("swizzle", "explain", *numbers)
    assert found["in_bytes"] == [3, 4, 3] and found["alignment_bytes"] == 1024


def test_an_identity_asks_for_no_alignment():
    done = call("swizzle", "explain", "0", "4", "3")
    assert "multiple of" not in done.stdout and "none needed: it moves nothing" in done.stdout
    assert said("swizzle", "explain", "0", "4", "3")["alignment_bytes"] == 1


def test_explain_takes_elements_that_share_a_byte():
    found = said("swizzle", "explain", "3", "4", "3", "--bits", "4")
    assert found["in_elements"] == [3, 5, 3] and found["element_offsets"][1][:2] == [288, 256]
    assert said("swizzle", "explain", "3", "5", "3", "--bits", "4", "--unit", "elements")["in_bytes"] == [3, 4, 3]
    assert "S<3,5,3> on offsets of 4-bit elements" in call("swizzle", "explain", "3,4,3", "--bits", "4").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("banks", "--tile", "64x64", "--access", "8x1"),
        ("draw", "layout", "-o", "x.svg"),
        ("swizzle", "solve", "--tile", "64x64", "--access", "8x1"),
        ("swizzle", "design", "--row", "64"),
    ],
)
def test_elements_that_share_bytes_are_told_what_to_do(command):
    for bits, share in (("1", "8 lie in 1 byte"), ("4", "2 lie in 1 byte"), ("6", "4 lie in 3"), ("12", "2 lie in 3")):
        done = call(*command, "--bits", bits)
        assert (
            done.exit_code == 2 and f"--bits: got {bits}; needed 8, 16, 32, 64 or 128; packed, {share}" in done.stderr
        )
        assert "count bytes, so 8 bits and" in done.stderr
        assert ("S<3,5,3> over these elements" in done.stderr) == (bits == "4")
    assert "take 8: an MMA reads each" in call("atom", "--major", "K", "--tile", "64x64", "--bits", "6").stderr


SIX = [part for shape in ("2x4", "4x2", "8x1", "4x2/2x1", "2x4/4x1", "2x4/1x2") for part in ("--access", shape)]
SNIPPETS = {  # a command that prints CuTe-DSL, and what a kernel calls of it; "": it has a kernel of its own
    ("atom", "--major", "K", "--tile", "128x64"): "cute.printf(cute.size(smem_layout(3).outer))",
    ("atom", "--major", "MN", "--bits", "8", "--tile", "128x64", "--arch", "sm_120"): "smem_layout(2)",
    ("atom", "--major", "K", "--bits", "4", "--tile", "128x128"): "smem_layout(2)",
    ("swizzle", "design", "--row", "64", "--bits", "16", "--vector", "8"): "smem_layout(32)",
    ("swizzle", "solve", "--tile", "128x64", "--bits", "16", "--access", "ldmatrix.x4@16x16"): "",
    ("swizzle", "solve", "--tile", "32x32", "--access", "1x32", "--access", "32x1", "--access", "4x8"): "",
    ("swizzle", "solve", "--tile", "24x64", "--bits", "8", "--access", "ldmatrix.x4@16x32"): "",
    ("swizzle", "solve", "--tile", "8x8", "--bits", "64", "--access", "1x8"): "",
    ("swizzle", "solve", "--tile", "8x8", "--bits", "128", "--access", "1x8"): "smem_layout()",
    ("swizzle", "solve", "--tile", "8x8", "--banks", "8", *SIX): "cute.printf(smem_offset(1, 2))",
}


@pytest.mark.parametrize("command", SNIPPETS, ids=" ".join)
def test_what_a_command_prints_compiles_as_it_is_pasted(command, tmp_path):
    pytest.importorskip("cutlass")
    from snippets import compiles

    shown = CliRunner(env={"COLUMNS": "200"}).invoke(cli.app, command).stdout
    lines = [line.rstrip() for line in shown.splitlines()]
    start = next(number for number, line in enumerate(lines) if line.startswith("import cutlass"))
    code = "\n".join(line for line in lines[start:] if not line.startswith("For other accesses:")) + "\n"
    assert compiles(code, tmp_path / "pasted.py", SNIPPETS[command])


def test_a_large_swizzle_is_explained_and_not_drawn():
    done = call("swizzle", "explain", "3", "4", "24")
    assert done.exit_code == 0 and "a table of 134217728 cells is not drawn" in done.stdout
    found = said("swizzle", "explain", "3", "4", "24")
    assert found["byte_addresses"] is None and found["yyy"] == 7 << 28


ACCESSES = st.one_of(
    st.tuples(st.integers(1, 20), st.integers(1, 20)).map(lambda s: f"{s[0]}x{s[1]}"),
    st.tuples(*[st.sampled_from((1, 2, 4, 8, 16, 32, 64))] * 2).map(lambda s: f"{s[0]}x{s[1]}"),
    st.sampled_from(("ldmatrix.x4@16x16", "ldmatrix.x2@16x8", "ld32@32x1", "st64@8x8/down", "cp.async16@4x32")),
    st.tuples(*[st.sampled_from((1, 2, 4, 8))] * 4).map(lambda s: f"{s[0]}x{s[1]}/{s[2]}x{s[3]}"),
    st.lists(st.integers(1, 511), min_size=1, max_size=4).map(lambda v: ",".join(map(str, v))),
    st.tuples(
        st.sampled_from(("ld8", "ld16", "ld32", "ld64", "ld128", "st64", "cp.async16", "ldmatrix.x2", "ldmatrix.x4")),
        *[st.sampled_from((1, 2, 4, 8, 16, 32, 64))] * 2,
        st.sampled_from(("", "/down")),
    ).map(lambda s: f"{s[0]}@{s[1]}x{s[2]}{s[3]}"),
)
SIDES = st.one_of(st.sampled_from((8, 16, 32, 64)), st.sampled_from((24, 33, 40, 48)), st.integers(1, 48))
SWIZZLES = st.sampled_from((None, "1,0,3", "2,2,3", "3,3,3", "5,0,5", "3,2,-3", "2,4,2"))


@settings(max_examples=120, deadline=None)
@given(SIDES, SIDES, st.sampled_from((16, 32, 16, 32, 8, 64, 128)), ACCESSES, SWIZZLES)
def test_draw_and_banks_say_the_same(tmp_path_factory, rows, columns, bits, access, swizzle):
    """Both count, or both refuse, in the same words; and the picture has as many rows as it says wavefronts."""
    options = ["--tile", f"{rows}x{columns}", "--bits", str(bits), "--access", access]
    options += ["--swizzle", swizzle, "--unit", "elements"] if swizzle else []
    file = tmp_path_factory.mktemp("draw") / "x.svg"
    counted, drawn = call("banks", *options, "--json"), call("draw", "access", *options, "-o", str(file))
    if "instructions; needed 1 to 64 to draw" in drawn.stderr:
        assert drawn.exit_code == 2 and json.loads(counted.stdout)[0]["ideal"] > 64
        return
    assert counted.exit_code == drawn.exit_code in (0, 2), (counted.output, drawn.output)
    event(f"exit {counted.exit_code}")
    if counted.exit_code:
        assert counted.stderr == drawn.stderr and ": got " in drawn.stderr
        return
    row, text = json.loads(counted.stdout)[0], file.read_text()
    assert f"wavefronts: {row['wavefronts']}, ideal {row['ideal']}, excess" in text
    wavefronts: dict[float, int] = {}  # by where a phase begins on the page: the last row of any bank
    cells = re.findall(
        r'<g data-phase="\d+" data-bank="(\d+)" data-wavefront="(\d+)" [^>]*><rect x="[\d.]+" y="([\d.]+)"', text
    )
    for _, wavefront, y in cells:
        top = float(y) - 20 * int(wavefront)
        wavefronts[top] = max(wavefronts.get(top, 0), int(wavefront) + 1)
    assert sum(wavefronts.values()) == row["wavefronts"]


@pytest.mark.parametrize(
    ("arguments", "wavefronts"),
    [
        (("--tile", "64x32", "--access", "64x1"), 64),
        (("--tile", "128x64", "--bits", "16", "--access", "ldmatrix.x4@16x16", "--swizzle", "2,5,2"), 8),
        (("--tile", "128x64", "--bits", "16", "--access", "ldmatrix.x4@16x16", "--swizzle", "3,4,3"), 4),
        (("--tile", "64x64", "--bits", "16", "--access", "32x8"), 32),
        (("--tile", "33x33", "--access", "33x1"), 2),
    ],
)
def test_what_draw_and_banks_count(arguments, wavefronts, tmp_path):
    assert said("banks", *arguments)[0]["wavefronts"] == wavefronts
    assert call("draw", "access", *arguments, "-o", str(tmp_path / "x.svg")).exit_code == 0
    assert f"wavefronts: {wavefronts}, " in (tmp_path / "x.svg").read_text()


def test_banks_counts_and_shows_them():
    column = ("banks", "--tile", "32x32", "--bits", "32", "--access", "32x1")
    assert said(*column)[0]["wavefronts"] == 32
    assert said(*column, "--swizzle", "5,2,5")[0]["wavefronts"] == 1
    padded = said(*column, "--pitch", "33", "--access", "1x32")
    assert [row["wavefronts"] for row in padded] == [1, 1]
    assert padded[0]["words_by_bank_in_the_first_phase"] == [1] * 32
    shown = call(*column)
    assert shown.exit_code == 0 and any(line.split()[:2] == ["32", "0"] for line in shown.stdout.splitlines())


@pytest.mark.parametrize(
    ("what", "options", "contains"),
    [
        (
            "layout",
            ("--tile", "8x8", "--swizzle", "3,2,3", "--access", "8x1"),
            "S&lt;3,2,3&gt; over bytes = S&lt;3,0,3&gt; over 32-bit elements",
        ),
        (
            "layout",
            (
                "--tile",
                "8x8",
            ),
            "8 x 8 elements",
        ),
        ("lines", ("--tile", "8x64", "--bits", "16", "--swizzle", "3,4,3"), "S&lt;3,4,3&gt; on bytes"),
        ("masks", ("--swizzle", "3,4,3"), "S&lt;3,4,3&gt;"),
        ("matrix", ("--tile", "8x8", "--swizzle", "3,2,3", "--access", "8x1"), "bank 0"),
        ("access", ("--tile", "32x32", "--swizzle", "5,2,5", "--access", "32x1"), "wavefronts: 1, ideal 1"),
        ("access", ("--tile", "32x32", "--access", "32x1"), "wavefronts: 32, ideal 1"),
        ("atoms", ("--bits", "16"), "K_SW128"),
        ("layout", ("--tile", "8x8", "--access", "8x1", "--banks", "8"), "8 marked: 8 wavefronts"),
        ("layout", ("--tile", "8x8", "--access", "8x1"), "8 marked: 2 wavefronts"),
        (
            "matrix",
            ("--tile", "8x8", "--swizzle", "3,0,3", "--unit", "elements", "--banks", "8"),
            "marked rows [0, 1, 2]",
        ),
        ("xor", ("--tile", "8x8"), "Column 0 of rows 0 to 7 is stored at 0 1 2 3 4 5 6 7."),
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
        (("banks", "--tile", "8x8", "--access", "8x1", "--bits", "0"), "--bits: got 0; needed 8, 16, 32, 64 or 128"),
        (
            ("banks", "--tile", "8x8", "--access", "8x1", "--pitch", "9" * 20),
            f"--pitch: got {'9' * 20}; needed 8 at least",
        ),
        (("banks", "--tile", "8x8", "--access", "8x1", "--pitch", str(1 << 62)), f"--pitch: got {1 << 62}; needed 8"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--banks", "1048576"), "--banks: got 1048576; needed"),
        (("swizzle", "explain", "3", "60", "3"), "B, M, S: got S<3,60,3>, which reads or moves bit 65; needed"),
        (("swizzle", "explain", "0", "70", "0"), "M: got 70; needed an integer of magnitude 62 at most"),
        (("swizzle", "explain", "3", "4", "1000"), "S: got 1000; needed an integer of magnitude 62 at most"),
        (("atom", "--major", "K", "--tile", "65536x65536"), "--tile: got (65536, 65536); needed 232448 bytes"),
        (("atom", "--major", "K", "--tile", "2x64x64"), "flatten the leading modes, 128x64"),
        (("banks", "--tile", "2x64x64", "--access", "8x1"), "flatten the leading modes, 128x64"),
        (("draw", "layout", "--tile", "4x4x4", "-o", "x.svg"), "flatten the leading modes, 16x4"),
        (("draw", "matrix", "--bits", "7", "--swizzle", "3,2,3", "-o", "x.svg"), "--bits: got 7; needed 8, 16, 32"),
        (("swizzle", "explain", "3", "4", "2"), "nearest legal swizzle is S<3,4,3>"),
        (("swizzle", "explain", "3", "4", "3", "--bits", "12"), "--bits: got 12"),
        (("swizzle", "explain", "3", "4", "3", "--unit", "words"), "--unit: got 'words'"),
        (("swizzle", "explain", "3", "4"), "B, M, S: got '3,4'; needed B,M,S: three integers such as 3,4,3"),
        (("swizzle", "explain", "3,4,x"), "B, M, S: got '3,4,x'; needed"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--unit", "words"), "--unit: got 'words'"),
        (
            ("banks", "--tile", "32x32", "--access", "32x1", "--swizzle", "5,0,5"),
            "--swizzle: got S<5,0,5> over bytes, which would split 32-bit elements; needed M of 2 at least, or --unit "
            "elements, where it is S<5,2,5> over bytes",
        ),
        (("draw", "lines", "--swizzle", "3,0,3", "-o", "x.svg"), "which would split 32-bit elements; needed M of 2"),
        (("swizzle", "design", "--row", "48"), "needed a power of two (nearest: 32)"),
        (("swizzle", "solve", "--tile", "8", "--access", "8x1"), "--tile: got '8'"),
        (("swizzle", "solve", "--tile", "8x8", "--access", "a"), "--access: got 'a'"),
        (("swizzle", "solve", "--tile", "8x8", "--access", "16x1"), "needed 16x1 at least to hold access 16x1"),
        (("swizzle", "solve", "--tile", "8x8", "--access", "8x1", "--banks", "7"), "--banks: got 7"),
        (("atom", "--major", "Q", "--tile", "64x64"), "--major: got 'Q'"),
        (("atom", "--major", "K", "--tile", "64x64", "--arch", "sm_75"), "--arch: got 'sm_75'; needed sm_80, "),
        (("banks", "--tile", "8x8", "--access", "8x1", "--swizzle", "3,0"), "--swizzle: got '3,0'"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--pitch", "4"), "--pitch: got 4"),
        (("banks", "--tile", "8x8", "--access", "8x1", "--bits", "20"), "--bits: got 20"),
        (("draw", "cube", "-o", "x.svg"), "WHAT: got 'cube'"),
        (("draw", "masks", "-o", "x.svg"), "--swizzle: got none"),
        (("draw", "atoms", "--bits", "16", "-o", "x.png"), "ends in .svg"),
        (("draw", "access", "-o", "x.svg"), "--access: got none"),
        (("draw", "lines", "--banks", "8", "-o", "x.svg"), "--banks: got 8; needed 32 for lines"),
        (("draw", "layout", "--banks", "64", "-o", "x.svg"), "--banks: got 64; needed 1 to 32"),
        (("draw", "xor", "--tile", "6x8", "-o", "x.svg"), "--tile: got 6; needed 2, 4, 8"),
    ],
)
def test_a_wrong_argument_is_exit_2_and_named(arguments, says):
    done = call(*arguments)
    assert done.exit_code == 2, done.stdout
    assert says in done.stderr and ": got " in done.stderr and done.stderr.count("\n") == 1


def test_explained_numbers_are_the_swizzle():
    found = said("swizzle", "explain", "2", "5", "2", "--bits", "32")
    cells = [address for row in found["byte_addresses"] for address in row]
    assert cells == [Swizzle(2, 5, 2)(32 * i) for i in range(len(cells))] and len(cells) == 512 // 32
