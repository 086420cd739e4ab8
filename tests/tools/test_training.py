"""The training that compares nn.Linear with ours, in miniature on the CPU: the losses are the same."""

from __future__ import annotations

import pytest
from without_gpu import pretend

from cookbook.ops import launching
from tools import training
from tools.publish import operator_tables

SMALL = training.Sizes(layers=2, width=32, heads=4, tokens=16, length=12, batch=8, rate=1e-2)


def test_both_learn_the_same(monkeypatch):
    compiled = pretend(monkeypatch)
    torchs = training.train(SMALL, 20, False, device="cpu")
    assert not compiled and not launching.PLANS
    ours = training.train(SMALL, 20, True, device="cpu")
    assert compiled and len(launching.PLANS) > 4
    assert torchs["loss"][0] == pytest.approx(ours["loss"][0], rel=1e-2)
    assert ours["loss"][-1] < ours["loss"][0] - 0.1
    assert abs(training.compared(torchs, ours)["loss"]) < 0.02


def test_a_batch_is_the_same_for_both_models_and_can_be_learnt():
    tokens = training.batch(SMALL, 3, "cpu")
    assert tokens.shape == (8, 13) and tokens.max() < 16
    assert (tokens == training.batch(SMALL, 3, "cpu")).all() and (tokens != training.batch(SMALL, 4, "cpu")).any()
    assert ((3 * tokens[:, 1:-1] + 5 * tokens[:, :-2] + 7) % 16 == tokens[:, 2:]).all()


def test_what_is_compared():
    torchs = {"loss": [4.0] * 20, "ms": [50.0] * 10 + [2.0] * 10}
    ours = {"loss": [4.0] * 10 + [4.2] * 10, "ms": [90.0] * 10 + [1.0] * 10}
    found = training.compared(torchs, ours)
    assert found == {"loss": pytest.approx(0.05), "step": 0.5}


def test_a_run_is_recorded_and_shown(tmp_path, monkeypatch):
    pretend(monkeypatch)
    assert operator_tables.training(tmp_path) == "*Not measured*."
    torchs, ours = ({"loss": [4.0] * 25, "ms": [ms] * 25} for ms in (2.0, 1.0))
    for compiled in (True, False, True):
        file = training.write(training.record_of(torchs, ours, "NVIDIA H200", compiled, SMALL), tmp_path)
    assert file == tmp_path / "nvidia-h200" / "training.json"
    assert [run["compiled"] for run in training.read(tmp_path)] == [False, True]
    shown = operator_tables.training(tmp_path)
    assert shown.count("| 21 to 25 | 4.0000 | 4.0000 | 2.00 | 1.00 |") == 2
    assert "8 sequences of 12 tokens: the last losses differ by +0.00%; a step takes 0.500 of the time" in shown
    stale = training.record_of(torchs, ours, "NVIDIA H200", False, SMALL) | {"code": {"hopper/tuned_gemm": "older"}}
    file.unlink()
    training.write(stale, tmp_path)
    assert operator_tables.training(tmp_path) == "*Not measured since the code changed*."


def test_the_kernels_of_a_step_are_drawn_by_kind(tmp_path, monkeypatch):
    pretend(monkeypatch)
    torchs, ours = ({"loss": [4.0] * 12, "ms": [ms] * 12} for ms in (2.0, 1.0))
    torchs["kernels"] = [("nvjet_sm90_256x128", 0, 30), ("nvjet_sm90_128x128", 40, 60), ("reduce_kernel", 70, 75)]
    ours["kernels"] = [("kernel_cutlass_kernel_0", 0, 20), ("void multi_tensor_apply", 50, 60)]
    file = training.write(training.record_of(torchs, ours, "NVIDIA H200", True, SMALL), tmp_path)
    assert [run["ours"]["kernels"][0][0] for run in training.read(tmp_path)] == ["kernel_cutlass_kernel_0"], file
    shown = operator_tables.training(tmp_path)
    header, _, of_torch, of_ours = [line for line in shown.splitlines() if line.startswith("|")][-4:]
    assert "a recipe's GEMM" in header and "cuBLAS" in header and "optimizer" in header
    assert [cell.strip() for cell in of_torch.split("|")[1:-1]] == ["nn.Linear", "0", "50", "0", "5"]
    assert [cell.strip() for cell in of_ours.split("|")[1:-1]] == ["ops.Linear", "20", "0", "10", "0"]
    assert shown.count('data-kind="cuBLAS"') == 1, "two kernels of a kind in a row are one span"
