"""Time each fusion: a fused kernel against the same work in several, predicted by the bytes that stay away.

    python -m tools.fusions             # prints a line for each; needs a Hopper GPU
    python -m tools.fusions --record    # into results/<device>/fusions.json, which docs/benchmarks.md shows

Apart, the products are those of the recipe that is not fused, and what follows is torch's, a kernel for each step. Both
are timed as `cookbook.measure.contest` does, in one run. The prediction knows two things of the GPU, measured in that
run too: how fast a large tensor is copied, and what a kernel takes that does next to nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from cookbook.check import ran
from cookbook.measure import contest, records
from cookbook.recipe import catalog
from tools.records import of_device

FILE = "fusions.json"
ROUNDS, BATCH_MS = 9, 50.0
COPIED = 1 << 28  # elements of 16 bits that are copied: far more than L2 holds
WRONG = 0.02  # of the norm: steps apart round to bfloat16 up to four times, and sums of FP8 lose some bits
PLAIN, FP8, EPILOGUE = "hopper/tuned_gemm", "hopper/fp8_gemm", "hopper/fused_epilogue_gemm"
REDUCES, NO_MAXIMUM = "hopper/amax_epilogue_gemm", "hopper/tma_wgmma_gemm"  # the second is the first without amax


class Fusion(NamedTuple):
    """One way to fuse, at one size."""

    what: str
    recipe: str  # of the fused kernel
    apart: str  # the recipe of the products that are not fused
    shape: tuple[int, ...]  # (M, N, K), of a chain (M, N, N1, K), of groups (GROUPS, M, N, K)
    passes: int  # over a matrix of M x N, read or written, that the fused kernel does without
    kernels: int  # that it launches less

    @property
    def saved_bytes(self) -> int:
        """That are neither written nor read again."""
        return self.passes * self.shape[0] * self.shape[-2] * 2  # of a chain the matrix in the middle is M x N1


BIAS_GELU, RESIDUAL, GATE = "bias, then GELU", "a residual", "SwiGLU: a gate of two products"
SCALES, CHAIN, GROUPS = "row-wise scale factors of FP8", "a second product", "groups of rows, each with its own weight"
AMAX = "the largest magnitude of C"

# Apart, a step reads its operand of M x N and writes its result, both of 16 bits: two passes.
FUSIONS = (
    *(Fusion(BIAS_GELU, EPILOGUE, PLAIN, (8192, 4096, k), 4, 2) for k in (4096, 1024)),
    Fusion(RESIDUAL, EPILOGUE, PLAIN, (8192, 4096, 4096), 2, 1),
    # two products are written and read, and silu(x) in between, too
    *(Fusion(GATE, "hopper/swiglu_gemm", PLAIN, s, 6, 3) for s in ((8192, 4096, 4096), (2048, 5632, 2048))),
    Fusion(SCALES, FP8, FP8, (8192, 8192, 4096), 4, 2),
    Fusion(CHAIN, "hopper/back_to_back_gemm", PLAIN, (8192, 128, 128, 4096), 2, 1),
    # apart, a kernel reads C; fused, one sets the word to 0: as many launches
    *(Fusion(AMAX, REDUCES, NO_MAXIMUM, (8192, 8192, k), 1, 0) for k in (4096, 1024)),
    *(Fusion(GROUPS, "hopper/grouped_gemm", PLAIN, (8, m, 4096, 4096), 0, 7) for m in (16384, 512)),
)


class Work(NamedTuple):
    """The two ways, each of one set of operands, and the sets. Each set ends with the two results."""

    fused: Callable[..., Any]
    apart: Callable[..., Any]
    sets: list[tuple[Any, ...]]


def work(fusion: Fusion, device: str = "cuda") -> Work:
    """Both ways of a fusion, with normal operands."""
    name = "matmul_amax" if fusion.what == AMAX else "matmul"
    recipe, plain = getattr(catalog.load(fusion.recipe), name), catalog.load(fusion.apart).matmul
    made = {BIAS_GELU: _epilogue, RESIDUAL: _epilogue, GATE: _gate, SCALES: _scales, CHAIN: _chain, GROUPS: _groups}
    made[AMAX] = _amax
    return made[fusion.what](fusion, recipe, plain, partial(_sets, device))


def _sets(device: str, one: Callable[..., tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """As many sets as L2 cannot hold. `one(normal)` makes a set; `normal(*shape)` is a matrix of bfloat16."""
    normal = partial(torch.randn, device=device, dtype=torch.bfloat16)
    first = one(normal)
    size = sum(x.numel() * x.element_size() for x in first)
    return [first, *(one(normal) for _ in range(contest.how_many_sets(size) - 1))]


def _epilogue(fusion: Fusion, recipe: Any, plain: Any, sets: Any) -> Work:
    (m, n, k), residual = fusion.shape, fusion.what == RESIDUAL

    def one(normal: Any) -> tuple[Any, ...]:
        return normal(m, k), normal(n, k).T, normal(m, n) if residual else normal(n), normal(m, n), normal(m, n)

    def fused(a: Any, b: Any, x: Any, out: Any, _: Any) -> Any:
        given = {"epilogue": "add_residual", "residual": x} if residual else {"epilogue": "bias_gelu", "bias": x}
        return recipe(a, b, out=out, **given)

    def apart(a: Any, b: Any, x: Any, _: Any, out: Any) -> None:
        plain(a, b, out=out)
        out += x
        if not residual:
            torch.ops.aten.gelu.out(out, approximate="tanh", out=out)

    return Work(fused, apart, sets(one))


def _gate(fusion: Fusion, recipe: Any, plain: Any, sets: Any) -> Work:
    m, n, k = fusion.shape

    def one(normal: Any) -> tuple[Any, ...]:
        return normal(m, k), normal(n, k).T, normal(n, k).T, normal(m, n), normal(m, n), normal(m, n)

    def fused(a: Any, b: Any, up: Any, _: Any, out: Any, __: Any) -> Any:
        return recipe(a, b, epilogue="swiglu", up=up, out=out)

    def apart(a: Any, b: Any, up: Any, product: Any, _: Any, out: Any) -> None:
        plain(a, b, out=out)
        plain(a, up, out=product)
        functional.silu(out, inplace=True)
        out *= product

    return Work(fused, apart, sets(one))


def _scales(fusion: Fusion, recipe: Any, _: Any, sets: Any) -> Work:
    m, n, k = fusion.shape

    def one(normal: Any) -> tuple[Any, ...]:
        a, b = (normal(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
        of_a, of_b, whole = (torch.rand(rows, 1, device=a.device) + 0.5 for rows in (m, n, 1))
        narrow = of_a.bfloat16(), of_b.T.bfloat16()  # of the type of the result, or torch would compute in float32
        return a, b.T, of_a, of_b.T, whole.fill_(1.0), *narrow, normal(m, n), normal(m, n)

    def fused(a: Any, b: Any, of_a: Any, of_b: Any, *others: Any) -> Any:
        return recipe(a, b, of_a, of_b, out=others[-2])

    def apart(a: Any, b: Any, *others: Any) -> None:
        _, _, whole, of_a, of_b, _, out = others
        recipe(a, b, whole, whole, out=out)
        out *= of_a
        out *= of_b

    return Work(fused, apart, sets(one))


def _chain(fusion: Fusion, recipe: Any, plain: Any, sets: Any) -> Work:
    m, n, middle, k = fusion.shape

    def one(normal: Any) -> tuple[Any, ...]:
        return normal(m, k), normal(middle, k).T, normal(n, middle).T, normal(m, middle), normal(m, n), normal(m, n)

    def fused(a: Any, b: Any, b2: Any, _: Any, out: Any, __: Any) -> Any:
        return recipe(a, b, b2, out=out)

    def apart(a: Any, b: Any, b2: Any, first: Any, _: Any, out: Any) -> None:
        plain(a, b, out=first)
        plain(first, b2, out=out)

    return Work(fused, apart, sets(one))


def _amax(fusion: Fusion, recipe: Any, plain: Any, sets: Any) -> Work:
    """The two results of a set are the largest magnitudes."""
    m, n, k = fusion.shape

    def one(normal: Any) -> tuple[Any, ...]:
        return normal(m, k), normal(n, k).T, normal(m, n), normal(1).float(), normal(1)

    def fused(a: Any, b: Any, c: Any, amax: Any, _: Any) -> Any:
        return recipe(a, b, out=c, amax=amax)

    def apart(a: Any, b: Any, c: Any, _: Any, amax: Any) -> None:
        torch.linalg.vector_norm(plain(a, b, out=c), float("inf"), out=amax[0])

    return Work(fused, apart, sets(one))


def _groups(fusion: Fusion, recipe: Any, plain: Any, sets: Any) -> Work:
    groups, m, n, k = fusion.shape
    ends = [m // groups * (i + 1) for i in range(groups)]

    def one(normal: Any) -> tuple[Any, ...]:
        a = normal(m, k)
        offs = torch.tensor(ends, dtype=torch.int32, device=a.device)
        return a, normal(groups, n, k).transpose(1, 2), offs, normal(m, n), normal(m, n)

    def fused(a: Any, b: Any, offs: Any, out: Any, _: Any) -> Any:
        return recipe(a, b, offs, out=out)

    def apart(a: Any, b: Any, _: Any, __: Any, out: Any) -> None:
        for group, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            plain(a[start:end], b[group], out=out[start:end])

    return Work(fused, apart, sets(one))


def verify(fusion: Fusion, made: Work) -> None:
    """Make sure that both ways give the same, but for rounding.

    Raises:
        RuntimeError: they do not.
    """
    *_, got, wanted = operands = made.sets[0]
    for out in (got, wanted):
        out.fill_(float("nan"))
    made.fused(*operands)
    made.apart(*operands)
    error = ran.relative_error(got, wanted.float())
    if not error <= WRONG:
        raise RuntimeError(f"{fusion.what} {fusion.shape}: fused and apart differ by {error:.1e}; needed {WRONG}")


def take(fusion: Fusion) -> dict[str, Any]:
    """Microseconds of both ways on this GPU: medians of interleaved rounds."""
    made = work(fusion)
    verify(fusion, made)
    both = {contest.OURS: made.fused, "apart": made.apart}
    timed = contest.time_contest(contest.Contest(both, made.sets, "apart", 1.0), ROUNDS, BATCH_MS)
    us = {name: round(1000 * timed[key]["median_ms"], 3) for name, key in (("fused", contest.OURS), ("apart", "apart"))}
    return {"what": fusion.what, "recipe": fusion.recipe, "shape": list(fusion.shape), **us}


def gpu() -> dict[str, float]:
    """Return what the prediction knows of this GPU: bytes a microsecond of a copy, and a small kernel's
    microseconds."""
    x = torch.randn(COPIED, device="cuda", dtype=torch.bfloat16)
    sizes = {"copy": [(x, torch.empty_like(x))], "small": [(x[:32], torch.empty(32, device="cuda", dtype=x.dtype))]}
    us = {}
    for name, sets in sizes.items():
        alone = contest.Contest({contest.OURS: lambda a, out: torch.neg(a, out=out)}, sets * 2, contest.OURS, 1.0)
        us[name] = 1000 * contest.time_contest(alone, ROUNDS, BATCH_MS)[contest.OURS]["median_ms"]
    return {"bytes_per_us": round(4 * COPIED / us["copy"]), "kernel_us": round(us["small"], 3)}


def predicted(fusion: Fusion, about: dict[str, float]) -> float:
    """Microseconds that a fusion is to save: its bytes at the rate of a copy, and its kernels."""
    return fusion.saved_bytes / about["bytes_per_us"] + fusion.kernels * about["kernel_us"]


def read(root: Path | None = None) -> list[dict[str, Any]]:
    """The recorded run of every device."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in records.files(FILE, root)]


def write(run: dict[str, Any], root: Path | None = None) -> Path:
    """Put a run into its device's file, in place of the one before."""
    return of_device.write(FILE, run, root)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What each fusion saves.")
    parser.add_argument("--record", action="store_true", help=f"write into results/<device>/{FILE}")
    given = parser.parse_args(argv)
    about, found = gpu(), []
    print(about, flush=True)
    for fusion in FUSIONS:
        found.append(one := take(fusion))
        saved = one["apart"] - one["fused"]
        print(
            f"{fusion.what} {fusion.shape}: {one['apart']:.1f} us apart, {one['fused']:.1f} us fused; "
            f"saves {saved:.1f} us, predicted {predicted(fusion, about):.1f}",
            flush=True,
        )
    used = {name: records.code_of(name) for fusion in FUSIONS for name in (fusion.recipe, fusion.apart)}
    where = {"device": torch.cuda.get_device_name(), "date": records.now(), "versions": records.versions()}
    if given.record:
        print(f"wrote {write({**where, 'code': used, 'gpu': about, 'fusions': found})}")


if __name__ == "__main__":
    main()
