"""`python -m tools.foreign --sources DIR`: kernels that others wrote, followed: docs/foreign.md says how far.

DIR holds `examples/python/CuTeDSL` of NVIDIA's CUTLASS, or packages (`pip install --target DIR quack-kernels`), or
both. None of it is part of this repository. Each kernel is traced and followed in a process of its own, for a small
problem. `--only TEXT` shows kernels with TEXT in their paths, and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "foreign.md"
EXAMPLES = "examples/python/CuTeDSL"
SECONDS = 400  # for one kernel
HEAD = """# Kernels that others wrote

<!-- by python -m tools.foreign --sources DIR -->

Each is traced as it is and followed for one small problem, with no GPU, as [Check your own
kernel](check-your-kernel.md) says. Seconds are of following and judging, on one core.

Sources: `{sources}` of NVIDIA/cutlass, and packages: {commit}, on {date}, under CuTe DSL {version}.

{looked}

"""


def matrix(dtype: str, rows: int, columns: int) -> str:
    """A tensor (rows, columns, 1) whose columns are contiguous, in words."""
    return f"{dtype}[{rows},{columns},1] ({columns},1,{rows * columns})"


def gemm(dtype: str, m: int, n: int, k: int, to: str = "") -> list[Any]:
    """A, B and C of a GEMM with a batch of 1."""
    return [matrix(dtype, m, k), matrix(dtype, n, k), matrix(to or dtype, m, n)]


@dataclass(frozen=True)
class Foreign:
    """A kernel: its file, how a module gives the function, and what that is called with."""

    path: str
    arch: str
    build: Callable[[Any], Any]
    arguments: Callable[[], list[Any]]
    sizes: dict[str, int] = field(default_factory=dict)
    note: str = ""


def float32() -> Any:
    import cutlass

    return cutlass.Float32


def float16() -> Any:
    import cutlass

    return cutlass.Float16


def bfloat16() -> Any:
    import cutlass

    return cutlass.BFloat16


def quack() -> list[Any]:
    """The arguments of QuACK's GEMM: A, B and D with the batch first, no C, and its defaults."""
    epilogue = importlib.import_module("quack.gemm_default_epi").GemmDefaultSm90.EpilogueArguments()
    from cutlass import Int32

    options = importlib.import_module("quack.tile_scheduler").TileSchedulerOptions(Int32(2))
    a, b, d = (f"bf16[1,{rows},{columns}]" for rows, columns in ((512, 576), (768, 576), (512, 768)))
    return [a, b, d, None, epilogue, options, None, "stream"]


