"""Level "ran": the kernel on a GPU, against a float64 reference and against torch.matmul's own error."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cookbook.check import poisoning
from cookbook.recipe.majors import DEFAULT, MAJORS, align

Shape = tuple[int, ...]  # (M, N, K) of a GEMM, (M, N) of a transpose
Progress = Callable[[str], None]

GUARD = 512  # elements before and after `out` that must stay as they were
GUARD_VALUE = 1234.0  # compared with its own rounding to the dtype
RATIO_LIMIT = 1.05  # of torch.matmul's error
DRAWN = 100  # shapes drawn anew by each check, besides those below
RATIO_ELEMENTS = 4096  # with fewer outputs the ratio of two errors is chance
DOUBLE_FLOPS = 1e12  # a float64 reference up to here, float32 above: GPUs for games are slow in float64

SHAPES: tuple[Shape, ...] = (
    # one element, one row, one column
    *((1, 1, 8), (1, 1, 64), (1, 8, 8), (8, 1, 8), (1, 333, 128), (333, 1, 128), (1, 4096, 4096), (4096, 1, 512)),
    # small and odd
    *((2, 2, 16), (3, 5, 8), (7, 9, 24), (15, 17, 40), (31, 33, 56), (63, 65, 72), (5, 1000, 120), (1000, 5, 120)),
    # primes
    *((61, 67, 104), (127, 131, 152), (257, 263, 248), (509, 521, 1000), (1021, 1031, 1016), (2039, 127, 264)),
    # a tile, one less, one more: 64, 128, 256 are the tiles' sides
    *((64, 64, 64), (63, 64, 64), (65, 64, 64), (64, 63, 64), (64, 65, 64), (64, 64, 56), (64, 64, 72)),
    *((128, 128, 64), (127, 128, 64), (129, 128, 64), (128, 127, 64), (128, 129, 64), (128, 128, 72)),
    *((128, 256, 64), (128, 255, 64), (128, 257, 64), (127, 255, 56), (129, 257, 72), (256, 256, 128)),
    *((255, 511, 120), (257, 513, 136), (384, 768, 192), (640, 1280, 320), (200, 333, 64), (100, 200, 320)),
    # K from the smallest to long: fewer k-tiles than stages, as many, more
    *((128, 128, 8), (128, 128, 16), (128, 128, 128), (128, 128, 192), (128, 128, 256), (128, 128, 320)),
    *((130, 250, 504), (96, 160, 2048), (300, 500, 4096), (129, 257, 8192), (128, 256, 16384), (33, 77, 16384)),
    # tall, wide, and enough tiles to fill a large GPU more than once
    *((16384, 8, 64), (16384, 33, 128), (8, 16384, 64), (33, 16384, 128), (16384, 256, 256), (256, 16384, 256)),
    *((1024, 1024, 1024), (2048, 1536, 512), (3000, 3000, 1000), (4096, 4096, 4096)),
)

# For operands of which none is contiguous along K: then K may be anything.
ANY_K: tuple[Shape, ...] = ((128, 256, 1), (8, 8, 2), (64, 72, 7), (136, 264, 77), (264, 520, 1001), (512, 512, 4095))


@dataclass(frozen=True)
class Case:
    """One run: relative Frobenius errors of ours and of torch.matmul, and what went wrong, if anything."""

    shape: Shape
    dtype: str
    error: float
    torch_error: float
    problem: str  # empty: it holds

    @property
    def ok(self) -> bool:
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict, `ok` among them."""
        return asdict(self) | {"ok": self.ok}


def tolerance(dtype: str) -> float:
    """The largest relative Frobenius error of a product that is accumulated in float32 and rounded once; 0 of "int32",
    whose sums are exact.

    Rounding moves no element by more than eps / 2 of itself, so the whole matrix by no more than that either:
    3.9e-3 for bfloat16, 4.9e-4 for float16. Typical is 0.4 of it, and the accumulation adds about 1e-6.
    """
    import torch

    kind = getattr(torch, dtype)
    return torch.finfo(kind).eps / 2 if kind.is_floating_point else 0.0


def shapes_for(majors: str = DEFAULT) -> tuple[Shape, ...]:
    """SHAPES as operands of these majors can have them: what they are contiguous along in whole 16-byte pieces."""
    fitted = dict.fromkeys(align(shape, majors) for shape in SHAPES)
    return (*fitted, *(() if "k" in MAJORS[majors] else ANY_K))


