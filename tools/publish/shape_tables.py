"""Tables of docs/shapes.md: kernels that serve many shapes, and the cost of sizes known only at the launch.

Everything is computed when the page is built, by compiling for a GPU that need not be here, or read from results/.
"""

import inspect
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_tensor

from cookbook import draw
from cookbook.check import compiled
from cookbook.measure import records
from cookbook.measure.peers import TORCH
from cookbook.ops import choice
from cookbook.publish.markdown import fence, figure, table
from cookbook.recipe import catalog
from cookbook.recipe.entry import compile_host
from cookbook.recipe.majors import MAJORS
from tools.ops import measuring
from tools.publish.benchmarks import MISSING, OLD

ARCH, RECIPE = "sm_90a", "hopper/tma_wgmma_gemm"
EVEN, ODD = (8192, 8192, 8192), (8191, 8191, 8192)  # M x N x K
PROMISES = ((2, 1), (16, 1), (8, 4), (16, 8))  # bytes of the address, elements of the row stride


# --- one kernel, many shapes ------------------------------------------------------------------------------------


def kernels() -> str:
    """Return how many kernels serve the products of `cookbook bench --regret`, by recipe."""
    chosen: dict[str, list[tuple[str, str]]] = {}
    for case in measuring.CASES:
        (m, n, k), (a_major, b_major) = case.shape, MAJORS[case.majors]
        a = choice.Laid((m, k), (k, 1) if a_major == "k" else (1, m))
        b = choice.Laid((k, n), (1, k) if b_major == "k" else (n, 1))
        best = choice.options(a, b, case.dtype, choice.H200)[0]
        chosen.setdefault(best.recipe, []).append((best.variant, best.majors))
    rows = [[f"[{name}](recipes/{name}.md)", str(len(found)), str(len(set(found)))] for name, found in chosen.items()]
    products, all_kernels = (sum(int(row[column]) for row in rows) for column in (1, 2))
    return table(["recipe", "products", "kernels"], [*rows, ["together", str(products), str(all_kernels)]])


def launch_source() -> str:
    """The beginning of a recipe's host function: its arguments, and the matrices that it makes of them."""
    head, made, _ = inspect.getsource(catalog.load(RECIPE).gemm.__wrapped__).partition("    layouts, ")
    if not made:
        raise ValueError(f"{RECIPE}: got no `layouts, ... =` in gemm; needed it behind the matrices")
    return fence(f"{head}    ...  # tensor maps of mA and mB, the grid, the launch", "python")


# --- what the compiler knows ------------------------------------------------------------------------------------


@cute.kernel
def copy_rows(mA: cute.Tensor, mB: cute.Tensor):
    """Thread i copies 8 elements of row i."""
    row, _, _ = cute.arch.thread_idx()
    gA, gB = (cute.local_tile(x, (1, 8), (row, 0)) for x in (mA, mB))
    rA = cute.make_fragment_like(gA)
    cute.autovec_copy(gA, rA)  # as wide as the compiler can prove to be right
    cute.autovec_copy(rA, gB)


@cute.jit
def copy(mA: cute.Tensor, mB: cute.Tensor):
    copy_rows(mA, mB).launch(grid=(1, 1, 1), block=(32, 1, 1))


def promised(align: int, divisor: int) -> Any:
    """A bf16 matrix of any size: its address a multiple of `align` bytes, its row stride one of `divisor` elements."""
    shape, strides = (cute.sym_int32(), cute.sym_int32()), (cute.sym_int64(divisibility=divisor), 1)
    return make_fake_tensor(cutlass.BFloat16, shape, strides, memspace=cute.AddressSpace.gmem, assumed_align=align)


@cache
def loads(align: int, divisor: int) -> tuple[str, ...]:
    """The loads from global memory in the PTX of `copy` under these promises."""
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        options = f"--gpu-arch {ARCH} --keep-ptx --dump-dir {folder}"
        cute.compile(copy, promised(align, divisor), promised(align, divisor), options=options)
        (ptx,) = (file.read_text() for file in Path(folder).glob("*.ptx"))
    return tuple(re.findall(r"ld\.global\S*", ptx))


def copy_source() -> str:
    """The copy, and the matrices that it is compiled for."""
    parts: tuple[Callable[..., Any], ...] = (copy_rows.__wrapped__, promised)
    return fence("\n\n".join(inspect.getsource(part) for part in parts), "python")


def alignment() -> str:
    """The loads of `copy` by what the compiler was told."""
    rows = []
    for align, divisor in PROMISES:
        found = loads(align, divisor)
        rows.append([f"{align} bytes", f"{divisor} elements", f"{len(found)} x `{found[0]}`", f"{16 // len(found)}"])
    header = ["address: a multiple of", "row stride: a multiple of", "loads of 8 elements", "bytes at a time"]
    return table(header, rows, right=3)


