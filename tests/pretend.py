"""A recipe's host side with no GPU: CPU tensors pass for CUDA's, and the kernel notes what it is launched with."""

from __future__ import annotations

import re
from types import SimpleNamespace

import torch

from cookbook.recipe import catalog, shared_sums

STREAM = 7  # the number of the current stream


def pretend_device(monkeypatch, **properties) -> None:
    """torch says of device -1, where CPU tensors are, what it would say of a GPU with these properties."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**properties))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)  # what get_device() says of a CPU tensor
    monkeypatch.setattr(torch.cuda, "device", NoDevice)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(shared_sums, "capture_of", lambda stream: 1)


def pretended(name, monkeypatch):
    """A recipe without plans yet, its `.launched` (arguments) and `.planned` (how many calls were checked in full)."""
    module = catalog.load(name)
    digits = re.findall(r"\d+", catalog.find(name).runs_on)[0]  # the first GPU that runs it
    capability = (int(digits[:-1]), int(digits[-1]))
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    pretend_device(monkeypatch, multi_processor_count=132)
    launched, planned, check = [], [], module.GEMM.check

    def compile_for(*which, options):
        assert options == "--enable-tvm-ffi"
        return lambda *arguments: launched.append((which, arguments))

    monkeypatch.setattr(module.GEMM, "compile_for", compile_for)
    monkeypatch.setattr(module.GEMM, "check", lambda *args: planned.append(args) or check(*args))
    monkeypatch.setattr(module.GEMM, "plans", {})
    monkeypatch.setattr(module.GEMM, "kernels", {})
    monkeypatch.setattr(module, "launched", launched, raising=False)
    monkeypatch.setattr(module, "planned", planned, raising=False)
    return module


class NoDevice:
    """`torch.cuda.device`, which notes what it is asked to make current."""

    made_current: list[object] = []  # noqa: RUF012

    def __init__(self, device):
        self.made_current.append(device)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False
