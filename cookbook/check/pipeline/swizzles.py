"""Compare the swizzles of a kernel's tensors in shared memory with the recipe's `smem_layouts`.

The outer layout of a tensor and its swizzle go to CuTe by two arguments: one can be forgotten, and the kernel compiles.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cookbook.check.evaluated import evaluated
from cookbook.check.pipeline.recorder import named_swizzle
from cookbook.recipe.contract import TensorCores
from cookbook.simulate.trace import Trace
from cookbook.simulate.types import kind
from cookbook.simulate.values import CannotFollow, leaves
from cookbook.swizzle import Swizzle

__all__ = ["forgotten_swizzles"]

Modes = tuple[tuple[int, int], ...]


def forgotten_swizzles(module: Any, trace: Trace, dtype: Any, config: Any) -> list[str]:
    """In words, each tensor of a traced kernel whose outer layout is one of `smem_layouts` and the swizzle is not."""
    if not isinstance(module, TensorCores):
        return []
    wanted: dict[Modes, dict[Swizzle, str]] = defaultdict(dict)
    for name, layout in evaluated(module, dtype, config).smem.items():
        wanted[_modes(layout.outer.shape, layout.outer.stride)][_plain(layout.swizzle)] = name
    found = []
    for line, modes, swizzle in _tensors(trace):
        needed = wanted.get(modes, {swizzle: ""})
        if swizzle not in needed:
            (right, name), *_ = needed.items()
            text = f"swizzle: the tensor of line {line} has the layout `{name}` of smem_layouts and "
            found.append(f"{text}{named_swizzle(swizzle)}; needed {named_swizzle(right)}")
    return found


def _tensors(trace: Trace) -> list[tuple[int, Modes, Swizzle]]:
    """Line, layout and swizzle of each view of shared memory that is made of a pointer and a layout."""
    found = []
    for op in trace.find("cute.make_view"):
        try:
            seen = kind(op.result_types[0])
        except CannotFollow:
            continue  # of elements that are no numbers
        if seen.space == "smem" and seen.layout is not None:
            found.append((op.line, _modes(seen.layout.shape, seen.layout.stride), _plain(seen.swizzle)))
    return found


def _modes(shape: Any, stride: Any) -> Modes:
    """Extents and strides, without nesting and without extents of 1: two layouts with the same are the same."""
    return tuple((s, d) for s, d in zip(leaves(shape), leaves(stride), strict=True) if s != 1)


def _plain(swizzle: Swizzle) -> Swizzle:
    return swizzle if swizzle.bits else Swizzle(0, 4, 3)
