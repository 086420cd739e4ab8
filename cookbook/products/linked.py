"""Products of which each is A of the next, whose kernels overlap as no two calls of `matmul` may: `kind: linked`.

Levels look at its kernels as at any GEMM's. Timed besides is a chain of LINKS products, where weights are square.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from cookbook.check import calls, host, ran
from cookbook.check.findings import Finding
from cookbook.check.pipeline.programs import Problem, at_rest, host_arguments, launched
from cookbook.check.watched import SMS, Launched, Watched
from cookbook.measure.contest import Call
from cookbook.products.base import Shape
from cookbook.products.gemm import Gemm
from cookbook.recipe import contract
from cookbook.recipe.catalog import Recipe

LINKS = 8  # products of a chain
CHAIN, TORCH_CHAIN = f"chain of {LINKS}", f"torch.matmul, chain of {LINKS}"


class Linked(Gemm):
    """`chain(x, weights)`."""

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        return (*super().asked(recipe), contract.Linked)

    def host_findings(self, seen: Watched, recipe: Recipe) -> list[Finding]:
        return of_chain(seen, recipe)

    def more_calls(
        self, module: Any, shape: Shape, sets: list[tuple[Any, Any, Any]]
    ) -> tuple[dict[str, Call], dict[str, float]]:
        found = chains(module, sets) if shape[1] == shape[2] else {}
        return found, dict.fromkeys(found, 1 / LINKS)


WIDTHS = 40, 24, 64, 32, 48  # of the matrices of a chain
ROWS = 24


def of_chain(seen: Watched, recipe: Recipe) -> list[Finding]:
    """Return what `chain` launches, and what it must refuse: of a weight that is read early none may still write a
    part."""
    import torch

    dtype, seen.fill = getattr(torch, recipe.dtypes[0]), lambda address: None
    x = calls.matrix(ROWS, WIDTHS[0], dtype, False, 0)
    weights = [calls.matrix(k, n, dtype, True, 0) for k, n in pairwise(WIDTHS)]
    out = calls.matrix(ROWS, WIDTHS[-1], dtype, False, 0)
    before = len(seen.launches)
    seen.made.clear()
    try:
        seen.module.chain(x, weights, out=out)
    except (TypeError, ValueError) as error:
        detail = f"got {type(error).__name__} ({error}); needed launches: this call is legal"
        return [Finding("chain", False, detail)]
    wrong = _wrong_chain(seen, recipe, seen.launches[before:], x, weights, out)
    found = [Finding("chain", not wrong, wrong or f"{len(weights)} launches")]
    over = weights[1].T.as_strided((ROWS, WIDTHS[-1]), (WIDTHS[-1], 1))
    before = len(seen.launches)
    try:
        seen.module.chain(x, weights, out=over)
        said = "no error"
    except (TypeError, ValueError):
        said = "a launch" if len(seen.launches) > before else ""
    detail = f"got {said or 'an error'}; needed a TypeError or ValueError, and no launch"
    return [*found, Finding("a chain whose out overlaps a weight", not said, detail)]


def _wrong_chain(seen: Watched, recipe: Recipe, made: list[Launched], x: Any, weights: list[Any], out: Any) -> str:
    """Return what is wrong with the launches of a chain; "" if nothing."""
    if len(made) != len(weights):
        return f"got {len(made)} launches; needed {len(weights)}"
    activations, sizes, element = x.data_ptr(), WIDTHS[1:], x.element_size()
    for i, (one, weight) in enumerate(zip(made, weights, strict=True)):
        a, b, c = (dict(host.pointers_of(seen.module, one))[name] for name in "ABC")
        config = one.constants["config"]
        for name, got, needed in (("pA", a, activations), ("pB", b, weight.data_ptr())):
            if got != needed:
                return f"kernel {i}: {name}: got another address; needed that of what it multiplies"
        if max(a, c) < min(a + ROWS * WIDTHS[i] * element, c + ROWS * sizes[i] * element):
            return f"kernel {i}: got a C that overlaps A, which other CTAs still read; needed two buffers at least"
        if not i and at_rest(seen.module, config) and _begins_early(seen, recipe, config):
            text = "got a load of the weight before the kernel before has ended, which may write it"
            return f"kernel 0: {text}; needed a launch without PDL, or a late load"
        activations = c
    return "" if activations == out.data_ptr() else "got another C of the last product; needed out"


def _begins_early(seen: Watched, recipe: Recipe, config: Any) -> bool:
    """Return whether a kernel is launched so that it may begin before the one before it has ended."""
    given = host_arguments(seen.module, config, Problem(ROWS, WIDTHS[1], WIDTHS[0], SMS))
    return launched(seen.trace(recipe, config), given).dependent


# --- timed ----------------------------------------------------------------------------------------------------------


def chains(module: Any, sets: list[tuple[Any, Any, Any]]) -> dict[str, Call]:
    """A chain of LINKS products, and torch's of as many: a chain begins with the a of a set, and ends in its out.

    The weights are the b of further sets, scaled so that a product of normal numbers is as large as they are.

    Raises:
        RuntimeError: the chain's error is more than twice torch's.
    """
    scaled_b = [b.mul(b.shape[0] ** -0.5) for _, b, _ in sets]
    links = {
        out.data_ptr(): [scaled_b[(LINKS * i + j) % len(sets)] for j in range(LINKS)]
        for i, (*_, out) in enumerate(sets)
    }
    both: dict[str, Call] = {
        CHAIN: lambda a, b, out: module.chain(a, links[out.data_ptr()], out=out),
        TORCH_CHAIN: lambda a, b, out: torch_chain(a, links[out.data_ptr()], out),
    }
    a, b, out = sets[0]
    exact = a.double()
    for weight in links[out.data_ptr()]:
        exact = exact @ weight.double()
    errors = []
    for call in both.values():
        out.fill_(float("nan"))
        call(a, b, out)
        errors.append(ran.relative_error(out, exact))
    if not errors[0] <= 2 * errors[1]:
        raise RuntimeError(f"{CHAIN} is wrong: relative error {errors[0]:.2e}; torch's is {errors[1]:.2e}")
    return both


def torch_chain(x: Any, weights: list[Any], out: Any) -> Any:
    """Each product by torch.matmul."""
    import torch

    for weight in weights[:-1]:
        x = torch.matmul(x, weight)
    return torch.matmul(x, weights[-1], out=out)


PRODUCT = Linked()
