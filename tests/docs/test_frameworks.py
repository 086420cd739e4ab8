"""docs/frameworks.md: its code does with no GPU what the page says, and what it says of PyTorch stands in PyTorch.

JAX and NVIDIA's operators go into folders of their own: CuTe imports JAX wherever it finds it.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from cookbook.recipe import catalog

PAGE = (catalog.recipes_root().parent / "docs" / "frameworks.md").read_text(encoding="utf-8")
JAX = ("jax==0.10.2", "jaxlib==0.10.2", "ml_dtypes", "opt_einsum", "scipy")
OPERATORS = ("nvidia-cutlass-operators==0.3.0", "networkx")

ON_JAX = """
import jax.numpy as jnp

def lowered(m, n, k):
    shapes = jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((n, k), jnp.bfloat16)
    return matmul.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()

for n in (384, 383):
    text = lowered(256, n, 512)
    assert "custom_call @CuteDSLRT_NvJaxCutlassCall" in text and r"\\7FELF" in text, text[:500]
x, w = jnp.zeros((16, 32), jnp.bfloat16), jnp.zeros((24, 32), jnp.bfloat16)
for function, said in (
    (lambda: lowered(16, 16, 12), "x: got K = 12; needed a multiple of 8"),
    (lambda: jax.grad(lambda x: matmul(x, w).astype(jnp.float32).sum())(x), "does not support VJP"),
    (lambda: jax.vmap(matmul, (0, None))(x[None], w), "does not support batching"),
    (lambda: matmul(x, w), "not found for platform cpu"),
):
    try:
        function()
    except (ValueError, NotImplementedError) as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
print("lowered for CUDA")
"""
ON_OPERATORS = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

def found(m, n, k, b_rows=False):
    kind = {"dtype": torch.bfloat16, "device": "cuda"}
    b = torch.empty(k, n, **kind) if b_rows else torch.empty(n, k, **kind).T
    args = ops.GemmArguments(
        torch.empty(m, k, **kind), b, torch.empty(m, n, **kind), accumulator_type=torch.float32
    )
    return [each for each in ops.get_operators(args, target_sm="90a") if isinstance(each, MyGemm)], args

with FakeTensorMode():
    (mine,), args = found(256, 384, 512)
    artifact = mine.compile(args, target_sm="90a")
    assert artifact.compiled_for == ops.TargetSm("90a") and callable(artifact.compiled_obj)
    for refused in ((256, 384, 516), (256, 383, 512), (256, 384, 512, True)):
        assert found(*refused)[0] == [], refused
print("found and compiled")
"""


def block(importing: str) -> str:
    (found,) = [each for each in re.findall(r"```python\n(.*?)```", PAGE, re.S) if importing in each]
    return found


@pytest.fixture
def folder():
    """One that is gone after the test: JAX takes half a gigabyte."""
    with tempfile.TemporaryDirectory(prefix="cookbook-") as made:
        yield Path(made)


def run(folder: Path, packages: tuple[str, ...], code: str) -> str:
    """What code says in a process of its own that also has `packages`; it is a file, for CuTe reads the source."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder / "packages")]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"not to be had here: {', '.join(packages)}")
    (folder / "my_gemm.py").write_text(catalog.standalone_source("hopper/tma_wgmma_gemm"), encoding="utf-8")
    (folder / "run.py").write_text(code, encoding="utf-8")
    variables = {"PYTHONPATH": str(folder / "packages"), "CUTE_DSL_ARCH": "sm_90a", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(folder / "run.py")]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_jax_lowers_a_recipe_for_cuda(folder):
    assert "lowered for CUDA" in run(folder, JAX, block("import jax\n") + ON_JAX)


@pytest.mark.slow
def test_nvidias_registry_finds_and_compiles_a_recipe(folder):
    assert "found and compiled" in run(folder, OPERATORS, block("cutlass.operators") + ON_OPERATORS)


def test_the_adapters_know_the_recipes_host_function():
    """The order of `gemm`'s parameters, which both blocks rely on, and the names that they import."""
    code = catalog.standalone_source("hopper/tma_wgmma_gemm")
    names = ["pA", "pB", "pC", "mnk", "strides", "stream", "config", "vec"]
    assert re.search(r"def gemm\(\s*" + r"\b.*?".join(names), code, re.S) and re.search(r"^CONFIG = ", code, re.M)
    for importing in ("import jax\n", "cutlass.operators"):
        compile(block(importing), "page", "exec")
        assert "from my_gemm import CONFIG, gemm" in block(importing)


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the page tells of PyTorch 2.13")
def test_what_the_page_says_of_pytorch():
    from torch._inductor import config, utils
    from torch._inductor.codegen.nv_universal_gemm import kernel_cache
    from torch._native import cutedsl_utils

    assert "`ATEN,TRITON,CPP`" in PAGE and config.max_autotune_gemm_backends == "ATEN,TRITON,CPP"
    assert config.nvgemm_max_profiling_configs == 5 and "first 5 that `nvMatmulHeuristics`" in PAGE
    known = sorted(map(str, cutedsl_utils._CUTEDSL_REQUIRED_VERSIONS))
    assert f"{', '.join(known[:-1])} or {known[-1]}" in " ".join(PAGE.split())
    source = inspect.getsource(kernel_cache._build_kernel_cache)
    assert "cutlass_api.get_kernels()" in source and "vendored_templates.cutedsl" in source
    nvgemm, templates = (
        inspect.getsource(each)
        for each in (utils.use_nv_universal_gemm_template, utils.use_blackwell_cutedsl_grouped_mm)
    )
    assert "V.aot_compilation" in nvgemm and "unaligned_buffers" in nvgemm
    assert "is_datacenter_blackwell_arch" in templates and "is_dynamic" in templates and "bias is not None" in templates
    assert not config.cutedsl_enable_autotuning and "`CUTEDSL_ENABLE_AUTOTUNING=1`" in PAGE
    for path in re.findall(r"`((?:codegen|kernel)/[\w/.]+)`", PAGE):
        assert (Path(utils.__file__).parent / path).exists(), path
