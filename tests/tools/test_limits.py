"""What limits a GEMM: what nvidia-smi and ncu print is read right, kept, and shown; on a GPU the figures can be."""

from __future__ import annotations

import json
import stat
import sys
import time
from types import SimpleNamespace

import executed
import pytest
import torch
from typer.testing import CliRunner

from cookbook import cli
from cookbook.check import counted as counting
from cookbook.measure import contest, power, records
from cookbook.publish import markdown, words
from cookbook.publish.limits import tables
from cookbook.publish.pages import limits_table
from cookbook.recipe import catalog
from tools import limits
from tools.publish import pages

NAME = "ampere/tuned_gemm"
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU does")


def call(*arguments: str):
    return CliRunner().invoke(cli.app, arguments)


# --- nvidia-smi ---------------------------------------------------------------------------------------------------

SMI = """#!{python}
import sys, time
words = next(word for word in sys.argv if word.startswith("--query-gpu="))[12:].split(",")
values = {values!r}
if bad := [word for word in words if word not in values]:
    print(f'Field "{{bad[0]}}" is not a valid field to query.')
    sys.exit(2)
print(", ".join(values[word] for word in words), flush=True)
while "-lms" in sys.argv:
    time.sleep(0.01)
    print(", ".join(values[word] for word in words), flush=True)
"""
VALUES = {
    "clocks.sm": "1350",
    "power.draw.instant": "698.25",
    "enforced.power.limit": "700.00",
    "clocks.max.sm": "1980",
    "clocks_event_reasons.sw_power_cap": "Active",
}


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts an nvidia-smi on PATH that knows only what it is given."""

    def install(values):
        file = tmp_path / "nvidia-smi"
        file.write_text(SMI.format(python=sys.executable, values=values))
        file.chmod(file.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


@pytest.fixture
def quick(monkeypatch):
    """Batches that take 20 ms of the clock on the wall and claim to have taken 4 ms of the GPU."""
    monkeypatch.setattr(contest, "elapsed_ms", lambda batch: batch() or time.sleep(0.02) or 4.0)


def test_samples_are_read_while_a_batch_runs(smi, quick):
    smi(VALUES)
    ran = []
    with power.Sampler("GPU-1") as sampler:
        assert sampler.command[:3] == ["nvidia-smi", "-i", "GPU-1"]
        ms, found = limits.sustained(lambda: ran.append(1), sampler, seconds=0.3, settle=0.1)
    assert ms == 4.0 and len(ran) >= 5
    assert found == {
        "clock_mhz": 1350,
        "power_w": 698.25,
        "power_limit_w": 700,
        "max_clock_mhz": 1980,
        "capped": 1.0,
    }
    assert sampler._process.poll() is not None and not sampler._thread.is_alive()


def test_an_old_driver_is_asked_for_clock_and_power_alone(smi, quick):
    smi({name: VALUES[name] for name in ("clocks.sm", "power.draw.instant")})
    with power.Sampler("GPU-1") as sampler:
        assert limits.sustained(lambda: None, sampler, 0.2, 0.1)[1] == {"clock_mhz": 1350, "power_w": 698.25}


def test_clock_and_power_are_noted_while_something_else_runs(smi, monkeypatch, tmp_path):
    monkeypatch.setattr(power, "gpu_id", lambda: "GPU-1")
    smi(VALUES)
    with power.watched() as found:
        time.sleep(0.1)
        assert found == {}
    assert (found["clock_mhz"], found["power_w"], found["power_limit_w"]) == (1350, 698.25, 700)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with power.watched() as found:
        pass
    assert list(found) == ["reason"] and "not on PATH" in found["reason"]
    with pytest.raises(power.Unmeasurable, match="of its own"), power.watched():
        raise power.Unmeasurable("of its own")


def test_what_was_before_the_clock_settled_does_not_count(monkeypatch):
    now = [0.0]

    def elapsed(batch):
        now[0] += 0.25
        return 2.0 if now[0] <= 0.5 else 3.0

    monkeypatch.setattr(limits.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(contest, "elapsed_ms", elapsed)
    sampler = power.Sampler.__new__(power.Sampler)
    sampler.samples = [(0.1 * i, {"clock_mhz": 1980.0 if i < 5 else 1300.0 + i}) for i in range(30)]
    ms, found = limits.sustained(lambda: None, sampler)
    assert ms == 3.0 and found == {"clock_mhz": 1310.0}  # the median of 5 to 15, and nothing after the end


def test_without_nvidia_smi_nothing_is_measured(smi, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(power.Unmeasurable, match="not on PATH"):
        power.Sampler("GPU-1")
    smi({"clocks.sm": "1350"})
    with pytest.raises(power.Unmeasurable, match=r'draw\.instant" is not a valid field'), power.Sampler("GPU-1"):
        pass


def test_no_sample_while_a_kernel_runs_is_an_error(quick):
    sampler = power.Sampler.__new__(power.Sampler)
    sampler.samples = []
    with pytest.raises(power.Unmeasurable, match="while a kernel ran"):
        limits.sustained(lambda: None, sampler, 0.05, 0.0)


def test_a_sample_leaves_out_what_the_gpu_does_not_report():
    assert power.parse_sample("1350, 698.25\n", power.BASIC) == {"clock_mhz": 1350, "power_w": 698.25}
    assert power.parse_sample("1350, [N/A]\n", power.BASIC) == {"clock_mhz": 1350}
    assert power.parse_sample("Unable to determine the device handle\n", power.BASIC) == {}
    assert power.parse_sample("Not Active", ("capped",)) == {"capped": 0.0}


def test_medians_of_what_each_sample_has():
    samples = [{"clock_mhz": mhz, "capped": float(mhz < 1500)} for mhz in (1300.0, 1400.0, 1900.0, 1450.0)]
    assert power.medians([*samples, {"power_w": 650.0}]) == {"clock_mhz": 1425.0, "power_w": 650.0, "capped": 0.75}
    assert power.medians([]) == {}


def test_rates_are_of_the_clock_and_the_power_measured():
    measured = {"clock_mhz": 1350.0, "power_w": 700.0, "power_limit_w": 700.0}
    found = limits.rates(2.0 * 8192**3, 2.2, measured, 132)
    assert found["tflops"] == pytest.approx(2 * 8192**3 / 2.2e-3 / 1e12, abs=0.01) and "power_limit_w" not in found
    assert found["joules_per_tflop"] == pytest.approx(700 / found["tflops"], rel=1e-4)
    assert found["flops_per_clock"] * 132 * 1350e6 == pytest.approx(found["tflops"] * 1e12, rel=1e-4)
    assert limits.rates(1e12, 1.0, {}, 132) == {"tflops": 1000.0}


@pytest.mark.parametrize("uuid, said", [("ab-cd", "GPU-ab-cd"), ("GPU-ab-cd", "GPU-ab-cd"), (None, "00000000:1a:00.0")])
def test_the_gpu_is_named_whatever_is_visible(monkeypatch, uuid, said):
    gpu = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1A, pci_device_id=0, **({"uuid": uuid} if uuid else {}))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    assert power.gpu_id() == said


# --- ncu ----------------------------------------------------------------------------------------------------------

PIPE, OTHER_PIPE = limits.TENSOR_PIPE
STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
REASONS = {"wait": "2.0", "math_pipe_throttle": "3.0", "barrier": "0.5", "long_scoreboard": "n/a", "selected": "1.0"}
REASONS |= {"not_selected": "0.25", "gmma": "0.25", "wait_not_issued": "9.0", "dispatch_stall": "0.0"}


def raw_page(*kernels, **more):
    """CSV as ncu prints its raw page: names, units, and a row for each kernel."""
    names = ["ID", "Kernel Name", PIPE, limits.HITS, limits.MISSES, limits.READ, *map(STALLED.format, REASONS), *more]
    units = ["", "", "%", "sector", "sector", "byte", *["inst"] * len(REASONS), *[""] * len(more)]
    found = [
        [str(i), "kernel_cutlass_x", pipe, "3,000,000", "1,000,000", "64000000", *REASONS.values(), *more.values()]
        for i, pipe in enumerate(kernels)
    ]
    quoted = [",".join(f'"{word}"' for word in row) for row in (names, units, *found)]
    return "\n".join(["==PROF== Connected to process 1", *quoted]) + "\n"


# SASS, executions by warps, and how often ncu found a warp there: 80 samples of 200 executions
LINES = [
    ("@!P0 WARPGROUP.DEPBAR.LE gsb0, 0x0", 10, 40),
    ("QGMMA.64x128x32.F32.E4M3.E4M3 R24", 40, 20),
    ("FFMA R1, R2, R3, R1", 25, 10),
    ("FFMA R4, R2, R3, R4", 75, 10),
    ("EXIT", 50, 0),
]


def source_page(kernels):
    columns = ["Source", "# Samples", "Instructions Executed", "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal"]
    rows = [columns, *([source, n, executed, 0, 0] for source, executed, n in LINES)]
    return "\n".join(",".join(f'"{word}"' for word in row) for row in rows * kernels) + "\n"


def test_warps_stand_where_ncu_found_them():
    (lines,) = counting.parse_kernels(source_page(1))
    # four clocks from instruction to instruction: all warps together spent 800, so that a sample stands for 10
    assert limits.stood(lines, 4.0) == {
        "WARPGROUP.DEPBAR": [0.5, 40.0],
        "QGMMA.64x128x32": [0.25, 5.0],
        "FFMA": [0.25, 2.0],
    }
    assert limits.stood([], 4.0) == {} and "where" not in limits.of_kernel({}, lines)
    assert limits.of_kernel({limits.LATENCY: 4.0}, lines)["where"]["FFMA"] == [0.25, 2.0]


def test_ncu_page_is_read_kernel_by_kernel():
    first, second = map(limits.of_kernel, limits.parse_raw(raw_page("91.25", "80")))
    assert (first["tensor_pipe_pct"], second["tensor_pipe_pct"]) == (91.25, 80)
    assert first["l2_hit_pct"] == 75 and first["l2_read_bytes"] == 4_000_000 * 32 and first["dram_read_bytes"] == 64e6
    # shares of all 7 cycles between two instructions; "selected" is no wait, "wait_not_issued" is part of "wait"
    assert first["stalls"] == {"math_pipe_throttle": 0.4286, "wait": 0.2857, "barrier": 0.0714, "not_selected": 0.0357}
    assert list(first["stalls"]) == ["math_pipe_throttle", "wait", "barrier", "not_selected"]


def test_what_ncu_did_not_report_is_left_out():
    assert "tensor_pipe_pct" not in limits.of_kernel(limits.parse_raw(raw_page("n/a"))[0])
    other = limits.parse_raw(raw_page("n/a", **{OTHER_PIPE: "77.5"}))[0]
    assert limits.of_kernel(other)["tensor_pipe_pct"] == 77.5
    assert limits.of_kernel({}) == {} == limits.of_kernel({limits.HITS: 0.0, limits.MISSES: 0.0})
    with pytest.raises(counting.ToolMissing, match="no column ID"):
        limits.parse_raw("==ERROR== nothing\n")


@pytest.fixture
def ncu(monkeypatch):
    """An ncu that lists some metrics and writes the page it is given."""
    asked = {}

    def install(page):
        def profile(command, collect, which):
            asked[which] = {"command": command, "collect": collect}
            return page if which == "raw" else source_page(page.count("kernel_cutlass"))

        listed = f"{OTHER_PIPE.split('.')[0]:60} Counter\n{'dram__bytes':60} Counter"
        monkeypatch.setattr(counting, "path_of", lambda name: name)
        monkeypatch.setattr(counting, "run", lambda command: SimpleNamespace(stdout=f"Device X\n\n{listed}\n"))
        monkeypatch.setattr(counting, "profile", profile)
        return asked

    return install


def test_every_variant_is_profiled_once_by_known_metrics(ncu, monkeypatch):
    asked = ncu(raw_page("90", "70", **{limits.LATENCY: "5.0"}))
    found, reason = limits.profiled(NAME, "bfloat16", (1024, 512, 256))
    assert list(found) == list(catalog.load(NAME).VARIANTS) and not reason
    assert [f["tensor_pipe_pct"] for f in found.values()] == [90, 70]
    assert all(f["where"]["FFMA"] == [0.25, 2.5] for f in found.values())
    assert all(each["command"][-4:] == [NAME, "bfloat16", "tn", "1024,512,256"] for each in asked.values())
    assert asked["raw"]["collect"][-1] == ",".join((OTHER_PIPE, limits.HITS, limits.MISSES, limits.READ))
    monkeypatch.setattr(counting, "run", lambda command: SimpleNamespace(stdout=""))
    assert limits._known_metrics() == [PIPE, limits.HITS, limits.MISSES, limits.READ]


def test_without_ncu_or_with_other_kernels_the_reason_is_said(ncu, monkeypatch):
    ncu(raw_page("90"))
    assert limits.profiled(NAME, "bfloat16", (64, 64, 64)) == ({}, "ncu saw 1 kernels; needed 2: one of each variant")
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "")
    found, reason = limits.profiled(NAME, "bfloat16", (64, 64, 64))
    assert found == {} and "ncu is not on PATH" in reason


# --- records and what is shown ------------------------------------------------------------------------------------


def figures(tflops, **more):
    return limits.rates(tflops * 1e9, 1.0, {"clock_mhz": 1400.0, "power_w": 690.0, "capped": 1.0}, 132) | more


def record(shape=(8192, 8192, 8192), **changed):
    profiled = limits.of_kernel(limits.parse_raw(raw_page("91.25"))[0])
    profiled["where"] = {"WARPGROUP.DEPBAR": [0.222, 105.5], "FFMA": [0.186, 2.8]}
    wide = figures(462.0, **limits._a_second(profiled, 2e-3))
    found = {"variants": {"128x256": figures(440.0), "256x192": wide}, "seconds": 1.5}
    found["gpu"] = {"power_limit_w": 700.0, "max_clock_mhz": 1980.0}
    peers = {"torch.matmul": figures(669.0), "ceiling": figures(618.0)}
    made = records.make(
        "limits", NAME, "bfloat16", shape, passed=True, figures=found, peers=peers, device="Test GPU", majors=None
    )
    return made | changed


def rows_of(markdown):
    return [[c.strip() for c in line.strip("|").split("|")] for line in markdown.splitlines() if line.startswith("|")]


def test_a_table_on_a_page_says_what_was_recorded(tmp_path):
    assert limits_table(NAME, tmp_path) == markdown.NOT_MEASURED
    records.write([record()], tmp_path)
    shown = limits_table(NAME, tmp_path)
    found = {row[0]: row[1:] for row in rows_of(shown)[:6]}
    assert list(found) == ["variant or peer", "---", "128x256", "256x192", "torch.matmul", "ceiling"]
    assert found["256x192"] == ["462", "1400", "690", "1.494", "2500", "100%"]
    assert rows_of(shown)[-1] == [
        "256x192",
        "91.2%",
        "math pipe throttle 43%, wait 29%, barrier 7%, not selected 4%",
        "`WARPGROUP.DEPBAR` 22% (105.5), `FFMA` 19% (2.8)",
        "75.0%",
        "64",
        "32",
    ]
    assert "8192 x 8192 x 8192 bfloat16" in shown and "Test GPU" in shown
    assert "a power limit of 700 W and a highest SM clock of 1980 MHz" in shown


def test_without_ncu_there_is_one_table(tmp_path):
    bare = record()
    bare["figures"]["variants"] = {"256x192": figures(462.0)}
    records.write([bare], tmp_path)
    assert "tensor pipe" not in limits_table(NAME, tmp_path)


def test_a_stale_record_is_not_shown_as_current(tmp_path):
    records.write([record(code="0" * 64)], tmp_path)
    shown = limits_table(NAME, tmp_path)
    assert "has not been measured" in shown and "462" not in shown
    assert [r["level"] for r in records.stale(NAME, tmp_path)] == ["limits"]


def test_cells_on_a_page_show_the_table_as_it_is_now(monkeypatch):
    monkeypatch.setattr(pages, "limits_table", lambda name, laid: f"limits of {name}")
    cell = SimpleNamespace(cell_type="code", source="Markdown(limits_table('x'))", metadata={}, outputs=[])
    assert pages._cell(cell, pages._live(NAME))[-1] == f"limits of {NAME}"


@pytest.mark.slow
@pytest.mark.parametrize("name", [r.name for r in catalog.recipes() if "limits_table(" in r.file.read_text()])
def test_a_notebook_shows_the_table_as_it_is(name):
    cells = [c for c in executed.notebook(name).cells if c.cell_type == "code" and "limits_table(" in c.source]
    shown = ["".join(o["data"]["text/markdown"]) for c in cells for o in c.outputs]
    assert shown == [limits_table(name)] * len(cells)


def test_the_record_in_words_and_on_the_command_line(monkeypatch):
    made = record()
    monkeypatch.setattr(records, "read", lambda root=None: [made])
    assert words.WORDS["limits"](made["figures"] | {"peers": made["peers"]}).startswith(
        "128x256: 440 TFLOP/s, 1400 MHz, 690 W, 1.57 J/TFLOP; 256x192: 462 TFLOP/s, 1400 MHz, 690 W, 1.49 J/TFLOP, 91 %"
    )
    assert json.loads(call("results", "--json").stdout)[0]["level"] == "limits"
    assert "690 W" in " ".join(call("results").stdout.split())


# --- the command --------------------------------------------------------------------------------------------------


@needs_no_gpu
def test_without_a_gpu_the_command_says_so(capsys):
    assert limits.main([NAME, "--json"]) == 1
    done = capsys.readouterr()
    assert f"{NAME}: not measured: no CUDA device here" in done.err and json.loads(done.out) == []


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("foundations/memory_ceiling",), "got foundations/memory_ceiling, a study; needed a GEMM"),
        (("foundations/matrix_transpose",), "a transpose; needed a GEMM"),
        (("blackwell/mxfp8_gemm",), "needed one whose scale factors, if any, no MMA takes"),
        ((NAME, "--shape", "8x8x12"), "K a multiple of 8"),
        ((NAME, "--shape", "8x8xK"), "--shape: got '8x8xK'; needed MxNxK: three integers"),
        ((NAME, "--dtype", "float32"), "got 'float32'; needed one of bfloat16"),
        ((NAME, "--major", "nn"), "needed one of tn"),
        (("none/such",), "got 'none/such'"),
    ],
)
def test_a_wrong_command_line_is_exit_2_and_named(arguments, says, capsys):
    with pytest.raises(SystemExit) as stopped:
        limits.main(arguments)
    assert stopped.value.code == 2 and says in " ".join(capsys.readouterr().err.split())


def test_the_command_measures_what_was_asked_and_records_it(monkeypatch, tmp_path, capsys):
    asked = []

    def measure(name, shape, dtype, majors, *, on_progress):
        asked.append((name, shape, dtype, majors))
        if len(asked) == 3:
            raise power.Unmeasurable("nvidia-smi is not on PATH")
        return record(shape) | {"recipe": name, "code": records.code_of(name)}

    monkeypatch.setattr(limits.levels, "cannot_run", lambda recipe, targets: "")
    monkeypatch.setattr(limits, "measure", measure)
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    assert limits.main([NAME, "hopper/majors_gemm", "--record"]) == 0 and "FLOP a clock" in capsys.readouterr().out
    # the first dtype and the first majors of each, where nothing is said
    assert asked == [(name, limits.SHAPE, "bfloat16", "tn") for name in (NAME, "hopper/majors_gemm")]
    assert {r["recipe"] for r in records.read(tmp_path)} == {NAME, "hopper/majors_gemm"}
    assert limits.main([NAME, "--shape", "64x64x64", "--dtype", "float16"]) == 1
    assert asked[2] == (NAME, (64, 64, 64), "float16", "tn")
    assert f"{NAME}: not measured: nvidia-smi is not on PATH" in capsys.readouterr().err


def test_measure_refuses_what_is_no_gemm():
    with pytest.raises(ValueError, match="a study; needed a GEMM"):
        limits.measure("foundations/memory_ceiling")


# --- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_the_figures_of_a_small_gemm_are_possible():
    made = limits.measure(NAME, (2048, 2048, 2048), seconds=1.0)
    variants = made["figures"]["variants"]
    assert list(variants) == list(catalog.load(NAME).VARIANTS) and "torch.matmul" in made["peers"]
    for who, f in (variants | made["peers"]).items():
        assert 0 < f["tflops"] < 5000 and 0 < f["power_w"] < 2000 and 100 < f["clock_mhz"] < 4000, who
        assert 0 < f["flops_per_clock"] <= 8192 * 1.05 and 0 < f["joules_per_tflop"] < 100, who
        assert 0 <= f.get("capped", 0) <= 1
    counted = [f for f in variants.values() if "stalls" in f]
    assert len(counted) == len(variants) or made["figures"]["reason"]
    for f in counted:
        assert all(0 < share <= 1 and clocks > 0 for share, clocks in f["where"].values())
        assert 0 < f["tensor_pipe_pct"] <= 100 and 0 <= f["l2_hit_pct"] <= 100
        assert 0 < len(f["stalls"]) <= limits.TOP and 0 < sum(f["stalls"].values()) < 1
        assert f["l2_read_bytes"] >= 2 * 2 * 2048**2 and f["dram_read_gbps"] > 0
    assert len(tables(made)) == 3 and made["level"] == records.LIMITS
