"""The grouped GEMM along K where there is no GPU: which k a group has, what the levels catch, what is launched and what
refused."""

from __future__ import annotations

import random

import pytest
import torch
from edits import In
from marks import first_of_each
from mutations import Mutation
from planted import caught
from pretend import pretended

from cookbook.check import groups
from cookbook.recipe import catalog, grouped

NAME = "hopper/grouped_wgrad_gemm"


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_goes_from_the_end_before_it_to_its_own():
    draw = random.Random(0)
    for _ in range(200):
        k, ends = draw.randrange(1, 40), tuple(draw.randrange(-5, 50) for _ in range(draw.randrange(1, 6)))
        for group, part in enumerate(grouped.parts(k, ends)):
            before = ends[group - 1] if group else 0
            assert list(part) == [each for each in range(k) if before <= each < ends[group]], (k, ends, group)


def test_the_checks_have_an_empty_group_and_k_of_none():
    for k in (24, 77, 344):
        found = grouped.parts(k, grouped.ends(k))
        assert [bool(part) for part in found] == [True, False, True, True] and found[-1].stop < k


def by_group(a, b, offs, *, out=None, late=0):
    """A grouped product on the CPU; `late`: how many k behind its own a group takes as well."""
    ends = tuple(offs.tolist())
    parts = [slice(part.start, part.stop + late * bool(part)) for part in grouped.parts(a.shape[1], ends)]
    made = torch.stack([a[:, part] @ b[part] for part in parts])
    return made if out is None else out.copy_(made)


@pytest.mark.parametrize("shape", [(40, 24, 16), (8, 8, 1), (200, 336, 77)])
@pytest.mark.parametrize("gap", [0, 3, 8])  # 3: rows that TMA cannot write
def test_as_a_product_of_two_matrices_it_is_that_product(shape, gap):
    m, n, k = shape
    a, b = torch.randn(k, m).T, torch.randn(k, n)
    out = torch.full((m, n + gap), 7.0)
    returned = groups.as_matmul(by_group, "k")(a, b, out=out[:, :n])
    assert returned.data_ptr() == out.data_ptr() and (out[:, n:] == 7).all()
    torch.testing.assert_close(out[:, :n], a @ b)
    torch.testing.assert_close(groups.as_matmul(by_group, "k")(a, b), a @ b)


def test_as_a_product_it_shows_what_leaks_from_the_next_group():
    a, b = torch.randn(16, 64).T, torch.randn(16, 24)
    wrong = groups.as_matmul(lambda *given, out=None: by_group(*given, out=out, late=1), "k")
    assert wrong(a, b).isnan().all() and wrong(a, b, torch.zeros(64, 24)).isnan().all()


# --- planted faults ----------------------------------------------------------------------------------------------

FAULTS = [
    (
        "product",
        "k-tiles reach into the group before",
        In("load_tile").replace(
            "(cutlass.max(cutlass.min(_at, 0), -_config.tile_k), _tile.start + cutlass.max(_at, 0))",
            "(cutlass.Int32(0), _tile.start + _at)",
        ),
    ),
    (
        "product",
        "a window begins a token late",
        In("load_tile").replace("_tile.start + cutlass.max(_at, 0)", "_tile.start + cutlass.max(_at, 0) + 1"),
    ),
    (
        "product",
        "a window's tokens are those from its start on",
        In("load_tile").replace("cutlass.max(cutlass.min(_at, 0), -_config.tile_k)", "cutlass.Int32(0)"),
    ),
    (
        "product",
        "zeros in A alone",
        In("load_tile")
        .where("cutlass.max(_at, 0)")
        .where("_tile.start")
        .replace(
            "copy_window(_, (_, _zeros, _start), _, _, cutlass.Int32(0), 1, _)",
            "copy_window(_, (_, 0, _tile.start + _at), _, _, cutlass.Int32(0), 1, _)",
        ),
    ),
    (
        "product",
        "an end out of order is taken as it is",
        In("work_tile").replace("end_of(_group - 1, _scheduler)", "cutlass.Int32(0)"),
    ),
    (
        "product",
        "all groups have the first one's tokens",
        In("work_tile").replace(
            "cutlass.max(_start, end_of(_group, _scheduler))", "cutlass.max(0, end_of(0, _scheduler))"
        ),
    ),
    (
        "product",
        "ends behind K count",
        In("end_of").replace("cutlass.min(_scheduler.offs[_group], _scheduler.k)", "_scheduler.offs[_group] + 99"),
    ),
    ("product", "all groups are stored to the first one's C", In("store_subtile").replace("_tile.group", "0")),
    (
        "product",
        "a tile is stored where the next one lies",
        In("compute")
        .where("_before, _tile, _ = _tile, _, _")
        .replace("store_subtile(_, _, _, _before, _)", "store_subtile(_, _, _, _tile, _)", times=2),
    ),
    (
        "product",
        "the last band is as high as the others",
        In("work_tile").replace("cutlass.min(_down - _band * _size, _size)", "_size"),
    ),
    (
        "product",
        "the tensor begins before the matrix",
        In("windows")
        .where("cute.make_layout(..., stride=(1, _token_stride, _token_stride))")
        .replace("cute.make_tensor(_pX, ...)", "cute.make_tensor(_pX - _token_stride, ...)"),
    ),
    (
        "product",
        "windows are a token too high",
        In("windows")
        .where("cute.make_layout(..., stride=(1, _token_stride, _token_stride))")
        .replace("cute.make_tensor(_pX, ...)", "cute.make_tensor(_pX + _token_stride, ...)"),
    ),
    (
        "pipeline",
        "consumers count all work tiles alike",
        In("compute").where("_config.epi_n").replace("_k_tile + _tile.k_tiles", "_k_tile + _config.min_k_tiles"),
    ),
    (
        "pipeline",
        "offs are read before the kernel before ended",
        In("consume").drop("cute.arch.griddepcontrol_wait()"),
    ),
]


