"""The operators on DTensors: which shards of the operands give which shards of the product.

PyTorch asks an operator for this by its name, and its registry lies in a module that takes long to import. So nothing
is registered before somebody else has imported it, which whoever makes a DTensor has.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

__all__ = ["PRODUCT", "SWIGLU", "register"]

# Of one dimension of a mesh, what is sharded of C, then of the operands: M, N or K; "" where all of it is everywhere,
# "+" where each rank has a summand. K-major weights of SwiGLU are (N, K).
PRODUCT = (("", "", "", ""), (0, 0, "", ""), (1, "", 1, 0), ("+", 1, 0, "+"))  # C (M, N), a (M, K), b (K, N), bias (N)
SWIGLU = (("", "", "", ""), (0, 0, "", ""), (1, "", 0, 0))  # C (M, N), x (M, K), w_gate and w_up (N, K): no sums

_registered: set[Any] = set()


def register() -> bool:
    """Register the sharding of the operators of `cookbook.ops`, once and if there can be a DTensor; whether it is."""
    if not _registered and "torch.distributed.tensor" in sys.modules:
        of = torch.ops.cute_cookbook
        for name, ways in (("matmul", PRODUCT), ("matmul_bias", PRODUCT), ("swiglu", SWIGLU)):
            for each in (getattr(of, name), getattr(of, f"_{name}")):
                _register(each.default, ways)
                _registered.add(each.default)
    return bool(_registered)


# A compiler calls it while it traces: as assume_constant_result says, which would import all of Dynamo.
register._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def _register(operator: Any, ways: tuple) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    operands = len(operator._schema.arguments)

    def placed(each: int | str) -> Any:
        return Shard(each) if isinstance(each, int) else Partial() if each == "+" else Replicate()

    def acceptable(*given: Any) -> list[tuple[list, list]]:
        return [([placed(c)], [placed(x) for x in others[:operands]]) for c, *others in ways]

    register_sharding(operator)(acceptable)
