"""The formats of narrow operands by name, and what a GEMM of them can take. Imports nothing heavy: the catalog reads
it."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["FORMATS", "K_STEP", "Format", "align", "misfit", "needed", "of_module"]

K_STEP = 32  # a block of mxfp8; 16 bytes, which TMA asks of a row, of nvfp4


class Format(NamedTuple):
    """The format of narrow operands. Names of types are those of `cookbook.model.small_floats`, or torch's."""

    name: str
    kind: str  # of tcgen05.mma; "" of operands that wgmma or mma.sync multiplies
    element: str
    scale: str  # "" of integers: they have no scale factors
    block: int  # elements along K to a scale factor; 0: a row has one for all
    torch_element: str
    torch_scale: str
    sass: str  # the tensor core's instruction
    bits: int  # of an element
    b_rows: int = 1  # rows of B (N, K) that share a scale factor
    packed: bool = False  # B alone is narrow, and the recipe's `pack` lays it out; A and C are of one of `dtypes`
    n_step: int = 1  # what N and K are multiples of
    k_step: int = K_STEP
    whole: int = 1  # what K of one operand is a multiple of: whole blocks, of factors that the tensor core takes

    @property
    def by_mma(self) -> bool:
        """True if the tensor core multiplies by scale factors; else the kernel does, in float32."""
        return bool(self.kind)

    def block_of(self, k: int) -> int:
        """Elements to a scale factor where a row has `k` of them."""
        return self.block or k


_KNOWN = (
    Format("mxfp8", "mxf8f6f4", "e4m3", "ue8m0", 32, "float8_e4m3fn", "float8_e8m0fnu", "UTCQMMA", 8, whole=32),
    Format("nvfp4", "mxf4nvf4", "e2m1", "ue4m3", 16, "float4_e2m1fn_x2", "float8_e4m3fn", "UTCOMMA", 4, whole=16),
    Format("fp8", "", "e4m3", "float32", 0, "float8_e4m3fn", "float32", "QGMMA", 8),
    Format("fp8_blockwise", "", "e4m3", "float32", 128, "float8_e4m3fn", "float32", "QGMMA", 8, b_rows=128),
    Format("int8", "", "int8", "", 0, "int8", "", "IGMMA", 8),
    Format("int4", "", "int4", "", 128, "uint8", "", "HGMMA", 4, packed=True, n_step=64, k_step=128),
)
FORMATS = {form.name: form for form in _KNOWN}


def of_module(module: Any) -> Format | None:
    """Return what the operands of a recipe are made of, if they are narrow: it names ELEMENT, and of scaled ones SCALE,
    BLOCK.

    Raises:
        ValueError: it names what no format is made of.
    """
    if not hasattr(module, "ELEMENT"):
        return None
    elements = {"Float8E4M3FN": "e4m3", "Float4E2M1FN": "e2m1", "Int8": "int8", "Int4": "int4"}
    names = elements, {"Float8E8M0FNU": "ue8m0", "Float8E4M3FN": "ue4m3", "Float32": "float32", "": ""}
    scale, block = getattr(module, "SCALE", None), getattr(module, "BLOCK", 0)
    types = (module.ELEMENT.__name__, scale.__name__ if scale else "")
    said = (*(known.get(x) for known, x in zip(names, types, strict=True)), block)
    for form in FORMATS.values():
        if said == (form.element, form.scale, form.block):
            return form
    raise ValueError(f"ELEMENT, SCALE, BLOCK: got {(*types, block)}; needed those of one of {list(FORMATS)}")


def misfit(shape: tuple[int, ...], form: Format) -> str:
    """Return which extent of (M, N, K) a GEMM of narrow operands cannot have; or ""."""
    wrong = [
        f"{x} = {got}" for x, got, step in zip("NK", shape[1:], (form.n_step, form.k_step), strict=True) if got % step
    ]
    return " and ".join(wrong)


def needed(form: Format) -> str:
    """Return what N and K have to be."""
    of_n = f"N a multiple of {form.n_step}, " if form.n_step > 1 else ""
    return f"{of_n}K a multiple of {form.k_step} (whole blocks, 16-byte rows)"


def align(shape: tuple[int, ...], form: Format) -> tuple[int, ...]:
    """The shape with N and K rounded up to what a GEMM of narrow operands takes."""
    m, n, k = shape
    return m, -(-n // form.n_step) * form.n_step, -(-k // form.k_step) * form.k_step
