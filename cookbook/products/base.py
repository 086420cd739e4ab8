"""The questions that the package asks of a kind of product, with default answers. A kind gives the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from cookbook.check.product import problems

if TYPE_CHECKING:
    from cookbook.check.calls import Call
    from cookbook.check.findings import Finding
    from cookbook.check.pipeline.programs import Problem
    from cookbook.check.product.memory import Operand
    from cookbook.check.product.problems import Case, Judged, Place
    from cookbook.check.reports import Level
    from cookbook.measure.contest import Contest
    from cookbook.measure.kernels import Kernel
    from cookbook.measure.records import Record
    from cookbook.recipe.catalog import Recipe

__all__ = ["Modelled", "Product", "Shape", "Usage"]

Shape = tuple[int, ...]
Progress = Callable[[str], None]


class Usage(NamedTuple):
    """The call of a copied file."""

    names: str  # what is imported of it
    call: str
    where: str  # what the call's arguments are


class Modelled(NamedTuple):
    """The result of a simulated data path."""

    figures: dict[str, Any]
    problems: list[str]
    reason: str = ""  # why it was not simulated


class Product:
    """A kind of product: one instance, `PRODUCT`, in its file."""

    is_gemm = False
    of_one_product = False  # it multiplies one matrix by one other: neither several products, nor two in a row
    of_two_matrices = False  # `matmul` takes a and b alone, of one dtype

    # --- levels ---
    levels: tuple[str, ...] = ()  # the levels that a check has of it, in their order

    def asked(self, recipe: Recipe) -> tuple[type, ...]:
        """The protocols that its module fulfils."""
        raise NotImplementedError

    def usage(self, recipe: Recipe) -> Usage | None:
        """Return how a copied file is called; None: it has no public entry point."""
        return None

    # --- shapes ---

    def fits(self, recipe: Recipe, shape: Shape) -> tuple[bool, str]:
        """Return whether a recipe takes a shape, and what it takes."""
        return False, "none"

    def majors_for(self, recipe: Recipe, shapes: Iterable[Shape], majors: tuple[str, ...]) -> tuple[str, ...]:
        """Return those asked for; if none, all of the recipe's that each of the shapes can have."""
        return recipe.majors

    def model_shapes(self, recipe: Recipe, majors: str) -> tuple[Shape, ...]:
        """Return what the model simulates when nothing is said; () if it has no model."""
        return ()

    def bench_shapes(self, recipe: Recipe) -> tuple[Shape | None, ...]:
        """Return what is timed when nothing is said; None: it chooses for itself."""
        return recipe.bench_shapes

    def fitting(self, recipe: Recipe, shapes: tuple[Shape, ...], majors: str) -> tuple[Shape, ...]:
        """Return those of a list of shapes that are timed of it."""
        return tuple(shape for shape in self.bench_shapes(recipe) if shape)

    # --- levels that run anywhere ---

    def variants(self, module: Any, target: str, dtype: str | None, majors: str) -> dict[str, Any]:
        """The configurations for a target by variant; under the name "" if there is a single kernel."""
        raise NotImplementedError

    def layouts(self, module: Any, dtype: str | None, config: Any) -> list[Finding]:
        """Level "layout" of one configuration."""
        raise NotImplementedError

    def layout_figures(self, found: list[Finding]) -> dict[str, Any]:
        """The figures of a level "layout"."""
        return {each.name: each.detail for each in found}

    def modelled(self, recipe: Recipe, module: Any, dtype: str, shape: Shape, config: Any) -> Modelled:
        """The data path of the layouts, simulated."""
        raise NotImplementedError

    def functions(self, module: Any) -> list[Finding]:
        """Return what the functions of a kernel's epilogues compute; [] if it has none."""
        return []

    def probes(self, module: Any) -> tuple[str, ...]:
        """More kernels that levels "product" and "pipeline" follow."""
        return ()

    def probed(self, module: Any, name: str) -> AbstractContextManager[Any]:
        """The configuration of one of `probes`, as long as this lasts."""
        raise NotImplementedError

    def more_kernels(self, module: Any) -> dict[str, Any]:
        """More configurations that level "compiled" looks at, by name."""
        return {}

    def instructions(self, module: Any, config: Any) -> tuple[str, ...]:
        """Mnemonics that one variant must have, beside those of the front matter."""
        return ()

    def element(self, recipe: Recipe) -> str:
        """Return what MMAs multiply where C does not say it; ""."""
        return ""

    def problems(self, module: Any, config: Any) -> tuple[Case, ...]:
        """The problems that level "product" follows a kernel for."""
        return problems.usual(module, config)

    def judged(self, config: Any, problem: Problem, beyond: bool) -> Judged:
        """Return what level "product" tells a launch besides, and what C has to be. beyond: ends lie outside of the
        matrix."""
        return problems.Judged()

    def per_byte(self, form: Any) -> int:
        """Elements of A and B in one of memory."""
        return 1

    def multiplied_as(self, name: str, dtypes: dict[str, str], form: Any) -> str:
        """The type of an operand's elements, by those that the pointers of the launch say."""
        return dtypes[name]

    def placed(self, place: Place) -> Operand | None:
        """Return where an operand lies; None: as A, B or C do."""
        return None

    def words(self, module: Any, config: Any, n: int, k: int, operands: dict[str, Operand]) -> tuple[Any, dict]:
        """Split a weight that is followed bit by bit: its words, and the operands that these belong to."""
        return None, {}

    def block(self, form: Any, per_byte: int) -> int:
        """Elements of memory along K that share a scale factor which MMAs multiply by; 0: there are none."""
        return 0

    def drawn_call(self, recipe: Recipe, drawn: dict[str, Any]) -> Call:
        """The call of `matmul` that a choice out of `check.calls.CHOICES` stands for."""
        raise NotImplementedError

    def illegal(self) -> dict[str, Callable[[Call], None]]:
        """By name, what makes a legal call one that a recipe must refuse."""
        return {}

    def host_findings(self, seen: Any, recipe: Recipe) -> list[Finding]:
        """Return what else holds of the launches that a `check.watched.Watched` module makes."""
        return []

    # --- levels that need a GPU, and records ---

    def measures(self, recipe: Recipe, level: str) -> bool:
        """Return whether it has a level that needs a GPU."""
        return level in self.levels

    def runs(self, recipe: Recipe, level: str) -> Recipe:
        """The recipe whose kernels a level runs."""
        return recipe

    unmeasured_levels = ("timed", "counted", "sanitized")

    def unmeasured(self, recipe: Recipe) -> str:
        """Why a recipe is not timed yet, nor run by NVIDIA's tools; "" if it is."""
        return ""

    def of_own_code(self, level: str) -> bool:
        """Return whether a level that needs a GPU can look at code that differs from the packaged recipe's."""
        return False

    times_itself = False  # a level that shares the GPU may measure speed

    def measured(
        self, recipe: Recipe, level: str, dtype: str | None, shapes: tuple[Shape, ...], majors: str
    ) -> list[Level]:
        """A level that needs a GPU, run on the one that is here."""
        raise NotImplementedError

    def is_benched(self, recipe: Recipe) -> bool:
        """Return whether `cookbook bench` takes a recipe."""
        return True

    def bench(self, recipe: Recipe, options: Any) -> Iterator[Record]:
        """A record for each of `bench.Options`."""
        raise NotImplementedError

    def standard(self, recipe: Recipe) -> str:
        """Torch's own that a recipe is first of all compared with."""
        return ""

    def contest(self, recipe: Recipe, shape: Shape, dtype: str, majors: str, quack: bool, own: bool) -> Contest:
        """A recipe and all that it is timed against."""
        raise NotImplementedError

    def host_costs(self, recipe: Recipe, dtype: str, majors: str, quack: bool) -> dict[str, dict[str, float]]:
        """Microseconds of the host that a call takes, by variant; {}: not measured."""
        return {}

    def launch(self, recipe: Recipe, dtype: str, majors: str, shapes: Iterable[Shape]) -> None:
        """Launch each kernel that NVIDIA's tools are to look at, and make sure that it was right."""
        raise NotImplementedError

    def distribution(self, recipe: Recipe) -> str:
        """Return what inputs are drawn from where no level says otherwise."""
        return "normal(0, 1)"

    def inputs_in_words(self, recipe: Recipe) -> str:
        """The same in a sentence."""
        return "normal inputs"

    def read_bytes(self, recipe: Recipe, shape: Shape) -> float:
        """Bytes of A and B, each read once, without scale factors; 0 where these are not all that is read."""
        return 0

    def kernels(self, recipe: Recipe, module: Any, record: Record, target: str) -> list[Kernel]:
        """The kernels that may have been launched for a record."""
        raise NotImplementedError

    def compile(self, module: Any, kernel: Kernel) -> Any:
        """Compile one of `kernels`."""
        raise NotImplementedError
