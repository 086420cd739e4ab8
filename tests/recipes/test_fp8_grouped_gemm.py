"""The grouped FP8 GEMM where there is no GPU: what the levels catch, what is launched and what refused."""

from __future__ import annotations

import pytest
import torch
from edits import In
from marks import first_of_each
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import groups, scaled
from cookbook.products import grouped_scaled
from cookbook.recipe import catalog, grouped
from cookbook.recipe.formats import FORMATS

NAME, E4M3, FP8 = "hopper/fp8_grouped_gemm", torch.float8_e4m3fn, FORMATS["fp8"]


# --- groups of scaled operands as one product ---------------------------------------------------------------------


def by_group(a, b, scale_a, scale_b, offs, *, out, weights=0, factors=0):
    """A grouped product on the CPU; `weights`, `factors`: of which other group's a group takes."""
    start = 0
    for group, end in enumerate(offs.tolist()):
        rows, start = slice(start, max(start, end)), max(start, end)
        of_b = b[(group + weights) % len(b)].float() * scale_b[(group + factors) % len(b)]
        out[rows] = (a[rows].float() * scale_a[rows, None]) @ of_b
    return out


def rounded(m, n, k):
    a, b = scaled.rounded(torch.randn(m, k), FP8), scaled.rounded(torch.randn(n, k), FP8).T
    return a, b, torch.full((m, n + 8), 7.0)


@pytest.mark.parametrize("shape", [(37, 24, 32), (1, 8, 32), (200, 333, 64)])
def test_as_a_product_of_two_matrices_it_is_that_product(shape):
    a, b, out = rounded(*shape)
    n = shape[1]
    returned = groups.as_matmul(by_group, "m", FP8)(a, b, out=out[:, :n])
    assert returned.data_ptr() == out.data_ptr() and (out[:, n:] == 7).all()
    torch.testing.assert_close(out[:, :n], a @ b)
    torch.testing.assert_close(groups.as_matmul(by_group, "m", FP8)(a, b), a @ b)


@pytest.mark.parametrize("fault", [{"weights": 1}, {"factors": 1}], ids=str)
def test_as_a_product_it_shows_that_a_group_met_anothers(fault):
    a, b, out = rounded(64, 24, 32)
    wrong = groups.as_matmul(lambda *given, out: by_group(*given, out=out, **fault), "m", FP8)(a, b, out[:, :24])
    assert (wrong - a @ b).norm() > 0.4 * (a @ b).norm()


def test_peers_are_held_to_the_timed_groups_product():
    a, b, scale_a, scale_b = (
        torch.randn(30, 32).to(E4M3),
        torch.randn(8, 24, 32).to(E4M3).mT,
        torch.rand(30),
        torch.rand(8, 24),
    )
    ends = torch.tensor(grouped.sizes(30)).cumsum(0)
    expected = by_group(a, b, scale_a, scale_b, ends, out=torch.zeros(30, 24))
    found = grouped_scaled.reference((30, 24, 32), a, b, scale_a, scale_b, ends)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)


# --- planted faults -----------------------------------------------------------------------------------------------

