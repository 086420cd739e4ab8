"""Run a cluster's warps against one another: barriers with phases, copies and MMAs that end later, shared memory.

One run in one order, with a vector clock in each warp, decides for *all* orders. A clock has a component for each
warp, and one for each thing that ends later: a phase of a barrier, a group of wgmmas, a group of stores.
`clock[c] >= n` says: the n-th of `c` is over, whatever the order. Three rules about each barrier, one about memory:

* whoever waits for phase k knows that phase k - 1 is over (or a wait by parity could pass two phases early), and
  phase k + 1 cannot end before the wait has passed (or the wait would not see phase k's end any more);
* whoever arrives in phase k knows that phase k - 1 is over (or the arrival could count in an earlier phase);
* a phase has exactly the arrivals and bytes that it needs;
* of two accesses to the same bytes, one of them a write, the later one's warp knows that the earlier one is over.

If the rules hold in one order, no other order can differ from it but in the order of steps that have nothing to do with
each other: the first step that differed would have had to break a rule. See docs/pipelines.md. Semantics are those of
the PTX ISA: mbarrier (phase, pending count, tx-count), cp.async.bulk, wgmma, tcgen05, barrier, barrier.cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cookbook.check.pipeline.programs import Event, Programs
from cookbook.check.pipeline.recorder import NO_CTA
from cookbook.check.pipeline.regions import COLUMNS
from cookbook.simulate.values import LANES
from cookbook.simulate.warp import Barrier

Warp = tuple[int, int]  # rank of the CTA, number of the warp
Step = tuple[Warp, int]  # a warp and the place of an event in its program, from 1 on
# Steps after which all lanes have done what they did before: barriers, and instructions of the whole warp (.aligned).
TOGETHER = ("warp sync", "meet", "come", "cluster arrive", "exit", "mma fence", "mma", "mma commit", "mma wait")
TOGETHER += ("tensor read", "tensor write", "tensor wait")
MAPS = ("maps", NO_CTA)  # in place of a CTA's memory: tensor maps in memory, a bit each
NAMED_BARRIERS = 16  # of a CTA
REGISTER_FILE, MOST_REGISTERS = 65536, 255  # of an SM; of a thread
QUARTER = 32  # lanes of tensor memory that one warp reaches: those of its number, counted round the warpgroup
QUARTERS = tuple(((1 << QUARTER * COLUMNS) - 1) << n * QUARTER * COLUMNS for n in range(4))  # `tensor_region`'s bits


@dataclass(frozen=True)
class Fault:
    """A rule that does not hold."""

    rule: str  # a short name
    text: str
    at: Step | None = None  # where it was seen
    other: Step | None = None  # what `at` is not ordered after
    order: tuple[Step, ...] = ()  # an order of steps that leads there

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


@dataclass
class MBarrier:
    """A barrier in shared memory: PTX ISA, "mbarrier"."""

    count: int  # arrivals that a phase needs
    component: int
    made: Step
    pending: int = 0
    bytes: int = 0  # expected and not come
    phase: int = 0  # the one that is not over
    clock: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    over: list[np.ndarray] = field(default_factory=list)  # a clock for each phase that is over
    waits: dict[int, list[Step]] = field(default_factory=lambda: defaultdict(list))  # by the phase waited for
    copied: set[int] = field(default_factory=set)  # phases that wait for bytes, too
    brought: int = -1  # the last phase that got bytes


@dataclass
class NamedBarrier:
    """One of a CTA's sixteen, or the cluster's: PTX ISA, "barrier"."""

    component: int
    generation: int = 0
    threads: int = 0  # that have come
    needed: int = 0
    clock: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    over: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True)
class Access:
    """The last access of one kind to a piece of memory."""

    step: Step
    ends: int  # the component that knows its end
    value: int  # and from which value on
    write: bool
    generic: bool  # by ordinary loads and stores, not by TMA or the tensor core
    published: int = -1  # of tcgen05: the component that knows that its warp has fenced it, for other warps


Accesses = dict[tuple[int, bool], Access]  # by what knows their end, and whether they write: the last ones
Near = tuple[Accesses, list[Accesses]]


class Machine:
    """Runs the programs of one cluster, or of all, in one order and collects the faults.

    documented: of `tcgen05` what the PTX ISA asks for must hold. NVIDIA's own GEMMs for Blackwell have no
    `tcgen05.fence`, and no `tcgen05.wait::ld` before registers are read. If it is false, a barrier orders what a fence
    would, and whoever reads registers has waited for what fills them. Nor have those of its GEMMs that fill shared
    memory by cp.async a proxy fence before tcgen05 reads it. A group of wgmmas ends for the four warps of a
    warpgroup at once: NVIDIA's attention writes where the others' operands lay. Arrivals that nobody waits for may be
    left at a barrier when the CTA ends, and so may bytes that it was told of and nobody loads: QuACK's ping-pong leaves
    those of its last tile, and FlashAttention's producer acquires a stage at its end. Whoever knows of
    all arrivals of a phase that no bytes hold up knows that it is over, and need not wait: an example of NVIDIA's.
    before: the tensors that the launches before may read, and those that they may write; None: they may write any.
    """

    def __init__(
        self,
        programs: Programs,
        most: int = 3,
        documented: bool = True,
        before: tuple[set[str], set[str]] | None = None,
    ) -> None:
        self.programs = programs
        self.before = before
        self.documented = documented
        self.most = most  # faults to collect
        self.warps = list(programs.warps)
        self.number = {warp: n for n, warp in enumerate(self.warps)}
        self.components: dict[Any, int] = {("warp", warp): n for n, warp in enumerate(self.warps)}
        for warp in self.warps:
            self._component(("fenced", warp))
        self._reserve()
        self.maps: dict[int, Access] = {}  # by tensor map in memory: its last write
        self.map_reads: dict[int, list[list[Access]]] = defaultdict(list)  # of those since, each by what knows its end
        self.lanes = {warp: self.components[key] for warp in self.warps if (key := ("lanes", warp)) in self.components}
        self.in_order = {n for key, n in self.components.items() if key[0] in ("wgmma done", "tensor done")}
        size = len(self.components)
        self.clocks = {warp: np.zeros(size, np.int32) for warp in self.warps}
        self.at = dict.fromkeys(self.warps, 0)
        self.barriers: dict[Barrier, MBarrier] = {}
        self.named: dict[Any, NamedBarrier] = {}
        self.memory: dict[Any, dict[int, Accesses]] = defaultdict(dict)
        self.counters: dict[tuple[str, Warp], int] = defaultdict(int)
        self.committed: dict[Warp, list[int]] = defaultdict(lambda: [0])  # by group of cp.async: `counters` at its end
        self.groups: dict[Warp, list[np.ndarray]] = defaultdict(list)  # of wgmma: the clock when each was committed
        self.coming: dict[tuple[Warp, str], tuple[int, int]] = {}  # registers that something writes: when that ends
        self.written: set[tuple[Warp, str]] = set()  # registers, since the last wgmma fence
        self.looked: dict[tuple[Warp, Barrier], np.ndarray] = {}
        self.meeting: dict[tuple[Warp, Any], int] = {}  # the generation of a barrier that a warp waits for
        self.columns: dict[int, int] = {}  # of tensor memory, by CTA: what was allocated
        self.allocated: set[int] = set()  # CTAs that have not freed it
        self.after: dict[Warp, np.ndarray] = {}  # the clock at a warp's last tcgen05.fence::after_thread_sync
        self.granted: set[Warp] = set()  # warps that have executed griddepcontrol.wait
        self.fences: dict[Warp, np.ndarray] = {}  # the clock at a warp's last fence of barriers
        self.arrivals_from_afar: list[tuple[int, Step]] = []  # (CTA, step)
        self.exited: dict[Warp, np.ndarray] = {}
        self.ways: dict[Any, dict[str, int]] = defaultdict(dict)  # by swizzle: what was last written with it
        self.registers: dict[Warp, int] = {}  # of a thread of a warp
        self.free: dict[int, int] = defaultdict(int)  # registers that warps of a CTA gave back
        self.budgets = {warp: _budgets(events) for warp, events in programs.warps.items()}
        self.filled: set[tuple[str, Warp, int]] = set()  # groups that are not empty
        self.stalls: dict[tuple[str, int, int], dict[Warp, int]] = {}  # by wait, line, groups that it leaves: how often
        self.gone: set[int] = set()  # CTAs all of whose warps have ended
        self.released: dict[int, list[tuple[int, np.ndarray]]] = defaultdict(list)  # by flag: values, and the clocks
        self.trace: list[Step] = []
        self.known: dict[Step, np.ndarray] = {}
        self.faults: list[Fault] = []
        self.told: set[Any] = set()  # rules, and the lines that each was broken at
        self.near: dict[Any, dict[int, Near]] = defaultdict(dict)  # by space and identity of its bits: see `_near`
        self.lists: dict[Any, dict[int, list[Accesses]]] = defaultdict(dict)

    # --- components ----------------------------------------------------------------------------------------------

    def _component(self, key: Any) -> int:
        return self.components.setdefault(key, len(self.components))

    def _reserve(self) -> None:
        """A component for everything that the programs name."""
        for warp, events in self.programs.warps.items():
            for event in events:
                if event.what == "init":
                    self._component(("phases", event.barrier))
                elif event.what in ("come", "meet"):
                    self._component(("generations", (warp[0], event.number)))
                elif event.what in ("read", "write") and event.count:
                    self._component(("lanes", warp))
                elif event.what in ("tensor alloc", "tensor free"):
                    self._component(("generations", ("pair", warp[0] // 2, event.what)))
                elif event.what == "load" and event.number:
                    self._component(("store done", warp))
                elif event.what in ("map write", "map acquire"):
                    self._of_map(event.number)
                elif event.what in AGENTS:
                    self._component((f"{AGENTS[event.what]} done", warp))
                    self._component((f"{AGENTS[event.what]} published", warp))
        for cluster in range(self.programs.clusters):
            self._component(("generations", ("cluster", cluster)))

    def _of_map(self, number: int) -> np.ndarray:
        """For each warp, the component that knows to where its writes of a tensor map are acquired; 0: are released."""
        if ("map", 0, self.warps[0]) not in self.components and number:
            self._of_map(0)
        return np.array([self._component(("map", number, warp)) for warp in self.warps])

    # --- running -------------------------------------------------------------------------------------------------

    def run(self, order: Callable[[list[Warp]], Sequence[Warp]] = lambda warps: warps) -> list[Fault]:
        """Run until all warps have ended, none can go on, or there are faults enough; the faults.

        `order` says which warps go first, each as far as it can, in every round.
        """
        moved = True
        while moved and len(self.faults) < self.most:
            moved = False
            for warp in order(self.warps):
                while len(self.faults) < self.most and self._advance(warp):
                    moved = True
        if not self.faults and not self._stuck():
            self._ended()
        if any(_is_narrow(event) for events in self.programs.warps.values() for event in events):
            self.faults += Scoped(self).run(order)
        return self.faults

    def event(self, step: Step) -> Event:
        """The event of a step."""
        warp, index = step
        return self.programs.warps[warp][index - 1]

    def _advance(self, warp: Warp) -> bool:
        """One step of a warp, if it can go on."""
        program = self.programs.warps[warp]
        if self.at[warp] >= len(program):
            return False
        event = program[self.at[warp]]
        step = (warp, self.at[warp] + 1)
        clock = self.clocks[warp]
        before = clock[self.number[warp]]
        clock[self.number[warp]] = step[1]
        each = event.what in ("arrive", "async arrive") and event.count >= LANES  # each lane tells of its own
        if warp in self.lanes and (event.what in TOGETHER or each):
            clock[self.lanes[warp]] = step[1]
        if STEPS[event.what](self, event, step, clock) is False:
            clock[self.number[warp]] = before
            return False
        self.at[warp] += 1
        self.trace.append(step)
        self.known[step] = clock.copy()
        return True

    def fault(self, rule: str, text: str, at: Step, other: Step | None = None, knows: np.ndarray | None = None) -> None:
        """Note a fault, with an order of steps in which `at` comes as early as it may; of a rule at two lines, one."""
        lines = [self.event(one).line for one in (at, other) if one is not None]
        both = rule, tuple((int(line), getattr(line, "file", "")) for line in lines)
        if both in self.told:
            return
        self.told.add(both)
        knows = self.clocks[at[0]] if knows is None else knows
        past = [step for step in self.trace if step[1] <= knows[self.number[step[0]]] and step != at]
        self.faults.append(Fault(rule, text, at, other, (*past, at)))

    # --- barriers in shared memory -------------------------------------------------------------------------------

    def init(self, event: Event, step: Step, clock: np.ndarray) -> None:
        component = self.components["phases", event.barrier]
        if event.barrier in self.barriers:
            self.fault("barrier", f"{said(event.barrier)} is initialised a second time", step)
        made = MBarrier(event.count, component, step, pending=event.count)
        made.clock = np.zeros(len(self.components), np.int32)
        self.barriers[event.barrier] = made  # type: ignore[index]

    def fence_of_barriers(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.fences[step[0]] = clock.copy()

    def _barrier(self, where: Barrier, step: Step, clock: np.ndarray, far: bool) -> MBarrier | None:
        """The barrier, if it is there in every order; `far`: for TMA, the tensor core or another CTA."""
        barrier = self.barriers.get(where)
        if barrier is None:
            self.fault("barrier", f"{said(where)} is used before it is initialised", step)
            return None
        if where[0] in self.gone:
            self.fault("exit", f"CTA {where[0]} may end before {self.who(step)} signals a barrier of it", step)
            return None
        warp, made = barrier.made
        known = clock[self.number[warp]]
        if known < made:
            self.fault("barrier", f"{said(where)} may be used before it is initialised", step, barrier.made)
        elif far and (warp not in self.fences or known < max(made, self.fences[warp][self.number[warp]])):
            self.fault("barrier", f"no fence makes the initialised {said(where)} visible to all", step, barrier.made)
        return barrier

    def arrive(self, event: Event, step: Step, clock: np.ndarray) -> None:
        far = event.barrier[0] != step[0][0]  # type: ignore[index]
        if far:
            self.arrivals_from_afar.append((event.barrier[0], step))  # type: ignore[index]
        self._arrive(event.barrier, event.count, event.bytes, step, clock, far)  # type: ignore[arg-type]

    def _tells(self, step: Step, clock: np.ndarray) -> np.ndarray:
        """Return what a barrier learns of an arrival."""
        return clock

    def _arrive(self, where: Barrier, count: int, amount: int, step: Step, clock: np.ndarray, far: bool) -> None:
        barrier = self._barrier(where, step, clock, far)
        if barrier is None:
            return
        self._in_phase(barrier, where, step, clock, "arrival")
        if count > barrier.pending:
            text = f"{said(where)} gets {count} arrivals when its phase {barrier.phase} needs {barrier.pending} more"
            self.fault("arrivals", f"{text} of {barrier.count}", step)
            return
        barrier.pending -= count
        barrier.bytes += amount
        barrier.copied |= {barrier.phase} if amount else set()
        np.maximum(barrier.clock, self._tells(step, clock), out=barrier.clock)
        self._complete(barrier, where, step)

    def _in_phase(self, barrier: MBarrier, where: Barrier, step: Step, clock: np.ndarray, what: str) -> None:
        """Whoever adds to phase k must know that phase k - 1 is over."""
        if not self._is_over(barrier, barrier.phase, clock):
            text = f"an {what} at {said(where)} meant for its phase {barrier.phase} may count in an earlier one"
            self.fault("early arrival", text, step)

    def _is_over(self, barrier: MBarrier, phases: int, clock: np.ndarray) -> bool:
        """Return whether a clock knows that this number of phases is over: from a wait, or of all arrivals of the last
        one."""
        if self.documented or clock[barrier.component] >= phases:
            return bool(clock[barrier.component] >= phases)
        lacks = clock < barrier.over[phases - 1]
        lacks[barrier.component] = False
        return phases - 1 not in barrier.copied and not lacks.any()

    def _complete(self, barrier: MBarrier, where: Barrier, step: Step) -> None:
        if barrier.pending or barrier.bytes:
            return
        over = barrier.clock.copy()
        over[barrier.component] = barrier.phase + 1
        for wait in barrier.waits.pop(barrier.phase - 1, ()):
            if over[self.number[wait[0]]] < wait[1]:
                text = f"phase {barrier.phase} of {said(where)} may end before a wait for phase {barrier.phase - 1} "
                self.fault("late wait", text + "has seen that one's end", step, wait, over)
        barrier.over.append(over)
        barrier.phase += 1
        barrier.pending = barrier.count
        barrier.clock = np.zeros(len(self.components), np.int32)

    def expect(self, event: Event, step: Step, clock: np.ndarray) -> None:
        barrier = self._barrier(event.barrier, step, clock, False)  # type: ignore[arg-type]
        if barrier is not None:
            self._in_phase(barrier, event.barrier, step, clock, "expectation")  # type: ignore[arg-type]
            barrier.bytes += event.bytes
            barrier.copied.add(barrier.phase)
            np.maximum(barrier.clock, clock, out=barrier.clock)

    def look(self, event: Event, step: Step, clock: np.ndarray) -> None:
        if self._barrier(event.barrier, step, clock, False) is not None:  # type: ignore[arg-type]
            self.looked[step[0], event.barrier] = clock.copy()  # type: ignore[index]

    def wait(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        where: Barrier = event.barrier  # type: ignore[assignment]
        if where not in self.barriers:
            return False  # another warp may still initialise it; if none does, `_stuck` says so
        barrier = self.barriers[where]
        if barrier.phase % 2 == event.count:
            return False
        self._barrier(where, step, clock, False)
        waited = barrier.phase - 1
        looked = self.looked.pop((step[0], where), clock)
        if not all(self._is_over(barrier, waited, known) for known in (clock, looked)):
            text = f"a wait for phase {waited} of {said(where)} may pass when not even phase {waited - 1} is over"
            self.fault("early wait", text, step)
        barrier.waits[waited].append(step)
        if waited >= 0:
            np.maximum(clock, barrier.over[waited], out=clock)
        return None

    # --- barriers of a CTA and of the cluster --------------------------------------------------------------------

    def _named(self, key: Any) -> NamedBarrier:
        if key not in self.named:
            made = NamedBarrier(self.components["generations", key])
            made.clock = np.zeros(len(self.components), np.int32)
            self.named[key] = made
        return self.named[key]

    def _come(self, key: Any, needed: int, step: Step, clock: np.ndarray, tells: np.ndarray | None = None) -> None:
        barrier, name = self._named(key), called(key)
        if barrier.threads and barrier.needed != needed:
            self.fault("named barrier", f"{name} is met by {barrier.needed} threads and by {needed}", step)
        if clock[barrier.component] < barrier.generation:
            text = f"a warp that comes to {name} the {ordinal(barrier.generation + 1)} time may count in an earlier one"
            self.fault("named barrier", text, step)
        barrier.needed = needed
        barrier.threads += 32
        np.maximum(barrier.clock, clock if tells is None else tells, out=barrier.clock)
        if barrier.threads > needed:
            self.fault("named barrier", f"{barrier.threads} threads come to {name}, which is for {needed}", step)
        if barrier.threads >= needed:
            over = barrier.clock.copy()
            barrier.generation += 1
            over[barrier.component] = barrier.generation
            barrier.over.append(over)
            barrier.threads = 0
            barrier.clock = np.zeros(len(self.components), np.int32)

    def _known_number(self, event: Event, step: Step) -> None:
        if not 0 <= event.number < NAMED_BARRIERS:
            text = f"barrier {event.number} is used: a CTA has those from 0 to {NAMED_BARRIERS - 1}"
            self.fault("named barrier", text, step)
        if event.count <= 0 or event.count % 32:
            text = f"barrier {event.number} is for {event.count} threads: needed whole warps of 32"
            self.fault("named barrier", text, step)

    def come(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._known_number(event, step)
        self._come((step[0][0], event.number), event.count, step, clock)

    def meet(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        key = (step[0][0], event.number)
        if (step[0], key) not in self.meeting:
            self._known_number(event, step)
        return self._meet(key, event.count, step, clock)

    def _meet(self, key: Any, needed: int, step: Step, clock: np.ndarray) -> bool | None:
        """Come to a barrier, if the warp has not yet, and wait for its round to be over."""
        if (step[0], key) not in self.meeting:
            self.meeting[step[0], key] = self._named(key).generation
            self._come(key, needed, step, clock)
        return self._met(key, step, clock)

    def _met(self, key: Any, step: Step, clock: np.ndarray) -> bool | None:
        barrier, mine = self._named(key), self.meeting[step[0], key]
        if barrier.generation <= mine:
            return False
        np.maximum(clock, barrier.over[mine], out=clock)
        del self.meeting[step[0], key]
        return None

    def cluster_arrive(self, event: Event, step: Step, clock: np.ndarray) -> None:
        key, warps = self._cluster(step), len(self.warps) // self.programs.clusters
        if (step[0], key) in self.meeting:
            self.fault("cluster barrier", "a warp arrives twice and does not wait", step)
        self.meeting[step[0], key] = self._named(key).generation
        self._come(key, 32 * warps, step, clock, self._released(event, step, clock))

    def _cluster(self, step: Step) -> tuple[str, int]:
        """The key of the barrier of a warp's cluster."""
        return "cluster", step[0][0] // self.programs.launch.ctas

    def _released(self, event: Event, step: Step, clock: np.ndarray) -> np.ndarray:
        """Return what the others learn of an arrival: with `.relaxed`, which orders no memory, what was fenced before
        it."""
        return self.fences.get(step[0], np.zeros_like(clock)) if event.flag else clock

    def cluster_wait(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        key = self._cluster(step)
        if (step[0], key) not in self.meeting:
            self.fault("cluster barrier", "a warp waits where it has not arrived", step)
            return None
        return self._met(key, step, clock)

    # --- memory --------------------------------------------------------------------------------------------------

    def touch(self, space: Any, bits: int, access: Access, clock: np.ndarray) -> None:
        """An access; every earlier one that it must come after has to be over in every order."""
        cta = space[1] if isinstance(space, tuple) else space
        if not isinstance(space, tuple):
            self._same_way(space, bits, access)
        if cta in self.gone:
            self.fault("exit", f"CTA {cta} may end before {self.who(access.step)} touches its memory", access.step)
            return
        mine, near = self._near(space, bits)
        for earlier in near:
            for last in earlier.values():
                if (access.write or last.write) and not self._after(access, last, clock):
                    if self._either(access, last):
                        continue
                    self._race(space, access, last)
                    return
        mine[access.ends, access.write] = access

    def _same_way(self, space: Any, bits: int, access: Access) -> None:
        """Ask that what was written last with one swizzle is read with the same."""
        mine, ways = self.event(access.step).swizzle, self.ways[space]
        if access.write:
            for other in ways:
                ways[other] &= ~bits
            ways[mine] = ways.get(mine, 0) | bits
            return
        for other, theirs in ways.items():
            if mine and other and mine != other and theirs & bits:
                text = f"{self.who(access.step)} reads with {mine} what was written with {other}"
                self.fault("swizzle", text, access.step)

    def _either(self, access: Access, last: Access) -> bool:
        """Return whether one warp does one or the other: data decide which, and both were followed."""
        mine, theirs = dict(self.event(access.step).guesses), dict(self.event(last.step).guesses)
        same = access.step[0] == last.step[0]
        return same and any(theirs.get(number, side) != side for number, side in mine.items())

    def _near(self, space: Any, bits: int) -> Near:
        """The last accesses of exactly these bits, and those of all bits that overlap with them."""
        near, places, lists = self.near[space], self.memory[space], self.lists[space]
        if id(bits) not in near:
            if bits not in places:
                mine: Accesses = {}
                places[bits] = mine
                others = [other for other in places if other & bits]
                lists[bits] = [places[other] for other in others]
                for other in others:
                    if other is not bits:
                        lists[other].append(mine)
            near[id(bits)] = places[bits], lists[bits]
        return near[id(bits)]

    def ordered(self, access: Access, last: Access, clock: np.ndarray) -> bool:
        """Return whether a clock knows of an access what another one needs."""
        return self._after(access, last, clock)

    def _after(self, access: Access, last: Access, clock: np.ndarray) -> bool:
        if last.ends == access.ends and last.ends in self.in_order:
            return True  # the tensor core takes what one warp asks for in order
        own = last.step[0] == access.step[0] and last.ends == self.lanes.get(last.step[0])
        if clock[last.ends] < last.value and not own:
            return False
        answers = self.event(access.step).name == "answer"  # of clusterlaunchcontrol, after one that was read
        crosses = last.generic and not access.generic and not self._needs_no_fence(access, last)
        if crosses and (last.write or answers):
            return clock[self.components["fenced", last.step[0]]] >= last.step[1]
        return not self._unfenced(access, last)

    def _needs_no_fence(self, access: Access, last: Access) -> bool:
        """Return whether tcgen05 reads what cp.async has brought, where NVIDIA's GEMMs have no proxy fence."""
        both = self.event(last.step).what, self.event(access.step).what
        return not self.documented and both == ("async copy", "tensor mma")

    def _unfenced(self, access: Access, last: Access) -> bool:
        """Return whether two tcgen05 instructions of different warps lack a fence: PTX ISA, "tcgen05.fence"."""
        if not self.documented or min(last.published, access.published) < 0 or last.step[0] == access.step[0]:
            return False
        after = self.after.get(access.step[0])
        return after is None or after[last.published] < last.value

    def _race(self, space: Any, access: Access, last: Access) -> None:
        fenced = self.components["fenced", last.step[0]]
        clock = self.clocks[access.step[0]]
        if last.generic and clock[last.ends] >= last.value and clock[fenced] < last.step[1]:
            text = f"{self.who(access.step)} comes after {self.who(last.step)}, but no proxy fence between them"
            self.fault("proxy fence", text, access.step, last.step)
        elif clock[last.ends] >= last.value:
            text = f"{self.who(access.step)} comes after {self.who(last.step)}, but no tcgen05.fence on both sides"
            self.fault("tensor fence", text, access.step, last.step)
        elif last.ends == self.lanes.get(last.step[0]) and clock[self.number[last.step[0]]] >= last.value:
            verb = "written" if last.write else "read"
            text = f"some lanes of {self.who(last.step)} need not have {verb} before {self.who(access.step)}"
            why = "which touches the same bytes: one lane tells of it, with no sync_warp before"
            self.fault("race", f"{text}, {why}", access.step, last.step)
        else:
            comes = last.ends < len(self.warps) or (last.write and last.ends == self.lanes.get(last.step[0]))
            early = "need not come before" if comes else "need not be over before"
            what = "tensor map" if space == MAPS else "bytes"
            first, then = self._time(last.step), self._time(access.step)
            if first == then:  # in one round of a loop, or in none
                first = then = 0
            text = f"{self.who(last.step, first)} {early} {self.who(access.step, then)}, which touches the same {what}"
            self.fault("race", text, access.step, last.step)

    def who(self, step: Step, time: int = 0) -> str:
        """`CTA 0 warp 8 in line 200 (load)`; with `time`, where a line comes again and again: `(load, 2nd time)`."""
        event = self.event(step)
        when = f", {ordinal(time)} time" if time else ""
        return f"CTA {step[0][0]} warp {step[0][1]} in line {event.line} ({event.what}{when})"

    def _time(self, step: Step) -> int:
        """Count how often the step's warp has come to its line to do the same, this time included."""
        event, before = self.event(step), self.programs.warps[step[0]][: step[1]]
        return sum(each.line == event.line and each.what == event.what for each in before)

    def _generic(self, event: Event, step: Step, clock: np.ndarray, write: bool) -> None:
        each = event.what in ("read", "write") and event.count
        ends = self.lanes[step[0]] if each else self.number[step[0]]
        for cta, bits in event.targets:
            access = Access(step, ends, step[1], write, True)
            self.touch(cta, bits, access, clock)

    def read(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._generic(event, step, clock, False)

    def write(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._generic(event, step, clock, True)

    def warp_sync(self, event: Event, step: Step, clock: np.ndarray) -> None:
        """Nothing of its own: see `TOGETHER`."""

    # --- tensor maps in memory -----------------------------------------------------------------------------------

    def map_write(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._global(step)
        made = Access(step, self.number[step[0]], step[1], True, True)
        self.touch(MAPS, 1 << event.number, made, clock)
        self.maps[event.number] = made
        for reads in self.map_reads.pop(event.number, ()):
            if all(clock[read.ends] < read.value for read in reads):
                self._race(MAPS, made, reads[0])

    def map_release(self, event: Event, step: Step, clock: np.ndarray) -> None:
        """PTX ISA, "fence.proxy": what is known so far may be acquired."""
        if ("map", 0, self.warps[0]) in self.components:
            released, n = self._of_map(0), len(self.warps)
            clock[released] = np.maximum(clock[released], clock[:n])

    def map_acquire(self, event: Event, step: Step, clock: np.ndarray) -> None:
        acquired = self._of_map(event.number)
        clock[acquired] = np.maximum(clock[acquired], clock[self._of_map(0)])

    def _by_map(self, event: Event, step: Step, clock: np.ndarray, *ends: tuple[int, int]) -> None:
        """TMA reads a tensor map until its copy is over.

        So says a bulk group, too, that its thread commits after it and waits for: NVIDIA's grouped GEMMs and DeepGEMM
        change maps then, of loads that tell a barrier.

        Args:
            ends: of the copy: the component that knows, and from which value on.
        """
        if not event.number:
            return
        self.touch(MAPS, 1 << event.number, Access(step, self.number[step[0]], step[1], False, True), clock)
        group = self.components["store done", step[0]], self.counters["store", step[0]] + 1
        reads = [Access(step, *end, False, True) for end in (group, *ends)]
        self.map_reads[event.number].append(reads)
        last = self.maps.get(event.number)
        if last is None or clock[last.ends] < last.value:  # the second is a race
            return
        if clock[self._of_map(event.number)[last.ends]] < last.value:
            text = f"{self.who(step)} uses the tensor map that {self.who(last.step)} left there, and not both fences, "
            text += "fence.proxy.tensormap with .release and with .acquire, are between them"
            self.fault("proxy fence", text, step, last.step)

    def fence_of_proxies(self, event: Event, step: Step, clock: np.ndarray) -> None:
        n = len(self.warps)
        np.maximum(clock[n : 2 * n], clock[:n], out=clock[n : 2 * n])

    def load(self, event: Event, step: Step, clock: np.ndarray) -> None:
        if not event.flag:
            self._global(step)
        for (cta, bits), where in zip(event.targets, event.barriers, strict=True):
            barrier = self._barrier(where, step, clock, True)
            if barrier is None:
                return
            self._by_map(event, step, clock, (barrier.component, barrier.phase + 1))
            self.touch(cta, bits, Access(step, barrier.component, barrier.phase + 1, True, False), clock)
            self._in_phase(barrier, where, step, clock, "end of a copy")
            barrier.bytes -= event.bytes
            barrier.copied.add(barrier.phase)
            barrier.brought = barrier.phase
            np.maximum(barrier.clock, clock, out=barrier.clock)
            if barrier.bytes < 0 and not barrier.pending:
                text = f"{said(where)} gets {-barrier.bytes} bytes more than phase {barrier.phase} expects"
                self.fault("bytes", text, step)
                return
            self._complete(barrier, where, step)

    # --- what one warp asks for and waits for itself -------------------------------------------------------------

    def _later(self, agent: str, event: Event, step: Step, clock: np.ndarray, write: bool = False) -> int:
        """An access that ends with the warp's next group; the number of that group."""
        value = self.counters[agent, step[0]] + 1
        self.filled.add((agent, step[0], value))
        ends = self.components[f"{agent} done", step[0]]
        for cta, bits in event.targets:
            self.touch(cta, bits, Access(step, ends, value, agent == "cp.async", agent == "cp.async"), clock)
        published = self.components[f"{agent} published", step[0]]
        for cta, bits in event.tensor:
            self.touch(("tensor", cta), bits, Access(step, ends, value, write, False, published), clock)
        return value

    def _done(self, agent: str, left: int, step: Step, clock: np.ndarray) -> None:
        component = self.components.get((f"{agent} done", step[0]))
        if component is not None:
            newest = self.counters[agent, step[0]] - left  # of the groups that are waited for
            if clock[component] < newest and (agent, step[0], newest) in self.filled:
                event = self.event(step)
                times = self.stalls.setdefault((event.what, event.line, event.count), defaultdict(int))
                times[step[0]] += 1
            clock[component] = max(clock[component], newest)

    def mma(self, event: Event, step: Step, clock: np.ndarray) -> None:
        if (step[0], event.name) in self.written:
            self.fault("wgmma fence", "a wgmma takes registers that were written since the last wgmma.fence", step)
            self.written.discard((step[0], event.name))
        ends = self.components["wgmma done", step[0]]
        self.coming[step[0], event.name] = ends, self._later("wgmma", event, step, clock)

    def mma_commit(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.counters["wgmma", step[0]] += 1
        if not self.documented:
            self.groups[step[0]].append(clock.copy())

    def mma_wait(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        if not self.documented and not self._together_done(event, step, clock):
            return False
        self._done("wgmma", event.count, step, clock)
        return None

    def _together_done(self, event: Event, step: Step, clock: np.ndarray) -> bool:
        """A wgmma is one operation of four warps: it is not over before all have asked for it, nor are its reads."""
        cta, first, newest = step[0][0], step[0][1] // 4 * 4, self.counters["wgmma", step[0]] - event.count
        others = [(cta, first + n) for n in range(4) if ("wgmma done", (cta, first + n)) in self.components]
        if newest <= 0:
            return True
        if any(len(self.groups[other]) < newest for other in others):
            return False
        for other in others:
            np.maximum(clock, self.groups[other][newest - 1], out=clock)
            ends = self.components["wgmma done", other]
            clock[ends] = max(clock[ends], newest)
        return True

    def mma_fence(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.written = {key for key in self.written if key[0] != step[0]}

    def _registers(self, event: Event, step: Step, clock: np.ndarray, what: str) -> None:
        ends, value = self.coming.get((step[0], event.name), (0, 0))
        if value and not self.documented and ends == self.components.get(("tensor load done", step[0])):
            if value > self.counters["tensor load", step[0]]:
                self.counters["tensor load", step[0]] = value
            clock[ends] = max(clock[ends], value)
        if value and clock[ends] < value:
            self.fault("registers", f"registers are {what} while what fills them may be in flight", step)

    def registers_read(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._registers(event, step, clock, "read")

    def registers_write(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._registers(event, step, clock, "written")
        self.written.add((step[0], event.name))

    def store(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._global(step)
        self._later("store", event, step, clock)
        self._by_map(event, step, clock)

    def store_commit(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.counters["store", step[0]] += 1

    def store_wait(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._done("store", event.count, step, clock)

    def async_copy(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._global(step)
        self._later("cp.async", event, step, clock, write=True)

    def async_commit(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.counters["cp.async", step[0]] += 1
        self.committed[step[0]].append(self.counters["cp.async", step[0]])

    def async_wait(self, event: Event, step: Step, clock: np.ndarray) -> None:
        newest = self.committed[step[0]][-1 - event.count :][0]
        self._done("cp.async", self.counters["cp.async", step[0]] - newest, step, clock)

    def async_arrive(self, event: Event, step: Step, clock: np.ndarray) -> None:
        """An arrival when all copies so far are there, committed or not: PTX ISA, "cp.async.mbarrier.arrive"."""
        self.counters["cp.async", step[0]] += 1  # later copies are none of those, and no group ends here
        done = clock.copy()  # what the barrier is told; the warp itself does not learn that they are there
        done[self.components["cp.async done", step[0]]] = self.counters["cp.async", step[0]]
        self._arrive(event.barrier, event.count, 0, step, done, False)  # type: ignore[arg-type]

    # --- tensor memory -------------------------------------------------------------------------------------------

    def tensor_mma(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._later("tensor", event, step, clock, write=not event.flag)

    def tensor_commit(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.counters["tensor", step[0]] += 1
        done = clock.copy()
        for what in ("done", "published"):  # a commit fences what it waits for
            done[self.components[f"tensor {what}", step[0]]] = self.counters["tensor", step[0]]
        for where in event.barriers:
            if where[0] != step[0][0]:
                self.arrivals_from_afar.append((where[0], step))
            self._arrive(where, event.count, 0, step, done, True)

    def _within_reach(self, event: Event, step: Step) -> None:
        """A warp's loads and stores reach the quarter of the lanes that its number says: PTX ISA, tcgen05.ld."""
        number = step[0][1] % len(QUARTERS)
        for _, bits in event.tensor:
            if bits & ~QUARTERS[number]:
                first = number * QUARTER
                text = f"{self.who(step)} in lanes other than its own, {first} to {first + QUARTER - 1}"
                self.fault("tensor lanes", text, step)

    def tensor_read(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._within_reach(event, step)
        ends = self.components["tensor load done", step[0]]
        self.coming[step[0], event.name] = ends, self._later("tensor load", event, step, clock)

    def tensor_write(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._within_reach(event, step)
        self._later("tensor store", event, step, clock, write=True)

    def tensor_wait(self, event: Event, step: Step, clock: np.ndarray) -> None:
        agent = "tensor load" if event.flag else "tensor store"
        self.counters[agent, step[0]] += 1
        self._done(agent, 0, step, clock)

    def tensor_fence(self, event: Event, step: Step, clock: np.ndarray) -> None:
        if event.flag:
            self.after[step[0]] = clock.copy()
            return
        for agent in ("tensor load", "tensor store"):
            done = self.components.get((f"{agent} done", step[0]))
            if done is not None:
                clock[self.components[f"{agent} published", step[0]]] = clock[done]

    def _together(self, event: Event, step: Step, clock: np.ndarray) -> bool:
        """Under .cta_group::2 a warp of each CTA of a pair takes part, and the first may wait for the second."""
        if not event.flag:
            return True
        return self._meet(("pair", step[0][0] // 2, event.what), 64, step, clock) is not False

    def _whole(self, event: Event, step: Step, clock: np.ndarray) -> None:
        for cta, bits in event.tensor:
            self.touch(("tensor", cta), bits, Access(step, self.number[step[0]], step[1], True, False), clock)

    def tensor_alloc(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        if not self._together(event, step, clock):
            return False
        self._generic(event, step, clock, True)  # its address, for all to read
        if self.columns.setdefault(step[0][0], event.count) != event.count or step[0][0] in self.allocated:
            self.fault("tensor memory", "tensor memory is allocated a second time", step)
        self.allocated.add(step[0][0])
        self._whole(event, step, clock)
        return None

    def tensor_free(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        if not self._together(event, step, clock):
            return False
        if self.columns.get(step[0][0]) != event.count:
            self.fault("tensor memory", f"{event.count} columns are freed, which were not allocated so", step)
        self.allocated.discard(step[0][0])
        self._whole(event, step, clock)
        return None

    # --- registers -----------------------------------------------------------------------------------------------

    def wrong(self, event: Event, step: Step, clock: np.ndarray) -> None:
        rule, _, text = event.name.partition(": ")
        self.fault(rule, text, step)

    def _registers_of(self, event: Event, step: Step) -> int:
        """Return how many a thread of the warp has, before it executes setmaxnreg."""
        warp, count = step[0], event.count
        asked = [most for events in self.budgets.values() for what, most in events if what == "registers taken"]
        now = self.registers.setdefault(warp, launch_registers(self.programs.launch.threads, asked))
        if not 24 <= count <= 256 or count % 8:
            self.fault("setmaxnreg", f"{count} registers are asked for: needed a multiple of 8 in 24 to 256", step)
        first, which = warp[1] // 4 * 4, self.budgets[warp]
        others = [other for other in self.warps if other[0] == warp[0] and other[1] // 4 * 4 == first]
        if any(self.budgets[other] != which for other in others):
            text = f"setmaxnreg is for all warps of a warpgroup: of warps {first} to {first + len(others) - 1} not "
            self.fault("setmaxnreg", text + "all execute the same", step)
        return now

    def registers_given(self, event: Event, step: Step, clock: np.ndarray) -> None:
        now = self._registers_of(event, step)
        if event.count > now:
            self.fault("setmaxnreg", f"a decrease to {event.count} registers, of a warp that has {now}", step)
        self.free[step[0][0]] += 32 * (now - event.count)
        self.registers[step[0]] = event.count

    def registers_taken(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        now = self._registers_of(event, step)
        if event.count < now:
            self.fault("setmaxnreg", f"an increase to {event.count} registers, of a warp that has {now}", step)
        if self.free[step[0][0]] < 32 * (event.count - now):
            return False
        self.free[step[0][0]] -= 32 * (event.count - now)
        self.registers[step[0]] = event.count
        return None

    # --- global memory, and the end ------------------------------------------------------------------------------

    def grid_wait(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.granted.add(step[0])

    def _global(self, step: Step) -> None:
        if self.programs.launch.dependent and step[0] not in self.granted and self._concerns(self.event(step)):
            text = "global memory is touched before griddepcontrol.wait: the kernel before may still write it"
            self.fault("dependent launch", text, step)
            self.granted.add(step[0])

    def _concerns(self, event: Event) -> bool:
        """Return whether an access to global memory must wait for the launches before."""
        if self.before is None:
            return True
        reads, writes = self.before
        return event.name in writes or (event.name in reads and writes_global(event))

    def global_access(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._global(step)

    def words_read(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._words(event, step, clock, False)

    def words_write(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self._words(event, step, clock, True)

    def _words(self, event: Event, step: Step, clock: np.ndarray, write: bool) -> None:
        self._global(step)
        for _, bits in event.targets:
            access = Access(step, self.number[step[0]], step[1], write, True)
            self.touch(("words", event.name), bits, access, clock)

    def release(self, event: Event, step: Step, clock: np.ndarray) -> None:
        """A flag gets a value: whoever sees it knows what its writer knows."""
        self._words(event, step, clock, True)
        ((_, flag),) = event.targets
        values = self.released[flag]
        if event.count <= (values[-1][0] if values else 0):
            self.fault("flag", f"a flag is set to {event.count}, which is not above what it was", step)
        values.append((event.count, clock.copy()))

    def acquire(self, event: Event, step: Step, clock: np.ndarray) -> bool | None:
        """Until a flag has come to a value; what is known then is what was known when it first did."""
        ((_, flag),) = event.targets
        self._global(step)
        known = next((clock for value, clock in self.released[flag] if value >= event.count), None)
        if known is None:
            return event.count <= 0
        np.maximum(clock, known, out=clock)
        return None

    def exit(self, event: Event, step: Step, clock: np.ndarray) -> None:
        self.exited[step[0]] = clock.copy()
        cta = step[0][0]
        mine = self.programs.warps_of(cta)
        if all(warp in self.exited for warp in mine):
            self._left(cta, np.maximum.reduce([self.exited[warp] for warp in mine]), step)

    def _left(self, cta: int, clock: np.ndarray, step: Step) -> None:
        """A CTA has ended: nothing may be on its way to its shared memory, or still read it."""
        self.gone.add(cta)
        for earlier in (*self.memory[cta].values(), *self.memory["tensor", cta].values()):
            for access in earlier.values():
                if clock[access.ends] < access.value:
                    verb = "bring data" if access.write else "be read"
                    text = f"CTA {cta} may end while its shared memory is still to {verb}: {self.who(access.step)}"
                    self.fault("exit", text, step, access.step, clock)
                    return
        if cta in self.allocated:
            self.fault("tensor memory", f"CTA {cta} ends and has not freed its tensor memory", step)
        for where, arrival in self.arrivals_from_afar:
            if where == cta and clock[self.number[arrival[0]]] < arrival[1]:
                text = f"CTA {cta} may end before {self.who(arrival)} signals a barrier of it"
                self.fault("exit", text, step, arrival, clock)
                return

    def _stuck(self) -> bool:
        """Return whether warps are left that cannot go on: a deadlock."""
        left = [warp for warp in self.warps if self.at[warp] < len(self.programs.warps[warp])]
        if not left:
            return False
        left.sort(key=lambda warp: self.programs.warps[warp][self.at[warp]].what != "registers taken")  # these first
        texts = [self._waits_for(warp) for warp in left]
        unique = list(dict.fromkeys(texts))
        more = f", and {len(unique) - 4} more" if len(unique) > 4 else ""
        step = (left[0], self.at[left[0]] + 1)
        self.faults.append(Fault("deadlock", "; ".join(unique[:4]) + more, step, None, tuple(self.trace)))
        return True

    def _waits_for(self, warp: Warp) -> str:
        event = self.programs.warps[warp][self.at[warp]]
        head = f"CTA {warp[0]} warp {warp[1]} waits in line {event.line} for "
        if event.what == "mma wait":
            return head + "wgmmas that not all warps of its warpgroup have asked for"
        if event.what == "registers taken":
            now, free = self.registers[warp], self.free[warp[0]]
            text = (
                f"registers: {event.count} for each thread, of which it has {now}, and {free} are free for 32 threads"
            )
            return head + text + "; others give back too few"
        if event.what.startswith("tensor"):
            return head + "the other CTA of its pair"
        if event.what == "acquire":
            ((_, flag),) = event.targets
            got = self.released[flag][-1][0] if self.released[flag] else 0
            return head + f"flag {flag.bit_length() - 1} to come to {event.count}; it is at {got}"
        if event.barrier is None:
            return head + ("the cluster" if event.what.startswith("cluster") else f"named barrier {event.number}")
        barrier = self.barriers.get(event.barrier)
        if barrier is None:
            return head + f"{said(event.barrier)}, which no warp initialises"
        lacks = f"{barrier.pending} of {barrier.count} arrivals and {barrier.bytes} bytes"
        return head + f"phase {barrier.phase} of {said(event.barrier)}, which lacks {lacks}"

    def _ended(self) -> None:
        """All have ended: no barrier may be left in the middle of a phase, or half met."""
        for key, named in self.named.items():
            if named.threads and self.documented:
                text = f"{called(key)} is left with {named.threads} threads of {named.needed}"
                self.faults.append(Fault("named barrier", text, None, None, tuple(self.trace)))
                return
        for where, barrier in self.barriers.items():
            if not self.documented and barrier.bytes >= 0 and barrier.brought < barrier.phase:
                continue  # arrivals alone
            if barrier.bytes or barrier.pending != barrier.count:
                came = barrier.count - barrier.pending
                text = f"{said(where)} is left with {came} of {barrier.count} arrivals, {barrier.bytes} bytes expected"
                self.faults.append(Fault("arrivals", text, barrier.made, None, tuple(self.trace)))
                return


def _is_narrow(event: Event) -> bool:
    return event.what == "arrive" and event.flag


class Scoped(Machine):
    """Runs the programs a second time: an arrival of scope .cta at another CTA's barrier orders no memory for it.

    PTX ISA, "Memory Consistency Model": a release synchronizes with whom its scope includes. The barrier counts the
    arrival all the same, so that the other rules are the first run's; here accesses alone are judged that were ordered
    there. Waits have the scope .cta in NVIDIA's own kernels, too: they are not judged.
    """

    def __init__(self, plain: Machine) -> None:
        super().__init__(plain.programs, plain.most, plain.documented, plain.before)
        self.plain = plain

    def run(self, order: Callable[[list[Warp]], Sequence[Warp]] = lambda warps: warps) -> list[Fault]:
        while any(self._advance(warp) for warp in order(self.warps)):
            pass
        return self.faults

    def _tells(self, step: Step, clock: np.ndarray) -> np.ndarray:
        return np.zeros_like(clock) if _is_narrow(self.event(step)) else clock

    def fault(self, rule: str, text: str, at: Step, other: Step | None = None, knows: np.ndarray | None = None) -> None:
        """Say nothing: the first run did."""

    def _race(self, space: Any, access: Access, last: Access) -> None:
        known = self.plain.known.get(access.step)
        if known is None or not self.plain.ordered(access, last, known) or len(self.faults) >= self.most:
            return
        text = f"{self.who(last.step)} comes before {self.who(access.step)}, which touches the same bytes, by an "
        text += "arrival of scope .cta at a barrier of another CTA: that orders no memory there"
        super().fault("scope", text, access.step, last.step)


AGENTS = {
    "async copy": "cp.async",
    "async arrive": "cp.async",
    "mma": "wgmma",
    "store": "store",
    "tensor mma": "tensor",
    "tensor commit": "tensor",
    "tensor read": "tensor load",
    "tensor write": "tensor store",
}
STEPS: dict[str, Callable[[Machine, Event, Step, np.ndarray], bool | None]] = {
    "init": Machine.init,
    "fence of barriers": Machine.fence_of_barriers,
    "arrive": Machine.arrive,
    "expect": Machine.expect,
    "look": Machine.look,
    "wait": Machine.wait,
    "come": Machine.come,
    "meet": Machine.meet,
    "cluster arrive": Machine.cluster_arrive,
    "cluster wait": Machine.cluster_wait,
    "read": Machine.read,
    "write": Machine.write,
    "warp sync": Machine.warp_sync,
    "fence of proxies": Machine.fence_of_proxies,
    "map write": Machine.map_write,
    "map release": Machine.map_release,
    "map acquire": Machine.map_acquire,
    "load": Machine.load,
    "mma": Machine.mma,
    "mma commit": Machine.mma_commit,
    "mma wait": Machine.mma_wait,
    "mma fence": Machine.mma_fence,
    "registers read": Machine.registers_read,
    "registers write": Machine.registers_write,
    "async copy": Machine.async_copy,
    "async commit": Machine.async_commit,
    "async arrive": Machine.async_arrive,
    "async wait": Machine.async_wait,
    "store": Machine.store,
    "store commit": Machine.store_commit,
    "store wait": Machine.store_wait,
    "tensor mma": Machine.tensor_mma,
    "tensor commit": Machine.tensor_commit,
    "tensor read": Machine.tensor_read,
    "tensor write": Machine.tensor_write,
    "tensor wait": Machine.tensor_wait,
    "tensor fence": Machine.tensor_fence,
    "tensor alloc": Machine.tensor_alloc,
    "tensor free": Machine.tensor_free,
    "wrong": Machine.wrong,
    "registers given": Machine.registers_given,
    "registers taken": Machine.registers_taken,
    "grid wait": Machine.grid_wait,
    "global": Machine.global_access,
    "words read": Machine.words_read,
    "words write": Machine.words_write,
    "release": Machine.release,
    "acquire": Machine.acquire,
    "exit": Machine.exit,
}


def writes_global(event: Event) -> bool:
    """Return whether an event writes a tensor in global memory."""
    return event.what == "store" or (event.what == "global" and event.flag)


def launch_registers(threads: int, asked: Sequence[int] = ()) -> int:
    """Registers of a thread when a kernel begins: as many as the compiler may use if a CTA has an SM to itself.

    A CTA so small that its threads could have all that a thread can have gets as many as setmaxnreg asks for at most:
    that ptxas reports "Used 232 registers" of a CTA of 256 threads that increases to 232.

    Args:
        threads: of a CTA.
        asked: what its increases ask for.
    """
    most = REGISTER_FILE // threads // 8 * 8
    return most if most <= MOST_REGISTERS else min(MOST_REGISTERS, max(asked, default=MOST_REGISTERS))


def _budgets(events: Sequence[Event]) -> tuple[tuple[str, int], ...]:
    """Return what setmaxnreg asks for in a warp, in order."""
    return tuple((event.what, event.count) for event in events if event.what in ("registers given", "registers taken"))


def said(barrier: Barrier | None) -> str:
    """Return how a barrier is called: its place in shared memory, counted in barriers of 8 bytes."""
    if barrier is None:
        return "a barrier"
    return f"mbarrier {barrier[1] // 8} of CTA {barrier[0]}"


def called(key: Any) -> str:
    """Return how a barrier of a CTA, of a pair or of the cluster is called."""
    if key[0] == "cluster":
        return "the cluster's barrier"
    return f"the {key[2]} of a pair" if key[0] == "pair" else f"named barrier {key[1]} of CTA {key[0]}"


def ordinal(n: int) -> str:
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n if n < 20 else n % 10, 'th') }"
