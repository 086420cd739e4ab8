"""Find who holds what: a tiled MMA's registers over a whole tile, and how two views of a thread's registers meet."""

from __future__ import annotations

import numpy as np

from cookbook.layouts import Layout, tile_coords

__all__ = ["fragment_coords", "places_in", "transposes"]


def fragment_coords(tv: Layout, tiler: tuple[int, int], shape: tuple[int, int], every: int = 1) -> np.ndarray:
    """The coordinates that each thread's registers hold, over all instructions of a tile.

    Args:
        tv: (thread, (one instruction's values, repeats in the tiler)), as in `TiledMmaTV`.
        tiler: the extents one pass of the tiled MMA covers.
        shape: the extents of the CTA's tile, multiples of the tiler's.
        every: look at one thread in this many.

    Returns:
        (threads, values, instructions along mode 0, instructions along mode 1, 2) int64.
    """
    if shape[0] % tiler[0] or shape[1] % tiler[1]:
        raise ValueError(f"shape: got a tile of {shape}; needed a multiple of the MMA's {tiler}")
    repeats = tv.modes[1].modes[1].sizes
    if len(repeats) != 2:
        raise ValueError(f"tv: got {tv!r}; needed values in modes (instruction, (repeat, repeat))")
    inside = tile_coords(tv, tiler)[::every]
    inside = inside.reshape(len(inside), repeats[1], repeats[0], -1, 2)
    steps = np.moveaxis(np.indices((shape[0] // tiler[0], shape[1] // tiler[1])), 0, -1) * np.array(tiler)
    # (thread, step 0, step 1, repeat 1, repeat 0, value) -> (thread, value, step 0, repeat 0, step 1, repeat 1)
    coords = (inside[:, None, None] + steps[None, :, :, None, None, None]).transpose(0, 5, 1, 4, 2, 3, 6)
    counts = (coords.shape[2] * coords.shape[3], coords.shape[4] * coords.shape[5])
    return coords.reshape(*coords.shape[:2], *counts, 2)


def places_in(held: np.ndarray, wanted: np.ndarray, what: str) -> np.ndarray:
    """Return which of a thread's registers holds each coordinate that is wanted of it.

    This is what CuTe's `retile` does: two views of the same registers, joined by the coordinates they stand for.

    Args:
        held: (threads, values, 2) coordinates of the registers.
        wanted: (threads, values, 2).
        what: names the two in the error.

    Returns:
        (threads, values of wanted) indices into the values of held.

    Raises:
        ValueError: a coordinate is wanted of a thread that does not hold it.
    """
    if len(held) != len(wanted):
        raise ValueError(f"{what}: got {len(held)} and {len(wanted)} threads; needed as many of both")
    span = int(max(held.max(), wanted.max())) + 1
    thread = np.arange(len(held))[:, None]
    keys, asked = ((thread * span + x[..., 0]) * span + x[..., 1] for x in (held, wanted))
    order = np.argsort(keys, axis=1)
    flat = np.take_along_axis(keys, order, axis=1).reshape(-1)  # ascending, for keys grow with the thread
    at = np.minimum(np.searchsorted(flat, asked), flat.size - 1)
    if (flat[at] != asked).any():
        t, v = np.argwhere(flat[at] != asked)[0]
        raise ValueError(f"{what}: thread {t} is asked for {tuple(wanted[t, v].tolist())}, which it does not hold")
    return np.take_along_axis(order, at - thread * held.shape[1], axis=1)


def transposes(what: str, rows: np.ndarray, held: np.ndarray) -> bool:
    """Return whether a lane of ldmatrix or stmatrix has, in a register, one element each of two rows (.trans) or two of
    one.

    Args:
        what: names the copy in the error.
        rows: (threads, values, 2) coordinates on the side of shared memory: a lane's are those of the row it points to.
        held: (threads, values, 2) coordinates on the side of the registers.

    Raises:
        ValueError: it has neither.
    """
    for other, trans in ((rows[0, 1], False), (rows[1, 0], True)):
        if (held[0, 0] == rows[0, 0]).all() and (held[0, 1] == other).all():
            return trans
    got = f"lane 0 with {held[0, :2].tolist()} in its first register"
    raise ValueError(f"{what}: got {got}; needed what ldmatrix, stmatrix or their .trans move")
