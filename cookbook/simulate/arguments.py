"""The arguments of a traced function: extents and strides of tensors, numbers; and sizes for those that are symbols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cookbook.simulate.values import UNKNOWN, leaves

__all__ = ["SMALL", "Argument", "Symbol", "Value", "chosen", "symbols", "value_of"]

SMALL = 256  # what a symbol stands for: the smallest multiple of its divisor that is not below
Value = Any  # a number, UNKNOWN, or (extents, strides) of a tensor


@dataclass(frozen=True)
class Symbol:
    """An integer that is known when the kernel is launched. The same one in several places is the same number."""

    identity: int
    divisor: int = 1
    name: str = ""


@dataclass(frozen=True)
class Argument:
    """A parameter of the traced function. A number has a value; a tensor has extents and strides; others have none."""

    name: str
    value: Any = None
    shape: Any = None
    stride: Any = None
    numbers: tuple[int, ...] = ()  # in a tensor that the kernel reads, the last mode fastest


def symbols(arguments: tuple[Argument, ...]) -> dict[Symbol, str]:
    """The symbols of arguments, each with a name: its own, or where it stands first, as `a.shape[0]`."""
    found: dict[Symbol, str] = {}
    for one in arguments:
        if isinstance(one.value, Symbol):
            found.setdefault(one.value, one.value.name or one.name)
        for number, leaf in enumerate(leaves(one.shape)):
            if isinstance(leaf, Symbol):
                found.setdefault(leaf, leaf.name or f"{one.name}.shape[{number}]")
    return found


def chosen(arguments: tuple[Argument, ...], sizes: Mapping[str, int] | None = None) -> dict[str, int]:
    """A number for each symbol, by its name: as asked for, or the smallest multiple of its divisor from `SMALL` on.

    Raises:
        ValueError: a size is asked for that is no multiple, or of a symbol that there is not.
    """
    known, asked = symbols(arguments), dict(sizes or {})
    found = {}
    for symbol, name in known.items():
        found[name] = asked.pop(name, -(-SMALL // symbol.divisor) * symbol.divisor)
        if found[name] <= 0 or found[name] % symbol.divisor:
            raise ValueError(f"sizes: got {name}={found[name]}; needed a positive multiple of {symbol.divisor}")
    if asked:
        names = ", ".join(known.values()) or "none, for all sizes are known"
        raise ValueError(f"sizes: got {next(iter(asked))}; needed one of {names}")
    return found


def value_of(argument: Argument, numbers: Mapping[Any, int]) -> Value:
    """An argument with its symbols as numbers."""
    if argument.shape is None:
        value = numbers.get(argument.value, argument.value)
        return value if isinstance(value, int) else UNKNOWN
    extents = [numbers.get(leaf, leaf) for leaf in leaves(argument.shape)]
    strides = [None if isinstance(leaf, Symbol) and leaf not in numbers else leaf for leaf in leaves(argument.stride)]
    strides = [numbers.get(leaf, leaf) for leaf in strides]
    if None in strides:
        strides = _compact(extents, strides)
    return extents, strides


def _compact(extents: list[int], strides: list[Any]) -> list[int]:
    """Strides without room between lines.

    Behind the contiguous mode come the others, from the last to the first if it is the last, else from the first.
    """
    first = strides.index(1) if 1 in strides else 0
    others = [mode for mode in range(len(extents)) if mode != first]
    found, step = list(strides), 1
    for mode in [first, *(reversed(others) if first == len(extents) - 1 else others)]:
        found[mode] = step if found[mode] is None else found[mode]
        step *= extents[mode]
    return found