def drawn(seed: int, majors: str = DEFAULT, count: int = DRAWN) -> tuple[Shape, ...]:
    """`count` different random shapes, mostly ragged, as operands of these majors can have them.

    Sides are drawn evenly on a logarithmic scale, M and N from 1 to 2047, K from 8 to 2040 in whole 16-byte pieces.
    """
    rng, found = random.Random(seed), dict[Shape, None]()
    while len(found) < count:
        m, n, pieces = (int(2 ** rng.uniform(0, bits)) for bits in (11, 11, 8))
        found[align((m, n, 8 * pieces), majors)] = None
    return tuple(found)


def inputs(
    shape: Shape, dtype: str, device: str = "cuda", seed: int | None = None, majors: str = DEFAULT
) -> tuple[Any, Any]:
    """Fresh normal `a` (M, K) and `b` (K, N) of these majors: both with K contiguous, if left out. Of "int8" they are
    integers of the full range, K contiguous."""
    import torch

    m, n, k = shape
    generator = torch.Generator(device)
    where: dict[str, Any] = {"device": device, "generator": generator}
    generator.seed() if seed is None else generator.manual_seed(seed)
    if dtype == "int8":
        a, bt = (torch.randint(-128, 128, (rows, k), dtype=torch.int8, **where) for rows in (m, n))
        return a, bt.T
    kind = {"dtype": getattr(torch, dtype), **where}
    a_major, b_major = MAJORS[majors]
    a = torch.randn(m, k, **kind) if a_major == "k" else torch.randn(k, m, **kind).T
    return a, torch.randn(n, k, **kind).T if b_major == "k" else torch.randn(k, n, **kind)


def guarded(m: int, n: int, dtype: str, device: str = "cuda", row_stride: int | None = None) -> tuple[Any, Any]:
    """An `out` (M, N) full of `poison` inside a larger buffer, and a function: is the rest intact?

    `row_stride` in elements, N or more; what lies between the rows counts as the rest.
    """
    import torch

    row_stride = row_stride or n
    buffer = torch.full((2 * GUARD + m * row_stride,), GUARD_VALUE, dtype=getattr(torch, dtype), device=device)
    before = buffer.clone()
    out = buffer.as_strided((m, n), (row_stride, 1), GUARD)
    out.fill_(poison(dtype))

    def intact() -> bool:
        rest = buffer.clone()
        rest.as_strided((m, n), (row_stride, 1), GUARD).fill_(before[0])
        return torch.equal(rest, before)

    return out, intact


def poison(dtype: str) -> float:
    """Return what `out` is full of before a call: NaN, or the lowest integer."""
    import torch

    kind = getattr(torch, dtype)
    return float("nan") if kind.is_floating_point else torch.iinfo(kind).min


def relative_error(got: Any, reference: Any) -> float:
    """||got - reference|| / ||reference|| in the reference's precision; NaN in `got` gives NaN."""
    norm = reference.norm().item()
    difference = (got.to(reference.dtype) - reference).norm().item()
    return difference / norm if norm else difference


def reference(a: Any, b: Any) -> Any:
    """`a @ b` in float64; in float32 where that would take long and the operands are not integers."""
    import torch

    m, k = a.shape
    short = 2 * m * k * b.shape[1] <= DOUBLE_FLOPS or a.dtype == torch.int8
    exact = torch.float64 if short else torch.float32
    return a.to(exact) @ b.to(exact)


def verify(name: str, call: Callable[..., Any], operands: tuple[Any, Any, Any], dtype: str) -> None:
    """Make sure that a call (a, b, out) writes the product to `out`, before it is timed or counted.

    Args:
        name: what the error calls it.
        operands: (M, K), (K, N) and (M, N); `out` is filled with NaN first.
        dtype: torch's name of their type.

    Raises:
        RuntimeError: it does not; and whatever `call` raises.
    """
    import torch

    a, b, out = operands
    out.fill_(float("nan"))
    call(a, b, out)
    torch.cuda.synchronize()  # also what a call leaves to another stream, and errors of a kernel
    error, limit = relative_error(out, torch.matmul(a, b).float()), 2 * tolerance(dtype)
    if not error <= limit:  # two roundings: its own and torch.matmul's
        raise RuntimeError(f"{name} is wrong: relative error {error:.2e}; at most {limit:.2e}")


