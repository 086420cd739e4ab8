"""The variants of foundations/matrix_transpose on a GPU: bit for bit, into poisoned and guarded outputs, on streams."""

from __future__ import annotations

import pytest
import torch

from cookbook.products import transpose
from cookbook.recipe import catalog

pytestmark = pytest.mark.gpu

NAME = "foundations/matrix_transpose"
DTYPES = ("float32", "bfloat16", "float16")


@pytest.fixture
def module():
    return catalog.load(NAME)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", transpose.SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_every_shape_by_every_variant(module, shape, dtype):
    cases = transpose.run_checks(module, [shape], dtype)
    assert {"auto", "naive", "padded", "swizzled"} <= {case.variant for case in cases}
    assert [case for case in cases if not case.ok] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_of_nans_survives(module, dtype):
    bits = {"float32": torch.int32, "bfloat16": torch.int16, "float16": torch.int16}[dtype]
    limit = torch.iinfo(bits)
    x = torch.randint(limit.min, limit.max, (264, 520), device="cuda", dtype=bits)
    for variant in module.VARIANTS:
        y = module.transpose(x.view(getattr(torch, dtype)), variant=variant)
        assert torch.equal(y.view(bits), x.t()), variant


def test_a_variant_that_cannot_take_it_says_why(module):
    x = torch.randn(33, 31, device="cuda")
    with pytest.raises(ValueError, match="variant: got 'vectorised'; needed x and out with rows"):
        module.transpose(x, variant="vectorised")
    assert torch.equal(module.transpose(x), x.t())


def test_current_stream_orders_the_call_and_a_graph_can_hold_it(module):
    x, out = torch.zeros(1024, 512, device="cuda"), torch.empty(512, 1024, device="cuda")
    module.transpose(x, out=out)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # some 10 ms
        x.normal_()
        late = module.transpose(x)
    stream.synchronize()
    assert torch.equal(late, x.t())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        module.transpose(x, out=out)
    x.normal_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, x.t())


@pytest.mark.alone
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offsets_beyond_2_to_the_31(module, dtype):
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GiB of device memory")
    x = torch.arange(46400, device="cuda").to(getattr(torch, dtype)).expand(46400, 46400).contiguous()
    x += torch.arange(46400, device="cuda")[:, None].to(x.dtype) % 7
    assert x.numel() > 2**31
    for variant in ("swizzled", "vectorised", "tma"):
        if variant != "tma" or torch.cuda.get_device_capability() >= (9, 0):
            y = module.transpose(x, variant=variant)
            assert all(torch.equal(y[i : i + 4640], x[:, i : i + 4640].t()) for i in range(0, 46400, 4640)), variant
            del y


def test_bench_of_a_transpose_on_this_gpu(tmp_path):
    from cookbook.measure import bench, records

    made = bench.bench(NAME, [(2048, 4096)], ["bfloat16"], rounds=7)
    records.write(made, tmp_path)
    (record,) = records.select(NAME, "timed", root=tmp_path)
    assert set(record["peers"]) >= {"device copy", "torch", "naive", "padded", "swizzled", "vectorised"}
    assert record["figures"]["gbps"] > 1 and record["figures"]["ratio"] == record["peers"]["device copy"]["ratio"]
