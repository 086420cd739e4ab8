"""Every recipe that this GPU runs: many shapes, both dtypes, into poisoned and guarded outputs, on streams.

`pytest -m gpu`; skipped where there is no CUDA device.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from cookbook.check import ran as running
from cookbook.recipe import catalog, majors

pytestmark = pytest.mark.gpu


GEMMS = [r for r in catalog.recipes() if r.product.of_two_matrices]


def here() -> list[str]:
    """The recipes this GPU runs; all of them where there is none, so that what is skipped has a name."""
    if not torch.cuda.is_available():
        return [r.name for r in GEMMS]
    capability = torch.cuda.get_device_capability()
    return [r.name for r in GEMMS if r.runs_on_capability(*capability)]


DTYPES = ("bfloat16", "float16")
MAJORS = [(name, which) for name in here() for which in catalog.find(name).majors if len(catalog.find(name).majors) > 1]


@pytest.fixture(params=here())
def matmul(request):
    return catalog.load(request.param).matmul


def shape_id(shape: running.Shape) -> str:
    return "x".join(map(str, shape))


def test_the_list_of_shapes_is_long_and_varied():
    assert len(set(running.SHAPES)) >= 60
    assert min(k for _, _, k in running.SHAPES) == 8 and max(k for _, _, k in running.SHAPES) == 16384
    assert any(m == 1 for m, _, _ in running.SHAPES) and any(n == 1 for _, n, _ in running.SHAPES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", running.SHAPES, ids=shape_id)
def test_every_shape_into_contiguous_rows(matmul, shape, dtype):
    case = running.run_case(matmul, running.inputs(shape, dtype), dtype)
    assert case.ok, case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "which"), [(name, which) for name in here() for which in catalog.find(name).majors])
def test_shapes_that_nobody_chose(name, which, dtype):
    seed = random.SystemRandom().randrange(2**32)
    recipe = catalog.find(name)
    cases = recipe.product.cases(recipe, catalog.load(name), running.drawn(seed, which), dtype, which)
    assert [case for case in cases if not case.ok] == [], f"seed {seed}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [1, 2, 4, 8, 24])
@pytest.mark.parametrize("shape", [(200, 333, 64), (129, 256, 72), (1, 40, 128), (300, 520, 512)], ids=shape_id)
def test_rows_of_out_further_apart_than_long(matmul, shape, gap, dtype):
    case = running.run_case(matmul, running.inputs(shape, dtype), dtype, row_stride=shape[1] + gap)
    assert case.ok, case


@pytest.mark.parametrize("shift", [0, 1, 2, 4, 8])
def test_out_that_begins_anywhere(matmul, shift):
    """`out` needs no alignment beyond its element's: a view that starts at column `shift` of a wider matrix."""
    a, b = running.inputs((130, 270, 96), "float16")
    wide = torch.full((130, 304), 7.0, dtype=torch.float16, device="cuda")
    out = wide[:, shift : shift + 270]
    out.fill_(float("nan"))
    matmul(a, b, out=out)
    assert running.relative_error(out, running.reference(a, b)) <= running.tolerance("float16")
    assert (wide[:, :shift] == 7).all() and (wide[:, shift + 270 :] == 7).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_with_rows_further_apart_than_long(matmul, dtype):
    """Views into padded rows: whatever lies in the padding, NaN here, must not come into the product."""
    kind = {"dtype": getattr(torch, dtype), "device": "cuda"}
    for m, n, k, pad in ((200, 333, 64, 8), (129, 65, 72, 56), (64, 64, 200, 24)):
        a_wide, b_wide = torch.full((m, k + pad), torch.nan, **kind), torch.full((n, k + pad), torch.nan, **kind)
        a, b = a_wide[:, :k], b_wide[:, :k].T
        a.normal_()
        b.normal_()
        error = running.relative_error(matmul(a, b), running.reference(a, b))
        assert error <= running.tolerance(dtype), (m, n, k, pad)


