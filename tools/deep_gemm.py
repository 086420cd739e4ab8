"""Time `hopper/fp8_blockwise_gemm` against DeepGEMM and torch in one run: `python -m tools.deep_gemm [--record]`.

It needs DeepGEMM (https://github.com/deepseek-ai/DeepGEMM) installed, on a Hopper GPU. Each product is timed by two
protocols. DeepGEMM's own: the profiler's time of the kernel, 8 GB are written before each launch, so that L2 is cold
and the GPU rests at memory's speed. Ours: `tools.threefold`, launches one behind the other in CUDA graphs.

results/<device>/deep_gemm.json keeps {"device", "version", "products": [{"shape", "cold": {name: microseconds},
"variants": as threefold's, "code", "date"}]}; "cold" may be missing. docs/benchmarks.md shows it.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cookbook.measure import contest, peers
from cookbook.measure.contest import OURS
from cookbook.products import scaled
from cookbook.products.narrow import form_of
from cookbook.recipe import catalog
from tools import threefold
from tools.records import of_device

FILE, NAME, PEER, DTYPE = "deep_gemm.json", "hopper/fp8_blockwise_gemm", "DeepGEMM", "bfloat16"
WEIGHTS = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))  # its tests' (N, K)
SHAPES = (*((4096, n, k) for n, k in WEIGHTS), *((m, *WEIGHTS[i]) for i in (3, 4) for m in (128, 64, 16)))
FLUSH, CALLS = 8 * 10**9, 30  # bytes that are written before a launch, and launches
FLUSHES = "Memset", "FillFunctor"  # names of the kernels that write them
ROUNDS = 4


def contest_of(shape: tuple[int, int, int], theirs: Callable[..., Any]) -> contest.Contest:
    """The recipe, torch's own call and DeepGEMM's at one product. Raises RuntimeError where one is wrong."""
    recipe = catalog.find(NAME)
    form = form_of(recipe)
    sets = scaled.scaled_sets(shape, DTYPE, form)
    calls = {OURS: scaled.into(catalog.load(NAME).matmul), **scaled.own_peers(form), PEER: partial(of_peer, theirs)}
    for name, call in calls.items():
        scaled.verify(name, call, sets[0], form)
    return contest.Contest(calls, sets, scaled.BLOCKWISE, peers.work_of(shape))


def of_peer(theirs: Callable[..., Any], a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> Any:
    """DeepGEMM's product: it takes B's rows, and of B's scale factors adjacent ones along K."""
    theirs((a, scale_a), (b.T, scale_b.T[:, : a.shape[1] // 128]), out)
    return out


def cold_us(call: Callable[..., Any], operands: tuple[Any, ...]) -> float:
    """Microseconds of a call's kernels by DeepGEMM's protocol."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, schedule

    active = schedule(wait=0, warmup=1, active=1, repeat=1)
    with profile(activities=[ProfilerActivity.CUDA], schedule=active, acc_events=True) as profiler:
        for _ in range(2):
            for _ in range(CALLS):
                torch.empty(FLUSH // 4, dtype=torch.int, device="cuda").zero_()
                call(*operands)
            torch.cuda.synchronize()
            profiler.step()
    on_gpu = [each for each in profiler.key_averages() if each.device_type == DeviceType.CUDA]
    return sum(each.self_device_time_total for each in on_gpu if not any(x in each.key for x in FLUSHES)) / CALLS


def measure(shape: tuple[int, int, int], theirs: Callable[..., Any]) -> dict[str, Any]:
    """One product, both ways."""
    held = contest_of(shape, theirs)
    cold = {name: float(f"{cold_us(call, held.sets[0]):.5g}") for name, call in held.variants.items()}
    found = threefold.record_of(NAME, shape, DTYPE, held.standard, threefold.measure(held, rounds=ROUNDS))
    return {"shape": list(shape), "cold": cold} | {key: found[key] for key in ("variants", "code", "date")}


def read(root: Path | None = None) -> dict[str, dict[str, Any]]:
    """What is recorded, by device.

    Raises ValueError if a file is not what `write` writes.
    """

    def contest_in(content: dict[str, Any]) -> dict[str, Any]:
        return {"version": content["version"], "products": list(content["products"])}

    return of_device.read(FILE, contest_in, "a contest with DeepGEMM", root)


def write(device: str, version: str, products: list[dict[str, Any]], root: Path | None = None) -> Path:
    """Put measured products into a device's file, in place of what was there."""
    return of_device.write(FILE, {"device": device, "version": version, "products": products}, root)


def main(record: bool) -> None:
    """Measure all SHAPES; what is there is written after each, so that a run that is cut leaves it."""
    theirs, found = importlib.import_module("deep_gemm"), []  # a peer that few have
    for shape in SHAPES:
        found.append(measure(shape, theirs.fp8_gemm_nt))
        cold, warm = found[-1]["cold"], {name: x["alone_us"] for name, x in found[-1]["variants"].items()}
        print(f"{'x'.join(map(str, shape))}: cold {cold}, in a loop {warm}", flush=True)
        if record:
            write(torch.cuda.get_device_name(), theirs.__version__, found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="keep it in results/")
    main(parser.parse_args().record)
