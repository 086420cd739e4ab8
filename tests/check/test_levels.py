"""What `check` makes of its levels: statuses, reasons, configurations, and of what is recorded."""

from __future__ import annotations

import numpy as np
import pytest

from cookbook.check import compiled, pipeline
from cookbook.check import levels as checking
from cookbook.check.findings import Finding
from cookbook.check.pipeline import run as running
from cookbook.measure import records
from cookbook.products import gemm
from cookbook.recipe import catalog

NAME = "ampere/ldmatrix_gemm"


@pytest.fixture
def recipe():
    return catalog.find(NAME)


def exact_model(module, a, b, dtype, config):
    return a.astype(np.float64) @ b.astype(np.float64)


def one_config(recipe):
    return compiled.config_for(catalog.load(recipe.name), recipe.targets[0])


def test_the_model_passes_when_the_product_is_right(monkeypatch, recipe):
    monkeypatch.setattr(gemm, "simulate", exact_model)
    level = checking.model_level(recipe, "bfloat16", (20, 30, 64), one_config(recipe))
    assert level.status == "passed" and level.shape == (20, 30, 64)
    assert level.figures["integer_mismatches"] == 0 and 0 < level.figures["relative_error"] < 3e-3


def test_the_model_fails_on_a_single_wrong_element(monkeypatch, recipe):
    def simulate(*arguments):
        product = exact_model(*arguments)
        product[3, 4] += 100
        return product

    monkeypatch.setattr(gemm, "simulate", simulate)
    level = checking.model_level(recipe, "float16", (200, 300, 64), one_config(recipe))
    assert level.status == "failed" and "1 of 60000 elements differ on integer inputs" in level.reason


def test_too_large_a_model_is_named_not_simulated(recipe):
    level = checking.model_level(recipe, "float16", (4096, 4096, 4096), one_config(recipe))
    assert level.status == "not checked" and "too large to simulate" in level.reason


def test_findings_become_a_level(monkeypatch, recipe):
    found = [Finding("a", True, "fine"), Finding("b", False, "7 wavefronts; needed 4")]
    monkeypatch.setattr(gemm, "check_layouts", lambda *a: found)
    (level,) = checking.layout_levels(recipe, "float16", ("sm_80",))
    assert level.status == "failed" and level.reason == "b: 7 wavefronts; needed 4"
    monkeypatch.setattr(gemm, "check_layouts", lambda *a: [])
    (level,) = checking.layout_levels(recipe, "float16", ("sm_80",))
    assert level.status == "failed" and level.reason == "nothing was looked at"


def test_every_distinct_configuration_is_looked_at(recipe):
    found = checking.configurations(recipe, recipe.targets)
    module = catalog.load(recipe.name)
    assert set(found) == {compiled.config_for(module, target) for target in recipe.targets}
    assert checking.configurations(recipe, ("sm_80",)) == {module.config_for("sm_80"): {}}


def test_a_level_that_raises_fails_and_the_rest_goes_on():
    def boom():
        raise OSError("disk full")

    step = checking.Step("compiled", "float16", boom, target="sm_80")
    (level,) = checking.run_step(step)
    assert (level.status, level.target, level.reason) == (
        "failed",
        "sm_80",
        "the kernel does not compile: OSError: disk full",
    )
    assert step.text == "compiled sm_80 float16"


def test_what_stops_a_level_is_one_line():
    of_cute = "\n\x1b[91m\x1b[1merror:\x1b[0m NameError: name 'x'\n   \x1b[94m-->\x1b[0m /tmp/a/my.py:146\n 146 | x\n"
    told = {
        RuntimeError(of_cute): "the kernel cannot be traced: RuntimeError: NameError: name 'x' (my.py:146)",
        ValueError("tile: got 5; needed 8"): "tile: got 5; needed 8",
        pipeline.CannotFollow("line 3: scf.for: a loop"): "the kernel cannot be followed: line 3: scf.for: a loop",
        KeyError("c"): "the kernel cannot be traced: KeyError: 'c'",
    }
    for error, reason in told.items():

        def raises(error=error):
            raise error

        (level,) = checking.run_step(checking.Step("pipeline", "float16", raises))
        assert (level.status, level.reason) == ("failed", reason)


