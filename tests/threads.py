"""Programs of 8 threads that use copied recipes for the first time at once; each runs in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cookbook.recipe import catalog

COPIES = ("hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm", "hopper/persistent_gemm")

# What such a program dies of where compiles are not one at a time: one thread takes the compiler's state from another.
ABORTS = re.compile(r"requires a Location|terminate called|Error|Fatal Python")

FIRST_COMPILES = """\
import contextlib
import sys
import threading
from types import SimpleNamespace

import cutlass

if "unlocked" in sys.argv:
    sys.modules["one_cute_compile_at_a_time"] = SimpleNamespace(lock=contextlib.nullcontext())

import ldmatrix_gemm
import persistent_gemm
import tma_wgmma_gemm

JOBS = [(tma_wgmma_gemm, "sm_90a"), (ldmatrix_gemm, "sm_80"), (persistent_gemm, "sm_90a")]
ready, done = threading.Barrier(8), []


def first(number):
    module, arch = JOBS[number % 3]
    ready.wait()
    module.compile_for(arch, (cutlass.BFloat16, cutlass.Float16)[number % 2])
    done.append(number)


threads = [threading.Thread(target=first, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(done), "compiled")
"""

FIRST_CALLS = """\
import threading

import torch

import ldmatrix_gemm
import persistent_gemm
import tma_wgmma_gemm

MODULES = [tma_wgmma_gemm, ldmatrix_gemm, persistent_gemm]
ready, right = threading.Barrier(8), []
a = torch.randn(300, 256, device="cuda").bfloat16()
b = torch.randn(200, 256, device="cuda").bfloat16().T
exact = a.double() @ b.double()
torch.cuda.synchronize()


def first(number):
    stream = torch.cuda.Stream()
    ready.wait()
    with torch.cuda.stream(stream):
        got = MODULES[number % 3].matmul(a, b)
    stream.synchronize()
    right.append(((got.double() - exact).norm() / exact.norm()).item() < 4e-3)


threads = [threading.Thread(target=first, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(right), "right")
"""


def run_beside_copies(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program's text in a process of its own, in a folder where the COPIES are modules; cookbook is not there."""
    for name in COPIES:
        (folder / f"{name.split('/')[1]}.py").write_text(catalog.standalone_source(name), encoding="utf-8")
    (folder / "first.py").write_text(program, encoding="utf-8")
    run = [sys.executable, "first.py", *arguments]
    return subprocess.run(run, capture_output=True, text=True, cwd=folder, check=False)
