"""results/<device>/<track>/<recipe>.json: what was measured on hardware, when, with which versions, on which code.

A file is `{"device": "NVIDIA H200", "recipe": "<track>/<name>", "kernels": {...}, "records": [...]}`; of a suite of
probes it is results/<device>/probes/<suite>.json. A record holds

    level         "ran", "timed", "counted" or "sanitized"; "probed" of a suite of probes; "ceiling" of a study
                  that measures what the hardware gives at most; "limits" of a GEMM: what keeps it from its ceiling
    recipe        a name of the catalog, or of a suite: "probes/shared_memory", "probes/tma"
    code          hash of the recipe's device code when it was measured: another one today makes the record stale
    of            only where the kernels were another recipe's: {name: hash of its device code}, likewise
    host          only beside times of the host: hash of the host code. Another one today makes those times stale, and
                  nothing else of the record
    target        what the kernels were compiled for: "sm_90a"
    kernels       every kernel that may have been launched, as `tools.records.freshness` names it, with hashes of its
                  PTX and of its launch. In a file these stand once, and a record holds their keys
    model         of a suite of probes: hash of what the model said
    dtype         torch's name
    shape         [M, N, K], [M, N] of a transpose, or null where the record sums up many shapes
    majors        of the operands, "nt": only where the recipe takes several
    status        "passed" or "failed"
    figures       of this level; for "timed": median_ms, min_ms, max_ms, tflops (gbps of a transpose), rounds,
                  batch (how many launches of ours), launches, sets, and ratio: torch.matmul's (the device copy's)
                  median over ours; of a GEMM host_us and host_new_us, what a call takes of the host with `out` given
                  and without; for "ceiling": {section: {name: {tflops or gbps, with _min and _max, or others}}}; for
                  "limits": variants: {name: {tflops, clock_mhz, power_w, joules_per_tflop, flops_per_clock, capped, and
                  of ncu what `of_kernel` of tools/limits.py returns}}, gpu: its own limits, seconds, and the reason why
                  ncu's are missing where they are
    peers         for "timed": figures by peer, ratio too: {"torch.matmul": {...}, "quack": {...}}; for "limits"
                  figures as a variant's, without ncu's
    config        the recipe's configuration
    distribution  of the inputs, e.g. "normal(0, 1)"
    gpu           for "timed": the medians of clock_mhz and power_w while variants and peers ran, capped (the share of
                  the time in which the clock was lowered for power), power_limit_w and max_clock_mhz, as nvidia-smi
                  says them; or the reason why there are none. Older records have none
    date          UTC, to the minute
    driver        NVIDIA's driver
    versions      of python, torch, cuda, nvidia-cutlass-dsl, apache-tvm-ffi, quack-kernels

and there is one per (level, recipe, dtype, shape, majors): a newer one replaces the older.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cookbook.recipe import catalog
from cookbook.recipe.folders import published, tool

LEVELS = ("ran", "timed", "counted", "sanitized")  # of a recipe
PROBED = "probed"  # of a suite of probes: tools.probes
CEILING = "ceiling"  # of a study that measures what the hardware gives at most: cookbook.measure.ceilings
LIMITS = "limits"  # of a GEMM: what keeps it from its ceiling: tools/limits.py
HOST_TIMES = ("host_us", "host_new_us")  # figures that the host code decides: see `host_is_stale`
KNOWN = (*LEVELS, PROBED, CEILING, LIMITS)
Record = dict[str, Any]
# The fields of a record in a file, in their order: what was measured, then of what.
FIELDS = (
    "level", "dtype", "shape", "majors", "status", "figures", "peers", "config", "distribution", "gpu", "date",
    "driver", "versions", "target", "code", "of", "host", "model", "kernels",
)  # fmt: skip
WIDTH = 120  # of a line of a file


def results_root() -> Path:
    """The folder of the records: the source tree's, or the copy inside an installed wheel."""
    return published("results")


