"""Tensors in words: `"bf16[256,128]"` is what a kernel is traced with; no memory is behind it.

    bf16[256,128]            row-major: the last mode is contiguous
    bf16[256,128] column     the first mode is contiguous
    bf16[256,128] (136,1)    strides, in elements
    bf16[m,64k,1]            m is known when the kernel is launched, and so is 64k, a multiple of 64
    i32[2,3] = 1 2 3 4 5 6   numbers that the kernel finds there and does not write, the last mode fastest
    stream                   a stream

Modes of one name are one number in all arguments of a case. Text without brackets is handed on as it is.
"""

from __future__ import annotations

import re
from math import prod
from typing import Any

__all__ = ["DTYPES", "WORDED", "Symbols", "argument"]

DTYPES = {
    "bf16": "BFloat16",
    "f16": "Float16",
    "fp16": "Float16",
    "f32": "Float32",
    "fp32": "Float32",
    "f64": "Float64",
    "tf32": "TFloat32",
    "e4m3": "Float8E4M3FN",
    "e5m2": "Float8E5M2",
    "e2m1": "Float4E2M1FN",
    "e8m0": "Float8E8M0FNU",
    **{f"i{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
    "bool": "Boolean",
}
WORDED = re.compile(
    r"(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]\s*(?P<how>row|column|\([^)]*\))?(?:\s*=(?P<numbers>(?:\s*-?\d+)+))?"
)
_MODE = re.compile(r"(?P<number>\d*)(?P<name>[A-Za-z_]\w*)?")
ALIGNED = 16  # bytes that a tensor begins at a multiple of: what TMA and vectors of 128 bits need
Symbols = dict[str, Any]  # by name


def argument(value: Any, known: Symbols) -> Any:
    """Return what a kernel is traced with: a fake tensor, a fake stream, or the value itself.

    Args:
        value: words, or anything else, which is handed on.
        known: the symbols of a case, which gets to know those that it did not.

    Raises:
        ValueError: words that say no tensor.
    """
    from cutlass.cute import runtime

    if not isinstance(value, str) or ("[" not in value and value != "stream"):
        return value
    if value == "stream":
        return runtime.make_fake_stream()
    found = WORDED.fullmatch(value.strip())
    if found is None or found["dtype"] not in DTYPES:
        needed = f'one such as "bf16[256,128]" or "f32[m,8n] column", of {", ".join(DTYPES)}'
        raise ValueError(f"argument: got {value!r}; needed {needed}")
    shape = tuple(_mode(text, value, known) for text in found["shape"].split(","))
    strides = _strides(shape, found["how"] or "row", value, known)
    import cutlass

    made = runtime.make_fake_tensor(getattr(cutlass, DTYPES[found["dtype"]]), shape, strides, assumed_align=ALIGNED)
    if found["numbers"]:
        made.numbers = _numbers(found, shape, value)  # type: ignore[attr-defined]
    return made


def _numbers(found: re.Match[str], shape: tuple[Any, ...], whole: str) -> tuple[int, ...]:
    """The integers in a tensor, one for each element."""
    given = tuple(map(int, found["numbers"].split()))
    known = all(isinstance(extent, int) for extent in shape) and found["dtype"][0] in "iu"
    if not known or len(given) != prod(shape):
        raise ValueError(f"argument: got {whole!r}; needed integers, as many as a tensor of known extents has")
    return given


def _mode(text: str, whole: str, known: Symbols) -> Any:
    import cutlass.cute as cute

    found = _MODE.fullmatch(text.strip())
    if found is None or not (found["number"] or found["name"]) or found["number"] == "0":
        raise ValueError(f"argument: got {whole!r}, with {text.strip()!r}; needed extents such as 256, m or 64k")
    if not found["name"]:
        return int(found["number"])
    divisor, name = int(found["number"] or 1), found["name"]
    if name not in known:
        known[name] = cute.sym_int32(divisor, name)
    if known[name].divisibility != divisor:
        raise ValueError(f"argument: got {whole!r}; needed {known[name].divisibility}{name}, as in another argument")
    return known[name]


def _strides(shape: tuple[Any, ...], how: str, whole: str, known: Symbols) -> tuple[Any, ...]:
    import cutlass.cute as cute

    if how.startswith("("):
        found = tuple(_mode(text, whole, known) for text in how.strip("()").split(",") if text.strip())
        if len(found) != len(shape):
            raise ValueError(f"argument: got {whole!r}; needed {len(shape)} strides")
        return found
    order = range(len(shape)) if how == "column" else reversed(range(len(shape)))
    strides: list[Any] = [0] * len(shape)
    step: Any = 1
    for mode in order:
        strides[mode] = step
        size = shape[mode]
        if isinstance(step, int) and isinstance(size, int):
            step *= size
        else:
            by = [x if isinstance(x, int) else x.divisibility for x in (step, size)]
            step = cute.sym_int64(by[0] * by[1])
    return tuple(strides)
