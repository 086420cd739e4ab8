"""Scaled operands: narrow floats, and one scale factor for every 16, 32 or 128 of them along K, or for a whole row.

A row of a block-scaled matrix is cut into blocks; what an element stands for is its own value times its block's scale
factor. Where a row has one factor, the row is the block. Rows of B may share their factors. The products of two
elements and two scale factors are exact in float32, so a reference in float64 of what the operands stand for is a
reference for the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cookbook.model.fp8_sums import share_lost
from cookbook.model.scale_factors import ATOM_BYTES
from cookbook.model.small_floats import decode, encode, encode_ue8m0, pack
from cookbook.recipe.formats import FORMATS, Format

__all__ = [
    "Scaled",
    "as_matmul",
    "atoms_as_words",
    "block_operands",
    "in_blocks",
    "integers",
    "lost",
    "on_device",
    "peer_error",
    "quantized",
    "rounded",
    "rounded_in_blocks",
    "tensors",
]


@dataclass(frozen=True)
class Scaled:
    """A or B, (rows, K), as patterns: `codes` (rows, K) uint8, one element each; `scales` (rows / together, K / block),
    uint8 of what the MMA multiplies by, else float32."""

    format: str
    codes: np.ndarray
    scales: np.ndarray
    together: int = 1  # rows that share their scale factors

    @property
    def stored(self) -> np.ndarray:
        """(rows, bytes) uint8: the elements as memory has them, 4-bit ones in pairs, the first in the low bits."""
        bits = FORMATS[self.format].bits
        return pack(self.codes, bits) if bits < 8 else self.codes

    def values(self) -> np.ndarray:
        """(rows, K) float32: what the operand stands for, exactly."""
        form = FORMATS[self.format]
        factors = self.scales if form.scale == "float32" else decode(self.scales, form.scale)
        rows, k = self.codes.shape
        along = np.repeat(factors, form.block_of(k), axis=1)[:, :k]
        return decode(self.codes, form.element) * np.repeat(along, self.together, axis=0)[:rows]


def quantized(values: np.ndarray, name: str, together: int = 1) -> Scaled:
    """The operand nearest to float32 `values` (rows, K): each block's largest element becomes the largest there is.

    A scale factor of mxfp8 is a power of two, the smallest that makes everything fit; one of nvfp4 is rounded. That of
    a row is such a power of two as well, in float32: then bfloat16 holds what an element stands for exactly.

    Args:
        values: (rows, K); K may end within a block where the kernel multiplies by the factors, not the MMA.
        name: of a format.
        together: rows that share their scale factors.

    Raises:
        ValueError: K is no multiple of the block.
    """
    form = FORMATS[name]
    values = np.asarray(values, np.float32)
    if values.ndim != 2 or values.shape[1] % form.whole:
        raise ValueError(f"values: got shape {values.shape}; needed (rows, K), K a multiple of {form.whole}")
    (rows, k), block = values.shape, form.block_of(values.shape[1])
    padded = np.pad(values, ((0, -rows % together), (0, -k % block)))
    blocks = padded.reshape(-1, together, padded.shape[1] // block, block)
    largest = np.nanmax(decode(np.arange(1 << form.bits, dtype=np.uint8), form.element))
    wanted = np.abs(blocks).max(axis=(1, 3)) / largest
    scales = _factors(wanted, form)
    divisor = scales if form.scale == "float32" else decode(scales, form.scale)
    codes = encode(blocks / np.where(divisor == 0, 1, divisor)[:, None, :, None], form.element)
    return Scaled(name, codes.reshape(padded.shape)[:rows, :k].copy(), scales, together)


def integers(rows: int, k: int, name: str, seed: int = 0, together: int = 1) -> Scaled:
    """A random operand of small integers and halves: sums of products are exact in float32, in any order.

    The scale factors are 1/2, 1 and 2.
    """
    form, random = FORMATS[name], np.random.default_rng(seed)
    codes = encode(random.choice(np.array([-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3], np.float32), (rows, k)), form.element)
    blocks = -(-rows // together), -(-k // form.block_of(k))
    factors = random.choice(np.array([0.5, 1, 2], np.float32), blocks)
    return Scaled(name, codes, _factors(factors, form), together)


def _factors(wanted: np.ndarray, form: Format) -> np.ndarray:
    """The scale factors of a format that come next to `wanted`, as `Scaled` has them."""
    if form.scale in ("ue8m0", "float32"):
        powers = encode_ue8m0(wanted)
        return powers if form.scale == "ue8m0" else decode(powers, "ue8m0")
    return encode(wanted, form.scale)


def tensors(operand: Scaled, device: Any = "cpu") -> tuple[Any, Any]:
    """(elements, scales) as torch tensors of a recipe's types: (rows, bytes), (rows / together, K / block)."""
    import torch

    form = FORMATS[operand.format]
    pairs = ((operand.stored, form.torch_element), (operand.scales, form.torch_scale))
    elements, scales = (torch.from_numpy(x).to(device).view(getattr(torch, dtype)) for x, dtype in pairs)
    return elements, scales


def rounded(x: Any, form: Format, together: int = 1) -> Any:
    """A torch tensor (rows, K) as what it stands for once it is quantized `on_device`: of the same dtype, which must
    hold it exactly."""
    elements, scales = on_device(x, form, together)
    rows, k = x.shape
    along = scales.repeat_interleave(form.block_of(k), dim=1)[:, :k]
    return (elements.float() * along.repeat_interleave(together, dim=0)[:rows]).to(x.dtype)


