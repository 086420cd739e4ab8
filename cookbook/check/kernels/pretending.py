"""A GPU that a script asks for where there is none: CPU tensors pass for its, and no kernel runs.

Scripts refuse to begin without a GPU, though they only need one once their kernels run. Here torch says that there is
one, puts on the CPU what is meant for it, and CuTe's `HardwareInfo` answers for a device of `SMS` SMs. What a kernel
would have computed is not there: a script that compares results ends there, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

__all__ = ["SMS", "pretended_gpu"]

SMS = 132  # of an H100: what a script launches depends on it, and is shown with the launch
L2_BYTES, SHARED_BYTES = 50 << 20, 227 << 10


class Hardware:
    """In place of `cutlass.utils.HardwareInfo`."""

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id

    def get_max_active_clusters(self, cluster_size: int, stream: Any = None) -> int:
        """As many clusters as there are SMs for."""
        return SMS // cluster_size

    def get_l2_cache_size_in_bytes(self) -> int:
        """A figure of an H100."""
        return L2_BYTES

    def get_device_multiprocessor_count(self) -> int:
        """A figure of an H100."""
        return SMS


def _capability(arch: str) -> tuple[int, int]:
    digits = re.findall(r"\d+", arch or "sm_90a")[0]
    return int(digits[:-1]), int(digits[-1])


@contextmanager
def pretended_gpu(arch: str = "") -> Iterator[None]:
    """Torch and CuTe speak of one GPU meanwhile, of a compile target; tensors on it are the CPU's."""
    import cutlass.utils
    import torch
    from cutlass.utils import hardware_info
    from torch.overrides import TorchFunctionMode

    def here(value: Any) -> Any:
        is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda"))
        return torch.device("cpu") if is_device and torch.device(value).type == "cuda" else value

    class OnTheCpu(TorchFunctionMode):
        """Whatever is asked for on the GPU is made on the CPU."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.Tensor.cuda:
                return args[0]
            if function is torch.device:
                return here(function(*args, **(kwargs or {})))
            given = {name: here(value) for name, value in (kwargs or {}).items()}
            return function(*map(here, args), **given)

    major, minor = _capability(arch)
    properties = SimpleNamespace(
        name="no GPU", major=major, minor=minor, multi_processor_count=SMS, L2_cache_size=L2_BYTES
    )
    properties.shared_memory_per_block_optin, properties.total_memory = SHARED_BYTES, 80 << 30
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, device=torch.device("cpu"))
    said: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "Stream": lambda *args, **kwargs: stream,
        "empty_cache": lambda: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
    }
    with ExitStack() as stack:
        for name, value in said.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        for module in (cutlass.utils, hardware_info):
            stack.enter_context(patch.object(module, "HardwareInfo", Hardware))
        stack.enter_context(OnTheCpu())
        yield
