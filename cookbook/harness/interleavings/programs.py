"""The programs of a launch: for each warp, the sequence of what it waits for, signals, reads and writes.

They are recorded from what CuTe traced of the recipe (see `tracing`). Waits give no data, so a warp's sequence does not
depend on timing: for one problem it is fixed, and the interleavings of the warps are all that can vary.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cookbook.harness.interleavings.following import LANES, TABLE, Atom, Follower, Place, handles
from cookbook.harness.interleavings.reading import Module, Operation
from cookbook.harness.interleavings.shapes import UNKNOWN, CannotFollow, Lay, Pointer, View, kind, region

Barrier = tuple[int, int]  # rank of the CTA, and byte of its shared memory
Target = tuple[int, int]  # rank of the CTA, and granules of its shared memory as bits


@dataclass(frozen=True)
class Event:
    """One step of a warp. `what` says which of the other fields mean something; see `machine.Machine`'s methods."""

    what: str
    line: int  # of the recipe's file
    barrier: Barrier | None = None
    count: int = 0  # arrivals, the parity waited for, threads of a named barrier, groups that may stay in flight
    bytes: int = 0  # expected by an arrival, or brought by a copy to each of its targets
    number: int = 0  # of a named barrier
    targets: tuple[Target, ...] = ()
    barriers: tuple[Barrier, ...] = ()  # one for each target of a copy
    name: str = ""  # of an array of registers
    flag: bool = False


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

    @property
    def ctas(self) -> int:
        """Of a cluster."""
        return int(np.prod(self.cluster))


@dataclass(frozen=True)
class Programs:
    """The programs of one cluster."""

    launch: Launch
    warps: dict[tuple[int, int], tuple[Event, ...]]  # by (rank of the CTA, warp)

    def warps_of(self, cta: int) -> list[tuple[int, int]]:
        return [key for key in self.warps if key[0] == cta]


class Recorder(Follower):
    """Follows one warp and records its events."""

    def __init__(self, place: Place, launch: Launch | None = None) -> None:
        super().__init__(place)
        self.events: list[Event] = []
        self.launch = launch
        self.config: dict[str, Any] = {}  # of a launch that is being made

    def add(self, what: str, op: Operation, **fields: Any) -> None:
        """Record an event; neighbours of one kind that touch memory become one."""
        event = Event(what, op.line, **fields)
        last = self.events[-1] if self.events else None
        if last and what in MERGED and replace(last, targets=(), line=0) == replace(event, targets=(), line=0):
            mine, theirs = dict(last.targets), dict(event.targets)
            both = {cta: mine.get(cta, 0) | theirs.get(cta, 0) for cta in {**mine, **theirs}}
            self.events[-1] = replace(last, targets=tuple(both.items()))
        else:
            self.events.append(event)

    def barrier(self, pointer: Any) -> Barrier:
        """The barrier at an address.

        Raises:
            CannotFollow: the address is not known.
        """
        if not isinstance(pointer, Pointer) or pointer.space != "smem":
            raise CannotFollow("a barrier that is not in shared memory that is followed")
        cta = self.place.rank if pointer.cta is None else self.integer(pointer.cta, "the CTA of a barrier")
        return cta, self.integer(pointer.address, "the address of a barrier")

    def mine(self, *views: View) -> tuple[Target, ...]:
        """What views cover of this CTA's shared memory."""
        total = 0
        for view in views:
            total |= region(view)
        return ((self.place.rank, total),)

    @property
    def lanes(self) -> int:
        return int(self.active.sum())


MERGED = ("read", "write", "mma", "tensor read")


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
    pointer = args[0]
    expects = "expect" in op.name or "txn" in op.name
    amount = f.integer(args[1], "the bytes expected") if expects else 0
    count = 1 if expects or len(args) < 2 else f.integer(args[1], "the number of arrivals")
    if isinstance(pointer, Pointer) and isinstance(pointer.cta, np.ndarray):
        ctas = [cta for _, cta in f.by_lane(pointer.cta)]
    else:
        ctas = [f.barrier(pointer)[0]] * f.lanes
    address = f.integer(pointer.address, "the address of a barrier")
    what = "expect" if op.name.endswith(".expect_tx") and "arrive" not in op.name else "arrive"
    for cta, lanes in sorted(Counter(ctas).items()):
        f.add(what, op, barrier=(cta, address), count=count * lanes, bytes=amount * lanes)
    return UNKNOWN


@handles("nvvm.mapa")
def _mapa(f: Recorder, op: Operation, args: list[Any]) -> Any:
    return replace(args[0], cta=args[1])


