"""`cookbook calibrate`: figures are fitted to times, kept by device, and used; here with times that a cost makes up."""

from __future__ import annotations

import json
import types

import pytest
from typer.testing import CliRunner

pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from cookbook.cli.app import app  # noqa: E402
from cookbook.measure import bench, calibration  # noqa: E402
from cookbook.recipe import catalog, contract, figures  # noqa: E402

TUNED, STUDY = "hopper/tuned_gemm", "foundations/gpc_remapping"
DEVICE, SMS = "NVIDIA H200", 132
TRUE = {"clock_exponent": 0.7, "load_cost": 40.0}  # of a chip that is not the default's
GPCS = [3, 5, 3, 5]


def simulated(module, shape):
    """A record of level "timed" in which each variant takes what it costs."""
    times = {name: {"median_ms": module.cost(config, *shape, SMS) / 1e6} for name, config in module.VARIANTS.items()}
    return {"shape": list(shape), "peers": times}


def timed_on_another_chip(name, **how):
    """In place of `bench.bench`: times by the figures of TRUE."""
    module = catalog.load(name)
    for shape in bench.DEFAULT_SHAPES:
        how["on_progress"](f"timed {name} {shape}")
    with figures.using(module, TRUE):
        return [simulated(module, shape) for shape in bench.DEFAULT_SHAPES]


@pytest.fixture
def h200(monkeypatch, tmp_path):
    """A machine that says it has an H200 with nothing recorded, and a study that finds its GPCs."""
    properties = types.SimpleNamespace(multi_processor_count=SMS)
    for name, value in {
        "is_available": True,
        "get_device_name": DEVICE,
        "current_device": 0,
        "get_device_capability": (9, 0),
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(figures, "_RESULTS", tmp_path)
    monkeypatch.setattr(catalog.load(STUDY), "launch_order", lambda: tuple(GPCS))
    module = catalog.load(TUNED)
    before = module.CALIBRATION
    yield module
    module.CALIBRATION = before


def test_the_figures_that_made_the_times_are_found(h200):
    said = []
    found = calibration.measure(TUNED, timed_on_another_chip, said.append)
    assert found["figures"].pop("gpcs") == GPCS and found["figures"] == pytest.approx(TRUE, rel=1e-3)
    assert found["misfit"] < 1e-3 < found["misfit_before"] and found["sizes"] == len(bench.DEFAULT_SHAPES)
    assert len(said) == calibration.steps(catalog.find(TUNED)) == 1 + len(bench.DEFAULT_SHAPES)
    assert type(h200.CALIBRATION)() == h200.CALIBRATION, "what is measured is not used before it is recorded"
    assert found["changes"]["load_cost"]["in_use"] == h200.CALIBRATION.load_cost
    assert "loading one operand element" in found["changes"]["load_cost"]["meaning"]


def test_a_record_is_used_where_the_device_has_one(h200, tmp_path, monkeypatch):
    found = calibration.measure(TUNED, timed_on_another_chip)
    assert not figures.use(TUNED, h200)
    file = figures.write(TUNED, found)
    assert file == tmp_path / "nvidia-h200" / "calibration.json"
    assert figures.read() == {DEVICE: {TUNED: {k: v for k, v in found.items() if k not in ("device", "changes")}}}
    assert figures.use(TUNED, h200) and h200.CALIBRATION.load_cost == found["figures"]["load_cost"]
    assert tuple(h200.CALIBRATION.gpcs) == tuple(GPCS)
    h200.calibrate(load_cost=16)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "another")
    assert not figures.use(TUNED, h200) and h200.CALIBRATION.load_cost == 16


def test_a_recipe_that_is_loaded_uses_the_record(h200, monkeypatch):
    figures.write(TUNED, {"device": DEVICE, "figures": {"load_cost": 5}})
    name = "cookbook.recipes." + TUNED.replace("/", ".")
    with monkeypatch.context() as patch:
        patch.delitem(catalog.sys.modules, name)
        assert catalog.load(TUNED).CALIBRATION.load_cost == 5


def test_a_file_that_is_no_record_is_named(tmp_path):
    file = tmp_path / "some" / figures.FILE
    file.parent.mkdir()
    file.write_text("[]")
    with pytest.raises(ValueError, match=r"calibration\.json: not a record of calibrations"):
        figures.read(tmp_path)


def test_the_command_prints_old_and_new_and_writes_the_record(h200, monkeypatch, tmp_path):
    monkeypatch.setattr(calibration.measure, "__defaults__", (timed_on_another_chip, lambda text: None))
    done = CliRunner().invoke(app, ["calibrate", TUNED, "--record"])
    assert done.exit_code == 0, done.output
    for word in ("in use", "measured", "load_cost", "16", "40", "calibrate(gpcs=[3, 5, 3, 5], clock_exponent=0.7"):
        assert word in done.output
    assert (tmp_path / "nvidia-h200" / "calibration.json").exists()
    done = CliRunner().invoke(app, ["calibrate", TUNED, "--json"])
    (made,) = json.loads(done.stdout)["calibrated"].values()
    assert made["figures"].pop("gpcs") == GPCS and made["figures"] == pytest.approx(TRUE, rel=1e-3)


def test_what_has_no_figures_is_refused_and_no_gpu_is_said(monkeypatch):
    with pytest.raises(ValueError, match="swap_ab_gemm, which has no figures of a chip; needed hopper"):
        calibration.measure("hopper/swap_ab_gemm")
    done = CliRunner().invoke(app, ["calibrate", "hopper/swap_ab_gemm"])
    assert done.exit_code == 2 and "got hopper/swap_ab_gemm, which has no figures of a chip" in done.output
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="no CUDA device"):
        calibration.measure(TUNED)


def test_every_fitted_figure_and_study_is_there():
    for recipe in calibration.calibratable():
        module = catalog.load(recipe.name)
        assert set(recipe.fitted) <= set(figures.meanings(module)) == set(vars(module.CALIBRATION))
        assert all(figures.meanings(module).values()), "each figure has a comment"
        if recipe.measured_by:
            assert isinstance(catalog.load(recipe.measured_by), contract.Calibrates)