def now() -> str:
    """The date of a record: of Greenwich, to the minute."""
    return f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M}"


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
    distribution: str = "",
    of: tuple[str, ...] = (),
    majors: str | None = None,
) -> Record:
    """A record of what was just measured here, with the date, the versions and the code's hashes filled in.

    The hashes of its kernels are not: `freshness.stamp` compiles them.

    Args:
        distribution: of the inputs; that of `drawn_from` if left out.
        of: other recipes whose kernels were run; hashes of their device code are kept too.
        majors: of the operands, if the recipe takes several.

    Raises:
        ValueError: `level` is none of KNOWN.
    """
    if level not in KNOWN:
        raise ValueError(f"level: got {level!r}; needed one of {', '.join(KNOWN)}")
    made = {
        "level": level,
        "recipe": recipe,
        "code": code_of(recipe),
        "target": target_here(),
        "dtype": dtype,
        "shape": list(shape) if shape else None,
        "status": "passed" if passed else "failed",
        "figures": figures,
        "peers": peers or {},
        "config": asdict(config) if is_dataclass(config) and not isinstance(config, type) else config,
        "distribution": distribution or drawn_from(recipe),
        "date": now(),
        "device": device,
        "driver": driver_version(),
        "versions": versions(),
    }
    others: dict[str, Any] = {"of": {name: code_of(name) for name in of}} if of else {}
    if has_host_times(figures):
        others["host"] = _host_code_of(recipe)
    return made | others | ({"majors": majors} if majors else {})


def drawn_from(recipe: str) -> str:
    """Return what the inputs of a recipe, or of a suite of probes, are drawn from, where no level says otherwise."""
    if recipe.startswith("probes/"):
        return "normal(0, 1)"
    found = catalog.find(recipe)
    return found.product.distribution(found)


def target_here() -> str | None:
    """Return what CuTe compiles for on the GPU that is here, "sm_90a"; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def versions() -> dict[str, str | None]:
    """Return what is installed here; None for what is not."""
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
    """Return what a record is about: one record per key is kept."""
    shape = record["shape"]
    about = record["recipe"], record["level"], record["dtype"], tuple(shape) if shape else ()
    return (*about, record["majors"]) if record.get("majors") else about


def merge(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """`old` and `new` in the order of their keys, a new record in place of the old one with its key."""
    kept = {key(record): record for record in (*old, *new)}
    return [kept[k] for k in sorted(kept)]


def read(root: Path | None = None, name: str | None = None) -> list[Record]:
    """The records of every device, the first GPU's first (see `files`), of one recipe or of all.

    Raises:
        ValueError: a file is not what this module writes; the message names it.
    """
    return [record for file in files(f"{name or '*/*'}.json", root) for record in _read(file)]


def files(pattern: str, root: Path | None = None) -> list[Path]:
    """The files results/<device>/<pattern>, those of the first GPU first.

    The first GPU is the one with records of most recipes, on every page: where there is room for one GPU, it is shown.
    """
    root = root or results_root()
    order = _order(root)
    return sorted(root.glob(f"*/{pattern}"), key=lambda file: (order(file.relative_to(root).parts[0]), file))


def by_gpu(found: Iterable[Record], root: Path | None = None) -> dict[str, list[Record]]:
    """Records by device, the first GPU first: no figure is compared with one of another GPU.

    Args:
        root: the folder of the records; results/ if left out.
    """
    made: dict[str, list[Record]] = {}
    for record in found:
        made.setdefault(record["device"], []).append(record)
    order = _order(root or results_root())
    return {device: made[device] for device in sorted(made, key=lambda device: order(slug(device)))}


def _order(root: Path) -> Callable[[str], tuple[int, str]]:
    """A key by which to sort the folders of devices: of how many recipes each has records, then its name."""
    counts = Counter(file.parent.parent.name for file in root.glob("*/*/*.json"))
    return lambda folder: (-counts[folder], folder)


def _read(file: Path) -> list[Record]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        about = {key: content[key] for key in ("device", "recipe")}
        kernels = content["kernels"]
        return [
            record | about | ({"kernels": [kernels[k] for k in record["kernels"]]} if "kernels" in record else {})
            for record in content["records"]
        ]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file}: not a file of records ({error!r})") from None


def write(new: Iterable[Record], root: Path | None = None) -> list[Path]:
    """Merge `new` into the files of their devices and recipes; returns the files written."""
    root = root or results_root()
    by_file: dict[Path, list[Record]] = {}
    for record in new:
        by_file.setdefault(root / slug(record["device"]) / f"{record['recipe']}.json", []).append(record)
    for file, found in by_file.items():
        kept = merge(_read(file) if file.exists() else (), found)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(as_text(kept), encoding="utf-8")
    return list(by_file)


def as_text(kept: list[Record]) -> str:
    """The file of the records of one recipe on one device: fields and kernels in an order that never changes."""
    kernels: dict[str, Any] = {}
    bare = []
    for record in kept:
        others = sorted(record.keys() - {*FIELDS, "device", "recipe"})
        held = {key: record[key] for key in (*FIELDS, *others) if key in record}
        if "kernels" in record:
            made = {_key_of(kernel): kernel for kernel in record["kernels"]}
            kernels |= made
            held["kernels"] = list(made)
        bare.append(held)
    content = {"device": kept[0]["device"], "recipe": kept[0]["recipe"], "kernels": dict(sorted(kernels.items()))}
    return _json(content | {"records": bare}) + "\n"


def _key_of(kernel: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(kernel, sort_keys=True).encode("utf-8")).hexdigest()[:12]


def _json(value: Any, indent: str = "") -> str:
    """JSON in lines, as `json.dumps(value, indent=1)`, but for a list or a mapping of plain values that fits one."""
    flat = json.dumps(value, ensure_ascii=False)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not inside or (len(flat) <= WIDTH and not any(isinstance(each, (dict, list)) for each in inside)):
        return flat
    deeper = indent + " "
    if isinstance(value, dict):
        lines = [f"{json.dumps(k, ensure_ascii=False)}: {_json(v, deeper)}" for k, v in value.items()]
    else:
        lines = [_json(each, deeper) for each in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}{end}"


# --- current or stale ---------------------------------------------------------------------------------------


def code_of(name: str) -> str | None:
    """Hash of the device code of a recipe, or of the code of a suite of probes; None in a wheel, whose records and
    recipes were published together.

    Raises:
        UnknownRecipe: there is neither of that name.
    """
    suites, device_code = tool("records.suites"), tool("records.device_code")
    if suites is None:
        return None
    return suites.code_hash(name) if name in suites.SUITES else device_code.device_hash(name)


def _host_code_of(name: str) -> str | None:
    """Hash of the host code of a recipe; None in a wheel."""
    device_code = tool("records.device_code")
    return device_code.host_hash(name) if device_code else None


def is_stale(record: Record) -> bool:
    """Return whether the device code of the recipe, or of another whose kernels were run, has changed since, or is
    gone."""
    hashes = {record["recipe"]: record.get("code"), **record.get("of", {})}
    try:
        return any(code_of(name) not in (None, measured) for name, measured in hashes.items())
    except catalog.UnknownRecipe:
        return True


def has_host_times(figures: dict[str, Any]) -> bool:
    """Return whether figures of level "timed" say what a call takes of the host."""
    return HOST_TIMES[0] in figures


def host_is_stale(record: Record) -> bool:
    """Return whether the record has times of the host, and the host code has changed since."""
    if not has_host_times(record["figures"]):
        return False
    try:
        return _host_code_of(record["recipe"]) not in (None, record.get("host"))
    except catalog.UnknownRecipe:
        return True


def without_host_times(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures of level "timed" but for what a call takes of the host."""
    return {name: value for name, value in figures.items() if name not in HOST_TIMES}