HOPPER, BLACKWELL = "cute/hopper/kernel", "cute/blackwell/kernel"
TUTORIAL = "cute/blackwell/tutorial/tutorial_gemm"
KERNELS = [
    Foreign(
        "cute/ampere/kernel/dense_gemm/tensorop_gemm.py",
        "sm_80",
        lambda m: m.TensorOpGemm(float16(), float16(), float32(), (2, 2, 1)),
        lambda: [*gemm("f16", 256, 256, 192), "stream"],
    ),
    Foreign(
        f"{HOPPER}/dense_gemm/dense_gemm.py",
        "sm_90a",
        lambda m: m.HopperWgmmaGemmKernel(float32(), (128, 256), (2, 1)),
        lambda: [*gemm("f16", 512, 512, 576), "stream"],
    ),
    Foreign(
        f"{HOPPER}/dense_gemm/dense_gemm_persistent.py",
        "sm_90a",
        lambda m: m.HopperWgmmaGemmPersistentKernel(float32(), (128, 256), (2, 1), 1, True),
        lambda: [*gemm("f16", 512, 768, 576), 2, "stream"],
    ),
    Foreign(
        f"{HOPPER}/dense_gemm/dense_gemm_fp8_2xacc.py",
        "sm_90a",
        lambda m: m.HopperFP8WarpSpecialized2xAccGemmKernel((128, 128), (1, 1), 1, True),
        lambda: [*gemm("e4m3", 256, 256, 1152, "bf16"), "f32[1]", "f32[1]", 1, "stream"],
    ),
    *(
        Foreign(
            f"{TUTORIAL}/fp16_gemm_{number}.py",
            "sm_100a",
            lambda m: m.host_function,
            lambda more=more: ["f16[512,512]", "f16[512,512]", "f16[512,512]", *more],
        )
        for number, more in (("0", ()), ("1", ()), ("2", ()), ("3", (1,)), ("3_1", (1,)), ("4", (1, 1)), ("5", (1,)))
    ),
    Foreign(
        f"{TUTORIAL}/fp16_gemm_6.py",
        "sm_100a",
        lambda m: m.host_function,
        lambda: ["f16[512,512]", "i8[512,512]", "f16[512,512]", "f16[512,512]", 1.0, 1, "stream"],
    ),
    Foreign(
        f"{BLACKWELL}/dense_gemm/dense_gemm.py",
        "sm_100a",
        lambda m: m.DenseGemmKernel(float32(), True, (256, 128), (2, 1), True),
        lambda: [*gemm("f16", 512, 256, 576), "stream"],
    ),
    Foreign(
        f"{BLACKWELL}/dense_gemm/dense_gemm_persistent.py",
        "sm_100a",
        lambda m: m.PersistentDenseGemmKernel(float32(), True, (256, 128), (2, 1), True),
        lambda: [*gemm("f16", 512, 256, 576), 1, "stream"],
    ),
    Foreign(
        f"{HOPPER}/attention/fmha.py",
        "sm_90a",
        lambda m: m.HopperFusedMultiHeadAttentionForward(
            float32(), float32(), (64, 128, 128), False, m.fmha_utils.MaskEnum.WINDOW_MASK
        ),
        lambda: [
            *(f"f16[{rows},128,1,1,1] (128,1,128,128,{128 * rows})" for rows in (128, 512, 512, 128)),  # Q, K, V, O
            "f32[128,1,1,1,1] (1,1,1,1,128)",
            *(1.0, 1.0, 1.0, None, None, "stream"),
        ],
    ),
    Foreign(
        "cute/blackwell_geforce/kernel/dense_gemm/dense_gemm.py",
        "sm_120a",
        lambda m: m.Sm120GemmKernel(float32(), (128, 128, 64)),
        lambda: [*gemm("f16", 256, 256, 320), 1, "stream"],
    ),
    *(
        Foreign(
            "quack/gemm_default_epi.py",
            "sm_90a",
            lambda m, tile=tile, cluster=cluster, persistent=persistent: m.GemmDefaultSm90(
                float32(), bfloat16(), tile, cluster, pingpong=tile[0] == 64, is_persistent=persistent
            ),
            quack,
            note=note,
        )
        for note, tile, cluster, persistent in (
            ("cooperative, not persistent", (128, 192, 64), (1, 1, 1), False),
            ("clusters of 2, not persistent", (128, 192, 64), (2, 1, 1), False),
            ("cooperative, persistent", (128, 192, 64), (1, 1, 1), True),
            ("ping-pong, persistent", (64, 192, 64), (1, 1, 1), True),
        )
    ),
    Foreign(
        "experimental/primitives/tma/tma_pipeline_warpspec.py",
        "sm_90a",
        lambda m: m.host,
        lambda: ["f16[512,512]", "f16[512,512]", 8],
    ),
]

LOOKED = """What was looked at by hand:

* `tensorop_gemm.py`: cp.async writes rows of 64 bytes, and two of them meet in a bank. The profiler counts twice the
  ideal for these instructions, too.
* `fmha.py`: the stores by TMA are left one group in flight, and nothing waits for the last one before the CTA ends. The
  PTX ISA asks shared memory to outlive what reads it.
"""


# --- one kernel --------------------------------------------------------------------------------------------------


def file_of(sources: Path, path: str) -> Path:
    """Where a kernel's file is: among NVIDIA's examples, or in a package."""
    example = sources / EXAMPLES / path
    return example if example.is_file() else sources / path


