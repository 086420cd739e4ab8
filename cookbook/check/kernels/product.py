"""Check what a kernel computes, where that is said: `"c[m,n] = a[m,k] * b[n,k]"`, by its parameters' names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from cookbook.check.pipeline.programs import all_launched, placed
from cookbook.check.product.launch import Launch, launch
from cookbook.check.product.memory import Operand
from cookbook.check.product.sums import Sums, verify
from cookbook.simulate import types
from cookbook.simulate.trace import Trace
from cookbook.simulate.values import CannotFollow, Fault, View

__all__ = ["faults"]

_TENSOR = r"(?P<{0}>[\w.\[\]]+?)\[(?P<{0}_modes>\w+(?:\s*,\s*\w+)*)\]"
_PRODUCT = re.compile(r"\s*".join(["", _TENSOR.format("C"), "=", _TENSOR.format("A"), r"\*", _TENSOR.format("B"), ""]))


def faults(trace: Trace, given: Sequence[Any], computes: str) -> list[str]:
    """Return what is wrong with what a function computes, in words.

    Args:
        trace: what was traced.
        given: a value for each argument of the host function, as of `simulate.arguments.value_of`.
        computes: what it is to compute.

    Raises:
        ValueError: `computes` is no product of two tensors that are arguments.
        CannotFollow: not all of the kernel is followed.
    """
    arguments = placed(trace, given)
    operands, k = _operands(trace, arguments, computes)
    launches, _ = all_launched(trace, given)
    if len(launches) != 1:
        raise CannotFollow(f"a product of {len(launches)} launches")
    going = Launch(operands, Sums(k), int(np.prod(launches[0].grid)))
    try:
        launch(trace, arguments, going)
        return verify(going.sums, going.stored, {})
    except Fault as fault:
        return [str(fault)]


def _operands(trace: Trace, arguments: Sequence[Any], computes: str) -> tuple[dict[str, Operand], int]:
    """A, B and C by name, and K."""
    found = _PRODUCT.fullmatch(computes)
    if found is None:
        raise ValueError(f'computes: got {computes!r}; needed words such as "c[m,n] = a[m,k] * b[n,k]"')
    modes = {name: [mode.strip() for mode in found[f"{name}_modes"].split(",")] for name in "ABC"}
    common = set(modes["A"]) & set(modes["B"]) & set(modes["C"])  # those of a batch
    pairs = {"A": "AC", "B": "BC", "K": "AB"}
    letters = {key: [m for m in modes[a] if m in modes[b] and m not in common] for key, (a, b) in pairs.items()}
    if any(len(each) != 1 for each in letters.values()):
        raise ValueError(f"computes: got {computes!r}; needed one row of A, one of B, and one k that both have")
    rows, columns, along = (letters[key][0] for key in "ABK")
    places = {one.name: number for number, one in enumerate(trace.arguments)}
    operands = {}
    for name, shape in (("A", (rows, along)), ("B", (columns, along)), ("C", (rows, columns))):
        number = places.get(found[name])
        view = None if number is None else arguments[number]
        if not isinstance(view, View) or len(view.layout.modes) != len(modes[name]):
            tensors = ", ".join(one.name for one in trace.arguments if one.shape is not None)
            raise ValueError(f"computes: got {found[name]}[{','.join(modes[name])}]; needed a tensor of {tensors}")
        by_mode = dict(zip(modes[name], view.layout.modes, strict=True))
        if any(by_mode[mode].size != 1 for mode in by_mode.keys() - set(shape)):
            raise ValueError(f"computes: got a batch of {[by_mode[m].size for m in common]}; needed one of 1")
        if any(isinstance(by_mode[mode].shape, tuple) for mode in shape):
            raise CannotFollow("a product of tensors with nested modes")
        extents, strides = ([getattr(by_mode[mode], what) for mode in shape] for what in ("shape", "stride"))
        text = trace.host.argument_types[number]  # type: ignore[index]
        base = int(view.pointer.address)
        operands[name] = Operand(name, (*extents,), (*strides,), view.bits, types.element(text), base)
    return operands, operands["A"].shape[1]
