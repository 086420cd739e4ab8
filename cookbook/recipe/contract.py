"""The contract of a recipe's module: everything that the rest of the package asks of it, on one page.

A recipe is what its front matter says (`catalog.Recipe`), and a module that has the names of the protocols which
`asked_of` gives for it. The other protocols are for recipes that do more; who needs one asks `isinstance(module, ...)`.
CuTe's and torch's types are `Any` here, so that nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from cookbook.recipe.catalog import Recipe

__all__ = [
    "BlockScaled",
    "Calibrated",
    "CalibratedByTimes",
    "Calibrates",
    "Ceilings",
    "Chained",
    "Chooses",
    "Copies",
    "DividedK",
    "Exercises",
    "Experiment",
    "ExperimentStudy",
    "Family",
    "FloatScaled",
    "Fused",
    "Gemm",
    "Grouped",
    "InstructionCeilings",
    "Integer",
    "Linked",
    "Move",
    "Packed",
    "Predicts",
    "Reads",
    "Reduces",
    "SizedByChip",
    "Study",
    "TensorCores",
    "Transpose",
    "Variants",
    "Wavefronts",
    "asked_of",
    "missing",
]


# --- GEMMs ------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Gemm(Protocol):
    """`kind: gemm`. `dtype` is a cutlass numeric type, `config` the recipe's own frozen dataclass.

    A Config has tile_m, tile_n, tile_k, stages, threads, and smem_bytes: the dynamic shared memory of a launch. With
    `majors` in the front matter also a_major ("k" or "m") and b_major ("k" or "n").
    """

    Config: type
    CONFIG: Any  # the default Config

    def compile_for(self, arch: str, dtype: Any, config: Any = None, *, options: str = "") -> Any:
        """The compiled kernel; no GPU is needed. arch: "sm_90a"; "" is the GPU that is here."""
        ...

    def prepare(self, call: Any) -> tuple[tuple, tuple]:
        """For an `entry.Call`: what `compile_for` takes after the dtype, what the kernel takes before the stream."""
        ...

    GEMM: Any  # the host side: `entry.Gemm(compile_for, prepare, gpus=..., needs=...)`

    def matmul(self, a: Any, b: Any, *, out: Any = None) -> Any:
        """The public entry point: a (M, K) times b (K, N)."""
        ...


@runtime_checkable
class TensorCores(Protocol):
    """A GEMM without `tensor_cores: false`: it multiplies on them, out of tiles in shared memory."""

    def smem_layouts(self, dtype: Any, config: Any) -> Any:
        """Named tuple of composed layouts a (M, K, STAGE), b (N, K, STAGE), and c unless C stays in registers."""
        ...

    def tiled_mma(self, dtype: Any, config: Any) -> Any:
        """The cute.TiledMma."""
        ...

    def tiled_copies(self, dtype: Any, config: Any) -> Any:
        """Named tuple of the cute.TiledCopy of each copy that touches shared memory: g2s_a, s2r_a, r2s_c, s2g_c, ..."""
        ...


@runtime_checkable
class SizedByChip(Protocol):
    """Its sizes depend on the chip."""

    def config_for(self, arch: str) -> Any:
        """The Config for an architecture; without this, CONFIG serves them all."""
        ...


@runtime_checkable
class Variants(Protocol):
    """It has several kernels to compare, each a Config; `matmul(..., variant=NAME)` runs one."""

    VARIANTS: Mapping[str, Any]  # in the order to read them; `config_for(arch, NAME)` fits one to a chip


@runtime_checkable
class Chooses(Protocol):
    """It has heuristics: `matmul` without a variant takes the one that `choose` names."""

    VARIANTS: Mapping[str, Any]

    def choose(self, m: int, n: int, k: int, sms: int) -> str:
        """The variant for C (m, n) over k on a GPU of `sms` SMs."""
        ...


@runtime_checkable
class Family(Protocol):
    """Its tiles are a family: any Config is a variant, `matmul(..., variant=CONFIG)`, compiled at the first call."""

    VARIANTS: Mapping[str, Any]  # those that its page speaks of
    FAMILY: Mapping[str, Sequence[Any]]  # the fields that `sized` takes, and the values of each

    def sized(self, *fields: Any) -> Any:
        """The Config with these fields, in the order of FAMILY; ValueError: there is none."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """It predicts its own times: `cookbook.ops` compares these with what it predicts of other recipes."""

    H200: Any  # a NamedTuple of figures, `memory` (bytes a nanosecond) among them

    def microseconds(self, config: Any, m: int, n: int, k: int, sms: int, gpu: Any) -> float:
        """Predict the time of a product C (m, n) over k with a Config, on a GPU of `sms` SMs and such figures."""
        ...


@runtime_checkable
class Fused(Protocol):
    """Its kernel applies a function to each element of the product: `matmul(a, b, epilogue=NAME, **operands)`.

    Its Config has `epilogue`, a name of EPILOGUES: in CONFIG and VARIANTS that of the product alone.
    """

    # by name: what a kernel does to a thread's accumulators, in CuTe's terms. The parameters after the first name the
    # operands. Of the dtype of C: bias (N), residual (M, N), up (K, N), whose product with A the function gets. Of
    # float32: row_scale (M, 1), column_scale (N), alpha and beta (1)
    EPILOGUES: MutableMapping[str, Callable[..., Any]]
    REFERENCES: Mapping[str, Callable[..., Any]]  # the same of torch tensors: x, residual and up's product (M, N)
    PEERS: Mapping[str, tuple[str, Callable[..., Any]]]  # of some: torch's own (a, b, out, **operands), and its name

    def fused(self, epilogue: str) -> Any:
        """The Config of one kernel that has an epilogue."""
        ...

    def host_side(self, epilogue: str) -> Any:
        """The `entry.Gemm` of the kernels that have an epilogue: the same one at each call."""
        ...


@runtime_checkable
class Reduces(Protocol):
    """`kind: reducing`: its `gemm` takes `amax`, a word that is 0 before and has the bits of the largest |C| after.

    All C[m, n] take part in it, as they are stored, and nothing else.
    """

    PEERS: Mapping[str, Callable[..., Any]]  # by name: torch's own (a, b, out), which gives C and its largest |C| too

    def matmul_amax(self, a: Any, b: Any, *, out: Any = None, amax: Any = None) -> tuple[Any, Any]:
        """C = a @ b and its largest |C|, float32 (1,); `matmul` returns C alone."""
        ...


@runtime_checkable
class Linked(Protocol):
    """It multiplies by one weight after the other, and its kernels overlap as no two calls of `matmul` may."""

    def chain(self, x: Any, weights: Sequence[Any], *, out: Any = None) -> Any:
        """x (M, K) times weights[0] (K, N), times weights[1] (N, ...), each product rounded to the dtype of x."""
        ...


@runtime_checkable
class Integer(Protocol):
    """`kind: integer`: elements of 8 bits with no scale factors; C is int32, and exact."""

    ELEMENT: Any  # cutlass type of the elements of A and B


@runtime_checkable
class FloatScaled(Protocol):
    """`operands: fp8` or `fp8_blockwise`: elements of 8 bits, and float32 scale factors that the kernel multiplies by.

    With `fp8` each row of A and each column of B has one; with `fp8_blockwise` each 1 x 128 elements of A, and each
    128 x 128 of B.
    """

    ELEMENT: Any  # cutlass types of the elements of A and B that the checks multiply, and of their scale factors
    SCALE: Any
    BLOCK: int  # elements along K to a factor; 0: all of them


@runtime_checkable
class Packed(Protocol):
    """`operands: int4`: the weight alone is narrow, in groups along K, and its threads make floats of it.

    Its Config has `bits`, `zeros` and `floats`: what weight the kernel is of. `gemm` takes `factors`, scales and zero
    points.
    """

    ELEMENT: Any  # cutlass type of the elements of the weight
    BLOCK: int  # elements along K to a scale

    def pack(self, weight: Any, scales: Any, zeros: Any = None) -> Any:
        """Pack a weight (N, K), scales and zero points (N, K / BLOCK): the named tuple that `matmul` takes behind a."""
        ...

    def words_of_threads(self, config: Any) -> Any:
        """Layout, in words, of what each thread loads: ((WORD, THREAD), CHUNK, GROUP, WARPGROUP, STAGE)."""
        ...


@runtime_checkable
class Grouped(Protocol):
    """`kind: grouped`: the rows of A are of groups, and each group has a B of its own. Its `gemm` takes `offs`.

    `kind: grouped_k`: K is divided, and each group has a product of its own. Its `gemm` takes `offs_k`.
    """

    def matmul(self, a: Any, b: Any, offs: Any, *, out: Any = None) -> Any:
        """a (M, K), b (GROUPS, K, N), offs (GROUPS,) int32 on the device: the row behind each group's last one. Or b is
        (K, N), and C (GROUPS, M, N). With `operands: fp8` b is followed by scale factors (M,) and (GROUPS, N)."""
        ...


@runtime_checkable
class Chained(Protocol):
    """`kind: chained`: the product, rounded, is A of a second product. Its `gemm` takes `pB2` and `middle`.

    Its Config has `middle`, the columns of the first product that a tile has: all of them.
    """

    def matmul(self, a: Any, b: Any, b2: Any, *, out: Any = None) -> Any:
        """a (M, K), b (K, N1), b2 (N1, N): C (M, N) is (a @ b) @ b2."""
        ...

    def second_mma(self, dtype: Any, config: Any) -> Any:
        """The cute.TiledMma of the second product, whose A is in registers."""
        ...


@runtime_checkable
class BlockScaled(Protocol):
    """`operands: mxfp8` or `nvfp4`: elements of 8 or 4 bits, with a scale factor for each BLOCK of them along K."""

    ELEMENT: Any  # cutlass types of the elements of A and B, and of their scale factors
    SCALE: Any
    BLOCK: int

    def to_atoms(self, scales: Any) -> Any:
        """Scale factors (rows, factors) in the order of atoms of 512 bytes."""
        ...

    def scale_views(self, rows: int, config: Any) -> Any:
        """Named tuple boxes, atoms, copied, steps: a tile's factors as TMA, tcgen05.cp and tcgen05.mma see them."""
        ...

    def operands(self, mma: Any, tiles: Any, address: Any, config: Any) -> Any:
        """Describe A and B as the tensor core takes them: named tuple elements, atoms, copied, steps."""
        ...


