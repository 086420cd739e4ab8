"""Calls of a `matmul`, drawn on the CPU: legal ones of many kinds, and what makes one of them illegal."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cookbook.recipe import majors
from cookbook.recipe.catalog import Recipe

CALLS = 240
# What a call is drawn from. Extents, and gaps between lines, are counted in elements.
CHOICES: dict[str, tuple[Any, ...]] = {
    "m": (1, 2, 3, 40),
    "n": (1, 5, 8, 12, 24),
    "k": (32, 64),
    "gap_a": (0, 8, 16),
    "gap_b": (0, 8, 16),
    "out": (True, True, False),
    "out_gap": (0, 1, 2, 4, 8),
    "out_start": (0, 0, 1, 2, 4, 8),
    "one_scale": (True, False),  # of scale factors of rows
}


@dataclass
class Call:
    """A legal call of `matmul`."""

    a: Any  # (M, K)
    b: Any  # (K, N), or of groups of rows (GROUPS, K, N)
    out: Any  # (M, N), or of groups along K (GROUPS, M, N); or None
    scales: tuple[Any, ...]  # what `matmul` takes behind b: scale factors, ends of groups, a second weight
    mnk: tuple[int, int, int]  # in elements
    majors: str
    pointers: dict[str, Any] = field(default_factory=dict)  # tensors by the names of the launch's pointers, without p
    numbers: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of the launch, by name; None: not known
    batch: tuple[int, ...] = ()  # of C, before its M

    def __post_init__(self) -> None:
        """A and B, and their lines."""
        b = self.b[0] if self.b.ndim == 3 else self.b
        self.pointers = {"A": self.a, "B": self.b} | self.pointers
        self.numbers = {"strides": (line(self.a), line(b), None)} | self.numbers  # C's: see `_of_output`

    def __str__(self) -> str:
        m, n, k = self.mnk
        dtype = str(self.a.dtype).removeprefix("torch.")
        out = "no out" if self.out is None else f"out with strides {self.out.stride()}"
        lines = f"strides {self.a.stride()} and {self.b.stride()}"
        return f"{m}x{n}x{k} {self.majors} {dtype}, {lines}, {out}"


def calls(recipe: Recipe, draw: random.Random) -> Iterator[Call]:
    """Calls of many kinds: of each one, another that differs in one thing, and the first again."""
    choices = CHOICES | {"majors": recipe.majors, "dtype": recipe.dtypes}
    for _ in range(CALLS // 3):
        one = {name: draw.choice(values) for name, values in choices.items()}
        name = draw.choice(list(choices))
        for kind in (one, one | {name: draw.choice(choices[name])}, one):
            yield recipe.product.drawn_call(recipe, kind)


def matrix(rows: int, columns: int, dtype: Any, by_columns: bool, gap: int) -> Any:
    """A matrix whose lines lie `gap` elements apart, at a multiple of 16 bytes."""
    import torch

    if by_columns:
        return matrix(columns, rows, dtype, False, gap).T
    memory = torch.zeros(rows * (columns + gap) + 8, dtype=dtype)
    return memory[-memory.data_ptr() % 16 // memory.element_size() :].as_strided((rows, columns), (columns + gap, 1))


def out_of(m: int, n: int, dtype: Any, kind: dict[str, Any]) -> Any:
    import torch

    if not kind["out"]:
        return None
    step, start = n + kind["out_gap"], kind["out_start"]
    memory = torch.zeros(m * step + start + 8, dtype=dtype)
    return memory.as_strided((m, n), (step, 1), -memory.data_ptr() % 16 // memory.element_size() + start)


def line(x: Any) -> int | None:
    """Elements from line to line of an operand; None of one that has a single line."""
    return next((stride for extent, stride in zip(x.shape, x.stride(), strict=True) if extent > 1 and stride > 1), None)


def legal(recipe: Recipe) -> Call:
    kind = {name: values[-1] for name, values in CHOICES.items()} | {"m": 8, "n": 16, "dtype": recipe.dtypes[0]}
    given = majors.DEFAULT if majors.DEFAULT in recipe.majors else recipe.majors[0]
    return recipe.product.drawn_call(recipe, kind | {"majors": given, "gap_a": 0, "out": False})


# --- what must be refused ----------------------------------------------------------------------------------------


def shifted(call: Call) -> None:
    rows, columns = call.a.shape
    memory = call.a.new_zeros(rows * columns + 32) if call.a.element_size() > 1 else _bytes(call.a)
    start = -memory.data_ptr() % 16 // memory.element_size() + 1
    call.a = memory[start:].as_strided((rows, columns), (columns, 1))


def _bytes(x: Any) -> Any:
    import torch

    return torch.zeros(x.numel() + 64, dtype=torch.uint8).view(x.dtype)


def shorter(call: Call) -> None:
    call.b = call.b[..., : call.b.shape[-2] // 2, :]


def odd_rows(call: Call) -> None:
    rows, columns = 3, call.a.shape[1]
    memory = call.a.new_zeros(rows * (columns + 1)) if call.a.element_size() > 1 else _bytes(call.a.new_empty(3, 256))
    call.a = memory.as_strided((rows, columns), (columns + 1, 1))


def wide(call: Call) -> None:
    import torch

    call.out = torch.zeros(call.mnk[0], call.mnk[1] + 1, dtype=of_c(call))


def overlaps(call: Call) -> None:
    m, n, _ = call.mnk
    call.out = call.b.mT.view(of_c(call)).as_strided((m, n), (n, 1))


def of_c(call: Call) -> Any:
    """A dtype that C can have."""
    import torch

    return torch.int32 if call.a.dtype == torch.int8 else torch.bfloat16


# Of a legal call: what makes it one that cannot be served.
ILLEGAL: dict[str, Callable[[Call], None]] = {
    "a at an odd address": shifted,
    "rows of a that are not 16 bytes apart": odd_rows,
    "b of another K": shorter,
    "an out of another shape": wide,
    "an out that overlaps b": overlaps,
}


def other(place: int, change: Callable[[Any], Any]) -> Callable[[Call], None]:
    """A call with another one of its further tensors."""

    def changed(call: Call) -> None:
        further = list(call.scales)
        further[place] = change(further[place])
        call.scales = tuple(further)

    return changed
