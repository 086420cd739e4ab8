"""`python -m tools.foreign_lines --sources DIR FOLDER`: wavefronts of kernels that others wrote, by line, and ncu's.

Where a Hopper GPU, ncu and nvdisasm are, `--collect` launches each kernel once, and writes into the folder what ncu
counted of every SASS instruction and the line of Python that the compiler says of it. Then, on any machine, each kernel
is traced and every CTA of the same launch followed: the wavefronts of a line must be the same. What was found stands
in docs/foreign.md, and as numbers in FOLDER/counts.json; none of the sources does. `--dry` compiles and hands over the
arguments, without a GPU.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cookbook.access import LANES
from cookbook.banks import wavefronts
from cookbook.check import banks, compiled, counted
from cookbook.check.kernels import Case, cases, in_turn, tensors
from cookbook.check.pipeline.programs import all_launched
from cookbook.simulate.arguments import chosen, symbols, value_of
from cookbook.simulate.lines import Line
from tools.foreign import EXAMPLES, KERNELS, PAGE, ROOT, Foreign, loaded
from tools.sass_lines import by_line, instructions, needed

ARCH = "sm_90a"  # of the GPU: a kernel for Ampere is compiled for it, too
AT_ONCE = 12
PROFILED = "regex:kernel_cutlass"  # what CuTe calls the kernels of any function
JOINED = ("ld", "st")
SECONDS = 900  # for one kernel, on a machine that has other work

MARK = "## Wavefronts"
HEAD = """{mark} in shared memory, next to the profiler's

<!-- by python -m tools.foreign_lines --sources DIR FOLDER -->

Each kernel was launched once, for the small problem of the first table, on one GPU: {device}.
Those for Ampere were compiled for Hopper. Nsight Compute counted the wavefronts of each instruction of the machine
code, and the compiler says which line of Python it is of. The trace of the same launch, with every CTA followed, says
what each line takes.

Two things the machine code alone says: loads and stores of neighbours may be one instruction, and so wide; and it may
have the line of another part of its statement. cp.async that fill with zeros are left out.

{same} of {rows} lines of {launches} launches, of {kernels} files, have the same number; where the two differ the
row has both. What differs was looked at: each of sglang's cp.async takes four wavefronts by the trace, and so it does
by the profiler, but for a few instructions of which it counted a little less. Why is not known.

"""

Key = tuple[str, int, str]  # a file, a line of it, a kind of instruction of KINDS


CHOSEN = (
    "ampere/kernel/dense_gemm/tensorop_gemm",
    "hopper/kernel/dense_gemm/",
    "hopper/kernel/attention/fmha",
    "quack/gemm_default_epi.py sm_90a",
    "cutedsl_dsv3_fused_a_gemm",
    "flash_fwd_sm90",
    "cta_norm",
    "quack/rmsnorm",
    "quack/softmax",
    "quack/cross_entropy",
    "sgemm",
)


def compared() -> list[Foreign]:
    """The kernels, as they are built for Hopper."""
    found = [one for one in KERNELS if any(each in f"{one.path} {one.arch}" for each in CHOSEN)]
    return [replace(one, arch=ARCH) for one in found]


def name_of(kernel: Foreign) -> str:
    """A name for a file."""
    return re.sub(r"\W+", "_", f"{Path(kernel.path).with_suffix('')} {kernel.note}").strip("_")


EXTENT = re.compile(r"(?<=[\[,])(\d+)(?=[,\]])")


def built(sources: Path, kernel: Foreign) -> tuple[Any, list[Any], dict[str, int]]:
    """The function of a kernel, its arguments in words, and the sizes that those name.

    Where words name one, all extents are numbers of the launch, as those of torch's tensors are: 128 is `128d128`.
    """
    function = kernel.build(loaded(sources, kernel.path, kernel.absent, kernel.bare))
    words, sizes = kernel.arguments(), dict(kernel.sizes)
    if sizes:
        tensors_of = [value for value in words if isinstance(value, str)]
        sizes |= {f"d{extent}": int(extent) for value in tensors_of for extent in EXTENT.findall(value)}
        words = [EXTENT.sub(r"\1d\1", value) if isinstance(value, str) else value for value in words]
    return function, words, sizes


# --- on a GPU ----------------------------------------------------------------------------------------------------


def launch(sources: Path, kernel: Foreign, folder: Path, device: str) -> None:
    """Compile a kernel, keep its machine code and its lines in a folder, and launch it once.

    device: "cuda"; "cpu" hands its arguments over, and stops where a GPU is needed.
    """
    import cutlass.cute as cute

    ir: Any = importlib.import_module("cutlass._mlir.ir")

    function, words, sizes = built(sources, kernel)
    known: tensors.Symbols = {}
    given = [tensors.argument(value, known) for value in words]
    with tempfile.TemporaryDirectory() as dumped:
        options = f"--gpu-arch {ARCH} --keep-cubin --dump-dir {dumped} --generate-line-info"
        made = cute.compile(function, *given, options=options)
        (cubin,) = Path(dumped).glob("*.cubin")
        listed = instructions(compiled.disassemble(cubin, "--print-line-info"))
    text = "".join(f"{opcode} {int(line)} {line.file}\n" for opcode, line in listed)
    (folder / f"{name_of(kernel)}.lines").write_text(text)
    constant = {each["argument_name"] for each in made.execution_args.get_constexpr_args()}
    bound = inspect.signature(function).bind(*(real(value, sizes, device) for value in words)).arguments
    asked = {name: value for name, value in bound.items() if name not in constant}
    with ir.Context(), ir.Location.unknown():
        for fake, (name, value) in zip(given, bound.items(), strict=True):
            if hasattr(value, "mlir_type") and _plain(fake.mlir_type) != _plain(value.mlir_type):
                raise ValueError(f"{name}: got {value.mlir_type}; needed {fake.mlir_type}")
    if device == "cpu":
        made.execution_args.generate_execution_args((), asked)
        return
    import torch

    made(**asked)
    torch.cuda.synchronize()


def _plain(kind: Any) -> str:
    """A tensor's type without what is known of its divisors."""
    return re.sub(r"\{[^{}]*\}", "", str(kind)).replace("generic", "gmem")