@pytest.mark.parametrize(
    ("level", "what", "edit"), first_of_each(FAULTS, lambda fault: fault[0]), ids=[fault[1] for fault in FAULTS]
)
def test_a_planted_fault_is_caught(level, what, edit, tmp_path):
    assert caught(Mutation(NAME, what, edit), (level,), tmp_path).level == level


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=64, n=48, k=72, count=3):
    a, b = torch.zeros(k, m).bfloat16().T, torch.zeros(k, n).bfloat16()
    return {"a": a, "b": b, "offs": torch.tensor([3, 9, 64][:count], dtype=torch.int32)}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given, out = operands(), torch.zeros(3, 66, 56).bfloat16()[:, :64, :48]
    assert ours.matmul(**given, out=out) is out
    (((arch, _, config), arguments),) = ours.launched
    assert (arch, config) == ("", ours.CONFIG)
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], out, given["offs"]))
    assert arguments == (*addresses, ((64, 48, 72), (64, 48, 56), 66 * 56, 3, 3), 7)


def test_what_is_made_has_a_product_for_each_group(ours):
    assert ours.matmul(**operands()).shape == (3, 64, 48)


@pytest.mark.parametrize(
    ("m", "n", "groups", "clusters"), [(8, 8, 1, 1), (4096, 4096, 8, 64), (1024, 1024, 5, 40), (1024, 1024, 9, 48)]
)
def test_clusters_fill_whole_rounds(m, n, groups, clusters):
    module = catalog.load(NAME)
    found = module.clusters(module.CONFIG, m, n, groups, 132)
    tiles = groups * -(-m // 128) * -(-n // 512)
    assert found == clusters and -(-tiles // found) == -(-tiles // 66)


WRONG = [
    ({"a": torch.zeros(64, 0).bfloat16()}, ValueError, r"b: got shape \(72, 48\); needed \(0, N\)"),
    ({"a": torch.zeros(64, 72).bfloat16()}, ValueError, "a: got stride 72 along M; needed 1: M-major"),
    ({"a": torch.zeros(72, 60).bfloat16().T}, ValueError, "a: got M = 60; needed a multiple of 8"),
    ({"b": torch.zeros(48, 72).bfloat16().T}, ValueError, "b: got stride 72 along N; needed 1: N-major"),
    ({"b": torch.zeros(72, 44).bfloat16()}, ValueError, "b: got N = 44; needed a multiple of 8"),
    ({"b": torch.zeros(3, 72, 48).bfloat16()}, ValueError, r"b: got 3 dimension\(s\); needed 2"),
    ({"b": torch.zeros(71, 48).bfloat16()}, ValueError, r"b: got shape \(71, 48\); needed \(72, N\)"),
    ({"b": torch.zeros(72, 48).half()}, TypeError, "b: got torch.float16; needed torch.bfloat16"),
    ({"offs": torch.zeros(3)}, TypeError, "offs: got torch.float32; needed torch.int32"),
    ({"offs": torch.zeros(0, dtype=torch.int32)}, ValueError, r"offs: got shape \(0,\); needed no empty dimension"),
    ({"offs": torch.zeros(6, dtype=torch.int32)[::2]}, ValueError, "offs: got stride 2; needed 1"),
    ({"offs": [3, 9, 64]}, TypeError, "offs: got list; needed a torch.Tensor"),
    ({"out": torch.zeros(64, 48).bfloat16()}, ValueError, r"out: got 2 dimension\(s\); needed 3"),
    ({"out": torch.zeros(2, 64, 48).bfloat16()}, ValueError, r"out: got 2 group\(s\); needed 3: one for each of offs"),
    ({"out": torch.zeros(3, 64, 40).bfloat16()}, ValueError, r"out: got shape \(64, 40\); needed \(64, 48\)"),
    (
        {"out": torch.zeros(3, 64, 52).bfloat16()[..., :48]},
        ValueError,
        "out: got rows that do not begin at multiples of",
    ),
    ({"out": torch.zeros(1, 64, 48).bfloat16().expand(3, 64, 48)}, ValueError, "out: got groups 0 elements apart"),
    ({"out": torch.zeros(3, 64, 48)}, TypeError, "out: got torch.float32; needed torch.bfloat16"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


@pytest.mark.parametrize("name", ["a", "b", "offs"])
def test_out_must_not_overlap_what_is_read(ours, name):
    given, memory = operands(), torch.zeros(1 << 16).bfloat16()
    if name == "offs":
        given[name] = memory[64:70].view(torch.int32).copy_(given[name])
    else:
        like = given[name].T if name == "a" else given[name]
        lines = memory[-like.numel() :].view_as(like)
        given[name] = lines.T if name == "a" else lines
    start = 0 if name == "offs" else (1 << 16) - given[name].numel() - 3 * 64 * 48 + 8  # in the last group
    with pytest.raises(ValueError, match=f"out: got memory that overlaps {name}; needed memory of its own"):
        ours.matmul(**given, out=memory[start : start + 3 * 64 * 48].view(3, 64, 48))
    assert not ours.launched