def test_every_second_row(matmul):
    a, b = running.inputs((300, 200, 128), "bfloat16")
    error = running.relative_error(matmul(a[::2], b[:, ::2]), running.reference(a[::2], b[:, ::2]))
    assert error <= running.tolerance("bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_come_out_exactly(matmul, dtype):
    kind = {"device": "cuda"}
    a = torch.randint(-2, 3, (257, 56), **kind).to(getattr(torch, dtype))
    b = torch.randint(-2, 3, (131, 56), **kind).to(getattr(torch, dtype)).T
    assert torch.equal(matmul(a, b).double(), a.double() @ b.double())  # at most 224: exact in bfloat16


def test_infinities_and_nans_stay_in_their_rows_and_columns(matmul):
    a, b = running.inputs((200, 150, 72), "float16")
    a[7, 3], a[8, 71] = torch.inf, torch.nan
    got, expected = matmul(a, b), torch.matmul(a, b)
    assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.isinf(), expected.isinf())
    assert got[8].isnan().all() and got[9:].isfinite().all() and got[:7].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeated_calls_are_bitwise_equal(matmul, dtype):
    a, b = running.inputs((1000, 777, 2048), dtype)
    first = matmul(a, b)
    for _ in range(20):
        assert torch.equal(matmul(a, b), first)


def test_two_streams_at_once(matmul):
    """Each stream waits for nothing but its own inputs, and the current stream is the one that is used."""
    pairs = [running.inputs((513, 700, 1024), "bfloat16") for _ in range(8)]
    expected = [matmul(a, b).clone() for a, b in pairs]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    got: list[torch.Tensor] = []
    for _ in range(5):
        for index, (a, b) in enumerate(pairs):
            with torch.cuda.stream(streams[index % 2]):
                got.append(matmul(a, b))
    torch.cuda.synchronize()
    assert all(torch.equal(c, expected[index % len(pairs)]) for index, c in enumerate(got))


def test_the_current_stream_orders_the_call(matmul):
    """The operand is written on a side stream just before, with no synchronization between: the call must wait."""
    a, b = running.inputs((512, 512, 512), "bfloat16")
    late = torch.zeros_like(a)
    expected = matmul(a, b)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # some 10 ms
        late.copy_(a)
        got = matmul(late, b)
    stream.synchronize()
    assert torch.equal(got, expected)


def test_it_can_be_captured_in_a_graph(matmul):
    a, b = running.inputs((256, 384, 512), "bfloat16")
    out = matmul(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=out)
    a.normal_()
    out.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert running.relative_error(out, running.reference(a, b)) <= running.tolerance("bfloat16")


