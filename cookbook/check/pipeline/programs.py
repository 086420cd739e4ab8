"""The programs of a launch: for each warp, the sequence of what it waits for, signals, reads and writes.

They are recorded from what CuTe traced of the recipe (see `tracing`). Waits give no data, so a warp's sequence does not
depend on timing: for one problem it is fixed, and the interleavings of the warps are all that can vary.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, get_args

import numpy as np

from cookbook.check import fused
from cookbook.check.pipeline import flags
from cookbook.check.pipeline.interpreter import LANES, TABLE, Atom, Barrier, Interpreter, Place, handles
from cookbook.check.pipeline.shapes import (
    COMPUTED,
    GRANULE,
    UNKNOWN,
    CannotFollow,
    Lay,
    Pointer,
    UnknownCode,
    View,
    kind,
    region,
    tensor_region,
)
from cookbook.check.pipeline.views import box_size
from cookbook.recipe import chained, grouped
from cookbook.simulate.lines import Line
from cookbook.simulate.trace import Operation, Trace
from cookbook.swizzle import Swizzle

Target = tuple[int, int]  # rank of the CTA, and granules of its shared memory as bits
NO_CTA = -1  # in place of the rank: global memory


@dataclass(frozen=True)
class Event:
    """One step of a warp. `what` says which of the other fields mean something; see `machine.Machine`'s methods."""

    what: str
    line: Line  # of the recipe's file
    barrier: Barrier | None = None
    count: int = 0  # arrivals, the parity waited for, threads of a named barrier, groups that may stay in flight, lanes
    # that read, each by itself
    bytes: int = 0  # expected by an arrival, or brought by a copy to each of its targets
    number: int = 0  # of a named barrier
    targets: tuple[Target, ...] = ()
    tensor: tuple[Target, ...] = ()  # the same of tensor memory
    barriers: tuple[Barrier, ...] = ()  # one for each target of a copy
    name: str = ""  # of an array of registers, or of a tensor in global memory; "" where that is not known
    flag: bool = False  # of a load: it reads nothing that the kernel before may write; of a store wait: `.read`
    swizzle: str = ""  # with which it reads or writes shared memory; "" where that is not known
    guesses: tuple[tuple[int, int], ...] = ()  # sides of an `if` that data decide: two of one `if` exclude each other


@dataclass(frozen=True)
class Problem:
    """The sizes for which a kernel is followed: M, N, K, and SMs, in elements and counts."""

    m: int
    n: int
    k: int
    sms: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} on {self.sms} SM{'s' if self.sms > 1 else ''}"