def test_without_the_disassembler_compiled_is_not_checked(monkeypatch, recipe):
    def missing():
        raise compiled.NoDisassembler("nvdisasm not found: pip install nvidia-cuda-nvdisasm")

    monkeypatch.setattr(compiled, "nvdisasm", missing)
    steps = checking.plan(recipe, *checking.chosen(recipe, (), ["float16"], ["sm_80"]))
    (level,) = (level for step in steps if step.level == "compiled" for level in checking.run_step(step))
    assert level.status == "not checked" and "pip install nvidia-cuda-nvdisasm" in level.reason


def made(passed=True):
    return records.make("ran", NAME, "bfloat16", None, passed=passed, figures={"shapes": 69}, device="NVIDIA X")


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({}, "recorded", "no GPU"),
        ({"code": "0"}, "stale", "code has changed"),
        ({"status": "failed"}, "failed", "recorded as failed"),
    ],
)
def test_records_stand_in_for_levels_that_cannot_run_here(monkeypatch, recipe, change, status, says):
    monkeypatch.setattr(records, "read", lambda root=None, name=None: [made() | change])
    (level,) = checking.recorded_levels(recipe, "ran", "bfloat16", "no GPU")
    assert level.status == status and says in level.reason
    assert level.device == "NVIDIA X" and level.date and level.figures == {"shapes": 69}
    (level,) = checking.recorded_levels(recipe, "ran", "float16", "no GPU")
    assert level.status == "not checked" and level.reason == "no GPU; nothing recorded: not run on hardware"


def test_a_report_holds_unless_something_failed():
    levels = [checking.Level("ran", status) for status in ("passed", "recorded", "stale", "not checked")]
    report = checking.Report(NAME, tuple(levels))
    assert report.ok and [level.status for level in report.not_checked] == ["stale", "not checked"]
    assert not checking.Report(NAME, (*levels, checking.Level("model", "failed"))).ok
    assert report.to_json()["levels"][0]["status"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shapes": [(1, 2)]}, "shape: got (1, 2); needed M,N,K"),
        ({"shapes": [(1, 2, 12)]}, "K a multiple of 8"),
        ({"dtypes": ["float32"]}, "dtype: got 'float32'; needed one of"),
        ({"targets": ["sm_75"]}, "target: got 'sm_75'; needed one of sm_80"),
        ({"majors": ["nt"]}, "major: got 'nt'; needed one of tn"),
    ],
)
def test_wrong_arguments_are_named(arguments, says):
    with pytest.raises(ValueError) as raised:
        checking.check(NAME, **arguments)
    assert says in str(raised.value)


SEVERAL = "ampere/majors_gemm"


def test_every_level_is_planned_for_each_of_the_majors():
    recipe = catalog.find(SEVERAL)
    plan = checking.plan(recipe, *checking.chosen(recipe, [], ["float16"], ["sm_80"]))
    by_level: dict[str, list[str]] = {}
    for step in plan:
        by_level.setdefault(step.level, []).append(step.majors)
    assert set(by_level) == {*checking.LEVELS, checking.PRODUCT, checking.HOST, checking.PIPELINE, checking.BANKS}
    assert by_level.pop(checking.HOST) == [None]  # once, of calls with all of them
    assert all(set(said) == set(recipe.majors) for said in by_level.values())
    assert "layout nt float16" in [step.text for step in plan]
    assert {step.shape for step in plan if step.majors == "nt" and step.shape} == {(200, 336, 64), (72, 40, 136)}


def test_one_majors_go_without_saying(recipe):
    plan = checking.plan(recipe, *checking.chosen(recipe, [], ["float16"], ["sm_80"]))
    assert {step.majors for step in plan} == {None}


def test_shapes_choose_the_majors_that_can_have_them():
    recipe = catalog.find(SEVERAL)
    assert checking.chosen(recipe, [(200, 333, 64)], [], []).majors == ("tn", "nn")
    assert checking.chosen(recipe, [(200, 328, 77)], [], []).majors == ("nt",)
    assert checking.chosen(recipe, [(200, 328, 64)], [], [], ["tt"]).majors == ("tt",)
    with pytest.raises(
        ValueError, match=r"shape: got \(200, 333, 64\), N = 333; needed a multiple of 8 along which tt"
    ):
        checking.chosen(recipe, [(200, 333, 64)], [], [], ["tt"])
    with pytest.raises(
        ValueError, match=r"shape: got \(200, 333, 65\); needed M,N,K of 1 or more, multiples of 8 where"
    ):
        checking.chosen(recipe, [(200, 333, 65)], [], [])
    with pytest.raises(ValueError, match="needed a multiple of 8"):
        checking.chosen(recipe, [(200, 333, 64), (200, 328, 77)], [], [])


