"""Records what a warp waits for, signals, reads and writes: an event for each step, with exact bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

import numpy as np

from cookbook.check.pipeline.regions import GRANULE, of_boxes, region, region_at, tensor_region
from cookbook.simulate import types
from cookbook.simulate.judge import Judge
from cookbook.simulate.lines import Line
from cookbook.simulate.raw import MAP_BYTES
from cookbook.simulate.trace import Operation
from cookbook.simulate.values import (
    APART,
    COMPUTED,
    LANES,
    UNKNOWN,
    Atom,
    Box,
    Boxes,
    CannotFollow,
    Lay,
    Pointer,
    View,
    base_of,
    leaves,
)
from cookbook.simulate.warp import Barrier, Place, Shared, Waits
from cookbook.swizzle import Swizzle

Target = tuple[int, int]  # rank of the CTA, and granules of its shared memory as bits
NO_CTA = -1  # in place of the rank: global memory
DATA = -(1 << 62)  # in a register: what is not followed
WORDS = ("sums", "flags")  # arguments by which CTAs of a launch tell one another something
BARRIER_BYTES = 8
ANSWER = "answer"  # of clusterlaunchcontrol


@dataclass(frozen=True)
class Event:
    """One step of a warp. `what` says which of the other fields mean something; see `machine.Machine`'s methods."""

    what: str
    line: Line  # of the recipe's file
    barrier: Barrier | None = None
    count: int = 0  # arrivals, the parity waited for, threads of a named barrier, groups that may stay in flight, lanes
    # that read or write, each by itself
    bytes: int = 0  # expected by an arrival, or brought by a copy to each of its targets
    number: int = 0  # of a named barrier; of a tensor map in memory, from 1 on
    targets: tuple[Target, ...] = ()
    tensor: tuple[Target, ...] = ()  # the same of tensor memory
    barriers: tuple[Barrier, ...] = ()  # one for each target of a copy
    name: str = ""  # of an array of registers, or of a tensor in global memory; "" where that is not known
    flag: bool = False  # of a load: it reads nothing that the kernel before may write; of a store wait: `.read`; of an
    # arrival: of scope .cta, at another CTA's barrier; of an MMA: it reads tensor memory
    swizzle: str = ""  # with which it reads or writes shared memory; "" where that is not known
    guesses: tuple[tuple[int, int], ...] = ()  # sides of an `if` that data decide: two of one `if` exclude each other
    lanes: int = LANES  # that execute it
    operation: int = 0  # of the trace: the same in each round of a loop


APART_FROM = ("targets", "tensor", "line", "operation")
_SAME = attrgetter(*(each.name for each in fields(Event) if each.name not in APART_FROM))
MERGED = ("read", "write", "words read", "words write", "async copy", "mma", "tensor mma", "tensor read")


@dataclass
class Names(Shared):
    """Names of matrices in global memory by number, which the warps of a launch share."""

    names: dict[int, str] = field(default_factory=dict)
    numbers: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)  # bits, and integers by their places


