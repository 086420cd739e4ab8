"""Why a bar or a row is far from its neighbours, in words that stand beside it; computed from the shape."""

from __future__ import annotations

from collections.abc import Iterable

from cookbook.measure import ceilings
from cookbook.measure.peers import TORCH
from cookbook.measure.records import Record
from cookbook.publish.pages import shape_of
from cookbook.recipe.majors import DEFAULT, MAJORS

ABOVE = (
    f"**Why `{TORCH}` stands above the ceiling:** the ceiling is that of the matrix instruction of this recipe. cuBLAS "
    "uses a faster one on this GPU."
)
VECTOR = 16  # bytes: of one access of cp.async or of a lane, and what TMA wants between rows
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def cut_rows(shape: tuple[int, ...], dtype: str, majors: str = DEFAULT) -> dict[str, int]:
    """Bytes from one row (or column) to the next of those of A, B and C that are no multiple of 16; {} if all are.

    Args:
        shape: (M, N, K).
        dtype: of all three.
    """
    m, n, k = shape
    extents = {"m": m, "n": n, "k": k}
    a_major, b_major = MAJORS[majors]
    along = {"A": extents[a_major], "B": extents[b_major], "C": n}
    pitches = {matrix: extent * BYTES[dtype] for matrix, extent in along.items()}
    return {matrix: pitch for matrix, pitch in pitches.items() if pitch % VECTOR}


def explained(found: Iterable[Record]) -> str:
    """Return what is odd about these timed records, a sentence each: shapes whose rows are cut, and peers above the
    ceiling; "" if nothing is."""
    found, said = list(found), dict[str, None]()
    if any(_beats_the_ceiling(record) for record in found):
        said[ABOVE] = None
    for record in found:
        if len(record["shape"] or ()) != 3 or record["dtype"] not in BYTES or TORCH not in record["peers"]:
            continue
        majors = record.get("majors", DEFAULT)
        for matrix, pitch in cut_rows(tuple(record["shape"]), record["dtype"], majors).items():
            said[_sentence(shape_of(record), matrix, pitch)] = None
    return "\n\n".join(said)


def _beats_the_ceiling(record: Record) -> bool:
    times = [record["peers"][who]["median_ms"] for who in (TORCH, ceilings.PEER) if who in record["peers"]]
    return len(times) == 2 and times[0] < times[1]


def _sentence(shape: str, matrix: str, pitch: int) -> str:
    return (
        f"**Why {shape} stands out:** a row of {matrix} is {pitch} bytes there, no multiple of {VECTOR}. For such rows "
        f"cuBLAS leaves its fast path. The ratio is large because `{TORCH}` is slow at this shape."
    )
