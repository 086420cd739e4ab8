"""A host side of few lines: check, compile once, launch. `cookbook copy --minimal` writes it in place of entry.py's."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cutlass
import torch

DTYPES = {torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}
COMPILING = threading.RLock()  # CuTe compiles with state of the whole process: one thread of this file at a time


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


@dataclass
class Gemm:
    """A kernel as a function of K-major operands, with a kernel compiled for each kind of call."""

    compile_for: Callable[..., Callable[..., None]]
    prepare: Callable[[Call], tuple[tuple, tuple]]  # what `compile_for` takes behind the dtype, the launch behind pC
    gpus: tuple  # compute capabilities; ((8, 0), ...) is that one or a later one
    needs: str
    variants: Iterable[str] = ("",)
    major_of: Any = None
    whole: bool = False
    padded: bool = False  # it stores by TMA: rows of C begin at multiples of 16 bytes
    family: type | None = None
    kernels: dict[tuple, Callable[..., None]] = field(default_factory=dict)

    def matmul(self, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, variant: str = ""):
        """`a @ b`: see the function `matmul` of this file."""
        (m, k), n, rows = a.shape, b.shape[1], (a, b.T)
        gpu = torch.cuda.get_device_capability(a.device)
        fits = gpu in self.gpus or (self.gpus[-1] is ... and gpu >= self.gpus[0])
        lines = all(x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0 for x in rows)
        if not (fits and lines and a.dtype == b.dtype and a.dtype in DTYPES and b.shape[0] == k):
            given = ", ".join(f"{tuple(x.shape)} {x.dtype} strides {x.stride()}" for x in (a, b))
            needed = f"(M, K) and (K, N), K-major, rows 16 bytes aligned, {' or '.join(map(str, DTYPES))}"
            raise ValueError(f"a, b: got {given}, GPU {gpu}; needed {needed}, a GPU for {self.needs}")
        out = a.new_empty(m, n) if out is None else out
        together = n | out.stride(0) | out.data_ptr() // 2
        vec = next(vec for vec in (8, 4, 2, 1) if together % vec == 0)
        if out.shape != (m, n) or out.dtype != a.dtype or out.stride(1) != 1 or (self.padded and vec < 8):
            needed = f"{(m, n)} {a.dtype}, rows of adjacent elements{', 16 bytes aligned' if self.padded else ''}"
            raise ValueError(f"out: got {tuple(out.shape)} {out.dtype} strides {out.stride()}; needed {needed}")
        sms = torch.cuda.get_device_properties(a.device).multi_processor_count
        arch, strides = "sm_{}{}".format(*gpu), (a.stride(0), b.stride(1), out.stride(0))
        which, arguments = self.prepare(Call(a.device.index, arch, sms, (m, n, k), strides, vec, variant))
        with torch.cuda.device(a.device), COMPILING:
            key = arch, DTYPES[a.dtype], *which
            if key not in self.kernels:
                self.kernels[key] = self.compile_for("", *key[1:], options="--enable-tvm-ffi")
            stream = torch.cuda.current_stream().cuda_stream
            self.kernels[key](a.data_ptr(), b.data_ptr(), out.data_ptr(), *arguments, stream)
        return out
