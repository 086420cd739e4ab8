"""The faults that the tests plant, and which level caught each: `python tools/faults.py [--json] [--write]`.

The faults are the test modules' own lists. What caught them is tests/faults.json, made by `--write`, which plants
every fault and asks the levels (some minutes; no GPU). The tests run each fault too and compare with it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this source tree, installed or not

from cookbook.publish.markdown import filled, table, wrapped
from cookbook.recipe import catalog
from tools import mutate
from tools.records.device_code import device_hash

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests" / "faults.json"
FOLDERS = ("tests", "tests/model")  # of what the test modules themselves import
# Test modules whose SUITES hold faults in recipes; and lists of faults in the words of one instruction.
IN_RECIPES = (
    "check/test_layout_faults",
    "check/pipeline/test_pipeline",
    "recipes/test_two_cta_gemm",
    "recipes/test_persistent_clc_gemm",
    "recipes/test_low_latency_gemm",
    "recipes/test_split_k_gemm",
    "recipes/test_decode_gemm",
    "recipes/test_swiglu_gemm",
    "recipes/test_back_to_back_gemm",
    "check/model/test_scaled",
    "recipes/test_geforce",
    "check/product/test_product",
    "recipes/test_first_gemm",
    "recipes/test_small_steps",
    "recipes/test_stream_k_gemm",
    "recipes/test_pdl_chain",
    "recipes/test_amax_epilogue_gemm",
    "recipes/test_mixed_input_gemm",
    "check/test_levels_alike",
)
IN_WORDS = {"model/test_tcgen05": "DESCRIPTOR_FAULTS", "model/test_scale_factors": "SCALE_FAULTS"}
_OUTCOMES = (mutate.COMPILER, mutate.EQUIVALENT, *mutate.LEVELS, mutate.LATE)
SIGNS = {"same": "computes the same", "slow": "right but slow", "hole": "no level sees it"}  # of survivors
EARLIER = " †"  # behind a recipe whose mutants are of earlier code
Row = dict[str, str]  # recipe, variant, what, edit; level and by, where it has been run


KEYS = ("recipe", "variant", "what", "edit")


def planted() -> list[Row]:
    """Every fault in a recipe, as the tests have them, in their order."""
    return [_row(fault) for _, fault in _of_suites()]


def run(known: list[Row] | None = None) -> list[Row]:
    """Plants every fault that is not known, and asks the levels that its test asks."""
    _find_tests()
    import planted as asked
    from tcgen05_stage import Stage, caught

    rows: list[Row] = []
    before = {tuple(row[key] for key in KEYS): row for row in known or []}
    for suite, fault in _of_suites():
        if (row := before.get(tuple(_row(fault)[key] for key in KEYS))) is not None:
            rows.append(row)
            continue
        with tempfile.TemporaryDirectory() as root:
            found = asked.caught(fault, suite.levels, Path(root))
        rows.append({**_row(fault), **found._asdict()})
        print(f"{fault}: {found.level or 'MISSED'}: {found.by}", file=sys.stderr, flush=True)
    for module, name in IN_WORDS.items():
        for what, (case, change) in getattr(_test_module(module), name).items():
            by = caught(Stage(case), change=change)
            row = {"recipe": asked.WORDS, "variant": "", "what": what, "edit": ""}
            rows.append({**row, "level": "model" if by else "", "by": by})
    return rows


def recorded() -> list[Row]:
    """Return what the last run found."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def markdown() -> str:
    """A table of faults for every recipe that has some, and one of faults in the words of an instruction."""
    rows = recorded()
    parts = [_summary(rows)]
    order = [recipe.name for recipe in catalog.recipes()]
    for name in [*order, *sorted({row["recipe"] for row in rows} - set(order))]:
        of_name = [row for row in rows if row["recipe"] == name]
        if of_name:
            title = f"[{name}](recipes/{name}.md)" if name in order else f"The words of one `{name}`"
            parts += [f"## {title}", _table(of_name)]
    return "\n\n".join(parts)