# --- what it costs ----------------------------------------------------------------------------------------------


@cute.jit
def fixed_gemm(
    pA: cute.Pointer,
    pB: cute.Pointer,
    pC: cute.Pointer,
    stream: cuda.CUstream,
    mnk: cutlass.Constexpr,
    strides: cutlass.Constexpr,
    config: cutlass.Constexpr,
    vec: cutlass.Constexpr,
):
    """The recipe's host function with sizes and strides that are a part of the program."""
    module = catalog.load(RECIPE)
    module.gemm(pA, pB, pC, mnk, strides, stream, module.kernel, config, vec)


class Code(NamedTuple):
    """A kernel's machine code, in figures."""

    registers: int
    instructions: int
    loop: int  # instructions of the main loop


@cache
def compiled_for(shape: tuple[int, int, int] | None) -> Code:
    """The recipe's kernel for any shape, or for one."""
    module = catalog.load(RECIPE)
    m, n, k = shape or EVEN
    pointers = ((cutlass.BFloat16, 16),) * 3
    sizes = ((m, n, k), (k, k, n)) if shape else ()
    host = fixed_gemm if shape else module.gemm
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        kept = f"--keep-cubin --dump-dir {folder} {compiled.SAID}"
        constants = (module.CONFIG, 8) if shape else (module.kernel, module.CONFIG, 8)
        with compiled.reported() as said:
            compile_host(host, ARCH, pointers, (*sizes, *constants), options=kept)
        (cubin,) = Path(folder).glob("*.cubin")
        sass = compiled.disassemble(cubin)
    (used,) = re.findall(r"Used (\d+) registers", said.getvalue())
    return Code(int(used), len(re.findall(r"/\*[0-9a-f]{4,}\*/", sass)), len(compiled.innermost_loop(sass, "HGMMA")))


def static_against_dynamic() -> str:
    """The same kernel for any shape and for one."""
    ways = {"any M, N, K, strides": None, "one shape, known to the compiler": EVEN}
    rows = [[name, *map(str, compiled_for(shape))] for name, shape in ways.items()]
    return table(["compiled for", "registers a thread", "instructions", "of them in the main loop"], rows)


def ragged() -> str:
    """Times at an odd size over those at the even one next to it."""
    rows = []
    for name, pairs in _ragged().items():
        link = f"[{name}](recipes/{name}.md)"
        ratios = [[odd["device"], _ratio(even, odd, ""), _ratio(even, odd, TORCH)] for even, odd in pairs]
        rows += [[link, *each] for each in ratios or [["", OLD, OLD]]]
    header = ["GEMM", "GPU", "its time at the odd size", "`torch.matmul`'s in the same runs"]
    return table(header, rows or [["any", "", MISSING, MISSING]], right=2)


def ragged_where() -> str:
    """Return which GPUs `ragged` is of, and when."""
    found = {f"{odd['device']}, {odd['date'].split()[0]}" for pairs in _ragged().values() for _, odd in pairs}
    return "; ".join(sorted(found)) or MISSING


@cache
def _ragged() -> dict[str, list[tuple[records.Record, records.Record]]]:
    """By GEMM that was ever timed at ODD: current records at EVEN and at ODD, of each device that has both."""
    found = {}
    for recipe in (each for each in catalog.recipes() if each.product.is_gemm):
        timed = [r for r in records.select(recipe.name, "timed", "bfloat16") if tuple(r["shape"]) in (EVEN, ODD)]
        current = {(tuple(r["shape"]), r["device"]): r for r in timed if not records.is_stale(r)}
        if ODD in {tuple(r["shape"]) for r in timed}:
            devices = [device for device in records.by_gpu(timed) if {(EVEN, device), (ODD, device)} <= current.keys()]
            found[recipe.name] = [(current[EVEN, device], current[ODD, device]) for device in devices]
    return found


def _ratio(even: records.Record, odd: records.Record, who: str) -> str:
    first, second = ((r["peers"][who] if who else r["figures"])["median_ms"] for r in (even, odd))
    return f"{second / first:.2f} times"


def box() -> str:
    """A box of TMA at the corner of a matrix."""
    title = "A box at the corner of a matrix: what lies outside arrives as zeros"
    return figure(draw.tma_box(shape=(6, 80), origin=(4, 40), box=(4, 64), title=title).svg)


MARKS = {
    "<!-- shapes kernels -->": kernels,
    "<!-- shapes launch -->": launch_source,
    "<!-- shapes copy -->": copy_source,
    "<!-- shapes alignment -->": alignment,
    "<!-- shapes static -->": static_against_dynamic,
    "<!-- shapes ragged -->": ragged,
    "<!-- shapes ragged where -->": ragged_where,
    "<!-- shapes box -->": box,
}
