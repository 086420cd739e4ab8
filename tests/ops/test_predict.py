"""Predicted times against the records, and the choice that follows from them."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cookbook.measure import records
from cookbook.ops import choice, gated, launching, predict
from cookbook.recipe import catalog
from tools.ops import measuring, unseen

SMS = 132
H100 = "NVIDIA H100 80GB HBM3"
NEAR = {"NVIDIA H200": 0.141, H100: 0.105}  # the figures are fitted to times of an H100
GPUS = {"NVIDIA H200": 1.0, "NVIDIA H100 80GB HBM3": 0.7}  # with records; their memory's bandwidth as part of an H200's
SERVING = [recipe for recipe in catalog.recipes() if recipe.serves]
ON_HOPPER = {recipe.name: rate for recipe, rate in choice.candidates((9, 0))}


def measured(gpu: str) -> list[tuple[str, tuple[int, int, int], dict[str, float]]]:
    """Of every current record on a GPU: the recipe, the shape, microseconds by recipe of the same run."""
    found = []
    for record in (each for each in records.read() if each["device"] == gpu):
        if record["level"] != "timed" or record["recipe"] not in ON_HOPPER or records.is_stale(record):
            continue
        us = {record["recipe"]: record["figures"]["median_ms"]}
        us |= {name: peer["median_ms"] for name, peer in record["peers"].items() if name in ON_HOPPER}
        found.append((record["recipe"], tuple(record["shape"]), {name: 1000 * ms for name, ms in us.items()}))
    return found


def predicted(name: str, m: int, n: int, k: int, memory: float = 1.0) -> float:
    module = catalog.load(name)
    config = choice.config_of(module, "sm_90", choice.variant_of(module, m, n, k, SMS))
    return choice.predicted(module, config, predict.Work(m, n, k, SMS, ON_HOPPER[name]), memory)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ON_HOPPER)
def test_predictions_are_near_the_records(name, gpu):
    """Root mean square of the logarithms; the recorded sizes are from 3 microseconds to 18 milliseconds."""
    off = [math.log(predicted(name, *shape, GPUS[gpu]) / us[name]) for _, shape, us in measured(gpu) if name in us]
    if not off:
        pytest.skip("no times are recorded")
    assert len(off) >= 5 and math.sqrt(statistics.mean(x * x for x in off)) <= NEAR[gpu]


@pytest.mark.parametrize("gpu, mean, worst", [("NVIDIA H200", 0.022, 0.195), (H100, 0.01, 0.13)])
def test_recipes_are_told_apart_where_one_run_timed_two(gpu, mean, worst):
    """Of each recipe the variant that its own heuristics take: the operator may take another kernel of it."""
    compared = [(shape, us) for _, shape, us in measured(gpu) if len(us) > 1]
    assert len(compared) >= 11
    regret = {}
    for shape, us in compared:
        chosen = min(us, key=lambda name: predicted(name, *shape, GPUS[gpu]))
        regret[shape] = us[chosen] / min(us.values()) - 1
    assert max(regret.values()) <= worst and statistics.mean(regret.values()) <= mean, regret


def test_the_regret_of_products_that_nobody_fitted():
    """Drawn by three seeds after the last fit, with the kernels of today: all of them were timed there."""
    shapes = [each for seed in (309, 310, 311) for each in unseen.read()[H100][seed]]
    chosen, tuned = (measuring.regrets(shapes, tuned=tuned) for tuned in (False, True))
    assert len(chosen) == len(tuned) == len(shapes) >= 34
    assert statistics.mean(each.part for each in chosen) <= 0.025 and max(each.part for each in chosen) <= 0.14
    assert statistics.mean(each.part for each in tuned) <= 0.01 and max(each.part for each in tuned) <= 0.055
    assert min(each.against_torch for each in chosen) >= 0.97 and min(each.against_torch for each in tuned) >= 0.99


def test_predictions_are_near_the_times_of_random_kernels():
    """All that a weight of each product's near-fastest leaves: 10,000 times of some 800 kernels."""
    from tools import fit_choice

    found = fit_choice.timed()
    left = fit_choice.residuals(predict.chip_with(0.7), found)
    products = len({each.product for each in found})
    assert len(found) >= 5000 and products >= 140 and math.sqrt(left @ left / products) <= 0.075
    stages = {each.config.stages for each in found if (each.config.tile_m, each.config.tile_n) == (64, 72)}
    assert {8, 12} <= stages  # those of earlier families have their stages in their names


