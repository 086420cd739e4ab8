"""What studies measure on a GPU: predictions, comparison with a profiler's report, records, and tables made of them."""

from __future__ import annotations

from types import SimpleNamespace

import executed
import pytest
import torch

from cookbook.check import compiled, counted, reports
from cookbook.check import levels as checking
from cookbook.measure import experiments, launch, peers, records, studies
from cookbook.publish import markdown, study_tables
from cookbook.publish.words import describe
from cookbook.recipe import catalog
from tools.publish import charts, pages

ORDERS = "foundations/thread_block_swizzle"
COUNTED = {
    "foundations/bank_conflicts": {"pitch 32": {"r2s": 1, "s2g": 32}, "pitch 33": {"r2s": 1, "s2g": 1}},
    "foundations/xor_swizzle": {"plain": {"r2s": 1, "s2g": 32}, "swizzled": {"r2s": 1, "s2g": 1}},
    "foundations/swizzle_parameters": {"plain": {"r2s": 4, "s2g": 32}, "swizzled": {"r2s": 4, "s2g": 4}},
}


def lines(stores: int, loads: int, steps: int = 32) -> list[counted.Line]:
    """A kernel of one store and one load, executed `steps` times each, as ncu reports it."""
    nothing = counted.Line("IADD3", 100, 0, 0)
    return [
        counted.Line("STS", steps, steps * stores, steps),
        nothing,
        counted.Line("LDS", steps, steps * loads, steps),
    ]


# --- kernels of their own -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTED)
def test_the_wavefronts_of_every_kernel_are_predicted(name):
    assert studies.predicted(catalog.load(name)) == COUNTED[name]


@pytest.mark.parametrize("name", COUNTED)
def test_moves_touch_every_element_once(name):
    module = catalog.load(name)
    rows, columns = studies.tile(module, next(iter(module.KERNELS.values()))).outer.sizes
    for move in module.MOVES.values():
        places = [move.place(lane, step) for step in range(move.steps) for lane in range(module.CONFIG.threads)]
        touched = [(row, column + i) for row, column in places for i in range(move.width)]
        assert sorted(touched) == [(row, column) for row in range(rows) for column in range(columns)]


def test_steps_that_differ_are_no_prediction():
    module = catalog.load("foundations/xor_swizzle")
    slanted = module.Move(1, 2, lambda lane, step: (lane, 0) if step else (0, lane))
    made = SimpleNamespace(**{**vars(module), "MOVES": {"r2s": slanted}})
    with pytest.raises(ValueError, match=r"MOVES: got steps of r2s of \[1, 32\] wavefronts"):
        studies.predicted(made)


def test_a_report_that_agrees_passes_and_another_is_named():
    module = catalog.load("foundations/bank_conflicts")
    figures, problems = studies.compare(module, [lines(1, 32), lines(1, 1)])
    assert problems == [] and set(figures) == {"pitch 32 STS", "pitch 32 LDS", "pitch 33 STS", "pitch 33 LDS"}
    assert figures["pitch 32 LDS"] == {
        "lines": 1,
        "executed": 32,
        "wavefronts": 1024,
        "excess": 992,
        "predicted_each": 32,
    }
    assert studies.compare(module, [lines(1, 32), lines(1, 2)])[1] == [
        "pitch 33: LDS: 2.00 wavefronts each, predicted 1"
    ]
    assert studies.compare(module, [lines(1, 32)])[1][0].startswith("1 kernels were counted; needed one for each of")
    assert studies.compare(module, [lines(1, 32), lines(1, 1)[:1]])[1] == [
        "pitch 33: no instruction was counted for s2g"
    ]


def record(name: str, level: str, figures: dict, **changed) -> records.Record:
    made = records.make(level, name, "float32", None, passed=True, figures=figures, device="NVIDIA Test")
    return made | changed


