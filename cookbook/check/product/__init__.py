"""What does a kernel compute? Its own trace followed to C, with where each element came from, and no values.

`faults` follows every warp of every CTA of a launch of a small problem, as CuTe traced it: each element in shared
memory, tensor memory and registers carries which element of which operand it is. What must hold of C in the end:

* each C[m, n] is stored once, and nothing outside of C;
* it is the sum of the products A[m, k] B[n, k], each k < K once and nothing else, rounded once, to C's type;
* nothing outside of A and B is read but what TMA fills with zeros.

* `origins`: what an element is; `memory`: what holds elements; `sums`: accumulators, and what C needs
* `places`, `views`, `partitions`: addresses of views
* `follower`: one warp; `access`, `copies`, `multiply`, `barriers`: what its operations do
* `launch`: all warps of a launch; `problems`: which problems
"""

from __future__ import annotations

import inspect
from typing import Any

from cookbook.check.pipeline import shapes
from cookbook.check.pipeline.programs import Problem, host_arguments
from cookbook.check.pipeline.reading import Module
from cookbook.check.pipeline.shapes import CannotFollow
from cookbook.check.product import copies, multiply, partitions, takeover, tensor_cores, views  # noqa: F401: their operations become known
from cookbook.check.product.follower import Fault
from cookbook.check.product.launch import Launch, launch
from cookbook.check.product.memory import Operand, base_of
from cookbook.check.product.places import Ptr, element
from cookbook.check.product.sums import verify
from cookbook.recipe.majors import of_config

__all__ = ["CannotFollow", "Problem", "faults"]


def faults(module: Any, trace: Module, config: Any, problem: Problem) -> list[str]:
    """What is wrong with C after a launch, in words; nothing if it is A times B.

    Args:
        module: the recipe's.
        trace: what CuTe traced of it.
        config: the recipe's `Config`, the same.
        problem: the sizes.

    Raises:
        CannotFollow: the kernel does something that the checker does not know; the message names it and its line.
    """
    arguments, operands, tables = _given(module, trace, config, problem)
    going = Launch(operands, problem.k, problem.sms, tables)
    try:
        launch(trace, arguments, going)
    except Fault as fault:
        return [str(fault)]
    return verify(going.sums, going.stored, {})


def _given(module: Any, trace: Module, config: Any, problem: Problem) -> tuple[list[Any], dict[str, Operand], dict]:
    """The arguments of the host function; the matrices and tables that its pointers are of."""
    host = trace.find("func.func")[0].regions[0]
    lines = strides_of(config, problem)
    values = host_arguments(module, config, problem, lines)
    names = [name for name in inspect.signature(module.gemm).parameters if name[0] == "p" and name[1:2].isupper()]
    m, n, k = problem.m, problem.n, problem.k
    extents = {"A": (m, k), "B": (n, k), "C": (m, n)}
    majors = (*of_config(config), "n")
    strides = {
        name: (line, 1) if major == along else (1, line)
        for name, line, major, along in zip("ABC", lines, majors, "kkn", strict=True)
    }
    operands, tables, found = {}, {}, []
    pointers = iter(names)
    for value, text in zip(values, host.argument_types, strict=True):
        if not text.startswith("!cute.ptr"):
            found.append(value)
        elif isinstance(value, tuple):
            tables["table"] = value
            found.append(Ptr("table", 0, name="table"))
        else:
            name = next(pointers)[1:]
            kind = shapes.kind(text)
            base = base_of(len(operands))
            operands[name] = Operand(name, extents[name], strides[name], kind.bits, element(text), base)
            found.append(Ptr("gmem", base))
    return found, operands, tables


def strides_of(config: Any, problem: Problem) -> tuple[int, int, int]:
    """Elements between the lines of A, B and C: each line begins at a multiple of 16 bytes, and none fills its room."""
    majors = (*of_config(config), "n")
    extents = {"m": problem.m, "n": problem.n, "k": problem.k}
    a, b, c = (8 * -(-extents[major] // 8) + 8 for major in majors)
    return a, b, c