@runtime_checkable
class DividedK(Protocol):
    """Split-K in a cluster: its Config has split_k above 1, and reduction_bytes."""

    def reduction_buffer(self, config: Any) -> Any:
        """Layout, in float32, of the reduction buffer: (THREAD, (VEC, VECTORS), SENDER)."""
        ...


@runtime_checkable
class Calibrated(Protocol):
    """`fitted` or `measured_by`: its host side holds figures of one chip, and `cookbook calibrate` measures others."""

    CALIBRATION: Any  # the figures in use: a frozen dataclass, a comment behind each field or above it

    def calibrate(self, **figures: Any) -> Any:
        """Use these figures from now on, in place of those of their names; returns the new CALIBRATION."""
        ...


@runtime_checkable
class CalibratedByTimes(Protocol):
    """`fitted`: with the figures of these names, the costs of its VARIANTS are nearest to their times."""

    VARIANTS: Mapping[str, Any]

    def cost(self, config: Any, m: int, n: int, k: int, sms: int) -> float:
        """The cost of a product, by `CALIBRATION`, relative to the cost of another Config."""
        ...

    def choose(self, m: int, n: int, k: int, sms: int) -> str:
        """The variant that costs least."""
        ...


# --- transposes -------------------------------------------------------------------------------------------------------


