"""Microbenchmarks that ask the hardware what the models here only say.

`probes/shared_memory`: kernels that issue one kind of shared-memory instruction over a table of lane addresses, their
wavefronts counted by Nsight Compute and held against `cookbook.banks`, their values against `cookbook.model`.
`probes/fresh`: the same with a random table, drawn from a seed, that has no pair in common with the standing one: the
rules of `cookbook.banks` were found on that.
`probes/past_l1`: cp.async past L1, which the profiler does not always count, issued in several ways.
`probes/tma`: boxes loaded by TMA in every swizzle mode, the raw bytes of shared memory held against `cookbook.model`.

`python -m cookbook.harness.probes --help`
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["SUITES", "code_hash"]

_HERE = Path(__file__).resolve().parent
_COOKBOOK = _HERE.parents[1]
# What a record of each suite vouches for: the probes, and the model they were held against.
_COUNTED = (
    *(_HERE / f"{name}.py" for name in ("instructions", "kernels", "launch", "pairs")),
    _COOKBOOK / "banks.py",
    _COOKBOOK / "model" / "ldmatrix.py",
)
SUITES: dict[str, tuple[Path, ...]] = {
    "probes/shared_memory": _COUNTED,
    "probes/fresh": (*_COUNTED, _HERE / "fresh.py"),
    "probes/past_l1": (*_COUNTED, _HERE / "forms.py"),
    "probes/tma": (_HERE / "boxes.py", _HERE / "tma_kernel.py", _COOKBOOK / "model" / "tma.py"),
}


def code_hash(suite: str) -> str:
    """SHA-256 (hex) of a suite's code and of the model it checks: see `device_code.of_files`."""
    from cookbook.harness import device_code

    return device_code.of_files(SUITES[suite])
