"""A recipe's figures of one chip: its `CALIBRATION`, and the record of it by device.

A recipe's defaults are figures of one chip. results/<device>/calibration.json has those that `cookbook calibrate`
measured there: {"device": ..., "recipes": {name: {"figures": {...}, "misfit": ..., "date": ...}}}. A recipe that is
loaded where CUDA's present device has such a record uses it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

FILE = "calibration.json"
_RESULTS = Path(__file__).resolve().parents[2] / "results"  # of a checkout: an installed wheel keeps the defaults


def read(root: Path | None = None) -> dict[str, dict[str, Any]]:
    """By device: what was recorded of each recipe.

    Raises:
        ValueError: a file is not what `write` writes.
    """
    found = {}
    for file in sorted((root or _RESULTS).glob(f"*/{FILE}")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            found[content["device"]] = content["recipes"]
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file}: not a record of calibrations ({error!r})") from None
    return found


def write(name: str, measured: dict[str, Any], root: Path | None = None) -> Path:
    """Put what `measure.calibration.measure` gave of a recipe into its device's file, in place of what was there."""
    root, device = root or _RESULTS, measured["device"]
    file = root / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") / FILE
    record = {key: value for key, value in measured.items() if key not in ("device", "changes")}
    known = read(root).get(device, {})
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"device": device, "recipes": dict(sorted((known | {name: record}).items()))}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return file


def use(name: str, module: Any, root: Path | None = None) -> bool:
    """Have a recipe's module use the record of CUDA's present device; False where there is none."""
    kept = {device: of[name]["figures"] for device, of in read(root).items() if name in of}
    if not kept:
        return False  # without a question to CUDA
    import torch

    figures = kept.get(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    if figures:
        module.calibrate(**figures)
    return bool(figures)


@contextmanager
def using(module: Any, figures: dict[str, Any]) -> Iterator[None]:
    """A recipe's module uses these figures, and afterwards those from before."""
    before = asdict(module.CALIBRATION)
    module.calibrate(**figures)
    try:
        yield
    finally:
        module.calibrate(**before)


def meanings(module: Any) -> dict[str, str]:
    """Each figure of a recipe's Calibration, and the comment behind it, or above it."""
    found: dict[str, str] = {}
    for each in reversed(type(module.CALIBRATION).__mro__[:-1]):  # one may derive from another page's
        found |= _comments(inspect.getsource(each))
    return found


def _comments(source: str) -> dict[str, str]:
    found, above = {}, ""
    for line in source.splitlines():
        code, _, comment = line.partition("  # ")
        field = re.match(r"    (\w+): ", code)
        if field:
            found[field[1]] = comment.strip() or above
        above = line.strip().removeprefix("# ") if line.strip().startswith("#") else ""
    return found