def test_a_bias_in_a_figure_is_found_again():
    from tools import fit_choice

    found = [each for each in fit_choice.timed() if each.product < 12]
    right = predict.chip_with(0.7)
    times = [each._replace(us=predict.microseconds(each.config, each.work, each.swapped, right)) for each in found]
    figures = fit_choice.figures_of(right)
    assert figures["persistent", "l2"] == right.persistent.l2 and ("", "meet") in figures
    off = fit_choice.residuals(right, times)
    assert off @ off == pytest.approx(0)
    wrong = fit_choice.with_figures(right, {("persistent", "memory"): 1.3 * right.persistent.memory})
    assert (left := fit_choice.residuals(wrong, times)) @ left > 0.001


def test_the_drawing_of_products():
    assert unseen.draw(7, 5) == unseen.draw(7, 5) != unseen.draw(8, 5)
    drawn = unseen.draw(3, 400)
    weights = {weight for layers in unseen.MODELS.values() for weight in layers}
    assert len(unseen.MODELS) == 10 and all(1 <= m <= unseen.ROWS and k % 8 == 0 for m, _, k in drawn)
    of_models = [shape for shape in drawn if shape[1:] in weights]
    assert 0.65 * len(drawn) < len(of_models) < 0.85 * len(drawn)
    few = sum(m <= 90 for m, _, _ in drawn)  # half of the octaves from 1 to 8192
    assert 0.4 * len(drawn) < few < 0.6 * len(drawn)
    assert all(96 <= m <= 1536 for m, _, _ in unseen.draw(1, 50, (96, 1536)))


