"""Seats on a GPU: whoever sits where, the product is right.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.harness import catalog, running

pytestmark = ON_HOPPER
NAMES = ["hopper/tuned_gemm", "hopper/majors_gemm"]


@pytest.mark.parametrize("name", NAMES)
def test_any_seats_give_the_same_product(monkeypatch, name):
    module, draw = catalog.load(name), random.Random(7)
    dealt = module.dealt(torch.cuda.current_device())
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    assert len(dealt) == sms // 2 and len(set(dealt)) < sms // 4
    for shape in ((2048, 2048, 1024), (4096, 3000, 400), (5000, 5000, 200)):
        a, b = running.inputs(shape, "bfloat16")
        for variant in module.VARIANTS:
            for mixed in (dealt, draw.sample(dealt, len(dealt)), range(len(dealt))):
                monkeypatch.setattr(module, "SEATS", {})
                monkeypatch.setattr(module.GEMM, "plans", {})
                monkeypatch.setattr(module, "dealt", lambda device, mixed=mixed: tuple(mixed))
                error = running.relative_error(module.matmul(a, b, variant=variant), running.reference(a, b))
                assert error <= running.tolerance("bfloat16")


def test_a_first_call_within_a_capture_is_right_too(monkeypatch):
    module = catalog.load(NAMES[0])
    monkeypatch.setattr(module, "SEATS", {})
    monkeypatch.setattr(module.GEMM, "plans", {})
    a, b = running.inputs((2048, 2048, 1024), "bfloat16")
    out, graph = torch.full((2048, 2048), float("nan"), dtype=a.dtype, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        module.matmul(a, b, out=out, variant="128x256")
    graph.replay()
    assert module.SEATS == {} and running.relative_error(out, running.reference(a, b)) <= running.tolerance("bfloat16")
    assert not module.GEMM.plans  # what a capture forbids to ask for is asked for at the next call
    assert torch.equal(module.matmul(a, b, variant="128x256"), out) and module.SEATS
