"""The suites of probes, by the files that a record of each vouches for: probes, and the model they are compared with.

The probes are no part of the package.
"""

from __future__ import annotations

from pathlib import Path

from tools.records import device_code

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


def code_hash(suite: str) -> str:
    """SHA-256 (hex) of a suite's code and of the model it checks: see `device_code.of_files`."""
    return device_code.of_files([_ROOT / file for file in SUITES[suite]])
