"""Compare a record with the machine code that the recipe's text gives today: compile it, with no GPU.

A record names every kernel that its figures may have come from, and holds two hashes of each, both of what CuTe's
compiler makes for the record's target under the record's version of CuTe:

    ptx     its PTX without comments, debug information, the version of PTX, and names of kernels
    launch  the function that launches it: grid, block and cluster, shared memory, TMA's descriptors

Where both are today what they were, the GPU would run what it ran. `tools.records.device_code` answers faster, from
the text alone, and may say stale where this says current: then `restamp` renews the record. Nothing makes this say
current of a record whose kernels have changed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.check import workers
from cookbook.measure import records
from cookbook.measure.kernels import WIDTHS, Kernel
from cookbook.measure.records import Record
from cookbook.recipe import catalog
from cookbook.settings import cute_settings
from tools.records import device_code, suites

__all__ = [
    "CURRENT",
    "DIFFERS",
    "NOT_COMPARED",
    "STATUSES",
    "Kernel",
    "Probes",
    "Verdict",
    "compare",
    "how_many",
    "is_settled",
    "kernels_of",
    "restamp",
    "stamp",
    "use_probes",
]

STATUSES = (CURRENT, DIFFERS, NOT_COMPARED) = ("current", "differs", "not compared")
DSL = "nvidia-cutlass-dsl"
BATCH = 6  # kernels that a worker compiles before it reports: those of one recipe follow each other

Progress = Callable[[str], None]


class Code(NamedTuple):
    """Hashes of what a kernel compiles to, or why it does not compile."""

    ptx: str
    launch: str
    error: str = ""


class Verdict(NamedTuple):
    """A record's state against today's machine code: CURRENT, DIFFERS or NOT_COMPARED, and why it is not current."""

    record: Record
    status: str
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what tells the record from others, the status and why."""
        about = ("device", "recipe", "level", "dtype", "shape", "majors")
        return {key: self.record.get(key) for key in about} | {"status": self.status, "why": self.why}


# --- suites of probes ------------------------------------------------------------------------------------------------


class Probes(NamedTuple):
    """Name and compile the kernels of suites of probes. The probes are no part of this package."""

    launches: Callable[[Record], list[tuple[tuple[str, Any], ...]]]  # `Kernel.changes` of each kernel of a record
    compile_launch: Callable[[str, str, dict[str, Any]], Any]  # of a suite, a dtype and such changes
    model_hash: Callable[[Record], str]  # of what the model said of the record's tables


_probes: list[Probes] = []


def use_probes(*probes: Probes) -> None:
    """Records of probes are compared by these from now on; without any, they are not compared."""
    _probes[:] = probes


# --- which kernels a record is of -----------------------------------------------------------------------------------


def kernels_of(record: Record) -> list[Kernel]:
    """Every kernel that may have been launched for a record, as the recipe's text says today.

    All variants of a GEMM, for `matmul` chooses among them, and `ran`, `counted` and `timed` go through them all. All
    widths of stores where many shapes were run, and the one that fits N where it was one shape.
    """
    target = record.get("target")
    if not target:
        return []
    if record["recipe"] in suites.SUITES:
        launches = _probes[0].launches(record) if _probes else []
        return [Kernel(record["recipe"], target, record["dtype"], changes=changes) for changes in launches]
    found = _kernels(record["recipe"], record, target)
    for name in record.get("of", {}):
        experiment = getattr(catalog.load(record["recipe"]), "EXPERIMENT", None)
        found += _of_experiment(experiment, target) if experiment else _kernels(name, record, target)
    return list(dict.fromkeys(found))


def _kernels(name: str, record: Record, target: str) -> list[Kernel]:
    recipe = catalog.find(name)
    return recipe.product.kernels(recipe, catalog.load(name), record, target)


