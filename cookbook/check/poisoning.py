"""Fills the shared memory of every SM with NaN, so that a kernel which reads what it did not write gives NaN.

A launch does not clear shared memory. It holds what the kernels before left there, often the very numbers that a
faulty kernel should have written itself, or zeros.

    poisoning.shared_memory()
    matmul(a, b, out=out)
"""

from functools import cache
from typing import Any

__all__ = ["WORD", "compiled", "shared_memory"]

WORD = 0xFFFFFFFF  # NaN of float32, twice of float16 and bfloat16, four times of both float8 and of ue8m0
THREADS = 1024
TURNS = 4  # CTAs for each SM, one at a time: one that ends early must not leave an SM without any


@cache
def compiled(smem_bytes: int, options: str = "") -> Any:
    """The kernel, of CTAs with this many bytes of shared memory. options: "--gpu-arch sm_90a" where there is no GPU.

    It is defined in here so that whoever imports this module has not yet imported CuTe.
    """
    import cuda.bindings.driver as cuda
    import cutlass
    import cutlass.cute as cute

    from cookbook.recipe.moved import SmemAllocator

    @cute.kernel
    def fill_kernel(smem_bytes: cutlass.Constexpr):
        """Write WORD over all of a CTA's shared memory, which is all that the SM can give."""
        tidx, _, _ = cute.arch.thread_idx()
        words = cute.make_layout(smem_bytes // 4)
        memory = SmemAllocator().allocate_tensor(cutlass.Uint32, words, 128)
        for i in cutlass.range(tidx, smem_bytes // 4, THREADS, unroll=1):
            memory[i] = cutlass.Uint32(WORD)

    @cute.jit
    def fill(ctas: cutlass.Int32, stream: cuda.CUstream, smem_bytes: cutlass.Constexpr):
        """One launch of `ctas` CTAs."""
        kernel: Any = fill_kernel(smem_bytes)  # the decorator makes it what can be launched
        kernel.launch(grid=(ctas, 1, 1), block=(THREADS, 1, 1), stream=stream)

    return cute.compile(fill, cutlass.Int32(1), cuda.CUstream(0), smem_bytes, options=options or None)


def shared_memory() -> None:
    """Fill the shared memory of all SMs of torch's current GPU with NaN, on its current stream.

    The next kernel of that stream finds it there, if no other process has used the GPU in between. Of a kernel after
    that it is not certain: what one with little shared memory reads may lie there then, for L1 is the same memory.
    """
    import cuda.bindings.driver as cuda
    import torch

    device = torch.cuda.get_device_properties()
    launch = compiled(device.shared_memory_per_block_optin)
    launch(TURNS * device.multi_processor_count, cuda.CUstream(torch.cuda.current_stream().cuda_stream))
