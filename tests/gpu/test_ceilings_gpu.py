"""The kernels of ceilings on a GPU: they do all of the work that their rates are computed from, and no more."""

from __future__ import annotations

import pytest
import torch

from cookbook.measure import bench, ceilings
from cookbook.recipe import catalog

pytestmark = pytest.mark.gpu

TENSOR_CORES, MEMORY = (catalog.load(name) for name in ceilings.studies())
CONFIGS = {**TENSOR_CORES.INSTRUCTIONS, **TENSOR_CORES.IN_FLIGHT}


def arch() -> str:
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def small_integers(rows: int, k: int, dtype: str) -> torch.Tensor:
    """-1, 0 and 1: every sum is exact in every type."""
    return torch.randint(-1, 2, (rows, k), device="cuda").float().to(getattr(torch, dtype))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_product_is_made_as_often_as_asked(name):
    config = CONFIGS[name]
    if not TENSOR_CORES.runs_on(config, arch()):
        pytest.skip(f"{arch()} has no such instruction")
    m, n, k = config.tile
    a, b = small_integers(m, k, config.dtype), small_integers(n, k, config.dtype)
    kernel = TENSOR_CORES.Ceiling(config, a, b)
    product = a.float().double() @ b.float().double().T
    for repeats in (1, 2, 7):
        kernel.sums.fill_(torch.nan)
        kernel(repeats)
        by_cta = kernel.sums.double().sum(1)
        assert torch.equal(by_cta, torch.full_like(by_cta, repeats * product.sum().item())), repeats


@pytest.mark.alone
@pytest.mark.parametrize("name", TENSOR_CORES.BEST)
def test_time_grows_with_the_turns(name):
    config = TENSOR_CORES.BEST[name]
    if not TENSOR_CORES.runs_on(config, arch()):
        pytest.skip(f"{arch()} has no such instruction")
    kernel = TENSOR_CORES.Ceiling(config)
    for _ in range(3):
        kernel(20_000)
    once, twice = (min(TENSOR_CORES.elapsed_ms(kernel, turns) for _ in range(5)) for turns in (10_000, 20_000))
    assert 1.8 < twice / once < 2.2
    clocks, ghz = kernel.clocks()
    assert clocks > 0 and 0.2 < ghz < 4


def test_zeros_leave_zeros_and_f16_sums_stay_finite():
    for config, data in ((TENSOR_CORES.MmaSync(), "zeros"), (TENSOR_CORES.MmaSync("float16", "float16"), "normal")):
        kernel = TENSOR_CORES.Ceiling(config, *TENSOR_CORES.operands(config, data))
        kernel(10_000)
        assert kernel.sums.isfinite().all() and kernel.sums.abs().max() < 100


def test_operands_that_do_not_fit_are_named():
    config = TENSOR_CORES.MmaSync()
    a, b = TENSOR_CORES.operands(config)
    with pytest.raises(ValueError, match=r"b: got .*; needed a contiguous \(64, 32\) bfloat16"):
        TENSOR_CORES.Ceiling(config, a, b[:32])
    with pytest.raises(ValueError, match=r"a: got .*float16"):
        TENSOR_CORES.Ceiling(config, a.half(), b)


@pytest.mark.parametrize("name", ["hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm"])
def test_the_ceiling_is_timed_beside_a_gemm_in_one_graph(name):
    recipe = catalog.find(name)
    if not recipe.runs_on_capability(*torch.cuda.get_device_capability()):
        pytest.skip(f"runs on {recipe.runs_on}")
    (record,) = bench.bench(name, [(4096, 4096, 4096)], ["bfloat16"], rounds=7, quack=False)
    peer = record["peers"][ceilings.PEER]
    assert record["figures"]["launches"] == "graph"
    assert 0.2 < peer["ratio"] < 1.02, "a GEMM does not pass its ceiling"
    assert peer["min_ms"] <= peer["median_ms"] <= peer["max_ms"]