class Move(Protocol):
    """One pass over a tile in shared memory."""

    tile: str  # of `smem_layouts`
    width: int  # elements of an access
    steps: int  # accesses of a thread
    place: Callable[[Any, Any], Any]  # (thread, step) -> (row, column) of the access's first element


@runtime_checkable
class Transpose(Protocol):
    """`kind: transpose`. Its Config has variant, bits, tile_m, tile_n, threads, smem_bytes."""

    VARIANTS: Sequence[str]
    INSTRUCTIONS: Mapping[str, Sequence[str]]  # by variant: SASS mnemonics beside those of the front matter

    def configs_for(self, arch: str, dtype: Any) -> dict[str, Any]:
        """Config by variant, those that the architecture has."""
        ...

    def beside(self, arch: str, dtype: Any) -> dict[str, Any]:
        """Configs by name that are timed too, and are none of the variants."""
        ...

    def smem_layouts(self, dtype: Any, config: Any) -> dict[str, Any]:
        """Composed layouts "x" (M, N) and "y" (N, M), those it uses."""
        ...

    def moves(self, config: Any) -> dict[str, Move]:
        """Every access to shared memory: r2s_x, s2g_x an element at a time; r2s_y, s2g_y blocks; s2r_x after TMA."""
        ...

    def expected_excess(self, config: Any) -> dict[str, tuple[int, str]]:
        """By move: wavefronts above the ideal of each instruction, and why."""
        ...

    def usable(self, x: Any, out: Any, capability: tuple[int, int]) -> dict[str, str]:
        """By variant, fastest first: what forbids it, or ""."""
        ...

    def compile_for(self, arch: str, dtype: Any, config: Any = None, options: str = "") -> Any:
        """As a GEMM's."""
        ...

    def transpose(self, x: Any, *, out: Any = None, variant: str = "auto") -> Any:
        """The public entry point."""
        ...

    def run(self, x: Any, out: Any, config: Any) -> Any:
        """The kernel in any Config."""
        ...


# --- studies ----------------------------------------------------------------------------------------------------------


@runtime_checkable
class Study(Protocol):
    """`kind: study`. With `targets` in the front matter also compile_for(arch, options=""): all its kernels in one."""

    def facts(self) -> list[tuple[str, bool, str]]:
        """A name, whether it holds, what was found and needed; each computed when this is called."""
        ...