def real(value: Any, sizes: dict[str, int], device: str) -> Any:
    """Zeros for a tensor in words; any other argument as a launch takes it."""
    if value == "stream":
        return importlib.import_module("cuda.bindings.driver").CUstream(0)
    if not isinstance(value, str) or not (worded := tensors.WORDED.fullmatch(value)):
        return value
    import cutlass
    import torch
    from cutlass.cute.runtime import from_dlpack

    modes = [re.sub(r"^\d+(?=[a-z])", "", mode.strip()) for mode in worded["shape"].split(",")]
    shape = [sizes[mode] if mode in sizes else int(mode) for mode in modes]
    dtype = getattr(cutlass, tensors.DTYPES[worded["dtype"]])
    strides = tensors._strides(tuple(shape), worded["how"] or "row", value, {})
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    bits = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[dtype.width]
    zeros = torch.zeros(size, dtype=bits, device=device).as_strided(shape, strides)
    found = from_dlpack(zeros, assumed_align=tensors.ALIGNED)
    found.element_type = dtype
    if any(mode in sizes for mode in modes):
        found = found.mark_layout_dynamic(leading_dim=len(modes) - 1)
    return found


def collect(sources: Path, folder: Path, kernel: Foreign, device: str) -> str:
    """Write the page of a kernel, by a process of its own; what it says."""
    command = apart(sources, folder, kernel, "--collect", *(["--dry"] if device == "cpu" else []))
    with tempfile.TemporaryDirectory() as made:
        report = Path(made) / "report.ncu-rep"
        if device != "cpu":
            options = ["--clock-control", "none", "--kernel-name", PROFILED, "--section", "SourceCounters"]
            command = [counted.path_of("ncu"), *options, "-o", str(report), *command]
        said = ran(command)
        if report.exists():
            page = counted.run([counted.path_of("ncu"), "-i", str(report), "--page", "source", "--csv"]).stdout
            (folder / f"{name_of(kernel)}.csv").write_text(needed(page))
        elif device != "cpu":
            raise RuntimeError(f"ncu wrote no report: {said}")
    return "done"


def apart(sources: Path, folder: Path, kernel: Foreign, *options: str) -> list[str]:
    """The command for one kernel: files of others give their modules the same names."""
    command = [sys.executable, "-W", "ignore", "-m", "tools.foreign_lines", "--sources", str(sources), str(folder)]
    return [*command, "--one", name_of(kernel), *options]


def ran(command: list[str]) -> str:
    """What a command prints.

    Raises:
        RuntimeError: it failed; the message is its last words.
    """
    known = {"CUTE_DSL_ARCH": ARCH, "FLASH_ATTENTION_ARCH": ARCH, "FLASH_ATTENTION_FAKE_TENSOR": "1"}
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, env=os.environ | known, check=False
    )
    if ended.returncode:
        raise RuntimeError(" | ".join((ended.stdout + ended.stderr).strip().splitlines()[-3:])[-600:])
    return ended.stdout


