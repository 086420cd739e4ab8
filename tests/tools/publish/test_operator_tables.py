"""The tables of docs/pytorch.md: of nothing measured, of current records, and of stale ones."""

from __future__ import annotations

from dummy_records import record

from cookbook.measure import records
from cookbook.recipe import catalog
from tools.ops import measuring, unseen
from tools.publish import operator_tables

SHAPE = (4, 256, 512)
CHOSEN, OTHER = list(measuring.kernels(measuring.Case(SHAPE), measuring.choice.Gpu((9, 0), 132)))[:2]


def case(code: str | None = None) -> dict:
    us = {OTHER: 4.0, CHOSEN: 5.0, "ops.matmul": 5.0, "torch.matmul": 6.0}
    codes = {name: code or records.code_of(name) for name in (CHOSEN.split()[0], OTHER.split()[0])}
    about = {"shape": list(SHAPE), "majors": "tn", "dtype": "bfloat16", "gpu": [[9, 0], 132]}
    return about | {"us": us, "slow": [], "code": codes}


def test_nothing_measured(tmp_path):
    assert operator_tables.regret(tmp_path) == "Of 100 products: *not measured*."
    assert operator_tables.calls(tmp_path).count("| not measured |") == len(operator_tables.WAYS)


def test_the_regret_of_todays_choice(tmp_path):
    measuring.write("NVIDIA H200", [case()], root=tmp_path)
    shown = operator_tables.regret(tmp_path)
    assert "NVIDIA H200, 1 product: regret 25.0% in the mean" in shown
    assert f"| 4x256x512 | tn, bfloat16 | {CHOSEN} | {OTHER} | 25.0% |" in shown
    measuring.write("NVIDIA H200", [case("older")], root=tmp_path)
    assert operator_tables.regret(tmp_path) == "Of 100 products: *not measured since the code changed*."


def test_products_that_nobody_fitted_have_a_row_for_each_seed(tmp_path):
    assert operator_tables.unseen(tmp_path) == "*Not measured*."
    for seed in (7, 8):
        unseen.write("NVIDIA H200", seed, [case() | {"tuned": OTHER}], tmp_path)
    shown = operator_tables.unseen(tmp_path)
    row = "| 1 | 25.0% | 25.0% | 1.200 | 1.200 | 0.0% | 0.0% | 1.500 | 1.500 |"
    assert f"| 7 {row}" in shown and f"| 8 {row}" in shown and "| all | 2 | 25.0% |" in shown
    assert f"| 4x256x512 | {CHOSEN} | {OTHER} | 25.0% | 1.200 |" in shown
    for seed in (7, 8):
        unseen.write("NVIDIA H200", seed, [case("older")], tmp_path)
    assert operator_tables.unseen(tmp_path) == "*Not measured since the code changed*."


def test_errors_of_predictions_are_said_for_the_gpus_memory(tmp_path):
    there, slower = case(), case() | {"gpu": [[9, 0], 132, 0.7]}
    assert operator_tables._misfit(
        [there]
    ) == f"Predicted times are off by {measuring.misfit([there]):.1%}, in the " + ("root mean square.")
    said = operator_tables._misfit([slower])
    assert f"off by {measuring.misfit([slower]):.1%}" in said and said.endswith(
        f"(0.7 of an H200's); with an H200's, by {measuring.misfit([there]):.1%}."
    )
    found = [measuring.misfit([there | {"slow": [name]}]) for name in (CHOSEN, OTHER)]
    assert min(found) < measuring.misfit([there]) < max(found)


def test_each_device_has_a_tab_of_its_regret(tmp_path):
    for device in ("A GPU", "NVIDIA H200"):
        measuring.write(device, [case()], root=tmp_path)
    records.write([record()], tmp_path)  # of "Test GPU"
    records.write([record(device="NVIDIA H200")], tmp_path)
    first, second = operator_tables.regret(tmp_path).split('=== "A GPU"')
    assert first.startswith('=== "NVIDIA H200"\n\n    NVIDIA H200, 1 product') and "\n    A GPU, 1 product" in second
    assert all(line.startswith("    |") for line in second.splitlines() if "|" in line)


def test_calls(tmp_path):
    called = {
        "us": {"ops.matmul": 5.25, "torch.matmul": 6.5},
        "host": measuring.host_code(),
        "date": "2026-11-23 12:00",
    }
    measuring.write("NVIDIA H200", called=called, root=tmp_path)
    shown = operator_tables.calls(tmp_path)
    assert "| ops.matmul | 5.25 |" in shown and "Measured on NVIDIA H200: 2026-11-23 12:00." in shown
    measuring.write("NVIDIA H200", called=called | {"host": "another"}, root=tmp_path)
    assert "| ops.matmul | not measured since the code changed |" in operator_tables.calls(tmp_path)


def test_what_the_page_shows_of_the_code():
    source = operator_tables.source()
    assert all(
        name in source for name in ("def define(", "register_fake", "register_vmap", "def tracking(", "def backward(")
    )
    serving = operator_tables.serving()
    assert all(f"[{recipe.name}](" in serving for recipe in catalog.recipes() if recipe.serves)
