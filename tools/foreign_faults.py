"""`python -m tools.foreign_faults --sources DIR`: faults planted in the kernels of `tools.foreign`, and who finds them.

Each is an edit by the syntax tree: a call, by its name and its number in the file, is left out, or an argument of it is
another one. So nothing of these files stands here. A copy of the folder is made of links, all but the file that is
edited. A fault is found if the report says something that it does not say of the file as it is. `--only TEXT` shows
those with TEXT in their files or names, and writes nothing.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from tools.foreign import EXAMPLES, INDEXER, KERNELS, PAGE, ROOT, SECONDS, Log, file_of

HEAD = """## Faults planted

<!-- by python -m tools.foreign_faults --sources DIR -->

Each is one edit of one file by the syntax tree: a call is left out, or gets another argument. Found is what the report
says of the edited kernel alone. An edit that breaks nothing is not counted: FlashAttention's release of Q matters from
the second tile of a CTA on, and no scheduler of this kernel gives a CTA two.

"""
REAL_HEAD = """## Real faults and their fixes

Flagged before is what the report says of the kernel with the mistake; after, of the kernel without. Both columns leave
out what is said of both, and the last one what the first table says of the kernel as it is shipped.

The mistake is put back into the kernel as it is shipped today by the syntax tree; sglang 37287 and CUTLASS 3643 ship
with it, and so do NVIDIA's `torch_grouped_mm.py` and flashinfer's `gated_delta_net_chunked.py`, in which this check
found it. Where it is not found there, the last column says why: the same mistake then stands in another one, by the
same kind of edit, or in a small one of [the museum](museum.md).

