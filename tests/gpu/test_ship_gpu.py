"""A fresh process serves its first product without compiling: from the disk cache, and from a built library.

`pytest -m gpu tests/gpu/test_ship_gpu.py`; skipped where there is no CUDA device.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cookbook.recipe import build, catalog

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
GEMMS = ["hopper/tuned_gemm", "hopper/majors_gemm", "ampere/tuned_gemm", "blackwell/geforce_gemm"]

SHAPES = (512, 768, 256), (200, 336, 64), (4096, 4096, 4096)

CHECK = (
    f"SHAPES = {SHAPES}"
    """
import sys
import torch
def right(matmul, *shape):
    m, n, k = shape
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    got, torchs, exact = matmul(a, b.T), torch.matmul(a, b.T), a.double() @ b.double().T
    ours, theirs = ((x.double() - exact).abs().max().item() for x in (got, torchs))
    assert ours <= 2 * theirs, (shape, ours, theirs)
"""
)
FROM_CACHE = """
import cookbook
import cutlass.cute as cute
if sys.argv[2] == "kept":
    cute.compile = None  # nothing may be compiled
matmul = cookbook.load(sys.argv[1]).matmul
for shape in SHAPES:
    right(matmul, *shape)
"""
FROM_LIBRARY = """
for heavy in ("cutlass", "cookbook"):
    sys.modules[heavy] = None  # neither may be imported
sys.path.insert(0, sys.argv[1])
matmul = __import__(sys.argv[2]).matmul
for shape in SHAPES:
    right(matmul, *shape)
graph = torch.cuda.CUDAGraph()
a, b = (torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in "ab")
matmul(a, b.T)
torch.cuda.synchronize()
with torch.cuda.graph(graph):
    c = matmul(a, b.T)
graph.replay()
torch.testing.assert_close(c, torch.matmul(a, b.T), atol=0.5, rtol=0.05)
"""


def arch_of(name):
    """The target that is compiled for the GPU that is here; skips without one."""
    recipe = catalog.find(name)
    here = "sm_{}{}".format(*torch.cuda.get_device_capability())
    found = [target for target in recipe.targets if target.rstrip("af") == here]
    if not found:
        pytest.skip(f"{name} has no target {here}")
    return found[0]


def in_a_fresh_process(program, *arguments, **settings):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])} | settings
    command = [sys.executable, "-c", CHECK + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", GEMMS)
def test_from_the_cache(name, tmp_path):
    """The second process compiles nothing; the first one writes, and runs what it wrote."""
    arch_of(name)
    for kept in ("empty", "kept"):
        in_a_fresh_process(FROM_CACHE, name, kept, COOKBOOK_CACHE=str(tmp_path))


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")
def test_from_a_library(tmp_path):
    """The variants that the heuristics choose for these products, and no others."""
    name = GEMMS[0]
    arch, module, sms = arch_of(name), catalog.load(name), torch.cuda.get_device_properties(0).multi_processor_count
    variants = {module.choose(*shape, sms) for shape in (*SHAPES, (256, 256, 256))}
    made = build.build(name, arch, tmp_path, build.Wanted(["bfloat16"], (), sorted(variants)))
    in_a_fresh_process(FROM_LIBRARY, str(tmp_path), made.loader.stem)