FAULTS = [
    (
        "layout",
        "the byte swizzle is that of 16-bit elements",
        In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(_bits, 3, 3)"),
        0,
    ),
    ("product", "all groups have the first one's factors", In("fetch_scales").replace("_tile.group", "0"), 0),
    ("product", "all groups have the first one's factors", In("fetch_scales").replace("_tile.group", "0"), 2),
    (
        "product",
        "a tile's first factor is that of a whole tile",
        In("fetch_scales").replace("_tile.row", "_tile.row // 128 * 128"),
        0,
    ),
    ("product", "factors of another column tile", In("fetch_scales").replace("_config.weights", "_config.tile_n"), 2),
    (
        "product",
        "factors stay with their operands when these are swapped",
        In("fetch_scales").replace("_config.swap_ab", "0"),
        1,
    ),
    (
        "product",
        "both warpgroups have the factors of the first",
        In("fetch_scales").replace("_m + _epi.warpgroup * 64", "_m"),
        0,
    ),
    (
        "product",
        "factors are read behind the last one",
        In("copy_one").replace("cutlass.min(_i, cute.size(_scale) - 1)", "_i"),
        0,
    ),
    (
        "product",
        "a thread's second row has the factor of the first",
        In("scaled").replace("_epi.thread // 32 * 16 + _lane // 4 + 8 * _j", "_epi.thread // 32 * 16 + _lane // 4"),
        0,
    ),
    ("product", "columns 8 further have the same factors", In("scaled").replace("(1, 0, 2)", "(1, 0, 0)"), 0),
    ("product", "all groups have the first one's weights", In("load_tile").replace("_tile.group", "0"), 2),
    ("product", "rows behind a group's end are stored", In("store_subtile").replace("_tile.end - _row", "1 << 20"), 0),
    ("pipeline", "factors are read before all are there", In("compute").drop("meet(_epi)"), 0),
    (
        "pipeline",
        "a thread's own copies are not waited for",
        In("compute").replace("cute.arch.cp_async_wait_group(0)", "cute.arch.cp_async_wait_group(1)"),
        0,
    ),
    ("pipeline", "factors are overwritten while they are read", In("fetch_scales").drop("meet(_epi)"), 0),
    (
        "pipeline",
        "what the kernel before writes is read before its end",
        In("consume").drop("cute.arch.griddepcontrol_wait()"),
        2,
    ),
]
VARIANTS = ("128x256", "64x128", "32x128")
OF_A_KIND = first_of_each(FAULTS, lambda fault: (fault[0], fault[3]))  # a level and a variant


@pytest.mark.parametrize(("level", "what", "edit", "which"), OF_A_KIND, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, which, tmp_path):
    assert caught(Mutation(NAME, what, edit, VARIANTS[which]), (level,), tmp_path).level == level


# --- the host side ------------------------------------------------------------------------------------------------


def operands(m=64, n=48, k=80, count=3):
    a, b = torch.zeros(m, k).to(E4M3), torch.zeros(count, n, k).to(E4M3).mT
    factors = {"scale_a": torch.ones(m), "scale_b": torch.ones(count, n)}
    return {"a": a, "b": b, **factors, "offs": torch.tensor([3, 9, 64][:count], dtype=torch.int32)}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given, out = operands(), torch.zeros(64, 56).bfloat16()[:, :48]
    given["scale_b"] = torch.ones(3, 50)[:, :48]
    assert ours.matmul(**given, out=out) is out
    (((arch, _, config), arguments),) = ours.launched
    assert (arch, config.tokens) == ("", 32)
    addresses = [x.data_ptr() for x in (given["a"], given["b"], out, *list(given.values())[2:])]
    assert arguments == (*addresses[:3], tuple(addresses[3:]), ((64, 48, 80), (80, 80, 56), 3, 48 * 80, 50, 132), 7)


def test_one_row_of_factors_may_be_all_groups(ours):
    ours.matmul(**operands() | {"scale_b": torch.ones(1, 48).expand(3, 48)})
    assert ours.launched[0][1][4].group_stride_sb == 0


@pytest.mark.parametrize(("rows", "tokens"), [(8, 32), (256, 32), (264, 64), (512, 64), (520, 128)])
def test_the_variant_goes_by_the_mean_of_the_groups(ours, rows, tokens):
    ours.matmul(**operands(rows, 8, 16, 3) | operands(rows, 8, 16, 3) | of_eight(rows))
    assert ours.launched[0][0][2].tokens == tokens


def of_eight(rows):
    b = torch.zeros(8, 8, 16).to(E4M3).mT
    return {"b": b, "scale_b": torch.ones(8, 8), "offs": torch.full((8,), rows, dtype=torch.int32)}


def test_c_has_the_dtype_of_out_or_that_is_asked_for(ours):
    assert ours.matmul(**operands()).dtype == torch.bfloat16
    of_half = catalog.load(NAME).GEMMS[torch.float16]
    assert of_half.takes == {E4M3: torch.float16} and of_half is not ours.GEMM