"""
OUT, WHOLE, INSERT = "out", "", "+ "


@dataclass(frozen=True)
class Planted:
    """One edit: of the `number`th call of a name in a file, an argument, or the whole statement.

    change: OUT; a template of the argument, `"{} + 1"`; or INSERT and a line to stand before the statement.
    argument: its place or its keyword; WHOLE: the call itself.
    also: more edits of the same file, after it.
    """

    path: str  # of the kernel
    mistake: str
    call: str
    number: int = 0
    change: str = OUT
    argument: int | str = 0
    note: str = ""  # of the kernel
    file: str = ""  # which is edited; the kernel's own if left out
    harmless: str = ""  # why it breaks nothing, whatever the size
    also: tuple[Planted, ...] = ()


AMPERE = "cute/ampere/kernel/dense_gemm/tensorop_gemm.py"
PLAIN = "cute/hopper/kernel/dense_gemm/dense_gemm.py"
PERSISTENT = "cute/hopper/kernel/dense_gemm/dense_gemm_persistent.py"
FP8 = "cute/hopper/kernel/dense_gemm/dense_gemm_fp8_2xacc.py"
FMHA = "cute/hopper/kernel/attention/fmha.py"
ZEROTH = "cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_0.py"
FIRST = "cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_1.py"
THIRD = "cute/blackwell/tutorial/tutorial_gemm/fp16_gemm_3.py"
PAIRED = "experimental/primitives/tcgen05/2cta_mma_blockscale_m128.py"
BLACKWELL = "cute/blackwell/kernel/dense_gemm/dense_gemm.py"
GEFORCE = "cute/blackwell_geforce/kernel/dense_gemm/dense_gemm.py"
POINTERS = "experimental/primitives/tma/tma_pipeline_warpspec.py"
GROUPED = "cute/hopper/kernel/grouped_gemm/grouped_gemm.py"
MOE = "cute/blackwell/kernel/moe/torch_grouped_mm.py"
DELTA_NET = "flashinfer/gdn_kernels/blackwell/gated_delta_net_chunked.py"
TENSOR = "flash_attn/cute/flash_fwd_sm100.py"
FLASH = "flash_attn/cute/flash_fwd_sm90.py"
FUSED = "sglang/kernels/ops/gemm/cutedsl_dsv3_fused_a_gemm.py"
QUACK = "quack/gemm_default_epi.py"
PINGPONG, COOPERATIVE = "ping-pong, persistent", "cooperative, not persistent"

SHORT, MORE, LESS, LONGER = "bytes short", "count too high", "count too low", "waits for too little"
FLIPPED = "phase not flipped"
FENCE, MISSING, KEPT, EARLY = "fence out", "barrier out", "never released", "read back too soon"


def of(path: str, *edits: tuple[Any, ...], **more: str) -> list[Planted]:
    """Edits of one kernel."""
    return [Planted(path, *edit, **more) for edit in edits]


FAULTS = [
    *of(
        AMPERE,
        (LONGER, "cp_async_wait_group", 0, "{} + 1"),
        (LONGER, "cp_async_wait_group", 1, "{} + 1"),
        (MISSING, "sync_threads", 1),
        (MISSING, "sync_threads", 2),
        (MISSING, "sync_threads", 3),
        (MISSING, "sync_threads", 4),
    ),
    *of(
        PLAIN,
        (LONGER, "warpgroup.wait_group", 0, "{} + 1"),
        (MORE, "pipeline.CooperativeGroup", 1, "{} + 1", 1),
        (SHORT, "PipelineTmaAsync.create", 0, "{} - 128", "tx_count"),
        (FENCE, "fence_proxy", 0),
        (MISSING, "pipeline.sync", 0),
        (MISSING, "pipeline.sync", 1),
        (MISSING, "cluster_wait", 0),
        (EARLY, "c_pipeline.producer_acquire", 0),
        ("swizzle dropped", "storage.sA.get_tensor", 0, "None", "swizzle"),
    ),
    *of(
        PERSISTENT,
        (LONGER, "warpgroup.wait_group", 0, "{} + 1"),
        (MORE, "pipeline.CooperativeGroup", 1, "{} + 1", 1),
        (SHORT, "PipelineTmaAsync.create", 0, "{} - 128", "tx_count"),
        (FENCE, "fence_proxy", 0),
        (MISSING, "epilog_sync_barrier.arrive_and_wait", 0),
        (MISSING, "epilog_sync_barrier.arrive_and_wait", 1),
        (KEPT, "mainloop_pipeline.consumer_release", 0),
        (EARLY, "tma_store_pipeline.producer_acquire", 0),
        ("registers kept", "setmaxregister_decrease", 0),
        ("swizzle dropped", "storage.sB.get_tensor", 0, "None", "swizzle"),
    ),
    *of(
        FP8,
        (LONGER, "warpgroup.wait_group", 0),
        (MORE, "pipeline.CooperativeGroup", 1, "{} + 1", 1),
        (SHORT, "PipelineTmaAsync.create", 0, "{} - 128", "tx_count"),
        (FENCE, "fence_proxy", 0),
        (MISSING, "epilog_sync_barrier.arrive_and_wait", 0),
    ),
    *of(
        FMHA,
        (FENCE, "fence_proxy", 0),
        (KEPT, "k_handle.release", 1),
        (MISSING, "math_wg_order_barrier.arrive", 0),
        (MISSING, "pipeline.arrive_and_wait", 0),
        (MORE, "pipeline.CooperativeGroup", 3, "{} + 1", 1),
    ),
    *of(ZEROTH, (MISSING, "pipeline.sync", 0)),
    *of(
        FIRST,
        (MISSING, "tmem.wait_for_alloc", 0),
        (SHORT, "PipelineTmaUmma.create", 0, "{} - 128", "tx_count"),
        (MORE, "pipeline.CooperativeGroup", 3, "{} + 1", 1),
    ),
    *of(
        THIRD,
        (FENCE, "fence_view_async_shared", 0),
        (MISSING, "epilogue_sync_barrier.arrive_and_wait", 0),
        (MISSING, "epilogue_sync_barrier.arrive_and_wait", 1),
        (KEPT, "acc_full.release", 0),
        (EARLY, "epilogue_pipeline.producer_acquire", 0),
        (KEPT, "handle.release", 0),
    ),
    *of(
        BLACKWELL,
        (FENCE, "fence_proxy", 0),
        (KEPT, "consumer_handle.release", 0),
        (MISSING, "acc_pipeline.consumer_wait", 0),
    ),
    *of(
        GEFORCE,
        (FENCE, "fence_proxy", 0),
        (MISSING, "epilog_sync_barrier.arrive_and_wait", 0),
        (SHORT, "PipelineTmaAsync.create", 0, "{} - 128", "tx_count"),
        (KEPT, "mainloop_pipeline.consumer_release", 0),
        (MORE, "pipeline.CooperativeGroup", 1, "{} + 1", 1),
    ),
    *of(
        POINTERS,
        (MORE, "prims.mbarrier_init", 0, "2", 1),
        (SHORT, "prims.mbarrier_arrive_expect_tx", 1, "{} - 1024", 1),
        (FLIPPED, "prims.mbarrier_try_wait_parity", 0, "{} ^ 1", 1),
        (FLIPPED, "prims.mbarrier_try_wait_parity", 1, "{} ^ 1", 1),
        ("rows past the end", "cutlass.range_constexpr", 3, "{} + 4"),
    ),
    *of(
        FLASH,
        (KEPT, "pipeline_k.consumer_release", 2),
        (LONGER, "warpgroup.wait_group", 1, "{} + 1"),
        (LONGER, "warpgroup.wait_group", 2, "{} + 1"),
        (MISSING, "self.warp_scheduler_barrier_arrive", 2),
    ),
    *of(FLASH, (KEPT, "pipeline_q.consumer_release_w_index", 0), harmless="no CTA has a second tile"),
    *of(
        FUSED,
        (LESS, "mbarrier_init", 0, "{} - 1", 1),
        ("arrival out", "cp_async_mbarrier_arrive_noinc", 0),
        (MISSING, "cute.arch.barrier", 1),
    ),
    *of(
        GROUPED,
        (FENCE, "tensormap_manager.fence_tensormap_update", 0),
        (FENCE, "tensormap_manager.fence_tensormap_update", 2),
        (FENCE, "cute.nvgpu.cpasync.fence_tma_desc_release", 0),
        ("map changed in flight", "cute.arch.cp_async_bulk_wait_group", 0),
        (MISSING, "self.tensormap_ab_init_barrier.arrive_and_wait", 1),
        (KEPT, "mainloop_pipeline.consumer_release", 0),
    ),
    *of(
        QUACK,
        ("own barrier", "self.pingpong_barrier_arrive", 3, "1 - ({})", 0),
        note=PINGPONG,
        file="quack/gemm_sm90.py",
    ),
    *of(
        QUACK,
        (LONGER, "warpgroup.wait_group", 1, "{} + 1"),
        (KEPT, "ab_pipeline.consumer_release", 0),
        note=COOPERATIVE,
        file="quack/gemm_sm90.py",
    ),
    *of(
        QUACK,
        (FENCE, "fence_view_async_shared", 1),
        (MISSING, "epilogue_barrier.arrive_and_wait", 5),
        note=COOPERATIVE,
        file="quack/gemm_base.py",
    ),
]


def of_quack(call: str, file: str, note: str, change: str = OUT, argument: int | str = 0) -> Planted:
    """An edit of the first such call in a file of QuACK's."""
    return Planted(QUACK, "", call, 0, change, argument, note, f"quack/{file}.py")


