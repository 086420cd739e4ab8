"""The suites of probes, by the files that a record of each vouches for: probes, and the model they are compared with.

The probes are no part of the package. Where its source tree is not there, nothing of a suite can have changed since its
records were published.
"""

from __future__ import annotations

from pathlib import Path

from cookbook.measure import device_code

__all__ = ["SUITES", "code_hash"]

_ROOT = Path(__file__).resolve().parents[2]
_COUNTED = (
    "tools/probes/instructions.py",
    "tools/probes/kernels.py",
    "tools/probes/launch.py",
    "tools/probes/pairs.py",
    "cookbook/banks.py",
    "cookbook/model/ldmatrix.py",
)
SUITES: dict[str, tuple[str, ...]] = {
    "probes/shared_memory": _COUNTED,
    "probes/fresh": (*_COUNTED, "tools/probes/fresh.py"),
    "probes/past_l1": (*_COUNTED, "tools/probes/forms.py"),
    "probes/tma": (
        "tools/probes/boxes.py",
        "tools/probes/tma_kernel.py",
        "cookbook/model/tma.py",
    ),
}


def code_hash(suite: str) -> str | None:
    """SHA-256 (hex) of a suite's code and of the model it checks: see `device_code.of_files`.

    None where the source tree is not there.
    """
    files = [_ROOT / file for file in SUITES[suite]]
    if not all(file.is_file() for file in files):
        return None
    return device_code.of_files(files)
