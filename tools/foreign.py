"""`python -m tools.foreign --sources DIR`: kernels that others wrote, followed: docs/foreign.md says how far.

DIR holds `examples/python/CuTeDSL` of NVIDIA's CUTLASS, or packages (`pip install --target DIR quack-kernels`), or
both. None of it is part of this repository. Each kernel is traced and followed in a process of its own, for a small
problem. `--only TEXT` shows kernels with TEXT in their paths, and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

ROOT = Path(__file__).parent.parent
SITE = Path(sysconfig.get_paths()["purelib"])
PAGE = ROOT / "docs" / "foreign.md"
EXAMPLES = "examples/python/CuTeDSL"
SECONDS = 1800  # for one kernel, on a machine that has other work
HEAD = """# Kernels that others wrote

<!-- by python -m tools.foreign --sources DIR -->

Each is traced and followed for one small problem, with no GPU, as [Check your own kernel](check-your-kernel.md) says.
No file is edited; a module that it imports and does not need is an empty one, and names that CuTe moved are back where
they were. What is not followed ends with status 3, what CuTe does not trace with 2: nothing is claimed of either.
Seconds are of following and judging, on one core.

{sources}

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
    """A kernel: its file, how a module gives the function, and what that is called with.

    absent: modules that the file imports and the kernel does not need; something empty stands for them.
    bare: packages whose parts the file imports, and which need what is not there themselves.
    """

    path: str
    arch: str
    build: Callable[[Any], Any]
    arguments: Callable[[], list[Any]]
    sizes: dict[str, int] = field(default_factory=dict)
    note: str = ""
    absent: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()


def float32() -> Any:
    import cutlass

    return cutlass.Float32


def float16() -> Any:
    import cutlass

    return cutlass.Float16


def bfloat16() -> Any:
    import cutlass

    return cutlass.BFloat16


def quack(to: str = "bf16") -> list[Any]:
    """The arguments of QuACK's GEMM: A, B and D, of type `to`, with the batch first, no C, and its defaults."""
    epilogue = importlib.import_module("quack.gemm_default_epi").GemmDefaultSm90.EpilogueArguments()
    from cutlass import Int32

    options = importlib.import_module("quack.tile_scheduler").TileSchedulerOptions(Int32(2))
    a, b, d = (
        f"{t}[1,{rows},{columns}]" for t, rows, columns in (("bf16", 512, 576), ("bf16", 768, 576), (to, 512, 768))
    )
    return [a, b, d, None, epilogue, options, None, "stream"]


def indexer() -> list[Any]:
    """The arguments that both of cuDNN's indexers take, of Hopper and of Blackwell."""
    return [
        *("bf16[1,8,64,128]", "bf16[1,8,64]", "bf16[1,1024,128]", "bf16[1,8,64,128]", "bf16[1,8,64]"),
        *("f32[1,1024,128]", "f32[1,8,512]", "i32[1,8,512]", float32()(1.0), "stream"),
    ]


def attention(later: int = 9, last: int = 2) -> list[Any]:
    """The arguments of FlashAttention's forward pass: Q, K, V, O, the log of sums, a scale, and no more.

    later, last: how many of none come before and behind `aux_data`.
    """
    import cutlass

    more = importlib.import_module("flash_attn.cute.utils").AuxData(None, None)
    tensors = ["bf16[batch,seq,heads,128]"] * 4
    return [*tensors, "f32[batch,heads,seq]", cutlass.Float32(1.0), *(None,) * later, more, *(None,) * last, "stream"]