@dataclass(frozen=True)
class Real:
    """A fault that a kernel shipped with: the kernel before and after, or what stands for it."""

    fix: str
    stands: str  # "" : the kernel itself
    wrong: Planted | None = None  # None: the kernel as it is
    mended: Planted | None = None  # the same
    museum: str = ""  # a title of docs/museum.md
    why: str = ""  # it is not found in the kernel itself

    @property
    def kernel(self) -> Planted:
        """One of the two edits, of the same kernel."""
        found = self.wrong or self.mended
        assert found is not None
        return found


OWN_BARRIER = FAULTS[[one.mistake for one in FAULTS].index("own barrier")]
BARRIER = INSERT + "cute.arch.barrier(barrier_id=1, number_of_threads=COMPUTE_THREADS)"
MET = INSERT + "cute.arch.barrier(barrier_id=3, number_of_threads=128)"
ADVANCED = INSERT + "sched_producer_state.advance()"
IN_NVIDIA = "in NVIDIA's `{}`"
BY_EPILOGUE = "today barriers of its epilogue order the reads, too"
WIDER = "prims.MemScope.CLUSTER"
FOR_BOTH = "while not prims.mbarrier_try_wait_parity(sfb_smem_full_mbar_ptr.subview(stage), phase_local): pass"
AFTER_3643 = Planted(
    PAIRED,
    "",
    "prims.mapa",
    0,
    INSERT + FOR_BOTH,
    also=tuple(Planted(PAIRED, "", "prims.mbarrier_arrive", n, WIDER, "scope") for n in range(2)),
)
GATHERS = f"{INDEXER}/indexer_backward_sm100.py"
FIRST_LANE = "if lane_id == 0: cute.arch.mbarrier_arrive(mbar + MBAR_GW_READY_0 + parity)"
ONE_ARRIVES = Planted(
    GATHERS,
    "",
    "cute.arch.mbarrier_arrive",
    0,
    INSERT + FIRST_LANE,
    also=(
        Planted(GATHERS, "", "cute.arch.mbarrier_arrive", 1),
        *(Planted(GATHERS, "", "cute.arch.mbarrier_init", n, "1", 1) for n in (46, 47)),
    ),
)
REAL = [
    Real("sglang 37287", "", None, Planted(FUSED, "", "cutlass.range_constexpr", 5, BARRIER)),
    Real("found here, a scheduler", "", None, Planted(MOE, "", "sched_pipeline.producer_tail", 0, ADVANCED)),
    Real("found here, tensor memory", "", None, Planted(DELTA_NET, "", "tmem.relinquish_alloc_permit", 0, MET)),
    Real("QuACK 6a645d5", "", OWN_BARRIER),
    Real(
        "QuACK b3a05d7",
        "",
        of_quack("cute.cosize", "gemm_sm90", "cooperative, persistent", "{} // self.epi_stage", WHOLE),
    ),
    Real("QuACK 14e9a0b", IN_NVIDIA, Planted(ZEROTH, "", "pipeline.sync", 0), why=BY_EPILOGUE),
    Real(
        "QuACK 0ab127b",
        "",
        of_quack("fence_view_async_shared", "gemm_sm120", "for GeForce, persistent"),
        why="a read that TMA overwrites later needs no fence here",
    ),
    Real("QuACK 1dd0099", "", museum="Two halves of a warp in one bank", why="stores that the compiler may join"),
    Real("cuDNN frontend 1049", "", Planted(f"{INDEXER}/indexer_backward_sm90.py", "", "cute.arch.barrier", 4)),
    Real("FlashAttention dd8a2729", "", Planted(TENSOR, "", "tmem_alloc_barrier.arrive_and_wait_unaligned", 1)),
    Real(
        "QuACK 97c98dc",
        "",
        museum="A warp that keeps its registers",
        why="not tried: only a GEMM that gathers A sets its registers",
    ),
    Real(
        "FlashAttention 2258", "", museum="An empty tile arrives twice", why="not tried: attention with sparse blocks"
    ),
    Real(
        "FlashAttention 2229",
        "",
        museum="An index that is right for two stages alone",
        why="not tried: attention with one stage of Q",
    ),
    Real("CUTLASS 3643", "", None, AFTER_3643),
    Real("sglang 32954", "", museum="A CTA that ends too early", why="traced by CuTe's `experimental`"),
    Real("cuDNN frontend 426", "", ONE_ARRIVES),
    Real(
        "flashinfer 5334",
        "",
        museum="Tensor memory given back while it is read",
        why="barriers of its pipelines order the next MMA after the reads, too",
    ),
    Real("FlashAttention e540fc1b", "", Planted(TENSOR, "", "cute.arch.fence_view_async_tmem_store", 1)),
    Real("CUTLASS 2889", "a look at a barrier that nobody waits for is no fault here", why="not tried"),
]

