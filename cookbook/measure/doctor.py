"""This machine's set-up, what works with it, and how to fix what does not."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from cookbook.check import compiled
from cookbook.measure import records
from cookbook.recipe import catalog, versions

OK, LIMITED, MISSING = "ok", "limited", "missing"
MIN_PYTHON = (3, 10)
LIKE_NAMED = "nvidia-cutlass"  # CUTLASS' older Python interface; some versions have a module `cutlass` too


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
    """Return whether layout, model and compiled can be checked here: nothing is missing."""
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
    means, wanted = "compiles every recipe, with or without a GPU", f"{versions.DSL}>={versions.OLDEST}"
    try:
        import cutlass
        import cutlass.cute
    except Exception as error:
        fix = f"pip install '{wanted}' (Linux or Windows, Python 3.10 to 3.14)"
        if other := records.package_version(LIKE_NAMED):
            found = f"{LIKE_NAMED} {other}, which is another package ({error})"
            return Diagnosis("CuTe DSL", MISSING, found, means, f"pip uninstall {LIKE_NAMED}; {fix}")
        return Diagnosis("CuTe DSL", MISSING, str(error), means, fix)
    found = str(cutlass.__version__)
    if mixed := mixed_wheels(list(metadata.distributions())):
        fix = f"pip uninstall the wheels that do not belong; pip install --force-reinstall '{versions.DSL}=={found}'"
        return Diagnosis("CuTe DSL", LIMITED, f"{found}; {mixed}", "kernels may not compile, or compile wrongly", fix)
    if versions.is_old(found):
        lacking = ", ".join(versions.failing(found))
        means = f"too old for {lacking}" if lacking else "older than what was tried"
        return Diagnosis("CuTe DSL", LIMITED, found, means, f"pip install '{wanted}'")
    return Diagnosis("CuTe DSL", OK, found, means)


def mixed_wheels(installed: Iterable[metadata.Distribution]) -> str:
    """Return what is wrong with the wheels of CuTe DSL's libraries among these packages; "" if nothing.

    Wheels for CUDA 12 and 13 of some versions have files of the same place and of other content: which of them is there
    depends on which came last.
    """
    named = {each.metadata["Name"]: each for each in installed if each.metadata["Name"].startswith(versions.DSL)}
    of_version = {name: each.version for name, each in named.items()}
    if len(set(of_version.values())) > 1:
        return "wheels of several versions: " + ", ".join(f"{name} {of_version[name]}" for name in sorted(of_version))
    owners: dict[str, dict[str, str]] = {}  # file -> its hash -> the wheel that has it so
    for name, each in sorted(named.items()):
        for file in each.files or ():
            if file.hash:
                owners.setdefault(str(file), {}).setdefault(file.hash.value, name)
    shared = [(file, wheels) for file, wheels in owners.items() if len(wheels) > 1]
    if not shared:
        return ""
    file, wheels = shared[0]
    return f"{' and '.join(sorted(wheels.values()))} both have {file} and {len(shared) - 1} more"


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
