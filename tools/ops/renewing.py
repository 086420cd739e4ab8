"""Compare the operator's records with today's machine code, as `tools.records.freshness` does for others.

A record of `bench --regret` holds a hash of each kernel that was timed, under "kernels": of its PTX and of the function
that launches it. Where a recipe reads otherwise than it did, but all of these compile to the same, `restamp` gives the
record today's hashes of the device code. A name stands for what is compiled under it at the record's product today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.check import compiled
from cookbook.measure import records
from cookbook.ops import choice
from cookbook.recipe import catalog
from tools.ops import measuring, unseen
from tools.records import device_code, freshness

__all__ = ["Restamped", "restamp", "wanted"]

Shape = dict[str, Any]  # a record of one product
TARGET = "sm_{}{}a"


class Restamped(NamedTuple):
    """Counts of records left alone, renewed, and given the hashes of their kernels; why others were refused."""

    left: int
    renewed: int
    stamped: int
    refused: list[str]


def restamp(
    root: Path | None = None, jobs: int | None = None, on_progress: freshness.Progress = lambda text: None
) -> Restamped:
    """Renew the records whose kernels are the same to the bit, add hashes to those that have none, and write them.

    Records that nothing can be compared with are left alone: `bench --regret` measures them again.

    Args:
        root: where they are; results/ if left out.
        jobs: how many processes compile.
        on_progress: told each kernel once it is compiled.
    """
    found = _read(root)
    compared = {number: kernels_of(found[number].shape) for number in _due(found)}
    made = freshness.compile_all({k for each in compared.values() for k in each.values() if k}, jobs, on_progress)
    renewed, stamped, refused = set(), set(), []
    for number, kernels in compared.items():
        shape = found[number].shape
        hashes = {name: _hash(made[kernel]) if kernel else "" for name, kernel in kernels.items()}
        held = shape.get("kernels", hashes)
        if wrong := next((name for name in held if not hashes[name] or hashes[name] != held[name]), ""):
            refused.append(f"{found[number]}: {wrong} compiles to something else, or is gone")
            continue
        (renewed if "kernels" in shape else stamped).add(number)
        shape |= {"kernels": hashes, "code": {name: records.code_of(name) for name in shape["code"]}}
    for write in dict.fromkeys(found[number].write for number in (*renewed, *stamped)):
        write([each.shape for each in found if each.write == write])
    return Restamped(len(found) - len(compared), len(renewed), len(stamped), refused)


def wanted(root: Path | None = None) -> int:
    """Return how many kernels `restamp` compiles."""
    found = _read(root)
    return len({k for number in _due(found) for k in kernels_of(found[number].shape).values() if k})


class _Found(NamedTuple):
    """A record, and what writes all of its file, or of its seed."""

    where: str
    shape: Shape
    write: Callable[[Iterable[Shape]], Any]

    def __str__(self) -> str:
        return f"{self.where}, {'x'.join(map(str, self.shape['shape']))} {self.shape['dtype']}"


def _read(root: Path | None) -> list[_Found]:
    """All records that are of this version of CuTe."""
    found = []
    for device, content in measuring.read(root).items():
        write = _Writer(measuring.write, (device,), root)
        found += [_Found(f"{device}, {measuring.FILE}", shape, write) for shape in content["shapes"].values()]
    for device, seeds in unseen.read(root).items():
        for seed, shapes in seeds.items():
            write = _Writer(unseen.write, (device, seed), root)
            found += [_Found(f"{device}, seed {seed}", shape, write) for shape in shapes]
    here = records.package_version(freshness.DSL)
    return [each for each in found if each.shape["versions"].get(freshness.DSL) == here]


class _Writer(NamedTuple):
    """A function that writes shapes, with what it takes before them."""

    function: Callable[..., Path]
    given: tuple[Any, ...]
    root: Path | None

    def __call__(self, shapes: Iterable[Shape]) -> Path:
        return self.function(*self.given, list(shapes), root=self.root)


def _due(found: list[_Found]) -> list[int]:
    """The numbers of those to be compared or stamped: stale with hashes, or current without."""
    return [
        number
        for number, each in enumerate(found)
        if measuring.reads_otherwise(each.shape) == ("kernels" in each.shape)
    ]


def kernels_of(shape: Shape) -> dict[str, freshness.Kernel | None]:
    """Return what each timed name stands for today; None: nothing."""
    case, gpu = measuring.case_of(shape), measuring.gpu_of(shape)
    options = {measuring.name_of(each): each for each in choice.ranked(*measuring.laid(case), case.dtype, gpu)}
    names = [name for name in shape["us"] if name not in measuring.PEERS]
    return {name: _kernel(case, options[name], gpu) if name in options else None for name in names}


def _kernel(case: measuring.Case, option: choice.Option, gpu: choice.Gpu) -> freshness.Kernel:
    config, *vec = measuring.made_of(case, option, gpu)
    target = TARGET.format(*gpu.capability)
    usual = compiled.config_for(catalog.load(option.recipe), target)
    changes = {each.name: getattr(config, each.name) for each in fields(config) if each.init}
    changed = {name: value for name, value in changes.items() if value != getattr(usual, name)}
    return freshness.Kernel(
        option.recipe, target, case.dtype, vec=vec[0] if vec else 0, changes=tuple(sorted(changed.items()))
    )


def _hash(code: freshness.Code) -> str:
    """Hash a kernel and its launch; "" where it does not compile."""
    return "" if code.error else device_code.digest(code.ptx, code.launch)[:16]