# --- edits -------------------------------------------------------------------------------------------------------


def edited(text: str, fault: Planted) -> str:
    """The text of a file with one edit, of as many lines.

    Raises:
        LookupError: there is no such call.
    """
    tree, lines = ast.parse(text), text.splitlines(keepends=True)
    statements = {id(node.value): node for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = sorted(_calls(tree, fault.call), key=lambda node: (node.lineno, node.col_offset))
    call = calls[fault.number]
    if fault.change.startswith(INSERT):
        return _inserted(tree, lines, call, fault.change.removeprefix(INSERT))
    if fault.change == OUT:
        return _replaced(lines, statements.get(id(call), call), "pass" if id(call) in statements else "True")
    node = _argument(call, fault.argument)
    return _replaced(lines, node, fault.change.format(f"({ast.unparse(node)})"))


def _calls(tree: ast.AST, name: str) -> Iterable[ast.Call]:
    """Calls of a function whose dotted name ends so."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(f".{name}"):
            yield node


def _inserted(tree: ast.AST, lines: list[str], call: ast.Call, line: str) -> str:
    """A line before the statement that a call is in."""
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= call.lineno <= (n.end_lineno or 0)]
    inner = max(around, key=lambda node: node.lineno)
    return "".join([*lines[: inner.lineno - 1], " " * inner.col_offset, line, "\n", *lines[inner.lineno - 1 :]])


def _argument(call: ast.Call, place: int | str) -> ast.expr:
    if place == WHOLE:
        return call
    if isinstance(place, int):
        return call.args[place] if len(call.args) > place else call.keywords[place - len(call.args)].value
    return next(keyword.value for keyword in call.keywords if keyword.arg == place)


def _replaced(lines: list[str], node: Any, by: str) -> str:
    """The lines with a node replaced; lines that it stood on stay."""
    first, last = node.lineno - 1, node.end_lineno - 1
    head = lines[first].encode()[: node.col_offset].decode()
    tail = lines[last].encode()[node.end_col_offset :].decode()
    more = last - first
    inside = by if not more or by == "pass" else f"({by}" + "\n" * more + ")"
    blank = "\n" * more if by == "pass" else ""
    return "".join([*lines[:first], head, inside, tail, blank, *lines[last + 1 :]])


def linked(sources: Path, path: str, text: str, into: Path) -> None:
    """A copy of a folder made of links, in which one file has another text."""
    here, there = sources, into
    for part in Path(path).parts:
        there.mkdir(exist_ok=True)
        for one in here.iterdir():
            if one.name not in (part, "__pycache__"):
                (there / one.name).symlink_to(one.resolve())
        here, there = here / part, there / part
    there.write_text(text, encoding="utf-8")


# --- one fault ---------------------------------------------------------------------------------------------------


def report(sources: Path, number: int) -> dict[str, Any]:
    """The report of a kernel, as JSON, by a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "tools.foreign", "--sources", str(sources)]
    command += ["--number", str(number)]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, env=os.environ)
        return json.loads((ended.stdout.strip().splitlines() or [""])[-1])
    except (ValueError, subprocess.TimeoutExpired) as error:
        return {"error": f"no answer: {type(error).__name__}"}


