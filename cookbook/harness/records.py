"""results/<device>.json: what was measured on hardware, when, with which versions, on which code.

A file is `{"device": "NVIDIA H200", "records": [...]}`. A record holds

    level         "ran", "timed", "counted" or "sanitized"; "probed" of a suite of probes; "ceiling" of a study
                  that measures what the hardware gives at most; "limits" of a GEMM: what keeps it from its ceiling
    recipe        a name of the catalog, or of a suite: "probes/shared_memory", "probes/tma"
    code_hash     of the recipe's code when it was measured: another hash today makes the record stale
    of            only where the kernels were another recipe's: {name: its code_hash}, likewise
    dtype         torch's name
    shape         [M, N, K], [M, N] of a transpose, or null where the record sums up many shapes
    majors        of the operands, "nt": only where the recipe takes several
    status        "passed" or "failed"
    figures       of this level; for "timed": median_ms, min_ms, max_ms, tflops (gbps of a transpose), rounds,
                  batch (how many launches of ours), launches, sets, and ratio: torch.matmul's (the device copy's)
                  median over ours; of a GEMM host_us and host_new_us, what a call takes of the host with `out` given
                  and without; for "ceiling": {section: {name: {tflops or gbps, with _min and _max, or others}}}; for
                  "limits": variants: {name: {tflops, clock_mhz, power_w, joules_per_tflop, flops_per_clock, capped, and
                  of ncu what `limits.of_kernel` returns}}, gpu: its own limits, seconds, and the reason why ncu's are
                  missing where they are
    peers         for "timed": figures by peer, ratio too: {"torch.matmul": {...}, "quack": {...}}; for "limits"
                  figures as a variant's, without ncu's
    config        the recipe's configuration
    distribution  of the inputs, e.g. "normal(0, 1)"
    date          UTC, to the minute
    driver        NVIDIA's driver
    versions      of python, torch, cuda, nvidia-cutlass-dsl, apache-tvm-ffi, quack-kernels

and there is one per (level, recipe, dtype, shape, majors): a newer one replaces the older.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cookbook.harness import catalog, suites

LEVELS = ("ran", "timed", "counted", "sanitized")  # of a recipe
PROBED = "probed"  # of a suite of probes: cookbook.harness.probes
CEILING = "ceiling"  # of a study that measures what the hardware gives at most: cookbook.harness.ceilings
LIMITS = "limits"  # of a GEMM: what keeps it from its ceiling: cookbook.harness.limits
KNOWN = (*LEVELS, PROBED, CEILING, LIMITS)
Record = dict[str, Any]


def results_root() -> Path:
    """The folder of the records: the source tree's, or the copy inside an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    source = package.parent / "results"
    return source if source.is_dir() else package / "_results"


def slug(device: str) -> str:
    """A device's name as a file name: `"NVIDIA H200"` -> `"nvidia-h200"`."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def make(
    level: str,
    recipe: str,
    dtype: str,
    shape: tuple[int, ...] | None,
    *,
    passed: bool,
    figures: dict[str, Any],
    device: str,
    peers: dict[str, Any] | None = None,
    config: Any = None,
    distribution: str = "normal(0, 1)",
    of: tuple[str, ...] = (),
    majors: str | None = None,
) -> Record:
    """A record of what was just measured here, with the date, the versions and the code's hash filled in.

    Args:
        of: other recipes whose kernels were run; their code's hashes are kept too.
        majors: of the operands, if the recipe takes several.

    Raises:
        ValueError: `level` is none of KNOWN.
    """
    if level not in KNOWN:
        raise ValueError(f"level: got {level!r}, needed one of {', '.join(KNOWN)}")
    made = {
        "level": level,
        "recipe": recipe,
        "code_hash": code_hash(recipe),
        "dtype": dtype,
        "shape": list(shape) if shape else None,
        "status": "passed" if passed else "failed",
        "figures": figures,
        "peers": peers or {},
        "config": asdict(config) if is_dataclass(config) else config,
        "distribution": distribution,
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}",
        "device": device,
        "driver": driver_version(),
        "versions": versions(),
    }
    others = {"of": {name: code_hash(name) for name in of}} if of else {}
    return made | others | ({"majors": majors} if majors else {})


def versions() -> dict[str, str | None]:
    """What is installed here; None for what is not."""
    import torch

    names = ("nvidia-cutlass-dsl", "apache-tvm-ffi", "quack-kernels", "numpy")
    known = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    return known | {name: package_version(name) for name in names}


def package_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    """The version of NVIDIA's driver, or None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


# --- files --------------------------------------------------------------------------------------------------


def key(record: Record) -> tuple[Any, ...]:
    """What a record is about: one record per key is kept."""
    shape = record["shape"]
    about = record["recipe"], record["level"], record["dtype"], tuple(shape) if shape else ()
    return (*about, record["majors"]) if record.get("majors") else about


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """`old` and `new` in the order of their keys, a new record in place of the old one with its key."""
    kept = {key(record): record for record in (*old, *new)}
    return [kept[k] for k in sorted(kept)]


def read(root: Path | None = None) -> list[Record]:
    """Every record of every device.

    Raises:
        ValueError: a file is not what this module writes; the message names it.
    """
    found: list[Record] = []
    for file in sorted((root or results_root()).glob("*.json")):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            device, held = content["device"], content["records"]
            found += [{**record, "device": device} for record in held]
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{file}: not a file of records ({error!r})") from None
    return found


def write(new: Iterable[Record], root: Path | None = None) -> list[Path]:
    """Merge `new` into the files of their devices; returns the files written."""
    root = root or results_root()
    root.mkdir(parents=True, exist_ok=True)
    by_device: dict[str, list[Record]] = {}
    for record in new:
        by_device.setdefault(record["device"], []).append(record)
    written = []
    for device, records in by_device.items():
        file = root / f"{slug(device)}.json"
        old = json.loads(file.read_text(encoding="utf-8"))["records"] if file.exists() else []
        bare = [{k: v for k, v in r.items() if k != "device"} for r in merge(old, records)]
        content = {"device": device, "records": bare}
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(file)
    return written


# --- current or stale ---------------------------------------------------------------------------------------


def code_hash(name: str) -> str | None:
    """SHA-256 (hex) of the code of a recipe or of a suite of probes; None of a suite whose code is not here.

    Raises:
        UnknownRecipe: there is neither of that name.
    """
    return suites.code_hash(name) if name in suites.SUITES else catalog.code_hash(name)


def is_stale(record: Record) -> bool:
    """Whether the code of the recipe, or of another whose kernels were run, has changed since, or is gone."""
    hashes = {record["recipe"]: record["code_hash"], **record.get("of", {})}
    try:
        return any(code_hash(name) not in (None, measured) for name, measured in hashes.items())
    except catalog.UnknownRecipe:
        return True


def stale(name: str | None = None, root: Path | None = None) -> list[Record]:
    """The stale records, of one recipe or of all."""
    return [r for r in read(root) if name in (None, r["recipe"]) and is_stale(r)]


def select(
    name: str, level: str, dtype: str | None = None, root: Path | None = None, majors: str | None = None
) -> list[Record]:
    """The records of a recipe at a level, stale ones too: ask `is_stale` before showing one as current.

    Args:
        dtype: only these; all if left out.
        majors: likewise.
    """
    wanted = [r for r in read(root) if (r["recipe"], r["level"]) == (name, level)]
    return [r for r in wanted if dtype in (None, r["dtype"]) and majors in (None, r.get("majors"))]