def mutation_score(records: dict[str, Any] | None = None) -> str:
    """A table of the mutants that `tools/mutate.py` ran of each recipe, and one of those that nothing caught."""
    heads = ["recipe", "mutants", "score", "not compiled", "the same kernel", *(f"by {x}" for x in mutate.LEVELS)]
    records = mutate.recorded() if records is None else records
    cells, tracks = [], dict[str, list[dict[str, Any]]]()
    for name, record in sorted(records.items(), key=lambda item: _place(item[0])):
        old = "" if record["device"] == device_hash(name) else EARLIER
        cells.append(_score(f"[{name}](recipes/{name}.md){old}", [record]))
        tracks.setdefault(name.partition("/")[0], []).append(record)
    cells += [_score(f"all of {track}", held) for track, held in tracks.items() if len(held) > 1]
    rows = [(name, row) for name, record in records.items() for row in record["mutants"]]
    survivors = [_survivor(name, row) for name, row in rows if row["outcome"] == mutate.SURVIVED]
    return "\n\n".join(
        [
            table(*filled([*heads, mutate.LATE, *SIGNS.values()], cells)),
            f"{EARLIER.strip()} Mutants of the code as it was before it changed."
            if any(cell[0].endswith(EARLIER) for cell in cells)
            else "",
            wrapped(table(["survivor", "is", "becomes", "what it is", "why"], survivors, right=5)),
        ]
    )


def _place(name: str) -> int:
    """A recipe's place in the catalog."""
    return [recipe.name for recipe in catalog.recipes()].index(name)


def _score(title: str, records: list[dict[str, Any]]) -> list[str]:
    """A line of the table: the mutants of one recipe, or of several."""
    rows = [row for record in records for row in record["mutants"]]
    count = Counter(row["outcome"] for row in rows)
    count.update(_sign(row) for row in rows)
    of = f"{len(rows)} of {sum(record['possible'] for record in records)}"
    return [title, of, mutate.score(rows), *(str(count[one] or "") for one in (*_OUTCOMES, *SIGNS))]


def _sign(row: dict[str, Any]) -> str:
    """Return what a survivor was argued to be."""
    return row["argued"][0] if "argued" in row else ""


def _survivor(name: str, row: dict[str, Any]) -> list[str]:
    code = (f"`{row[text].partition('  #')[0]}`" for text in ("old", "new"))
    why = row["argued"][1] if "argued" in row else ""
    return [f"{name}, line {row['line']}", *code, SIGNS.get(_sign(row), "not argued"), why]


def _summary(rows: list[Row]) -> str:
    """Return how many faults each track has, and which levels caught them."""
    tracks: dict[str, list[Row]] = {}
    for row in rows:
        track, slash, _ = row["recipe"].partition("/")
        tracks.setdefault(f"recipes, {track}" if slash else f"words of `{track}`", []).append(row)
    levels = list(dict.fromkeys(row["level"] for row in rows))
    cells = [
        [where, str(len(held)), *(str(sum(row["level"] == level for row in held) or "") for level in levels)]
        for where, held in tracks.items()
    ]
    return table(["planted in", "faults", *(f"caught by {level or 'no level'}" for level in levels)], cells)


def _table(rows: list[Row]) -> str:
    several = any(row["variant"] for row in rows)
    heads = ["what was changed", *["in the variant"] * several, "level", "what it said"]
    cells = [[row["what"], *[row["variant"]] * several, row["level"] or "missed", row["by"]] for row in rows]
    return table(heads, cells, right=len(heads))


def _row(fault: Any) -> Row:
    return {**fault._asdict(), "edit": str(fault.edit)}


def _find_tests() -> None:
    """Makes the test modules known to `import`."""
    sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS if str(ROOT / folder) not in sys.path]


@cache
def _test_module(name: str) -> ModuleType:
    """tests/`name`.py, loaded by its path: two folders have a file of one name."""
    spec = importlib.util.spec_from_file_location(f"faults_of_{name.replace('/', '_')}", ROOT / f"tests/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _of_suites() -> list[tuple[Any, Any]]:
    """(suite, fault) of all test modules: `planted.Suite`, `mutations.Mutation`."""
    _find_tests()
    suites = [suite for name in IN_RECIPES for suite in _test_module(name).SUITES]
    return [(suite, fault) for suite in suites for fault in suite.faults]


def main() -> int:
    """Prints the record, or makes it; 1 if a fault was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the record as JSON, with the edits")
    parser.add_argument("--write", action="store_true", help="run every fault and write the record")
    parser.add_argument("--new", action="store_true", help="with --write: run only faults that are not on record")
    chosen = parser.parse_args()
    if chosen.write:
        RECORD.write_text(json.dumps(run(recorded() if chosen.new else None), indent=1) + "\n", encoding="utf-8")
    rows = recorded()
    if chosen.json:
        print(json.dumps(rows, indent=1))
    else:
        width = max(len(row["recipe"]) for row in rows)
        for row in rows:
            where = f"{row['variant']}: " * bool(row["variant"])
            print(f"{row['recipe']:{width}}  {row['level'] or 'missed':8}  {where}{row['what']}  [{row['by']}]")
    return int(not all(row["level"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
