"""matmul's contract on bad input: the right exception, naming the argument, what it got and what it needs.

All of it is seen without a GPU: the device is the last thing looked at.
"""

from __future__ import annotations

import pytest
import torch

from cookbook.recipe import catalog

GEMMS = [r.name for r in catalog.recipes() if r.product.of_two_matrices]


@pytest.fixture(params=GEMMS)
def matmul(request):
    return catalog.load(request.param).matmul


K_MAJOR = [name for name in GEMMS if catalog.find(name).majors == ("tn",)]
SEVERAL = [r.name for r in catalog.recipes() if len(r.majors) > 1]


@pytest.fixture(params=K_MAJOR)
def k_major_matmul(request):
    return catalog.load(request.param).matmul


@pytest.fixture(params=SEVERAL)
def majors_matmul(request):
    return catalog.load(request.param).matmul


def a_(m=16, k=32, dtype=torch.bfloat16):
    return torch.randn(m, k).to(dtype)


def b_(k=32, n=24, dtype=torch.bfloat16):
    return torch.randn(n, k).to(dtype).T


def refuse(matmul, error, *parts, **kwargs):
    with pytest.raises((TypeError, ValueError)) as raised:
        matmul(**kwargs)
    assert type(raised.value) is error, raised.value
    message = str(raised.value)
    for part in parts:
        assert part in message, message
    return message


def test_the_four_common_mistakes_are_four_different_errors(k_major_matmul):
    matmul = k_major_matmul
    messages = {
        refuse(matmul, TypeError, "a: got torch.float32", "torch.bfloat16", a=a_(dtype=torch.float32), b=b_()),
        refuse(matmul, ValueError, "a: got stride 16 along K", "needed 1", a=a_(32, 16).T, b=b_()),
        refuse(matmul, ValueError, "a: got K = 12", "16", "byte", a=a_(16, 12), b=b_(12)),
        refuse(matmul, ValueError, "a: got device cpu", "CUDA device", a=a_(), b=b_()),
    }
    assert len(messages) == 4


def test_wrong_types(matmul):
    refuse(matmul, TypeError, "a: got list", "torch.Tensor", a=[[1.0]], b=b_())
    refuse(matmul, TypeError, "b: got NoneType", "torch.Tensor", a=a_(), b=None)
    refuse(matmul, TypeError, "b: got torch.float16", "torch.bfloat16", a=a_(), b=b_(dtype=torch.float16))
    refuse(matmul, TypeError, "out: got torch.float32", a=a_(), b=b_(), out=torch.empty(16, 24))


def test_wrong_shapes(matmul):
    refuse(matmul, ValueError, "a: got", "2", a=a_()[None], b=b_())
    refuse(matmul, ValueError, "b: got", "2", a=a_(), b=b_()[:, 0])
    refuse(matmul, ValueError, "b: got shape (40, 24)", "(32, N)", a=a_(), b=b_(40))
    refuse(matmul, ValueError, "a: got shape (0, 32)", "empty", a=a_(0), b=b_())
    refuse(matmul, ValueError, "b: got shape (32, 0)", "empty", a=a_(), b=b_(n=0))
    out = torch.empty(16, 25, dtype=torch.bfloat16)
    refuse(matmul, ValueError, "out: got shape (16, 25)", "(16, 24)", a=a_(), b=b_(), out=out)


def test_wrong_majors(k_major_matmul):
    refuse(k_major_matmul, ValueError, "b: got stride 24 along K", "needed 1", a=a_(), b=b_().contiguous())


def test_wrong_alignment(matmul):
    shifted = torch.randn(16 * 32 + 1).to(torch.bfloat16)[1:].view(16, 32)
    refuse(matmul, ValueError, "a: got address", "16 bytes", a=shifted, b=b_())
    shifted = torch.randn(24 * 32 + 1).to(torch.bfloat16)[1:].view(24, 32).T
    refuse(matmul, ValueError, "b: got address", "16 bytes", a=a_(), b=shifted)
    refuse(matmul, ValueError, "a: got", "rows 66 bytes", "16 bytes", a=a_(16, 33)[:, :32], b=b_())