@runtime_checkable
class Exercises(Protocol):
    """Its page has exercises: functions whose bodies the reader writes, which raise NotImplementedError until then, and
    functions with a planted fault, which the reader corrects.

    The docstring of each function is its task.
    """

    # by name of the function: a check that takes the reader's function and yields (question, got, needed)
    EXERCISES: Mapping[str, Callable[[Any], Iterable[tuple[str, Any, Any]]]]


@runtime_checkable
class Calibrates(Protocol):
    """A study that a GEMM names under `measured_by`."""

    def measure_figures(self) -> dict[str, Any]:
        """Figures of the present device by their name in a CALIBRATION, as JSON keeps them."""
        ...


@runtime_checkable
class Wavefronts(Protocol):
    """`measures: wavefronts`: ncu counts those of every shared-memory instruction of its kernels."""

    KERNELS: Mapping[str, Any]  # by name what `smem_layout` and `try_out` take
    MOVES: Mapping[str, Move]  # r2s, s2g
    DTYPE: Any  # cutlass type of the tile
    CONFIG: Any  # threads

    def smem_layout(self, which: Any) -> Any:
        """The tile of (rows, columns)."""
        ...

    def try_out(self, which: Any) -> tuple[Any, Any]:
        """Launch one kernel: what it gave, and what it should have."""
        ...


class Experiment(Protocol):
    """Another recipe's GEMM in several configurations, timed and counted."""

    recipe: str  # the GEMM's name
    shape: tuple[int, int, int]  # (M, N, K), M and N multiples of 8
    dtype: str  # torch's name
    configs: Mapping[str, Mapping[str, Any]]  # by name what changes in that recipe's Config; one changes nothing
    read_bytes: Mapping[str, int]  # by name what the study's model has each read from memory


@runtime_checkable
class ExperimentStudy(Protocol):
    """`measures: experiment`."""

    EXPERIMENT: Experiment


@runtime_checkable
class Ceilings(Protocol):
    """`measures: ceiling`: what the hardware gives at most."""

    def measure(self, rounds: int = 7) -> dict[str, dict[str, dict[str, float]]]:
        """By section and name: tflops or gbps, with _min and _max, or other figures."""
        ...


@runtime_checkable
class InstructionCeilings(Protocol):
    """With `ceiling_of: {wgmma: NAME}`: NAME(dtype=...) is the Config of a kernel of that instruction alone."""

    def runs_on(self, config: Any, arch: str) -> bool:
        """True if an architecture has the instruction."""
        ...

    Ceiling: Callable[..., Any]  # Ceiling(config)(rounds) launches; .turn_flops is the work of one round


@runtime_checkable
class Reads(Protocol):
    """A study of ceilings that has a kernel which only reads: the ceiling of a GEMM with `tensor_cores: false`."""

    def read(self, x: Any) -> int:
        """Reads a contiguous tensor, once; the bytes that it has read, which may be a few less than all."""
        ...


@runtime_checkable
class Copies(Protocol):
    """`measures: copies`: copies by TMA in several modes, of matrices of both majors."""

    MODES: Mapping[str, Any]
    MAJORS: Sequence[str]
    CONFIG: Any  # mode, major, lines, line_bytes, box_bytes, tile_bytes
    LOOK: Any  # the Config of the tile that `dump` and `restore` take

    def copy(self, x: Any, out: Any = None, mode: str = "", major: str = "") -> Any:
        """The public entry point."""
        ...

    def dump(self, x: Any, origin: tuple[int, int], mode: str, major: str, base: int) -> Any:
        """Give shared memory as TMA leaves it."""
        ...

    def restore(self, memory: Any, out: Any, origin: tuple[int, int], mode: str, major: str, base: int) -> Any:
        """Write shared memory out by TMA."""
        ...


# --- which of them ----------------------------------------------------------------------------------------------------


def asked_of(recipe: Recipe) -> tuple[type, ...]:
    """The protocols that a recipe's module fulfils because its front matter says so."""
    calibrated = (Calibrated, CalibratedByTimes) if recipe.fitted else (Calibrated,) if recipe.measured_by else ()
    return (*recipe.product.asked(recipe), *calibrated)


def missing(recipe: Recipe, module: ModuleType) -> list[str]:
    """Return what a module lacks of what is asked of it: "Gemm: tiled_mma"; [] if it lacks nothing."""
    lacking = []
    for protocol in asked_of(recipe):
        names = [name for name in _members(protocol) if not hasattr(module, name)]
        lacking += [f"{protocol.__name__}: {name}" for name in names]
    return lacking


def _members(protocol: type) -> list[str]:
    """The names that a protocol asks for, in its order."""
    named = dict.fromkeys([*protocol.__annotations__, *vars(protocol)])
    return [name for name in named if not name.startswith("_")]
