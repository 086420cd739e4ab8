"""Report a check: a line for each level, of what ran here or of what is recorded, and the report of them all."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cookbook.check.ran import Shape
from cookbook.measure import records
from cookbook.recipe.catalog import Recipe
from cookbook.recipe.majors import DEFAULT

PASSED, FAILED, RECORDED, STALE, NOT_CHECKED = "passed", "failed", "recorded", "stale", "not checked"


@dataclass(frozen=True)
class Level:
    """One line of a report."""

    level: str
    status: str  # passed, failed, recorded, stale, not checked
    dtype: str | None = None
    target: str | None = None
    shape: Shape | None = None
    variant: str | None = None  # of a recipe that has several kernels for one thing
    majors: str | None = None  # of the operands, of a recipe that takes several
    figures: dict[str, Any] = field(default_factory=dict)
    reason: str = ""  # why it failed, or why it was not checked here
    device: str | None = None  # of a recorded or GPU level
    date: str | None = None  # of a recorded level
    without: tuple[str, ...] = ()  # variants that a record says nothing of
    seconds: float = 0.0
    record: records.Record | None = None  # what `--record` would write: measured just now

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict, without the record."""
        return {key: value for key, value in asdict(self).items() if key != "record"}


@dataclass(frozen=True)
class Report:
    """Every level of one recipe."""

    recipe: str
    levels: tuple[Level, ...]
    checked: str = ""  # which code was looked at, in words

    @property
    def ok(self) -> bool:
        """True if all that could be checked here holds; stale or not checked levels say nothing."""
        return all(level.status != FAILED for level in self.levels)

    @property
    def failed(self) -> tuple[Level, ...]:
        """The levels that do not hold."""
        return tuple(level for level in self.levels if level.status == FAILED)

    @property
    def not_checked(self) -> tuple[Level, ...]:
        """The levels that this machine could not check and no current record covers."""
        return tuple(level for level in self.levels if level.status in (STALE, NOT_CHECKED))

    def to_json(self) -> dict[str, Any]:
        """`{"recipe", "checked", "ok", "levels": [...]}`."""
        levels = [level.to_json() for level in self.levels]
        return {"recipe": self.recipe, "checked": self.checked, "ok": self.ok, "levels": levels}


def of_findings(level: str, found: list[Any], figures: dict[str, Any] | None = None, **where: Any) -> Level:
    bad = [f"{finding.name}: {finding.detail}" for finding in found if not finding.ok]
    figures = figures if figures is not None else {f.name: f.detail for f in found}
    if not found:
        bad = ["nothing was looked at"]
    apart = "\n" if any("\n" in each for each in bad) else "; "
    return Level(level, FAILED if bad else PASSED, figures=figures, reason=apart.join(bad), **where)


def of_gpu(record: records.Record, bad: str, dtype: str | None, made: records.Record | None) -> Level:
    """A level that was run here, by the record of it. made: what `--record` would write, if anything."""
    return replace(_of_record(record, FAILED if bad else PASSED, bad), dtype=dtype, record=made)


def recorded_levels(recipe: Recipe, level: str, dtype: str | None, reason: str, majors: str = DEFAULT) -> list[Level]:
    """Return what results/ holds for a level that is not checked here; nothing, of code that differs from the
    recipe's."""
    if recipe.changed:
        return [Level(level, NOT_CHECKED, dtype, reason=f"{reason}; no record: {recipe.changed}")]
    found = records.select(recipe.name, level, dtype, majors=recipe.told_apart(majors))
    if not found:
        missing = "nothing recorded" + (": not run on hardware" if level == "ran" else "")
        return [Level(level, NOT_CHECKED, dtype, reason=f"{reason}; {missing}")]
    return [replace(_recorded(record, reason), without=added_since(recipe, record)) for record in found]


def added_since(recipe: Recipe, record: records.Record) -> tuple[str, ...]:
    """The variants of a GEMM that a record of it says nothing of, for they came after it."""
    kernels = record.get("kernels", ())
    named = {kernel.get("variant") for kernel in kernels if kernel["recipe"] == recipe.name} - {None}
    if not named:
        return ()
    today = recipe.product.variants(recipe.module, record["target"], record["dtype"], DEFAULT)
    return tuple(variant for variant in today if variant not in named)


def _recorded(record: records.Record, reason: str) -> Level:
    if records.is_stale(record):
        return _of_record(record, STALE, f"{reason}; the recipe's code has changed since this record")
    if record["status"] != PASSED:
        return _of_record(record, FAILED, "recorded as failed on this very code")
    return _of_record(record, RECORDED, reason)


def _of_record(record: records.Record, status: str, reason: str = "") -> Level:
    return Level(
        record["level"],
        status,
        record["dtype"],
        shape=tuple(record["shape"]) if record["shape"] else None,
        figures=records.figures_of(record),
        reason=reason,
        device=record["device"],
        date=record["date"],
    )


def by_x(shape: Shape) -> str:
    """M x N x K as a text."""
    return "x".join(map(str, shape))
