"""A module whose `matmul` launches stand-ins: tensors of the CPU pass for CUDA's, and no kernel is compiled."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cookbook.check import compiled
from cookbook.check.pipeline import Run
from cookbook.recipe.catalog import Recipe, capabilities

__all__ = ["SMS", "STREAM", "Launched", "NotLaunched", "Watched", "watched"]

SMS, STREAM = 132, 7
KEPT = ("FLAGS", "SPARE")  # what the host side keeps of memory that CTAs share, by device and stream
POISON, POISONED = 0x42, 1 << 14  # what is in memory that nothing has written, in bytes: and in how many at most


class NotLaunched(Exception):
    """`matmul` has no host side that can be looked at."""


@dataclass
class Launched:
    """One launch: what was to be compiled, and what the kernel was called with."""

    pointers: tuple[tuple[Any, int], ...]  # (element type, alignment in bytes) that the kernel is compiled for
    constants: dict[str, Any]  # compile-time arguments of `gemm`, by name
    arguments: tuple[Any, ...]


@dataclass
class Watched:
    """A module whose `matmul` launches stand-ins."""

    module: Any
    launches: list[Launched] = field(default_factory=list)
    made: list[Any] = field(default_factory=list)  # tensors that were made during a call
    compiles: Any = None  # its own `compile_host`
    ever: list[Any] = field(default_factory=list)  # weak references to all that were
    gpu: Any = field(default_factory=lambda: SimpleNamespace(multi_processor_count=SMS))
    fill: Callable[[int], None] = lambda address: None  # what stands for the kernel: it is told where C is

    def compile_host(self, host: Any, arch: str, pointers: tuple, constants: tuple, options: str = "") -> Any:
        """Stands for `entry.compile_host`: a kernel that notes what it is called with."""
        parameters = inspect.signature(host).parameters.items()
        names = [name for name, each in parameters if getattr(each.annotation, "__name__", "") == "Constexpr"]
        place = [name for name, _ in parameters].index("pC")

        def kernel(*arguments: Any) -> None:
            self.launches.append(Launched(pointers, dict(zip(names, constants, strict=True)), arguments))
            self.fill(arguments[place])

        return kernel

    def run(self, recipe: Recipe, config: Any) -> Run:
        """Trace a kernel that was launched."""
        dtype = compiled.cutlass_dtype(recipe.dtypes[0])
        found = Run(self.module, recipe.targets[0], dtype, config, recipe.product)
        with patch.dict(self.module.compile_for.__globals__, compile_host=self.compiles):
            found.traced(config)
        return found

    def note(self, tensor: Any, empty: bool) -> Any:
        """Keep a tensor that was made; what nothing has written is poisoned, where it is not much."""
        import torch

        if empty and tensor.nbytes <= POISONED:
            tensor.view(-1).view(torch.uint8).fill_(POISON)
        self.made.append(tensor)
        self.ever.append(weakref.ref(tensor))
        return tensor

    def at(self, address: int) -> Any:
        """The tensor that was made there, and is still there; None if there is none."""
        there = (tensor for each in reversed(self.ever) if (tensor := each()) is not None)
        return next((tensor for tensor in there if tensor.data_ptr() == address), None)


@contextmanager
def watched(module: Any, runs_on: str) -> Iterator[Watched]:
    """`module`, its plans put aside, on a machine that seems to have the GPU that `runs_on` names first.

    Raises:
        NotLaunched: its host side is not that of `cookbook.recipe.entry`.
    """
    import torch

    scope = getattr(module.compile_for, "__globals__", {})
    sides = [side for side in _leaves(vars(module).values()) if hasattr(side, "plans") and hasattr(side, "kernels")]
    if "compile_host" not in scope or not sides:
        raise NotLaunched("matmul: got a host side of another kind; needed `Gemm` and `compile_host`, as recipes have")
    capability, seen = capabilities(runs_on)[0], Watched(module, compiles=scope["compile_host"])
    spaces = [each.__globals__ for _, each in inspect.getmembers(type(sides[0]), inspect.isfunction)]
    kept = {name: space[name] for space in spaces for name in KEPT if name in space}
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.Tensor, "is_cuda", True),
            (torch.cuda, "get_device_capability", lambda device=None: capability),
            (torch.cuda, "get_device_properties", lambda device=None: seen.gpu),
            (torch.cuda, "current_device", lambda: -1),  # what get_device() says of a CPU tensor
            (torch.cuda, "device", _NoDevice),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM),
            *((side, name, {}) for side in sides for name in ("plans", "kernels")),
            *((owner, name, _noting(getattr(owner, name), seen, "empty" in name)) for owner, name in _makers(torch)),
        ):
            stack.enter_context(patch.object(owner, name, value, create=True))
        for each in kept.values():
            stack.enter_context(patch.dict(each, clear=True))
        stack.enter_context(patch.dict(scope, compile_host=seen.compile_host))
        yield seen


def _makers(torch: Any) -> list[tuple[Any, str]]:
    return [(torch.Tensor, "new_empty"), (torch, "empty"), (torch, "zeros"), (torch, "empty_like")]


def _noting(make: Callable[..., Any], seen: Watched, empty: bool) -> Callable[..., Any]:
    return lambda *args, **named: seen.note(make(*args, **named), empty)


class _NoDevice:
    """`torch.cuda.device`."""

    def __init__(self, device: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: Any) -> None: ...


def _leaves(values: Any) -> Iterator[Any]:
    """The values, and those that dicts, lists and tuples among them hold."""
    for value in values:
        if isinstance(value, dict):
            yield from _leaves(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value
