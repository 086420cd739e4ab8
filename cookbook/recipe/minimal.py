"""A host side of few lines: check, compile once, launch. `cookbook copy --minimal` writes it in place of entry.py's."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.benchmark import Timer

from cookbook.recipe.entry import COMPILING, DTYPES


class Call(NamedTuple):
    """A product as `prepare` is told of it."""

    device: int  # of CUDA's
    arch: str  # "sm_90"
    sms: int
    mnk: tuple[int, int, int]
    strides: tuple[int, int, int]  # from row to row of A, of B transposed, and of C; in elements
    vec: int  # elements of C that one store can take: 8, 4, 2 or 1
    variant: str
    majors: tuple[str, str] = ("k", "k")


class Gemm:
    """A kernel as a function of K-major operands, compiled once for each kind of call."""

    def __init__(self, compile_for, prepare, gpus: tuple, needs: str, variants=(), *, padded=False, **_):
        self.compile_for, self.prepare, self.gpus, self.needs = compile_for, prepare, gpus, needs
        self.padded = padded  # it stores by TMA: rows of C begin at multiples of 16 bytes
        self.plans: dict[tuple, Callable[..., None]] = {}  # compiled kernels

    def matmul(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = ""):
        """`a @ b`: see the function `matmul` of this file."""
        (m, k), n, rows = a.shape, b.shape[1], (a, b.T)
        gpu = torch.cuda.get_device_capability(a.device) if a.is_cuda and b.device == a.device else ()
        fits = gpu in self.gpus or (self.gpus[-1] is ... and gpu >= self.gpus[0])
        lines = all(x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in rows)
        if not (fits and lines and a.dtype == b.dtype and a.dtype in DTYPES and b.shape[0] == k):
            given = ", ".join(f"{tuple(x.shape)} {x.dtype} on {x.device} strides {x.stride()}" for x in (a, b))
            needed = f"(M, K) and (K, N), K-major, rows 16 bytes aligned, {' or '.join(map(str, DTYPES))}"
            raise ValueError(f"a, b: got {given}, GPU {gpu or 'none'}; needed {needed}, a GPU for {self.needs}")
        out = a.new_empty(m, n) if out is None else out
        together = n | out.stride(0) | out.data_ptr() // 2
        vec = next(vec for vec in (8, 4, 2, 1) if together % vec == 0)
        if out.shape != (m, n) or out.dtype != a.dtype or out.stride(1) != 1 or (self.padded and vec < 8):
            needed = f"{(m, n)} {a.dtype}, rows of adjacent elements{', 16 bytes aligned' if self.padded else ''}"
            raise ValueError(f"out: got {tuple(out.shape)} {out.dtype} strides {out.stride()}; needed {needed}")
        sms = torch.cuda.get_device_properties(a.device).multi_processor_count
        arch, strides = "sm_{}{}".format(*gpu), (a.stride(0), b.stride(1), out.stride(0))
        kind, arguments = self.prepare(Call(a.device.index, arch, sms, (m, n, k), strides, vec, variant))
        key = (arch, DTYPES[a.dtype], *kind)
        with torch.cuda.device(a.device), COMPILING:
            if key not in self.plans:
                self.plans[key] = self.compile_for("", *key[1:], options="--enable-tvm-ffi")
            stream = torch.cuda.current_stream().cuda_stream
            self.plans[key](a.data_ptr(), b.data_ptr(), out.data_ptr(), *arguments, stream)
        return out


def try_out(matmul: Callable[..., torch.Tensor], dtype: torch.dtype, timed: tuple[int, int, int]) -> None:
    """Compare `matmul` with torch's, time both on the last shape, and print a line; with no GPU say so."""
    if not torch.cuda.is_available():
        print(f"no GPU here: nothing was run; cookbook check {__file__} needs none")
        return
    for m, n, k in ((1, 8, 8), (65, 136, 72), (127, 1032, 200), (200, 336, 4096), timed):
        a, b = (torch.randn(rows, k, device="cuda", dtype=dtype) for rows in (m, n))
        wanted = a.double() @ b.double().T
        error = ((matmul(a, b.T).double() - wanted).abs().max() / wanted.abs().max()).item()
        if not error < 2**-7:  # C is rounded to 8 bits or more
            raise AssertionError(f"matmul: got a relative error of {error:.1e} at {(m, n, k)}; needed less than 2**-7")
    timers = (Timer("f(a, b.T)", globals={"f": f, "a": a, "b": b}) for f in (matmul, torch.matmul))
    ours, torchs = (1e6 * timer.blocked_autorange().median for timer in timers)
    print(f"right on ragged shapes; {' x '.join(map(str, timed))}: {ours:.1f} us, torch.matmul {torchs:.1f} us")