def kernel_of(fault: Planted) -> int:
    """The number of the kernel that a fault is planted in."""
    return next(n for n, one in enumerate(KERNELS) if one.path == fault.path and fault.note in ("", one.note))


def said(found: dict[str, Any]) -> set[tuple[str, int]]:
    """(rule, line) of the findings of a report."""
    return {(one["rule"], one["at"]["line"]) for one in found.get("found", ())}


def planted(sources: Path, fault: Planted) -> dict[str, Any]:
    """Return the report of a kernel with an edit."""
    file = file_of(sources, fault.file or fault.path)
    with tempfile.TemporaryDirectory() as folder:
        text = reduce(edited, (fault, *fault.also), file.read_text())
        linked(sources, str(file.relative_to(sources)), text, Path(folder) / "edited")
        return report(Path(folder) / "edited", kernel_of(fault))


def outcome(sources: Path, fault: Planted, before: dict[str, Any]) -> str:
    """Return what becomes of a fault: the rules that find it, why it is not followed, or "missed"."""
    after = planted(sources, fault)
    rules = list(dict.fromkeys(rule for rule, _ in sorted(said(after) - said(before))))
    if rules:
        return ", ".join(rules)
    if after.get("not_followed"):
        return "not followed"
    if fault.harmless and "error" not in after:
        return f"no fault: {fault.harmless}"
    return f"not traced: {after['error'][:80]}" if "error" in after else "missed"


def outcomes(sources: Path, real: Real, shipped: dict[int, dict[str, Any]]) -> tuple[str, str]:
    """Return what is said of the kernel with the mistake, and without; that of the museum stands on its page.

    shipped: the report of each kernel as it is.
    """
    if real.museum:
        rows = (PAGE.parent / "museum.md").read_text(encoding="utf-8").splitlines()
        (row,) = [row for row in rows if row.startswith(f"| [{real.museum}](")]
        return row.split("|")[3].strip(), "none"
    if real.wrong is None and real.mended is None:
        return "not flagged", ""
    number = kernel_of(real.kernel)
    before, after = (planted(sources, edit) if edit else shipped[number] for edit in (real.wrong, real.mended))
    return more_than(before, after), more_than(after, before, shipped[number])


