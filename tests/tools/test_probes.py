"""The probes with no GPU: their tables, what they predict, how a profiler's report is read, and that they compile."""

from __future__ import annotations

import csv
import io
import json
from itertools import groupby

import numpy as np
import pytest
from typer.testing import CliRunner

from cookbook import banks
from cookbook.check import counted as counting
from cookbook.measure import records
from tools.probes import __main__ as cli
from tools.probes import boxes, dry, forms, launch, measure, rules
from tools.probes.fresh import fresh_pairs
from tools.probes.instructions import BY_NAME, INSTRUCTIONS, SMEM_BYTES, SOURCE_BYTES
from tools.probes.pairs import Pair, pairs, pairs_of
from tools.publish import probe_tables
from tools.records import suites

COLUMNS = ["#", "Source", "Instructions Executed", "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal"]
TABLES = {i: list(group) for i, group in groupby(pairs(), key=lambda pair: pair.instruction)}
LANE = np.arange(32)


def source_page(wavefronts=lambda pair: pair.predicted):
    """A report as ncu prints it: every kernel with its header, other lines between the probes."""
    text = io.StringIO()
    write = csv.writer(text).writerow
    for instruction, table in TABLES.items():
        write(["Kernel Name", f"kernel_cutlass_probe_kernel_{instruction.name}"])
        write(COLUMNS)
        write([0, "STS [R1], R2" if instruction.loads else "LDC R1, c[0x0][0x28]", 256, 256, 256])
        for pair in table:
            write([1, "BAR.SYNC.DEFER_BLOCKING 0x0", 1, 0, 0])
            write([2, f"@P0 {instruction.name} R8, [R0+UR4]", 1, wavefronts(pair), 1])
            write([3, f"@!PT {'STS' if instruction.loads else 'LDS.128'} R8, [R0+UR4]", 1, 4, 4])
    return text.getvalue()


def test_there_are_enough_pairs_of_every_kind_and_no_two_alike():
    assert len(pairs()) >= 2000 and set(TABLES) == set(INSTRUCTIONS)
    for instruction, table in TABLES.items():
        assert len(table) >= 27 and len({(p.addresses, p.sources) for p in table}) >= len(table) // 2
        if instruction.kind != "cp_async":  # a copy is made twice, to see what the first left in the caches
            assert len({p.addresses for p in table}) == len(table)


def test_every_address_is_in_the_memory_that_is_there():
    for pair in pairs():
        assert len(pair.addresses) == 32 and max(pair.addresses) + pair.instruction.width <= SMEM_BYTES
        assert not pair.sources or (min(pair.sources) >= 0 and max(pair.sources) + 16 <= SOURCE_BYTES)
        assert pair.predicted >= 1 and sum(a >= 0 for a in pair.addresses) <= pair.instruction.lanes


def test_the_table_is_the_same_every_time():
    assert [pairs_of(i) for i in INSTRUCTIONS] == list(TABLES.values())


def test_the_bank_model_is_phases_but_for_wide_accesses():
    for pair in pairs():
        plain = rules.predictions(pair)["phases"]
        if pair.instruction.name in ("LDS.64", "LDS.128"):
            assert rules.predictions(pair)["sharing pairs"] <= pair.predicted <= plain
        elif pair.sources:
            assert pair.predicted >= plain
        else:
            assert pair.predicted == plain


