"""This machine's set-up, what works with it, and how to fix what does not."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from cookbook.check import compiled
from cookbook.measure import records
from cookbook.recipe import catalog

OK, LIMITED, MISSING = "ok", "limited", "missing"
MIN_PYTHON = (3, 10)


@dataclass(frozen=True)
class Diagnosis:
    """One thing looked at: "ok", "limited" (a part works without it) or "missing" (most does not)."""

    what: str
    status: str
    found: str
    means: str  # what works with it, or does not without
    fix: str = ""

    def to_json(self) -> dict[str, str]:
        """The fields as a dict."""
        return asdict(self)


def examine() -> list[Diagnosis]:
    """Look at everything the cookbook uses, in the order in which it is needed."""
    return [_system(), _python(), _torch(), _dsl(), _tvm_ffi(), _nvdisasm(), _driver(), *_gpus(), _quack(), _catalog()]


def healthy(diagnoses: list[Diagnosis]) -> bool:
    """Whether layout, model and compiled can be checked here: nothing is missing."""
    return all(d.status != MISSING for d in diagnoses)


def _system() -> Diagnosis:
    found = f"{platform.system()} {platform.machine()}"
    fits = platform.system() in ("Linux", "Windows") and platform.machine().lower() in (
        "x86_64",
        "amd64",
        "aarch64",
    )
    fix = "" if fits else "use Linux on x86-64 or Arm (WSL and containers count)"
    return Diagnosis("system", OK if fits else MISSING, found, "nvidia-cutlass-dsl has wheels for it", fix)


def _python() -> Diagnosis:
    fits = sys.version_info >= MIN_PYTHON
    means = "the cookbook and CuTe DSL need 3.10 or later"
    fix = "" if fits else "make PYTHON=python3.12 demo"
    return Diagnosis("python", OK if fits else MISSING, platform.python_version(), means, fix)


def _torch() -> Diagnosis:
    means = "the tensors of matmul and the reference of every check"
    try:
        import torch
    except Exception as error:
        return Diagnosis("torch", MISSING, str(error), means, "pip install 'torch>=2.6'")
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    if torch.version.cuda is None and records.driver_version():
        fix = "there is an NVIDIA GPU here: install the CUDA build of torch (https://pytorch.org/get-started)"
        return Diagnosis("torch", LIMITED, f"{torch.__version__}, {build}", "kernels cannot run", fix)
    return Diagnosis("torch", OK, f"{torch.__version__}, {build}", means)


def _dsl() -> Diagnosis:
    means = "compiles every recipe, with or without a GPU"
    try:
        import cutlass
        import cutlass.cute
    except Exception as error:
        fix = "pip install 'nvidia-cutlass-dsl>=4.8' (Linux or Windows, Python 3.10 to 3.14)"
        return Diagnosis("CuTe DSL", MISSING, str(error), means, fix)
    return Diagnosis("CuTe DSL", OK, cutlass.__version__, means)


def _tvm_ffi() -> Diagnosis:
    means = "the recipes' functions launch their kernels through it"
    try:
        import tvm_ffi
    except Exception as error:
        limit = "kernels compile but cannot be called"
        return Diagnosis("TVM-FFI", LIMITED, str(error), limit, "pip install apache-tvm-ffi")
    return Diagnosis("TVM-FFI", OK, tvm_ffi.__version__, means)


def _nvdisasm() -> Diagnosis:
    means = "`check` counts instructions in the compiled code"
    try:
        return Diagnosis("nvdisasm", OK, str(compiled.nvdisasm()), means)
    except compiled.NoDisassembler:
        fix = "pip install nvidia-cuda-nvdisasm"
        return Diagnosis("nvdisasm", LIMITED, "none", "`check` cannot check the level compiled", fix)


def _driver() -> Diagnosis:
    version = records.driver_version()
    if version is None:
        fix = "on a machine with an NVIDIA GPU: install its driver; without one there is nothing to fix"
        return Diagnosis("driver", LIMITED, "none", "kernels compile but cannot run", fix)
    return Diagnosis("driver", OK, version, "loads and runs kernels")


def _gpus() -> list[Diagnosis]:
    recorded = "layout, model and compiled work; ran, timed and counted come from results/"
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception:
        count = 0
    if not count:
        return [Diagnosis("GPU", LIMITED, "none that torch can use", recorded, "run on a GPU of sm_80 or later")]
    return [_gpu(index) for index in range(count)]


def _gpu(index: int) -> Diagnosis:
    import torch

    capability = torch.cuda.get_device_capability(index)
    found = f"{torch.cuda.get_device_name(index)}, sm_{capability[0]}{capability[1]}"
    everything = catalog.recipes()
    run = [r.name for r in everything if r.runs_on_capability(*capability)]
    others = [f"{r.name} (needs {r.runs_on})" for r in everything if r.name not in run]
    means = f"runs {', '.join(run) or 'no recipe'}" + (f"; compiles only: {', '.join(others)}" if others else "")
    return Diagnosis(f"GPU {index}", OK if run else LIMITED, found, means)


def _quack() -> Diagnosis:
    version = records.package_version("quack-kernels")
    if version is None:
        fix = "pip install 'cute-cookbook[peers]', on a machine with a Hopper or later GPU"
        return Diagnosis("QuACK", LIMITED, "none", "`bench` has torch.matmul as its one peer", fix)
    return Diagnosis("QuACK", OK, version, "a second peer for `bench`")


def _catalog() -> Diagnosis:
    found = catalog.recipes()
    where = str(catalog.recipes_root())
    if not found:
        return Diagnosis("recipes", MISSING, f"none in {where}", "nothing to check", "reinstall cute-cookbook")
    stale = records.stale()
    means = f"{len(stale)} stale records: `cookbook results --stale`" if stale else "no stale record"
    return Diagnosis("recipes", OK, f"{len(found)} in {where}", means)


def to_json(diagnoses: list[Diagnosis]) -> dict[str, Any]:
    """`{"ok", "diagnoses": [...]}`."""
    return {"ok": healthy(diagnoses), "diagnoses": [d.to_json() for d in diagnoses]}
