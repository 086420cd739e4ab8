"""What is right and costs time for nothing: it is called slow where no problem needs it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cookbook.check.pipeline.machine import Machine
from cookbook.check.pipeline.overlap import slow_steps
from cookbook.check.pipeline.programs import Event, Launch, Programs

EXIT = Event("exit", 0)
ALL = 64  # threads
INIT, FENCE = Event("init", 1, barrier=(0, 1024), count=1), Event("fence of barriers", 1)
SENDS = [Event("store", 6, targets=((0, 1),), name="c"), Event("store commit", 6)]
WRITES = [Event("write", 5, targets=((0, 1),)), Event("fence of proxies", 5)]


def meet(line: int) -> Event:
    return Event("meet", line, count=ALL)


def programs(*bodies: list[Event], ctas: int = 1) -> Programs:
    launch = Launch((ctas, 1, 1), (ctas, 1, 1), (32 * len(bodies) // ctas, 1, 1), (), False)
    each = len(bodies) // ctas
    return Programs(launch, {(n // each, n % each): (*body, EXIT) for n, body in enumerate(bodies)})


def slow(*problems: Programs) -> list[str]:
    """What is called slow; the programs themselves break no rule."""
    machines = [Machine(each) for each in problems]
    assert not any(machine.run() for machine in machines)
    return [fault.text for fault in slow_steps(machines[:1], problems[1:])]


def ring(stages: int, in_flight: int, tiles: int = 8) -> Programs:
    """A ring of stages that cp.async fills, `stages - 1` ahead; a wait leaves some of the groups in flight."""

    def load(tile: int) -> list[Event]:
        copy = Event("async copy", 2, targets=((0, 1 << tile % stages),))
        return [*([copy] if tile < tiles else []), Event("async commit", 3)]

    body = [event for tile in range(stages - 1) for event in load(tile)]
    for tile in range(tiles):
        body += [Event("async wait", 4, count=in_flight), Event("read", 6, targets=((0, 1 << tile % stages),))]
        body += load(tile + stages - 1)
    return programs(body)


@pytest.mark.parametrize(("stages", "in_flight", "said"), [(2, 0, ""), (3, 1, ""), (4, 2, ""), (3, 0, "nothing over")])
def test_a_wait_for_groups_leaves_what_the_stages_allow(stages, in_flight, said):
    assert [said in text for text in slow(ring(stages, in_flight))] == [True] * bool(said)


def test_one_group_fewer_than_the_stages_allow_is_slow():
    (text,) = slow(ring(4, 1))
    assert text == (
        "right, but fewer groups are in flight than the stages allow: the wait in line 4 leaves 1 group of cp.async in "
        "flight; wait_group(2) is as right there"
    )
    assert "2 groups of" in slow(ring(5, 2))[0]


def test_what_another_problem_needs_is_not_slow():
    assert slow(ring(4, 1), ring(4, 1, tiles=9))
    assert not slow(ring(4, 1), ring(3, 1))


def sends(*after: Event, read: bool = False, name: str = "c") -> list[Event]:
    stores = [replace(event, name=name if event.what == "store" else "") for event in SENDS]
    return [*WRITES, *stores, Event("store wait", 7, flag=read), *WRITES, *stores, Event("store wait", 8), *after]


def test_a_wait_for_global_memory_that_no_warp_looks_at_is_slow():
    first, last = slow(programs(sends()))
    assert first.startswith("right, but the wait in line 7 lasts until the stores by TMA are in global memory")
    assert "line 8" in last
    (only,) = slow(programs(sends(read=True)))
    assert "line 8" in only


@pytest.mark.parametrize(
    "event",
    [
        Event("global", 9, name="c"),
        Event("global", 9, name="flags", flag=True),
        Event("global", 9),
    ],
    ids=["reads what was stored", "tells others", "reads what is not known"],
)
def test_a_wait_for_global_memory_that_is_read_is_not_slow(event):
    assert not slow(programs(sends(), [event]))
    assert len(slow(programs(sends(), [Event("global", 9, name="scales")]))) == 2


def test_a_wait_before_a_tma_reload_is_not_slow():
    full = (0, 1024)
    load = Event("load", 9, targets=((0, 2),), barriers=(full,), bytes=4, name="c")
    expect, wait = Event("arrive", 9, barrier=full, count=1, bytes=4), Event("wait", 9, barrier=full, count=0)
    body = [INIT, FENCE, *sends(expect, load, wait)]
    assert not slow(programs(body))
    assert len(slow(programs([event if event != load else replace(load, name="a") for event in body]))) == 2
    assert not slow(programs(sends(name="")))


def test_of_two_barriers_with_nothing_between_one_is_slow():
    place = ((0, 1),)
    writes, reads = Event("write", 2, targets=place), Event("read", 5, targets=place)
    (text,) = slow(programs([writes, meet(3), meet(4)], [meet(3), meet(4), reads]))
    assert text == "right, but the barrier in line 3 orders nothing that the one next to it does not"
    assert not slow(programs([writes, meet(3)], [meet(3), reads]))
    again = Event("write", 3, targets=place)
    assert not slow(programs([writes, meet(3), meet(4), again], [meet(3), reads, meet(4)]))


def test_nor_where_another_round_needs_both():
    place = ((0, 1),)
    writes, reads = Event("write", 2, targets=place), Event("read", 5, targets=place)
    twice = programs([writes, meet(3), meet(4), writes, meet(3), meet(4)], [meet(3), meet(4), meet(3), reads, meet(4)])
    assert not slow(twice)


def test_only_a_barrier_before_the_last_mbarrier_init_is_slow():
    more = replace(INIT, line=3, barrier=(0, 1032))
    uses = [Event("arrive", 5, barrier=(0, 1032), count=1), Event("arrive", 5, barrier=(0, 1024), count=1)]
    first = [INIT, FENCE, meet(2), more, FENCE, meet(4)]
    second = [FENCE, meet(2), FENCE, meet(4), *uses]
    (text,) = slow(programs(first, second))
    assert "line 2" in text
    late = [*first[:3], Event("read", 2, targets=((0, 1),)), *first[3:]]
    assert not slow(programs(late, second))


@pytest.mark.parametrize(("relaxed", "ctas", "count"), [(False, 1, 1), (False, 2, 1), (True, 2, 0)])
def test_a_barrier_of_the_cta_next_to_one_of_the_cluster(relaxed, ctas, count):
    """One that orders memory makes it superfluous."""
    cluster = [Event("cluster arrive", 4, flag=relaxed), Event("cluster wait", 4)]
    writes = [Event("write", 1, targets=((0, 1),)), meet(3), *cluster]
    reads = [meet(3), *cluster, Event("read", 5, targets=((0, 1),))]
    rest = [[meet(3), *cluster]] * (2 * ctas - 2)
    found = slow(programs(writes, reads, *rest, ctas=ctas))
    assert len(found) == count and all("line 3" in text for text in found)
