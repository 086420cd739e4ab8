"""Tuning on demand: the first call of a shape times the kernels with the lowest predicted times, and keeps the fastest.

    with ops.tuning(): model(x)          # every product whose kind is new in here is timed, then remembered
    ops.tune(a, b)                       # this one
    COOKBOOK_TUNE=1 python train.py      # all of them; with COOKBOOK_TUNE=0 nothing that was remembered is used

An answer lies next to the compiled kernels, a file each: of a device, of versions, of a shape and its majors. Further
processes use it, tuning or not. `cookbook cache export` writes all of them to one file, `cookbook cache import` reads
it, so that one machine can tune for others. Nothing is timed while a graph is captured: such a call uses what is known.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import statistics
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from cookbook.measure import contest
from cookbook.ops import choice
from cookbook.recipe import cache as disk
from cookbook.recipe import catalog, operator

__all__ = [
    "KERNELS",
    "SETTING",
    "Answer",
    "Kind",
    "active",
    "answers",
    "clear",
    "export",
    "found",
    "import_",
    "inside",
    "kind_of",
    "time_options",
    "told",
    "tune",
]

SETTING = "COOKBOOK_TUNE"
KERNELS = 8  # that are timed: those with the lowest predicted times
ROUNDS, BATCH_MS = 5, 4.0  # short: a model has some ten shapes, and waits for them
SPARE = 0.25  # of the memory that is free: what copies of the operands may take
_LOCK = threading.RLock()  # one thread times at once, or they would time each other
_INSIDE = 0  # how many `with tuning()` there are at present, of all threads
_KNOWN: dict[str, Answer] = {}  # by the name of its file: those of this process


class Kind(NamedTuple):
    """A product, as far as the choice looks at it, and where it runs."""

    device: str
    sms: int
    dtype: str
    shape: tuple[int, int, int]
    strides: tuple[int, ...]  # of a and of b; 0 for those that only say how many rows there are
    aligned: tuple[int, int]  # bytes that a and b begin behind a multiple of 16
    bias: bool

    def about(self) -> dict[str, Any]:
        """All that an answer depends on, as JSON has it."""
        return json.loads(json.dumps(self._asdict() | {"versions": _versions()}))


class Answer(NamedTuple):
    """The fastest kernel of a kind, and what was timed."""

    about: dict[str, Any]
    recipe: str
    kernel: Any  # what the recipe's `matmul` takes for `variant`: a name, or the fields of a Config
    us: dict[str, float]  # by recipe and variant

    def fits(self, option: choice.Option) -> bool:
        """Return whether this is the kernel that it names."""
        return option.recipe == self.recipe and _plain(option.kernel) == self.kernel


@contextmanager
def inside() -> Iterator[None]:
    """Inside, first calls are tuned, in all threads."""
    global _INSIDE
    with _LOCK:
        _INSIDE += 1
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE -= 1


def active() -> bool:
    """Return whether first calls are tuned."""
    return _INSIDE > 0 or os.environ.get(SETTING, "") == "1"


def kind_of(a: torch.Tensor, b: torch.Tensor, gpu: choice.Gpu, bias: bool) -> Kind:
    """The kind of a product of a (M, K) and b (K, N)."""
    with torch.cuda.device(a.device):
        device = torch.cuda.get_device_name()
    (m, k), n = a.shape, b.shape[1]
    strides = tuple(
        int(each) if size > 1 else 0 for x in (a, b) for size, each in zip(x.shape, x.stride(), strict=True)
    )
    aligned = a.data_ptr() % 16, b.data_ptr() % 16
    name = str(a.dtype).removeprefix("torch.")
    return Kind(device, gpu.sms, name, (int(m), int(n), int(k)), strides, aligned, bias)


def found(kind: Kind, options: Sequence[choice.Option]) -> choice.Option | None:
    """The option that was the fastest when this kind was tuned; None: it was not, or that kernel is gone."""
    if os.environ.get(SETTING, "") == "0" or not (_KNOWN or _any_on_disk()):
        return None
    about = kind.about()
    name = _name(about)
    answer = _KNOWN.get(name) or _read(name)
    if answer is None or answer.about != about:
        return None
    _KNOWN[name] = answer
    return next((option for option in options if answer.fits(option)), None)


def tune(
    kind: Kind, options: Sequence[choice.Option], a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None
) -> choice.Option:
    """Time the options with the lowest predicted times at a (M, K) times b (K, N), keep the best one, and return it."""
    with _LOCK, torch.cuda.device(a.device), torch.no_grad():
        known = found(kind, options)  # another thread may have tuned it while this one waited
        if known is not None:
            return known
        tried = options[:KERNELS]
        us = time_options(tried, bias, input_sets(a, b))
        best = tried[us.index(min(us))]
        timed = {f"{x.recipe} {x.variant}".strip(): round(taken, 3) for x, taken in zip(tried, us, strict=True)}
        answer = Answer(kind.about(), best.recipe, _plain(best.kernel), timed)
        _KNOWN[_name(answer.about)] = answer
        _write(answer)
    return best


def time_options(options: Sequence[choice.Option], bias: torch.Tensor | None, sets: list[tuple]) -> list[float]:
    """Microseconds of each, interleaved, as CUDA graphs; operands (a, b) rotate so that L2 does not hold them."""
    numbered = {str(i): partial(_product, option, bias) for i, option in enumerate(options)}
    batches, counts, _ = contest.make_batches(numbered, sets, True, BATCH_MS)
    taken: dict[str, list[float]] = {name: [] for name in batches}
    for number in range(ROUNDS):
        for name in contest.shuffled(list(batches), number):
            taken[name].append(contest.elapsed_ms(batches[name]) / counts[name])
    return [1000 * statistics.median(taken[name]) for name in numbered]


def input_sets(a: torch.Tensor, b: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The operands, and copies of them that lie alike: as many as L2 does not hold, and as memory has room for."""
    size = sum(_span(x) * x.element_size() for x in (a, b)) + a.shape[0] * b.shape[1] * a.element_size()
    free, _ = torch.cuda.mem_get_info(a.device)
    count = max(1, min(contest.how_many_sets(size), int(SPARE * free / size)))
    return [(a, b), *((_copied(a), _copied(b)) for _ in range(count - 1))]


