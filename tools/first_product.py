"""Time a fresh process to its first product: compiled, from the disk cache, from a built library.

    python tools/first_product.py                      # builds the library first: needs a C compiler
    python tools/first_product.py --built FOLDER       # a folder that `cookbook build` wrote on another machine
    python tools/first_product.py --record             # into results/<device>/first_product.json, which a page shows

Each process imports torch, makes the operands on the GPU (the CUDA context is made then), imports what multiplies them,
multiplies and waits. Times are in ms, after `import torch`: `operands` of the context and the operands, `import`,
`first` of the first product, `second` of one more. The product is compared with float64. `torch` is torch.matmul.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME, DTYPE = "hopper/tuned_gemm", "bfloat16"
STEPS = ("operands", "import", "first", "second")
BAR_MS = 100  # of `import` and `first` together, from a built library
WAYS = ("compiled", "cached", "built", "torch")
SEQUENCE = ("compiled", *("built", "torch", "cached") * 2, "built", "torch", "built")  # the first one fills the cache
FILE = "first_product.json"  # below results/<device>/
ROOT = Path(__file__).resolve().parents[1]


def matmul_of(way: str, name: str, built: str) -> Any:
    """The function that multiplies, imported now."""
    if way == "torch":
        import torch

        return torch.matmul
    if way == "built":
        sys.path.insert(0, built)
        return __import__(name.rpartition("/")[2]).matmul
    import cookbook

    return cookbook.load(name).matmul


def one(way: str, name: str, built: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """The times of this process, which is to have imported nothing yet."""
    begun = time.perf_counter()
    import torch

    clock, (m, n, k) = [time.perf_counter()], shape
    dtype = getattr(torch, DTYPE)
    a, b = (torch.randn(rows, k, device="cuda", dtype=dtype) for rows in (m, n))
    torch.cuda.synchronize()
    clock.append(time.perf_counter())
    matmul = matmul_of(way, name, built)
    clock.append(time.perf_counter())
    for _ in range(2):
        c = matmul(a, b.T)
        torch.cuda.synchronize()
        clock.append(time.perf_counter())
    exact = a.double() @ b.double().T
    errors = [float((x.double() - exact).abs().max()) for x in (c, torch.matmul(a, b.T))]
    return {
        "way": way,
        "ms": {step: 1000 * (end - start) for step, start, end in zip(STEPS, clock, clock[1:], strict=False)},
        "import_torch_ms": 1000 * (clock[0] - begun),
        "right": errors[0] <= 2 * errors[1],
        "error_and_torchs": errors,
        "cutlass_imported": "cutlass" in sys.modules,
    }


def process(way: str, given: argparse.Namespace, built: str, cache: str) -> dict[str, Any]:
    """`one` in a fresh process."""
    settings = {"COOKBOOK_CACHE": cache, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(Path(__file__).resolve()), "--way", way, "--built", built, "--recipe", given.recipe]
    command += ["--shape", *map(str, given.shape)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | settings, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: got exit status {done.returncode}; needed 0\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def variant_of(name: str, shape: tuple[int, int, int]) -> list[str]:
    """Return what the recipe chooses on this GPU; none if it has no heuristics."""
    import torch

    import cookbook

    module: Any = cookbook.load(name)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    return [module.choose(*shape, sms)] if hasattr(module, "choose") else []


def build(name: str, shape: tuple[int, int, int], into: str) -> str:
    """A library of the kernels for this shape."""
    from cookbook.recipe import build, catalog

    wanted = build.Wanted([DTYPE], (), variant_of(name, shape))
    build.build(name, catalog.find(name).targets[0], Path(into), wanted)
    return into


def measure(given: argparse.Namespace, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Every way, in turn. keep: called with what is known after each process, for a run may be cut short."""
    with tempfile.TemporaryDirectory(prefix="cookbook-") as temporary:
        built = given.built or build(given.recipe, tuple(given.shape), f"{temporary}/built")
        runs, known, found = [], about(given), {}
        for way in SEQUENCE:
            run = process(way, given, built, f"{temporary}/cache")
            print(way, {step: round(ms, 1) for step, ms in run["ms"].items()}, file=sys.stderr, flush=True)
            runs.append(run)
            found = known | {"ms": summaries(runs), "right": all(run["right"] for run in runs), "runs": runs}
            keep(found)
    return found


