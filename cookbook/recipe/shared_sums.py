"""Memory that the CTAs of a launch share: partial sums of a call, and flags that every launch counts up.

`cookbook copy` writes what a recipe uses of this text into the copied file.
"""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cookbook.recipe.entry import Call, Gemm

FLAGS: dict[tuple, torch.Tensor] = {}  # by device, stream, number and capture: each launch counts up what it finds

SPARE: dict[torch.device, tuple[torch.Tensor, Iterator[torch.Tensor]]] = {}  # zeros for graphs, and those not in use

SPARE_FLAGS = 512, 1024  # for how many captures, and how many flags for each


def capture_of(stream: int) -> int:
    """The number of the capture that a stream is in, which no other has; 0 where the driver does not say."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    try:
        asked = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return 0
    wanted = ctypes.byref(status), ctypes.byref(number), None, None, None
    return 0 if asked(ctypes.c_void_p(stream), *wanted) else number.value


def flags_of(device: torch.device, stream: int, count: int) -> torch.Tensor:
    """`count` flags that launches count up alike: those of the stream, for what is on a stream runs in order.

    What is captured on a stream has its own, for two graphs may run at once. Where none are spare, the graph sets flags
    to zero before each launch.
    """
    capturing = torch.cuda.is_current_stream_capturing()
    key = device, stream, count, capture_of(stream) if capturing else 0
    if key in FLAGS:
        return FLAGS[key]
    if not capturing and device not in SPARE:
        zeros = torch.zeros(SPARE_FLAGS, dtype=torch.int32).to(device)  # waits for them: other streams will use them
        SPARE[device] = zeros, iter(zeros)
    spare = None
    if key[3] and device in SPARE and count <= SPARE_FLAGS[1]:
        spare = next(SPARE[device][1], None)
    flags = torch.zeros(count, dtype=torch.int32, device=device) if spare is None else spare
    if not capturing or spare is not None:  # what a graph allocates it may give to its next node
        FLAGS[key] = flags
    return flags


class SharedSums(Gemm):
    """A `Gemm` whose CTAs tell one another partial sums, in global memory: the kernel takes `sums` and `flags`.

    `prepare` says how many of each the launch needs, in front of the other arguments. The sums of a call are its own;
    flags are zero before their first launch, and each launch counts all of them up by the same number.
    """

    def plan(
        self, key: tuple, given: tuple[Any, ...], out: Any, variant: Any
    ) -> tuple[Call, Callable[..., None], tuple]:
        """As `Gemm.plan`; the launch makes the sums."""
        call, kernel, (floats, count, *arguments) = super().plan(key, given, out, variant)
        device = given[0].device

        def shared(pa: int, pb: int, pc: int, *others) -> None:
            sums = torch.empty(floats, dtype=torch.float32, device=device)
            flags = flags_of(device, others[-1], count)
            kernel(pa, pb, pc, sums.data_ptr(), flags.data_ptr(), *others)

        plan = call, shared, tuple(arguments)
        if key in self.plans:
            self.plans[key] = plan
        return plan