@pytest.mark.parametrize(
    ("name", "units", "phases", "sharing", "halves", "whole"),
    [
        ("LDS.128", LANE, 4, 4, 4, 4),
        ("LDS.128", LANE >> 1, 4, 2, 2, 2),
        ("LDS.128", LANE & 1 | LANE >> 2 << 1, 4, 2, 2, 2),
        ("LDS.128", np.where(LANE < 16, LANE >> 1, LANE), 4, 3, 3, 3),
        ("LDS.128", LANE & 3 | LANE >> 3 << 2, 4, 4, 2, 2),
        ("LDS.128", np.where(LANE % 2 == 0, LANE // 2, -1), 4, 2, 2, 2),
        ("LDS.64", LANE >> 1, 2, 1, 2, 1),
        ("LDS", LANE * 32, 32, 32, 32, 32),
    ],
)  # fmt: skip
def test_what_each_rule_says(name, units, phases, sharing, halves, whole):
    instruction = BY_NAME[name]
    pair = Pair(instruction, "", "", tuple(np.where(units < 0, -1, units * instruction.width).tolist()))
    found = rules.predictions(pair)
    asked = {"phases": phases, "sharing pairs": sharing, "half-warps": halves, "whole warp": whole}
    assert {name: found[name] for name in asked} == asked
    assert found["phases"] == banks.wavefronts(pair.lanes, instruction.width).actual


def test_a_copy_by_lines_and_sectors():
    rows = next(p for p in TABLES[BY_NAME["LDGSTS.E.BYPASS.LTC128B.128"]] if "rows of 4 lanes in global" in p.access)
    found = rules.predictions(rows)
    assert (found["phases"], found["lines"], found["lines in phases"], found["sectors"]) == (4, 8, 8, 16)


# --- reading the profiler -----------------------------------------------------------------------------------


def test_a_report_that_agrees():
    measured = measure.from_lines(source_page())
    assert tuple(m.pair for m in measured) == pairs() and all(m.ok for m in measured)
    figures = measure.figures(measured, "by SASS line")
    assert figures["mismatches"] == 0 and figures["differ"] == [] and figures["probes"] == len(pairs())
    stores = figures["by_instruction"]["STS.128"]
    assert stores["rules"]["phases"] == stores["pairs"] > stores["rules"]["half-warps"]


def test_a_report_that_differs_names_the_pairs_and_the_rule():
    def plain(pair):
        return rules.predictions(pair)["phases"]

    measured = measure.from_lines(source_page(plain))
    figures = measure.figures(measured, "by SASS line")
    wide = figures["by_instruction"]["LDS.128"]
    assert wide["mismatches"] > 0 and wide["rules"]["phases"] == wide["pairs"] > wide["rules"]["sharing pairs"]
    assert figures["by_instruction"]["LDS"]["mismatches"] == 0
    assert any(
        d["access"] == "lanes t, t^1 share"
        and d["instruction"] == "LDS.128"
        and (d["predicted"], d["measured"]) == (2, 4)
        for d in (measure.described(m) for m in measured if not m.ok)
    )


def test_a_copy_past_l1_that_is_not_counted_is_no_mismatch():
    name = "LDGSTS.E.BYPASS.LTC128B.128"
    table = TABLES[BY_NAME[name]]
    unseen = measure.figures([measure.Measured(pair, 0) for pair in table], "by SASS line")
    assert (unseen["probes"], unseen["not_counted"], unseen["mismatches"]) == (0, len(table), 0)
    wrong = measure.figures([measure.Measured(pair, pair.at_most + 1) for pair in table], "by SASS line")
    assert (wrong["not_counted"], wrong["mismatches"]) == (0, len(table))


def test_a_report_of_something_else():
    page = source_page()
    with pytest.raises(measure.Wrong, match=r"LDS\.U8: 107 lines in the report for 108 probes"):
        measure.from_lines(page.replace("LDS.U8", "NOP", 2).replace("NOP", "kernel", 1))
    first = page[: page.index("Kernel Name", 20)]
    with pytest.raises(measure.Wrong, match="has 1 kernels; 26 were launched"):
        measure.from_lines(first)
    with pytest.raises(counting.ToolMissing, match="no columns"):
        measure.from_lines("==PROF== nothing\n")


def test_launches_are_read_in_their_order():
    rows = ["ID,Kernel Name," + measure.LAUNCH_METRIC, ",,"]
    rows += [f'{i},kernel_cutlass_probe,"{pair.predicted:,}"' for i, pair in enumerate(launch.sample())]
    measured = measure.from_rows("\n".join(rows))
    assert len(measured) >= 200 and all(m.ok for m in measured)
    with pytest.raises(measure.Wrong, match="launches"):
        measure.from_rows("\n".join(rows[:-1]))
    with pytest.raises(counting.ToolMissing, match="no column"):
        measure.from_rows("ID,other\n0,1\n")


# --- values -------------------------------------------------------------------------------------------------


def outputs(table):
    out = np.zeros((len(table), 32, 4), np.uint32)
    for probe, pair in enumerate(table):
        values, _ = launch.expected(pair, probe)
        out[probe, :, : values.shape[1]] = values
    return out


@pytest.mark.parametrize("instruction", INSTRUCTIONS, ids=lambda i: i.name)
def test_wrong_values_are_seen(instruction):
    table = TABLES[instruction][:12]
    out = outputs(table)
    assert launch.wrong_values(table, out) == []
    lane = next(lane for lane in range(32) if launch.expected(table[3], 3)[1][lane])
    out[3, lane, 0] ^= 1
    (told,) = launch.wrong_values(table, out)
    assert told.startswith(f"{table[3]}: lane {lane} got")


def test_what_a_load_gives():
    memory = np.arange(SMEM_BYTES // 2, dtype=np.uint16).view(np.uint8)
    for name in ("LDS.U8", "LDS.U16", "LDS", "LDS.64", "LDS.128"):
        for pair in TABLES[BY_NAME[name]]:
            values, defined = launch.expected(pair, 0)
            assert defined.all()
            for address, got in zip(pair.addresses, values, strict=True):
                width = pair.instruction.width
                want = memory[address : address + width].tobytes() if address >= 0 else b"\0" * width
                assert got.tobytes()[:width] == want and not any(got.tobytes()[width:])


def test_rows_stored_twice_are_not_compared():
    same = next(p for p in TABLES[BY_NAME["STSM.16.M88.4"]] if p.access == "all lanes the same")
    assert not launch.expected(same, 0)[1].any()
    assert launch.expected(TABLES[BY_NAME["STSM.16.M88.4"]][0], 0)[1].all()


# --- boxes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", boxes.DTYPES)
def test_boxes_by_hand(dtype):
    """Every byte that a load writes, by the rule: rows packed, chunk bits 4 to 6 XORed with bits 7 to 9."""
    itemsize = np.dtype(dtype).itemsize
    for box in boxes.boxes(dtype):
        if box.store:
            continue
        smem, tensor = np.full(boxes.SMEM_BYTES, 0xFF, np.uint8), boxes.tensor_of(box)
        for row in range(box.extents[0]):
            for column in range(box.extents[1]):
                at = box.base + row * box.row_bytes + column * itemsize
                at ^= (at >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[box.mode]) << 4
                r, c = row + box.origin[0], column + box.origin[1]
                inside = 0 <= r < tensor.shape[0] and 0 <= c < tensor.shape[1]
                value = tensor[r, c] if inside else tensor.dtype.type(0)
                smem[at : at + itemsize] = np.frombuffer(value.tobytes(), np.uint8)
        assert np.array_equal(boxes.expected(box), smem), box


def test_boxes_cover_modes_majors_edges_and_say_differences():
    every = [box for dtype in boxes.DTYPES for box in boxes.boxes(dtype)]
    assert {(b.dtype, b.major, b.mode, b.store) for b in every} == {
        (d, m, s, w) for d in boxes.DTYPES for m in ("K", "MN") for s in (0, 32, 64, 128) for w in (False, True)
    }
    assert any(min(b.origin) < 0 for b in every) and any(b.origin[0] >= boxes.TENSOR_ROWS for b in every)
    figures = boxes.figures([boxes.Compared(box, 4096, int(i == 3)) for i, box in enumerate(every)])
    assert (figures["probes"], figures["mismatches"]) == (len(every), 1) and "1 of 4096 bytes" in figures["differ"][0]


# --- compiled, kept, called ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["LDS.128", "STS.64", "LDSM.16.MT88.4", "STSM.16.M88.2", "LDGSTS.E.BYPASS.LTC128B.128"]
)
def test_kernels_compile_without_a_gpu(name):
    finding = dry.compile_probes(BY_NAME[name], pairs_of(BY_NAME[name])[:5], "sm_90a")
    assert finding.ok and finding.detail.startswith("5 of 5")


def test_box_kernels_compile_without_a_gpu(monkeypatch):
    some = [box for box in boxes.boxes("uint16") if box.mode == 128 and box.base == 0 and box.origin == (0, 0)]
    monkeypatch.setattr(boxes, "boxes", lambda dtype: some)
    monkeypatch.setattr(boxes, "DTYPES", ("uint16",))
    findings = boxes.compile_all("sm_90a")
    assert len(findings) == 4 and all(finding.ok for finding in findings)


def test_a_suite_has_a_hash_and_records(tmp_path):
    assert len({suites.code_hash(suite) for suite in suites.SUITES}) == len(suites.SUITES)
    figures = {"probes": 2, "mismatches": 0, "unit": "boxes"}
    made = records.make("probed", "probes/tma", "uint16", None, passed=True, figures=figures, device="NVIDIA Test")
    records.write([made], tmp_path)
    (read,) = records.select("probes/tma", "probed", root=tmp_path)
    assert not records.is_stale(read) and records.is_stale(read | {"code": "0"})


def test_the_command_exits_1_where_the_model_is_wrong(monkeypatch, tmp_path):
    run = CliRunner()
    monkeypatch.setattr(measure, "profiled", lambda mode, seed: measure.Report(source_page(), []))
    good = run.invoke(cli.app, ["--json", "--keep", str(tmp_path)])
    assert good.exit_code == 0 and json.loads(good.stdout)["mismatches"] == 0
    again = run.invoke(cli.app, ["--json", "--from", str(tmp_path)])
    assert again.exit_code == 0 and again.stdout == good.stdout
    measure.Report(source_page(lambda pair: pair.at_most + 1), []).write(tmp_path, "lines")
    bad = run.invoke(cli.app, ["--from", str(tmp_path)])
    assert bad.exit_code == 1 and f"{len(pairs())} pairs, {len(pairs())} mismatches" in bad.stdout
    measure.Report(source_page(), ["LDS: lane 0 got 0x1, the model says 0x2"]).write(tmp_path, "lines")
    wrong = run.invoke(cli.app, ["--from", str(tmp_path)])
    assert wrong.exit_code == 1 and "wrong value: LDS: lane 0" in wrong.stdout


def bare_page(mode, wavefronts, seed=0):
    """A report of a mode with nothing but the probes; `wavefronts(pair, warps)` over all the warps."""
    text = io.StringIO()
    write = csv.writer(text).writerow
    for table, (ctas, warps) in zip(launch.launched(mode, seed), launch.grids(mode, seed), strict=True):
        write(COLUMNS)
        for pair in table:
            write([2, f"@P0 {pair.instruction.name} [R0], [R2]", ctas * warps, wavefronts(pair, ctas * warps), 1])
    return text.getvalue()


def test_many_warps_are_counted_by_execution():
    assert {table[0].instruction.kind for table in launch.launched("busy")} == {"cp_async"}
    page = bare_page("busy", lambda pair, warps: warps * pair.predicted + warps // 2)
    measured = measure.from_lines(page, "busy")
    assert all(m.wavefronts == m.pair.predicted + 0.5 for m in measured)


# --- a random table -----------------------------------------------------------------------------------------


def test_a_random_table_shares_no_pair_with_the_standing_one():
    def relative(pair):
        return tuple(s - min(pair.sources) // 128 * 128 for s in pair.sources)

    standing = {(p.instruction, p.addresses, relative(p)) for p in pairs()}
    fresh = fresh_pairs(1)
    assert len(fresh) >= 400 and {p.instruction for p in fresh} == set(INSTRUCTIONS)
    assert len({(p.instruction, p.addresses, relative(p)) for p in fresh} - standing) == len(fresh)
    assert fresh == fresh_pairs.__wrapped__(1) and fresh != fresh_pairs(2)
    with pytest.raises(ValueError, match="seed: got -1"):
        fresh_pairs(-1)


@pytest.mark.parametrize("seed", range(4))
def test_a_random_table_stays_in_memory_and_tells_rules_apart(seed):
    by_kind = {"wide": [], "copies": [], "wide stores": []}
    for pair in fresh_pairs(seed):
        assert max(pair.addresses) + pair.instruction.width <= SMEM_BYTES and max(pair.addresses) >= 0
        assert not pair.sources or (min(pair.sources) >= 0 and max(pair.sources) + 16 <= SOURCE_BYTES)
        said = rules.predictions(pair)
        if pair.instruction.name in ("LDS.64", "LDS.128"):
            by_kind["wide"].append((said["phases"] != pair.predicted, said["sharing pairs"] != pair.predicted))
        elif pair.instruction.name in ("STS.64", "STS.128"):
            by_kind["wide stores"].append(
                (said["sharing pairs"] != pair.predicted, said["half-warps"] != pair.predicted)
            )
        elif pair.sources:
            by_kind["copies"].append((said["phases"] != pair.predicted, said["lines"] != pair.predicted))
    counts = {kind: np.sum(told, axis=0).tolist() for kind, told in by_kind.items()}
    assert all(count >= 3 for told in counts.values() for count in told), counts


@pytest.mark.parametrize("name", ["LDS.128", "STSM.16.MT88.4", "LDGSTS.E.64", "LDGSTS.E.BYPASS.LTC128B.128"])
def test_values_of_a_random_table(name):
    table = [pair for pair in fresh_pairs(1) if pair.instruction.name == name]
    assert launch.wrong_values(table, outputs(table)) == []
    assert any(launch.expected(pair, 0)[1].any() for pair in table)


# Wavefronts of the copies of seed 20261 on an H200, in the order of `fresh_pairs`.
COUNTED = {
    "LDGSTS.E": [32, 4, 5, 11, 24, 11, 10, 4, 3, 6, 17, 32, 2, 8, 17, 16, 4, 32, 20, 4, 32, 9, 4, 8],
    "LDGSTS.E.64": [16, 12, 16, 7, 32, 10, 8, 32, 7, 4, 16, 7, 9, 16, 32, 10, 20, 17, 4, 10, 4, 18, 6, 11],
    "LDGSTS.E.128": [12, 21, 8, 30, 8, 32, 8, 16, 19, 16, 16, 8, 6, 16, 20, 32, 32, 29, 20, 8, 16, 13, 32, 9],
}


def test_copies_as_counted_are_what_the_model_says():
    exact = 0
    for name, counts in COUNTED.items():
        drawn = [pair for pair in fresh_pairs(20261) if pair.instruction.name == name]
        for pair, count in zip(drawn, counts, strict=True):
            assert pair.predicted <= count <= pair.at_most, (str(pair), count)
            exact += pair.predicted == pair.at_most
    assert exact == 45  # of 72: the others have lanes that meet at both ends


def test_copies_of_the_standing_table_are_exact():
    """The sums are what an H200 counted. A table in which no lanes meet at both ends cannot show the ranges."""
    for name, total in (("LDGSTS.E", 520), ("LDGSTS.E.64", 570), ("LDGSTS.E.128", 676)):
        table = TABLES[BY_NAME[name]]
        assert sum(pair.predicted for pair in table) == sum(pair.at_most for pair in table) == total


def test_a_copy_without_a_guard_has_no_lane_left_out():
    assert not BY_NAME["LDGSTS.E.BYPASS.LTC128B.128"].may_skip_lanes and BY_NAME["LDGSTS.E.128"].may_skip_lanes
    for pair in (*pairs(), *fresh_pairs(3)):
        assert pair.instruction.may_skip_lanes or pair.instruction.collective or min(pair.addresses) >= 0


def test_a_count_within_a_range_is_no_mismatch():
    pair = next(p for p in fresh_pairs(20261) if p.instruction.name == "LDGSTS.E" and p.at_most > p.predicted)
    counts = (pair.predicted - 1, pair.predicted, pair.at_most, pair.at_most + 1)
    measured = [measure.Measured(pair, count) for count in counts]
    assert [m.ok for m in measured] == [False, True, True, False]
    assert measure.figures(measured, "by SASS line")["ranges"] == 4
    assert measure.described(measured[0])["at_most"] == pair.at_most


def test_copies_that_race_are_not_compared():
    copy = BY_NAME["LDGSTS.E"]
    same = Pair(copy, "", "", (0, 0, *(4 * i for i in range(2, 32))), tuple(4 * i for i in range(32)))
    assert launch.expected(same, 0)[1].tolist() == [False, False] + [True] * 30
    assert launch.expected(Pair(copy, "", "", (0,) * 32, (64,) * 32), 0)[1].all()


def test_the_random_table_is_counted_and_recorded_apart(monkeypatch):
    def profiled(mode, seed):
        return measure.Report(bare_page(mode, lambda pair, warps: pair.predicted, seed), [])

    monkeypatch.setattr(measure, "profiled", profiled)
    kept = []
    monkeypatch.setattr(cli, "_keep", lambda *args: kept.append(args))
    found = CliRunner().invoke(cli.app, ["--seed", "3"])
    assert found.exit_code == 0, found.stdout
    suite, dtype, figures, ok, _, config = kept[0]
    assert (suite, dtype, ok, config) == ("probes/fresh", "uint32", True, {"seed": 3})
    assert figures["mismatches"] == 0 and figures["probes"] == len(fresh_pairs(3))
    assert CliRunner().invoke(cli.app, ["--seed", "3", "--busy"]).exit_code == 2


# --- forms of cp.async ---------------------------------------------------------------------------------------


def test_forms_issue_the_same_pairs_and_differ_in_one_thing():
    first, *others = forms.FORMS
    assert len({form.name for form in forms.FORMS}) == len(forms.FORMS)
    for form in others:
        assert [(p.addresses, p.sources) for p in forms.table(form)] == [
            (p.addresses, p.sources) for p in forms.table(first)
        ]
        assert all(p.instruction == form.instruction for p in forms.table(form))
        assert (form.instruction, form.ctas, form.warps) != (first.instruction, first.ctas, first.warps)
    assert all(min(p.addresses) >= 0 for p in forms.table(first))  # one form has no guard
    assert {p.predicted for p in forms.table(first)} == {4, 8, 32}


def test_only_the_forms_of_the_tables_must_be_counted():
    held = {form.name for form in forms.FORMS if form.held}
    assert held == {"no guard, as in the tables", "through L1", "through L1, size as operand, one wait"}

    def counted(pair, warps):
        unseen = pair.instruction.guard == "predicate" and "BYPASS" in pair.instruction.name
        return 0 if unseen else warps * pair.predicted

    figures = measure.of_forms(measure.Report(bare_page("forms", counted), []))
    assert figures["mismatches"] == 0 and figures["probes"] == 8 * 3
    zero = {row["form"] for row in figures["forms"] if not any(row["wavefronts"])}
    assert "8 warps" in zero and "size as operand" not in zero
    wrong = measure.of_forms(measure.Report(bare_page("forms", lambda pair, warps: 0), []))
    assert wrong["mismatches"] == wrong["probes"] == 8 * 3


@pytest.mark.parametrize("form", forms.FORMS[:5], ids=lambda form: form.name)
def test_forms_compile_without_a_gpu(form):
    finding = dry.compile_probes(form.instruction, forms.table(form), "sm_90a", False, (form.ctas, form.warps))
    assert finding.ok


# --- shown --------------------------------------------------------------------------------------------------


def test_the_pages_show_both_tables_and_the_forms(tmp_path):
    assert probe_tables.markdown(tmp_path) == "*Not measured yet.*"
    standing = measure.figures(measure.from_lines(source_page()), "by SASS line")
    page = bare_page("fresh", lambda pair, warps: pair.predicted + (pair.instruction.name == "STS.64"), 5)
    fresh = measure.figures(measure.from_lines(page, "fresh", 5), "by SASS line")
    ways = measure.of_forms(measure.Report(bare_page("forms", lambda pair, warps: 0), []))
    made = [
        ("probes/shared_memory", standing, None),
        ("probes/fresh", fresh, {"seed": 5}),
        ("probes/past_l1", ways, None),
    ]
    records.write(
        [
            records.make("probed", suite, "uint32", None, passed=True, figures=f, device="NVIDIA X", config=config)
            for suite, f, config in made
        ],
        tmp_path,
    )
    told = probe_tables.markdown(tmp_path)
    assert f"| wavefronts, a random table, seed 5 | {len(fresh_pairs(5))} | 16 |" in told
    assert "| `STS.64` | 192 | 0 | 0 | 16 | 0 | 16 |" in told
    assert "| 8 warps (`LDGSTS.E.BYPASS.LTC128B.128`) | 1 x 8 | 0, again 0; model 4 |" in told
    assert "not measured yet" in told  # TMA