def test_the_table_shows_measured_beside_predicted(tmp_path):
    name = "foundations/bank_conflicts"
    assert study_tables.counted_table(name, tmp_path) == markdown.NOT_MEASURED_ON_A_GPU
    figures, _ = studies.compare(catalog.load(name), [lines(1, 32), lines(1, 1)])
    records.write([record(name, "counted", figures)], tmp_path)
    shown = study_tables.counted_table(name, tmp_path)
    assert "| pitch 32 | `LDS` | 32 | 32 | 32 | 1 |" in shown and "| pitch 33 | `LDS` | 32 | 1 | 1 | 1 |" in shown
    assert "Every count is the predicted one." in shown and "NVIDIA Test" in shown
    records.write([record(name, "counted", figures, code="0" * 64)], tmp_path)
    shown = study_tables.counted_table(name, tmp_path)
    assert "Not measured on the code as it is now" in shown and "|" not in shown


def test_without_a_gpu_the_levels_show_what_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    recipe = catalog.find("foundations/bank_conflicts")
    (level,) = checking.gpu_levels(recipe, "counted", None, tools=True)
    assert level.status == "not checked" and level.reason == "no CUDA device here; nothing recorded"
    figures, _ = studies.compare(catalog.load(recipe.name), [lines(1, 32), lines(1, 1)])
    records.write([record(recipe.name, "counted", figures)])
    (level,) = checking.gpu_levels(recipe, "counted", None, tools=True)
    assert level.status == "recorded" and "32 for pitch 32 LDS" in describe(level)
    assert checking.gpu_levels(recipe, "timed", None, tools=True) == []
    assert checking.gpu_levels(catalog.find("foundations/mma_smem_atoms"), "counted", None, tools=True) == []


@pytest.mark.parametrize("name", executed.params([*COUNTED, ORDERS]))
def test_notebook_and_page_show_the_records_as_they_are(name):
    call, now = (
        ("counted_table", study_tables.counted_table)
        if name in COUNTED
        else ("experiment_table", study_tables.experiment_table)
    )
    (cell,) = [c for c in executed.notebook(name).cells if c.cell_type == "code" and f"{call}(" in c.source]
    assert ["".join(o["data"]["text/markdown"]) for o in cell.outputs] == [now(name)]
    assert pages.page(name).count(now(name)) == 1


# --- an experiment ------------------------------------------------------------------------------------------------


@pytest.fixture
def experiment(monkeypatch):
    monkeypatch.setattr(compiled, "arch_here", lambda: "sm_90")
    return catalog.load(ORDERS).EXPERIMENT


def test_the_experiment_is_of_the_kernel_that_the_model_is_of(experiment):
    study, gemm = catalog.load(ORDERS), catalog.load(experiment.recipe)
    made, standard = experiments.configs(experiment)
    assert made[standard] == gemm.CONFIG and len(set(made.values())) == len(made) == 5
    assert (gemm.CONFIG.tile_m, gemm.CONFIG.tile_n) == study.TILE
    assert experiment.shape[:2] == tuple(n * size for n, size in zip(study.GRID, study.TILE, strict=True))
    assert set(experiment.read_bytes) == set(made)
    with pytest.raises(ValueError, match="configs: got groups of 8; needed one that is hopper/tma_wgmma_gemm's own"):
        experiments.configs(experiment._replace(configs={"groups of 8": {"swizzle_size": 8}}))


def raw_page(rows: list[tuple[float, float, float]]) -> str:
    """ncu's raw page: hits, misses and bytes of each launch."""
    header = ["ID", "Kernel Name", experiments.READ, experiments.HITS, experiments.MISSES]
    units = ["", "", "byte", "sector", "sector"]
    body = [[str(i), "kernel_cutlass", str(read), str(hit), str(miss)] for i, (hit, miss, read) in enumerate(rows)]
    return "\n".join(",".join(f'"{cell}"' for cell in row) for row in (header, units, *body))


def test_the_traffic_of_every_order_is_read_from_the_report(experiment):
    page = raw_page([(10, 10, 5e9), (30, 10, 4e9), (80, 20, 1e9), (60, 40, 2e9), (1, 3, 6e9)])
    figures, problems = experiments.traffic(experiment, page)
    assert problems == [] and list(figures) == list(experiment.configs)
    assert figures["groups of 16"] == {
        "read_bytes": 1_000_000_000,
        "predicted_bytes": experiment.read_bytes["groups of 16"],
        "l2_hit_rate": 0.8,
    }
    assert experiments.traffic(experiment, raw_page([(1, 1, 1)])) == (
        {},
        [f"1 launches were counted; needed one for each of {', '.join(experiment.configs)}"],
    )


