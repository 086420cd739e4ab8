"""The mutation score: which mutants of a recipe's kernel the levels catch that need no GPU.

    python -m tools.mutate hopper/tma_wgmma_gemm --sample 40 --seed 1 --jobs 1 --json tests/mutants.json

`tools/mutants.py` says which mutants there are. Of each operator's as many are drawn, by the seed. A mutant is loaded
from a file, traced, and asked about at the levels layout, product, pipeline and compiled: one configuration after the
other, up to the first level that fails. One that cannot be traced is the compiler's; one whose trace or PTX is the
original's is no mutant: both are counted apart. Each runs in a process of its own and has `--limit` seconds. What the
file of `--json` has is not run again, unless the recipe's device code has changed; `--survivors` runs those again that
nothing caught.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from cookbook.check import compiled, levels, pipeline, subjects
from cookbook.check import product as followed
from cookbook.recipe import catalog, imports
from cookbook.recipe.catalog import Recipe
from tools.mutants import Mutant, mutants
from tools.records.device_code import device_hash, digest
from tools.records.freshness import normal_ptx

RECORD = Path(__file__).resolve().parents[1] / "tests" / "mutants.json"
COMPILER, EQUIVALENT, SURVIVED, LATE = "compiler", "equivalent", "survived", "out of time"
CRASHED = "the process crashed"
LEVELS = ("layout", "product", "pipeline", "compiled")
SAID = 300  # characters of a level's words that are kept
Row = dict[
    str, Any
]  # a mutant's operator, function, line, old, new, text; outcome, by; of a survivor, argued: [sign, why]


class Original(NamedTuple):
    """The original of a mutant: the recipe's text in a file, and digests by number of the configuration."""

    file: Path
    traces: tuple[str, ...]


# --- one mutant, in a process of its own -----------------------------------------------------------------------------


class Subject:
    """A text of a recipe, loaded from a file, and its kernels' configurations on the first of its targets."""

    def __init__(self, recipe: Recipe, file: Path) -> None:
        self.recipe = subjects.of_file(file, recipe.name)
        self.module, self.arch, self.named = self.recipe.module, recipe.targets[0], recipe.dtypes[0]
        self.dtype = compiled.cutlass_dtype(self.named)
        kinds = [levels.configurations(self.recipe, (self.arch,), self.named, majors) for majors in recipe.majors]
        self.configs = list(dict.fromkeys(chain.from_iterable(kinds)))

    def trace(self, config: Any) -> str:
        return digest(str(pipeline.trace_of(self.module, self.arch, self.dtype, config)))

    def ptx(self, config: Any) -> str:
        return digest(normal_ptx(self._built(config).ptx))

    def _built(self, config: Any) -> compiled.Compiled:
        return compiled.compile_module(self.module, self.recipe.name, self.arch, self.named, config)

    def failure(self, level: str, config: Any) -> str:
        """Return what a level says against a configuration; "" if nothing."""
        if level == "layout":
            found = self.recipe.product.layouts(self.module, self.named, config)
        elif level == "product":
            found = followed.findings(
                followed.computed(self.module, self.arch, self.dtype, config, kind=self.recipe.product)
            )
        elif level == "pipeline":
            found = pipeline.findings(pipeline.explored(self.module, self.arch, self.dtype, config))
        else:
            return levels.compiled_level(self.recipe, self._built(config), config).reason
        return next((f"{one.name}: {one.detail}" for one in found if not one.ok), "")


def judged(recipe: Recipe, file: Path, original: Original) -> Iterator[tuple[str, str]]:
    """(outcome, what was said) of a mutant's file: the last one holds, of a process that crashes too.

    One configuration after the other, up to the first that CuTe refuses or a level fails.
    """
    yield COMPILER, CRASHED
    outcome = EQUIVALENT, "the same trace"
    try:
        subject = Subject(recipe, file)
    except Exception as error:  # CuTe refuses with errors of every kind
        yield COMPILER, _said(error)
        return
    for number, config in enumerate(subject.configs):
        yield COMPILER, CRASHED
        try:
            changed = subject.trace(config) != original.traces[number]
        except Exception as error:
            yield COMPILER, _said(error)
            return
        for level in LEVELS if changed else ():
            yield level, CRASHED
            if by := _failure(subject, level, config):
                yield level, by
                return
        if changed and outcome[0] != SURVIVED:
            own = Subject(recipe, original.file)
            same = subject.ptx(config) == own.ptx(own.configs[number])
            outcome = (EQUIVALENT, "the same PTX") if same else (SURVIVED, "")
    yield outcome


def _failure(subject: Subject, level: str, config: Any) -> str:
    try:
        by = subject.failure(level, config)
    except Exception as error:  # what `cookbook check` ends with, too
        by = _said(error)
    return by.partition("\n")[0][:SAID]


def original(recipe: Recipe, file: Path) -> Iterator[Original]:
    """Make the original that mutants are compared with. The recipe's first configuration must pass.

    Raises:
        ValueError: a level fails.
    """
    subject = Subject(recipe, file)
    for level in LEVELS:
        if by := _failure(subject, level, subject.configs[0]):
            raise ValueError(f"{recipe.name}: got {level} ({by}) without a mutation; needed a recipe that passes")
    yield Original(file, tuple(subject.trace(config) for config in subject.configs))


def _said(error: Exception) -> str:
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:SAID]


def apart(work: Callable[..., Iterator[Any]], limit: float, *args: Any) -> Any:
    """The last that `work(*args)` yields in a process of its own; None if it has not ended after `limit` seconds."""
    context = multiprocessing.get_context("fork")  # what is imported is there at once
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, work, args))
    process.start()
    sender.close()
    end, last = time.monotonic() + limit, None
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            last = receiver.recv()
        return None
    except EOFError:  # it has ended
        return last
    finally:
        process.kill()
        process.join()


