"""Measure the host cost of a call of the operator, step by step: by calls that do a part of it.

A step's cost is the difference of two such calls. The little host functions of this file have a recipe's arguments:
three addresses, sizes, strides, a stream. Their kernels do nothing, so what is left is what it takes to start one.
"""
# The annotations of `cute.jit` functions are read as types: no `from __future__ import annotations` here.

from collections.abc import Callable
from functools import partial
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.runtime import from_dlpack, make_fake_stream, make_fake_tensor

from cookbook import ops
from cookbook.ops import launching
from cookbook.recipe.cache import TVM_FFI
from cookbook.recipe.entry import compile_host

__all__ = ["FUNCTIONS", "STEPS", "compile_all", "costs", "ways"]

_POINTERS = ((cutlass.BFloat16, 16),) * 3
_BOX = (64, 64)  # rows and columns of what TMA copies: a row of 128 bytes


@cute.kernel
def idle(pA: cute.Pointer, pB: cute.Pointer, pC: cute.Pointer):
    """Begins and ends."""


@cute.kernel
def idle_described(tma_a: cute.CopyAtom, mA: cute.Tensor, tma_b: cute.CopyAtom, mB: cute.Tensor, pC: cute.Pointer):
    """Has two tensor maps among its parameters."""


@cute.jit
def numbers(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
):
    """Takes a launch's arguments from Python, and that is all. Needs no GPU."""


@cute.jit
def launched(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
):
    """Launches a kernel that does nothing."""
    idle(pA, pB, pC).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@cute.jit
def described(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    mnk: tuple[cutlass.Int32, cutlass.Int32, cutlass.Int32],
    strides: tuple[cutlass.Int64, cutlass.Int64, cutlass.Int64],
    stream: cuda.CUstream,
):
    """Encodes a tensor map of A (M, K) and of B (N, K) before it launches one."""
    (m, n, k), (lda, ldb, _) = mnk, strides
    mA = cute.make_tensor(pA, cute.make_layout((m, k), stride=(cute.assume(lda, divby=8), 1)))
    mB = cute.make_tensor(pB, cute.make_layout((n, k), stride=(cute.assume(ldb, divby=8), 1)))
    line = cute.make_layout(_BOX, stride=(_BOX[1], 1))
    rows = cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, line)
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_a, mA = cpasync.make_tiled_tma_atom(load, mA, rows, _BOX)
    tma_b, mB = cpasync.make_tiled_tma_atom(load, mB, rows, _BOX)
    idle_described(tma_a, mA, tma_b, mB, pC).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


@cute.jit
def of_tensors(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, stream: cuda.CUstream):
    """Launches a kernel that does nothing, by a signature of tensors: TVM-FFI checks them, and asks for the stream."""
    idle(mA.iterator, mB.iterator, mC.iterator).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


FUNCTIONS = {"numbers": numbers, "launched": launched, "described": described}


def compile_all(arch: str = "") -> dict[str, Callable[..., None]]:
    """The host functions, compiled for `arch` (which needs no GPU), or for the GPU that is here."""
    found = {name: compile_host(each, arch, _POINTERS, (), TVM_FFI) for name, each in FUNCTIONS.items()}
    sizes = [cute.sym_int32() for _ in range(3)]
    shapes = ((sizes[0], sizes[2]), (sizes[1], sizes[2]), (sizes[0], sizes[1]))
    row = partial(cute.sym_int64, divisibility=8)
    tensors = [
        make_fake_tensor(cutlass.BFloat16, shape, (row(), 1), memspace=cute.AddressSpace.gmem, assumed_align=16)
        for shape in shapes
    ]
    options = f"--gpu-arch {arch} {TVM_FFI}" if arch else TVM_FFI
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return found | {"of_tensors": cute.compile(of_tensors, *tensors, stream, options=options)}


def ways(
    a: torch.Tensor, b: torch.Tensor, compiled: dict[str, Callable[..., None]], synchronize: Callable[[], Any]
) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name. `ops.matmul(a, b)` (a (M, K), b (K, N) K-major) has a plan already."""
    key, plan = next((key, plan) for key, plan in reversed(launching.PLANS.items()))
    out, bt, (m, k), n = a.new_empty(plan.shape), b.T, a.shape, b.shape[1]
    sizes = (m, n, k), (k, k, n)
    given = a.data_ptr(), b.data_ptr(), out.data_ptr(), *sizes, torch._C._cuda_getCurrentRawStream(plan.device)
    of_nothing = plan._replace(launch=lambda *_: None)

    def without_launch() -> None:
        launching.PLANS[key] = of_nothing  # a dict's assignment: nothing next to the rest
        ops.matmul(a, b)
        launching.PLANS[key] = plan

    def addresses() -> tuple[int, ...]:
        stream = torch._C._cuda_getCurrentRawStream(plan.device)
        return a.data_ptr(), b.data_ptr(), out.data_ptr(), stream, torch.cuda.current_device()

    def seen_to_end() -> None:
        compiled["launched"](*given)
        synchronize()

    beneath = getattr(compiled["numbers"], "__tvm_ffi_object__", lambda: compiled["numbers"])()
    return {
        "ops.matmul": partial(ops.matmul, a, b),
        "ops.matmul, without its launch": without_launch,
        "C made": partial(a.new_empty, plan.shape),
        "addresses and stream": addresses,
        "arguments handed over": partial(compiled["numbers"], *given),
        "arguments handed over, beneath the DSL's wrapper": partial(beneath, *given),
        "an empty kernel": partial(compiled["launched"], *given),
        "an empty kernel with two tensor maps": partial(compiled["described"], *given),
        "an empty kernel, by a signature of tensors": partial(compiled["of_tensors"], a, bt, out),
        "an empty kernel, until the host sees its end": seen_to_end,
        "three from_dlpack": lambda: [from_dlpack(x, assumed_align=16).mark_layout_dynamic() for x in (a, bt, out)],
    }


STEPS: dict[str, tuple[str, tuple[str, ...]]] = {  # of a call: what is timed, less what else is in it
    "the plan looked up": ("ops.matmul, without its launch", ("C made", "addresses and stream")),
    "C made": ("C made", ()),
    "addresses and stream": ("addresses and stream", ()),
    "arguments handed over": ("arguments handed over", ()),
    "the driver's launch": ("an empty kernel", ("arguments handed over",)),
    "two tensor maps": ("an empty kernel with two tensor maps", ("an empty kernel",)),
    "the rest of this kernel's launch": (
        "ops.matmul",
        ("ops.matmul, without its launch", "an empty kernel with two tensor maps"),
    ),
}


def costs(us: dict[str, float]) -> dict[str, float]:
    """Microseconds of each step of a call, in order; together they are `us["ops.matmul"]`."""
    return {step: us[whole] - sum(us[part] for part in parts) for step, (whole, parts) in STEPS.items()}
