"""`python -m cookbook.check.pipeline hopper/pingpong_gemm`, or a file of one's own: its pipelines, every interleaving.

A file is a copy of a recipe that may have been changed: it needs `gemm`, `compile_for` and `CONFIG` (or `VARIANTS`).
`--programs` also shows what each kind of warp waits for and does, for the first problem. The exit status is 0 if there
is no fault, 1 if there is one, and 2 if nothing was looked at: no such file, or a kernel in which nothing waits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from cookbook.check import compiled, pipeline, subjects
from cookbook.check.pipeline.counterexample import describe, role
from cookbook.check.pipeline.machine import Machine
from cookbook.check.pipeline.programs import Event
from cookbook.recipe import catalog

FAULT, NOTHING = 1, 2  # exit statuses
NO_WAITS = (
    "the kernel has no barriers and waits for no cp.async. That says nothing of its correctness: on a GPU, "
    "compute-sanitizer looks for races (cookbook check NAME --tools)"
)


def main() -> int:
    """Explore; the exit status: see above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", help="a recipe's name, or a Python file")
    parser.add_argument("--arch", help="what to compile for: sm_90a; a recipe's first target if left out")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--programs", action="store_true", help="show what each kind of warp does")
    asked = parser.parse_args()
    module, arch = loaded(asked.what, asked.arch)
    if missing := [name for name in ("gemm", "compile_for") if not hasattr(module, name)]:
        _refuse(f"what: got {asked.what}, which defines no {' and no '.join(missing)}; needed a GEMM")
    dtype = compiled.cutlass_dtype(asked.dtype)
    bad, looked_at = False, False
    for name, config in (compiled.variants(module, arch) or {"": compiled.config_for(module, arch)}).items():
        print(f"{asked.what} {name}".strip())
        run = pipeline.Run(module, arch, dtype, config)
        if asked.programs and pipeline.has_pipeline(run.trace):
            print("\n".join(programs(run)))
        try:
            found = pipeline.findings(pipeline.explored(run, repairs=True))
        except pipeline.CannotFollow as error:
            _refuse(f"the kernel cannot be followed: {error}")
        looked_at |= bool(found)
        if not found:
            print(f"  nothing was looked at: {NO_WAITS}")
        for finding in found:
            print(f"  {finding.name}: {finding.detail if finding.ok else ''}")
            bad |= not finding.ok
            if not finding.ok:
                print("    " + finding.detail.replace("\n", "\n    "))
    return FAULT if bad else 0 if looked_at else NOTHING


def loaded(what: str, arch: str | None) -> tuple[ModuleType, str]:
    """The module of a recipe or file, and what to compile it for."""
    if not what.endswith(".py"):
        try:
            return catalog.load(what), arch or catalog.find(what).targets[0]
        except (catalog.UnknownRecipe, catalog.NotLoaded) as error:
            _refuse(str(error).replace("NAME", "what", 1))
    if not Path(what).is_file():
        _refuse(f"what: got {what}; needed a recipe's name, or a file that exists")
    if arch is None:
        _refuse("--arch: got none; needed sm_90a or the like: a file does not say what it is for")
    try:
        return subjects.load_file(Path(what)), arch
    except catalog.NotLoaded as error:
        _refuse(str(error).replace("NAME", "what", 1))


def _refuse(why: str) -> NoReturn:
    print(f"error: {why}", file=sys.stderr)
    sys.exit(NOTHING)


def programs(run: pipeline.Run) -> list[str]:
    """One line an event for the first warp of each role, of the first CTA; repeated rounds are left out."""
    problem = run.problems[0]
    _, first = next(run.clusters(problem))
    machine = Machine(first)
    lines, seen = [f"  the first problem, {problem}:"], set()
    for warp in machine.programs.warps_of(0):
        if (what := role(machine, warp)) in seen:
            continue
        seen.add(what)
        lines.append(f"  {what}, warp {warp[1]}:")
        lines += [f"    {line}" for line in _without_rounds(machine.programs.warps[warp])]
    return lines


def _without_rounds(events: tuple[Event, ...]) -> list[str]:
    """Each line of source as it is first met; later rounds of a loop say nothing new."""
    said: dict[tuple[int, str], str] = {}
    for event in events:
        where = f"line {event.line}: " if event.line else ""
        said.setdefault((event.line, event.what), where + describe(event))
    return list(said.values())


if __name__ == "__main__":
    sys.exit(main())
