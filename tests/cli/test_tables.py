"""What the tables say of a level: the figures of a passed one, the reason of any other."""

from __future__ import annotations

import pytest

from cookbook.check import levels
from cookbook.check.levels import Level
from cookbook.cli import tables
from cookbook.measure import records
from cookbook.publish import words

FIGURES = {
    "layout": ({"a.bijective": "", "b.bijective": "", "smem.fits": ""}, "bijective: a b; fits: smem"),
    "model": (
        {"integer_mismatches": 0, "relative_error": 1.7e-3},
        "the layouts, simulated (not the kernel): integers exact, normals 2e-03",
    ),
    "compiled": (
        {"registers": 154, "spills": 0, "smem_bytes": 2048, "smem_limit": 4096, "instructions": {"HGMMA": 8}},
        "154 registers, 0 spilled, 2 of 4 KiB; 8 HGMMA",
    ),
    "ran": (
        {"shapes": 69, "worst_error": 1.8e-3, "worst_ratio": 1.0004},
        "69 shapes; error 1.8e-03, 1.000 of torch.matmul's at worst",
    ),
    "timed": (
        {"median_ms": 0.2, "min_ms": 0.19, "max_ms": 0.25, "tflops": 687.2, "peers": {"quack": {"ratio": 0.95}}},
        "0.2 ms (0.19-0.25), 687 TFLOP/s; 0.950 of quack",
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


@pytest.mark.parametrize("level", levels.LEVELS)
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


def test_a_report_in_short_has_a_line_a_level_and_fits_80_columns():
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
    statuses = (levels.PASSED, levels.FAILED, levels.RECORDED, levels.STALE, levels.NOT_CHECKED)
    assert all(status in tables.COLOURS for status in statuses)


def test_a_run_that_has_no_error_says_how_many_of_each_kernel_it_was():
    level = words.describe(levels.Level("ran", levels.PASSED, "uint8", figures={"copy": 192, "dump": 96, "failed": []}))
    assert level == "bit for bit: 192 of copy, 96 of dump"
