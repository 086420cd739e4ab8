"""The table of roles in the docstring of each warp-specialized kernel: what the kernel does, read off its trace."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

pytest.importorskip("cutlass")

from cookbook.check.pipeline.programs import Event
from cookbook.recipe import catalog
from cookbook.simulate.lines import Line
from tools import roles as tool
from tools import warp_roles as roles

HERE = Line()


def event(what, place=None, **fields):
    return Event(what, HERE, barrier=None if place is None else (0, place), **fields)


def followed(*warps):
    """A launch of one CTA whose warps do these events."""
    launch = SimpleNamespace(threads=32 * len(warps), ctas=1)
    programs = {(0, n): tuple(events) for n, events in enumerate(warps)}
    return [SimpleNamespace(launch=launch, warps=programs, clusters=1)]


STARTS = [event("init", 0, count=1), event("init", 8, count=1), event("init", 16, count=2), event("init", 24, count=2)]
LOADS = [
    step
    for n in range(2)
    for step in (
        event("wait", 16 + 8 * n),
        event("arrive", 8 * n, count=1, bytes=64),
        Event("load", HERE, barriers=((0, 8 * n),), targets=((0, 1),), bytes=64, name="a"),
    )
]
READS = [step for n in range(2) for step in (event("wait", 8 * n), event("mma"), event("arrive", 16 + 8 * n, count=1))]


def test_a_pipeline_of_two_stages_is_two_arrays_of_barriers():
    meet = event("meet", count=64, number=1)
    assert roles.said(followed([*STARTS, *LOADS], [*READS, meet], [*READS, meet])) == [
        "warps  do         wait for  signal",
        "0      TMA loads  empty[2]  full[2]: 1, expects 64 bytes",
        "1-2    wgmma      full[2]   empty[2]: 1 a warp",
        "",
        "full[2]: 1 arrival and its bytes a phase.",
        "empty[2]: 2 arrivals a phase.",
        "bar 1, 64 threads: warps 1-2 meet.",
    ]


def test_warps_of_one_role_need_no_table():
    assert roles.said(followed([*STARTS[:1], event("arrive", 0, count=1), event("wait", 0)])) == []


def test_the_docstring_is_written_once_and_taken_away_again():
    text = 'def kernel(\n    a,\n):\n    """One CTA."""\n    return a\n'
    lines = [tool.HEAD.format(name="x/y"), "", "a table"]
    once = tool.with_table(text, lines)
    assert ast.get_docstring(ast.parse(once).body[0]) == "One CTA.\n\n" + "\n".join(lines)
    assert tool.with_table(once, lines) == once and tool.with_table(once, []) == text


def kernels():
    """Quick are the first two of each track: what a table says is the same code for all."""
    names = tool.kernels()
    tracks = [name.partition("/")[0] for name in names]
    for number, name in enumerate(names):
        yield pytest.param(name, marks=pytest.mark.slow if tracks[:number].count(tracks[number]) > 1 else ())


@pytest.mark.parametrize("name", list(kernels()))
def test_a_kernels_docstring_says_who_waits_for_whom(name):
    text = catalog.find(name).file.read_text(encoding="utf-8")
    expected = "\n".join(tool.table(name))
    head = tool.HEAD.partition("{")[0]
    _, found, rest = tool.docstring_of(text).partition(head)
    assert found + rest == expected, f"run: python -m tools.roles --write {name}"
