"""Import the names that CuTe DSL 4.8 moved from where the installed version has them.

4.8 calls the names that are left at the old places deprecated; earlier versions have no others. `cookbook copy` writes
the lines of what a recipe uses into the copied file.
"""

__all__ = ["LayoutEnum", "SmemAllocator", "TmemAllocator"]

try:  # CuTe DSL 4.8 or later
    from cutlass.memory import SmemAllocator
except ModuleNotFoundError:  # earlier
    from cutlass.utils import SmemAllocator

try:  # CuTe DSL 4.8 or later
    from cutlass.memory import TmemAllocator
except ModuleNotFoundError:  # earlier
    from cutlass.utils import TmemAllocator

try:  # CuTe DSL 4.8 or later
    from cutlass.tensor_utils import LayoutEnum
except ModuleNotFoundError:  # earlier
    from cutlass.utils import LayoutEnum