# --- memory -------------------------------------------------------------------------------------------------------

COUNTS = (1, 5, 131, 1057)  # chunks: fewer than CTAs, and no multiple of their number


def words(config, chunks: int) -> torch.Tensor:
    limit = torch.iinfo(torch.int32)
    return torch.randint(limit.min, limit.max, (chunks * config.chunk_bytes // 4,), dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("name", MEMORY.IN_FLIGHT)
@pytest.mark.parametrize("turns", [1, 3])
def test_reading_sees_every_word(name, turns):
    config = MEMORY.IN_FLIGHT[name]
    for chunks in COUNTS:
        x = words(config, chunks)
        sums = MEMORY.stream_over(x, x, config, turns)
        assert (sums.long().sum() - turns * x.long().sum()).item() % 2**32 == 0


@pytest.mark.parametrize("chunks", COUNTS)
def test_writing_fills_the_buffer_and_nothing_else(chunks):
    config = MEMORY.Stream("write")
    room = words(config, chunks + 2)
    one = config.chunk_bytes // 4
    before, x, after = room[:one].clone(), room[one:-one], room[-one:].clone()
    MEMORY.stream_over(x, x, config, 2, value=0xDEADBEEF)
    assert (x == 0xDEADBEEF - 2**32).all() and torch.equal(room[:one], before) and torch.equal(room[-one:], after)


@pytest.mark.parametrize("name", ["copy", "copy by TMA"])
@pytest.mark.parametrize("chunks", COUNTS)
@pytest.mark.parametrize("turns", [1, 2])
def test_copying_copies_and_nothing_else(name, chunks, turns):
    config = MEMORY.STREAMS[name]
    if not MEMORY.runs_on(config, arch()):
        pytest.skip(f"{arch()} has no bulk copies")
    x, room, one = words(config, chunks), words(config, chunks + 2), config.chunk_bytes // 4
    kept, before, after = x.clone(), room[:one].clone(), room[-one:].clone()
    MEMORY.stream_over(x, room[one:-one], config, turns)
    assert torch.equal(room[one:-one], x) and torch.equal(x, kept)
    assert torch.equal(room[:one], before) and torch.equal(room[-one:], after)


def test_the_far_end_of_a_large_buffer_is_reached():
    config = MEMORY.Stream("write")
    x = torch.zeros((6 << 30) // 4, dtype=torch.int32, device="cuda")  # more bytes than 32 bits count
    MEMORY.stream_over(x, x, config, value=7)
    assert x[-1].item() == 7 and x.sum(dtype=torch.int64).item() == 7 * x.numel()


@pytest.mark.parametrize("name", MEMORY.LOADS)
def test_loads_from_shared_memory_read_what_is_there(name):
    config = MEMORY.LOADS[name]
    sums, clocks = MEMORY.load_shared(config, 5)
    lane = torch.arange(config.threads, device="cuda") % 32
    first = lane * config.stride // 4
    steps = torch.arange(config.unroll, device="cuda") * (config.smem_bytes // config.unroll) // 4
    each = torch.arange(config.width // 4, device="cuda")
    wanted = 5 * (first[:, None, None] + steps[:, None] + each).sum((1, 2))
    assert torch.equal(sums.long(), wanted.expand_as(sums)) and (clocks > 0).all()


def test_wrong_buffers_are_named():
    x = torch.zeros(MEMORY.Stream().chunk_bytes // 4, dtype=torch.int32, device="cuda")
    with pytest.raises(ValueError, match="x: got 4 bytes; needed a multiple of"):
        MEMORY.stream_over(x[:1], x, MEMORY.Stream())
    with pytest.raises(ValueError, match="y, turns: got"):
        MEMORY.stream_over(x, x, MEMORY.Stream(), 0)
    with pytest.raises(ValueError, match="x: got Tensor; needed a contiguous"):
        MEMORY.stream_over(x.cpu(), x, MEMORY.Stream())
