"""Shared memory is NaN on every SM once it has been poisoned, and not before."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import pytest
import torch

from cookbook.check import poisoning
from cookbook.recipe.moved import SmemAllocator

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

THREADS = 256


@cute.kernel
def look_kernel(mCount: cute.Tensor, mPlace: cute.Tensor, smem_bytes: cutlass.Constexpr):
    """Count the words of shared memory that are not poison, by (CTA, THREAD); say which SM; leave zeros behind."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    words = cute.make_layout(smem_bytes // 4)
    memory = SmemAllocator().allocate_tensor(cutlass.Uint32, words, 128)
    other = cutlass.Int32(0)
    for i in cutlass.range(tidx, smem_bytes // 4, THREADS, unroll=1):
        if memory[i] != cutlass.Uint32(poisoning.WORD):
            other += 1
        memory[i] = cutlass.Uint32(0)
    mCount[cta, tidx] = other
    mPlace[cta] = cute.arch.smid()


@cute.jit
def look(p_count: cute.Pointer, p_place: cute.Pointer, stream: cuda.CUstream, ctas, smem_bytes: cutlass.Constexpr):
    count = cute.make_tensor(p_count, cute.make_layout((ctas, THREADS), stride=(THREADS, 1)))
    place = cute.make_tensor(p_place, cute.make_layout(ctas))
    look_kernel(count, place, smem_bytes).launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), stream=stream)


class Look:
    """One launch that looks at all of shared memory: a CTA for each SM, which takes all that it has.

    The kernel that fills `found` runs when this is made. In between it would leave traces, for L1 is the same memory.
    """

    def __init__(self) -> None:
        device = torch.cuda.get_device_properties()
        self.ctas, self.smem_bytes = device.multi_processor_count, device.shared_memory_per_block_optin
        kind = {"dtype": torch.int32, "device": "cuda"}
        self.found = torch.full((self.ctas, THREADS), -1, **kind), torch.full((self.ctas,), -1, **kind)
        self.pointers = [
            cute.runtime.make_ptr(cutlass.Int32, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
            for x in self.found
        ]

    def launch(self) -> None:
        stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        look(*self.pointers, stream, cutlass.Int32(self.ctas), self.smem_bytes)

    def words_and_sms(self) -> tuple[int, int]:
        """Words that were not poison, and SMs that were looked at."""
        torch.cuda.synchronize()
        count, place = self.found
        assert count.min() >= 0
        return int(count.sum()), len(place.unique())


def test_shared_memory_is_poisoned_on_every_sm():
    compiles, first, second = Look(), Look(), Look()
    poisoning.shared_memory()  # compiles
    compiles.launch()
    poisoning.shared_memory()
    first.launch()
    second.launch()
    assert first.words_and_sms() == (0, first.ctas)
    assert second.words_and_sms() == (second.ctas * second.smem_bytes // 4, second.ctas)  # zeros, by the first