def scaled() -> list[Any]:
    """The arguments of NVIDIA's block-scaled GEMM: pointers and sizes."""
    import cutlass
    from cutlass.cute.nvgpu import OperandMajorMode
    from cutlass.cute.runtime import make_ptr

    kinds = ((cutlass.Float8E4M3FN, 16),) * 2 + ((cutlass.Float8E8M0FNU, 32),) * 2 + ((cutlass.Float16, 16),)
    pointers = [make_ptr(kind, 0, cutlass.AddressSpace.gmem, assumed_align=align) for kind, align in kinds]
    majors = (OperandMajorMode.K, OperandMajorMode.K, cutlass.tensor_utils.LayoutEnum.ROW_MAJOR)
    return [*pointers, majors, tuple(map(cutlass.Int32, (256, 256, 1152, 1))), 2, "stream"]


def words(dtype: str, *shape: int, numbers: Iterable[int]) -> str:
    """A tensor of integers that the kernel finds there, in words."""
    return f"{dtype}[{','.join(map(str, shape))}] = {' '.join(map(str, numbers))}"


def grouped() -> list[Any]:
    """The arguments of NVIDIA's grouped GEMM: two groups, of 4 and 2 tiles, for two CTAs."""
    sizes = ((256, 256, 320), (128, 256, 192))
    strides = [x for _, n, k in sizes for x in (k, 1, k, 1, n, 1)]
    problems = words("i32", 2, 4, numbers=[x for size in sizes for x in (*size, 1)])
    addresses = words("i64", 2, 3, numbers=(number << 44 for number in range(1, 7)))
    tensors = ("f16[8m,8k,l] (8k,1,8z)",) * 3  # their sizes are replaced
    return [*tensors, 2, problems, words("i32", 2, 3, 2, numbers=strides), addresses, 6, "i64[2,3,16]", 2, "stream"]


def delta_net() -> list[Any]:
    """The arguments of flashinfer's gated delta rule: sequences of 192 and 128 tokens, 2 heads, for 2 CTAs."""
    heads = ("bf16[320,2,128]",) * 3  # Q, K and V
    rates = ("f32[320,2]",) * 2
    ends = words("i32", 3, numbers=(0, 192, 320))
    states = (None, "f32[2,2,128,128]", None, None, None)
    return [*heads, *rates, heads[0], ends, *states, int32(0), float32()(1.0), "u8[2048]", "stream"]


def int32(value: int) -> Any:
    import cutlass

    return cutlass.Int32(value)


def fused_a(m: Any) -> Any:
    """sglang's host function; it is called with constants of its module."""
    return m._dsv3_fused_a_gemm_host


FUSED_STAGES, FUSED_TILE = 8, 16
FUSED_BYTES = (64 + FUSED_STAGES * (16 + FUSED_TILE) * 128) * 4  # barriers, and stages of A and of B