WRONG = [
    ({"a": torch.zeros(0, 80).to(E4M3)}, ValueError, r"scale_a: got shape \(64,\); needed \(0,\)"),
    ({"a": torch.zeros(64, 80)}, TypeError, "a: got torch.float32; needed torch.float8_e4m3fn"),
    ({"a": torch.zeros(64, 88).to(E4M3)[:, :80]}, ValueError, "a: got K = 80, rows 88 bytes apart; needed rows a mult"),
    ({"b": torch.zeros(80, 48).to(E4M3)}, ValueError, r"b: got 2 dimension\(s\); needed 3"),
    ({"b": torch.zeros(3, 80, 48).to(E4M3)}, ValueError, "b: got stride 48 along K; needed 1: K-major"),
    (
        {"b": torch.zeros(3, 44, 80).to(E4M3).mT, "scale_b": torch.ones(3, 44)},
        ValueError,
        "b: got N = 44; needed a mult",
    ),
    ({"b": torch.zeros(3, 48, 64).to(E4M3).mT}, ValueError, r"b: got shape \(64, 48\); needed \(80, N\)"),
    (
        {"b": torch.zeros(3, 48, 80).to(torch.float8_e5m2).mT},
        TypeError,
        "b: got torch.float8_e5m2; needed torch.float8_e4",
    ),
    (
        {"b": torch.zeros(3 * 3848).to(E4M3).as_strided((3, 80, 48), (3848, 1, 80))},
        ValueError,
        r"b: got groups 3848 elements apart; needed groups a multiple of 16 bytes apart \(a multiple of 16 elements\)",
    ),
    ({"scale_a": 1.0}, TypeError, "scale_a: got float; needed a torch.Tensor"),
    ({"scale_a": torch.ones(64, 1)}, ValueError, r"scale_a: got 2 dimension\(s\); needed 1"),
    ({"scale_a": torch.ones(1)}, ValueError, r"scale_a: got shape \(1,\); needed \(64,\)"),
    ({"scale_a": torch.ones(128)[::2]}, ValueError, "scale_a: got stride 2; needed 1: adjacent elements"),
    ({"scale_a": torch.ones(64).half()}, TypeError, "scale_a: got torch.float16; needed torch.float32"),
    ({"scale_b": torch.ones(48)}, ValueError, r"scale_b: got 1 dimension\(s\); needed 2"),
    ({"scale_b": torch.ones(2, 48)}, ValueError, r"scale_b: got shape \(2, 48\); needed \(3, 48\)"),
    ({"scale_b": torch.ones(48, 3).T}, ValueError, "scale_b: got stride 3; needed 1: adjacent elements"),
    ({"offs": torch.zeros(3)}, TypeError, "offs: got torch.float32; needed torch.int32"),
    (
        {"offs": torch.zeros(2, dtype=torch.int32)},
        ValueError,
        r"offs: got shape \(2,\); needed \(3,\), for b is \(3, 80, 48\)",
    ),
    ({"offs": torch.zeros(6, dtype=torch.int32)[::2]}, ValueError, "offs: got stride 2; needed 1"),
    ({"out": torch.zeros(64, 52).bfloat16()[:, :48]}, ValueError, "out: got rows that do not begin at multiples of 16"),
    ({"out": torch.zeros(64, 40).bfloat16()}, ValueError, r"out: got shape \(64, 40\); needed \(64, 48\)"),
    ({"out": torch.zeros(64, 48)}, TypeError, "out: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"out_dtype": torch.float32}, TypeError, "out_dtype: got torch.float32; needed torch.float16 or torch.bfloat16"),
    ({"variant": "256x256"}, ValueError, "variant: got '256x256'; needed one of auto, 128x256"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


@pytest.mark.parametrize("name", ["a", "b", "scale_a", "scale_b", "offs"])
def test_out_must_not_overlap_what_is_read(ours, name):
    given, memory = operands(), torch.zeros(1 << 16).bfloat16()
    like = given[name].mT if name == "b" else given[name]
    within = memory.view(like.dtype)[: like.numel()].view_as(like)
    within.copy_(like)
    given[name] = within.mT if name == "b" else within
    with pytest.raises(ValueError, match=f"out: got memory that overlaps {name}; needed memory of its own"):
        ours.matmul(**given, out=memory[: 64 * 48].view(64, 48))
    assert not ours.launched
