"""GPC-aware remapping on a GPU: whichever cluster computes which tile, the product is right.

`pytest -m gpu`; skipped where there is no Hopper GPU.
"""

from __future__ import annotations

import gc
import random

import pytest
import torch
from marks import ON_HOPPER

from cookbook.check import ran
from cookbook.recipe import catalog, remapping

pytestmark = ON_HOPPER
STUDY, NAMES = "foundations/gpc_remapping", ["hopper/tuned_gemm", "hopper/majors_gemm"]


@pytest.fixture(scope="module")
def order():
    """The GPC of each cluster of two, as this GPU starts them."""
    return catalog.load(STUDY).launch_order()


def test_the_probe_finds_a_gpc_for_nearly_every_cluster(order):
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    assert len(order) == sms // 2 and len(set(order)) < sms // 4
    together = [i for i in range(len(order) - 1) if order[i] == order[i + 1]]
    assert len(together) <= len(order) // 8, "neighbours by number start in different GPCs, but for a few"


@pytest.mark.parametrize("name", NAMES)
def test_any_table_gives_the_same_product(monkeypatch, order, name):
    module, draw = catalog.load(name), random.Random(7)
    monkeypatch.setattr(module, "CALIBRATION", module.CALIBRATION)  # restored afterwards
    for shape in ((2048, 2048, 1024), (4096, 3000, 400), (5000, 5000, 200)):
        a, b = ran.inputs(shape, "bfloat16")
        for variant in module.VARIANTS:
            for mixed in (order, draw.sample(order, len(order)), range(len(order)), ()):
                module.calibrate(gpcs=tuple(mixed))
                error = ran.relative_error(module.matmul(a, b, variant=variant), ran.reference(a, b))
                assert error <= ran.tolerance("bfloat16")
    module.calibrate()  # forgets the plans


def test_a_first_call_within_a_capture_is_right_too(monkeypatch, order):
    module = catalog.load(NAMES[0])
    monkeypatch.setattr(module, "CALIBRATION", module.CALIBRATION)
    monkeypatch.setattr(remapping, "REMAPS", {})
    module.calibrate(gpcs=order)
    a, b = ran.inputs((2048, 2048, 1024), "bfloat16")
    out, graph = torch.full((2048, 2048), float("nan"), dtype=a.dtype, device="cuda"), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.collect()  # CuTe unloads a kernel when Python drops it, and that would end the capture
    with torch.cuda.graph(graph):
        module.matmul(a, b, out=out, variant="128x256")
    graph.replay()
    assert remapping.REMAPS == {} and ran.relative_error(out, ran.reference(a, b)) <= ran.tolerance("bfloat16")
    assert not module.GEMM.plans  # what a capture forbids to ask for is asked for at the next call
    assert torch.equal(module.matmul(a, b, variant="128x256"), out) and remapping.REMAPS
