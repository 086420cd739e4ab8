"""hopper/tma_copy on a GPU: bit for bit into poisoned, guarded memory, and shared memory as the model has it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from cookbook.measure import tma_copies
from cookbook.recipe import catalog

NAME = "hopper/tma_copy"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="TMA needs sm_90 or later"
    ),
]

MODES, MAJORS = ("none", "sw32", "sw64", "sw128"), ("k", "mn")


@pytest.fixture
def module():
    return catalog.load(NAME)


@pytest.mark.parametrize(("mode", "major", "dtype"), list(product(MODES, MAJORS, tma_copies.DTYPES)))
def test_copies_of_every_size(module, mode, major, dtype):
    cases = [
        tma_copies.run_copy(module, size, dtype, mode, major, gap)
        for size in tma_copies.SIZES
        for gap in tma_copies.GAPS
    ]
    assert len(cases) == len(tma_copies.SIZES) * len(tma_copies.GAPS) and [case for case in cases if not case.ok] == []


@pytest.mark.parametrize(("mode", "major", "dtype"), list(product(MODES, MAJORS, tma_copies.DTYPES)))
def test_shared_memory_is_the_models(module, mode, major, dtype):
    cases = tma_copies.run_looks(module, dtype, mode, major)
    assert {case.what for case in cases} == {"dump", "restore"} and [case for case in cases if not case.ok] == []


@pytest.mark.parametrize(("mode", "major"), list(product(MODES, MAJORS)))
def test_what_one_mode_loads_only_the_same_mode_stores(module, mode, major):
    x = torch.arange(16 * 64, device="cuda", dtype=torch.int16).view(16, 64)
    x = x if major == "k" else x.t()
    memory = module.dump(x, mode=mode, major=major)
    for other in MODES:
        out = module.restore(memory, torch.zeros_like(x), mode=other, major=major)
        assert torch.equal(out, x) == (other == mode)


@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("lines", [8, 256])
def test_other_sizes_of_tile_and_any_number_of_stages(module, stages, lines):
    line_bytes = 256 if lines == 8 else 128
    config = replace(module.CONFIG, lines=lines, line_bytes=line_bytes, stages=stages, ctas_per_sm=1)
    x = torch.randn(3000, 2056, device="cuda")
    out = module.copy(x, torch.full_like(x, float("nan")), config=config)
    assert torch.equal(out, x)


def test_an_output_is_made_and_has_the_major_of_x(module):
    x = torch.randn(48, 136, device="cuda", dtype=torch.float16)
    assert module.copy(x).is_contiguous() and torch.equal(module.copy(x), x)
    y = module.copy(x.t(), major="mn")
    assert y.t().is_contiguous() and torch.equal(y, x.t())


def test_current_stream_orders_the_call_and_a_graph_can_hold_it(module):
    x, out = torch.zeros(1024, 512, device="cuda"), torch.empty(1024, 512, device="cuda")
    module.copy(x, out)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # some 10 ms
        x.normal_()
        late = module.copy(x)
    stream.synchronize()
    assert torch.equal(late, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.copy(x, out)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x)


@pytest.mark.alone
def test_offsets_beyond_2_to_the_31(module):
    if torch.cuda.get_device_properties(0).total_memory < 16 * 2**30:
        pytest.skip("needs 16 GiB of device memory")
    x = torch.randint(0, 256, (70000, 32768), device="cuda", dtype=torch.uint8)
    assert x.numel() > 2**31
    y = module.copy(x)
    assert all(torch.equal(a, b) for a, b in zip(x.split(7000), y.split(7000), strict=True))


def test_a_record_of_what_was_timed(tmp_path):
    from cookbook.measure import records

    made = tma_copies.timed_record(catalog.find(NAME), (2048, 4096), rounds=7)
    records.write([made], tmp_path)
    (record,) = records.select(NAME, "timed", root=tmp_path)
    assert set(record["peers"]) == {tma_copies.COPY, "none", "sw32", "sw64", "sw128 MN-major"}
    assert record["figures"]["ratio"] == record["peers"][tma_copies.COPY]["ratio"] > 0
