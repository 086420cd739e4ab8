"""A copied file with an operator, imported in a process of its own: opcheck, a compiled layer, fake CUDA tensors."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from cookbook.recipe import catalog

TRIED = """
import ctypes, importlib, sys
from types import SimpleNamespace

import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

COPIES = [(importlib.import_module(name), getattr(torch.ops, name).matmul) for name in sys.argv[1:]]
assert COPIES and not any(name.startswith("cookbook") for name in sys.modules)
BF16 = torch.bfloat16

def linear_by(matmul):
    return lambda x, weight: torch.relu(matmul(x, weight.T))

for my_gemm, matmul in COPIES:
    assert my_gemm.OPERATOR is matmul.default
    counter = CompileCounterWithBackend("aot_eager")
    with FakeTensorMode(shape_env=ShapeEnv()):
        fast = torch.compile(linear_by(matmul), fullgraph=True, backend=counter)
        for m in (16, 17, 40):
            made = fast(*(torch.empty(rows, 32, dtype=BF16, device="cuda") for rows in (m, 24)))
            assert made.shape == (m, 24) and made.device.type == "cuda"
    assert counter.frame_count == 2
    torch._dynamo.reset()
    try:
        matmul(torch.zeros(8, 8, dtype=BF16), torch.zeros(8, 8, dtype=BF16))
    except ValueError as error:
        assert str(error) == "a: got device cpu; needed a CUDA device"
    else:
        raise AssertionError("the CPU was taken")

# The kernel as torch's product of what lies at the addresses: CPU tensors pass for a GPU's.
def seen(address, shape, strides):
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides))
    memory = (ctypes.c_char * (2 * last + 2)).from_address(address)
    return torch.frombuffer(memory, dtype=BF16).as_strided(shape, strides)

def compile_for(arch, dtype, call, options):
    (m, n, k), (lda, ldb, ldc), (a_major, b_major) = call.mnk, call.strides, call.majors
    def launch(pa, pb, pc, stream):
        a = seen(pa, (m, k), (lda, 1) if a_major == "k" else (1, lda))
        b = seen(pb, (k, n), (1, ldb) if b_major == "k" else (ldb, 1))
        seen(pc, (m, n), (ldc, 1)).copy_(a.float() @ b.float())
        launched.append(call)
    return launch

class NoDevice:
    def __init__(self, device): pass
    def __enter__(self): return self
    def __exit__(self, *error): return False

torch.Tensor.is_cuda = True
torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
torch.cuda.current_device, torch.cuda.device = lambda: -1, NoDevice
torch.cuda.is_current_stream_capturing = lambda: False
torch._C._cuda_getCurrentRawStream = lambda device: 7

for my_gemm, matmul in COPIES:
    my_gemm.GEMM.compile_for, my_gemm.GEMM.prepare = compile_for, lambda call: ((call._replace(known=()),), ())
    my_gemm.check_gpu = lambda *asked: "sm_90"
    launched = []
    x = torch.randn(16, 32, dtype=BF16, requires_grad=True)
    weight = torch.randn(24, 32, dtype=BF16, requires_grad=True)
    torch.library.opcheck(matmul.default, (x, weight.detach().T.requires_grad_()))
    turned, wide = torch.randn(9, 7, dtype=BF16).T, torch.randn(1, 9, dtype=BF16).expand(7, 9)
    for odd in (torch.randn(7, 9, dtype=BF16), turned, wide):
        other = torch.randn(9, 5, dtype=BF16)
        torch.testing.assert_close(matmul(odd, other), odd @ other)
    torch._dynamo.reset()
    torch.compile(linear_by(matmul), fullgraph=True, backend="aot_eager")(x, weight).float().sum().backward()
    got, x.grad, of_weight, weight.grad = x.grad, None, weight.grad, None
    torch.relu(x @ weight.T).float().sum().backward()
    torch.testing.assert_close(got, x.grad, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(of_weight, weight.grad, rtol=2e-2, atol=2e-2)
    assert launched
    print(my_gemm.__name__)
"""
NAMES = [  # each group in one process: to import torch's compiler takes as long as to try a copy
    ("ampere/tuned_gemm", "hopper/majors_gemm"),
    pytest.param(("hopper/tuned_gemm",), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("names", NAMES, ids=", ".join)
def test_a_copied_operator(tmp_path, names):
    """Recipes of K-major operands alone, of whole pieces along K, and of either major."""
    files = [name.replace("/", "_") for name in names]  # each registers an operator in a library of its name
    for name, file in zip(names, files, strict=True):
        source = catalog.standalone_source(name, file, torch_op=f"{file}::matmul")
        (tmp_path / f"{file}.py").write_text(source, encoding="utf-8")
    (tmp_path / "tried.py").write_text(TRIED, encoding="utf-8")
    command = [sys.executable, str(tmp_path / "tried.py"), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, files), done.stderr[-3000:]


@pytest.mark.parametrize(
    ("name", "torch_op", "message"),
    [
        ("hopper/tuned_gemm", "matmul", "torch_op: got 'matmul'; needed LIBRARY::OPERATOR, as mylib::matmul"),
        ("hopper/tuned_gemm", 'x::y"); import os; ("', "needed LIBRARY::OPERATOR"),
        ("hopper/fp8_gemm", "mylib::matmul", "hopper/fp8_gemm is no product of two matrices alone"),
        ("foundations/xor_swizzle", "mylib::matmul", "foundations/xor_swizzle is no product of two matrices"),
    ],
)
def test_what_is_no_operator(name, torch_op, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        catalog.standalone_source(name, torch_op=torch_op)


GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.product.of_two_matrices]


@pytest.mark.parametrize("name", GEMMS)
def test_nothing_is_defined_twice(name):
    """Neither the recipe nor the host side has a name of the operator's, nor a local one that brings it along."""
    alone = ast.parse(catalog.standalone_source(name)).body
    found = [node.name for node in ast.parse(catalog.standalone_source(name, torch_op="a::b")).body if named(node)]
    assert len(found) == len(set(found)) and {"register", "fitted", "Fit"} <= set(found)
    assert not {"register", "fitted", "Fit", "keep", "is_transposed"} & {node.name for node in alone if named(node)}


def named(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef))


def test_without_the_option_nothing_of_an_operator_is_copied():
    assert "torch.library" not in catalog.standalone_source("hopper/tuned_gemm")