def _child(sender: Any, work: Callable[..., Iterator[Any]], args: Any) -> None:
    with open(os.devnull, "w") as nowhere:  # CuTe prints what it refuses
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for one in work(*args):
        sender.send(one)


# --- a sample of them ------------------------------------------------------------------------------------------------


def drawn(source: str, sample: int, seed: int) -> list[Mutant]:
    """So many mutants of a text, of all operators in turn; a larger sample begins with a smaller one."""
    chance, kinds = random.Random(seed), {}
    for one in mutants(source):
        kinds.setdefault(one.operator, []).append(one)
    for name in sorted(kinds):
        chance.shuffle(kinds[name])
    turns = zip_longest(*(kinds[name] for name in sorted(kinds)))
    return [one for one in chain.from_iterable(turns) if one is not None][:sample]


def key(row: Row) -> tuple[Any, ...]:
    """Return what tells a mutant from others of the same text."""
    return tuple(row[name] for name in ("operator", "line", "old", "new", "text"))


def run(name: str, known: Row, chosen: argparse.Namespace) -> Iterator[Row]:
    """The record of a recipe, after each mutant that was run."""
    recipe = catalog.find(name)
    source = catalog.without_lab(imports.written_in(recipe.file.read_text(encoding="utf-8")))
    record = {"device": device_hash(name), "possible": len(mutants(source)), "seed": chosen.seed}
    rows = {key(row): row for row in known.get("mutants", ())} if known.get("device") == record["device"] else {}
    wanted = drawn(source, chosen.sample, chosen.seed)
    again = (SURVIVED, LATE) if chosen.survivors else ()
    new = [one for one in wanted if (row := rows.get(key(one._asdict()))) is None or row["outcome"] in again]
    for one, found in zip(new, _run(recipe, source, new, chosen), strict=True):
        row = {name: value for name, value in one._asdict().items() if name not in ("start", "end")}
        argued = {"argued": old["argued"]} if "argued" in (old := rows.get(key(row), {})) else {}
        rows[key(row)] = row | found | (argued if found["outcome"] == SURVIVED else {})
        print(shown(name, rows[key(row)]), file=sys.stderr, flush=True)
        yield record | {"mutants": [rows[k] for one in wanted if (k := key(one._asdict())) in rows]}
    yield record | {"mutants": [rows[key(one._asdict())] for one in wanted]}


def _run(recipe: Recipe, source: str, new: list[Mutant], chosen: argparse.Namespace) -> Iterator[Row]:
    """Judge each mutant, in order."""
    if not new:
        return
    with tempfile.TemporaryDirectory() as root, ThreadPoolExecutor(chosen.jobs) as pool:
        whole = _written(source, Path(root) / "original.py")
        if (compared := apart(original, 10 * chosen.limit, recipe, whole)) is None:
            raise SystemExit(f"{recipe.name}: a level fails without a mutation: see `cookbook check {recipe.name}`")
        files = [_written(one.of(source), Path(root) / f"mutant{number}.py") for number, one in enumerate(new)]
        yield from pool.map(lambda file: _timed(recipe, file, compared, chosen.limit), files)


def _written(source: str, file: Path) -> Path:
    file.write_text(source, encoding="utf-8")
    return file


def _timed(recipe: Recipe, file: Path, compared: Original, limit: float) -> Row:
    start = time.perf_counter()
    outcome, by = apart(judged, limit, recipe, file, compared) or (LATE, f"no answer in {limit:.0f} s")
    return {"outcome": outcome, "by": by, "seconds": round(time.perf_counter() - start, 1)}


# --- what came of it -------------------------------------------------------------------------------------------------


def recorded(file: Path = RECORD) -> dict[str, Row]:
    """The records of a file, by recipe."""
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def shown(name: str, row: Row) -> str:
    """A mutant as a one-line diff."""
    edit = f"[{row['operator']}] - {row['old']} + {row['new']}"
    return f"{row['outcome']}: recipes/{name}.py:{row['line']} {edit}  {row['by']}"


def score(rows: list[Row]) -> str:
    """The share that a level caught, of the mutants that trace and compute something else, or the same more slowly."""
    count = Counter(row["outcome"] for row in rows)
    caught = sum(count[level] for level in LEVELS)
    same = sum(row.get("argued", [""])[0] == "same" for row in rows)
    of = caught + count[SURVIVED] + count[LATE] - same
    return f"{caught / of:.0%}" if of else ""


def main() -> int:
    """Runs a sample of each recipe's mutants; 1 if one survived that nobody has argued."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("recipes", nargs="+", metavar="RECIPE")
    parser.add_argument("--sample", type=int, default=40, metavar="N", help="mutants of each recipe (default: 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants at a time (default: 1)")
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds for each (default: 120)")
    parser.add_argument("--survivors", action="store_true", help="run those again that nothing caught")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what is known, and where it is kept")
    chosen = parser.parse_args()
    records = recorded(chosen.json) if chosen.json else {}
    import cutlass.cute  # noqa: F401, once for all processes

    for name in chosen.recipes:
        for record in run(name, records.get(name, {}), chosen):
            records[name] = record
            if chosen.json:
                chosen.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    left = [(n, row) for n in chosen.recipes for row in records[n]["mutants"] if row["outcome"] in (SURVIVED, LATE)]
    for name in chosen.recipes:
        count = Counter(row["outcome"] for row in records[name]["mutants"])
        print(f"{name}: {score(records[name]['mutants'])} " + ", ".join(f"{n} {one}" for one, n in count.items()))
    for name, row in left:
        print(shown(name, row), *row.get("argued", ()))
    return int(any("argued" not in row for _, row in left))


if __name__ == "__main__":
    sys.exit(main())
