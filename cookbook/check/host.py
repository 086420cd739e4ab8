"""Check what a recipe's `matmul` launches, with no GPU: tensors of the CPU pass for CUDA's, and no kernel is compiled.

Calls of many kinds are made, again and again, so that plans are found again. Each launch must be told of the very
matrices of its call: addresses, sizes and strides, a kernel for their dtypes and majors, stores no wider than the rows
of C allow. In place of the kernel a stand-in fills C where it was told to, and `matmul` must return that. Calls that
the kernels cannot serve must be refused.

Memory that CTAs share is looked at when the kernel is launched: what must be 0, and whether there is as much of it as
the level *product* sees touched. `chain` is called too: no kernel may read early what an earlier one may still write.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from cookbook.check import product
from cookbook.check.calls import Call, calls, legal, matrix
from cookbook.check.findings import Finding
from cookbook.check.pipeline.programs import Problem, named_arguments
from cookbook.check.watched import SMS, STREAM, Launched, Watched, watched
from cookbook.recipe import majors
from cookbook.recipe.catalog import Recipe

__all__ = ["findings"]

TORCH_NAMES = {"BFloat16": "bfloat16", "Float16": "float16", "Int8": "int8"}  # of element types; narrow floats vary
SHARED = ("sums", "flags")  # memory that CTAs of a launch share, which `matmul` makes
ZEROS = ("flags", "amax")  # what is 0 when the kernel that counts it up, or raises it, is launched for the first time
FEW = 8  # SMs of a small GPU


class Number(NamedTuple):
    """A number that a kernel was called with."""

    name: str
    got: Any
    needed: Any  # None: not known


# --- what must hold of a launch ----------------------------------------------------------------------------------


def findings(module: Any, recipe: Recipe) -> list[Finding]:
    """Return what `matmul` launches for many calls, and what it refuses, as lines of a level.

    Args:
        module: a GEMM recipe's.
        recipe: its front matter.

    Raises:
        NotLaunched: as `watched`.
    """
    with watched(module, recipe.runs_on) as seen:
        draw, done = random.Random(0), 0
        for call in calls(recipe, draw):
            if wrong := _wrong(seen, call):
                return [Finding("launches", False, f"{wrong} (matmul of {call})")]
            done += 1
        kernels = {str((one.pointers, one.constants)) for one in seen.launches}
        found = [Finding("launches", True, f"{done} calls, {len(kernels)} kernels")]
        found += _refusals(seen, recipe) + _room(seen, recipe)
        return found + recipe.product.host_findings(seen, recipe)


def _wrong(seen: Watched, call: Call) -> str:
    """Return what is wrong with the launch of a call; "" if nothing."""
    import torch

    before, told = len(seen.launches), {}
    seen.made.clear()
    m, n, _ = call.mnk
    shape = (*call.batch, m, n)
    pattern = (torch.arange(prod(shape)) % 97 + 1).reshape(shape)

    def fill(address: int) -> None:
        told["target"] = next((x for x in (call.out, *seen.made) if _begins(x, address, shape)), None)
        if told["target"] is not None:
            told["target"][..., :n] = pattern
        told["shared"] = _not_zero(seen)

    seen.fill = fill
    try:
        result = seen.module.matmul(call.a, call.b, *call.scales, out=call.out)
    except Exception as error:
        return f"matmul: got {type(error).__name__} ({str(error).splitlines()[0]}); needed a launch: this call is legal"
    if len(seen.launches) != before + 1:
        return f"matmul: got {len(seen.launches) - before} launches; needed 1"
    one = seen.launches[-1]
    numbers = _numbers(seen.module, call, one)
    given = seen.module, call, one, numbers
    if wrong := _of_operands(*given) or _of_output(*given, told["target"]) or told["shared"]:
        return wrong
    if call.out is not None and result is not call.out:
        return "matmul: got another tensor returned; needed out"
    if not torch.equal(result, pattern.to(result.dtype)):
        return "matmul: got a result that is not what the kernel stored; needed C, all of it"
    return ""


def _begins(x: Any, address: int, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is one that C of this shape can be, and begins there."""
    *before, n = shape
    return x is not None and x.data_ptr() == address and [*x.shape[:-1]] == before and x.shape[-1] >= n


def _of_operands(module: Any, call: Call, one: Launched, numbers: list[Number]) -> str:
    """Return whether a launch was told of its call's operands."""
    for (name, got), (element, align) in zip(pointers_of(module, one), one.pointers, strict=False):  # then: a table
        tensor = call.pointers.get(name)
        if got % align:
            return f"p{name}: got address {got:#x}; needed a multiple of {align}, for which the kernel is compiled"
        if tensor is not None and got != tensor.data_ptr():
            return f"p{name}: got another address; needed that of {name.lower()}"
        if tensor is not None and (wrong := _type(name, element, tensor)):
            return wrong
    wrong = next((each for each in numbers if each.needed is not None and each.got != each.needed), None)
    if wrong is not None:
        return f"{wrong.name}: got {wrong.got}; needed {wrong.needed}"
    which = majors.letters(*majors.of_config(one.constants["config"]))
    return "" if which == call.majors else f"config: got a kernel for {which} operands; needed one for {call.majors}"


def _type(name: str, element: Any, tensor: Any) -> str:
    said, needed = TORCH_NAMES.get(element.__name__), str(tensor.dtype).removeprefix("torch.")
    return f"p{name}: got a kernel for {said}; needed one for {needed}" if said and said != needed else ""


