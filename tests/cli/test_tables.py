"""What the tables say of a level: the figures of a passed one, the reason of any other."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cookbook.check import levels, reports
from cookbook.check.levels import Level
from cookbook.cli import tables, terminal
from cookbook.measure import records
from cookbook.publish import words
from cookbook.recipe import catalog
from tools import commands
from tools.ops.measuring import Case, Regret

FIGURES = {
    "layout": ({"a.bijective": "", "b.bijective": "", "smem.fits": ""}, "bijective: a b; fits: smem"),
    "model": (
        {"integer_mismatches": 0, "relative_error": 1.7e-3},
        "the layouts, simulated (not the kernel): integers exact, normals 2e-03",
    ),
    "compiled": (
        {
            "registers": 154,
            "spills": 0,
            "smem_bytes": 2048,
            "smem_limit": 4096,
            "instructions": {"HGMMA": 8},
            "checker": ["verify the count (a.py:7)"],
        },
        "154 registers, 0 spilled, 2 of 4 KiB; 8 HGMMA; NVIDIA's checker: verify the count (a.py:7)",
    ),
    "banks": (
        {
            "lines": [
                {"line": "7 of store", "what": "st", "wavefronts": 1024, "ideal": 1024, "why": ""},
                {"line": "8 of load", "what": "ldmatrix", "wavefronts": 32, "ideal": 4, "why": "unswizzled"},
            ]
        },
        "1 line without conflicts: 1,024 wavefronts; "
        "line 8 of load: ldmatrix takes 32 wavefronts, at best 4: unswizzled",
    ),
    "cost": (
        {
            "problem": "64x64x64 on 1 SM",
            "ctas": 2,
            "bytes": {"global to shared": 4096},
            "delivered": 8192,
            "multiply_adds": 262144,
            "instructions": {"wgmma": 4},
        },
        "2 CTAs of 64x64x64 on 1 SM: 4,096 bytes global to shared, 8,192 delivered; 262,144 multiply-adds; 4 wgmma",
    ),
    "ran": (
        {"shapes": 69, "worst_error": 1.8e-3, "worst_ratio": 1.0004},
        "69 shapes; error 1.8e-03, 1.000 of torch.matmul's at worst",
    ),
    "timed": (
        {"median_ms": 0.2, "min_ms": 0.19, "max_ms": 0.25, "tflops": 687.2, "peers": {"quack": {"ratio": 0.95}}},
        "200 us (190-250), 687 TFLOP/s; 0.950 of quack",
    ),
    "counted": (
        {"LDSM.16.M88.4": {"wavefronts": 40, "executed": 10, "excess": 3, "lines": 1, "predicted_each": 4}},
        "wavefronts: 4 for LDSM.16.M88.4; 3 in excess",
    ),
    "sanitized": (
        {"shapes": [[1, 1, 8]], "memcheck": 0, "racecheck": 0},
        "memcheck 0, racecheck 0 over 1 shapes",
    ),
}


def test_the_host_cost_beside_the_peers_that_have_one():
    figures, text = FIGURES["timed"]
    peers = {"torch.matmul": {"ratio": 1.5, "host_us": 6.04}, "ceiling": {"ratio": 0.5}}
    said = words.describe(Level("timed", "passed", figures=figures | {"host_us": 4.26, "peers": peers}))
    assert said.split("; ")[0] == text.split("; ")[0]
    assert said.endswith("; 1.500 of torch.matmul, 0.500 of ceiling; us a call: ours 4.3, torch.matmul 6.0")


@pytest.mark.parametrize("level", [*levels.LEVELS, levels.BANKS, levels.COST])
def test_figures_in_words(level):
    figures, text = FIGURES[level]
    assert words.describe(Level(level, "passed", figures=figures)) == text
    assert words.describe(Level(level, "failed", figures=figures, reason="why")) == "why"
    added = Level(level, "recorded", figures=figures, without=("a b", "c"))
    assert words.describe(added) == f"{text}; not of a b, not of c"
    old = Level(level, "stale", figures=figures, device="NVIDIA X", date="2026-01-01 00:00")
    assert words.describe(old) == f"{text} (NVIDIA X, 2026-01-01 00:00 UTC); the code has changed since"


def shown(table, width=80):
    from rich.console import Console

    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip()]


def test_report_in_short_has_a_line_a_level_and_fits_80_columns():
    dtypes, found = ("float16", "bfloat16"), []
    for level in ("layout", "model", "product", "pipeline", "compiled"):
        found += [Level(level, "passed", d, f"sm_{n}/sm_{n + 1}a", (64, 64, n)) for d in dtypes for n in (80, 90)]
    for level in ("ran", "timed", "counted", "sanitized"):
        days = enumerate(("2031-01-01 00:00", "2031-01-02 00:00"))
        found += [Level(level, "recorded", dtypes[i], device="NVIDIA H200", date=day) for i, day in days]
    lines = shown(tables.in_short([levels.Report("a/b", tuple(found)), levels.Report("c/d", tuple(found))]))
    assert len(lines) == 2 * (1 + 9)  # it fits a screen
    assert " ".join(lines[1].split()) == "layout passed 4 targets, 2 dtypes, 2 shapes this machine"
    assert " ".join(lines[-1].split()) == "sanitized recorded 2 dtypes NVIDIA H200, 2031-01-02"


def test_a_report_in_short_gives_each_gpu_its_own_last_day():
    days = {"NVIDIA H200": ("2031-01-01 00:00", "2031-01-02 00:00"), "NVIDIA H100": ("2031-03-01 00:00",)}
    found = [Level("timed", "recorded", "float16", device=gpu, date=day) for gpu in days for day in days[gpu]]
    first, second = shown(tables.in_short([levels.Report("a/b", tuple(found))]))[1:]
    assert first.endswith("NVIDIA H200, 2031-01-02") and second.split() == ["NVIDIA", "H100,", "2031-03-01"]


def test_a_report_in_short_says_of_each_failure_which_and_why():
    failed = [Level("model", "failed", "bfloat16", shape=(8, 8, k), reason=f"wrong at {k}") for k in (64, 72)]
    rest = Level("ran", "not checked", "bfloat16", reason="no CUDA device here")
    said = " ".join(shown(tables.in_short([levels.Report("a/b", (*failed, rest))]), 120))
    assert "bfloat16 8x8x64: wrong at 64" in said and "bfloat16 8x8x72: wrong at 72" in said
    assert "not checked" in said and "no CUDA device here" in said


STORY = "384x256x384: race: warp 8 in line 118 of produce\n  line 118 of produce: cute.copy(a, b)\n  warp 0 reads"
COUNTS = {"problems": 3, "stores": 1000, "launches": 2, "refused": 4}


def failing():
    found = [Level("layout", "failed", "bfloat16", reason="smem: 394240 bytes; at most 232448 on sm_90a")]
    found += [Level("model", "failed", "bfloat16", shape=(8, 8, k), reason="start: got 1; needed 0") for k in (64, 72)]
    found += [
        Level("product", "passed", "bfloat16", figures=COUNTS),
        Level("pipeline", "failed", "bfloat16", reason=STORY),
    ]
    found += [Level("host", "passed", figures=COUNTS)]
    found += [Level("compiled", "passed", "bfloat16", "sm_90a", figures=FIGURES["compiled"][0])]
    return levels.Report("a/b", (*found, Level("ran", "not checked", "bfloat16", reason="no GPU")), "x.py: f differs")


def test_failures_are_below_the_table_from_the_cause_on():
    for width in (80, 160):
        for lines in (shown(tables.in_short([failing()]), width), shown(tables.of_reports([failing()]), width)):
            last = max(n for n, line in enumerate(lines) if "not checked" in line)
            below = [line.strip().removeprefix("a/b ") for line in lines[last + 1 :]]
            (first, second) = (next(n for n, x in enumerate(below) if x.startswith(w)) for w in ("layout", "model"))
            assert first < second and "layout bfloat16: smem: 394240 bytes; at most 232448 on sm_90a" in below
            assert "model bfloat16 8x8x64 8x8x72: start: got 1; needed 0" in below  # once for both
            assert {"line 118 of produce: cute.copy(a, b)", "warp 0 reads"} <= set(below)
            assert not any("race" in line or "394240" in line for line in lines[: last + 1])


def test_the_verdict_says_which_levels_fail_and_of_how_many():
    assert tables.verdict(failing()) == (
        "x.py: f differs: 3 of 6 levels fail: layout, model, pipeline; not checked here: ran"
    )
    one = levels.Report("a/b", failing().levels[3:], "x.py: f differs")
    assert tables.verdict(one) == "x.py: f differs: 1 of 4 levels fails: pipeline; not checked here: ran"
    sound = levels.Report("a/b", (Level("layout", "passed"), Level("timed", "recorded")), "a/b as packaged")
    assert tables.verdict(sound) == "a/b as packaged: all that could be checked here holds"


SAMPLES = {
    "recipes": lambda: tables.of_recipes(catalog.recipes()[:9]),
    "reports": lambda: tables.of_reports([failing()]),
    "in short": lambda: tables.in_short([failing()]),
    "regrets": lambda: commands.of_regrets("NVIDIA X", [REGRET]),
    "calibration": lambda: tables.of_calibration("a/b", {"changes": {"clocks": {**IN_USE, "meaning": "of a [load]"}}}),
    "verdicts": lambda: commands.of_verdicts([(RECORD, "differs", "another kernel: " + "x" * 70)]),
    "facts": lambda: terminal.of_facts([("a name", "a value of many words " * 9), ("another", "y" * 99)]),
    "wavefronts": lambda: terminal.of_wavefronts([("ld128@32x8/down", "100000", "4")], "access", "wavefronts", "ideal"),
    "grid": lambda: terminal.bank_grid(ADDRESSES, ADDRESSES + 10**6, "a title of some words: " + "z" * 50, step=1000),
    "banks": lambda: terminal.bank_row([1000 + n for n in range(32)], "words"),
}
CASE = Case((4096, 4096, 4096), "tn", "bfloat16")
REGRET = Regret(CASE, "hopper/tuned_gemm", "hopper/tma_wgmma_gemm", part=0.01, against_torch=0.9, slower=1.1)
IN_USE = {"in_use": 1234.5, "measured": [1, 2, 2]}
RECORD = {"recipe": "a/b", "level": "counted", "majors": "tn", "dtype": "float16", "shape": [4096, 4096, 16384]}
ADDRESSES = np.arange(256).reshape(16, 16) * 4


@pytest.mark.parametrize("name", SAMPLES)
def test_no_table_loses_a_character_at_any_width(name):
    def characters(lines):
        text = Counter("".join("".join(lines).split()))
        return Counter({c: n for c, n in text.items() if c not in "─:"})  # a row of lines has a colon after each name

    words = " ".join(shown(SAMPLES[name](), 5000)).split()
    for width in (40, 41, 47, 60, 79, 80, 99, 120, 200):
        lines = shown(SAMPLES[name](), width)
        assert max(map(len, lines)) <= width
        assert not characters(words) - characters(lines), width
        have = {word.removesuffix(":") for line in lines for word in line.split()}
        assert {
            word for word in words if len(word) < 25 and "─" not in word and word.removesuffix(":") not in have
        } == set()


@pytest.mark.parametrize("level", records.LEVELS)
def test_every_kind_of_record_can_be_shown(level):
    figures, text = FIGURES[level]
    bare = {key: value for key, value in figures.items() if key != "peers"}
    made = records.make(
        level,
        "ampere/ldmatrix_gemm",
        "float16",
        (8, 8, 8),
        passed=True,
        figures=bare,
        peers=figures.get("peers"),
        device="NVIDIA X",
    )
    table = tables.of_records([made], records.is_stale)
    assert [next(iter(column.cells)) for column in table.columns[3:5]] == ["[green]passed[/]", text]


def test_every_status_has_a_colour():
    statuses = (reports.PASSED, reports.FAILED, reports.RECORDED, reports.STALE, reports.NOT_CHECKED)
    assert all(status in tables.COLOURS for status in statuses)


def test_a_run_without_errors_counts_each_kernel():
    level = words.describe(levels.Level("ran", levels.PASSED, "uint8", figures={"copy": 192, "dump": 96, "failed": []}))
    assert level == "bit for bit: 192 of copy, 96 of dump"