def test_a_launcher_hands_over_what_is_taken_refuses_the_rest(monkeypatch):
    took = []
    module = SimpleNamespace(
        compile_for=lambda arch, dtype, config, vec, options: lambda *each: took.append((arch, config, vec, *each)),
    )
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    call = experiments.launcher(module, "bfloat16", "a config")
    a, b, out = torch.zeros(16, 24), torch.zeros(40, 24).T, torch.zeros(16, 40)
    assert call(a, b, out) is out
    pointers = (a.data_ptr(), b.data_ptr(), out.data_ptr())
    assert took == [("", "a config", 8, *pointers, (16, 40, 24), (24, 24, 40), 7)]
    with pytest.raises(ValueError, match=r"b: got shape \(40, 24\), strides \(1, 40\); needed contiguous rows"):
        call(a, torch.zeros(24, 40), out)
    with pytest.raises(ValueError, match=r"out: got shape \(16, 36\)"):
        call(a, torch.zeros(36, 24).T, torch.zeros(16, 36))
    assert len(took) == 1


def timed_figures(ms: float) -> dict:
    return {"median_ms": ms, "min_ms": 0.99 * ms, "max_ms": 1.01 * ms, "tflops": round(1100 / ms, 2)}


def written(tmp_path, experiment, **changed) -> None:
    """Records of both levels: groups of 16 read least and are fastest, groups of 8 as fast within the spread."""
    page = raw_page([(10, 10, 5e9), (30, 10, 4e9), (80, 20, 1e9), (60, 40, 2e9), (1, 3, 6e9)])
    figures, _ = experiments.traffic(experiment, page)
    ms = {"row by row": 1.8, "groups of 8": 1.51, "groups of 16": 1.5, "groups of 32": 1.6, "column by column": 2.1}
    own = timed_figures(ms.pop("groups of 16")) | {"name": "groups of 16"}
    peers = {name: timed_figures(each) | {"ratio": round(each / 1.5, 4)} for name, each in ms.items()}
    where = {"passed": True, "device": "NVIDIA Test", "of": (experiment.recipe,)}
    made = [
        records.make("counted", ORDERS, "bfloat16", experiment.shape, figures=figures, **where),
        records.make("timed", ORDERS, "bfloat16", experiment.shape, figures=own, peers=peers, **where),
    ]
    records.write([r | changed for r in made], tmp_path)


def test_an_experiments_table_and_conclusion_are_the_records(tmp_path, experiment):
    assert study_tables.experiment_table(ORDERS, tmp_path) == markdown.NOT_MEASURED_ON_A_GPU
    assert charts.experiment_chart(ORDERS, tmp_path) is None
    written(tmp_path, experiment)
    shown = study_tables.experiment_table(ORDERS, tmp_path)
    model = experiment.read_bytes["groups of 16"] / 1e9
    assert f"| groups of 16 | {model:.2f} | 1.00 | 80.0% | 1,500 (1,485 to 1,515) | 733 |" in shown
    assert "**Groups of 16** reads least, as the model says: 17% of column by column." in shown
    assert "**Groups of 16** is fastest, 1.400 times as fast as column by column, the slowest." in shown
    assert "Within its spread: groups of 8." in shown
    chart = charts.experiment_chart(ORDERS, tmp_path)
    assert all(name in chart.svg for name in experiment.configs) and "NVIDIA Test" in chart.svg
    levels = [describe(reports._recorded(r, "")) for r in records.read(tmp_path)]
    assert levels[0].startswith("read from memory: 5.00 GB row by row, 4.00 GB groups of 8")
    assert levels[1].startswith("1,500 us (1,485-1,515), 733 TFLOP/s; 1.200 of row by row")


