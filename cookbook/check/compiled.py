"""Compiles a recipe for any of its targets, with no GPU, and reads what came out.

Registers and spills come from ptxas' own report, instructions from NVIDIA's disassembler, shared memory from
the recipe's configuration. NVIDIA's own checker of barriers, `warnings{nvvm}`, runs in the same compile: what it says
is a note. The binaries live in a temporary folder and go with it.
"""

from __future__ import annotations

import io
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any

from cookbook.check.findings import Finding
from cookbook.recipe import catalog, versions
from cookbook.recipe.contract import SizedByChip, Variants
from cookbook.simulate import positions

KIB = 1024
# Bytes of shared memory that one block may use: CUDA C++ Programming Guide, technical specifications per
# compute capability. 1 KiB of what the SM has belongs to the system.
SMEM_LIMITS = {80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227, 120: 99, 121: 99}
SMEM_LIMITS = {capability: kib * KIB for capability, kib in SMEM_LIMITS.items()}
REGISTER_FILE = 65536  # 32-bit registers of an SM, on every target above: a block's threads must fit
REPORTING = "4.8"  # of CuTe DSL: the first whose remarks have what ptxas reports
# Of CuTe's compile options, in this order: of `diagnostic=` and the like the last one holds.
SAID = "remarks{ptx} warnings{nvvm,ptx}"
MAX_REGISTERS = 255  # what one thread can name

_REGISTERS = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers?)?")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_STATIC_SMEM = re.compile(r"(\d+) bytes smem")
_THREADS = re.compile(r"\.(?:reqntid|maxntid) (\d+)")  # the block's first extent, in PTX
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)

# Of wgmma and mma.sync in PTX: accumulators, A, B. The types of tcgen05.mma stand in its instruction descriptor.
_MMA = re.compile(
    r"\b(?:wgmma\.mma_async|mma\.sync)\S*?\.m\d+n\d+k\d+(?:\.row\.col)?(?:\.satfinite)?\.(\w+)\.(\w+)\.(\w+)"
)
_OPERANDS = {"bfloat16": "bf16", "float16": "f16"}

# What NVIDIA's checker says, and the line that it names.
_CHECKER = re.compile(r"^(?:error|warning): (?P<said>.+)$(?:\s*--> \S*?(?P<at>[^/\s]+\.py:\d+))?", re.MULTILINE)
_COLOURS = re.compile(r"\x1b\[[\d;]*m")

_ADDRESS = re.compile(r"\s+/\*([0-9a-f]{4,})\*/")
_STATEMENT = re.compile(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z].*?)\s*;")
_LABEL = re.compile(r"(\.L_\w+):")
_TARGET = re.compile(r"`\((\.L_\w+)\)")


class NoDisassembler(RuntimeError):
    """nvdisasm is neither installed with pip nor on PATH."""


class NoReport(RuntimeError):
    """The installed CuTe DSL does not pass on what ptxas reports."""


@dataclass(frozen=True)
class Compiled:
    """The result of a compile for one target and dtype."""

    name: str
    arch: str
    dtype: str | None  # None for a study: its kernels have types of their own
    registers: int  # per thread, the kernel with the most
    spills: int  # bytes stored to and loaded from local memory by register spills
    barriers: int  # named barriers of a block
    threads: int  # of a block
    smem_bytes: int  # static and dynamic, of a block
    smem_limit: int  # what the chip gives a block
    sass_counts: dict[str, int]  # full mnemonic -> how often it stands in the code
    ptx: str
    sass: str
    checker: tuple[str, ...]  # what NVIDIA's checker asks to verify, with lines
    seconds: float  # to compile, without loading the recipe

    def count(self, mnemonic: str) -> int:
        """Return how many instructions are `mnemonic`: see `matches`."""
        return sum(n for name, n in self.sass_counts.items() if matches(name, mnemonic))

    def figures(self) -> dict[str, Any]:
        """The numbers of this compile, without PTX and SASS."""
        keys = ("registers", "spills", "barriers", "threads", "smem_bytes", "smem_limit")
        checker = {"checker": list(self.checker)}
        return {key: getattr(self, key) for key in keys} | checker | {"seconds": round(self.seconds, 2)}


