"""Names, in a record, of the kernels that may have been launched for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["SHAPES", "WIDTHS", "Kernel"]

WIDTHS = (8, 4, 2, 1)  # elements per store of C, where software stores it: the widest that fits
SHAPES = ("ran", "sanitized")  # levels of many shapes, and so of stores of any width


@dataclass(frozen=True)
class Kernel:
    """A unit of compilation: a kernel, or several that a recipe compiles together."""

    recipe: str  # or a suite of probes
    target: str
    dtype: str = ""
    majors: str = ""
    variant: str = ""
    vec: int = 0  # elements per store of C; 0: the recipe has no such choice
    changes: tuple[tuple[str, Any], ...] = ()  # fields of the configuration, with other values than the variant's

    def to_json(self) -> dict[str, Any]:
        """Return what is set, as a mapping."""
        return {k: dict(v) if k == "changes" else v for k, v in asdict(self).items() if v}

    @staticmethod
    def from_json(made: dict[str, Any]) -> Kernel:
        """`to_json` read back; other keys are left out."""
        known = {k: made[k] for k in ("recipe", "target", "dtype", "majors", "variant", "vec") if k in made}
        return Kernel(**known, changes=tuple(sorted(made.get("changes", {}).items())))

    def __str__(self) -> str:
        changes = (f"{key}={value}" for key, value in self.changes)
        words = (self.recipe, self.target, self.dtype, self.majors, self.variant, f"vec={self.vec}" * bool(self.vec))
        return " ".join(word for word in (*words, *changes) if word)