def test_out_that_cannot_be_written(matmul):
    out = torch.empty(24, 16, dtype=torch.bfloat16).T
    refuse(matmul, ValueError, "out: got", a=a_(), b=b_(), out=out)
    square = a_(32, 32)
    refuse(matmul, ValueError, "out: got", "a", a=square, b=b_(32, 32), out=square)
    b = b_(32, 32)
    refuse(matmul, ValueError, "out: got", "b", a=a_(32, 32), b=b, out=b.T)
    overlapping = torch.empty(64, dtype=torch.bfloat16).as_strided((16, 24), (2, 1))
    refuse(matmul, ValueError, "out: got", "overlap", a=a_(), b=b_(), out=overlapping)


def test_gradients_are_refused(matmul):
    refuse(matmul, ValueError, "a: got requires_grad", "no_grad", a=a_().requires_grad_(), b=b_())
    with torch.no_grad():
        refuse(matmul, ValueError, "a: got device cpu", a=a_().requires_grad_(), b=b_())


def test_what_is_legal_gets_as_far_as_the_device(matmul):
    """Rows further apart than they are long, one row, one column: nothing is wrong but the device."""
    padded = a_(16, 40)[:, :32]
    for a, b in ((padded, b_()), (a_(1), b_()), (a_(), b_(n=1)), (a_(1, 8), b_(8, 1)), (a_()[::2], b_())):
        refuse(matmul, ValueError, "a: got device cpu", a=a, b=b)
    out = torch.empty(16, 40, dtype=torch.bfloat16)[:, 3:27]
    refuse(matmul, ValueError, "a: got device cpu", a=a_(), b=b_(), out=out)


# --- recipes that take several majors -------------------------------------------------------------------------------


def test_all_majors_get_as_far_as_the_device(majors_matmul):
    k_major, m_major = a_(16, 32), a_(32, 16).T
    for a in (k_major, m_major, m_major[:, ::2], a_(32, 40).T[8:24], a_(1, 16).T):
        for b in (b_(a.shape[1]), torch.randn(a.shape[1], 24).to(torch.bfloat16)):
            if a.shape[1] > 1 or b.stride(1) == 1:
                refuse(majors_matmul, ValueError, "a: got device cpu", a=a, b=b)
    a, b = a_(77, 16).T, torch.randn(77, 24).to(torch.bfloat16)
    refuse(majors_matmul, ValueError, "a: got device cpu", a=a, b=b)  # K = 77: nothing is contiguous along it


def test_part_of_a_16_byte_piece_along_any_major(majors_matmul):
    refuse(majors_matmul, ValueError, "a: got K = 12", "multiple of 8", "16-byte", a=a_(16, 12), b=b_(12))
    refuse(majors_matmul, ValueError, "a: got M = 12", "multiple of 8", "16-byte", a=a_(32, 12).T, b=b_())
    b = torch.randn(32, 12).to(torch.bfloat16)
    refuse(majors_matmul, ValueError, "b: got N = 12", "multiple of 8", "16-byte", a=a_(), b=b)


def test_lines_that_begin_between_pieces(majors_matmul):
    refuse(majors_matmul, ValueError, "a: got M = 16", "columns 34 bytes", "16 bytes", a=a_(32, 17)[:, :16].T, b=b_())
    b = torch.randn(32, 25).to(torch.bfloat16)[:, :24]
    refuse(majors_matmul, ValueError, "b: got N = 24", "rows 50 bytes", "16 bytes", a=a_(), b=b)
    b = torch.randn(24, 33).to(torch.bfloat16)[:, :32].T
    refuse(majors_matmul, ValueError, "b: got K = 32", "columns 66 bytes", "16 bytes", a=a_(), b=b)


def test_no_stride_of_one(majors_matmul):
    refuse(majors_matmul, ValueError, "a: got strides (64, 2)", "along K or M", a=a_(16, 64)[:, ::2], b=b_())
    refuse(majors_matmul, ValueError, "b: got strides (2, 64)", "along K or N", a=a_(), b=b_(64)[::2])


def test_out_must_not_overlap_operands_of_any_major(majors_matmul):
    a, b = a_(32, 32).T, torch.randn(32, 32).to(torch.bfloat16)
    refuse(majors_matmul, ValueError, "out: got memory that overlaps b", a=a, b=b, out=b)
    refuse(majors_matmul, ValueError, "out: got memory that overlaps a", a=a, b=b, out=a.T)
    wide = torch.randn(32, 64).to(torch.bfloat16)  # columns of one wider matrix share no byte
    refuse(majors_matmul, ValueError, "a: got device cpu", a=wide[:, :32].T, b=b, out=wide[:, 32:])