def figures_of(record: Record) -> Record:
    """The figures of a record, with its peers' under "peers"; without times of the host that are stale.

    Where some are left out, "host" says why.
    """
    found, peers = dict(record["figures"]), record["peers"]
    if host_is_stale(record):
        found, peers = without_host_times(found), {who: without_host_times(each) for who, each in peers.items()}
        found["host"] = "the host's code has changed since"
    return found | ({"peers": peers} if peers else {})


def stale(name: str | None = None, root: Path | None = None) -> list[Record]:
    """The stale records, of one recipe or of all; one whose times of the host alone are stale is none of them."""
    return [r for r in read(root, name) if is_stale(r)]


def select(
    name: str, level: str, dtype: str | None = None, root: Path | None = None, majors: str | None = None
) -> list[Record]:
    """The records of a recipe at a level, the first GPU's first (see `files`), stale ones too: ask `is_stale` before
    showing one as current.

    Args:
        dtype: only these; all if left out.
        majors: likewise.
    """
    wanted = [r for r in read(root, name) if r["level"] == level]
    return [r for r in wanted if dtype in (None, r["dtype"]) and majors in (None, r.get("majors"))]


def of_one_gpu(
    name: str,
    level: str,
    dtype: str | None = None,
    root: Path | None = None,
    majors: str | None = None,
    device: str | None = None,
) -> list[Record]:
    """The current records of a recipe at a level, of one GPU alone.

    Args:
        device: which GPU; the first that has such records if left out (see `files`). Name the device of the other
            records where two recipes are compared.
    """
    found = [r for r in select(name, level, dtype, root, majors) if not is_stale(r)]
    device = device or next((r["device"] for r in found), None)
    return [r for r in found if r["device"] == device]
