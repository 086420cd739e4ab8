"""The grouped GEMM where there is no GPU: who owns a row, what the levels catch, what is launched and what refused."""

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
from cookbook.recipe import grouped

NAME = "hopper/grouped_gemm"


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_row_has_one_owner_whatever_the_ends_are():
    """Against the rule as the page says it: a group begins at the largest end before it."""
    draw = random.Random(0)
    for _ in range(200):
        rows, ends = draw.randrange(1, 40), tuple(draw.randrange(-5, 50) for _ in range(draw.randrange(1, 6)))
        found = grouped.owners(rows, ends)
        for row, owner in enumerate(found):
            first = next((group for group, end in enumerate(ends) if end > row), -1)
            assert owner == first, (rows, ends, row)


def test_the_checks_have_an_empty_group_and_rows_of_none():
    for rows in (37, 216, 1049):
        found = grouped.owners(rows, grouped.ends(rows))
        assert set(found) == {-1, 0, 2, 3} and found[-1] == -1


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 16383, 16384])
def test_all_rows_are_timed(rows):
    sizes = grouped.sizes(rows)
    assert sum(sizes) == rows and len(sizes) == 8 and min(sizes) >= 0
    assert (len(set(sizes)) == 1) == (rows % 8 == 0)


def by_group(a, b, offs, *, out=None, shift=0):
    """A grouped product on the CPU; `shift`: of which other group's B a group takes."""
    out = a.new_empty(a.shape[0], b.shape[2]) if out is None else out
    start = 0
    for group, end in enumerate(offs.tolist()):
        end = max(start, end)
        out[start:end] = a[start:end] @ b[(group + shift) % len(b)]
        start = end
    return out


@pytest.mark.parametrize("shape", [(37, 24, 16), (1, 8, 8), (200, 333, 64)])
def test_as_a_product_of_two_matrices_it_is_that_product(shape):
    m, n, k = shape
    a, b = torch.randn(m, k), torch.randn(n, k).T
    out = torch.full((m, n + 3), 7.0)
    returned = groups.as_matmul(by_group)(a, b, out=out[:, :n])
    assert returned.data_ptr() == out.data_ptr() and (out[:, n:] == 7).all()
    torch.testing.assert_close(out[:, :n], a @ b)
    torch.testing.assert_close(groups.as_matmul(by_group)(a, b), a @ b)


def test_as_a_product_it_shows_a_group_with_other_weights():
    a, b = torch.randn(64, 16), torch.randn(16, 24)
    wrong = groups.as_matmul(lambda *given, out=None: by_group(*given, out=out, shift=1))(a, b)
    assert (wrong - a @ b).norm() > 0.5 * (a @ b).norm()


# --- planted faults ----------------------------------------------------------------------------------------------

FAULTS = [
    (
        "product",
        "an end out of order begins a group again",
        In("search").replace("cutlass.max(_start, ...)", "cutlass.max(0, ...)"),
        "32x128",
    ),
    ("product", "all groups have the first one's weights", In("load_tile").replace("_tile.group", "0"), "32x128"),
    ("product", "rows of A are counted from the first group's", In("load_tile").replace("_tile.row", "0"), "32x128"),
    (
        "product",
        "rows behind a group's end are stored",
        In("store_subtile").replace("_tile.end - _row", "1 << 20"),
        "128x256",
    ),
    (
        "product",
        "a window ends a row late",
        In("store_subtile").replace(
            "(_config.epi_tokens - _left, _column, _row + _left)",
            "(_config.epi_tokens - _left, _column, _row + _left + 1)",
        ),
        "128x256",
    ),
    (
        "product",
        "the window's rows are those from its end",
        In("store_subtile").replace("_config.epi_tokens - _left", "0"),
        "128x256",
    ),
    (
        "product",
        "a group's last tile is left out",
        In("tiles_of").replace("_end - _start + _config.tokens - 1", "_end - _start + 0"),
        "32x128",
    ),
    (
        "pipeline",
        "offs are read before the kernel before ended",
        In("consume").drop("cute.arch.griddepcontrol_wait()"),
        "32x128",
    ),
]


OF_A_KIND = first_of_each(FAULTS, lambda fault: (fault[0], fault[3]))  # a level and a variant


@pytest.mark.parametrize(("level", "what", "edit", "variant"), OF_A_KIND, ids=[fault[1] for fault in FAULTS])
def test_a_planted_fault_is_caught(level, what, edit, variant, tmp_path):
    assert caught(Mutation(NAME, what, edit, variant), (level,), tmp_path).level == level