INDEXER = "cudnn/deepseek_sparse_attention/indexer_backward"
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
        "quack/gemm_default_epi.py",
        "sm_90a",
        lambda m: m.GemmDefaultSm90(float32(), bfloat16(), (128, 192, 64), (1, 1, 1), is_persistent=False),
        lambda: quack("f32"),
        note="to float32, not persistent",
    ),
    Foreign(
        "quack/gemm_default_epi.py",
        "sm_100a",
        lambda m: m.GemmDefaultSm100(float32(), bfloat16(), (128, 128, 64), (1, 1, 1), use_clc_persistence=False),
        quack,
        note="for Blackwell",
    ),
    *(
        Foreign(
            "quack/gemm_default_epi.py",
            "sm_120a",
            lambda m, pingpong=pingpong: m.GemmDefaultSm120(
                float32(), bfloat16(), (128, 128, 64), (1, 1, 1), pingpong=pingpong
            ),
            quack,
            note=note,
        )
        for note, pingpong in (("for GeForce, persistent", False), ("for GeForce, ping-pong", True))
    ),
    Foreign(
        "experimental/primitives/tma/tma_pipeline_warpspec.py",
        "sm_90a",
        lambda m: m.host,
        lambda: ["f16[512,512]", "f16[512,512]", 8],
    ),
    Foreign(
        "flash_attn/cute/flash_fwd_sm90.py",
        "sm_90a",
        lambda m: m.FlashAttentionForwardSm90(
            bfloat16(),
            128,
            128,
            1,
            is_causal=True,
            pack_gqa=False,
            tile_m=128,
            tile_n=128,
            num_stages=2,
            num_threads=384,
            Q_in_regs=False,
            intra_wg_overlap=True,
            mma_pv_is_rs=True,
        ),
        attention,
        {"batch": 1, "seq": 512, "heads": 2},
        "causal",
    ),
    Foreign(
        "flash_attn/cute/flash_fwd.py",
        "sm_80",
        lambda m: m.FlashAttentionForwardSm80(
            bfloat16(), 128, 128, 1, pack_gqa=False, tile_m=128, tile_n=64, num_stages=1, num_threads=128
        ),
        attention,
        {"batch": 1, "seq": 256, "heads": 1},
    ),
    Foreign(
        "sglang/kernels/ops/gemm/cutedsl_dsv3_fused_a_gemm.py",
        "sm_90a",
        fused_a,
        lambda: [
            *("i32[2112,1024]", "i32[16,1024]", "bf16[16,2112]", int32(16), "stream"),
            *(8, 2112, FUSED_BYTES, FUSED_STAGES, FUSED_TILE),
        ],
        absent=("sglang.kernels.kernel_api_logging", "sglang.srt.utils", "sglang.srt.utils.common"),
    ),
    Foreign(
        "sglang/kernels/ops/gemm/cutedsl_bf16_gemm.py",
        "sm_100a",
        lambda m: m._bmm_no_bias,
        lambda: [
            sys.modules["cutedsl_bf16_gemm"].TgvGemmCuteExtKernel(num_ab_stage=6),
            *("bf16[1,128,1024]", "bf16[1,1024,64] (65536,1,1024)", "bf16[1,128,64] (8192,1,128)", "stream"),
        ],
        absent=("sglang.kernels.kernel_api_logging", "sglang.srt.utils", "sglang.srt.utils.common"),
    ),
    Foreign(
        "flash_attn/cute/flash_fwd_sm100.py",
        "sm_100a",
        lambda m: m.FlashAttentionForwardSm100(128, 128, is_static_persistent=False),
        lambda: attention(later=10, last=8),
        {"batch": 1, "seq": 512, "heads": 1},
    ),
    *(
        Foreign(
            f"{INDEXER}/indexer_backward_{file}.py",
            arch,
            lambda m: next(getattr(m, name) for name in dir(m) if name.startswith("IndexerBackward"))(
                128, 64, 128, 512, topk_indices_global=False
            ),
            arguments,
            absent=("cudnn._compiled_module",),
            bare=("cudnn", "cudnn.deepseek_sparse_attention", INDEXER.replace("/", "."), "cudnn.frost"),
        )
        for file, arch, arguments in (
            ("sm90", "sm_90a", lambda: [*indexer(), None, None, int32(0), int32(0), None]),
            ("sm100", "sm_100a", indexer),
        )
    ),
    Foreign(
        "torch/_native/ops/topk/cutedsl_kernels.py",
        "sm_90a",
        lambda m: m._RegisterTopK(256, 8),
        lambda: ["f32[4,256]", "f32[4,8]", "i32[4,8]", "stream"],
        note="in registers",
    ),
    Foreign(
        "torch/_native/ops/topk/cutedsl_kernels.py",
        "sm_90a",
        lambda m: m._RadixSelectTopK(4096, 64, deterministic=True),
        lambda: ["f32[4,4096]", "f32[4,64]", "i32[4,64]", "stream"],
        note="radix",
    ),
    Foreign(
        "torch/_native/ops/scatter_add/tma_kernel.py",
        "sm_90a",
        lambda m: m._make_kernel(float32(), 4, 256, 128, m._reduce_op_for(float32()), True),
        lambda: ["f32[64,256]", "i32[64]", "f32[128,256]", "stream", 2, 16, 1, 256],
    ),
    Foreign(
        "cute/ampere/kernel/dense_gemm/sgemm.py",
        "sm_80",
        lambda m: m.SGemm(),
        lambda: ["f32[256,64]", "f32[256,64]", "f32[256,256]", lambda c: c, "stream"],
    ),
    Foreign(
        f"{HOPPER}/cta_norm/cta_norm.py",
        "sm_90a",
        lambda m: m.CtaNorm(4096, "layer"),
        lambda: ["f16[8,4096]", "f16[8,4096]", "f16[4096]", "f16[4096]", float32()(1e-5)],
    ),
    *(
        Foreign(
            "quack/rmsnorm.py",
            "sm_90a",
            lambda m, n=n: m.RMSNorm(bfloat16(), n, config=m.RmsNormFwdConfig.from_analytical_heuristic(n, 16, 9)),
            lambda n=n: [
                *(f"bf16[8,{n}]", f"bf16[{n}]", None, None, f"bf16[8,{n}]", None, "f32[8]", None),
                *(float32()(1e-5), "stream"),
            ],
            note=note,
        )
        for note, n in (("two rows a CTA", 4096), ("a row a cluster", 65536))
    ),
    Foreign(
        "quack/softmax.py",
        "sm_90a",
        lambda m: m.Softmax(bfloat16(), 4096),
        lambda: ["bf16[8,4096]", "bf16[8,4096]", "stream"],
    ),
    Foreign(
        "quack/cross_entropy.py",
        "sm_90a",
        lambda m: m.CrossEntropy(bfloat16(), 4096),
        lambda: ["bf16[8,4096]", "i64[8]", None, "f32[8]", "f32[8]", None, None, int32(-100), "stream"],
    ),
    Foreign(
        f"{HOPPER}/grouped_gemm/grouped_gemm.py",
        "sm_90a",
        lambda m: m.HopperGroupedGemmPersistentKernel(float32(), (128, 128), (1, 1), 1, True),
        grouped,
        {"l": 1},
    ),
    Foreign(
        "flashinfer/gdn_kernels/blackwell/gated_delta_net_chunked.py",
        "sm_100a",
        lambda m: m.GatedDeltaNetChunkedKernel(
            *(bfloat16(), float32(), float32()),
            *((64, 64, 128), (128, 64, 128), (128, 64, 64), (128, 128, 64)),
            *(2, 2, True, False),
            inverse_dtype=bfloat16(),
        ),
        delta_net,
        bare=("flashinfer", "flashinfer.gdn_kernels", "flashinfer.gdn_kernels.blackwell"),
    ),
    Foreign(
        f"{BLACKWELL}/grouped_gemm/grouped_gemm.py",
        "sm_100a",
        lambda m: m.GroupedGemmKernel(float32(), False, (128, 128), (1, 1)),
        grouped,
        {"l": 1},
    ),
    Foreign(
        f"{BLACKWELL}/blockscaled_gemm/dense_blockscaled_gemm_persistent.py",
        "sm_100a",
        lambda m: m.Sm100BlockScaledPersistentDenseGemmKernel(32, (128, 128), (1, 1)),
        scaled,
    ),
    Foreign(
        f"{BLACKWELL}/moe/torch_grouped_mm.py",
        "sm_100a",
        lambda m: m.GroupedGemmKernel("2Dx3D", bfloat16(), False),
        lambda: [
            *("bf16[512,256]", "bf16[2,256,256]", "bf16[512,256]", words("i32", 2, numbers=(192, 512))),
            *(None, "u8[4096]", 2, "stream"),
        ],
    ),
    Foreign(
        "experimental/primitives/tcgen05/2cta_mma_blockscale_m128.py",
        "sm_100a",
        lambda m: m.gemm,
        lambda: [
            *("i8[512,256] column", "i8[512,256] column", "e4m3[512,8,2] column", "e4m3[512,8,2] column"),
            *("f16[256,256]", tuple(map(int32, (256, 256, 512))), "stream"),
        ],
    ),
]