def _of_experiment(experiment: Any, target: str) -> list[Kernel]:
    configs = experiment.configs.values()
    about = {"recipe": experiment.recipe, "target": target, "dtype": experiment.dtype, "vec": WIDTHS[0]}
    return [Kernel(**about, changes=tuple(sorted(changes.items()))) for changes in configs]


# --- what they compile to -------------------------------------------------------------------------------------------


def code(kernel: Kernel) -> Code:
    """Compile a kernel, in this process and without a GPU. What goes wrong there is `error`."""
    try:
        with _compiling(kernel.target) as folder:
            made = _compile(kernel)
            texts = [normal_ptx(file.read_text(encoding="utf-8")) for file in Path(folder).glob("*.ptx")]
        if not texts:
            return Code("", "", "the compiler left no PTX")
        return Code(device_code.digest(*sorted(texts)), device_code.digest(normal_launch(str(made.ir_module))))
    except Exception as error:  # whatever a changed recipe raises: it is told of this kernel, and the others go on
        return Code("", "", f"{type(error).__name__}: {error}".split("\n")[0])


def _compile(kernel: Kernel) -> Any:
    if kernel.recipe in suites.SUITES:
        return _probes[0].compile_launch(kernel.recipe, kernel.dtype, dict(kernel.changes))
    return catalog.find(kernel.recipe).product.compile(catalog.load(kernel.recipe), kernel)


@contextmanager
def _compiling(target: str) -> Iterator[str]:
    """CuTe compiles for `target` where a recipe names none, and leaves the PTX in the folder that this gives."""
    folder = tempfile.TemporaryDirectory(prefix="cookbook-")
    with folder as kept, cute_settings(keep_ptx=True, dump_dir=kept, arch=target):
        yield kept


_LEFT_OUT = re.compile(r"\s*\.(version|file|loc)\b")
_DEBUG = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.DOTALL | re.MULTILINE)
_KERNEL = re.compile(r"\.(?:entry|func)\s+(?:\([^)]*\)\s*)?([\w$]+)")


