"""Shared memory is NaN on every SM once it has been poisoned, and not before."""

from __future__ import annotations

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.memory
import pytest
import torch

from cookbook.harness import poisoning

pytestmark = pytest.mark.gpu

THREADS = 256


@cute.kernel
def look_kernel(mCount: cute.Tensor, mPlace: cute.Tensor, smem_bytes: cutlass.Constexpr):
    """Count the words of shared memory that are not poison, by (CTA, THREAD); say which SM; leave zeros behind."""
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    words = cute.make_layout(smem_bytes // 4)
    memory = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Uint32, words, 128)
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


def looked() -> tuple[int, int]:
    """Words that are not poison, and SMs that were looked at: a CTA takes all that an SM has."""
    device = torch.cuda.get_device_properties()
    ctas, smem_bytes = device.multi_processor_count, device.shared_memory_per_block_optin
    count = torch.full((ctas, THREADS), -1, dtype=torch.int32, device="cuda")
    place = torch.full((ctas,), -1, dtype=torch.int32, device="cuda")
    pointers = [
        cute.runtime.make_ptr(cutlass.Int32, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
        for x in (count, place)
    ]
    stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
    look(*pointers, stream, cutlass.Int32(ctas), smem_bytes)
    torch.cuda.synchronize()
    assert count.min() >= 0
    return int(count.sum()), len(place.unique())


def test_shared_memory_is_poisoned_on_every_sm():
    device = torch.cuda.get_device_properties()
    sms = device.multi_processor_count
    words = sms * device.shared_memory_per_block_optin // 4
    looked()  # compiles
    poisoning.shared_memory()
    assert looked() == (0, sms)
    assert looked() == (words, sms)  # the zeros that the look before left: nothing else poisons


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_a_word_is_nan_of_every_type(dtype):
    word = torch.tensor([poisoning.WORD], dtype=torch.uint32).view(torch.uint8).view(getattr(torch, dtype))
    assert word.float().isnan().all()