def rounded_in_blocks(x: Any, form: Format) -> Any:
    """As `rounded`, of scale factors that the tensor core multiplies by."""
    import torch

    return torch.from_numpy(quantized(x.float().cpu().numpy(), form.name).values()).to(x.device, x.dtype)


def as_matmul(matmul: Callable[..., Any], form: Format) -> Callable[..., Any]:
    """A recipe's `matmul(a, b, a_scale, b_scale, out=)` as one of (a, b, out): torch tensors, quantized on the way.

    Quantizing what is `rounded` already loses nothing.
    """

    def call(a: Any, b: Any, out: Any = None) -> Any:
        (elements, a_scale), (bt, b_scale) = on_device(a, form), on_device(b.T, form, form.b_rows)
        a_scale = a_scale.T.contiguous().T if form.block else a_scale  # as torch takes them: rows are adjacent
        return matmul(elements, bt.T, a_scale, b_scale.T, out=out)

    return call


def in_blocks(matmul: Callable[..., Any], form: Format) -> Callable[..., Any]:
    """As `as_matmul`, of scale factors that the tensor core multiplies by."""
    return lambda a, b, out=None: matmul(*block_operands(a, b, form), out=out)


def block_operands(a: Any, b: Any, form: Format) -> tuple[Any, Any, Any, Any]:
    """Return what a recipe's `matmul` takes for torch's (M, K) and (K, N): elements of both, then scale factors of
    both."""
    pairs = [tensors(quantized(x.float().cpu().numpy(), form.name), a.device) for x in (a, b.T)]
    (elements, a_scale), (bt, b_scale) = pairs
    return elements, bt.T, a_scale, b_scale


def on_device(x: Any, form: Format, together: int = 1) -> tuple[Any, Any]:
    """`quantized` of 8-bit elements with float32 scale factors, in torch, on the device of `x` (rows, K)."""
    import torch

    (rows, k), block = x.shape, form.block_of(x.shape[1])
    padded = torch.nn.functional.pad(x.float(), (0, -k % block, 0, -rows % together))
    blocks = padded.view(-1, together, padded.shape[1] // block, block)
    wanted = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-30) / torch.finfo(torch.float8_e4m3fn).max
    scales = torch.exp2(torch.ceil(torch.log2(wanted)))
    elements = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn).view(padded.shape)
    return elements[:rows, :k].contiguous(), scales


def peer_error(a: Any, b: Any, exact: Any, dtype: Any, form: Format) -> float:
    """The relative error of torch's own GEMM of 8-bit operands scaled like that, by rows with fast accumulation.

    It takes N in multiples of 16, and whole blocks; zeros are added and left out again.
    """
    import torch

    by, high = (128, 16) if form.block else (16, 1)
    pads = (-a.shape[1] % (form.block or 1), -a.shape[0] % high), (-a.shape[1] % (form.block or 1), -b.shape[1] % by)
    left, right = (
        torch.nn.functional.pad(x, (0, along, 0, down)) for x, (along, down) in zip((a, b.T), pads, strict=True)
    )
    (elements, a_scale), (bt, b_scale) = on_device(left, form), on_device(right, form, form.b_rows)
    call = torch_blockwise if form.block else torch_rowwise
    found = call(elements, bt.T, a_scale, b_scale.T, torch.bfloat16)
    difference = found[: a.shape[0], : b.shape[1]].to(dtype).to(exact.dtype) - exact
    return (difference.norm() / exact.norm()).item()


def lost(a: Any, b: Any, exact: Any, form: Format) -> float:
    """Return what the tensor cores may lose of the product `exact` of `a` (M, K) and `b` (K, N), relative to its norm.

    It goes by the size of the products, not of their sum: a sum may cancel, and what its terms lost stays.
    """
    squares = a.to(exact.dtype).square().sum(dim=0) @ b.to(exact.dtype).square().sum(dim=1)
    size = squares.sqrt().item() / (exact.norm().item() or 1.0)
    return share_lost(form.block_of(a.shape[1])) * size


def torch_rowwise(a: Any, b: Any, scale_a: Any, scale_b: Any, dtype: Any) -> Any:
    """torch's own product of 8-bit operands of which a row of A, a column of B has a scale factor."""
    import torch

    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=dtype, use_fast_accum=True)


def torch_blockwise(a: Any, b: Any, scale_a: Any, scale_b: Any, dtype: Any) -> Any:
    """torch's own product of 8-bit operands with scale factors of blocks: (M, K / 128), (K / 128, N / 128).

    It takes `scale_a` with stride 1 along M, and `scale_b` with stride 1 along K, a multiple of 4 rows high.
    """
    import torch
    from torch.nn.functional import ScalingType, scaled_mm

    columns = torch.nn.functional.pad(scale_b.T, (0, -scale_b.shape[0] % 4)).contiguous()
    of_a, of_b = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    return scaled_mm(a, b, scale_a.T.contiguous().T, of_a, columns.T, of_b, output_dtype=dtype)


def atoms_as_words(atoms: np.ndarray, rows: int) -> np.ndarray:
    """Atoms of scale factors (1-D uint8) as the matrix that TMA is given: (blocks of 128 rows, words of 8 bytes).

    Raises:
        ValueError: not whole atoms for that many rows.
    """
    high = -(-rows // 128)
    if atoms.dtype != np.uint8 or atoms.ndim != 1 or not atoms.size or atoms.size % (high * ATOM_BYTES):
        raise ValueError(f"atoms: got {atoms.size} of {atoms.dtype}; needed bytes, whole atoms for {rows} rows")
    return np.ascontiguousarray(atoms).view(np.uint64).reshape(high, -1)