# --- the host side -------------------------------------------------------------------------------------------


def operands(m=64, n=48, k=72, count=3):
    a, b = torch.zeros(m, k).bfloat16(), torch.zeros(count, n, k).bfloat16().transpose(1, 2)
    return {"a": a, "b": b, "offs": torch.tensor([3, 9, 64][:count], dtype=torch.int32)}


@pytest.fixture
def ours(monkeypatch):
    """The recipe where CPU tensors pass for CUDA's."""
    return pretended(NAME, monkeypatch)


def test_what_is_launched(ours):
    given, out = operands(), torch.zeros(64, 56).bfloat16()[:, :48]
    assert ours.matmul(**given, out=out) is out
    (((arch, _, config), arguments),) = ours.launched
    assert (arch, config.tokens, config.gpc_aware) == ("", 32, False)
    addresses = tuple(x.data_ptr() for x in (given["a"], given["b"], out, given["offs"]))
    assert arguments == (*addresses, (0, (64, 48, 72), (72, 72, 56), 3, 48 * 72, 132), 7)


@pytest.mark.parametrize(("rows", "tokens"), [(8, 32), (256, 32), (264, 64), (512, 64), (520, 128)])
def test_the_variant_goes_by_the_mean_of_the_groups(ours, rows, tokens):
    ours.matmul(torch.zeros(rows, 8).bfloat16(), torch.zeros(8, 8, 8).bfloat16().mT, torch.zeros(8, dtype=torch.int32))
    assert ours.launched[0][0][2].tokens == tokens


WRONG = [
    ({"b": torch.zeros(3, 0, 48).bfloat16()}, ValueError, r"b: got shape \(3, 0, 48\); needed no empty dimension"),
    (
        {"a": torch.zeros(0, 72).bfloat16(), "out": torch.zeros(64, 48).bfloat16()},
        ValueError,
        r"out: got shape \(64, 48\); needed \(0, 48\)",
    ),
    ({"b": torch.zeros(72, 48).bfloat16()}, ValueError, r"b: got 2 dimension\(s\); needed 3"),
    ({"b": torch.zeros(3, 72, 48).bfloat16()}, ValueError, "b: got stride 48 along K; needed 1: K-major"),
    ({"b": torch.zeros(3, 44, 72).bfloat16().mT}, ValueError, "b: got N = 44; needed a multiple of 8"),
    ({"b": torch.zeros(3, 48, 64).bfloat16().mT}, ValueError, r"b: got shape \(64, 48\); needed \(72, N\)"),
    ({"b": torch.zeros(3, 48, 72).half().mT}, TypeError, "b: got torch.float16; needed torch.bfloat16"),
    ({"offs": torch.zeros(3)}, TypeError, "offs: got torch.float32; needed torch.int32"),
    (
        {"offs": torch.zeros(2, dtype=torch.int32)},
        ValueError,
        r"offs: got shape \(2,\); needed \(3,\), for b is \(3, 72, 48\)",
    ),
    ({"offs": torch.zeros(6, dtype=torch.int32)[::2]}, ValueError, "offs: got stride 2; needed 1"),
    ({"offs": [3, 9, 64]}, TypeError, "offs: got list; needed a torch.Tensor"),
    ({"out": torch.zeros(64, 52).bfloat16()[:, :48]}, ValueError, "out: got rows that do not begin at multiples of 16"),
    ({"out": torch.zeros(64, 40).bfloat16()}, ValueError, r"out: got shape \(64, 40\); needed \(64, 48\)"),
    ({"variant": "256x256"}, ValueError, "variant: got '256x256'; needed one of auto, 128x256"),
]


@pytest.mark.parametrize(("given", "error", "message"), WRONG, ids=lambda x: str(x)[:40])
def test_what_it_cannot_take_is_named(ours, given, error, message):
    with pytest.raises(error, match=message):
        ours.matmul(**(operands() | given))
    assert not ours.launched


@pytest.mark.parametrize("name", ["a", "b", "offs"])
def test_out_must_not_overlap_what_is_read(ours, name):
    given = operands()
    memory = torch.zeros(1 << 16).bfloat16()
    if name == "offs":
        given[name] = memory[64:70].view(torch.int32).copy_(given[name])
    else:
        given[name] = memory[: given[name].numel()].view_as(given[name].mT if name == "b" else given[name])
        given[name] = given[name].mT if name == "b" else given[name]
    with pytest.raises(ValueError, match=f"out: got memory that overlaps {name}; needed memory of its own"):
        ours.matmul(**given, out=memory[: 64 * 48].view(64, 48))
    assert not ours.launched