def torch_error(a: Any, b: Any, exact: Any, out: Any) -> float:
    """The relative error of torch.matmul's product of two matrices."""
    import torch

    return relative_error(torch.matmul(a, b), exact)


def run_case(
    matmul: Callable[..., Any],
    operands: tuple[Any, Any],
    dtype: str,
    of_torch: Callable[..., float] = torch_error,
    may_be_lost: Callable[..., float] = lambda a, b, exact: 0.0,
    row_stride: int | None = None,
) -> Case:
    """Run `matmul` once on fresh operands into a poisoned, guarded `out`, and with shared memory poisoned; compare.

    Args:
        matmul: of (a, b, out).
        operands: a (M, K) and b (K, N).
        dtype: of C.
        of_torch: the error of torch's own product: of (a, b, the exact product, out).
        may_be_lost: what accumulating may add to the relative error: of (a, b, the exact product).
        row_stride: as of `guarded`.
    """
    import torch

    a, b = operands
    (m, k), n = a.shape, b.shape[1]
    out, intact = guarded(m, n, dtype, row_stride=row_stride)
    poisoning.shared_memory()
    returned = matmul(a, b, out=out)
    torch.cuda.synchronize()
    exact = reference(a, b)
    error, theirs = relative_error(out, exact), of_torch(a, b, exact, out)
    problem = verdict(error, theirs, out.numel(), dtype, may_be_lost(a, b, exact))
    if returned.data_ptr() != out.data_ptr():
        problem = problem or "matmul did not return out"
    if not intact():
        problem = problem or "wrote outside out"
    return Case((m, n, k), dtype, error, theirs, problem)


def verdict(error: float, torch_error: float, elements: int, dtype: str, lost: float = 0.0) -> str:
    """Return what is wrong with an error, in words; empty when nothing is.

    lost: what accumulating may add to the error of rounding. It is left out where there are many elements, for their
    roundings are 0.4 of the tolerance together, and of a few each may be all of it; but not where it is more than that.
    """
    limit = tolerance(dtype) + (lost if elements < RATIO_ELEMENTS or lost > tolerance(dtype) else 0.0)
    if not error <= limit:  # NaN compares false
        return f"relative error {error:.2e}; at most {limit:.2e}"
    if elements >= RATIO_ELEMENTS and error > RATIO_LIMIT * torch_error:
        return f"relative error {error:.3e}; torch.matmul has {torch_error:.3e}, at most {RATIO_LIMIT} of it"
    return ""


def row_stride(shape: Shape, number: int) -> int:
    """Choose the `number`-th shape's row stride: rows that adjoin, rows with a gap, or with a gap that makes each
    begin at a multiple of 16 bytes, wherever it ends."""
    return (shape[1], shape[1] + 24, -(-shape[1] // 8) * 8 + 8)[number % 3]


def run_checks(
    matmul: Callable[..., Any],
    shapes: Iterable[Shape] = SHAPES,
    dtypes: Iterable[str] = ("bfloat16", "float16"),
    on_progress: Progress = lambda text: None,
    majors: str = DEFAULT,
) -> list[Case]:
    """Run every shape of a product of two matrices in every dtype, the rows of `out` as `row_stride` has them."""
    cases = []
    for dtype in dtypes:
        for number, shape in enumerate(shapes):
            on_progress(f"ran {dtype} {'x'.join(map(str, shape))}")
            operands = inputs(shape, dtype, majors=majors)
            cases.append(run_case(matmul, operands, dtype, row_stride=row_stride(shape, number)))
    return cases


def summary(cases: list[Case]) -> dict[str, Any]:
    """The figures of a `ran` record: how many shapes, the worst error, the worst ratio to torch.matmul's."""
    ratios = [c.error / c.torch_error for c in cases if c.torch_error and _enough(c.shape)]
    return {
        "shapes": len({c.shape for c in cases}),
        "worst_error": max((c.error for c in cases), default=None),
        "worst_ratio": max(ratios, default=None),
        "failed": [c.to_json() for c in cases if not c.ok],
    }


def _enough(shape: Shape) -> bool:
    return shape[0] * shape[1] >= RATIO_ELEMENTS
