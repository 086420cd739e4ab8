"""Scaled operands: narrow floats, and one scale factor for every 16 or 32 of them along K, or for a whole row.

A row of a block-scaled matrix is cut into blocks; what an element stands for is its own value times its block's scale
factor. Where a row has one factor, the row is the block. The products of two elements and two scale factors are exact
in float32, so a reference in float64 of what the operands stand for is a reference for the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.model.scale_factors import ATOM_BYTES
from cookbook.model.small_floats import decode, encode, encode_ue8m0, pack
from cookbook.recipe.formats import FORMATS, Format

__all__ = [
    "Scaled",
    "as_matmul",
    "atoms_as_words",
    "block_operands",
    "integers",
    "peer_error",
    "quantized",
    "rounded",
    "row_quantized",
    "tensors",
]


@dataclass(frozen=True)
class Scaled:
    """A or B, (rows, K), as patterns: `codes` (rows, K) uint8, one element each; `scales` (rows, K / block) uint8, or
    (rows, 1) float32 where a row has one."""

    format: str
    codes: np.ndarray
    scales: np.ndarray

    @property
    def stored(self) -> np.ndarray:
        """(rows, bytes) uint8: the elements as memory has them, 4-bit ones in pairs, the first in the low bits."""
        bits = FORMATS[self.format].bits
        return pack(self.codes, bits) if bits < 8 else self.codes

    def values(self) -> np.ndarray:
        """(rows, K) float32: what the operand stands for, exactly."""
        form = FORMATS[self.format]
        factors = self.scales if form.scale == "float32" else decode(self.scales, form.scale)
        return decode(self.codes, form.element) * np.repeat(factors, form.block_of(self.codes.shape[1]), axis=1)


def quantized(values: np.ndarray, name: str) -> Scaled:
    """The operand nearest to float32 `values` (rows, K): each block's largest element becomes the largest there is.

    A scale factor of mxfp8 is a power of two, the smallest that makes everything fit; one of nvfp4 is rounded. That of
    a row is such a power of two as well, in float32: then bfloat16 holds what an element stands for exactly.

    Raises:
        ValueError: K is no multiple of the block.
    """
    form = FORMATS[name]
    values = np.asarray(values, np.float32)
    multiple = form.block or 1
    if values.ndim != 2 or values.shape[1] % multiple:
        raise ValueError(f"values: got shape {values.shape}; needed (rows, K), K a multiple of {multiple}")
    blocks = values.reshape(len(values), -1, form.block_of(values.shape[1]))
    largest = np.nanmax(decode(np.arange(1 << form.bits, dtype=np.uint8), form.element))
    wanted = np.abs(blocks).max(axis=2) / largest
    scales = _factors(wanted, form)
    divisor = scales if form.scale == "float32" else decode(scales, form.scale)
    codes = encode(blocks / np.where(divisor == 0, 1, divisor)[..., None], form.element)
    return Scaled(name, codes.reshape(values.shape), scales)


def integers(rows: int, k: int, name: str, seed: int = 0) -> Scaled:
    """A random operand of small integers and halves: sums of products are exact in float32, in any order.

    The scale factors are 1/2, 1 and 2.
    """
    form, random = FORMATS[name], np.random.default_rng(seed)
    codes = encode(random.choice(np.array([-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3], np.float32), (rows, k)), form.element)
    factors = random.choice(np.array([0.5, 1, 2], np.float32), (rows, k // form.block_of(k)))
    return Scaled(name, codes, _factors(factors, form))


def _factors(wanted: np.ndarray, form: Format) -> np.ndarray:
    """The scale factors of a format that come next to `wanted`, as `Scaled` has them."""
    if form.scale in ("ue8m0", "float32"):
        powers = encode_ue8m0(wanted)
        return powers if form.scale == "ue8m0" else decode(powers, "ue8m0")
    return encode(wanted, form.scale)


def tensors(operand: Scaled, device: Any = "cpu") -> tuple[Any, Any]:
    """(elements, scales) as torch tensors of the types that a recipe takes: (rows, bytes) and (rows, K / block)."""
    import torch

    form = FORMATS[operand.format]
    pairs = ((operand.stored, form.torch_element), (operand.scales, form.torch_scale))
    elements, scales = (torch.from_numpy(x).to(device).view(getattr(torch, dtype)) for x, dtype in pairs)
    return elements, scales


def rounded(x: Any, form: Format) -> Any:
    """A torch tensor (rows, K) as what its quantized form stands for: of the same dtype, which must hold it exactly."""
    import torch

    if not form.block:
        elements, scales = row_quantized(x)
        return (elements.float() * scales).to(x.dtype)
    values = quantized(x.float().cpu().numpy(), form.name).values()
    return torch.from_numpy(values).to(x.device, x.dtype)


def as_matmul(matmul: Callable[..., Any], form: Format) -> Callable[..., Any]:
    """A recipe's `matmul(a, b, a_scale, b_scale, out=)` as one of (a, b, out): torch tensors, quantized on the way.

    Quantizing what is `rounded` already loses nothing. Of integers it is one already.
    """
    if not form.scale:
        return matmul

    def by_rows(a: Any, b: Any, out: Any = None) -> Any:
        (elements, a_scale), (bt, b_scale) = row_quantized(a), row_quantized(b.T)
        return matmul(elements, bt.T, a_scale, b_scale.T, out=out)

    def call(a: Any, b: Any, out: Any = None) -> Any:
        return matmul(*block_operands(a, b, form), out=out)

    return call if form.block else by_rows


def block_operands(a: Any, b: Any, form: Format) -> tuple[Any, Any, Any, Any]:
    """What a recipe's `matmul` takes for torch's (M, K) and (K, N): elements of both, then scale factors of both."""
    pairs = [tensors(quantized(x.float().cpu().numpy(), form.name), a.device) for x in (a, b.T)]
    (elements, a_scale), (bt, b_scale) = pairs
    return elements, bt.T, a_scale, b_scale


def row_quantized(x: Any) -> tuple[Any, Any]:
    """`quantized(x, "fp8")` on the device of a torch tensor (rows, K): elements (rows, K), scale factors (rows, 1)."""
    import torch

    wanted = x.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / torch.finfo(torch.float8_e4m3fn).max
    scales = torch.exp2(torch.ceil(torch.log2(wanted)))
    return (x.float() / scales).to(torch.float8_e4m3fn), scales


def peer_error(a: Any, b: Any, exact: Any, dtype: Any) -> float:
    """The relative error of torch's own GEMM of row-scaled 8-bit operands, with fast accumulation.

    It takes N in multiples of 16; columns of zeros are added and left out again.
    """
    import torch

    (elements, a_scale), (bt, b_scale) = row_quantized(a), row_quantized(b.T)
    more = -len(bt) % 16
    bt = torch.nn.functional.pad(bt.view(torch.uint8), (0, 0, 0, more)).view(bt.dtype)
    b_scale = torch.nn.functional.pad(b_scale, (0, 0, 0, more), value=1.0)
    found = torch._scaled_mm(elements, bt.T, a_scale, b_scale.T, out_dtype=torch.bfloat16, use_fast_accum=True)
    difference = found[:, : b.shape[1]].to(dtype).to(exact.dtype) - exact
    return (difference.norm() / exact.norm()).item()


def atoms_as_words(atoms: np.ndarray, rows: int) -> np.ndarray:
    """Atoms of scale factors (1-D uint8) as the matrix that TMA is given: (blocks of 128 rows, words of 8 bytes).

    Raises:
        ValueError: not whole atoms for that many rows.
    """
    high = -(-rows // 128)
    if atoms.dtype != np.uint8 or atoms.ndim != 1 or not atoms.size or atoms.size % (high * ATOM_BYTES):
        raise ValueError(f"atoms: got {atoms.size} of {atoms.dtype}; needed bytes, whole atoms for {rows} rows")
    return np.ascontiguousarray(atoms).view(np.uint64).reshape(high, -1)