LOOKED = """What was looked at by hand:

* `tensorop_gemm.py`: cp.async writes rows of 64 bytes, and two of them meet in a bank. The profiler counts twice the
  ideal for these instructions, too.
* `sgemm.py`: a warp's cp.async of 4 bytes reads 8 elements of each of four rows, and each row takes a wavefront. No
  layout of shared memory changes that. The profiler counts four times the ideal, too.
* `fmha.py`: the stores by TMA are left one group in flight, and nothing waits for the last one before the CTA ends. The
  PTX ISA asks shared memory to outlive what reads it.
* `tma_pipeline_warpspec.py`: 32 lanes read a stage, then `elect.sync` picks one that arrives. It gathers the lanes and
  orders no access of theirs: for that PTX has `bar.warp.sync`, which stands before the reads alone. Each lane reads a
  row of 128 bytes, and the swizzle leaves four lanes to a bank.
* `cutedsl_dsv3_fused_a_gemm.py`: the fault of sglang 37287. A warp that is done stores sums where stage 0 of A lies,
  and another one may still read there. The stores of the sums meet four at a time in a bank; the compiler joins two of
  them, and the profiler counts twice the ideal.
* `indexer_backward_sm90.py`: a warpgroup writes dS of the next block after its own wgmmas. The other one's, of the
  block before, may still read dS: it says that they are issued, and waits for them later. 128 threads read a block's
  indices, and one of them says that others may take their place: the rest need not have read. No fence makes the
  barriers visible to TMA after they are initialised; CTAs meet alone.
* `dense_gemm_persistent.py`, asked what it computes, gets "a second store". That is so in PTX: CuTe elects a lane for
  a load by TMA, and none for a store, so 32 threads ask for it. They store the same bytes, and in machine code the
  store is one instruction of the warp.
* `torch_grouped_mm.py`: the scheduler's warp commits its last stage, and does not advance its state before
  `producer_tail`. So the tail waits for a phase that is over already. If all consumers release that stage before it
  looks, the parity is the other one again, and the warp waits for ever. With `advance()` before it no rule is broken.
* `gated_delta_net_chunked.py`: one warp frees tensor memory when its own loop is over. Three others of its group may
  still read the last output and the state there. A warp's cp.async of 4 bytes reads 32 rates of one of two heads, and
  they lie in two lines of global memory.
* `2cta_mma_blockscale_m128.py`: the fault of CUTLASS 3643. The first CTA of a pair copies scale factors out of both,
  and waits for its own load alone. Nor does anything hold the other CTA's warp, which may come a phase late, or the
  CTA, which may end while that load is on its way. What the other CTA copies by cp.async it tells of with scope `.cta`.
  With a wait for both loads and scope `.cluster` there is one finding left: each lane's 8 bytes lie 16 apart, so that
  half of the banks are not used.
* `indexer_backward_sm100.py`: the warp that loads Q waits for the MMAs of two rows before. If it comes late, those of
  the row between are done too: the parity is as before, and it waits for what needs its own load. Lanes 0 and 16 store
  sums of dK to one bank.
"""