def summaries(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """By way: median, least and most of each step, and of `import` and `first` together."""
    found: dict[str, Any] = {}
    for way in WAYS:
        ms = [
            run["ms"] | {"import + first": run["ms"]["import"] + run["ms"]["first"]}
            for run in runs
            if run["way"] == way
        ]
        if ms:
            steps = {step: [each[step] for each in ms] for step in ms[0]}
            found[way] = {
                step: [round(f(times), 2) for f in (statistics.median, min, max)] for step, times in steps.items()
            }
    return found


def steps_of(name: str, built: str) -> None:
    """Print what the first product from a built library is made of, in ms: for whoever wants it shorter."""
    import torch

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=getattr(torch, DTYPE)) for _ in "ab")
    torch.cuda.synchronize()
    sys.path.insert(0, built)
    stem = name.rpartition("/")[2]
    steps: dict[str, Callable[[], Any]] = {
        "import the loader": lambda: __import__(stem),
        "import tvm_ffi": lambda: __import__("tvm_ffi"),
        "open the runtime library": lambda: ctypes.CDLL(sys.modules[stem].runtime_library(), ctypes.RTLD_GLOBAL),
        "open the library": lambda: sys.modules[stem].library(),
        "torch's first stream": lambda: torch.cuda.Stream().synchronize(),
        "plan": lambda: sys.modules[stem].GEMM.plan(("here",), (a, b.T), None, "auto"),
        "first product": lambda: (sys.modules[stem].matmul(a, b.T), torch.cuda.synchronize()),
        "second product": lambda: (sys.modules[stem].matmul(a, b.T), torch.cuda.synchronize()),
    }
    for step, do in steps.items():
        begun = time.perf_counter()
        do()
        print(f"{1000 * (time.perf_counter() - begun):8.2f}  {step}")


def about(given: argparse.Namespace) -> dict[str, Any]:
    """Return where and of what."""
    import torch

    from cookbook.measure import records

    known = {"recipe": given.recipe, "shape": given.shape, "dtype": DTYPE, "code": code(given.recipe)}
    return {"device": torch.cuda.get_device_name(), "date": records.now()} | known | {"versions": records.versions()}


def code(name: str) -> str:
    """A hash of what a first product executes on the host: once it is another, recorded times are stale."""
    from cookbook.recipe import build, cache, catalog

    text = build.loader(catalog.find(name), "") + Path(cache.__file__).read_text(encoding="utf-8")
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_of(device: str) -> Path:
    """Return where a device's times are recorded."""
    from cookbook.measure import records

    return records.results_root() / records.slug(device) / FILE


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--recipe", default=NAME)
    parser.add_argument("--shape", type=int, nargs=3, default=(4096, 4096, 4096), metavar=("M", "N", "K"))
    parser.add_argument("--built", default="", metavar="FOLDER")
    parser.add_argument("--json", default="", metavar="FILE")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--steps", action="store_true", help="only what a first product from FOLDER is made of")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # of a process that was started
    given = parser.parse_args()
    if given.way:
        print(json.dumps(one(given.way, given.recipe, given.built, tuple(given.shape))))
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error("device: got no CUDA device; needed a GPU that the recipe runs on")
    if given.steps:
        steps_of(given.recipe, given.built)
        return 0
    files = [Path(given.json)] if given.json else []
    files += [file_of(torch.cuda.get_device_name())] if given.record else []

    def keep(found: dict[str, Any]) -> None:
        for file in files:
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    found = measure(given, keep)
    if not files:
        print(json.dumps(found, indent=1))
    served = found["ms"]["built"]["import + first"][0]
    print(f"from a built library: {served} ms; the bar is {BAR_MS} ms", file=sys.stderr)
    return int(not (found["right"] and served <= BAR_MS))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
