"""`python -m cookbook.harness.interleavings hopper/pingpong_gemm`, or a file of one's own: its pipelines, in any order.

A file is a copy of a recipe that may have been changed: it needs `gemm`, `compile_for` and `CONFIG` (or `VARIANTS`).
`--programs` also shows what each kind of warp waits for and does, for the first problem.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from cookbook.harness import catalog, compiling, interleavings
from cookbook.harness.interleavings.machine import Machine
from cookbook.harness.interleavings.programs import Event, host_arguments, of_cluster
from cookbook.harness.interleavings.telling import deed, role


def main() -> int:
    """Explore; 1 if there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", help="a recipe's name, or a Python file")
    parser.add_argument("--arch", help="what to compile for: sm_90a; a recipe's first target if left out")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--programs", action="store_true", help="show what each kind of warp does")
    asked = parser.parse_args()
    module, arch = loaded(asked.what, asked.arch)
    dtype = compiling.cutlass_dtype(asked.dtype)
    bad = False
    for name, config in (compiling.variants(module, arch) or {"": compiling.config_for(module, arch)}).items():
        print(f"{asked.what} {name}".strip())
        if asked.programs:
            print("\n".join(programs(module, arch, dtype, config)))
        for finding in interleavings.findings(interleavings.explored(module, arch, dtype, config)):
            print(f"  {finding.name}: {finding.detail if finding.ok else ''}")
            bad |= not finding.ok
            if not finding.ok:
                print("    " + finding.detail.replace("\n", "\n    "))
    return int(bad)


def loaded(what: str, arch: str | None) -> tuple[ModuleType, str]:
    """The module of a recipe or file, and what to compile it for."""
    if not what.endswith(".py"):
        return catalog.load(what), arch or catalog.find(what).targets[0]
    if arch is None:
        sys.exit("--arch: a file does not say what it is for; needed sm_90a or the like")
    spec = importlib.util.spec_from_file_location(Path(what).stem, what)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module, arch


def programs(module: Any, arch: str, dtype: Any, config: Any) -> list[str]:
    """One line an event for the first warp of each role, of the first CTA; repeated rounds are left out."""
    trace = interleavings.trace_of(module, arch, dtype, config)
    problem = interleavings.problems(config)[0]
    machine = Machine(of_cluster(trace, host_arguments(module, config, problem)))
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
        said.setdefault((event.line, event.what), where + deed(event))
    return list(said.values())


if __name__ == "__main__":
    sys.exit(main())
