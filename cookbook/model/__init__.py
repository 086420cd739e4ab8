"""Instructions of the PTX ISA as numpy functions on shared memory, written from the public document.

They model what an instruction does to bytes and registers, not how long it takes. 16-bit floats travel as raw
uint16 bits; `formats` turns them into float32 and back.
"""

from cookbook.model.cp_async import cp_async
from cookbook.model.formats import from_float32, to_float32
from cookbook.model.ldmatrix import ldmatrix, ldmatrix_m16n16, stmatrix
from cookbook.model.mma_sync import mma_m16n8k16, mma_m16n8k32
from cookbook.model.smem import SharedMemory
from cookbook.model.smem_descriptor import BlackwellDescriptor
from cookbook.model.tcgen05 import InstructionDescriptor
from cookbook.model.tma import tma_load, tma_store
from cookbook.model.tmem import TensorMemory, TmemAddress
from cookbook.model.wgmma import MatrixDescriptor, operand_descriptors, wgmma

__all__ = [
    "BlackwellDescriptor",
    "InstructionDescriptor",
    "MatrixDescriptor",
    "SharedMemory",
    "TensorMemory",
    "TmemAddress",
    "cp_async",
    "from_float32",
    "ldmatrix",
    "ldmatrix_m16n16",
    "mma_m16n8k16",
    "mma_m16n8k32",
    "operand_descriptors",
    "stmatrix",
    "tma_load",
    "tma_store",
    "to_float32",
    "wgmma",
]