@pytest.fixture
def device(monkeypatch, experiment):
    """As much of a GPU as there has to be for torch.matmul to stand in for the kernel."""
    small = experiment._replace(shape=(64, 64, 64))
    monkeypatch.setattr(catalog.load(ORDERS), "EXPERIMENT", small)
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    monkeypatch.setattr(peers, "input_sets", lambda *_: [(a, b, torch.empty(64, 64).bfloat16())])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        experiments, "launcher", lambda module, dtype, config: lambda a, b, out: torch.matmul(a, b, out=out)
    )
    return small


def test_timing_makes_a_record_of_an_own_order_and_its_peers(device, monkeypatch):
    def contest(given, rounds):
        assert given.standard == "groups of 16" and given.work == 2 * 64**3 and len(given.sets) == 1
        figures = {name: timed_figures(2.0 if name == given.standard else 3.0) for name in given.variants}
        return figures | {"rounds": rounds, "batch": 4, "launches": "graph", "sets": 1}

    monkeypatch.setattr(experiments, "time_contest", contest)
    made, problems = experiments.timed(catalog.find(ORDERS), rounds=7)
    assert problems == [] and made["config"]["swizzle_size"] == 16 and made["shape"] == [64, 64, 64]
    assert made["figures"] == timed_figures(2.0) | {
        "rounds": 7,
        "batch": 4,
        "launches": "graph",
        "sets": 1,
        "name": "groups of 16",
    }
    assert set(made["peers"]) == set(device.configs) - {"groups of 16"}
    assert made["peers"]["row by row"]["ratio"] == 1.5 and set(made["of"]) == {device.recipe}


def test_counting_makes_a_record_but_not_of_a_wrong_kernel(device, monkeypatch):
    page = raw_page([(1, 1, 10 * n) for n in range(1, 6)])
    monkeypatch.setattr(counted, "profile", lambda command, collect, which: page if which == "raw" else "")
    made, problems = experiments.counted(catalog.find(ORDERS))
    assert problems == [] and made["status"] == "passed" and made["level"] == "counted"
    assert [f["read_bytes"] for f in made["figures"].values()] == [10, 20, 30, 40, 50]
    launch.launch(ORDERS)
    monkeypatch.setattr(experiments, "launcher", lambda *_: lambda a, b, out: out.copy_(a))
    with pytest.raises(RuntimeError, match="row by row is wrong: relative error"):
        launch.launch(ORDERS)


def test_counting_the_kernels_of_a_study_makes_a_record(monkeypatch):
    name = "foundations/swizzle_parameters"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(compiled, "arch_here", lambda: "sm_90")
    header = '"Source","Instructions Executed","L1 Wavefronts Shared","L1 Wavefronts Shared Ideal"\n'
    kernels = [
        header + f'"STS.128 [R1], R4","8","32","32"\n"LDS.128 R4, [R2]","8","{8 * each}","32"\n' for each in (32, 4)
    ]
    monkeypatch.setattr(counted, "profile", lambda *_: "".join(kernels))
    made, problems = studies.counted(catalog.find(name))
    assert problems == [] and (made["dtype"], made["shape"]) == ("float16", None)
    assert made["figures"]["plain LDS.128"]["wavefronts"] == 256 and made["config"] == {
        "threads": 32,
        "smem_bytes": 4096,
    }
    monkeypatch.setattr(counted, "profile", lambda *_: "".join(kernels[::-1]))
    made, problems = studies.counted(catalog.find(name))
    assert made["status"] == "failed" and problems[0] == "plain: LDS.128: 4.00 wavefronts each, predicted 32"


def test_an_experiments_record_is_stale_when_code_changed(tmp_path, experiment):
    written(tmp_path, experiment)
    assert not any(records.is_stale(r) for r in records.read(tmp_path))
    written(tmp_path, experiment, of={experiment.recipe: "0" * 64})
    assert all(records.is_stale(r) for r in records.read(tmp_path))
    assert "Not measured on the code as it is now" in study_tables.experiment_table(ORDERS, tmp_path)
    written(tmp_path, experiment, code="0" * 64)
    assert all(records.is_stale(r) for r in records.read(tmp_path))