class Recorder(Judge):
    """Follows one warp, without its data, and records its events. No wait holds it up: waits give no data."""

    shared: Names
    begins = 1 << 10  # bytes: a place with a swizzle begins at a multiple of its period, or of this if that is less

    def __init__(self, place: Place, shared: Names | None = None) -> None:
        super().__init__(place, shared or Names())
        self.events: list[Event] = []
        self.answers = 0  # to requests for another cluster's work that were read

    def add(self, what: str, op: Operation, **fields: Any) -> None:
        """Record an event; neighbours of one kind that touch memory become one."""
        event = Event(what, op.line, guesses=self.guesses, lanes=self.lanes, operation=id(op), **fields)
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
        """Check where TMA or the tensor core begins to read or write: it must suit the swizzle.

        Args:
            swizzle: what TMA was told; None: what the view says is what the hardware is told.
        """
        pointer, own = view.pointer, _swizzle(view)
        if swizzle is not None and (swizzle.bits, own.bits) != (0, 0) and swizzle != own:
            text = f"TMA was given {named_swizzle(swizzle)} for a place that others read or write with "
            self.wrong("swizzle", text + named_swizzle(own), op)
        period = min(own.period, self.begins) if own.bits else 128 if swizzle is not None else 16
        if isinstance(pointer.base, (int, np.integer)) and pointer.base % period:
            text = f"what begins at byte {pointer.base} of shared memory needs a multiple of {period}"
            self.wrong("alignment", f"{text}, for {named_swizzle(own)}", op)

    def mine(self, *views: View, mask: Any = None) -> tuple[Target, ...]:
        """Return what views cover of this CTA's shared memory.

        Raises:
            CannotFollow: another CTA's, or at an address that is not known.
        """
        if any(view.pointer.cta is not None for view in views):
            raise CannotFollow("an access to the shared memory of another CTA")
        total = 0
        for view in views:
            total |= self.inside(view, region(view, self.active, mask))
        return ((self.place.rank, total),)

    def inside(self, view: View, bits: int) -> int:
        """The same bits, which must lie in what was allocated for the view."""
        room = self.room(view.pointer if view.tile is None else view.tile.pointer)
        first, last = GRANULE * ((bits & -bits).bit_length() - 1), GRANULE * bits.bit_length()
        if room and bits and (first < room[0] // GRANULE * GRANULE or last > -(-room[1] // GRANULE) * GRANULE):
            text = f"bytes {first} to {last - 1} of shared memory are touched by what has {room[0]} to {room[1] - 1}"
            self.wrong("bounds", text, self.operation)  # type: ignore[arg-type]
        return bits

    def room(self, pointer: Pointer) -> tuple[int, int] | None:
        """Return where the shared memory begins and ends that may be touched through a pointer; None: not known."""
        if pointer.room is None:
            return None
        first, last = pointer.room
        return first, self.allocated if last is None else last

    def barrier(self, pointer: Any) -> Barrier:
        cta, address = super().barrier(pointer)
        room = self.room(pointer)
        if room and not room[0] <= address <= room[1] - BARRIER_BYTES:
            text = f"a barrier at byte {address} of shared memory is used, outside of bytes {room[0]} to {room[1] - 1}"
            self.wrong("bounds", text, self.operation)  # type: ignore[arg-type]
        return cta, address

    def name_of(self, pointer: Pointer) -> str:
        """Return which argument of the launch a pointer to global memory is of; "" where that is not known."""
        address = pointer.address
        known = isinstance(address, (int, np.integer, np.ndarray))
        return self.shared.names.get(int(np.max(address)) >> APART, "") if known else ""

    def words(self, view: View) -> tuple[Target, ...]:
        """Return what a view covers of memory that CTAs of a launch share: it is no CTA's own."""
        address = np.asarray(view.pointer.address, np.int64) & (1 << APART - 1) - 1
        begins = np.unique(np.broadcast_to(address, LANES)[self.active]).tolist()
        return ((NO_CTA, region_at(tuple(begins), view.layout, view.bits)),)

    # --- registers -----------------------------------------------------------------------------------------------

    def registers(self, count: int, kind: str) -> Any:
        """Integers are followed, for predicates are among them."""
        return None if types.is_float(kind) else np.full((LANES, count), DATA, np.int64)

    def _slots(self, view: View) -> Any:
        pointer = view.pointer
        if pointer.array is None or not isinstance(pointer.address, (int, np.integer)):
            return None
        found = int(pointer.address * 8 // view.bits) + view.offsets()
        return found if found.max() < pointer.array.shape[1] else None  # else parts of registers

    def _held(self, view: View) -> Any:
        """(32, elements), or UNKNOWN."""
        places = self._slots(view)
        found: Any = UNKNOWN if places is None else view.pointer.array[:, places]
        return UNKNOWN if found is UNKNOWN or (found == DATA)[self.active].any() else found

    def _put(self, view: View, value: Any) -> None:
        places, array = self._slots(view), view.pointer.array
        if places is None:
            if array is not None:
                array[self.active] = DATA
            return
        known = isinstance(value, (int, np.integer, np.ndarray))
        found = np.asarray(value if known else DATA, np.int64)
        found = found[:, None] if found.ndim == 1 else found
        everywhere = bool(self.active.all())
        array[:, places] = found if everywhere else np.where(self.active[:, None], found, array[:, places])

    def predicates(self, view: View) -> Any:
        found = self._held(view)
        return found if found is UNKNOWN else found.astype(bool)

    # --- loads, stores and copies --------------------------------------------------------------------------------

    def _touch(self, op: Operation, what: str, view: View, *, mask: Any = None, together: bool = False) -> None:
        """A warp reads or writes: each lane by itself, or `together` by one instruction."""
        pointer, space = view.pointer, view.pointer.space
        if space == "smem":
            lanes = self.lanes if self.lanes > 1 and not together else 0  # each is done when it is
            self.add(what, op, targets=self.mine(view, mask=mask), swizzle=_way(view), count=lanes)
        elif space == "rmem":
            self.add(f"registers {what}", op, name=pointer.name)
        elif space != "coord":
            name = self.name_of(pointer) if space == "gmem" else pointer.name
            if name in WORDS:
                self.add(f"words {what}", op, targets=self.words(view), name=name)
            elif space != "table" or name:
                if what == "write" and self._given(pointer) is not None:
                    raise CannotFollow(f"a store to {name}, whose numbers are given")
                self.add("global", op, name=name, flag=what == "write")

    def load(self, op: Operation, view: View) -> Any:
        self._touch(op, "read", view)
        if view.pointer.space == "rmem":
            return _loaded(op, self._held(view))
        if view.pointer.space == "table":
            return view.pointer.numbers[self.integer(view.pointer.address, "a place in a table") * 8 // view.bits]
        if view.pointer.space == "gmem" and self.name_of(view.pointer) == "flags":
            return 0  # all flags are as the launch found them
        return _loaded(op, self._numbers(view))

    def _given(self, pointer: Pointer) -> tuple[int, np.ndarray] | None:
        """Bits of each, and the integers that a case says to be in a tensor; None if it says none."""
        address = pointer.address
        known = self.shared.numbers and isinstance(address, (int, np.integer, np.ndarray))
        return self.shared.numbers.get(int(np.max(address)) >> APART) if known else None

    def _numbers(self, view: View) -> Any:
        """(32, elements) integers out of global memory, where the case says them; else UNKNOWN."""
        given = self._given(view.pointer) if view.pointer.space == "gmem" else None
        if given is None or given[0] != view.bits:
            return UNKNOWN
        places = (view.addresses() - base_of((int(np.max(view.pointer.address)) >> APART) - 1)) * 8 // view.bits
        places = np.broadcast_to(places, (LANES, places.shape[1]))
        if ((places < 0) | (places >= len(given[1])))[self.active].any():
            return UNKNOWN
        found = given[1][np.clip(places, 0, len(given[1]) - 1)]
        return UNKNOWN if (found == DATA)[self.active].any() else found

    def store(self, op: Operation, view: View, value: Any) -> None:
        self._touch(op, "write", view)
        if view.pointer.space == "rmem":
            self._put(view, value)

    def copy(self, op: Operation, source: View, target: View, bits: int, mask: Any, later: bool) -> None:
        if later:  # where a predicate is false cp.async writes zeros
            self.add("async copy", op, targets=self.mine(target), swizzle=_way(target))
            return
        mask = None if mask is UNKNOWN else mask
        self._touch(op, "read", source, mask=mask)
        self._touch(op, "write", target, mask=mask)
        if target.pointer.space == "rmem":
            self._put(target, self._held(source) if source.pointer.space == "rmem" else self._numbers(source))

    def matrices(
        self, op: Operation, source: View, target: View, stores: bool, matrices: int, transposed: bool
    ) -> None:
        for what, view in (("read", source), ("write", target)):
            self._touch(op, what, view, together=True)

    def uniform(self, view: View) -> View:
        """A view of tensor memory: all lanes have one address."""
        return replace(view, pointer=replace(view.pointer, address=self.same(view.pointer.address)))

    def tensor_copy(self, op: Operation, source: View, target: View, found: Any) -> None:
        """Ends later: what it does to registers, too."""
        register = next((x.pointer.name for x in (source, target) if x.pointer.space == "rmem"), "")
        for what, view in (("read", source), ("write", target)):
            if view.pointer.space == "tmem":
                self.add(
                    f"tensor {what}", op, tensor=((self.place.rank, tensor_region(self.uniform(view))),), name=register
                )

    def copy_scales(self, op: Operation, text: str, source: View, target: View) -> None:
        """A tcgen05.cp is like a tcgen05.mma: it reads shared memory and writes tensor memory later, in order."""
        if self.place.rank and "1 cta" not in text:
            raise CannotFollow("a copy into the tensor memory of a pair of CTAs")
        starts = source.addresses()[0].reshape(-1, ATOM_CHUNKS)[:, 0]
        covers = region_at(tuple(starts.tolist()), Lay(ATOM_BYTES // GRANULE, 1), 8 * GRANULE)
        rank = self.place.rank
        self.add("tensor mma", op, targets=((rank, covers),), tensor=((rank, tensor_region(target)),))

    def tma_load(
        self,
        op: Operation,
        box: Box,
        boxes: Boxes,
        target: View,
        ranks: list[int],
        barriers: list[Barrier],
        rests: bool,
    ) -> None:
        self.for_hardware(target, op, box.swizzle)
        covers, amount = of_boxes(box, boxes)
        self.inside(target, covers)
        targets, name = tuple((rank, covers) for rank in ranks), self.name_of(box.tensor.pointer)
        way = _way(target, box.swizzle)
        told = {"targets": targets, "barriers": tuple(barriers), "bytes": amount}
        self.add("load", op, **told, flag=rests, swizzle=way, name=name, number=box.number)

    def tma_store(self, op: Operation, box: Box, boxes: Boxes, source: View) -> None:
        self.for_hardware(source, op, box.swizzle)
        targets = ((self.place.rank, self.inside(source, of_boxes(box, boxes)[0])),)
        name, way = self.name_of(box.tensor.pointer), _way(source, box.swizzle)
        self.add("store", op, targets=targets, swizzle=way, name=name, number=box.number)

    def tensor_map(self, op: Operation, what: str, pointer: Pointer, number: int) -> None:
        if pointer.space == "smem":
            words = View(
                replace(pointer, address=self.same(pointer.address)), Lay(MAP_BYTES // GRANULE, 1), 8 * GRANULE
            )
            self.add(what, op, targets=self.mine(words))
        else:
            self.add(f"map {what}", op, number=number, name=self.name_of(pointer))

    def store_to_cluster(self, op: Operation, source: View, target: View, cta: int, barrier: Barrier) -> None:
        """st.async: each lane's registers go to a CTA of the cluster, and its bytes are told to a barrier there."""
        self.add("registers read", op, name=source.pointer.name)
        amount = target.layout.size * target.bits // 8 * self.lanes
        targets = ((cta, self.inside(target, region(target, self.active))),)
        self.add("load", op, targets=targets, barriers=(barrier,), bytes=amount, flag=True)

    # --- barriers and order --------------------------------------------------------------------------------------

    def init(self, op: Operation, barrier: Barrier, count: int) -> None:
        self.add("init", op, barrier=barrier, count=count)

    def look(self, op: Operation, barrier: Barrier, parity: int) -> int:
        """The answer taken is "not yet"."""
        self.add("look", op, barrier=barrier, count=parity)
        return 0

    def wait(self, op: Operation, barrier: Barrier, parity: int) -> Waits:
        self.add("wait", op, barrier=barrier, count=parity)
        yield from ()

    def arrive(self, op: Operation, what: str, barrier: Barrier, count: int, bytes: int, narrow: bool = False) -> None:
        self.add(what, op, barrier=barrier, count=count, bytes=bytes, flag=narrow)

    def meet(self, op: Operation, number: int, threads: int, waits: bool) -> Waits:
        self.add("meet" if waits else "come", op, number=number, count=threads)
        yield from ()

    def cluster(self, op: Operation, what: str, relaxed: bool) -> Waits:
        self.add(what, op, flag=relaxed)
        yield from ()

    def order(self, op: Operation, what: str, count: int = 0, flag: bool = False) -> None:
        self.add(what, op, count=count, flag=flag)

    def flag(self, op: Operation, what: str, place: View, value: Any) -> Waits:
        for lane in np.flatnonzero(self.active):
            address = np.broadcast_to(place.pointer.address, LANES)[lane]
            one = replace(place, pointer=replace(place.pointer, address=int(address)))
            count = self.integer(value[lane] if isinstance(value, np.ndarray) else value, "the value of a flag")
            self.add(what, op, targets=self.words(one), name=self.name_of(one.pointer), count=count)
        yield from ()

    def has_asked(self, loads: bool) -> bool:
        asked = "tensor read" if loads else "tensor write"
        told = (event.what for event in reversed(self.events) if event.what == asked or _waits(event, loads))
        return next(told, "") == asked

    # --- MMAs ----------------------------------------------------------------------------------------------------

    def mma_sync(self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View]) -> None:
        self.add("registers write", op, name=target.pointer.name)

    def multiply_add(self, op: Operation, target: View) -> None:
        self.add("registers write", op, name=target.pointer.name)

    def _operands(self, op: Operation, operands: tuple[View, View]) -> list[View]:
        """Return those in shared memory."""
        views = [view for view in operands if view.pointer.space == "smem"]
        for view in views:
            self.for_hardware(view, op)
        return views

    def wgmma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool
    ) -> None:
        views = self._operands(op, operands)
        self.add("mma", op, targets=self.mine(*views), name=target.pointer.name, swizzle=_ways(views))

    def tcgen05_mma(
        self, op: Operation, text: str, shape: Any, target: View, operands: tuple[View, View], adds: bool, atom: Any
    ) -> None:
        views = self._operands(op, operands)
        if operands[0].pointer.space == "tmem" and len(views) == 1 and "num_cta = 2" not in text:
            self.tensor_core(op, views, [self.uniform(operands[0])], target, False)
            return
        if len(views) != 2:
            raise CannotFollow(f"an MMA of type {text}")
        ((rank, covers),) = self.mine(*views)
        ranks = (rank, rank ^ 1) if "num_cta = 2" in text else (rank,)  # a pair's operands and sums lie in both alike
        targets, tensor = (tuple((r, what) for r in ranks) for what in (covers, tensor_region(target)))
        self.add("tensor mma", op, targets=targets, tensor=tensor, swizzle=_ways(views))
        if "mma_bs" in text:
            self._scales(op, atom, target)

    def tensor_core(self, op: Operation, reads: list[View], taken: list[View], writes: View, pair: bool) -> None:
        """It reads and writes later, in order: what it takes of tensor memory in an event of its own."""
        rank = self.place.rank
        ranks = (rank, rank ^ 1) if pair else (rank,)
        ((_, covers),) = self.mine(*reads)

        def of_all(what: int) -> tuple[Target, ...]:
            return tuple((each, what) for each in ranks)

        for view in taken:
            self.add("tensor mma", op, tensor=of_all(tensor_region(view)), flag=True)
        told = {"targets": of_all(covers), "tensor": of_all(tensor_region(writes))}
        self.add("tensor mma", op, **told, swizzle=_ways(reads))

    def _scales(self, op: Operation, atom: Atom, target: View) -> None:
        """An MMA reads the cells that its scale factors begin in too: of as many columns as rows of 32."""
        rows, columns = (int(np.prod(list(leaves(x)))) for x in target.layout.modes[0].shape)
        for name, extent in (("sf_a", rows), ("sf_b", columns)):
            first = atom.values.get(name)
            if not isinstance(first, Pointer) or not isinstance(first.address, (int, np.integer)):
                raise CannotFollow(f"scale factors at {first}")
            layout = Lay((128, extent // 32), (1 << 16, 1))
            cells = View(Pointer("tmem", first.address // 4 * 4), layout, 32)
            rank = self.place.rank
            self.add("tensor mma", op, targets=((rank, 0),), tensor=((rank, tensor_region(cells)),))

    # --- tensor memory -------------------------------------------------------------------------------------------

    def tensor_alloc(self, op: Operation, columns: int, pointer: Pointer, pair: bool) -> None:
        word = self.mine(View(pointer, Lay(1, 0), 32))
        self.add("tensor alloc", op, count=columns, targets=word, tensor=self._columns(columns), flag=pair)

    def tensor_free(self, op: Operation, columns: int, pair: bool) -> None:
        self.add("tensor free", op, count=columns, tensor=self._columns(columns), flag=pair)

    def tensor_pointer(self, op: Operation, pointer: Pointer) -> None:
        self.add("read", op, targets=self.mine(View(pointer, Lay(1, 0), 32)))

    def tensor_commit(self, op: Operation, barriers: list[Barrier], lanes: int) -> None:
        self.add("tensor commit", op, barriers=tuple(barriers), count=lanes)

    def _columns(self, columns: int) -> tuple[Target, ...]:
        view = View(Pointer("tmem", 0), Lay((128, columns), (1 << 16, 1)), 32)
        return ((self.place.rank, tensor_region(view)),)

    # --- work of other clusters ----------------------------------------------------------------------------------

    def ask(self, op: Operation, place: View, barriers: list[Barrier]) -> None:
        covers = region(place, self.active)
        targets = tuple((rank, covers) for rank, _ in barriers)
        amount = place.bits // 8
        self.add("load", op, targets=targets, barriers=tuple(barriers), bytes=amount, flag=True, name=ANSWER)

    def granted(self, answer: Any) -> bool:
        """One outcome is followed: the cluster at hand is given every one that comes after it, then is told no.

        What it waits for and signals is the same whichever it is given. How often it goes round is not: the first
        cluster of a grid does so for all of the work, the last once.
        """
        self.answers += 1
        return self.taken_over(answer)[0] < self.place.grid[0]

    def taken_over(self, answer: Any) -> tuple[int, int, int]:
        wide = self.place.cluster[0]
        return (self.place.cta[0] // wide + self.answers) * wide, 0, 0


ATOM_BYTES, ATOM_CHUNKS = 512, 128  # what tcgen05.cp.32x128b reads, and a view's chunks that stand for it


def named_swizzle(swizzle: Swizzle) -> str:
    """A swizzle in words: "the swizzle S<3,4,3>"."""
    return f"the swizzle S<{swizzle.bits},{swizzle.base},{swizzle.shift}>" if swizzle.bits else "no swizzle"


def _swizzle(view: View) -> Swizzle:
    """Find the swizzle that a view of matrix descriptors describes."""
    return view.tile.swizzle if view.tile is not None else view.swizzle


def _loaded(op: Operation, found: Any) -> Any:
    """What a load leaves of (32, elements): of one element, a value for each lane."""
    return found[:, 0] if found is not UNKNOWN and not op.result_types[0].startswith("vector<") else found


def _waits(event: Event, loads: bool) -> bool:
    return event.what == "tensor wait" and event.flag == loads


def _way(view: View, swizzle: Swizzle | None = None) -> str:
    """The swizzle of an access: the hardware's own if given, else the view's; "" of an address that is computed."""
    return "" if view.pointer.name == COMPUTED else named_swizzle(swizzle or _swizzle(view))


def _ways(views: list[View]) -> str:
    """The swizzle of all of several views; "" if they differ."""
    found = {_way(view) for view in views}
    return found.pop() if len(found) == 1 else ""


def _union(a: tuple[Target, ...], b: tuple[Target, ...]) -> tuple[Target, ...]:
    mine, theirs = dict(a), dict(b)
    return tuple((cta, mine.get(cta, 0) | theirs.get(cta, 0)) for cta in {**mine, **theirs})