@dataclass(frozen=True)
class Launch:
    """What the host function asked for."""

    grid: tuple[int, int, int]
    cluster: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]
    dependent: bool  # programmatic dependent launch
    kernel: str = ""

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return int(np.prod(self.block))

    @property
    def ctas(self) -> int:
        """Of a cluster."""
        return int(np.prod(self.cluster))

    def place(self, number: int, rank: int) -> tuple[int, int, int]:
        """The index in the grid of a CTA of a cluster, the clusters counted along x first."""
        wide = [g // c for g, c in zip(self.grid, self.cluster, strict=True)]
        first = (number % wide[0], number // wide[0] % wide[1], number // (wide[0] * wide[1]))
        x, y, _ = self.cluster
        inside = (rank % x, rank // x % y, rank // (x * y))
        a, b, c = (f * k + i for f, k, i in zip(first, self.cluster, inside, strict=True))
        return a, b, c


@dataclass(frozen=True)
class Programs:
    """The programs of one cluster."""

    launch: Launch
    warps: dict[tuple[int, int], tuple[Event, ...]]  # by (rank of the CTA, warp)
    clusters: int = 1  # those of a launch whose clusters wait for one another: ranks go on from one to the next

    def warps_of(self, cta: int) -> list[tuple[int, int]]:
        return [key for key in self.warps if key[0] == cta]


class Recorder(Interpreter):
    """Follows one warp and records its events."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.events: list[Event] = []
        self.config: dict[str, Any] = {}  # of a launch that is being made
        self.answers = 0  # to requests for another cluster's work that were read: see `launch_control`

    def add(self, what: str, op: Operation, **fields: Any) -> None:
        """Record an event; neighbours of one kind that touch memory become one."""
        event = Event(what, op.line, guesses=self.guesses, **fields)
        last = self.events[-1] if self.events else None
        if last and what in MERGED and _SAME(last) == _SAME(event):
            both = {"targets": _union(last.targets, event.targets), "tensor": _union(last.tensor, event.tensor)}
            self.events[-1] = replace(last, **both)
        else:
            self.events.append(event)

    def wrong(self, rule: str, text: str, op: Operation) -> None:
        """Record a fault that needs no other warp."""
        self.add("wrong", op, name=f"{rule}: {text}")

    def for_hardware(self, view: View, op: Operation, swizzle: Swizzle | None = None) -> None:
        """What TMA or the tensor core reads or writes: where it begins must suit its swizzle.

        Args:
            swizzle: what TMA was told; None: what the view says is what the hardware is told.
        """
        pointer, own = view.pointer, view.swizzle
        if swizzle is not None and (swizzle.bits, own.bits) != (0, 0) and swizzle != own:
            text = f"TMA was given {named_swizzle(swizzle)} for a place that others read or write with "
            self.wrong("swizzle", text + named_swizzle(own), op)
        period = own.period if own.bits else 128 if swizzle is not None else 16
        if isinstance(pointer.base, (int, np.integer)) and pointer.base % period:
            text = f"what begins at byte {pointer.base} of shared memory needs a multiple of {period}"
            self.wrong("alignment", f"{text}, for {named_swizzle(own)}", op)

    def mine(self, *views: View) -> tuple[Target, ...]:
        """What views cover of this CTA's shared memory.

        Raises:
            CannotFollow: another CTA's, or at an address that is not known.
        """
        if any(view.pointer.cta is not None for view in views):
            raise CannotFollow("an access to the shared memory of another CTA")
        total = 0
        for view in views:
            total |= self.covered(view)
        return ((self.place.rank, total),)

    def covered(self, view: View) -> int:
        """What the active lanes' views cover, where each has an address of its own, or all the same."""
        if not isinstance(view.pointer.address, np.ndarray):
            return region(view)
        return region(view, tuple(np.unique(view.pointer.address[self.active]).tolist()))


def named_swizzle(swizzle: Swizzle) -> str:
    """A swizzle in words: "the swizzle S<3,4,3>"."""
    return f"the swizzle S<{swizzle.bits},{swizzle.base},{swizzle.shift}>" if swizzle.bits else "no swizzle"


def _way(view: View, swizzle: Swizzle | None = None) -> str:
    """The swizzle of an access: the hardware's own if given, else the view's; "" of an address that is computed."""
    return "" if view.pointer.name == COMPUTED else named_swizzle(swizzle or view.swizzle)


def _ways(views: list[View]) -> str:
    """The swizzle of all of several views; "" if they differ."""
    found = {_way(view) for view in views}
    return found.pop() if len(found) == 1 else ""


_SAME = attrgetter(*(each.name for each in fields(Event) if each.name not in ("targets", "tensor", "line")))
MERGED = ("read", "write", "words read", "words write", "async copy", "mma", "tensor mma", "tensor read")


def _union(a: tuple[Target, ...], b: tuple[Target, ...]) -> tuple[Target, ...]:
    mine, theirs = dict(a), dict(b)
    return tuple((cta, mine.get(cta, 0) | theirs.get(cta, 0)) for cta in {**mine, **theirs})


# --- barriers ----------------------------------------------------------------------------------------------------


@handles("nvvm.mbarrier.init")
def _init(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("init", op, barrier=f.barrier(args[0]), count=f.integer(args[1], "the count of a barrier"))


@handles("nvvm.mbarrier.try_wait.parity", "nvvm.mbarrier.try_wait.parity.timelimit", "nvvm.mbarrier.wait.parity")
@handles("nvvm.mbarrier.test.wait")
def _wait(f: Recorder, op: Operation, args: list[Any]) -> Any:
    """With no result it waits until the phase is over. With one it only looks: the answer taken is "not yet"."""
    parity = f.integer(args[1], "the parity waited for")
    f.add("look" if op.results else "wait", op, barrier=f.barrier(args[0]), count=parity)
    return 0


@handles("nvvm.mbarrier.arrive", "nvvm.mbarrier.arrive.expect_tx", "nvvm.mbarrier.expect_tx", "nvvm.mbarrier.txn")
def _arrive(f: Recorder, op: Operation, args: list[Any]) -> Any:
    """Each active lane arrives, perhaps at another CTA's barrier."""
    what, lanes, count, amount = f.arrivals(op, args)
    for barrier, each in lanes:
        f.add(what, op, barrier=barrier, count=count * each, bytes=amount * each)
    return UNKNOWN


@handles("nvvm.mapa")
def _mapa(f: Recorder, op: Operation, args: list[Any]) -> Any:
    return replace(args[0], cta=args[1])


@handles("nvvm.barrier", "nvvm.barrier.arrive")
def _named(f: Recorder, op: Operation, args: list[Any]) -> None:
    number, threads = f.named_barrier(op, args)
    f.add("come" if op.name.endswith("arrive") else "meet", op, number=number, count=threads)


@handles("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed", "nvvm.cluster.wait")
def _cluster(f: Recorder, op: Operation, args: list[Any]) -> None:
    if op.name.endswith("wait"):
        f.add("cluster wait", op)
    else:
        f.add("cluster arrive", op, flag=op.name.endswith("relaxed"))


@handles("nvvm.fence.mbarrier.init")
def _fence_init(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("fence of barriers", op)


@handles("nvvm.fence.proxy")
def _fence_proxy(f: Recorder, op: Operation, args: list[Any]) -> None:
    """Of the kinds of PTX ISA "membar/fence", `async` and `async.shared` order what shared memory holds."""
    if op.get("kind", "async") in ("async", "async.shared"):
        f.add("fence of proxies", op)


@handles("nvvm.bar.warp.sync")
def _warp_sync(f: Recorder, op: Operation, args: list[Any]) -> None:
    """What all lanes have read, one of them may tell others of."""
    if f.lanes == LANES and args[0] in (-1, (1 << LANES) - 1):
        f.add("warp sync", op)


@handles("nvvm.memory.barrier", "nvvm.fence.sc.cluster", "nvvm.fence.acq_rel.cluster")
def _nothing(f: Recorder, op: Operation, args: list[Any]) -> None:
    """Orders one warp's accesses, which are taken to be in order anyhow."""


LOGIC = "lop3.b32 $0, $1, $2, $3, "  # inline assembly of a logical operation of three words


@handles("llvm.inline_asm", "nvvm.inline_ptx", "nvvm.griddepcontrol")
def _assembly(f: Recorder, op: Operation, args: list[Any]) -> Any:
    text = op.get("asm_string") or op.get("ptxCode") or op.get("kind", "")
    if what := flags.said(op):
        for lane, address in f.by_lane(args[0].address):
            value = args[1][lane] if isinstance(args[1], np.ndarray) else args[1]
            targets = ((NO_CTA, 1 << int(address) // GRANULE),)
            f.add(what, op, targets=targets, name=args[0].name, count=f.integer(value, "the value of a flag"))
        return UNKNOWN
    if LOGIC in text:
        return UNKNOWN  # of data
    if "tcgen05.fence::" in text:
        f.add("tensor fence", op, flag="after_thread_sync" in text)
        return UNKNOWN
    if re.search(r"griddepcontrol\.wait|\bwait\b", text):
        f.add("grid wait", op)
    elif "launch_dependents" not in text:
        raise UnknownCode(f"inline assembly: {text[:200]}")
    return UNKNOWN


# --- copies ------------------------------------------------------------------------------------------------------


@handles("cute.copy", "cute.copy_atom_call")
def _copy(f: Recorder, op: Operation, args: list[Any]) -> None:
    atom, source, target = args[:3]
    text = atom.type if isinstance(atom, Atom) else op.operand_types[0]
    if "tma_load" in text:
        _tma_load(f, op, atom, target)
    elif "tma_store" in text or "tma_reduce" in text:
        f.for_hardware(source, op, atom.values.get("swizzle"))
        way = _way(source, atom.values.get("swizzle"))
        f.add("store", op, targets=f.mine(source), swizzle=way, name=atom.values.get("tensor", ""))
    elif "dsmem_store" in text:
        _store_to_cluster(f, op, atom, source, target)
    elif "simt_async" in text or "cp_async" in text:
        f.add("async copy", op, targets=f.mine(target), swizzle=_way(target))
    else:
        _software_copy(f, op, source, target)


def _tma_load(f: Recorder, op: Operation, atom: Atom, target: View) -> None:
    cta, address = f.barrier(atom.values.get("tma_bar"))
    ranks = f.multicast(atom.values.get("mcast_mask"), f.place.rank)
    if cta != f.place.rank:
        raise CannotFollow("a TMA copy that reports to another CTA's barrier")
    f.for_hardware(target, op, atom.values.get("swizzle"))
    part = _part(target, atom.values["parts"])
    covers, amount = region(part), part.bytes
    pair = 2 if "num_cta = 2" in atom.type else 1  # what a pair of CTAs gets is told to the first one's barrier
    barriers = tuple((rank // pair * pair, address) for rank in ranks)
    targets, rests = tuple((rank, covers) for rank in ranks), atom.values.get("at rest", False)
    way, name = _way(target, atom.values.get("swizzle")), atom.values.get("tensor", "")
    f.add("load", op, targets=targets, barriers=barriers, bytes=amount, flag=rests, swizzle=way, name=name)


def _store_to_cluster(f: Recorder, op: Operation, atom: Atom, source: View, target: View) -> None:
    """st.async: each lane's registers go to a CTA of the cluster, and its bytes are told to a barrier there."""
    f.add("registers read", op, name=source.pointer.name)
    cta = f.integer(target.pointer.cta, "the CTA that is written to")
    barrier = f.barrier(atom.values.get("mbar_ptr"))
    amount = target.bytes * f.lanes
    f.add("load", op, targets=((cta, f.covered(target)),), barriers=(barrier,), bytes=amount, flag=True)


def _part(target: View, parts: int) -> View:
    """The first of several equal parts of each box in a view: what one CTA's copy of a shared tile brings."""
    if parts == 1:
        return target
    first, *rest = target.layout.modes
    box, flat = box_size(target.layout), first.offsets()
    if any(mode.size != 1 for mode in rest) or (flat != np.arange(len(flat))).any():
        raise CannotFollow(f"a part of {target.layout}, whose elements do not lie one after the other")
    return replace(target, layout=Lay((box // parts, len(flat) // box), (1, box)))


def _software_copy(f: Recorder, op: Operation, source: Any, target: Any) -> None:
    if not isinstance(source, View) or not isinstance(target, View):
        raise CannotFollow(f"a copy of {op.operand_types[1]}")
    tensor = "tmem" in (source.pointer.space, target.pointer.space)  # ends later: what it does to registers too
    for what, view in (("read", source), ("write", target)):
        space = view.pointer.space
        if space == "smem":
            together = MATRICES.search(op.operand_types[0])  # ldmatrix, stmatrix: one instruction of the warp
            f.add(what, op, targets=f.mine(view), swizzle=_way(view), count=0 if together else _by_lanes(f, what))
        elif space == "rmem":
            if not tensor:
                f.add(f"registers {what}", op, name=view.pointer.name)
        elif space == "tmem":
            f.add(f"tensor {what}", op, tensor=((f.place.rank, tensor_region(view)),), name=_register(source, target))
        elif space == "words":
            f.add(f"words {what}", op, targets=words(f, view), name=view.pointer.name)
        elif space != "coord":
            f.add("global", op, name=view.pointer.name, flag=what == "write")


MATRICES = re.compile(r"atom\.(?:ldsm|stsm)<")


def _by_lanes(f: Recorder, what: str) -> int:
    """How many lanes read, where there are several: each is done when it is."""
    return f.lanes if what == "read" and f.lanes > 1 else 0


def words(f: Recorder, view: View) -> tuple[Target, ...]:
    """What a view covers of memory that CTAs of a launch share: it is no CTA's own."""
    return ((NO_CTA, f.covered(view)),)


def _register(source: View, target: View) -> str:
    """The array of registers that a copy from or to tensor memory has on its other side."""
    return next((x.pointer.name for x in (source, target) if x.pointer.space == "rmem"), "")


@handles("cute.memref.load_vec", "cute.memref.load", "cute.ptr.load")
def _load(f: Recorder, op: Operation, args: list[Any]) -> Any:
    if isinstance(args[0], View) and args[0].pointer.space == "table":
        view, coordinate = args
        at = view.moved(view.layout.offset(coordinate)).address
        if view.pointer.name:
            f.add("global", op, name=view.pointer.name)
        return view.pointer.numbers[f.integer(at, "a place in a table") * 8 // view.bits]
    _touch(f, op, args[0], "read", args[1:2])
    place = args[0].pointer if isinstance(args[0], View) else args[0]
    return 0 if place.space == "words" and place.name == "flags" else UNKNOWN  # all flags are as the launch found them


@handles("cute.memref.store_vec", "cute.memref.store", "cute.ptr.store")
def _store(f: Recorder, op: Operation, args: list[Any]) -> None:
    whole = op.name.endswith("_vec")
    _touch(f, op, args[1] if whole else args[0], "write", [] if whole else args[1:2])


def _touch(f: Recorder, op: Operation, place: Any, what: str, coordinate: list[Any]) -> None:
    """All of a view is touched, or its one element at a coordinate: each active lane's own."""
    pointer = place.pointer if isinstance(place, View) else place
    if not isinstance(pointer, Pointer):
        raise CannotFollow("an access to a place that is not known")
    if pointer.space == "rmem":
        f.add(f"registers {what}", op, name=pointer.name)
    elif pointer.space == "smem":
        if not isinstance(place, View):
            raise CannotFollow("an access to shared memory by a bare pointer")
        if coordinate:
            at = place.moved(place.layout.offset(coordinate[0]))
            place = replace(place, pointer=at, layout=Lay((1,), (1,)))
        f.add(what, op, targets=f.mine(place), swizzle=_way(place), count=_by_lanes(f, what))
    elif pointer.space == "words" and isinstance(place, View):
        if coordinate:
            at = place.moved(place.layout.offset(coordinate[0]))
            place = replace(place, pointer=at, layout=Lay((1,), (1,)))
        f.add(f"words {what}", op, targets=words(f, place), name=pointer.name)
    elif pointer.space not in ("coord",):
        f.add("global", op, name=pointer.name, flag=what == "write")


@handles("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("store commit", op)


@handles("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("store wait", op, count=op.attributes["group"], flag=bool(op.get("read")))


# --- cp.async ----------------------------------------------------------------------------------------------------


@handles("nvvm.cp.async.commit.group")
def _async_commit(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("async commit", op, count=_all_lanes(f, "a commit of cp.async"))


@handles("nvvm.cp.async.wait.group")
def _async_wait(f: Recorder, op: Operation, args: list[Any]) -> None:
    _all_lanes(f, "a wait for cp.async")
    f.add("async wait", op, count=op.attributes["n"])


@handles("nvvm.cp.async.mbarrier.arrive")
def _async_arrive(f: Recorder, op: Operation, args: list[Any]) -> None:
    """Each lane arrives once all copies that it has asked for so far are there; its program goes on at once."""
    _all_lanes(f, "an arrival that waits for cp.async")
    _, [(barrier, lanes)], _, _ = f.arrivals(op, args)
    if barrier[0] != f.place.rank:
        raise CannotFollow("a cp.async that reports to another CTA's barrier")
    f.add("async arrive", op, barrier=barrier, count=lanes)


def _all_lanes(f: Recorder, what: str) -> int:
    """Each thread has copies and groups of its own: they are followed as a warp's."""
    if f.lanes != LANES:
        raise CannotFollow(f"{what} by some lanes of a warp")
    return LANES


# --- wgmma -------------------------------------------------------------------------------------------------------


@handles("nvvm.wgmma.fence.aligned")
def _mma_fence(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("mma fence", op)


@handles("nvvm.wgmma.commit.group.sync.aligned")
def _mma_commit(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("mma commit", op)


@handles("nvvm.wgmma.wait.group.sync.aligned")
def _mma_wait(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("mma wait", op, count=op.attributes["group"])


@handles("cute.gemm")
def _gemm(f: Recorder, op: Operation, args: list[Any]) -> None:
    text = op.operand_types[0]
    target, *operands = args[1:]
    views = [x for x in operands[:2] if isinstance(x, View) and x.pointer.space == "smem"]
    for view in views:
        f.for_hardware(view, op)
    if "sm90.mma" in text:
        f.add("mma", op, targets=f.mine(*views), name=target.pointer.name, swizzle=_ways(views))
    elif "sm100.mma" in text and len(views) == 2:
        ((rank, covers),) = f.mine(*views)
        ranks = (rank, rank ^ 1) if "num_cta = 2" in text else (rank,)  # a pair's operands and sums lie in both alike
        sums = tensor_region(target)
        targets, tensor = (tuple((r, what) for r in ranks) for what in (covers, sums))
        f.add("tensor mma", op, targets=targets, tensor=tensor, swizzle=_ways(views))
    elif not views and target.pointer.space == "rmem":
        f.add("registers write", op, name=target.pointer.name)  # mma.sync
    else:
        raise CannotFollow(f"an MMA of type {text}")


# --- registers ---------------------------------------------------------------------------------------------------


@handles("nvvm.setmaxregister")
def _registers(f: Recorder, op: Operation, args: list[Any]) -> None:
    _all_lanes(f, "setmaxnreg")
    f.add(
        "registers taken" if op.attributes["action"] == "increase" else "registers given",
        op,
        count=op.attributes["regCount"],
    )


# --- tcgen05 -----------------------------------------------------------------------------------------------------


@handles("nvvm.tcgen05.commit")
def _tensor_commit(f: Recorder, op: Operation, args: list[Any]) -> None:
    """When all MMAs that the thread has asked for so far are done, each of the barriers gets an arrival."""
    cta, address = f.barrier(args[0])
    ranks = f.multicast(args[1] if len(args) > 1 else None, cta)
    f.add("tensor commit", op, barriers=tuple((rank, address) for rank in ranks), count=f.lanes)


@handles("nvvm.tcgen05.fence")
def _tensor_fence(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("tensor fence", op, flag=op.attributes["kind"] == "after")


@handles("nvvm.tcgen05.wait")
def _tensor_wait(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("tensor wait", op, flag=op.attributes["kind"] == "load")


@handles("cute_nvgpu.arch.sm100.alloc_tmem")
def _tensor_alloc(f: Recorder, op: Operation, args: list[Any]) -> None:
    columns = f.integer(args[0], "the columns of tensor memory")
    pair = op.get("is_two_cta") is not None
    f.add("tensor alloc", op, count=columns, targets=_word(f, args[1]), tensor=_columns(f, columns), flag=pair)


@handles("cute_nvgpu.arch.sm100.dealloc_tmem")
def _tensor_free(f: Recorder, op: Operation, args: list[Any]) -> None:
    columns = f.integer(args[1], "the columns of tensor memory")
    f.add("tensor free", op, count=columns, tensor=_columns(f, columns), flag=op.get("is_two_cta") is not None)


@handles("cute_nvgpu.arch.sm100.retrieve_tmem_ptr")
def _tensor_pointer(f: Recorder, op: Operation, args: list[Any]) -> Any:
    """The address that the allocation left in shared memory; a kernel that allocates once has all columns from 0 on."""
    f.add("read", op, targets=_word(f, args[0]))
    return Pointer("tmem", 0)


@handles("cute_nvgpu.arch.sm100.relinquish_tmem_alloc_permit")
def _tensor_relinquish(f: Recorder, op: Operation, args: list[Any]) -> None:
    """Concerns other CTAs of the SM."""


def _word(f: Recorder, pointer: Pointer) -> tuple[Target, ...]:
    return f.mine(View(pointer, Lay(1, 0), 32, Swizzle(0, 4, 3)))


def _columns(f: Recorder, columns: int) -> tuple[Target, ...]:
    view = View(Pointer("tmem", 0), Lay((128, columns), (1 << 16, 1)), 32, Swizzle(0, 4, 3))
    return ((f.place.rank, tensor_region(view)),)


# --- the launch --------------------------------------------------------------------------------------------------


@handles("cuda.launch_cfg.create")
def _launch(f: Recorder, op: Operation, args: list[Any]) -> Any:
    f.config |= {"block": tuple(args[:3]), "grid": tuple(args[4:7]), "cluster": (1, 1, 1), "dependent": 0}
    return f.config


@handles("cuda.launch_cfg.cluster_dim")
def _launch_cluster(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.config["cluster"] = tuple(args[1:4])


@handles("cuda.launch_cfg.programmatic_stream_serialization_allowed")
def _launch_dependent(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.config["dependent"] = args[1]


@handles("cuda.launch_cfg.cooperative", "cuda.return_if_error", "cuda.launch_cfg.priority")
def _launch_more(f: Recorder, op: Operation, args: list[Any]) -> None:
    """Says nothing about what a kernel waits for."""


@handles("cuda.launch_ex")
def _launch_it(f: Recorder, op: Operation, args: list[Any]) -> Any:
    f.config["arguments"] = tuple(args[1:])
    f.config["kernel"] = op.attributes["callee"][-1]
    return UNKNOWN


def launched(trace: Trace, arguments: list[Any]) -> Launch:
    """What the host function launches, and how.

    Args:
        trace: what was traced.
        arguments: of the host function, as `host_arguments` makes them.
    """
    types = trace.host.argument_types
    given = enumerate(zip(arguments, types, strict=False))
    return launched_by(Recorder(HOST), trace, [_argument(n, x, text) for n, (x, text) in given])


class NoLaunch(CannotFollow):
    """The host function ended without a launch."""


HOST = Place((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), 0)  # where the host function is followed


def launched_by(warp: Any, trace: Trace, arguments: list[Any]) -> Launch:
    """`launched`, followed by `warp`, an Interpreter with a `config`, of arguments that it knows."""
    host = trace.host
    if len(arguments) != len(host.arguments):
        raise CannotFollow(f"a host function of {len(host.arguments)} arguments; {len(arguments)} are known")
    warp.run(host, arguments)
    found = warp.config
    if "kernel" not in found:
        raise NoLaunch("the host function: got no launch; needed one")
    grid, cluster, block = (_three(warp, found[key], f"the {key}") for key in ("grid", "cluster", "block"))
    return Launch(grid, cluster, block, found["arguments"], bool(found["dependent"]), found["kernel"])


def _three(warp: Recorder, sizes: Any, what: str) -> tuple[int, int, int]:
    x, y, z = (warp.integer(size, what) for size in sizes)
    return x, y, z


class Written(tuple[int, ...]):
    """Numbers in global memory that a kernel before may write, unlike those of another table."""


def host_arguments(
    module: Any, config: Any, problem: Problem, strides: tuple[int, int, int] | None = None
) -> list[Any]:
    """What a recipe's `gemm` is called with for a problem, without what is known when it compiles.

    The numbers are found by the names of parameters, and of the fields of a parameter that is a NamedTuple. A name that
    a function of the recipe has too is what that function returns; it may take `config`, `m`, `n`, `k`, `groups` and
    `sms`.
    `remap` is a table in global memory that no kernel writes: here, the identity. `offs` are the ends of the groups of
    a grouped GEMM, whose B, and scale factors of B, follow one another, or `offs_k`, where its C do; `middle` is N1 of
    a chained one. `sums` and `flags` are words in global memory by which CTAs of the launch tell one another something.
    Any other value is unknown.

    Args:
        strides: elements between the lines of A, B and C; if left out, those of K-major operands without padding.
    """
    return [value for _, value in named_arguments(module, config, problem, strides)]


def named_arguments(
    module: Any, config: Any, problem: Problem, strides: tuple[int, int, int] | None = None
) -> list[tuple[str, Any]]:
    """What `host_arguments` returns, each value with the name of the parameter or field that it is a part of."""
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "sms": problem.sms, "groups": grouped.ENDS}
    row = 8 * -(-problem.k // 8)
    known: dict[str, tuple[Any, ...]] = {
        "mnk": (problem.m, problem.n, problem.k),
        "strides": strides or (row, row, 8 * -(-problem.n // 8)),
        "sms": (problem.sms,),
        "remap": (tuple(range(problem.sms)),),
        "offs": (Written(grouped.ends(problem.m)),),
        "offs_k": (Written(grouped.ends(problem.k)),),
        "groups": (grouped.ENDS,),
        "sums": ("sums",),
        "flags": ("flags",),
    }
    if chained.is_chained(module):
        known["middle"] = (chained.middle(config),)
    along_k = grouped.takes_groups(module) == "k"
    known["group_stride_sb"] = (problem.n,)
    known["group_stride"] = (problem.m * known["strides"][2] if along_k else problem.n * known["strides"][1],)

    def values(name: str, of: Any) -> Iterator[tuple[str, Any]]:
        """One for each number or pointer that an argument is made of."""
        if name in known:
            yield from ((name, value) for value in known[name])
        elif inspect.isfunction(function := getattr(module, name, None)):
            given = sizes | {"config": config}
            yield name, function(**{key: given[key] for key in inspect.signature(function).parameters})
        elif fields := getattr(of, "_fields", ()):
            for field in fields:
                yield from values(field, of.__annotations__[field])
        elif {getattr(each, "__name__", "") for each in get_args(of)} == {"Pointer"}:
            yield from ((each, UNKNOWN) for each in fused.told(module, config))
        else:
            yield from ((name, UNKNOWN) for _ in get_args(of) or (of,))

    parameters = inspect.signature(module.gemm).parameters
    return [x for name, each in parameters.items() if not _is_constant(each) for x in values(name, each.annotation)]


def _is_constant(parameter: inspect.Parameter) -> bool:
    """Whether it is known when the kernel is compiled."""
    return getattr(parameter.annotation, "__name__", "") == "Constexpr"


def _argument(number: int, value: Any, text: str) -> Any:
    if not text.startswith("!cute.ptr"):
        return value
    if isinstance(value, tuple):
        name = f"argument {number}" if isinstance(value, Written) else ""
        return Pointer("table", 0, name=name, numbers=value)
    if isinstance(value, str):
        return Pointer("words", 0, name=value)
    return Pointer(kind(text).space, UNKNOWN, name=f"argument {number}")


def at_rest(module: Any, config: Any) -> tuple[int, ...]:
    """Which of a kernel's arguments read what no kernel before it may write.

    A recipe that is promised so for a `config` names those parameters: `at_rest(config)`, `("tma_a",)`.
    """
    named = getattr(module, "at_rest", lambda _: ())(config)
    return tuple(number for number, name in enumerate(inspect.signature(module.kernel).parameters) if name in named)


def of_cluster(trace: Trace, arguments: list[Any], number: int = 0, resting: tuple[int, ...] = ()) -> Programs:
    """The programs of the warps of one cluster.

    Args:
        trace: what was traced.
        arguments: of the host function, as `host_arguments` makes them.
        number: the cluster's in the grid, along x.
        resting: what `at_rest` returned.

    Raises:
        CannotFollow: the kernel does something that is not followed; the message names it and its line.
    """
    launch = launched(trace, arguments)
    body, warps = trace.kernel(launch.kernel), -(-launch.threads // LANES)
    given = [_resting(one) if place in resting else one for place, one in enumerate(launch.arguments)]
    found, known = {}, dict[int, int]()
    for rank in range(launch.ctas):
        at = launch.place(number, rank)
        for warp in range(warps):
            recorder = Recorder(Place(launch.grid, launch.cluster, launch.block, at, warp))
            recorder.run(body, given)
            events = (_with_known(event, known) for event in _that_matter(recorder.events))
            found[rank, warp] = (*events, Event("exit", Line()))
    return Programs(launch, found)


def of_grid(trace: Trace, arguments: list[Any], resting: tuple[int, ...] = ()) -> Programs:
    """The programs of all clusters of a launch, as if they were one of many CTAs. Arguments as of `of_cluster`."""
    launch = launched(trace, arguments)
    clusters = launch.grid[0] // launch.cluster[0]
    warps = {}
    for number in range(clusters):
        first = number * launch.ctas
        for (rank, warp), events in of_cluster(trace, arguments, number, resting).warps.items():
            warps[first + rank, warp] = tuple(_of_rank(event, first) for event in events)
    return Programs(launch, warps, clusters)


def _of_rank(event: Event, first: int) -> Event:
    """The event with its CTAs' ranks counted from another one on."""

    def moved(of: tuple) -> tuple:
        return tuple((cta if cta == NO_CTA else first + cta, what) for cta, what in of)

    if not first or not (event.barrier or event.barriers or event.targets or event.tensor):
        return event
    barrier = event.barrier and (first + event.barrier[0], event.barrier[1])
    rest = {name: moved(getattr(event, name)) for name in ("targets", "tensor", "barriers")}
    return replace(event, barrier=barrier, **rest)


def _that_matter(events: list[Event]) -> list[Event]:
    """The events without those of registers that nothing fills later: they concern nobody else."""
    filled = {event.name for event in events if event.what in ("mma", "tensor read")}
    mere = ("registers read", "registers write")
    return [event for event in events if event.what not in mere or event.name in filled]


def _with_known(event: Event, known: dict[int, int]) -> Event:
    """The event with equal regions as one object: whether two overlap is then asked once (`Machine._near`)."""
    if not event.targets:
        return event
    return replace(event, targets=tuple((cta, known.setdefault(bits, bits)) for cta, bits in event.targets))


def _resting(argument: Any) -> Any:
    if not isinstance(argument, Atom):
        raise CannotFollow("an argument at rest that is no copy by TMA")
    return replace(argument, values=argument.values | {"at rest": True})


assert TABLE  # the handlers above are registered