def compile_recipe(
    name: str, arch: str, dtype: str | None = None, *, config: Any = None, options: str = ""
) -> Compiled:
    """Compile a recipe for `arch` (`"sm_90a"`) and `dtype` (`"bfloat16"`); needs no GPU.

    Args:
        name: a recipe's name.
        arch: a compile target; not only those the recipe lists.
        dtype: torch's name of the operands' type; None for a study.
        config: the recipe's `Config`; the one it has for `arch` if left out.
        options: more of CuTe's compile options.

    Raises:
        UnknownRecipe: there is no such recipe.
        ValueError: `arch` or `dtype` is not known.
        NoDisassembler, NoReport: the instructions cannot be counted here, or the registers.
    """
    return compile_module(catalog.load(name), catalog.find(name).name, arch, dtype, config, options)


def compile_module(
    module: Any, name: str, arch: str, dtype: str | None = None, config: Any = None, options: str = ""
) -> Compiled:
    """`compile_recipe` for a module that is already loaded; `name` only labels the result."""
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        built = _build(module, name, arch, dtype, config, options, Path(folder))
        return _compiled(built, "\n".join(disassemble(cubin) for cubin in built.cubins))


def compile_modules(module: Any, name: str, arch: str, dtype: str | None, configs: Iterable[Any]) -> list[Compiled]:
    """`compile_module` for each of several configurations, with one run of the disassembler for them all.

    It takes a quarter of a second to begin, a third of what compiling a small kernel takes. The listings are
    `disassemble_code`'s.
    """
    with tempfile.TemporaryDirectory(prefix="cookbook-") as folder:
        built = []
        for number, config in enumerate(configs):
            into = Path(folder) / str(number)
            into.mkdir()
            built.append(_build(module, name, arch, dtype, config, "", into))
        code = [b"".join(machine_code(cubin.read_bytes()) for cubin in each.cubins) for each in built]
        return [_compiled(*each) for each in zip(built, disassemble_code(code, arch), strict=True)]


@dataclass(frozen=True)
class _Built:
    """The compiler's result before the machine code is read: `Compiled`'s own fields, and files."""

    name: str
    arch: str
    dtype: str | None
    config: Any
    said: str  # by the compiler
    ptx: str
    cubins: list[Path]
    seconds: float


def _build(module: Any, name: str, arch: str, dtype: str | None, config: Any, options: str, folder: Path) -> _Built:
    """Compile into `folder`."""
    smem_limit(arch)  # a wrong arch is named before anything is compiled
    if versions.key(versions.installed() or REPORTING) < versions.key(REPORTING):
        needed = f"{REPORTING} or later, whose remarks have the report of ptxas"
        raise NoReport(f"CuTe DSL: got {versions.installed()}; needed {needed}")
    config = config or config_for(module, arch)
    keep = f"--keep-ptx --keep-cubin --dump-dir {folder} {SAID}"
    start = time.perf_counter()
    which = () if dtype is None else (cutlass_dtype(dtype), config)
    with positions.read_once(), reported() as said:
        module.compile_for(arch, *which, options=f"{keep} {options}".strip())
    seconds = time.perf_counter() - start
    ptx = "\n".join(file.read_text() for file in sorted(folder.glob("*.ptx")))
    return _Built(name, arch, dtype, config, said.getvalue(), ptx, sorted(folder.glob("*.cubin")), seconds)


def _compiled(built: _Built, sass: str) -> Compiled:
    """Return what was built, with its machine code as text."""
    config, said = built.config, _COLOURS.sub("", built.said)
    ptxas = " ".join(said.split())  # the report is wrapped, between any two words
    used = [(int(r), int(b or 0)) for r, b in _REGISTERS.findall(ptxas)]
    if not used or not sass:
        raise RuntimeError(f"{built.name}: the compiler left no ptxas report or no cubin for {built.arch}")
    static = sum(int(n) for n in _STATIC_SMEM.findall(ptxas))
    return Compiled(
        name=built.name,
        arch=built.arch,
        dtype=built.dtype,
        registers=max(r for r, _ in used),
        spills=sum(int(s) + int(load) for s, load in _SPILLS.findall(ptxas)),
        barriers=max(b for _, b in used),
        threads=config.threads if config else max(int(n) for n in _THREADS.findall(built.ptx)),
        smem_bytes=static + (config.smem_bytes if config else 0),
        smem_limit=smem_limit(built.arch),
        sass_counts=dict(Counter(_INSTRUCTION.findall(sass)).most_common()),
        ptx=built.ptx,
        sass=sass,
        checker=tuple(f"{one['said']} ({one['at']})" for one in _CHECKER.finditer(said)),
        seconds=built.seconds,
    )


