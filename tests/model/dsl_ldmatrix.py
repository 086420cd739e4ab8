"""A kernel of one ldmatrix.m16n16.x2.trans.b8, and CuTe's layouts of that copy."""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warp

from cookbook.recipe.moved import SmemAllocator


def atom(num):
    return cute.make_copy_atom(warp.LdMatrix16x16x8bOp(transpose=True, num_matrices=num), cutlass.Int8)


def threads_and_values(num):
    made = atom(num)
    return made.layout_src_tv, made.layout_dst_tv


@cute.kernel
def kernel():
    tile = cute.make_layout((32, 16), stride=(16, 1))
    smem = SmemAllocator().allocate_tensor(cutlass.Int8, tile, byte_alignment=128)
    row = cute.make_tensor((smem.iterator + 16 * cute.arch.thread_idx()[0]).align(16), cute.make_layout(16))
    target = cute.make_rmem_tensor(cute.make_layout(16), cutlass.Int8)
    cute.copy(atom(2), row, target)
    cute.print_tensor(target)


@cute.jit
def launch():
    kernel().launch(grid=[1, 1, 1], block=[32, 1, 1])