def pointers_of(module: Any, one: Launched) -> list[tuple[str, int]]:
    """The addresses of a launch, with the names of their matrices: `pSFA` is that of "SFA"."""
    named = named_arguments(module, one.constants["config"], Problem(1, 1, 1, SMS))
    names = [name[1:] for name, _ in named if name[0] == "p" and name[1:2].isupper()]
    return list(zip(names, _flat(one.arguments), strict=False))


def _numbers(module: Any, call: Call, one: Launched) -> list[Number]:
    """The numbers of a launch, each with what it has to be for this call.

    Raises:
        ValueError: there are more or fewer than `gemm` takes.
    """
    count = len(pointers_of(module, one))
    flat = list(_flat(one.arguments))[count:]
    named = named_arguments(module, one.constants["config"], Problem(*call.mnk, SMS), (-1, -1, -1))[count:]
    if len(named) != len(flat):
        raise ValueError(f"arguments: got {len(flat)} numbers at the launch; needed {len(named)}, as gemm takes")
    own = {name: iter(numbers) for name, numbers in (call.numbers | {"stream": (STREAM,)}).items()}
    found, sizes = [], iter("MNK")
    for (name, known), got in zip(named, flat, strict=True):
        needed = next(own[name]) if name in own else known if isinstance(known, int) else None
        found.append(Number(next(sizes) if name == "mnk" else name, got, needed))
    return found


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _of_output(module: Any, call: Call, one: Launched, numbers: list[Number], target: Any) -> str:
    """Return whether stores of the kernel's width fit the rows that it was told of, and these are those of `target`."""
    m, n, _ = call.mnk
    if target is None:
        return "pC: got an address that is neither out's nor that of memory made for it; needed the first element of C"
    rows = [each.got for each in numbers if each.name == "strides"][2]
    if m > 1 and rows != target.stride(-2):
        return f"strides: got {rows} from row to row of C; needed {target.stride(-2)}"
    apart = next((each.got for each in numbers if each.name == "group_stride"), None)
    if target.ndim == 3 and apart != target.stride(0):
        return f"group_stride: got {apart} from group to group of C; needed {target.stride(0)}"
    align = next(p[1] for (name, _), p in zip(pointers_of(module, one), one.pointers, strict=False) if name == "C")
    vec, far = one.constants.get("vec"), rows if m > 1 else 0
    if vec is not None and (n % vec or far % vec or target.data_ptr() % (target.element_size() * vec)):
        where = f"N = {n}, the row stride {rows} and the address in elements"
        return f"vec: got stores of {vec} elements; needed a width that divides {where}"
    if vec is None and align == 16 and (far % 8 or (n % 8 and target is call.out)):
        return f"pC: got rows of {n} elements, {rows} apart, for TMA; needed padded rows of whole 16-byte pieces"
    return ""


# --- memory that CTAs share ---------------------------------------------------------------------------------------


def _shared(seen: Watched, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """List the last launch's parameters, each with the tensor that it was given; None: memory of no tensor."""
    one = seen.launches[-1]
    named = named_arguments(seen.module, one.constants["config"], Problem(1, 1, 1, SMS))
    for (name, _), address in zip(named, _flat(one.arguments), strict=False):
        if name in names:
            yield name, seen.at(address)


def _not_zero(seen: Watched) -> str:
    """Return which memory of the launch is not 0 that has to be; "" if all is."""
    for name, tensor in _shared(seen, ZEROS):
        if tensor is None or tensor.count_nonzero():
            got = "memory of no tensor" if tensor is None else "what was in memory before"
            return f"{name}: got {got}; needed 0 when the kernel is launched"
    return ""


def _room(seen: Watched, recipe: Recipe) -> list[Finding]:
    """Return whether a launch has as much memory for its CTAs to share as the kernel touches, as the level *product*
    sees."""
    module = seen.module
    if not {*SHARED} & inspect.signature(module.gemm).parameters.keys():
        return []
    import torch

    config, there = module.CONFIG, dict[str, int]()

    def fill(address: int) -> None:
        there.update((name, 0 if tensor is None else tensor.nbytes) for name, tensor in _shared(seen, SHARED))

    seen.fill = fill
    m, n, k = (getattr(config, f"tile_{x}") for x in "mnk")
    problem = Problem(m, n, FEW * k, FEW)  # SMs that share the k-tiles of one tile
    which, kind = majors.MAJORS[recipe.majors[0]], getattr(torch, recipe.dtypes[0])
    a, b = matrix(m, problem.k, kind, which[0] == "m", 0), matrix(problem.k, n, kind, which[1] == "k", 0)
    seen.gpu.multi_processor_count = FEW
    seen.module.matmul(a, b)
    seen.gpu.multi_processor_count = SMS
    config, found = seen.launches[-1].constants["config"], []
    for name, size in product.compute(seen.run(recipe, config), product.Case(problem, config)).touched.items():
        detail = f"got {there[name]} bytes for {problem}; needed {size}, which the kernel touches"
        found.append(Finding(name, there[name] >= size, detail))
    return found


# --- what must be refused ----------------------------------------------------------------------------------------


def _refusals(seen: Watched, recipe: Recipe) -> list[Finding]:
    """Calls that no kernel here can serve: nothing may be launched."""
    found = []
    for name, change in recipe.product.illegal().items():
        call = legal(recipe)
        seen.module.matmul(call.a, call.b, *call.scales)  # so that there is a plan for calls that look like it
        change(call)
        before = len(seen.launches)
        try:
            seen.module.matmul(call.a, call.b, *call.scales, out=call.out)
            said = "a launch" if len(seen.launches) > before else "no error"
        except (TypeError, ValueError):
            said = "a launch" if len(seen.launches) > before else ""
        found.append(Finding(name, not said, f"got {said or 'an error'}; needed a TypeError or ValueError"))
    return found