def test_a_seed_is_recorded_apart(tmp_path):
    one, other = {"shape": [1, 2, 8]}, {"shape": [3, 4, 8]}
    unseen.write("A Hopper", 7, [one], tmp_path)
    unseen.write("A Hopper", 8, [other], tmp_path)
    assert unseen.read(tmp_path) == {"A Hopper": {7: [one], 8: [other]}}
    unseen.write("A Hopper", 7, [other], tmp_path)
    assert unseen.read(tmp_path)["A Hopper"][7] == [other]
    (tmp_path / "a-hopper" / unseen.FILE).write_text(json.dumps({"device": "x"}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"unseen.json: not a record of unseen products"):
        unseen.read(tmp_path)


def test_bandwidth_of_memory_is_what_tells_an_h100_from_an_h200():
    """By its peak bandwidth and no other figure of its own: few rows are a matter of memory."""
    few = [each for found in unseen.read()[H100].values() for each in found if each["shape"][0] <= 64]
    assert measuring.misfit(few) <= 0.15 < 0.2 <= measuring.misfit(few, memory=1.0)


def test_what_serves_is_a_product_with_a_host_side():
    assert len(SERVING) >= 8
    for recipe in SERVING:
        module = catalog.load(recipe.name)
        assert recipe.product.of_two_matrices and {"bfloat16", "float16"} <= set(recipe.dtypes)
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


def test_a_launch_that_fits_beside_the_one_before_starts_early():
    """64 CTAs of 132 leave room for the next launch; 80 do not, and what is left of the start is all that differs."""
    config = choice.config_of(catalog.load("hopper/decode_gemm"), "sm_90", "64x16")
    few, many = (predict.terms(config, predict.Work(8, 64 * ctas, 4096, SMS, 2048), True) for ctas in (64, 80))
    assert many["start"] - few["start"] == pytest.approx(predict.SINGLE.early) and predict.SINGLE.early > 100


def test_clusters_of_eight_start_later_than_those_of_two():
    """By the CTAs beyond two, and by the part of the SMs that a launch asks for."""
    sized, more = catalog.load("hopper/tuned_gemm").sized, predict.PERSISTENT.clusters
    for columns in (12, 64):
        work = predict.Work(512, 64 * columns, 4096, SMS, 2048)
        clusters = (2, 1), (4, 2)
        two, eight = (predict.terms(sized(64, 64, True, True, *each), work, True)["start"] for each in clusters)
        assert more > 0 and eight - two == pytest.approx(6 * more * min(1, 8 * columns / SMS))


def test_a_deeper_queue_waits_less_but_not_in_proportion():
    """12 stages against 8: a third less, were all of it latency; none, were all of it bytes."""
    work = predict.Work(144, 4096, 4096, SMS, 2048)
    config = catalog.load("hopper/tuned_gemm").sized(64, 72, True, True, 2, 1)
    shallow, deep = (predict.terms(replace(config, stages=stages), work, True)["wait"] for stages in (8, 12))
    assert config.stages == 12 and 8 / 12 < deep / shallow < 0.95


def test_the_more_rows_are_read_at_once_the_slower_is_memory():
    module, work = catalog.load("hopper/decode_gemm"), predict.Work(8, 131072, 8192, SMS, 2048)
    narrow, wide = (predict.terms(module.sized(tile_m, 16, 1), work, True)["memory"] for tile_m in (64, 128))
    assert 1.015 < wide / narrow < 1.035  # one product, read by 132 CTAs of 64 or of 128 rows


def test_a_c_of_an_odd_n_is_copied_at_the_rate_of_elements():
    """By hand: two microseconds of a launch, and 366 elements a nanosecond; an aligned copy is faster."""
    assert predict.narrow_us(36_600_000) == pytest.approx(102.0) and predict.copy_us(36_600_000) < 40
    a, b = choice.Laid((1024, 512), (512, 1)), choice.Laid((512, 4097), (1, 512))
    padded = next(each for each in choice.ranked(a, b, "bfloat16", choice.H200) if each.recipe == "hopper/tuned_gemm")
    assert padded.copy_us == predict.narrow_us(1024 * 4097)


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
    h100 = ops.explain((16, 8192), (8192, 8192), gpu=choice.Gpu((9, 0), 132, 0.7))
    assert "(by figures of an NVIDIA H200, with 0.7 of its bandwidth of memory)" in str(h100)
    assert h100.options[0].us > 1.2 * ops.explain((16, 8192), (8192, 8192)).options[0].us


@pytest.fixture
def visible(monkeypatch):
    """GPUs that are visible, as (kHz, bits) of their memory; with a driver that answers nothing else."""
    driver = pytest.importorskip("cuda.bindings.driver")
    of = driver.CUdevice_attribute
    columns = [of.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, of.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH]

    def install(*gpus):
        def answer(which, at):
            return (0, gpus[at][columns.index(which)]) if gpus[at] else (1, None)

        monkeypatch.setattr(driver, "cuDeviceGet", lambda index: (0, index))
        monkeypatch.setattr(driver, "cuDeviceGetAttribute", answer)
        choice.memory_at.cache_clear()

    yield install
    choice.memory_at.cache_clear()


H100_MEMORY, H200_MEMORY, LAPTOPS = (2_619_000, 5120), (3_201_000, 6144), (7_001_000, 128)


def test_the_bandwidth_of_memory_is_asked_of_the_driver(visible):
    visible(H100_MEMORY, H200_MEMORY, LAPTOPS)
    assert [choice.memory_at(index) for index in range(3)] == [0.7, 1.0, 0.047]


@pytest.mark.parametrize("silent", [None, (0, 5120)])
def test_an_unknown_bandwidth_is_an_h200s(visible, silent):
    visible(silent)
    assert choice.memory_at(0) == 1.0


def test_each_of_two_gpus_that_look_alike_has_its_own_bandwidth(visible, monkeypatch):
    visible(H100_MEMORY, H200_MEMORY)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(multi_processor_count=SMS))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    on = [
        SimpleNamespace(is_cuda=True, device=f"cuda:{index}", get_device=lambda index=index: index) for index in (0, 1)
    ]
    assert [launching.gpu_of(x).memory for x in on] == [0.7, 1.0]


def test_slower_memory_makes_few_rows_slower_and_a_cube_hardly():
    fast, slow = choice.H200, choice.H200._replace(memory=0.5)
    for shape, least, most in (((16, 8192, 8192), 1.7, 2.0), ((4096, 4096, 4096), 1.0, 1.02)):
        a, b = choice.laid((shape[0], shape[2])), choice.Laid((shape[2], shape[1]), (1, shape[2]))
        one, two = (choice.options(a, b, "bfloat16", gpu)[0].us for gpu in (fast, slow))
        assert least <= two / one <= most


def test_a_gate_apart_takes_the_memory_of_the_gpu():
    """Two products that memory does not bound, and a kernel that it does."""
    fast, slow = (
        gated.chosen(4096, 14336, 4096, "bfloat16", choice.H200._replace(memory=part)).apart_us for part in (1.0, 0.5)
    )
    gate = gated.ELEMENT_BYTES * 4096 * 14336 / predict.H200.memory / 1000
    assert slow - fast == pytest.approx(gate, rel=0.1)