def more_than(found: dict[str, Any], *others: dict[str, Any]) -> str:
    """Return the rules that one report says more often than each of others; why it says nothing."""
    if found.get("not_followed") or "error" in found:
        return found.get("error", "not followed")
    most: Counter[str] = Counter()
    for other in others:
        most |= Counter(rule for rule, _ in said(other))
    more = Counter(rule for rule, _ in said(found)) - most
    return ", ".join(sorted(more)) or "none"


def real_section(rows: list[tuple[Real, tuple[str, str]]]) -> str:
    """The section of the page."""
    flagged = [real for real, (before, after) in rows if before not in ("none", "not flagged") and after == "none"]
    museum = sum(bool(real.museum) for real in flagged)
    others = sum(real.stands == IN_NVIDIA for real in flagged)
    kinds = (
        f"{len(flagged) - museum - others} in the kernel itself, {others} in one of NVIDIA's, {museum} in the museum"
    )
    lines = [f"{len(flagged)} of {len(rows)} are flagged before and clean after: {kinds}.", ""]
    lines += [
        "| fix | stands for it | before | after | why it is not found in the kernel itself |",
        "|---|---|---|---|---|",
    ]
    for real, (before, after) in rows:
        stands = f"the museum, *{real.museum}*" if real.museum else real.stands or "the kernel itself"
        if "{}" in stands:
            stands = "the same mistake " + stands.format(Path(real.kernel.path).name)
        lines.append(f"| {real.fix} | {stands} | {before} | {after} | {real.why} |")
    return REAL_HEAD + "\n".join(lines) + "\n"


def section(rows: list[tuple[Planted, str]]) -> str:
    """The section of the page."""
    caught = sum(not what.startswith(("missed", "not traced", "no fault")) for _, what in rows)
    faults = sum(not what.startswith("no fault") for _, what in rows)
    lines = [f"{caught} of {faults} are found or named as not followed.", ""]
    lines += ["| kernel | mistake | call | found |", "|---|---|---|---|"]
    for fault, what in rows:
        change = "out" if fault.change == OUT else f"`{fault.change.format('x')}`"
        name = Path(fault.file or fault.path).name
        lines.append(f"| `{name}` | {fault.mistake} | `{fault.call}`, {change} | {what} |")
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Plant each fault whose kernel is there; 1 if there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True, help="a folder that holds " + EXAMPLES)
    parser.add_argument("--only", default="", help="faults with this in their names or files; the page is not written")
    parser.add_argument("--log", type=Path, help="a file that keeps what was found; a run that was cut goes on")
    asked = parser.parse_args()
    log = Log(asked.log)

    def shipped(number: int) -> dict[str, Any]:
        return log.of(f"{KERNELS[number].path} {KERNELS[number].note}", lambda: report(asked.sources, number))

    chosen = [
        one
        for one in FAULTS
        if asked.only in f"{one.path} {one.mistake} {one.call}" and file_of(asked.sources, one.path).is_file()
    ]
    real = [one for one in REAL if asked.only in one.fix]
    with ThreadPoolExecutor(2) as pool:
        kernels = [*chosen, *(one.kernel for one in real if one.wrong or one.mended)]
        numbers = sorted({kernel_of(one) for one in kernels})
        before = dict(zip(numbers, pool.map(shipped, numbers), strict=True))
        rows, pairs = [], []
        both = pool.map(lambda one: log.of(repr(one), lambda: outcomes(asked.sources, one, before)), real)
        for pair in zip(real, both, strict=True):
            pairs.append(pair)
            print(f"{pair[0].fix}: before {pair[1][0]}, after {pair[1][1]}", flush=True)
        found = pool.map(
            lambda one: log.of(repr(one), lambda: outcome(asked.sources, one, before[kernel_of(one)])), chosen
        )
        for one, what in zip(chosen, found, strict=True):
            rows.append((one, what))
            print(f"{Path(one.path).name}: {one.mistake}, {one.call} {one.number}: {what}", flush=True)
    if rows and not asked.only:
        page, _, after = PAGE.read_text(encoding="utf-8").partition("## Faults planted")
        _, mark, counted = after.partition("## Wavefronts")
        text = page.rstrip() + "\n\n" + section(rows) + "\n" + real_section(pairs)
        PAGE.write_text(text + (f"\n{mark}{counted}" if mark else ""), encoding="utf-8")
    return int(not rows and not pairs)


if __name__ == "__main__":
    sys.exit(main())
