"""What warps wait for: barriers in shared memory, named barriers, the cluster's. One legal order is followed.

That orders do not matter, the level *pipeline* shows. So copies and MMAs end at once here, and a wait for them passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cookbook.check.pipeline import flags
from cookbook.check.pipeline.interpreter import LANES, Waits
from cookbook.check.pipeline.programs import LOGIC
from cookbook.check.pipeline.shapes import UNKNOWN, Lay, UnknownCode
from cookbook.check.product.access import read, write
from cookbook.check.product.bits import logic
from cookbook.check.product.follower import Fault, Follower, follows, waits
from cookbook.check.product.places import Ptr, View
from cookbook.simulate.trace import Operation


@dataclass
class MBarrier:
    """PTX ISA, "mbarrier": a phase is over when as many have arrived as it is for, and all expected bytes."""

    count: int
    pending: int
    bytes: int = 0
    phase: int = 0

    def arrive(self, count: int = 1, bytes: int = 0) -> None:
        """Arrivals that expect bytes, or with a negative number bring them."""
        self.pending -= count
        self.bytes += bytes
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count


@dataclass
class Named:
    """PTX ISA, "barrier": one of a CTA's sixteen."""

    come: int = 0
    generation: int = 0


@dataclass
class ClusterBarrier:
    """barrier.cluster: all warps of all CTAs."""

    warps: int
    come: int = 0
    generation: int = 0


@dataclass
class Barriers:
    """Those of one CTA."""

    memory: dict[int, MBarrier] = field(default_factory=dict)
    named: dict[int, Named] = field(default_factory=dict)


def barrier_at(f: Follower, pointer: Any, cta: int | None = None) -> MBarrier:
    """The barrier at an address, of this CTA or of the one that the address names.

    Raises:
        Fault: none was initialised there.
    """
    cta, address = f.barrier(pointer if cta is None else replace(pointer, cta=cta))
    found = f.cta.cluster.ctas[cta].barriers.memory.get(address)
    if found is None:
        raise Fault(f"a barrier at byte {address} of shared memory that was not initialised")
    return found


@follows("nvvm.mbarrier.init")
def _init(f: Follower, op: Operation, args: list[Any]) -> None:
    address = f.integer(args[0].address, "the address of a barrier")
    count = f.integer(args[1], "the count of a barrier")
    f.cta.barriers.memory[address] = MBarrier(count, count)


@waits("nvvm.mbarrier.try_wait.parity", "nvvm.mbarrier.try_wait.parity.timelimit", "nvvm.mbarrier.wait.parity")
@waits("nvvm.mbarrier.test.wait")
def _wait(f: Follower, op: Operation, args: list[Any]) -> Waits:
    """With a result it only looks, and says whether the phase is over."""
    barrier, parity = barrier_at(f, args[0]), f.integer(args[1], "the parity waited for")
    if op.results:
        return int(barrier.phase & 1 != parity)
    while barrier.phase & 1 == parity:
        yield lambda: barrier.phase & 1 != parity
    return None


@follows("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx", "nvvm.mbarrier.expect_tx", "nvvm.mbarrier.txn")
@follows("nvvm.cp.async.mbarrier.arrive")
def _arrive(f: Follower, op: Operation, args: list[Any]) -> Any:
    what, lanes, count, amount = f.arrivals(op, args)
    for (cta, _), each in lanes:
        barrier_at(f, args[0], cta).arrive(0 if what == "expect" else count * each, amount * each)
    return UNKNOWN


@waits("nvvm.barrier", "nvvm.barrier.arrive")
def _named(f: Follower, op: Operation, args: list[Any]) -> Waits:
    number, threads = f.named_barrier(op, args)
    if not 0 <= number < 16:
        raise Fault(f"named barrier: got number {number}; needed 0 to 15")
    barrier = f.cta.barriers.named.setdefault(number, Named())
    barrier.come += LANES
    generation = barrier.generation
    if barrier.come >= threads:
        barrier.come -= threads
        barrier.generation += 1
    elif not op.name.endswith("arrive"):
        yield lambda: barrier.generation > generation
    return None


@waits("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed", "nvvm.cluster.wait")
def _cluster(f: Follower, op: Operation, args: list[Any]) -> Waits:
    barrier = f.cta.cluster.barrier
    if op.name.endswith("wait"):
        generation = f.generation
        if barrier.generation <= generation:
            yield lambda: barrier.generation > generation
        return None
    f.generation = barrier.generation
    barrier.come += 1
    if barrier.come == barrier.warps:
        barrier.come = 0
        barrier.generation += 1
    return None


@follows("nvvm.memory.barrier", "nvvm.fence.sc.cluster", "nvvm.fence.acq_rel.cluster", "nvvm.bar.warp.sync")
@follows("nvvm.fence.mbarrier.init", "nvvm.fence.proxy", "nvvm.cp.async.bulk.commit.group", "nvvm.tcgen05.fence")
@follows("nvvm.cp.async.bulk.wait_group", "nvvm.wgmma.fence.aligned", "nvvm.wgmma.commit.group.sync.aligned")
@follows("nvvm.wgmma.wait.group.sync.aligned", "nvvm.tcgen05.wait", "nvvm.cp.async.commit.group")
@follows("nvvm.cp.async.wait.group", "nvvm.griddepcontrol")
def _order(f: Follower, op: Operation, args: list[Any]) -> None:
    """Orders what ends at once here."""


@waits("llvm.inline_asm", "nvvm.inline_ptx")
def _assembly(f: Follower, op: Operation, args: list[Any]) -> Waits:
    text = op.get("asm_string") or op.get("ptxCode", "")
    if text.startswith(LOGIC):
        return logic(int(text.removeprefix(LOGIC).rstrip(";")), args)
    what = flags.said(op)
    if what is None and not re.search(r"griddepcontrol|tcgen05.fence::", text):
        raise UnknownCode(f"inline assembly: {text[:200]}")
    if what is not None:
        address, value = args
        place = View(address if isinstance(address, Ptr) else Ptr("gmem", address), Lay(1, 0), 32)
        if what == "acquire":
            yield from _until(f, place, value)
        else:
            write(f, place, np.broadcast_to(np.asarray(value, np.int64), (LANES,))[:, None])
    return UNKNOWN


def _until(f: Follower, place: View, value: Any) -> Waits:
    """Until the flag of each active lane has come to its value."""
    active = f.active

    def come() -> bool:
        before, f.active = f.active, active
        found = read(f, place)[:, 0] - value
        f.active = before
        return bool((found[active] >= 0).all())

    if not come():
        yield come