@handles("nvvm.barrier", "nvvm.barrier.arrive")
def _named(f: Recorder, op: Operation, args: list[Any]) -> None:
    if f.lanes != LANES:
        raise CannotFollow("a barrier that only some lanes of a warp come to")
    present = re.search(r"operandSegmentSizes = array<i32: (\d), (\d)", op.properties)
    given = iter(args)
    names, sizes = (present[1], present[2]) if present else ("1", "1")
    number = f.integer(next(given), "the number of a barrier") if names == "1" else 0
    threads = f.integer(next(given), "the threads of a barrier") if sizes == "1" else int(np.prod(f.place.block))
    f.add("come" if op.name.endswith("arrive") else "meet", op, number=number, count=threads)


@handles("nvvm.cluster.arrive", "nvvm.cluster.arrive.relaxed", "nvvm.cluster.wait")
def _cluster(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("cluster wait" if op.name.endswith("wait") else "cluster arrive", op)


@handles("nvvm.fence.mbarrier.init")
def _fence_init(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("fence of barriers", op)


@handles("nvvm.fence.proxy")
def _fence_proxy(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("fence of proxies", op)


@handles("nvvm.memory.barrier", "nvvm.fence.sc.cluster", "nvvm.fence.acq_rel.cluster", "nvvm.bar.warp.sync")
def _nothing(f: Recorder, op: Operation, args: list[Any]) -> None:
    """Orders one warp's accesses, which are taken to be in order anyhow."""


@handles("llvm.inline_asm", "nvvm.griddepcontrol")
def _assembly(f: Recorder, op: Operation, args: list[Any]) -> Any:
    text = op.properties
    if re.search(r"griddepcontrol\.wait|\bwait\b", text):
        f.add("grid wait", op)
    elif "launch_dependents" not in text:
        raise CannotFollow(f"inline assembly: {text[:200]}")
    return UNKNOWN


# --- copies ------------------------------------------------------------------------------------------------------


@handles("cute.copy", "cute.copy_atom_call")
def _copy(f: Recorder, op: Operation, args: list[Any]) -> None:
    atom, source, target = args[:3]
    text = atom.type if isinstance(atom, Atom) else op.operand_types[0]
    if "tma_load" in text:
        _tma_load(f, op, atom, target)
    elif "tma_store" in text or "tma_reduce" in text:
        f.add("store", op, targets=f.mine(source))
    elif "simt_async" in text or "cp_async" in text:
        raise CannotFollow("cp.async, whose groups are not followed")
    else:
        _software_copy(f, op, source, target)


def _tma_load(f: Recorder, op: Operation, atom: Atom, target: View) -> None:
    cta, address = f.barrier(atom.values.get("tma_bar"))
    mask = atom.values.get("mcast_mask")
    ranks = [f.place.rank]
    if mask is not None:
        bits = f.integer(mask, "the mask of a multicast")
        ranks = [rank for rank in range(16) if bits >> rank & 1]
    if cta != f.place.rank:
        raise CannotFollow("a TMA copy that reports to another CTA's barrier")
    part = _part(target, atom.values["parts"])
    covers, amount = region(part), part.bytes
    barriers = tuple((rank, address) for rank in ranks)
    f.add("load", op, targets=tuple((rank, covers) for rank in ranks), barriers=barriers, bytes=amount)


def _part(target: View, parts: int) -> View:
    """The first of several equal parts of a view's mode 0, which is what one CTA's copy of a shared tile brings."""
    if parts == 1:
        return target
    first, *rest = target.layout.modes
    flat = first.offsets()[: first.size // parts]
    if any(mode.size != 1 for mode in rest) or len(flat) != flat.max() + 1:
        raise CannotFollow(f"a part of {target.layout}, whose elements do not lie one after the other")
    return replace(target, layout=Lay((len(flat),), (1,)))


def _software_copy(f: Recorder, op: Operation, source: Any, target: Any) -> None:
    for what, view in (("read", source), ("write", target)):
        if not isinstance(view, View):
            raise CannotFollow(f"a copy of {op.operand_types[1]}")
        space = view.pointer.space
        if space == "smem":
            f.add(what, op, targets=f.mine(view))
        elif space == "rmem":
            f.add(f"registers {what}", op, name=view.pointer.name)
        elif space == "tmem":
            f.add(f"tensor {what}", op, targets=f.mine(view))
        elif space != "coord":
            f.add("global", op)


@handles("cute.memref.load_vec", "cute.memref.load", "cute.ptr.load")
def _load(f: Recorder, op: Operation, args: list[Any]) -> Any:
    _touch(f, op, args[0], "read")
    return UNKNOWN


@handles("cute.memref.store_vec", "cute.memref.store", "cute.ptr.store")
def _store(f: Recorder, op: Operation, args: list[Any]) -> None:
    _touch(f, op, args[1] if op.name.endswith("_vec") else args[0], "write")


def _touch(f: Recorder, op: Operation, place: Any, what: str) -> None:
    pointer = place.pointer if isinstance(place, View) else place
    if not isinstance(pointer, Pointer):
        raise CannotFollow("an access to a place that is not known")
    if pointer.space == "rmem":
        f.add(f"registers {what}", op, name=pointer.name)
    elif pointer.space == "smem":
        raise CannotFollow("an access to shared memory element by element")
    elif pointer.space not in ("coord",):
        f.add("global", op)


@handles("nvvm.cp.async.bulk.commit.group")
def _bulk_commit(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("store commit", op)


@handles("nvvm.cp.async.bulk.wait_group")
def _bulk_wait(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("store wait", op, count=op.integer("group"), flag=op.has("read"))


# --- wgmma -------------------------------------------------------------------------------------------------------


@handles("nvvm.wgmma.fence.aligned")
def _mma_fence(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("mma fence", op)


@handles("nvvm.wgmma.commit.group.sync.aligned")
def _mma_commit(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("mma commit", op)


@handles("nvvm.wgmma.wait.group.sync.aligned")
def _mma_wait(f: Recorder, op: Operation, args: list[Any]) -> None:
    f.add("mma wait", op, count=op.integer("group"))


@handles("cute.gemm")
def _gemm(f: Recorder, op: Operation, args: list[Any]) -> None:
    text = op.operand_types[0]
    if "sm90" not in text:
        raise CannotFollow(f"an MMA of type {text}")
    target, *operands = args[1:]
    views = [x for x in operands[:2] if isinstance(x, View) and x.pointer.space == "smem"]
    f.add("mma", op, targets=f.mine(*views), name=target.pointer.name)


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
    f.config["kernel"] = re.search(r"callee = @\w+::@(\w+)", op.properties)[1]  # type: ignore[index]
    return UNKNOWN


def launched(module: Module, parameters: list[str], problem: Problem) -> tuple[str, Launch]:
    """The name of the kernel that the host function launches for a problem, and how.

    Args:
        module: what was traced.
        parameters: of the recipe's `gemm`, by name.
        problem: the sizes.
    """
    host = module.find("func.func")[0].regions[0]
    host_warp = Recorder(Place((1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), 0))
    arguments = list(_arguments(parameters, problem))
    if len(arguments) != len(host.arguments):
        raise CannotFollow(f"a host function of {len(host.arguments)} arguments; {len(arguments)} are known")
    values = [_argument(x, text) for x, text in zip(arguments, host.argument_types, strict=True)]
    host_warp.run(host, values)
    found = host_warp.config
    sizes = {key: tuple(int(x) for x in found[key]) for key in ("grid", "cluster", "block")}
    return found["kernel"], Launch(**sizes, arguments=found["arguments"], dependent=bool(found["dependent"]))


def _arguments(parameters: list[str], problem: Problem) -> Iterator[Any]:
    known = {
        "mnk": (problem.m, problem.n, problem.k),
        "strides": (8 * -(-problem.k // 8), 8 * -(-problem.k // 8), 8 * -(-problem.n // 8)),
        "sms": (problem.sms,),
    }
    for name in parameters:
        if name not in ("dtype", "config", "vec"):  # these are known when it compiles
            yield from known.get(name, (UNKNOWN,))


def _argument(value: Any, text: str) -> Any:
    return Pointer(kind(text).space, UNKNOWN) if text.startswith("!cute.ptr") else value


def programs(module: Module, parameters: list[str], problem: Problem, cluster: int = 0) -> Programs:
    """The programs of the warps of one cluster.

    Args:
        module: what was traced.
        parameters: of the recipe's `gemm`, by name.
        problem: the sizes.
        cluster: its number in the grid, along x.

    Raises:
        CannotFollow: the kernel does something that is not followed; the message names it and its line.
    """
    name, launch = launched(module, parameters, problem)
    kernels = [k for k in module.find("cuda.kernel") if f'sym_name = "{name}"' in k.properties]
    body = (kernels or module.find("cuda.kernel"))[0].regions[0]
    warps = -(-int(np.prod(launch.block)) // LANES)
    found = {}
    for rank in range(launch.ctas):
        x, y, z = launch.cluster
        at = (cluster * x + rank % x, rank // x % y, rank // (x * y) % z)
        for warp in range(warps):
            recorder = Recorder(Place(launch.grid, launch.cluster, launch.block, at, warp), launch)
            recorder.run(body, launch.arguments)
            found[rank, warp] = (*recorder.events, Event("exit", 0))
    return Programs(launch, found)


def parameters_of(module: Any) -> list[str]:
    """The names of the parameters of a recipe's `gemm`."""
    return list(inspect.signature(module.gemm).parameters)


assert TABLE  # the handlers above are registered
