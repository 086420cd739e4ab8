"""What the tests of the rules that choose a variant share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from cookbook.measure import calibration, records
from cookbook.recipe import catalog


@cache
def recorded(name: str) -> dict[tuple[int, int, int], tuple[float, ...]]:
    """By (M, N, K), the microseconds of all variants of a recipe, in their order: in bfloat16, on the first GPU."""
    found = records.by_gpu(records.select(name, "timed", "bfloat16"))
    timed = calibration.of_records(catalog.load(name), next(iter(found.values()), []))
    return {each.shape: tuple(1000 * ms for ms in each.variants.values()) for each in timed}


def lost(
    measured: Mapping[tuple[int, int, int], tuple[float, ...]],
    variants: Iterable[str],
    choose: Callable[[int, int, int], str],
) -> list[float]:
    """For each product, what the variant that `choose(m, n, k)` names takes longer than the fastest, as a part of 1.

    Args:
        measured: by (M, N, K), the times of all `variants`, in their order.
    """
    names = list(variants)
    return [times[names.index(choose(*shape))] / min(times) - 1 for shape, times in measured.items()]