# --- anywhere ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """The wavefronts of the instructions of one kind in one line of Python, in one launch."""

    kernel: str
    note: str
    file: str
    line: int
    what: str
    traced: int
    counted: int
    filling: int = 0  # cp.async that move nothing, which the trace leaves out

    @property
    def same(self) -> bool:
        return 0 <= self.counted - self.traced <= LANES * self.filling


class Joining(in_turn.InTurn):
    """Keeps the lanes of each load and store, in order: the compiler may join those of neighbours."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.accesses: dict[tuple[Line, str], list[tuple[int, np.ndarray]]] = defaultdict(list)

    def _count(self, op: Any, what: str, width: int, places: np.ndarray, sources: Any = None) -> None:
        super()._count(op, what, width, places, sources)
        lanes = np.where(self.active[:, None], places, -1)
        if what in JOINED and (lanes >= 0).any():
            self.accesses[op.line, what] += [(width, lanes[:, number]) for number in range(lanes.shape[1])]


def joined(accesses: list[tuple[int, np.ndarray]], wide: int, load: bool) -> int:
    """The wavefronts of accesses of which the compiler makes instructions of `wide` bytes a lane, where it can."""
    total, rest = 0, accesses
    while rest:
        width, first = rest[0]
        together = rest[: max(wide // width, 1)]
        whole = len(together) * width == wide
        follow = [np.where(first < 0, -1, first + number * width) for number in range(len(together))]
        if whole and all(
            one[0] == width and (one[1] == lanes).all() for one, lanes in zip(together, follow, strict=True)
        ):
            width *= len(together)
        else:
            together = rest[:1]
        total, rest = total + wavefronts(first, width, load=load).actual, rest[len(together) :]
    return total


def followed(sources: Path, kernel: Foreign) -> list[Joining]:
    """The warps of every CTA of a launch.

    Raises:
        CannotFollow: the kernel does something that is not followed.
    """
    function, words, sizes = built(sources, kernel)
    trace = cases.traced(Case(kernel.path, function, words, ARCH))
    known = chosen(trace.arguments, sizes)
    numbers = {symbol: known[named] for symbol, named in symbols(trace.arguments).items()}
    (made,), shared = all_launched(trace, [value_of(one, numbers) for one in trace.arguments])
    found = []
    for number in range(int(np.prod(made.grid)) // made.ctas):
        warps, stopped = in_turn.warps_in_turn(trace, made, shared, number, Joining)
        if stopped is not None:
            raise stopped
        found += warps.values()
    return found


def _short(file: str) -> str:
    return "/".join(Path(file).parts[-2:])


@cache
def _statements(file: str) -> list[tuple[int, int]]:
    """The first line and the last one of each statement that holds no other."""
    tree = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    found = (node for node in tree if isinstance(node, ast.stmt) and not hasattr(node, "body"))
    return [(node.lineno, node.end_lineno or node.lineno) for node in found]


def rows_of(sources: Path, kernel: Foreign, folder: Path) -> Iterator[Row]:
    """Compare each line of a kernel on ncu's page with the trace.

    Two things the trace does not know, and the machine code says. A load that the compiler joins with what takes its
    value gets the line of that: lines of a statement are one. Loads and stores of neighbours become one instruction:
    their wavefronts are those of one so wide.

    Raises:
        CannotFollow: the kernel does something that is not followed.
        ValueError: the page is of other machine code than the lines.
    """
    (page,) = counted.parse_kernels((folder / f"{name_of(kernel)}.csv").read_text())
    listed = []
    for each in (folder / f"{name_of(kernel)}.lines").read_text().splitlines():
        opcode, number, *file = each.split(" ", 2)
        listed.append((opcode, Line(int(number), *file)))
    warps = followed(sources, kernel)
    found = banks.counted(warps)
    files = {_short(one.line.file): one.line.file for one in found}

    def key_of(line: Line, what: str) -> Key:
        short, number = _short(line.file), int(line)
        around = _statements(files[short]) if short in files else []
        return short, next((first for first, last in around if first <= number <= last), number), what

    traced, moving, measured, executed = (Counter[Key]() for _ in range(4))
    widths = defaultdict[Key, set[int]](set)
    for line, kind, there in by_line(page, listed, name_of(kernel)):
        measured[key_of(line, kind)] += there.wavefronts
        executed[key_of(line, kind)] += there.executed
        bits = re.search(r"\.(64|128)\b", there.opcode)
        widths[key_of(line, kind)] |= {int(bits[1]) // 8 if bits else 4}
    for one in found:
        moving[key_of(one.line, one.what)] += one.instructions
        if one.what not in JOINED:
            traced[key_of(one.line, one.what)] += one.wavefronts
    for (line, what), accesses in (each for warp in warps for each in warp.accesses.items()):
        wide = widths[key_of(line, what)]
        traced[key_of(line, what)] += joined(accesses, min(wide) if len(wide) == 1 else 0, what == "ld")
    for key in sorted(traced.keys() | {key for key in measured if measured[key]}):
        filling = max(executed[key] - moving[key], 0) if key[2] == "cp.async" else 0
        yield Row(kernel.path, kernel.note, *key, traced[key], measured[key], filling)


def section(rows: list[Row], device: str) -> str:
    """The section of the page."""
    kernels = dict.fromkeys((row.kernel, row.note) for row in rows)
    same = sum(row.same for row in rows)
    files = len({kernel for kernel, _ in kernels})
    head = HEAD.format(mark=MARK, device=device, same=same, rows=len(rows), launches=len(kernels), kernels=files)
    lines = ["| kernel | line: instructions, wavefronts | the same |", "|---|---|---|"]
    for kernel, note in kernels:
        own = [row for row in rows if (row.kernel, row.note) == (kernel, note)]
        name = f"`{kernel}`" + (f", {note}" if note else "")
        lines.append(f"| {name} | {'; '.join(map(_told, own))} | {sum(row.same for row in own)} of {len(own)} |")
    return head + "\n".join(lines) + "\n"


def _told(row: Row) -> str:
    at = f"{row.line}" if row.kernel.endswith(row.file) else f"{row.line} of `{row.file}`"
    return f"{at}: {row.what} {row.counted:,}" + ("" if row.counted == row.traced else f" (traced {row.traced:,})")


def main() -> int:
    """Print a line for each; 1 if two numbers differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="ncu's pages and the compiler's lines")
    parser.add_argument("--sources", type=Path, required=True, help="a folder that holds " + EXAMPLES)
    parser.add_argument("--only", default="", help="kernels with this in their names; the page is not written")
    parser.add_argument("--collect", action="store_true", help="write the pages, on a GPU")
    parser.add_argument("--dry", action="store_true", help="with --collect: all but the launch and ncu, without a GPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    device = "cpu" if asked.dry else "cuda"
    if asked.one:
        (kernel,) = [one for one in compared() if name_of(one) == asked.one]
        if asked.collect:
            launch(asked.sources, kernel, asked.folder, device)
        else:
            print(json.dumps([vars(row) for row in rows_of(asked.sources, kernel, asked.folder)]))
        return 0
    asked.folder.mkdir(parents=True, exist_ok=True)
    kernels = [one for one in compared() if asked.only in name_of(one)]

    def done(kernel: Foreign) -> str:
        try:
            if asked.collect:
                return collect(asked.sources, asked.folder, kernel, device)
            return ran(apart(asked.sources, asked.folder, kernel)).strip().splitlines()[-1]
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return f"FAILED: {error}"

    if not asked.collect:
        kernels = [one for one in kernels if (asked.folder / f"{name_of(one)}.csv").exists()]
    rows, failed = [], 0
    with ThreadPoolExecutor(AT_ONCE if asked.collect and not asked.dry else 2) as pool:
        for kernel, said in zip(kernels, pool.map(done, kernels), strict=True):
            failed += said.startswith("FAILED")
            if asked.collect or said.startswith("FAILED"):
                print(f"{name_of(kernel)}: {said}", flush=True)
                continue
            for row in (Row(**each) for each in json.loads(said)):
                rows.append(row)
                print("same  " if row.same else "DIFFER", *vars(row).values(), sep="  ", flush=True)
    same = sum(row.same for row in rows)
    if not asked.collect:
        print(f"{same} of {len(rows)} counts are the same")
    if rows and not asked.only and not failed:
        device = (asked.folder / "device.txt").read_text().partition(",")[0]
        before = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
        PAGE.write_text(f"{before.rstrip()}\n\n{section(rows, device)}", encoding="utf-8")
    return int(failed or same < len(rows))


if __name__ == "__main__":
    sys.exit(main())
