"""What tests/ops/test_sharding.py runs in processes of its own: the operators on DTensors, over gloo on CPU tensors."""

from __future__ import annotations

import copy
import faulthandler
import os
import sys

import pytest
import torch
import torch.distributed as dist
from without_gpu import close, normal, pretend

from cookbook import ops  # before DTensor: what registers its sharding must find it later
from cookbook.ops import gated

RANKS = 2


def products(mesh) -> None:
    """Every placement of the operands, with what it gives for C: values, gradients and placements are torch.mm's."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    a, b, grad = normal(16, 32), normal(32, 24), normal(16, 24)
    for of_a in (Replicate(), Shard(0), Shard(1)):
        for of_b in (Replicate(), Shard(0), Shard(1)):
            found = []
            for matmul in (ops.matmul, torch.mm):
                x, y = distribute_tensor(a, mesh, [of_a]), distribute_tensor(b, mesh, [of_b])
                x, y = x.requires_grad_(), y.requires_grad_()
                made = matmul(x, y)
                made.backward(distribute_tensor(grad, mesh, [Replicate()]))
                found.append((made.placements, *(each.full_tensor() for each in (made, x.grad, y.grad))))
            assert found[0][0] == found[1][0], (of_a, of_b, found[0][0], found[1][0])
            for ours, theirs in zip(found[0][1:], found[1][1:], strict=True):
                close(ours, theirs)
    summed = ops.matmul(distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)]))
    assert summed.placements == (Partial(),)


def layers(mesh) -> None:
    """A column-parallel and a row-parallel layer with biases, eager, in inference mode and compiled."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 24)).to(torch.bfloat16)
    ours, x = copy.deepcopy(whole), normal(16, 32)
    ops.replace_linears(ours)
    parallelize_module(ours, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    close(torch.compile(ours, backend="aot_eager")(x), whole(x))
    close(ours(x), whole(x))
    for model in (ours, whole):
        model(x).float().pow(2).sum().backward()
    for mine, theirs in zip(ours.parameters(), whole.parameters(), strict=True):
        got, expected = mine.grad.full_tensor().float(), theirs.grad.float()
        torch.testing.assert_close(got, expected, rtol=5e-2, atol=0.02 * expected.abs().max().item())
    with torch.inference_mode():
        close(ours(x), whole(x))


def gates(mesh) -> None:
    """SwiGLU by column-parallel weights."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    gated.chosen = lambda *_: gated.Chosen("", float("inf"), 0.0)  # two products: the gate's kernel has no stand-in
    x, gate, up = normal(8, 32), normal(48, 32), normal(48, 33)[:, :32].contiguous()
    expected = torch.nn.functional.silu(x @ gate.T) * (x @ up.T)
    given = (distribute_tensor(each, mesh, [at]) for each, at in ((x, Replicate()), (gate, Shard(0)), (up, Shard(0))))
    made = ops.swiglu(*given)
    assert made.placements == (Shard(1),)
    torch.testing.assert_close(made.full_tensor().float(), expected.float(), rtol=5e-2, atol=0.2)


def fully_sharded(mesh) -> None:
    """FSDP: layers see whole parameters, which are plain tensors."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.ReLU(), torch.nn.Linear(48, 24)).to(torch.bfloat16)
    ours, x = copy.deepcopy(whole), normal(16, 32)
    ops.replace_linears(ours)
    for layer in (ours[0], ours[2], ours):
        fully_shard(layer, mesh=mesh)
    for model in (ours, whole):
        model(x).float().pow(2).sum().backward()
    for mine, theirs in zip(ours.parameters(), whole.parameters(), strict=True):
        got, expected = mine.grad.full_tensor().float(), theirs.grad.float()
        torch.testing.assert_close(got, expected, rtol=5e-2, atol=0.02 * expected.abs().max().item())


def main(rank: int, store: str) -> None:
    """Run the functions above as one rank of `RANKS`."""
    assert "torch.distributed.tensor" not in sys.modules
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    patch = pytest.MonkeyPatch()
    pretend(patch)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (RANKS,))
    for each in (products, layers, gates, fully_sharded):
        each(mesh)
        print(each.__name__)
    patch.undo()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(280, exit=True)  # of a rank that waits for the other one
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main(int(sys.argv[1]), sys.argv[2])
