"""Follow what warps wait for: barriers in shared memory, named barriers, the cluster's; groups, fences, flags."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cookbook.simulate.judge import Judge
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import LANES, UNKNOWN, CannotFollow
from cookbook.simulate.warp import Waits, handles

# --- barriers ----------------------------------------------------------------------------------------------------


@handles("nvvm.mbarrier.init")
def _init(f: Judge, op: Operation, args: list[Any]) -> None:
    """Lanes may initialise a barrier each."""
    for _ in f.alike(getattr(args[0], "address", 0)):
        f.init(op, f.barrier(args[0]), f.integer(args[1], "the count of a barrier"))


@handles("nvvm.mbarrier.try_wait.parity", "nvvm.mbarrier.try_wait.parity.timelimit", waits=True)
@handles("nvvm.mbarrier.wait.parity", "nvvm.mbarrier.test.wait", waits=True)
def _wait(f: Judge, op: Operation, args: list[Any]) -> Waits:
    """With no result it waits until the phase is over. With one it only looks, unless it does so until it is.

    PTX asks for 0 or 1; the machine code shifts all but the lowest bit out.
    """
    parity = f.integer(args[1], "the parity waited for") & 1
    if op.results and not f.spins:
        return f.look(op, f.barrier(args[0]), parity)
    yield from f.wait(op, f.barrier(args[0]), parity)
    return 1 if op.results else None


@handles("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx", "nvvm.mbarrier.expect_tx", "nvvm.mbarrier.txn")
def _arrive(f: Judge, op: Operation, args: list[Any]) -> Any:
    """Each active lane arrives, perhaps at another CTA's barrier."""
    what, lanes, count, amount = f.arrivals(op, args)
    for barrier, each in lanes:
        f.arrive(op, what, barrier, count * each, amount * each)
    return UNKNOWN


@handles("nvvm.cp.async.mbarrier.arrive")
def _async_arrive(f: Judge, op: Operation, args: list[Any]) -> None:
    """Each lane arrives once all copies that it has asked for so far are there; its program goes on at once."""
    all_lanes(f, "an arrival that waits for cp.async")
    _, [(barrier, lanes)], _, _ = f.arrivals(op, args)
    if barrier[0] != f.place.rank:
        raise CannotFollow("a cp.async that reports to another CTA's barrier")
    f.arrive(op, "async arrive", barrier, lanes, 0)


@handles("nvvm.mapa")
def _mapa(f: Judge, op: Operation, args: list[Any]) -> Any:
    return replace(args[0], cta=args[1])


@handles("nvvm.barrier", "nvvm.barrier.arrive", "nvvm.barrier.cta.sync", "nvvm.barrier.cta.arrive", waits=True)
def _named(f: Judge, op: Operation, args: list[Any]) -> Waits:
    number, threads = f.named_barrier(op, args)
    yield from f.meet(op, number, threads, not op.name.endswith("arrive"))
    return None


@handles("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed", waits=True)
def _cluster_arrive(f: Judge, op: Operation, args: list[Any]) -> Waits:
    yield from f.cluster(op, "cluster arrive", op.name.endswith("relaxed"))
    return None


@handles("nvvm.cluster.wait", waits=True)
def _cluster_wait(f: Judge, op: Operation, args: list[Any]) -> Waits:
    yield from f.cluster(op, "cluster wait", False)
    return None


# --- order -------------------------------------------------------------------------------------------------------


def all_lanes(f: Judge, what: str) -> int:
    """Each thread has copies and groups of its own: they are followed as a warp's."""
    if f.lanes != LANES:
        raise CannotFollow(f"{what} by some lanes of a warp")
    return LANES


@handles("nvvm.fence.mbarrier.init")
def _fence_init(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "fence of barriers")


@handles("nvvm.fence.proxy")
def _fence_proxy(f: Judge, op: Operation, args: list[Any]) -> None:
    """Follow a fence: of the kinds of PTX ISA "membar/fence", `async` and `async.shared` order shared memory."""
    if op.get("kind", "async") in ("async", "async.shared"):
        f.order(op, "fence of proxies")


@handles("nvvm.bar.warp.sync")
def _warp_sync(f: Judge, op: Operation, args: list[Any]) -> None:
    """Let one lane tell others of what all lanes have read."""
    if f.lanes == LANES and args[0] in (-1, (1 << LANES) - 1):
        f.order(op, "warp sync")


@handles("nvvm.memory.barrier", "nvvm.fence.sc.cluster", "nvvm.fence.acq_rel.cluster", "llvm.fence", "nvvm.prefetch")
@handles("cute_nvgpu.arch.sm100.relinquish_tmem_alloc_permit", "nvvm.tcgen05.relinquish_alloc_permit")
def _nothing(f: Judge, op: Operation, args: list[Any]) -> None:
    """Orders one warp's accesses, which are taken to be in order anyhow; or concerns other CTAs of the SM."""


@handles("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "store commit")


@handles("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "store wait", op.attributes["group"], op.get("read") is not None)


@handles("nvvm.cp.async.commit.group")
def _async_commit(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "async commit", all_lanes(f, "a commit of cp.async"))


@handles("nvvm.cp.async.wait.group")
def _async_wait(f: Judge, op: Operation, args: list[Any]) -> None:
    all_lanes(f, "a wait for cp.async")
    f.order(op, "async wait", op.attributes["n"])


@handles("nvvm.wgmma.fence.aligned")
def _mma_fence(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "mma fence")


@handles("nvvm.wgmma.commit.group.sync.aligned")
def _mma_commit(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "mma commit")


@handles("nvvm.wgmma.wait.group.sync.aligned")
def _mma_wait(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "mma wait", op.attributes["group"])


@handles("nvvm.setmaxregister")
def _registers(f: Judge, op: Operation, args: list[Any]) -> None:
    all_lanes(f, "setmaxnreg")
    what = "registers taken" if op.attributes["action"] == "increase" else "registers given"
    f.order(op, what, op.attributes["regCount"])


@handles("nvvm.tcgen05.fence")
def _tensor_fence(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "tensor fence", flag=op.attributes["kind"] == "after")


@handles("nvvm.tcgen05.wait")
def _tensor_wait(f: Judge, op: Operation, args: list[Any]) -> None:
    f.order(op, "tensor wait", flag=op.attributes["kind"] == "load")
