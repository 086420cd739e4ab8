"""The judge of level "ran", on tensors of the CPU: it must see an unwritten element, a stray write, a large error."""

from __future__ import annotations

import pytest
import torch

from cookbook.check import ran
from cookbook.check.ran import Case
from cookbook.recipe import majors

DTYPES = ("bfloat16", "float16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_once_is_well_within_the_tolerance(dtype):
    exact = torch.randn(500, 400, dtype=torch.float64)
    error = ran.relative_error(exact.to(getattr(torch, dtype)), exact)
    assert 0.3 * ran.tolerance(dtype) < error < 0.5 * ran.tolerance(dtype)


def test_a_row_left_out_or_one_element_unwritten_is_seen():
    exact = torch.randn(500, 400, dtype=torch.float64)
    got = exact.to(torch.bfloat16)
    got[499] = 0
    assert ran.verdict(ran.relative_error(got, exact), 1.0, got.numel(), "bfloat16")
    got = exact.to(torch.bfloat16)
    got[3, 5] = float("nan")
    assert ran.verdict(ran.relative_error(got, exact), 1.0, got.numel(), "bfloat16")


def test_error_larger_than_torchs_is_seen_where_it_is_no_chance():
    error = 0.9 * ran.tolerance("float16")
    assert ran.verdict(error, error, 10**6, "float16") == ""
    assert "torch.matmul" in ran.verdict(error, error / 1.06, 10**6, "float16")
    assert ran.verdict(error, error / 1.06, 10, "float16") == ""


@pytest.mark.parametrize("row_stride", [5, 8])
def test_guards_see_a_write_anywhere_outside(row_stride):
    for where in (ran.GUARD - 1, ran.GUARD + 3 * row_stride, 0, -1):
        out, intact = ran.guarded(3, 5, "bfloat16", device="cpu", row_stride=row_stride)
        assert out.shape == (3, 5) and out.isnan().all()
        out.zero_()
        assert intact()
        whole = torch.as_strided(out, (2 * ran.GUARD + 3 * row_stride,), (1,), 0)
        whole[where] = 0
        assert not intact(), where
    assert out.stride() == (row_stride, 1)


def test_guards_see_a_write_between_rows():
    out, intact = ran.guarded(3, 5, "float16", device="cpu", row_stride=8)
    torch.as_strided(out, (3, 8), (8, 1), ran.GUARD)[1, 6] = 0
    assert not intact()


def test_inputs_are_fresh_normal_and_k_major():
    (a, b), (a2, _) = (ran.inputs((40, 50, 64), "float16", device="cpu") for _ in range(2))
    assert a.shape == (40, 64) and b.shape == (64, 50) and b.stride() == (1, 64)
    assert not torch.equal(a, a2) and 0.9 < a.float().std() < 1.1
    (c, _), (c2, _) = (ran.inputs((40, 50, 64), "float16", device="cpu", seed=3) for _ in range(2))
    assert torch.equal(c, c2)


@pytest.mark.parametrize("which", majors.MAJORS)
def test_inputs_lie_as_the_majors_say(which):
    a, b = ran.inputs((40, 56, 64), "float16", device="cpu", majors=which)
    assert a.shape == (40, 64) and b.shape == (64, 56)
    a_major, b_major = majors.MAJORS[which]
    assert a.stride() == ((64, 1) if a_major == "k" else (1, 40))
    assert b.stride() == ((1, 64) if b_major == "k" else (56, 1))


@pytest.mark.parametrize("which", majors.MAJORS)
def test_shapes_for_majors_are_legal_and_as_varied(which):
    shapes = ran.shapes_for(which)
    assert len(set(shapes)) == len(shapes) >= 60 and not any(majors.misfit(shape, which) for shape in shapes)
    free = [i for i in range(3) if i not in majors.contiguous(which)]
    assert all(any(shape[i] == 1 for shape in shapes) and any(shape[i] % 2 for shape in shapes) for i in free)
    assert ran.shapes_for() == ran.SHAPES


@pytest.mark.parametrize("which", majors.MAJORS)
def test_drawn_shapes_are_legal_ragged_and_the_same_for_a_seed(which):
    shapes = ran.drawn(7, which)
    assert len(set(shapes)) == len(shapes) == ran.DRAWN and shapes == ran.drawn(7, which)
    assert not any(majors.misfit(shape, which) for shape in shapes) and set(shapes) != set(ran.drawn(8, which))
    assert max(max(shape) for shape in shapes) <= 2048 and min(min(shape) for shape in shapes) >= 1
    whole = [shape for shape in shapes if shape[0] % 128 == 0 and shape[1] % 128 == 0]
    assert len(whole) < len(shapes) / 4


def test_summary_has_the_worst():
    cases = [
        Case((1, 1, 8), "bfloat16", 3e-3, 1e-3, ""),  # too small for its ratio to count
        Case((64, 64, 8), "bfloat16", 1.7e-3, 1.7e-3, ""),
        Case((128, 64, 8), "bfloat16", 1.8e-3, 1.6e-3, "wrote outside out"),
    ]
    said = ran.summary(cases)
    assert said["shapes"] == 3 and said["worst_error"] == 3e-3 and said["worst_ratio"] == pytest.approx(1.125)
    assert [c["shape"] for c in said["failed"]] == [(128, 64, 8)]


def test_all_shapes_are_legal():
    assert len(set(ran.SHAPES)) == len(ran.SHAPES) >= 60
    assert all(min(shape) >= 1 and shape[2] % 8 == 0 for shape in ran.SHAPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_verify_passes_a_product_and_names_what_is_wrong(dtype, monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    kind = getattr(torch, dtype)
    operands = torch.randn(64, 32).to(kind), torch.randn(32, 48).to(kind), torch.zeros(64, 48, dtype=kind)

    def product(a, b, out):
        return torch.matmul(a, b, out=out)

    def but_one(a, b, out):
        out[1:] = (a @ b)[1:]  # a row keeps the poison

    def elsewhere(a, b, out):
        return a @ b  # right, and not where it was asked for

    ran.verify("mine", product, operands, dtype)
    for wrong in (but_one, elsewhere, lambda a, b, out: out.copy_(1.1 * (a @ b))):
        with pytest.raises(RuntimeError, match="mine is wrong: relative error"):
            ran.verify("mine", wrong, operands, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_what_shared_memory_is_filled_with_is_nan_of_every_type(dtype):
    pytest.importorskip("cutlass")
    from cookbook.check import poisoning

    word = torch.tensor([poisoning.WORD], dtype=torch.uint32).view(torch.uint8).view(getattr(torch, dtype))
    assert word.float().isnan().all()
