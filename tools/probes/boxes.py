"""TMA boxes on the GPU, every byte of shared memory against `cookbook.model.tma`.

Loads into shared memory full of ones, so that a byte written beside the box shows; stores into a tensor full of ones,
likewise. Boxes begin inside the tensor, before it (loads), past its end, and wholly outside.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cookbook import model
from cookbook.check import compiled
from cookbook.check.findings import Finding
from cookbook.model.tma import COORDINATE_BYTES

__all__ = ["DTYPES", "Box", "boxes", "compile_all", "expected", "figures", "run"]

DTYPES = ("uint8", "uint16", "float32")
SMEM_BYTES = 4096
ROWS = 24
TENSOR_ROWS, TENSOR_ROW_BYTES = 40, 144
# (swizzle mode, bytes of a row of the box): under a swizzle a row is as long as the mode says
MODES = ((0, 16), (0, 128), (32, 32), (64, 64), (128, 128))


class Box(NamedTuple):
    """One box to move: what is compiled, and the (row, column) of its first element in the tensor."""

    dtype: str
    major: str
    mode: int
    row_bytes: int
    base: int
    store: bool
    origin: tuple[int, int]

    @property
    def extents(self) -> tuple[int, int]:
        return ROWS, self.row_bytes // np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        verb = "store from" if self.store else "load to"
        shape = "x".join(map(str, self.extents))
        return f"{self.dtype} {self.major}-major {shape}, mode {self.mode}, {verb} byte {self.base}, at {self.origin}"


def boxes(dtype: str) -> list[Box]:
    """Every box of a dtype, those of one compiled kernel together."""
    return list(_boxes(dtype, TENSOR_ROW_BYTES // np.dtype(dtype).itemsize))


def _boxes(dtype: str, columns: int) -> Iterator[Box]:
    step = COORDINATE_BYTES * columns // TENSOR_ROW_BYTES  # elements
    inside = ((0, 0), (3, step), (TENSOR_ROWS - 7, columns - step), (TENSOR_ROWS, 0))
    outside = ((-3, 0), (-3, -step))
    for store in (False, True):
        for major in ("K", "MN"):
            for mode, row_bytes in MODES:
                for base in (0, 128) if mode else (0,):  # the swizzle is of the address, wherever the box begins
                    for origin in inside if store else (*inside, *outside):
                        yield Box(dtype, major, mode, row_bytes, base, store, origin)


def tensor_of(box: Box) -> np.ndarray:
    """(40, columns): counting numbers, none of which is 0 or has all bits set."""
    itemsize = np.dtype(box.dtype).itemsize
    numbers = np.arange(TENSOR_ROWS * TENSOR_ROW_BYTES // itemsize)
    return (numbers % (251 if itemsize == 1 else 1 << 15) + 1).astype(box.dtype).reshape(TENSOR_ROWS, -1)


def expected(box: Box) -> np.ndarray:
    """The bytes by the model: of shared memory after a load, of the tensor after a store."""
    smem, tensor = model.SharedMemory(SMEM_BYTES), tensor_of(box)
    if not box.store:
        model.tma_load(smem, box.base, tensor, box.origin, box.extents, box.mode)
        return smem.view(np.uint8).copy()
    smem.view(np.uint32)[:] = _words()
    tensor = np.full(tensor.nbytes, 0xFF, np.uint8).view(box.dtype).reshape(tensor.shape)
    model.tma_store(smem, box.base, tensor, box.origin, box.extents, box.mode)
    return tensor.reshape(-1).view(np.uint8)


def _words() -> np.ndarray:
    """Shared memory before a store: 16-bit numbers that count."""
    return np.arange(SMEM_BYTES // 2, dtype=np.uint16).view(np.uint32)


def moved(box: Box) -> np.ndarray:
    """The same bytes as the GPU leaves them."""
    import torch

    from tools.probes import tma_kernel

    tensor = torch.from_numpy(tensor_of(box).reshape(-1).view(np.uint8).copy()).cuda()
    words = torch.from_numpy(_words().view(np.uint8).copy()).cuda()
    if box.store:
        tensor.fill_(0xFF)
    shape = _shape(box)
    stream = torch.cuda.current_stream().cuda_stream
    pointers = (tensor.data_ptr(), words.data_ptr())
    tma_kernel.compiled(shape)(*tma_kernel.arguments(shape, *pointers, box.origin, stream))
    torch.cuda.synchronize()
    return (tensor if box.store else words).cpu().numpy()


def _shape(box: Box) -> Any:
    from tools.probes import tma_kernel

    columns = TENSOR_ROW_BYTES // np.dtype(box.dtype).itemsize
    tensor = (TENSOR_ROWS, columns)
    return tma_kernel.BoxShape(
        box.dtype, box.major, box.mode, box.row_bytes, ROWS, tensor, box.base, SMEM_BYTES, box.store
    )


class Compared(NamedTuple):
    box: Box
    bytes: int  # that were compared
    differ: int


def run(dtype: str) -> list[Compared]:
    """Move every box of a dtype on the GPU and compare."""
    found = []
    for box in boxes(dtype):
        want, got = expected(box), moved(box)
        found.append(Compared(box, len(want), int((want != got).sum())))
    return found


def figures(compared: Sequence[Compared]) -> dict[str, Any]:
    """Return what a record keeps."""
    wrong = [c for c in compared if c.differ]
    return {
        "unit": "boxes",
        "probes": len(compared),
        "mismatches": len(wrong),
        "bytes": sum(c.bytes for c in compared),
        "modes": sorted({c.box.mode for c in compared}),
        "differ": [f"{c.box}: {c.differ} of {c.bytes} bytes" for c in wrong][:40],
    }


def compile_all(arch: str) -> list[Finding]:
    """Compile the kernel of every box for `arch`, with no GPU; each must hold one TMA instruction."""
    from tools.probes import tma_kernel

    found = []
    for shape, box in {_shape(box): box for dtype in DTYPES for box in boxes(dtype)}.items():
        wanted = "UTMASTG" if shape.store else "UTMALDG"
        with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
            tma_kernel.compiled(shape, f"--gpu-arch {arch} --keep-cubin --dump-dir {folder}")
            sass = "".join(compiled.disassemble(cubin) for cubin in Path(folder).glob("*.cubin"))
        count = sass.count(wanted)
        found.append(Finding(str(box).rsplit(", at", 1)[0], count == 1, f"{count} {wanted} in the SASS"))
    return found
