"""cookbook.ops with no GPU: CPU tensors pass for a Hopper's, and each kernel is torch's product of the same addresses.

A launch gets addresses and numbers alone. So what is checked is all of the host side: the choice, copies, majors,
strides, shapes, gradients. What the kernel itself computes is not.
"""

from __future__ import annotations

import ctypes

import torch
from pretend import STREAM, pretend_device

from cookbook.ops import choice, launching
from cookbook.recipe import catalog, entry, shared_sums


def seen(address: int, shape: tuple[int, int], strides: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """The matrix at an address."""
    last = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (2 * (last + 1))).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def kernel_for(call: entry.Call, taken: int):
    """What a compiled kernel computes for calls of one kind; `taken`: how many arguments behind pC it leaves out."""
    (m, n, k), (lda, ldb, ldc, *_), (a_major, b_major) = call.mnk, call.strides, call.majors

    def launch(pa: int, pb: int, pc: int, *rest) -> None:
        *further, stream = rest[taken:]
        assert pa % 16 == pb % 16 == 0 and stream == STREAM
        a = seen(pa, (m, k), (lda, 1) if a_major == "k" else (1, lda), call.dtype)
        b = seen(pb, (k, n), (1, ldb) if b_major == "k" else (ldb, 1), call.dtype)
        made = torch.mm(a.float(), b.float())
        for bias, _ in further:  # of a kernel that adds one
            made += seen(bias, (1, n), (n, 1), call.dtype).float()
        seen(pc, (m, n), (ldc, 1), call.dtype).copy_(made)

    return launch


def pretend(monkeypatch, gpu: choice.Gpu = choice.H200) -> list[str]:
    """Returns the list into which the name of a recipe goes when a kernel of it is compiled."""
    compiled: list[str] = []
    arch = "sm_{}{}".format(*gpu.capability)
    monkeypatch.setattr(launching, "gpu_of", lambda x, name="a": gpu)
    monkeypatch.setattr(entry, "check_gpu", lambda *asked: arch)
    about = {"gcnArchName": "", "name": "", "total_memory": 2**30}  # Inductor asks for it
    major, minor = gpu.capability
    pretend_device(monkeypatch, multi_processor_count=gpu.sms, major=major, minor=minor, **about)
    monkeypatch.setattr(launching, "PLANS", {})
    for recipe, _ in choice.candidates(gpu.capability, choice.ADDS_BIAS):
        module = catalog.load(recipe.name)
        gemm = module.host_side(recipe.fuses) if recipe.fuses else module.GEMM

        shares = isinstance(gemm, shared_sums.SharedSums)  # its launch takes the addresses of sums and flags

        def compile_for(arch, dtype, call, options, name=recipe.name, shares=shares):
            compiled.append(name)
            return kernel_for(call, 2 * shares)

        told = (1, 1) if shares else ()  # a kernel is found by what hash takes: a Call without its dict
        monkeypatch.setattr(gemm, "prepare", lambda call, told=told: ((call._replace(known=()),), told))
        monkeypatch.setattr(gemm, "compile_for", compile_for)
        monkeypatch.setattr(gemm, "plans", {})
        monkeypatch.setattr(gemm, "kernels", {})
    return compiled


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape))).to(dtype)


def close(got, expected, dtype=torch.bfloat16):
    assert got.dtype == dtype and got.shape == expected.shape
    torch.testing.assert_close(got.float(), expected.float(), rtol=2e-2, atol=2e-2)


def leaves(a, b):
    return a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_()


def compiles(call, gradients: bool) -> int:
    """How often a function is compiled for ten calls that differ in M, N and K, all dynamic.

    call: of M, N and K, the function and its operands.
    """
    from torch._dynamo.testing import CompileCounterWithBackend  # which imports much, DTensor too

    torch._dynamo.reset()
    function, counter = call(8, 8, 8)[0], CompileCounterWithBackend("aot_eager")
    fast = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    for step in range(10):
        _, *given = call(16 + 3 * step, 24 + 8 * step, 32 + 8 * step)
        given = [x.requires_grad_(gradients) for x in given]
        made = fast(*given)
        close(made, function(*given))
        if gradients:
            made.float().sum().backward()
    return counter.frame_count
