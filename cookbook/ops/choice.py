"""Choose the recipe for two matrices: by architecture, majors, alignment and shape, the one predicted to be fastest.

A recipe says in its front matter, under `serves`, that it may be chosen. What it takes is asked of its host side, what
variant it would choose of the recipe itself, and its time of cookbook.ops.predict.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from cookbook.ops import predict
from cookbook.recipe import catalog, operator
from cookbook.recipe.contract import Chooses, Family, Predicts
from cookbook.recipe.majors import letters, swaps

__all__ = ["H200", "Gpu", "Laid", "Option", "family", "laid", "memory_at", "options", "ranked"]


class Gpu(NamedTuple):
    """The choice's figures of a GPU."""

    capability: tuple[int, int]
    sms: int
    memory: float = 1.0  # its memory's peak bandwidth as a part of an H200's


H200 = Gpu((9, 0), 132)
H200_GBPS = 4_800  # its datasheet
ADDS_BIAS = "add_bias"  # what a recipe fuses that serves products with a bias
DOUBT = 1.15  # predictions are off by a tenth, and a copy takes memory: it has to promise more than that


class Laid:
    """A matrix of 16-bit elements as recipes' checks see it: how it lies, and no memory."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...], misaligned: int = 0) -> None:
        """misaligned: bytes that it begins behind a multiple of 16."""
        self.shape, self._strides, self._misaligned = shape, strides, misaligned

    def stride(self, mode: int | None = None) -> Any:
        return self._strides if mode is None else self._strides[mode]

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return self._misaligned


def laid(x: Any) -> Laid:
    """Return how a matrix lies: a tensor's, real or fake, or a shape's, of adjacent elements in rows."""
    if isinstance(x, tuple):
        return Laid(x, (x[1], 1))
    try:
        misaligned = x.data_ptr() % 16
    except RuntimeError:  # a fake tensor: memory of torch's own is aligned, a view into it may not be
        misaligned = 2 * int(x.storage_offset()) % 16
    return Laid(tuple(map(int, x.shape)), tuple(map(int, x.stride())), misaligned)


class Option(NamedTuple):
    """One recipe for a product."""

    recipe: str
    variant: str  # its name, of a Config without one its fields; "" of a recipe with one kernel
    majors: str  # that the kernel reads
    copies: dict[str, str]  # why an operand has to be copied first, by its name
    kernel_us: float  # predicted
    copy_us: float  # of operands, and of a C that the kernel cannot write
    bias_us: float = 0.0  # of a kernel that adds the bias behind this one
    epilogue: str = ""  # the fused one that adds it
    kernel: Any = ""  # what the recipe's `matmul` takes for `variant`: a name, or a Config of its family

    @property
    def us(self) -> float:
        """Predicted microseconds on the GPU, copies included."""
        return self.kernel_us + self.copy_us + self.bias_us

    @property
    def doubted_us(self) -> float:
        """`us`, more where something is copied: by this options are compared."""
        return self.us * (DOUBT if self.copies else 1)


def options(a: Laid, b: Laid, dtype: str, gpu: Gpu, bias: bool = False) -> list[Option]:
    """Return what could compute a (M, K) times b (K, N), the best of each recipe, the one to choose first.

    Args:
        dtype: torch's name.
        bias: one is added.

    Recipes with fused epilogues are for products with a bias alone. Raises ValueError if no recipe serves the GPU.
    """
    best: dict[str, Option] = {}
    for option in ranked(a, b, dtype, gpu, bias):
        best.setdefault(option.recipe, option)
    return list(best.values())


def ranked(a: Laid, b: Laid, dtype: str, gpu: Gpu, bias: bool = False) -> list[Option]:
    """Every kernel that could, with the arguments of `options`: each of a family, of other recipes what they choose."""
    serving = candidates(gpu.capability, ADDS_BIAS if bias else "")
    found = [each for recipe, rate in serving if dtype in recipe.dtypes for each in _options(recipe, rate, a, b, gpu)]
    if bias:
        apart = predict.bias_us(a.shape[0] * b.shape[1])
        found = [option if option.epilogue else option._replace(bias_us=apart) for option in found]
    if not found:
        served = sorted({arch for recipe in catalog.recipes() for arch in recipe.serves})
        raise ValueError(f"a: got a GPU of compute capability {gpu.capability}; needed {', '.join(served)} or later")
    return sorted(found, key=lambda option: option.doubted_us)


@lru_cache(maxsize=32)
def candidates(capability: tuple[int, int], fuses: str = "") -> tuple[tuple[catalog.Recipe, int], ...]:
    """The recipes that serve a GPU, with their rate there: that of the latest architecture up to the GPU's.

    fuses: with those that are for products with this epilogue alone.
    """
    found = []
    for recipe in catalog.recipes():
        if recipe.fuses not in ("", fuses):
            continue
        rates = {catalog.capabilities(arch)[0]: rate for arch, rate in recipe.serves.items()}
        known = [each for each in rates if each <= capability]
        if known and recipe.runs_on_capability(*capability):
            found.append((recipe, rates[max(known)]))
    return tuple(found)


@lru_cache(maxsize=32)
def memory_at(index: int) -> float:
    """The peak bandwidth of a visible GPU's memory as a part of an H200's, two digits of it; 1.0: its driver says none.

    Args:
        index: of the GPU, as torch counts them.
    """
    return float(f"{_peak_gbps(index) / H200_GBPS:.2g}") or 1.0


def _peak_gbps(index: int) -> float:
    """Gigabytes a second of a GPU's memory, by its clock and the width of its bus, two transfers a clock; 0.0: unknown.

    `memory_clock_rate` (kHz) and `memory_bus_width` (bits) of the CUDA driver: CUDA Driver API, cuDeviceGetAttribute.
    """
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue]  # it is compiled code

    of = driver.CUdevice_attribute
    wanted = of.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, of.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH
    error, device = driver.cuDeviceGet(index)
    found = [] if int(error) else [driver.cuDeviceGetAttribute(each, device) for each in wanted]
    if not found or any(int(error) for error, _ in found):
        return 0.0
    (_, khz), (_, bits) = found
    return 2 * khz * bits / 8 / 1e6


def _options(recipe: catalog.Recipe, rate: int, a: Laid, b: Laid, gpu: Gpu) -> Iterator[Option]:
    """Each kernel of a recipe that is compared."""
    module, arch = recipe.module, "sm_{}{}".format(*gpu.capability)
    of_a, of_b = operator.fit(module.GEMM, a, b)
    (m, _), n, k = a.shape, b.shape[1], max(of_a.k, of_b.k)
    copies = {name: each.why for name, each in (("a", of_a), ("b", of_b)) if each.why}
    chip = predict.chip_with(gpu.memory)
    copied = sum(predict.copy_us(x.shape[0] * x.shape[1], chip) for name, x in (("a", a), ("b", b)) if name in copies)
    if module.GEMM.padded and n % 8:  # into rows of whole 16-byte pieces, of which C is copied
        copied += predict.narrow_us(m * n, chip)
    majors, work = letters(of_a.major, of_b.major), predict.Work(m, n, k, gpu.sms, rate)
    if isinstance(module, Family):
        kernels: Iterable[tuple[str, Any, Any]] = family(recipe.name)
    else:
        name = variant_of(module, m, n, k, gpu.sms)
        kernels = [(name, default_of(module), config_of(module, arch, name))]
    for name, kernel, config in kernels:
        us = predicted(module, config, work, gpu.memory)
        yield Option(recipe.name, name, majors, copies, us, copied, epilogue=recipe.fuses, kernel=kernel)


@lru_cache(maxsize=32)
def family(name: str) -> tuple[tuple[str, Any, Any], ...]:
    """The kernels of a recipe whose tiles are a family: name, what `matmul` takes for `variant`, and the Config."""
    module, baselines = catalog.load(name), catalog.find(name).baselines
    found = {config: (variant, variant) for variant, config in module.VARIANTS.items() if variant not in baselines}
    taken = set(module.VARIANTS)
    for values in product(*module.FAMILY.values()):
        try:
            config = module.sized(*values)
        except ValueError:  # no such kernel
            continue
        if label(config) not in taken:  # or a page has one that differs in how its parts are divided
            found.setdefault(config, (label(config), config))
    return tuple((variant, kernel, config) for config, (variant, kernel) in found.items())


def label(config: Any) -> str:
    """A Config in words: its tile, and the fields that say more than how large its parts are."""
    usual = {each.name: each.default for each in fields(config)}
    said = [f"{config.tile_m}x{config.tile_n}"]
    for name in ("pingpong", "swap_ab"):
        said += [name] if getattr(config, name, False) else []
    for name in ("cluster_m", "cluster_n", "split_k"):
        said += [f"{name} {getattr(config, name)}"] if name in usual and getattr(config, name) > 1 else []
    return ", ".join(said)


def predicted(module: Any, config: Any, work: predict.Work, memory: float = 1.0) -> float:
    """Microseconds of a recipe's kernel: its own prediction, if it has one and no family. memory: as in `Gpu`."""
    if _predicts(module):
        figures = module.H200._replace(memory=module.H200.memory * memory)
        return module.microseconds(config, work.m, work.n, work.k, work.sms, figures)
    return predict.microseconds(config, work, swaps(module, config), predict.chip_with(memory))


@lru_cache(maxsize=64)
def _predicts(module: Any) -> bool:
    """Return whether a recipe has a prediction of its own. To ask a module for a protocol takes longer than to
    predict."""
    return isinstance(module, Predicts) and not isinstance(module, Family)


def variant_of(module: Any, m: int, n: int, k: int, sms: int) -> str:
    """The variant that a recipe's `matmul` takes if it is not told."""
    return module.choose(m, n, k, sms) if isinstance(module, Chooses) else default_of(module)


def default_of(module: Any) -> str:
    """Return what a recipe's `matmul` has for `variant` if it is not told: "" if it takes none."""
    told = inspect.signature(module.matmul).parameters.get("variant")
    return told.default if told else ""


def config_of(module: Any, arch: str, variant: str) -> Any:
    """A recipe's Config of a variant on an architecture."""
    if not hasattr(module, "config_for"):
        return module.VARIANTS[variant] if variant else module.CONFIG
    return module.config_for(arch, variant) if variant else module.config_for(arch)
