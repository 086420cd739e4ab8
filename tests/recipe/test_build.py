"""`cookbook build`: which kernels it compiles, the loader of every GEMM, and a build in a process without CuTe."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from cookbook.cli import app
from cookbook.recipe import build, built, catalog

GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.product.of_two_matrices]
NAME, VARIANT = "hopper/tuned_gemm", "128x64 pingpong"  # a kernel or two a dtype

needs_linker = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler here")


# --- which kernels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["hopper/tuned_gemm", "hopper/majors_gemm", "ampere/tuned_gemm", "hopper/split_k_gemm"]
)
def test_every_call_finds_its_kernel(name, monkeypatch):
    """Of random calls, none asks for a kernel that a whole build lacks."""
    from cookbook.recipe.entry import DTYPES, Call
    from cookbook.recipe.majors import MAJORS

    recipe, module, draw = catalog.find(name), catalog.load(name), random.Random(0)
    arch = recipe.targets[0]
    kernels = build.kernels_of(recipe, arch, build.Wanted())
    if hasattr(module, "remap_of"):
        monkeypatch.setitem(module.remap_of.__globals__, "remap_table", lambda *_: 1)
    for _ in range(200):
        m, n, k = (draw.choice([1, 8, 100, 1000, 4096, 4104, 30_000]) for _ in range(3))
        dtype, majors = getattr(torch, draw.choice(recipe.dtypes)), MAJORS[draw.choice(recipe.majors)]
        sms, vec, variant = draw.choice([16, 114, 132]), draw.choice([8, 4, 2, 1]), draw.choice([*module.GEMM.variants])
        of = (dtype, dtype), 0, arch.rstrip("af"), sms, (m, n, k), majors, (k, k, n), vec, True, (0, 0, 0), variant
        which, _ = module.prepare(Call(dtype, *of, (m, n), {}))
        assert repr((DTYPES[dtype].__name__, *which)) in kernels


def test_a_part():
    recipe = catalog.find(NAME)
    whole = build.kernels_of(recipe, "sm_90a", build.Wanted())
    part = build.kernels_of(recipe, "sm_90a", build.Wanted(["bfloat16"], ["tn"], [VARIANT]))
    assert part.keys() < whole.keys() and all("BFloat16" in text and "tile_n=64" in text for text in part)


@pytest.mark.parametrize(
    ("name", "arch", "wanted", "message"),
    [
        ("primer/layouts", "sm_90a", (), "name: got primer/layouts; needed a product of two matrices alone"),
        ("hopper/fp8_gemm", "sm_90a", (), "name: got hopper/fp8_gemm; needed a product of two matrices alone"),
        (NAME, "sm_80", (), f"arch: got 'sm_80'; needed one of sm_90a, which {NAME} has"),
        (NAME, "", (), f"arch: got ''; needed one of sm_90a, which {NAME} has"),
        (NAME, "sm_90a", (["float32"],), "dtype: got 'float32'; needed bfloat16 or float16"),
        (NAME, "sm_90a", ((), ["nt"]), "major: got 'nt'; needed tn"),
        ("hopper/tma_wgmma_gemm", "sm_90a", ((), (), ["x"]), "variant: got 'x'; needed none: there are none"),
    ],
)
def test_refused(name, arch, wanted, message, tmp_path):
    with pytest.raises(ValueError) as raised:
        build.build(name, arch, tmp_path / "kernels", build.Wanted(*wanted))
    assert str(raised.value) == message
    assert not (tmp_path / "kernels").exists()


def test_without_a_linker(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/no/such/cc")
    with pytest.raises(ValueError, match="CC: got /no/such/cc; needed cc, gcc or clang"):
        build.build(NAME, "sm_90a", tmp_path / "kernels")


# --- the loader ---------------------------------------------------------------------------------------------------


def loaded(text, file, monkeypatch):
    """A loader's module, where there is no CuTe."""
    for heavy in ("cutlass", "cutlass.cute", "cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, heavy, None)  # import raises ImportError
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, file.stem, module)
    exec(compile(text, str(file), "exec", dont_inherit=True), vars(module))
    return module


@pytest.mark.parametrize("name", GEMMS)
def test_the_loader_of_every_gemm(name, monkeypatch, tmp_path):
    """It needs torch alone to be imported, and its checks are the recipe's."""
    recipe = catalog.find(name)
    text = build.loader(recipe, recipe.targets[0])
    roots = {
        (getattr(node, "module", None) or node.names[0].name).split(".")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
    }
    assert roots <= {*sys.stdlib_module_names, "torch", "tvm_ffi"} and "cutlass." not in text
    module = loaded(text, tmp_path / "gemm_of_a_build.py", monkeypatch)
    a = torch.zeros(64, 64, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match=r"a: got torch\.float32; needed torch\.float16 or"):
        module.matmul(a.float(), a.float())
    with pytest.raises(ValueError, match="a: got device cpu; needed a CUDA device"):
        module.matmul(a, a.T)


@pytest.mark.parametrize(
    ("arch", "runs", "fails"),
    [
        ("sm_90a", [(9, 0)], [(8, 9), (10, 0), (12, 0)]),
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0), (12, 0)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        ("sm_100a", [(10, 0)], [(10, 3), (9, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(11, 0), (12, 0)]),
        ("sm_120a", [(12, 0)], [(12, 1), (10, 0)]),
    ],
)
def test_which_gpu_runs_it(arch, runs, fails):
    assert [built.serves(arch, gpu) for gpu in runs + fails] == [True] * len(runs) + [False] * len(fails)