def test_levels_say_their_majors_and_are_of_their_configuration(monkeypatch):
    recipe, seen = catalog.find(SEVERAL), []

    def check_layouts(module, dtype, config):
        seen.append((config.a_major, config.b_major))
        return [Finding("a", True)]

    monkeypatch.setattr(gemm, "check_layouts", check_layouts)
    wanted = checking.chosen(recipe, [], ["float16"], ["sm_80"], ["nn", "nt"])
    levels = [level for step in checking.plan(recipe, *wanted)[:1] for level in checking.run_step(step)]
    assert seen == [("m", "k")] and [level.majors for level in levels] == ["nn"]
    assert levels[0].to_json()["majors"] == "nn"


def test_records_are_shown_for_their_majors_alone(monkeypatch):
    recipe = catalog.find(SEVERAL)
    record = records.make("ran", SEVERAL, "bfloat16", None, passed=True, figures={}, device="X", majors="nt")
    monkeypatch.setattr(records, "read", lambda root=None, name=None: [record])
    (shown,) = checking.recorded_levels(recipe, "ran", "bfloat16", "no GPU", "nt")
    (missing,) = checking.recorded_levels(recipe, "ran", "bfloat16", "no GPU", "tn")
    assert (shown.status, missing.status) == ("recorded", "not checked")


def test_only_block_scaled_operands_lack_times_and_tools():
    gemms = [recipe for recipe in catalog.recipes() if recipe.product.is_gemm]
    untimed = {recipe.name for recipe in gemms if recipe.product.unmeasured(recipe)}
    assert untimed == {"blackwell/mxfp8_gemm", "blackwell/nvfp4_gemm"}
    (level,) = checking.gpu_levels(catalog.find("blackwell/mxfp8_gemm"), "timed", "bfloat16")
    assert level.status == "not checked"


@pytest.mark.parametrize("name", ["ampere/ldmatrix_gemm", "foundations/thread_block_swizzle"])
def test_a_check_finds_its_recipe_once(monkeypatch, name):
    """No level asks for a recipe by its name: of another one alone, whose kernels a study runs."""
    catalog.load(name)
    asked, look = [], catalog.find
    monkeypatch.setattr(catalog, "find", lambda name, root=None: asked.append(name) or look(name, root))
    monkeypatch.setattr(catalog, "load", lambda name, root=None: pytest.fail(f"{name} is loaded by its name"))
    report = checking.check(name, targets=look(name).targets[:1], dtypes=look(name).dtypes[:1])
    levels = {level.level for level in report.levels}
    assert report.ok and {"layout", "timed"} <= levels and asked.count(name) == 1
    assert {*asked} <= {name, getattr(getattr(look(name).module, "EXPERIMENT", None), "recipe", name)}


def test_levels_that_follow_a_kernel_share_one_run(monkeypatch):
    """Each of its traces is made once, and its first cluster is followed once for pipeline, banks and cost."""
    recipe = catalog.find("hopper/tma_wgmma_gemm")
    kernels = {(c.config, c.options) for c in gemm.PRODUCT.problems(recipe.module, recipe.module.CONFIG)}
    traced, followed = [], []
    trace, warps = running.traced_by, running.warps_of
    monkeypatch.setattr(running, "traced_by", lambda compiles: traced.append(compiles) or trace(compiles))
    monkeypatch.setattr(running, "warps_of", lambda *given: followed.append(given[2:4]) or warps(*given))
    wanted = checking.chosen(recipe, [], recipe.dtypes[:1], recipe.targets[:1])
    steps = [step for step in checking.plan(recipe, *wanted) if step.runs]
    found = [level for step in steps for level in checking.run_step(step)]
    assert [level.level for level in found] == ["product", "pipeline", "banks", "cost"]
    assert all(level.status == "passed" for level in found)
    assert len(traced) == len(kernels | {(recipe.module.CONFIG, ())})
    launches = [id(shared) for shared, _ in followed]
    assert len(set(launches)) == len(pipeline.problems(recipe.module.CONFIG)) == len(followed) / 2