def test_one_plan_serves_other_addresses_streams_and_graphs(matmul):
    """Calls of one kind share a plan: whatever depends on the call alone (addresses, stream) must be that call's."""
    shape, plans = (192, 328, 256), matmul.__globals__["GEMM"].plans
    sets = [running.inputs(shape, "bfloat16") for _ in range(4)]
    expected = [running.reference(a, b) for a, b in sets]
    outs = [torch.full(shape[:2], torch.nan, dtype=torch.bfloat16, device="cuda") for _ in sets]
    plans.clear()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    for index, ((a, b), out) in enumerate(zip(sets, outs, strict=True)):
        with torch.cuda.stream(streams[index % 2]):
            assert matmul(a, b, out=out) is out
    torch.cuda.synchronize()
    assert len(plans) == 1
    limit = running.tolerance("bfloat16")
    assert all(running.relative_error(out, c) <= limit for out, c in zip(outs, expected, strict=True))

    for out in outs:
        out.fill_(torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [matmul(a, b, out=out) for (a, b), out in zip(sets, outs, strict=True)]
    assert all(out.isnan().all() for out in outs)  # captured, not run
    graph.replay()
    torch.cuda.synchronize()
    assert len(plans) == 1
    assert all(running.relative_error(out, c) <= limit for out, c in zip(made, expected, strict=True))


def test_a_plan_is_for_the_alignment_of_out_too(matmul):
    """`out` of one shape and stride, at even and odd columns: wide stores may only go to the aligned one."""
    a, b = running.inputs((130, 256, 96), "float16")
    expected, wide = running.reference(a, b), torch.zeros(130, 304, dtype=torch.float16, device="cuda")
    for shift in (0, 1, 8, 2, 0, 3, 4, 1):
        wide.fill_(7)
        out = matmul(a, b, out=wide[:, shift : shift + 256])
        assert running.relative_error(out, expected) <= running.tolerance("float16"), shift
        assert (wide[:, :shift] == 7).all() and (wide[:, shift + 256 :] == 7).all()


def test_bad_input_is_refused_after_good(matmul):
    a, b = running.inputs((64, 64, 64), "bfloat16")
    matmul(a, b)
    for _ in range(2):
        with pytest.raises(ValueError, match="out: got memory that overlaps a"):
            matmul(a, b, out=a)
        with pytest.raises(ValueError, match="a: got requires_grad=True"):
            matmul(a.clone().requires_grad_(), b)
        with pytest.raises(TypeError, match=r"a: got torch\.float32"):
            matmul(a.float(), b)


def test_another_device_than_the_current_one(matmul):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    a, b = running.inputs((200, 328, 64), "bfloat16")
    expected = matmul(a, b)
    for _ in range(2):
        got = matmul(a.to("cuda:1"), b.T.to("cuda:1").T)
        assert got.device.index == 1 and torch.cuda.current_device() == 0
        assert torch.equal(got.to("cuda:0"), expected)


@pytest.mark.parametrize("name", here())
def test_the_cost_on_the_host_is_known(name):
    """Printed, not judged: it is the host's as much as ours."""
    from cookbook.measure import contest, peers

    recipe = catalog.find(name)
    costs = peers.host_costs(recipe.module.matmul, "bfloat16", recipe.majors[0])
    print(f"\n{name}: microseconds a call, out given (made):")
    for who, cost in costs.items():
        assert cost["host_us"] > 0 and cost["host_new_us"] > 0
        print(f"  {who:14}{cost['host_us']:8.2f} ({cost['host_new_us']:.2f})")
    assert {contest.OURS, peers.TORCH} <= costs.keys()


def test_many_calls_leak_no_memory(matmul):
    a, b = running.inputs((256, 256, 256), "bfloat16")
    matmul(a, b)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        matmul(a, b)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_operands_on_different_devices_are_refused(matmul):
    a, b = running.inputs((64, 64, 64), "bfloat16")
    with pytest.raises(ValueError, match="b: got device cpu"):
        matmul(a, b.cpu())
    with pytest.raises(ValueError, match="out: got device cpu"):
        matmul(a, b, out=torch.empty(64, 64, dtype=torch.bfloat16))


@pytest.mark.parametrize("name", here())
def test_check_and_bench_on_this_gpu(name, tmp_path):
    """The harness itself: a short check passes at ran and timed, and its record can be written and read."""
    from cookbook.check import levels
    from cookbook.measure import bench, records

    recipe = catalog.find(name)
    (ran,) = levels.gpu_levels(recipe, "ran", "bfloat16", ((200, 333, 64), (1024, 1024, 1024)))
    assert ran.status == "passed" and ran.figures["shapes"] == 2, ran
    # QuACK would tune itself for 15 seconds.
    made = bench.bench(name, [(1024, 1024, 1024)], ["bfloat16"], majors=recipe.majors[:1], rounds=7, quack=False)
    records.write(made, tmp_path)
    (record,) = records.select(name, "timed", root=tmp_path)
    figures = record["figures"]
    assert 0 < figures["min_ms"] <= figures["median_ms"] <= figures["max_ms"] < 10
    assert figures["ratio"] == record["peers"]["torch.matmul"]["ratio"] > 0.01  # a track's first step is slow
    assert figures["host_us"] > 0 and record["peers"]["torch.matmul"]["host_us"] > 0
    assert record["driver"] and not records.is_stale(record)


# --- recipes that take several majors -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "which"), MAJORS)
def test_majors_every_shape(name, which, dtype):
    cases = running.run_checks(catalog.load(name).matmul, running.shapes_for(which), [dtype], majors=which)
    assert len(cases) >= 60 and [case for case in cases if not case.ok] == []


def padded(rows: int, columns: int, pad: int, by_rows: bool) -> torch.Tensor:
    """A normal (rows, columns) view into a larger matrix of NaN: its rows, or columns, are contiguous and begin `pad`
    further apart than they are long, and more NaN lies before the first and behind the last."""
    if not by_rows:
        return padded(columns, rows, pad, True).T
    wide = torch.full((rows + 16, columns + pad), torch.nan, dtype=torch.bfloat16, device="cuda")
    return wide[8 : rows + 8, :columns].normal_()


@pytest.mark.parametrize("pad", [8, 56])
@pytest.mark.parametrize(("name", "which"), MAJORS)
def test_majors_nothing_outside_an_operand_is_used(name, which, pad):
    matmul, (a_major, b_major) = catalog.load(name).matmul, majors.MAJORS[which]
    for m, n, k in ((200, 328, 64), (136, 72, 200), (72, 264, 8)):
        a, b = padded(m, k, pad, a_major == "k"), padded(k, n, pad, b_major == "n")
        error = running.relative_error(matmul(a, b), running.reference(a, b))
        assert error <= running.tolerance("bfloat16"), (m, n, k)


@pytest.mark.parametrize(("name", "which"), MAJORS)
def test_majors_do_not_change_a_bit_of_the_product(name, which):
    """They say how an operand lies, not what it is; and integers come out exactly."""
    matmul, (a_major, b_major) = catalog.load(name).matmul, majors.MAJORS[which]
    integers = partial(torch.randint, -2, 3, device="cuda")
    for exact, draw in ((True, integers), (False, partial(torch.randn, device="cuda"))):
        a, b = draw(size=(264, 56)).to(torch.bfloat16), draw(size=(56, 136)).to(torch.bfloat16)
        laid_a = a if a_major == "k" else a.T.contiguous().T
        laid_b = b if b_major == "n" else b.T.contiguous().T
        got = matmul(laid_a, laid_b)
        assert torch.equal(got, matmul(a, b.T.contiguous().T))
        assert not exact or torch.equal(got.double(), a.double() @ b.double())


@pytest.mark.alone
@pytest.mark.parametrize(("name", "which"), MAJORS)
def test_majors_offsets_beyond_2_to_the_31(name, which):
    if torch.cuda.get_device_properties(0).total_memory < 24 * 2**30:
        pytest.skip("needs 24 GiB of device memory")
    for m, n, k in ((36000, 40, 60000), (40, 36000, 60000)):
        a, b = running.inputs((m, n, k), "bfloat16", majors=which)
        out = catalog.load(name).matmul(a, b)
        rows, columns = slice(-min(m, 300), None), slice(-min(n, 300), None)
        last = running.reference(a[rows], b[:, columns])
        assert running.relative_error(out[rows, columns], last) <= running.tolerance("bfloat16")


@pytest.mark.parametrize(("name", "which"), MAJORS)
def test_majors_are_timed_beside_peers_on_the_same_operands(name, which, tmp_path):
    from cookbook.measure import bench, records

    made = bench.bench(name, [(1024, 1024, 1024)], ["bfloat16"], majors=[which], rounds=7, quack=False)
    records.write(made, tmp_path)
    (record,) = records.select(name, "timed", root=tmp_path, majors=which)
    assert (record["config"]["a_major"], record["config"]["b_major"]) == majors.MAJORS[which]
    assert record["figures"]["ratio"] == record["peers"]["torch.matmul"]["ratio"] > 0.1


# --- sizes and strides beyond the usual ------------------------------------------------------------------------------


def test_any_k_in_padded_rows_on_hopper():
    """TMA asks for rows 16 bytes apart, not for a K of whole 16-byte pieces: it fills the rest with zeros."""
    if "hopper/tma_wgmma_gemm" not in here():
        pytest.skip("hopper/tma_wgmma_gemm does not run here")
    matmul = catalog.load("hopper/tma_wgmma_gemm").matmul
    for k in (1, 2, 3, 7, 9, 12, 63, 65, 100, 127, 131):
        pitch = -(-k // 8) * 8 + 8
        wide = torch.full((330, pitch), torch.nan, dtype=torch.bfloat16, device="cuda")
        wide[:, :k].normal_()
        a, b = wide[:130, :k], wide[130:, :k].T
        assert running.relative_error(matmul(a, b), running.reference(a, b)) <= running.tolerance("bfloat16"), k


@pytest.mark.alone
@pytest.mark.parametrize("m, n, k", [(66000, 33000, 64), (36000, 40, 60000), (40, 36000, 60000)])
def test_offsets_beyond_2_to_the_31(matmul, m, n, k):
    """Matrices of more than 2**31 elements; the last rows and columns are the ones that would wrap around."""
    if torch.cuda.get_device_properties(0).total_memory < 24 * 2**30:
        pytest.skip("needs 24 GiB of device memory")
    a, b = running.inputs((m, n, k), "bfloat16")
    out = matmul(a, b)
    assert max(a.numel(), b.numel(), out.numel()) > 2**31
    rows, columns = slice(-min(m, 300), None), slice(-min(n, 300), None)
    last = running.reference(a[rows], b[:, columns])
    first = running.reference(a[:300], b[:, :300])
    assert running.relative_error(out[rows, columns], last) <= running.tolerance("bfloat16")
    assert running.relative_error(out[:300, :300], first) <= running.tolerance("bfloat16")