def loaded(sources: Path, path: str) -> Any:
    """A file as a module; what it imports beside it and at the root of the examples is found."""
    file, folder = file_of(sources, path), sources / EXAMPLES
    if (file.parent / "__init__.py").is_file() and not file.is_relative_to(folder):
        sys.path.insert(0, str(sources))
        return importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for place in (folder, file.parent, file.parent.parent):
        sys.path.insert(0, str(place))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def follow(sources: Path, kernel: Foreign) -> dict[str, Any]:
    """The report of one kernel as JSON; what stopped it before that as `error`."""
    from cookbook.check import kernels

    try:
        function = kernel.build(loaded(sources, kernel.path))
        case = kernels.Case(kernel.path, function, kernel.arguments(), kernel.arch, sizes=kernel.sizes)
        report = kernels.check(case)
    except Exception as error:  # whatever an example raises
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return report.to_json() | {"text": str(report)}


def apart(sources: Path, number: int) -> dict[str, Any]:
    """`follow` in a process of its own."""
    command = [sys.executable, "-m", "tools.foreign", "--sources", str(sources), "--number", str(number)]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, env=os.environ)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS} s"}
    last = (ended.stdout.strip().splitlines() or [""])[-1]
    try:
        return json.loads(last)
    except ValueError:
        return {"error": (ended.stderr.strip().splitlines() or ["it ended without a word"])[-1][:300]}


# --- the table ---------------------------------------------------------------------------------------------------


def row(kernel: Foreign, found: dict[str, Any]) -> str:
    """A line of the table."""
    if "error" in found:
        followed, faults, seconds = f"not traced: {_plain(found['error'])}", "", ""
    else:
        why = [f"no: line {one['at']['line']}: {_plain(one['text'])}" for one in found["not_followed"]]
        launched = found["launches"]
        steps = sum(one["steps"] for one in launched)
        followed = "; ".join(why) or f"yes: {sum(one['warps'] for one in launched)} warps, {steps} steps"
        rules = [f"{one['rule']}, line {one['at']['line']}" for one in found["found"]]
        faults, seconds = "; ".join(rules) or "none", f"{found['seconds']:.1f}"
    name = f"`{kernel.path}`" + (f", {kernel.note}" if kernel.note else "")
    return f"| {name} | {kernel.arch} | {followed} | {faults} | {seconds} |"


def _plain(text: str) -> str:
    short = text if len(text) < 160 else text[:157] + "..."
    return short.replace("|", "/").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def page(rows: list[str], commit: str) -> str:
    """The page, dated."""
    import cutlass

    date = datetime.date.today().isoformat()
    head = HEAD.format(sources=EXAMPLES, commit=commit, date=date, version=cutlass.__version__, looked=LOOKED)
    return head + "\n".join(["| kernel | for | followed | found | s |", "|---|---|---|---|---|", *rows]) + "\n"


def chosen(sources: Path, only: str) -> Iterator[tuple[int, Foreign]]:
    """The kernels whose files are there."""
    for number, kernel in enumerate(KERNELS):
        if only in kernel.path and file_of(sources, kernel.path).is_file():
            yield number, kernel


def main() -> int:
    """Follow each kernel that is found; 1 if there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True, help="a folder that holds " + EXAMPLES)
    parser.add_argument("--only", default="", help="kernels with this in their paths; the page is not written")
    parser.add_argument("--commit", default="an unnamed commit", help="of the sources, for the page")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.number is not None:
        print(json.dumps(follow(asked.sources, KERNELS[asked.number]), default=str))
        return 0
    rows = []
    for number, kernel in chosen(asked.sources, asked.only):
        found = apart(asked.sources, number)
        rows.append(row(kernel, found))
        print(found.get("text", found.get("error")) if asked.only else rows[-1], flush=True)
    if rows and not asked.only:
        PAGE.write_text(page(rows, asked.commit), encoding="utf-8")
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