class Log:
    """Answers of a run, a line each in a file, so that a run that was cut goes on where it was.

    Raises:
        SystemExit: the file has answers of other code.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        text = file.read_text(encoding="utf-8") if file and file.is_file() else ""
        code, *lines = text.splitlines() or [_code()]
        if code != _code():
            raise SystemExit(f"--log: got {file}, answers of other code; needed a new file")
        self.known = dict(json.loads(line) for line in lines)
        if file and not text:
            file.write_text(code + "\n", encoding="utf-8")

    def of(self, key: str, make: Callable[[], Any]) -> Any:
        """Return what was answered before; else what `make` returns, which is kept."""
        if key not in self.known:
            self.known[key] = make()
            if self.file:
                with self.file.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


def _code() -> str:
    """Return a hash of the package and of these tools."""
    files = sorted([*(ROOT / "cookbook").rglob("*.py"), *(ROOT / "tools").glob("foreign*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


# --- one kernel --------------------------------------------------------------------------------------------------


MOVED = ("ThrMma", "ThrCopy", "TiledMma", "TiledCopy")  # names that CuTe's module `core` had before


def file_of(sources: Path, path: str) -> Path:
    """Return where a kernel's file is: among NVIDIA's examples, in a package, or in one of this environment."""
    places = (sources / EXAMPLES / path, sources / path)
    return next((place for place in places if place.is_file()), SITE / path)


def loaded(sources: Path, path: str, absent: tuple[str, ...] = (), bare: tuple[str, ...] = ()) -> Any:
    """A file as a module; what it imports beside it and at the root of the examples is found."""
    file, folder = file_of(sources, path), sources / EXAMPLES
    import cutlass.cute as cute

    for name in MOVED:
        if not hasattr(cute.core, name):
            setattr(cute.core, name, getattr(cute, name))
    sys.modules.update({name: MagicMock(__path__=[], __spec__=None) for name in absent})
    for name in bare:
        sys.modules[name] = MagicMock(__path__=[str(sources / name.replace(".", "/"))], __spec__=None)
    if (file.parent / "__init__.py").is_file() and not file.is_relative_to(folder) and (bare or not absent):
        sys.path.insert(0, str(sources))
        return importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for place in (folder, folder / "cute", file.parent, file.parent.parent):
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
        os.environ |= {
            "CUTE_DSL_ARCH": kernel.arch,
            "FLASH_ATTENTION_ARCH": kernel.arch,
            "FLASH_ATTENTION_FAKE_TENSOR": "1",
        }
        function = kernel.build(loaded(sources, kernel.path, kernel.absent, kernel.bare))
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
        faults = "; ".join(rules) or ("none so far" if why else "none")
        seconds = f"{found['seconds']:.1f}"
    name = f"`{kernel.path}`" + (f", {kernel.note}" if kernel.note else "")
    return f"| {name} | {kernel.arch} | {followed} | {faults} | {seconds} |"


def _plain(text: str) -> str:
    line = " ".join(text.split())
    short = line if len(line) < 160 else line[:157] + "..."
    return short.replace("|", "/").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


def page(rows: list[str], commit: str) -> str:
    """The page, dated."""
    import cutlass

    date = datetime.date.today().isoformat()
    of = f"Sources: `{EXAMPLES}` of NVIDIA/cutlass, and packages: {commit}, on {date}, under CuTe DSL"
    head = HEAD.format(sources=textwrap.fill(f"{of} {cutlass.__version__}.", 120), looked=LOOKED)
    table = "\n".join(["| kernel | for | followed | found | s |", "|---|---|---|---|---|", *rows])
    return f'{head}<div class="told" markdown="1">\n\n{table}\n\n</div>\n'


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
    parser.add_argument("--log", type=Path, help="a file that keeps what was found; a run that was cut goes on")
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.number is not None:
        print(json.dumps(follow(asked.sources, KERNELS[asked.number]), default=str))
        return 0
    rows, log = [], Log(asked.log)
    for number, kernel in chosen(asked.sources, asked.only):
        found = log.of(f"{kernel.path} {kernel.note}", lambda number=number: apart(asked.sources, number))
        rows.append(row(kernel, found))
        print(found.get("text", found.get("error")) if asked.only else rows[-1], flush=True)
    if rows and not asked.only:
        _, mark, planted = PAGE.read_text(encoding="utf-8").partition("## Faults planted")
        PAGE.write_text(page(rows, asked.commit) + (f"\n{mark}{planted}" if mark else ""), encoding="utf-8")
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