def normal_ptx(ptx: str) -> str:
    """PTX without what does not reach the machine code; its kernels are called by their number."""
    text = _DEBUG.sub("", ptx)
    text = re.sub(r"//.*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL))
    lines = (" ".join(line.split()) for line in text.splitlines() if not _LEFT_OUT.match(line))
    text = "\n".join(line for line in lines if line)
    numbers = {name: f"kernel{number}" for number, name in enumerate(dict.fromkeys(_KERNEL.findall(text)))}
    if not numbers:
        return text
    known = "|".join(map(re.escape, sorted(numbers, key=len, reverse=True)))
    return re.sub(rf"(?<![\w$])({known})(?=_param_\d+\b|(?![\w$]))", lambda found: numbers[found[1]], text)


_TEXT = re.compile(r'llvm\.mlir\.constant\("(?:[^"\\]|\\.)*"\)')
_SYMBOL = re.compile(r'@(?:"(?:[^"\\]|\\.)*"|[\w$.:]+)')
_CONSTANT = re.compile(r"\s*(?P<name>%\w+) = llvm\.mlir\.(?P<value>(?:constant|poison|undef|zero)\b.*)")
_VALUE = re.compile(r"%\w+")
_RUNTIME = ("@_cu", "@printf", "@cuda_")  # functions that are not of the recipe


def normal_launch(module: str) -> str:
    """Return what CuTe made of a launch function (lowered MLIR), without the cubin, names, texts and places of
    constants."""
    lines = (line for line in module.splitlines() if not line.lstrip().startswith("llvm.mlir.global internal constant"))
    text = re.sub(r"array<\d+ x i8>", "text", _TEXT.sub("text", "\n".join(lines)))  # names are as long as they are
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        name = found[0]
        return name if name.startswith(_RUNTIME) else numbers.setdefault(name, f"@{len(numbers)}")

    return _SYMBOL.sub(number, "\n".join(_values_numbered(text.splitlines())))


def _values_numbered(lines: list[str]) -> Iterator[str]:
    """Lines of MLIR with each constant where it is used, and a function's other values numbered as they come.

    A constant has no effect where it is made. CuTe makes one for each number that Python meets, so that the order of
    two arguments, or a number that is written twice, would change every line after it.
    """
    values: dict[str, str] = {}
    number = count()
    for line in lines:
        if "llvm.func" in line:
            values, number = {}, count()
        if made := _CONSTANT.match(line):
            values[made["name"]] = f"<{made['value']}>"
        else:
            for name in _VALUE.findall(line):
                if name not in values:
                    values[name] = f"%{next(number)}"
            yield _VALUE.sub(lambda found, known=values: known[found[0]], line)


def compile_all(
    kernels: Iterable[Kernel], jobs: int | None = None, on_progress: Progress = lambda text: None
) -> dict[Kernel, Code]:
    """Return what each kernel compiles to; each is compiled once, in several processes.

    Args:
        jobs: how many processes; 1 is this one alone. If left out, as many as there are CPUs, up to workers.MOST.
        on_progress: told each kernel once it is compiled.

    Raises:
        ValueError: `jobs` is less than 1.
        ChildProcessError: a process ended before it was done.
    """
    wanted = sorted(dict.fromkeys(kernels), key=str)
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs: got {jobs}; needed 1 or more")
    batches = [some for _, of in groupby(wanted, key=lambda k: k.recipe) for some in _batches(list(of))]
    processes = min(jobs or workers.default_jobs(len(wanted)), len(batches))
    found: dict[Kernel, Code] = {}
    if processes <= 1:
        for kernel in wanted:
            found[kernel] = code(kernel)
            on_progress(str(kernel))
        return found
    for batch, answer in workers.spread(_codes, batches, processes, (use_probes, *_probes)):
        if isinstance(answer, workers.Died):
            raise ChildProcessError(f"{batch[0]}: its process {answer.how}")
        for kernel, made in answer:
            found[kernel] = made
            on_progress(str(kernel))
    return found


def _batches(kernels: list[Kernel]) -> Iterator[list[Kernel]]:
    for start in range(0, len(kernels), BATCH):
        yield kernels[start : start + BATCH]


def _codes(batch: list[Kernel]) -> list[tuple[Kernel, Code]]:
    return [(kernel, code(kernel)) for kernel in batch]


# --- verdicts -------------------------------------------------------------------------------------------------------


def compare(
    found: Sequence[Record], jobs: int | None = None, on_progress: Progress = lambda text: None
) -> list[Verdict]:
    """Compile what records are of, each kernel once, and say of each record whether it is current.

    Args:
        jobs: how many processes compile, as `compile_all` takes it.
        on_progress: told each kernel once it is compiled.
    """
    obstacles = [obstacle(record) for record in found]
    wanted = [k for record, why in zip(found, obstacles, strict=True) if not why for k in _held(record)]
    made = compile_all(wanted, jobs, on_progress)
    return [
        Verdict(record, NOT_COMPARED, why) if why else _verdict(record, made)
        for record, why in zip(found, obstacles, strict=True)
    ]


def how_many(found: Iterable[Record]) -> int:
    """Return how many kernels `compare` compiles for these records."""
    return len({kernel for record in found if not obstacle(record) for kernel in _held(record)})


def is_settled(record: Record) -> bool:
    """Return whether `restamp` has nothing to do with a record: it is current, and has the hashes of its kernels."""
    return bool(record.get("kernels")) and not records.is_stale(record)


def _held(record: Record) -> list[Kernel]:
    return [Kernel.from_json(kernel) for kernel in record["kernels"]]


def obstacle(record: Record) -> str:
    """Why a record cannot be compared with what is compiled here; "" if it can."""
    measured, here = record["versions"].get(DSL), records.package_version(DSL)
    if measured != here:
        return f"{DSL} {here or 'is not installed'} here; the record is of {measured}"
    if record["recipe"] in suites.SUITES and not _probes:
        return "a suite of probes: `python -m tools.probes --restamp` compares those"
    if not record.get("kernels"):
        return "the record names no kernels"
    return ""


def _verdict(record: Record, made: dict[Kernel, Code]) -> Verdict:
    for held in record["kernels"]:
        kernel = Kernel.from_json(held)
        ptx, launch, error = made[kernel]
        if error:
            return Verdict(record, DIFFERS, f"{kernel}: {error}")
        for what, then, now in (("PTX", held["ptx"], ptx), ("launch", held["launch"], launch)):
            if then != now:
                return Verdict(record, DIFFERS, f"{kernel}: another {what}")
    if _model(record).get("model") != record.get("model"):
        return Verdict(record, DIFFERS, "the model says something else")
    return Verdict(record, CURRENT)


class Restamped(NamedTuple):
    """The result of `restamp`."""

    current: list[Record]  # they were so already
    renewed: list[Record]  # their kernels are the same to the bit: they have today's hash of the device code
    stamped: list[Record]  # current, but with no hashes of their kernels yet: they have them now
    refused: list[Verdict]


def restamp(
    found: Sequence[Record],
    root: Path | None = None,
    jobs: int | None = None,
    on_progress: Progress = lambda text: None,
) -> Restamped:
    """Renew the records whose device code reads otherwise but compiles to the same; write them.

    Times of the host stay as stale as they are.

    Args:
        found: records, as `records.read` gives them.
        root: where to write them; results/ if left out.
        jobs: how many processes compile, as `compile_all` takes it.
        on_progress: told each kernel once it is compiled.
    """
    current = [record for record in found if is_settled(record)]
    stale = [record for record in found if records.is_stale(record)]
    bare = [record for record in found if not record.get("kernels") and not records.is_stale(record)]
    verdicts = compare(stale, jobs, on_progress)
    renewed = [renew(v.record) for v in verdicts if v.status == CURRENT]
    stamped, unstamped = stamp(bare, jobs, on_progress)
    if renewed or stamped:
        records.write([*renewed, *stamped], root)
    return Restamped(current, renewed, stamped, [v for v in verdicts if v.status != CURRENT] + unstamped)


def renew(record: Record) -> Record:
    """The record with today's hashes of the device code."""
    of = {"of": {name: records.code_of(name) for name in record["of"]}} if "of" in record else {}
    return record | {"code": records.code_of(record["recipe"])} | of


def stamp(
    found: Sequence[Record], jobs: int | None = None, on_progress: Progress = lambda text: None
) -> tuple[list[Record], list[Verdict]]:
    """Compile the kernels of records that are current, and put their hashes in; the records, and what could not be.

    A record has none of these when it was just measured: its device code is today's, and so are its kernels.
    """
    wanted: list[tuple[Record, list[Kernel]]] = []
    refused = []
    for record in found:
        if why := _unstampable(record):
            refused.append(Verdict(record, NOT_COMPARED, why))
        else:
            wanted.append((record, kernels_of(record)))
    made = compile_all((kernel for _, kernels in wanted for kernel in kernels), jobs, on_progress)
    stamped = []
    for record, kernels in wanted:
        failed = next((f"{kernel}: {made[kernel].error}" for kernel in kernels if made[kernel].error), "")
        if failed or not kernels:
            refused.append(Verdict(record, NOT_COMPARED, failed or "no kernel of it is known"))
            continue
        hashes = [k.to_json() | {"ptx": made[k].ptx, "launch": made[k].launch} for k in kernels]
        stamped.append(record | {"kernels": hashes} | _model(record))
    return stamped, refused


def _unstampable(record: Record) -> str:
    if not record.get("target"):
        return "the record does not say what its kernels were compiled for"
    return obstacle(record | {"kernels": [True]})


def _model(record: Record) -> dict[str, str]:
    return {"model": _probes[0].model_hash(record)} if record["recipe"] in suites.SUITES else {}
