"""What the tests of the rules that choose a variant share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


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