def config_for(module: Any, arch: str) -> Any:
    """The configuration a recipe uses on `arch`: its `config_for(arch)`, else its `CONFIG`; a study may have none."""
    return module.config_for(arch) if isinstance(module, SizedByChip) else getattr(module, "CONFIG", None)


def variants(module: Any, arch: str) -> dict[str, Any]:
    """The configurations of a GEMM's `VARIANTS` on `arch`, by name; none of a recipe that has a single kernel."""
    if not isinstance(module, Variants):
        return {}
    fitting = getattr(module, "config_for", lambda _, name: module.VARIANTS[name])
    return {name: fitting(arch, name) for name in module.VARIANTS}


def findings(compiled: Compiled, required: tuple[str, ...] = ()) -> list[Finding]:
    """Return what must hold: instructions present, no spills, registers and shared memory within the chip."""
    c = compiled
    registers = f"{c.registers} a thread x {c.threads} threads; at most {MAX_REGISTERS} and {REGISTER_FILE}"
    fits = c.registers <= MAX_REGISTERS and c.registers * c.threads <= REGISTER_FILE
    return [
        *(_present(c, wanted) for wanted in required),
        Finding("spills", c.spills == 0, f"{c.spills} bytes; needed 0"),
        Finding("registers", fits, registers),
        Finding("smem", c.smem_bytes <= c.smem_limit, f"{c.smem_bytes} bytes; at most {c.smem_limit}"),
    ]


def _present(c: Compiled, wanted: str) -> Finding:
    """Return whether an instruction of the front matter is there; if not, what is there of that opcode."""
    count, opcode = c.count(wanted), wanted.partition(".")[0]
    others = sorted(full for full in c.sass_counts if full.partition(".")[0] == opcode)
    why = f": of {opcode} the configuration gives {', '.join(others)}" if others and not count else ""
    return Finding(wanted, count > 0, f"{count} in the SASS; at least 1{why}")


def type_findings(compiled: Compiled, element: str = "") -> list[Finding]:
    """Return whether the MMAs multiply what the operands are made of, and sum in float32, or in int32 of integers; none
    where there are no such MMAs.

    Args:
        element: of operands of 8 bits (`"e4m3"`); that of `compiled.dtype` if left out.
    """
    element = element or _OPERANDS.get(compiled.dtype or "", "")
    said = sorted(set(_MMA.findall(compiled.ptx)))
    if not said or not element:
        return []
    needed = ("s32", "s8", "s8") if element == "int8" else ("f32", element, element)
    got = " and ".join(".".join(types) for types in said)
    detail = f"{got} in the PTX (accumulators, A, B); needed {'.'.join(needed)}"
    return [Finding("mma types", said == [needed], detail)]


def matches(full: str, wanted: str) -> bool:
    """Return whether the mnemonic `full` is a `wanted` one: its opcode, and all of its modifiers in order.

    `LDGSTS.E.BYPASS.LTC128B.128` is an `LDGSTS.E.BYPASS.128`: the chips differ in the cache hints between.
    """
    opcode, *modifiers = full.split(".")
    wanted_opcode, *wanted_modifiers = wanted.split(".")
    rest = iter(modifiers)
    return opcode == wanted_opcode and all(modifier in rest for modifier in wanted_modifiers)


def smem_limit(arch: str) -> int:
    """Bytes of shared memory a block may use on `arch` (`"sm_90a"`).

    Raises:
        ValueError: the arch is not one the cookbook knows.
    """
    digits = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if digits is None or int(digits[1]) not in SMEM_LIMITS:
        known = ", ".join(f"sm_{n}" for n in SMEM_LIMITS)
        raise ValueError(f"arch: got {arch!r}; needed one of {known}, with an a or f where the chip has one")
    return SMEM_LIMITS[int(digits[1])]


def arch_here() -> str:
    """The architecture of the current CUDA device: `"sm_90"`. Needs a GPU."""
    import torch

    return "sm_{}{}".format(*torch.cuda.get_device_capability())


