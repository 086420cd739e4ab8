"""Tuning on demand with no GPU: kernels are pretended, times are told; choosing, keeping and sharing are real."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from typer.testing import CliRunner
from without_gpu import pretend

from cookbook import ops
from cookbook.cli.app import app
from cookbook.ops import choice, launching, tuner

A_HOPPER = "A Hopper"


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A Hopper that is none, a disk cache, and what is launched. The third option is always the fastest."""
    names = pretend(monkeypatch)
    monkeypatch.setenv("COOKBOOK_CACHE", str(tmp_path))
    monkeypatch.delenv(tuner.SETTING, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: A_HOPPER)
    monkeypatch.setattr(tuner, "input_sets", lambda a, b: [(a, b)])
    monkeypatch.setattr(tuner, "_KNOWN", {})
    timed: list[tuple] = []

    def time_options(options, bias, sets):
        timed.append(tuple(options))
        return [7.0 if number == 2 else 9.0 - number / 10 for number in range(len(options))]

    monkeypatch.setattr(tuner, "time_options", time_options)
    launching.PLANS.clear()
    return names, timed


def operands(m=48, n=512, k=256):
    return torch.randn(m, k, dtype=torch.bfloat16), torch.randn(n, k, dtype=torch.bfloat16).T


def restarted(monkeypatch):
    """What a further process has: the disk, and nothing else."""
    monkeypatch.setattr(tuner, "_KNOWN", {})
    launching.PLANS.clear()


def test_a_shapes_first_call_is_tuned_later_ones_use_it(here, monkeypatch):
    _, timed = here
    a, b = operands()
    ops.matmul(a, b)
    assert not timed
    with ops.tuning():
        ops.matmul(a, b)  # planned before, and tuned all the same
        ops.matmul(a, b)
    (options,) = timed
    assert len(options) == tuner.KERNELS and [x.us for x in options] == sorted(x.us for x in options)
    for _ in range(2):
        assert launching.chosen(a, b, None, launching.gpu_of(a)) == options[2]
        restarted(monkeypatch)
    with ops.tuning():
        ops.matmul(a, b)
        ops.matmul(*operands(49))
    assert len(timed) == 2  # the first shape is known, the other one is not


def test_tune_returns_the_kernel_and_drops_the_plan(here):
    _, timed = here
    a, b = operands()
    ops.matmul(a, b)
    found = ops.tune(a, b)
    assert found == timed[0][2] and not launching.PLANS
    assert ops.tune(a, b) == found and len(timed) == 1
    assert not tuner.active()


def test_the_environment_says_when(here, monkeypatch):
    _, timed = here
    a, b = operands()
    monkeypatch.setenv(tuner.SETTING, "1")
    ops.matmul(a, b)
    assert len(timed) == 1
    monkeypatch.setenv(tuner.SETTING, "0")
    best = choice.ranked(choice.laid(a), choice.laid(b), "bfloat16", launching.gpu_of(a))[0]
    assert launching.chosen(a, b, None, launching.gpu_of(a)) == best != timed[0][2]


def test_nothing_is_timed_while_a_graph_is_captured(here, monkeypatch):
    _, timed = here
    a, b = operands()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with ops.tuning():
        ops.matmul(a, b)
        with pytest.raises(ValueError, match="a: got a graph that is being captured; needed a call outside of it"):
            ops.tune(a, b)
    assert not timed and not launching.PLANS


def test_threads_tune_a_shape_once(here):
    _, timed = here
    a, b = operands()
    with ops.tuning():
        threads = [threading.Thread(target=launching.chosen, args=(a, b, None, launching.gpu_of(a))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(timed) == 1


def test_a_product_with_a_bias_is_another_one(here):
    _, timed = here
    a, b = operands()
    ops.tune(a, b)
    ops.tune(a, b, torch.randn(512, dtype=torch.bfloat16))
    assert len(timed) == 2 and len(tuner.answers()) == 2
    with pytest.raises(ValueError, match=r"a: got shape \(0, 256\); needed something to multiply"):
        ops.tune(a[:0], b)


def test_another_device_or_version_has_no_answer(here, monkeypatch):
    _, timed = here
    a, b = operands()
    ops.tune(a, b)
    monkeypatch.setattr(tuner, "_versions", lambda: {"torch": "another"})
    restarted(monkeypatch)
    ops.tune(a, b)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Another")
    ops.tune(a, b)
    assert len(timed) == 3


def test_a_damaged_answer_is_none(here, monkeypatch, tmp_path):
    _, timed = here
    a, b = operands()
    ops.tune(a, b)
    (file,) = tmp_path.glob("tuned_*.json")
    for content in (b"{", b"[]", b'{"about": 1}', b"\xff"):
        file.write_bytes(content)
        restarted(monkeypatch)
        assert tuner.answers() == []
        ops.tune(a, b)
    assert len(timed) == 5


def test_one_machine_tunes_for_others(here, monkeypatch, tmp_path):
    _, timed = here
    a, b = operands()
    found = ops.tune(a, b)
    runner, shared = CliRunner(), tmp_path / "shared.json"
    assert runner.invoke(app, ["cache", "export", str(shared)]).exit_code == 0
    monkeypatch.setenv("COOKBOOK_CACHE", str(tmp_path / "elsewhere"))
    restarted(monkeypatch)
    assert tuner.answers() == []
    run = runner.invoke(app, ["cache", "import", str(shared)])
    assert run.exit_code == 0 and "1 tuned product" in run.stderr
    assert launching.chosen(a, b, None, launching.gpu_of(a)) == found and len(timed) == 1
    listed = runner.invoke(app, ["cache", "list"])
    assert f"the fastest of {tuner.KERNELS} at 48x512x256, bfloat16, {A_HOPPER}" in listed.stdout
    (told,) = json.loads(runner.invoke(app, ["cache", "list", "--json"]).stdout)["tuned"]
    assert told["recipe"] == found.recipe and min(told["us"].values()) == 7.0
    assert runner.invoke(app, ["cache", "clear"]).exit_code == 0 and tuner.answers() == []


@pytest.mark.parametrize("content", ["{", "{}", '[{"about": 1}]'])
def test_a_file_that_no_export_wrote(here, tmp_path, content):
    file = tmp_path / "odd.json"
    file.write_text(content, encoding="utf-8")
    run = CliRunner().invoke(app, ["cache", "import", str(file)])
    assert run.exit_code == 2 and "FILE: got" in run.stderr and "needed" in run.stderr
    gone = CliRunner().invoke(app, ["cache", "import", str(tmp_path / "gone.json")])
    assert gone.exit_code == 2 and "needed a file to read" in gone.stderr


def test_copies_lie_as_the_operands_do():
    x = torch.arange(60.0).to(torch.bfloat16).view(6, 10)[:, 1:8]
    for each in (x, x.T, torch.randn(8, dtype=torch.bfloat16)[3:7].view(2, 2)):
        made = tuner._copied(each)
        assert torch.equal(made, each) and made.stride() == each.stride()
        assert made.data_ptr() % 16 == each.data_ptr() % 16 and made.data_ptr() != each.data_ptr()
