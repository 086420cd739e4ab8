"""docs/pytorch.md: its ten lines run, on a CPU that passes for a Hopper, and each row of its table has a test."""

from __future__ import annotations

import re

import torch
from without_gpu import pretend

from cookbook import ops
from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
PAGE = (ROOT / "docs" / "pytorch.md").read_text(encoding="utf-8")


def test_the_ten_lines(monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert 10 <= len(block.splitlines()) <= 11
    smaller = {'"cuda"': '"cpu"', "fullgraph=True": 'fullgraph=True, backend="aot_eager"', "512": "3"}
    for old, new in (smaller | {"14336": "96", "4096": "64"}).items():
        assert old in block
        block = block.replace(old, new)
    torch._dynamo.reset()
    pretend(monkeypatch)
    known: dict = {}
    exec(block, known)
    x, model = known["x"], known["model"]
    assert type(model) is ops.Linear and known["y"].shape == (8, 3, 96)
    torch.testing.assert_close(known["c"], x @ model.weight.T, rtol=2e-2, atol=2e-2)
    expected = x.float().sum((0, 1)).expand(96, 64)  # of y.sum(): each output's gradient is 1
    torch.testing.assert_close(model.weight.grad.float(), expected, rtol=2e-2, atol=0.1)
    assert "hopper/" in capsys.readouterr().out


def test_what_the_table_claims_is_tested():
    tests = "\n".join((ROOT / "tests" / name).read_text() for name in ("ops/test_ops_compilers.py", "ops/test_ops.py"))
    on_gpu = (ROOT / "tests" / "gpu" / "test_ops_gpu.py").read_text()
    for name in (
        "a_compiled_layer_forward_and_backward", "another_m_does_not_recompile", "an_exported_model_takes",
        "make_fx_on_fake", "autocast", "vmap", "a_gradient_by_torch_func_is_refused", "opcheck",
    ):  # fmt: skip
        assert f"def test_{name}" in tests, name
    for name in ("a_batch_of_gradients", "jacobian", "meta_tensors", "flops", "a_float32_layer", "what_no_such_gpu"):
        assert f"def test_{name}" in tests, name
    assert "def test_two_ranks" in (ROOT / "tests" / "ops" / "test_sharding.py").read_text()
    for name in ("captured_in_a_graph", "two_streams", "eight_threads", "two_devices"):
        assert f"def test_{name}" in on_gpu, name