def _span(x: torch.Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _copied(x: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides that begins as far behind a multiple of 16 bytes."""
    offset = x.data_ptr() % 16 // x.element_size()
    made = x.new_empty(_span(x) + offset).as_strided(x.shape, x.stride(), offset)
    return made.copy_(x)


def _product(option: choice.Option, bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    module = catalog.load(option.recipe)
    operands = operator.fitted(module.GEMM, a, b)
    if option.epilogue:
        return module.matmul(*operands, epilogue=option.epilogue, bias=bias)
    told = {"variant": option.kernel} if option.kernel else {}
    made = module.matmul(*operands, **told)
    return made if bias is None else made.add_(bias)


# --- the disk ---------------------------------------------------------------------------------------------------------


@cache
def _versions() -> dict[str, str]:
    """Return what an answer is of besides the product: libraries, and the text of every recipe that the operator
    serves."""
    import cutlass

    texts = "".join(catalog.source_hash(recipe) for recipe in catalog.recipes() if recipe.serves)
    recipes = hashlib.sha256(texts.encode()).hexdigest()[:16]
    return {"torch": torch.__version__, "dsl": f"{cutlass.__version__} {cutlass.CUDA_VERSION}", "recipes": recipes}


def _plain(kernel: Any) -> Any:
    """A kernel as JSON has it."""
    return dataclasses.asdict(kernel) if dataclasses.is_dataclass(kernel) and not isinstance(kernel, type) else kernel


def _name(about: dict[str, Any]) -> str:
    return f"tuned_{hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]}.json"


def _file(name: str) -> Path | None:
    where = disk.folder()
    return where / name if where else None


def _parsed(text: str) -> Answer | None:
    """An answer of its file; None: it is damaged."""
    try:
        answer = Answer(**json.loads(text))
    except (TypeError, ValueError):
        return None
    fine = isinstance(answer.about, dict) and isinstance(answer.recipe, str) and isinstance(answer.us, dict)
    return answer if fine else None


def _read(name: str) -> Answer | None:
    file = _file(name)
    try:
        return _parsed(file.read_text(encoding="utf-8")) if file else None
    except (OSError, UnicodeDecodeError):
        return None


def _write(answer: Answer) -> None:
    if (file := _file(_name(answer.about))) is not None:
        disk.put(file, json.dumps(answer._asdict(), indent=1).encode())


def _any_on_disk() -> bool:
    where = disk.folder()
    return where is not None and any(where.glob("tuned_*.json"))


def answers() -> list[Answer]:
    """Return those on disk, by the name of their files."""
    where = disk.folder()
    files = sorted(where.glob("tuned_*.json")) if where and where.is_dir() else []
    read = (_read(file.name) for file in files)
    return [each for each in read if each is not None]


def told(answer: Answer) -> str:
    """An answer in words: the product, the device, and the kernel that was the fastest."""
    about, fastest = answer.about, min(answer.us, key=answer.us.__getitem__)
    shape = "x".join(map(str, about["shape"])) + (" with a bias" if about["bias"] else "")
    return f"{fastest}: the fastest of {len(answer.us)} at {shape}, {about['dtype']}, {about['device']}"


def clear() -> int:
    """Delete every answer; returns how many there were."""
    gone = answers()
    for each in gone:
        if (file := _file(_name(each.about))) is not None:
            file.unlink(missing_ok=True)
    _KNOWN.clear()
    return len(gone)


def export(file: Path) -> int:
    """Write every answer on disk to one file; returns how many."""
    known = answers()
    file.write_text(json.dumps([each._asdict() for each in known], indent=1) + "\n", encoding="utf-8")
    return len(known)


def import_(file: Path) -> int:
    """Put the answers of a file that `export` wrote on disk; returns how many.

    Raises ValueError if it is no such file.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"file: got {file}, which is no JSON ({error}); needed what `export` writes") from None
    read = [_parsed(json.dumps(each)) for each in content] if isinstance(content, list) else [None]
    if None in read:
        raise ValueError(f"file: got {file}; needed a list of answers, as `export` writes it")
    for each in read:
        assert each is not None
        _write(each)
    return len(read)
