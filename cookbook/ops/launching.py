"""A product from Python to the launch: the first call of a kind is checked and chosen for, further ones are looked up.

What is kept of a kind is the compiled kernel with its arguments: a further call asks for the operands' kind, makes C
and launches. That is less than a recipe's own `matmul` does, which also looks at `out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from cookbook.ops import choice, evidence, tuner
from cookbook.recipe import catalog, operator
from cookbook.recipe.entry import LARGEST, MAX_PLANS, kind, require

__all__ = ["PLANS", "chosen", "product", "rows_of", "tuned", "tuning"]


class Plan(NamedTuple):
    """Everything that calls of one kind need."""

    launch: Callable[..., None] | None  # of addresses, `arguments` and a stream; None: `otherwise` is called
    arguments: tuple
    device: int
    shape: tuple[int, ...]  # of C
    pitch: int  # elements from row to row of what the kernel writes, if that is not C itself; else 0
    otherwise: Callable[..., torch.Tensor] | None = None  # of a, b and bias
    fused: bool = False  # the kernel adds the bias


PLANS: dict[tuple, Plan] = {}


def product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None, transposed: bool = False
) -> torch.Tensor:
    """a (..., M, K) times b (K, N), or (N, K) if `transposed`, plus a bias (N) if there is one. Autograd, autocast and
    the like have been seen to."""
    key = (
        a.shape, a.stride(), a.dtype, a.device, a.data_ptr() % 16,
        b.shape, b.stride(), b.dtype, b.device, b.data_ptr() % 16, transposed,
        None if bias is None else (bias.shape, bias.stride(), bias.dtype, bias.device),
    )  # fmt: skip
    launch, arguments, device, shape, pitch, otherwise, fused = PLANS.get(key) or plan(key, a, b, bias, transposed)
    if launch is None:
        return otherwise(a, b, bias)  # pyright: ignore[reportOptionalCall]  # one of the two there is
    if torch.cuda.current_device() != device:
        with torch.cuda.device(device):
            return product(a, b, bias, transposed)
    if fused:
        arguments = ((bias.data_ptr(), 0), *arguments)  # pyright: ignore[reportOptionalMemberAccess]
    out = a.new_empty(shape)
    stream = torch._C._cuda_getCurrentRawStream(device)
    if not pitch:
        launch(a.data_ptr(), b.data_ptr(), out.data_ptr(), *arguments, stream)
        return out if fused else _plus(out, bias)
    rows = out.view(-1, shape[-1])
    made = a.new_empty(rows.shape[0], pitch)  # TMA finishes the last 16 bytes of a row
    launch(a.data_ptr(), b.data_ptr(), made.data_ptr(), *arguments, stream)
    rows.copy_(made[:, : shape[-1]])
    return out if fused else _plus(out, bias)


def plan(key: tuple, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, transposed: bool) -> Plan:
    """Check a call, choose for it, compile, and keep what all of its kind need."""
    bias = None if bias is None else bias.detach()
    made = _planned(a.detach(), b.detach().T if transposed else b.detach(), bias, transposed)
    if len(PLANS) >= MAX_PLANS:
        PLANS.clear()
    if (
        a.is_meta or not torch.cuda.is_current_stream_capturing()
    ):  # a captured call may lack what a capture forbids to ask for
        PLANS[key] = made
    return made


def _planned(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, transposed: bool) -> Plan:
    rows = rows_of(a)
    operator.check_matrices(rows, b)
    if bias is not None:
        operator.check_bias(b, bias)
    (m, k), n = rows.shape, b.shape[1]
    if a.is_meta:
        return Plan(None, (), -1, (), 0, lambda a, b, bias: a.new_empty(*a.shape[:-1], n))
    gpu = gpu_of(a)
    for name, index, extent in (("a", "M", m), ("b", "N", n), ("a", "K", k)):
        require(extent <= LARGEST, name, f"{index} = {extent}", f"at most {LARGEST}: kernels count in 32 bits")
    shape, device = (*a.shape[:-1], n), a.get_device()
    if 0 in (m, n, k):
        return Plan(None, (), device, shape, 0, lambda a, b, bias: _plus(a.new_zeros(shape), bias))
    adds = bias is not None and bias.is_contiguous()
    best = chosen(rows, b, bias if adds else None, gpu)
    evidence.warn_once(best.recipe, gpu.capability[0])
    module, fused = catalog.load(best.recipe), best.epilogue != ""
    if best.copies or rows.data_ptr() != a.data_ptr():

        def copied(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            operands = operator.fitted(module.GEMM, rows_of(a.detach()), b.detach().T if transposed else b.detach())
            if fused:
                return module.matmul(*operands, epilogue=best.epilogue, bias=bias.detach()).view(shape)  # pyright: ignore[reportOptionalMemberAccess]
            told = {"variant": best.kernel} if best.kernel else {}
            return _plus(module.matmul(*operands, **told).view(shape), bias)

        return Plan(None, (), device, shape, 0, copied)
    gemm, given = module.GEMM, (rows, b)
    if fused:
        gemm = module.host_side(best.epilogue)
        given = rows, b, *(bias if each.name == "bias" else None for each in gemm.operands[2:])
    variant = best.kernel
    shared = (*map(kind, given), None, torch.is_grad_enabled(), variant)  # the plan serves the recipe's `matmul` too
    call, launch, arguments = gemm.plan(shared, given, None, variant)
    return Plan(launch, arguments, call.device, shape, 0 if call.direct else call.strides[-1], fused=fused)


def chosen(rows: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, gpu: choice.Gpu) -> choice.Option:
    """The kernel for a product: the fastest of those that were timed for its kind, else the one predicted to be."""
    options = choice.ranked(
        choice.laid(rows), choice.laid(b), str(rows.dtype).removeprefix("torch."), gpu, bias is not None
    )
    kind = tuner.kind_of(rows, b, gpu, bias is not None)
    best = tuner.found(kind, options)
    if best is None and tuner.active() and not torch.cuda.is_current_stream_capturing():
        best = tuner.tune(kind, options, rows, b, bias)
    return best or options[0]


@contextmanager
def tuning() -> Iterator[None]:
    """Inside, the first call of each kind of product is tuned, in all threads; what was planned before is tuned too."""
    with tuner.inside():
        PLANS.clear()
        yield


def tuned(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> choice.Option:
    """Tune a product, and drop what was planned of its kind."""
    rows = rows_of(a).detach()
    operator.check_matrices(rows, b)
    if bias is not None:
        operator.check_bias(b, bias)
    gpu = gpu_of(a)
    require(min(*rows.shape, *b.shape) > 0, "a", f"shape {tuple(a.shape)}", "something to multiply")
    capturing = torch.cuda.is_current_stream_capturing()
    require(not capturing, "a", "a graph that is being captured", "a call outside of it: kernels are timed")
    with tuning():
        return chosen(rows, b.detach(), None if bias is None else bias.detach(), gpu)


def _plus(made: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return what a kernel made, plus a bias where it has added none."""
    return made if bias is None else made.add_(bias.detach())


def rows_of(a: torch.Tensor) -> torch.Tensor:
    """a (..., M, K) as a matrix of rows: a view if it can be one."""
    operator.check_dense("a", a)
    require(a.ndim > 1, "a", f"{a.ndim} dimension(s)", "2 or more: (..., M, K)")
    return a if a.ndim == 2 else a.flatten(0, -2)


def gpu_of(x: torch.Tensor, name: str = "a") -> choice.Gpu:
    """The GPU that a tensor is on; name: of the argument that it is."""
    require(x.is_cuda, name, f"device {x.device}", "a CUDA device")
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    return choice.Gpu(torch.cuda.get_device_capability(x.device), sms, choice.memory_at(x.get_device()))
