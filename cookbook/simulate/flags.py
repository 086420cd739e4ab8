"""Flags in global memory, by which a CTA tells others that what it wrote there may be read: PTX ISA, "Release and
Acquire Patterns".

Two pieces of inline PTX are known: a release, `st.release.gpu` of a value; and an acquire that polls, `ld.acquire.gpu`
until the flag has come to a value. Flags count up, and may wrap around.
"""

from __future__ import annotations

import re

from cookbook.simulate.trace import Operation, Trace

__all__ = ["said", "used"]

_RELEASE = re.compile(r"st\.release\.gpu\.global\.[bsu]32 \[\{\$r0\}\], \{\$r1\};")
_ACQUIRE = re.compile(
    r"\{ \.reg \.pred (?P<p>\w+); \.reg \.s32 (?P<r>\w+); (?P<loop>\w+): "
    r"ld\.acquire\.gpu\.global\.s32 (?P=r), \[\{\$r0\}\]; sub\.s32 (?P=r), (?P=r), \{\$r1\}; "
    r"setp\.lt\.s32 (?P=p), (?P=r), 0; @(?P=p) bra (?P=loop); \}"
)


def said(op: Operation) -> str | None:
    """Return what inline PTX does with a flag, given an address and a value: "release" or "acquire"; None: nothing
    known."""
    text = op.get("ptxCode", "")
    return "release" if _RELEASE.fullmatch(text) else "acquire" if _ACQUIRE.fullmatch(text) else None


def used(trace: Trace) -> bool:
    """Return whether a kernel has flags."""
    return any(said(op) for op in trace.find("nvvm.inline_ptx"))
