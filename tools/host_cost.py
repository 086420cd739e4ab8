"""Measure the host cost of a call: our checks and plans, or the tensor signature of CuTe's compiler under TVM-FFI.

    python tools/host_cost.py            # compile times and error messages; with a Hopper GPU also times and a capture

Both launch the kernel of hopper/tma_wgmma_gemm. `ours` is its `matmul`: checks in Python, once for each kind of call,
then addresses and integers. `signature` is the same host function compiled for tensors of symbolic sizes: TVM-FFI
checks each call's tensors and reads sizes, strides and the current stream from them. It needs `out`, and one kernel for
each width of stores, so a `matmul` over it would have to choose. docs/contract.md says what was found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from cookbook.measure import contest, peers
from cookbook.recipe import catalog

NAME, SHAPE = "hopper/tma_wgmma_gemm", (256, 256, 256)
RECIPE = catalog.load(NAME)
BF16 = torch.bfloat16


@cute.jit
def of_tensors(
    mA: cute.Tensor,  # (M, K)
    mB: cute.Tensor,  # (N, K)
    mC: cute.Tensor,  # (M, N)
    stream: cuda.CUstream,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """The recipe's host function, which takes its numbers from tensors."""
    (m, k), n = mA.shape, mB.shape[0]  # pyright: ignore[reportGeneralTypeIssues, reportIndexIssue]  # an IntTuple
    strides = mA.stride[0], mB.stride[0], mC.stride[0]  # pyright: ignore[reportIndexIssue]  # likewise
    RECIPE.gemm(mA.iterator, mB.iterator, mC.iterator, (m, n, k), strides, stream, RECIPE.kernel, config, vec)


@cute.jit
def of_nothing(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
    """The same signature with no kernel, which a machine without a GPU can call: for its error messages."""


def signature(dtype: Any = cutlass.BFloat16, vec: int = 8, on: Any = cute.AddressSpace.gmem) -> tuple:
    """A (M, K), B (N, K), C (M, N): rows of adjacent elements, apart by multiples of 8, 8 and `vec` elements."""
    m, n, k = (cute.sym_int32(symbol=name) for name in "mnk")
    shapes, divisors = ((m, k), (n, k), (m, n)), (8, 8, vec)
    return tuple(
        make_fake_tensor(
            dtype, shape, (cute.sym_int64(divisibility=divisor), 1), memspace=on, assumed_align=2 * divisor
        )
        for shape, divisor in zip(shapes, divisors, strict=True)
    )


def compile_of_tensors(arch: str = "", dtype: Any = cutlass.BFloat16, vec: int = 8) -> Callable[..., None]:
    """`of_tensors` for `arch`, or for the GPU that is here; it launches on torch's current stream."""
    options = f"--gpu-arch {arch} --enable-tvm-ffi" if arch else "--enable-tvm-ffi"
    given = *signature(dtype, vec), make_fake_stream(use_tvm_ffi_env_stream=True), RECIPE.CONFIG, vec
    return cute.compile(of_tensors, *given, options=options)


def compile_times(rounds: int = 5) -> dict[str, float]:
    """Median seconds to compile for sm_90a, the two interleaved."""
    ours = partial(RECIPE.compile_for, "sm_90a", cutlass.BFloat16, options="--enable-tvm-ffi")
    taken: dict[str, list[float]] = {"ours": [], "signature": []}
    for _ in range(rounds + 1):  # the first one warms up
        for who, compiled in (("ours", ours), ("signature", partial(compile_of_tensors, "sm_90a"))):
            start = time.perf_counter()
            compiled()
            taken[who].append(time.perf_counter() - start)
    return {who: sorted(seconds[1:])[rounds // 2] for who, seconds in taken.items()}


def wrong_calls(device: str) -> dict[str, tuple]:
    """(a, b, out) of calls that are to be refused, a (M, K), b (K, N)."""
    kind = {"dtype": BF16, "device": device}
    a, bt, out = torch.zeros(64, 64, **kind), torch.zeros(128, 64, **kind), torch.zeros(64, 128, **kind)
    return {
        "a list": ([[1.0]], bt.T, out),
        "float32": (a.float(), bt.T, out),
        "3 dimensions": (a[None], bt.T, out),
        "another K": (a, torch.zeros(128, 72, **kind).T, out),
        "M-major a": (a.T, bt.T, out),
        "rows 132 bytes apart": (torch.zeros(64, 66, **kind)[:, :64], bt.T, out),
        "address not a multiple of 16": (torch.zeros(4097, **kind)[1:].view(64, 64), bt.T, out),
        "another N of out": (a, bt.T, torch.zeros(64, 136, **kind)),
        "out is a": (a, a.T, a),
        "rows of out that overlap": (a, bt.T, torch.zeros(8192, **kind).as_strided((64, 128), (8, 1))),
        "a negative view": (torch._neg_view(a), bt.T, out),
        "a gradient is wanted": (a.clone().requires_grad_(), bt.T, out),
        "no rows": (a[:0], bt.T, out[:0]),
        "on the CPU": tuple(x.cpu() for x in (a, bt.T, out)),
    }


def answer(call: Callable[[], Any]) -> str:
    """The first line of the error that a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "no error"


def main() -> None:
    on_hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    print("seconds to compile:", {who: round(seconds, 2) for who, seconds in compile_times().items()})
    on = cute.AddressSpace.gmem if on_hopper else cute.AddressSpace.generic  # of a GPU, or of the CPU
    checked = cute.compile(of_nothing, *signature(on=on), options="--enable-tvm-ffi")  # nothing but the checks
    for name, (a, b, out) in wrong_calls("cuda" if on_hopper else "cpu").items():
        print(f"{name}\n  ours       {answer(partial(RECIPE.matmul, a, b, out=out))}")
        print(f"  signature  {answer(partial(checked, a, getattr(b, 'T', b), out))}")
    if not on_hopper:
        print("no Hopper GPU: no times, no capture")
        return
    a, b, out = peers.input_sets(SHAPE, "bfloat16")[0]
    kernel, bt = compile_of_tensors(), b.T
    calls = {
        "ours": lambda: RECIPE.matmul(a, b, out=out),
        "signature": lambda: kernel(a, bt, out),
        "signature, b.T made": lambda: kernel(a, b.T, out),
        "torch.matmul": lambda: torch.matmul(a, b, out=out),
    }
    expected = torch.matmul(a, b).float()
    for who, call in calls.items():
        call()  # compiled, planned
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            call()
        out.fill_(float("nan"))
        graph.replay()
        error = ((out.float() - expected).norm() / expected.norm()).item()
        print(f"{who}: captured and replayed, relative difference to torch.matmul {error:.1e}")
    for who, us in contest.us_per_call(calls, torch.cuda.synchronize).items():
        print(f"{who}: {us:.2f} us of the host a call, out given")


if __name__ == "__main__":
    main()
