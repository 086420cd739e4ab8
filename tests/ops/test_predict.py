"""Predicted times against the records, and the choice that follows from them."""

from __future__ import annotations

import math
import statistics

import pytest

from cookbook.measure import records
from cookbook.ops import choice, measuring, predict
from cookbook.recipe import catalog

GPU, SMS = "NVIDIA H200", 132
SERVING = [recipe for recipe in catalog.recipes() if recipe.serves]
ON_HOPPER = {recipe.name: rate for recipe, rate in choice.candidates((9, 0))}


def measured() -> list[tuple[str, tuple[int, int, int], dict[str, float]]]:
    """Of every current record on an H200: the recipe, the shape, microseconds by recipe of the same run."""
    found = []
    for record in (each for each in records.read() if each["device"] == GPU):
        if record["level"] != "timed" or record["recipe"] not in ON_HOPPER or records.is_stale(record):
            continue
        us = {record["recipe"]: record["figures"]["median_ms"]}
        us |= {name: peer["median_ms"] for name, peer in record["peers"].items() if name in ON_HOPPER}
        found.append((record["recipe"], tuple(record["shape"]), {name: 1000 * ms for name, ms in us.items()}))
    return found


def predicted(name: str, m: int, n: int, k: int) -> float:
    module = catalog.load(name)
    config = choice.config_of(module, "sm_90", choice.variant_of(module, m, n, k, SMS))
    return choice.predicted(module, config, predict.Work(m, n, k, SMS, ON_HOPPER[name]))


@pytest.mark.parametrize("name", ON_HOPPER)
def test_predictions_are_near_the_records(name):
    """Root mean square of the logarithms; the recorded sizes are from 3 microseconds to 18 milliseconds."""
    off = [math.log(predicted(name, *shape) / us[name]) for _, shape, us in measured() if name in us]
    if not off:
        pytest.skip("no times are recorded")
    assert len(off) >= 5 and math.sqrt(statistics.mean(x * x for x in off)) <= 0.105


def test_the_choice_was_right_wherever_two_were_timed_in_one_run():
    compared = [(shape, us) for _, shape, us in measured() if len(us) > 1]
    assert len(compared) >= 11
    regret = {}
    for shape, us in compared:
        chosen = min(us, key=lambda name: predicted(name, *shape))
        regret[shape] = us[chosen] / min(us.values()) - 1
    assert max(regret.values()) <= 0.05 and statistics.mean(regret.values()) <= 0.01, regret


def test_the_regret_of_the_shapes_that_were_measured_for_it_is_small():
    shapes = measuring.read()[GPU]["shapes"].values()
    parts = [each.part for each in measuring.regrets(each for each in shapes if not measuring.is_stale(each))]
    of_fifty = sorted(parts)[-1 - len(parts) // 50]  # the worst but for one in fifty
    assert len(parts) >= 60 and statistics.mean(parts) <= 0.006 and of_fifty <= 0.05 and max(parts) <= 0.08


def test_what_serves_is_a_product_of_two_matrices_with_a_host_side():
    assert len(SERVING) >= 8
    for recipe in SERVING:
        module = catalog.load(recipe.name)
        assert recipe.of_two_matrices and {"bfloat16", "float16"} <= set(recipe.dtypes)
        variant = choice.variant_of(module, 512, 512, 512, SMS)
        assert variant in (*module.GEMM.variants, "") and choice.default_of(module) in module.GEMM.variants


@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)])
def test_every_architecture_has_a_recipe_for_each_of_the_majors(capability):
    for a in (choice.Laid((64, 72), (72, 1)), choice.Laid((64, 72), (1, 64))):
        for b in (choice.Laid((72, 80), (80, 1)), choice.Laid((72, 80), (1, 72))):
            options = choice.options(a, b, "bfloat16", choice.Gpu(capability, 100))
            assert any(not option.copies for option in options)
            times = [option.us * (choice.DOUBT if option.copies else 1) for option in options]
            assert times == sorted(times)


def test_another_sm_count_and_more_work_take_longer():
    config = catalog.load("hopper/tuned_gemm").CONFIG
    few, many = (predict.microseconds(config, predict.Work(4096, 4096, 4096, sms, 2048)) for sms in (66, 132))
    assert many < few < 2.2 * many
    longer = predict.microseconds(config, predict.Work(4096, 4096, 8192, 132, 2048))
    assert 1.8 * many < longer < 2.1 * many


def test_a_copy_is_in_the_prediction():
    aligned, odd = choice.Laid((512, 4096), (4096, 1)), choice.Laid((512, 4096), (4097, 1))
    b = choice.Laid((4096, 512), (1, 4096))
    as_it_lies, copied = (choice.options(a, b, "bfloat16", choice.H200)[0] for a in (aligned, odd))
    assert not as_it_lies.copies and copied.copies == {"a": "K = 4096, rows 8194 bytes apart"}
    assert copied.copy_us == predict.copy_us(512 * 4096) > 2 and as_it_lies.copy_us == 0


def test_an_explanation_in_words():
    from cookbook import ops

    found = ops.explain((512, 4097), (4097, 4096))
    text = str(found)
    assert text.startswith("512 x 4096 x 4097, bfloat16, on sm_90, 132 SMs: hopper/majors_gemm, ")
    assert "a is copied first: K = 4097, rows 8194 bytes apart" in text and "majors: tt" in text
    best, after, *_ = found.options
    said = f"predicted {best.us:.1f} us; the next, {after.recipe}, {after.us:.1f} us with a copy"
    assert found.reason == said
    assert "nothing is copied" in str(ops.explain((512, 4096), (4096, 4096)))
    only = ops.explain((64, 64), (64, 64), gpu=choice.Gpu((8, 9), 142))
    assert only.gpu.sms == 142 and only.recipe.startswith("ampere/")