def cutlass_dtype(dtype: str) -> Any:
    """CuTe's numeric type for torch's name of one: `"bfloat16"` -> `cutlass.BFloat16`.

    Raises:
        ValueError: not float16, bfloat16, float32 or int32.
    """
    import cutlass

    floats = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16, "float32": cutlass.Float32}
    known = floats | {"int32": cutlass.Int32}
    if dtype not in known:
        raise ValueError(f"dtype: got {dtype!r}; needed one of {', '.join(known)}")
    return known[dtype]


# --- what the compiler says and leaves ----------------------------------------------------------------------


@contextmanager
def reported() -> Iterator[io.StringIO]:
    """Collect what CuTe's compiler writes meanwhile, with the options SAID: ptxas' report, and the checker's names."""
    with redirect_stderr(io.StringIO()) as said:
        yield said


def disassemble(cubin: Path, *options: str) -> str:
    """The SASS of a cubin. options: more of nvdisasm's.

    Raises:
        NoDisassembler: nvdisasm is not installed.
    """
    command = [str(nvdisasm()), "--print-code", "--no-dataflow", *options, str(cubin)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed on {cubin.name}: {done.stderr.strip()}")
    return done.stdout


def machine_code(cubin: bytes) -> bytes:
    """The instructions of every kernel in a cubin: the sections `.text.KERNEL` of a 64-bit ELF file."""
    (headers,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQ", cubin, headers + number * size) for number in range(count)]
    texts = sections[names][4]
    found = []
    for name, _, _, _, offset, length in sections:
        if cubin.startswith(b".text.", texts + name):
            found.append(cubin[offset : offset + length])
    return b"".join(found)


def disassemble_code(pieces: list[bytes], arch: str) -> list[str]:
    """The SASS of several pieces of machine code (`machine_code`) of one architecture: no labels, no kernels' names.

    Raises:
        NoDisassembler: nvdisasm is not installed.
    """
    with tempfile.NamedTemporaryFile(prefix="cookbook-", suffix=".bin") as together:
        together.write(b"".join(pieces))
        together.flush()
        command = [str(nvdisasm()), "--binary", arch.replace("sm_", "SM"), together.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm failed on machine code for {arch}: {done.stderr.strip()}")
    ends = list(accumulate(map(len, pieces)))
    listings: list[list[str]] = [[] for _ in pieces]
    for line in done.stdout.splitlines():
        if address := _ADDRESS.match(line):
            listings[bisect_right(ends, int(address[1], 16))].append(line)
    return ["\n".join(lines) for lines in listings]


def innermost_loop(sass: str, mnemonic: str) -> list[str]:
    """The instructions, predicates left out, of the shortest loop with a `mnemonic` in it; see `matches`.

    Args:
        sass: a listing of `disassemble`, which has labels.

    Raises:
        ValueError: no loop has one.
    """
    labels: dict[str, int] = {}
    found: list[str] = []
    loops = []
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif (instruction := _STATEMENT.match(line)) is not None:
            found.append(instruction[1])
            target = _TARGET.search(instruction[1])
            if target and instruction[1].startswith("BRA") and target[1] in labels:
                loops.append(found[labels[target[1]] :])
    inside = [loop for loop in loops if any(matches(each.split()[0], mnemonic) for each in loop)]
    if not inside:
        raise ValueError(f"mnemonic: got {mnemonic!r}; no loop has one")
    return min(inside, key=len)


@lru_cache(maxsize=1)
def nvdisasm() -> Path:
    """NVIDIA's disassembler: the pip package nvidia-cuda-nvdisasm's, or the one on PATH.

    Raises:
        NoDisassembler: there is neither; the message says what to install.
    """
    for found in _nvdisasm_candidates():
        if found.is_file():
            return found
    raise NoDisassembler("nvdisasm not found: pip install nvidia-cuda-nvdisasm, or put a CUDA toolkit on PATH")


def _nvdisasm_candidates() -> Iterator[Path]:
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name in ("nvdisasm", "nvdisasm.exe"):
            yield Path(str(file.locate()))
    yield from sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/nvdisasm*"))
    if on_path := shutil.which("nvdisasm"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvdisasm")
