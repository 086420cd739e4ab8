"""Level "layout" of split-K in a cluster: where the partial accumulators lie that its CTAs send each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from cookbook import access, banks
from cookbook.check.evaluated import Evaluated
from cookbook.check.findings import Finding

__all__ = ["reduction_buffer_findings"]

FLOAT_BYTES = 4


def reduction_buffer_findings(found: Evaluated, config: Any) -> list[Finding]:
    """Return whether a CTA can be sent all sums of its share, by all senders, each at a place of its own, with no
    conflicts.

    A reduction buffer is (THREAD, (VEC, VECTORS), SENDER) of float32: VEC of them are written, and read, at once.
    """
    buffer = found.reduction_buffer
    if buffer is None:
        return []
    table = buffer.table()
    threads, share, senders = table.shape
    holds = f"{buffer!r}: {threads} threads of {share} sums from each of {senders} CTAs"
    owners = (
        found.copies["t2r_c"].threads if found.sums_in_tensor_memory else found.mma.threads
    )  # of a tile's accumulators
    vec = buffer.modes[1].modes[0].size
    vectors = -(-config.tile_m * config.tile_n // owners // (vec * config.split_k))  # the last share may be smaller
    asked = (owners, vectors * vec, config.split_k)
    places = np.unique(table)
    bijective = len(places) == table.size == places.max() + 1
    size = f"{table.size * FLOAT_BYTES} bytes; the configuration counts {config.reduction_bytes}"
    return [
        Finding("reduction_buffer.bijective", bool(bijective) and table.shape == asked, f"{holds}; needed {asked}"),
        Finding("reduction_buffer.fits", table.size * FLOAT_BYTES == config.reduction_bytes, size),
        _wavefronts(table * FLOAT_BYTES, buffer.modes[1].modes[0].size),
    ]


def _wavefronts(addresses: np.ndarray, vec: int) -> Finding:
    """Count wavefronts of every warp's accesses: `addresses` in bytes by (thread, sum, sender), `vec` sums at once."""
    threads, share, senders = addresses.shape
    name, width = "reduction_buffer.wavefronts", FLOAT_BYTES * vec
    try:
        counted = [
            banks.wavefronts(addresses[warp : warp + access.LANES, first, sender], width)
            for warp in range(0, threads, access.LANES)
            for first in range(0, share, vec)
            for sender in range(senders)
        ]
    except ValueError as error:
        return Finding(name, False, str(error))
    each = ", ".join(sorted({f"{w.actual} (ideal {w.ideal})" for w in counted}))
    return Finding(name, all(w.excess == 0 for w in counted), f"{len(counted)} of {width} bytes at {each}")