def test_the_runtime_library(monkeypatch, tmp_path):
    """The one that is named, else the one that is installed; without either, what to install."""
    mine = tmp_path / "libcute_dsl_runtime.so"
    monkeypatch.setenv("CUTE_DSL_LIBS", str(mine))
    installed = built.runtime_library()
    assert installed != str(mine) and Path(installed).is_file()
    mine.touch()
    assert built.runtime_library() == str(mine)
    monkeypatch.delenv("CUTE_DSL_LIBS")
    monkeypatch.setattr(built.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"libcute_dsl_runtime.so: got no such file; .* pip install nvidia-cutlass-dsl"
    ):
        built.runtime_library()


# --- a build ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One variant for one dtype, as the command builds it."""
    into = tmp_path_factory.mktemp("build") / "kernels"
    options = ["--arch", "sm_90a", "--dtype", "bf16", "--variant", VARIANT, "-o", str(into), "--json"]
    done = CliRunner().invoke(app, ["build", NAME, *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kernels"] == len(json.loads((into / "tuned_gemm.json").read_text())["kernels"])
    return into


@needs_linker
def test_the_signature(folder):
    said = json.loads((folder / "tuned_gemm.json").read_text())
    assert said["recipe"] == NAME and said["arch"] == "sm_90a" and said["dsl"].startswith("4.")
    assert (said["dtypes"], said["majors"], said["variants"]) == (["bfloat16"], ["tn"], [VARIANT])
    assert said["source"] == catalog.source_hash(catalog.find(NAME))
    assert all(text.startswith("('BFloat16', Config(tile_m=128, tile_n=64,") for text in said["kernels"])


@needs_linker
def test_nothing_of_nvidias_is_linked_in(folder):
    """What the library calls of CUDA and of TVM-FFI it has to find in other libraries."""
    nm = shutil.which("nm")
    if not nm:
        pytest.skip("no nm here")
    text = subprocess.run(
        [nm, "-D", str(folder / "libtuned_gemm.so")], capture_output=True, text=True, check=True
    ).stdout
    kinds = {line.split()[-1]: line.split()[-2] for line in text.splitlines()}
    wanted = [name for name, kind in kinds.items() if kind == "U" and not name.startswith("__")]
    assert {"_cudaLaunchKernelEx", "_cudaLibraryLoadData"} <= set(wanted)
    import tvm_ffi

    libraries = [ctypes.CDLL(path) for path in (built.runtime_library(), tvm_ffi.libinfo.find_libtvm_ffi())]
    assert [name for name in wanted if not any(hasattr(library, name) for library in libraries)] == []


PROCESS = """
import sys
from types import SimpleNamespace
for heavy in ("cutlass", "cookbook", "cuda"):
    sys.modules[heavy] = None
import torch
sys.path.insert(0, sys.argv[1])

class NoDevice:
    def __init__(self, *_): pass
    __enter__ = __exit__ = __init__

torch.Tensor.is_cuda, torch.cuda.device = True, NoDevice
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
torch.cuda.is_current_stream_capturing = lambda: False
import tuned_gemm

def plan(dtype, **changes):
    a, b = (torch.zeros(256, 256, dtype=dtype) for _ in "ab")
    return tuned_gemm.GEMM.plan((dtype,), (a, b.T), None, sys.argv[2])

call, launch, arguments = plan(torch.bfloat16)
try:
    launch(0)
except TypeError as error:
    print(error)
if sys.argv[3] == "launch":  # there is no GPU
    try:
        launch(0, 0, 0, *arguments, 0)
    except RuntimeError as error:
        print(error)
for wrong in (lambda: plan(torch.float16), lambda: setattr(tuned_gemm.GEMM, "kernels", {}) or plan(torch.bfloat16)):
    try:
        wrong()
    except ValueError as error:
        print(error)
    tuned_gemm.torch.cuda.get_device_capability = lambda *device: (9, 0) if device else (8, 0)
"""


@needs_linker
def test_a_process_without_cute(folder, tmp_path):
    """It finds the library and the kernel's symbol, and the kernel takes what the plan gives it, up to the launch."""
    can = "plan" if torch.cuda.is_available() else "launch"
    command = [sys.executable, "-c", PROCESS, str(folder), VARIANT, can]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert "pA: DataPointer, pB: DataPointer, pC: DataPointer" in said[0]
    if can == "launch":
        assert "Cuda" in said.pop(1)
    assert said[1].startswith("a: got a product by Float16, Config(") and "kernels in tuned_gemm.json" in said[1]
    assert said[2] == "a: got a GPU of compute capability (8, 0); needed one that runs sm_90a, as this was built"


@needs_linker
def test_another_runtime_library(folder, tmp_path):
    """One that lacks what the kernels call is an error at once: at a call it would end the process."""
    empty = tmp_path / "libcute_dsl_runtime.so"
    linker = next(filter(shutil.which, ("cc", "gcc", "clang")))
    subprocess.run([linker, "-shared", "-x", "c", os.devnull, "-o", str(empty)], check=True)
    program = "import sys; sys.path.insert(0, sys.argv[1]); import tuned_gemm; tuned_gemm.library()"
    command, environment = [sys.executable, "-c", program, str(folder)], os.environ | {"CUTE_DSL_LIBS": str(empty)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("ImportError: libtuned_gemm.so: got ") and "undefined symbol" in said
    assert "needed the runtime library of CuTe DSL 4." in said


@needs_linker
def test_it_writes_over_nothing(folder):
    done = CliRunner().invoke(app, ["build", NAME, "--arch", "sm_90a", "-o", str(folder)])
    assert (
        done.exit_code == 2
        and f"got {folder}, which has tuned_gemm.py; needed another folder, or --force" in done.stderr
    )
