"""The recipes: found on disk, described by their front matter, loaded as modules, copied as files.

Nothing here imports torch or CuTe, but for `load`, by executing a recipe, and the operator of a copy (torch).
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from cookbook.recipe import cache, copy, figures, imports, versions
from cookbook.recipe import majors as operand_majors
from cookbook.recipe.cache import TVM_FFI
from cookbook.recipe.cells import module_code, without_lab
from cookbook.recipe.folders import published

TRACKS = ("primer", "foundations", "ampere", "hopper", "blackwell")
PRODUCTS = "cookbook.products"  # a file a kind, found by the name that the front matter has: this room is below it
MEASURES = ("wavefronts", "experiment", "copies", "ceiling")  # what a study may measure: recipe contract, likewise
ANYWHERE = "anywhere"


class CatalogError(ValueError):
    """A recipe's front matter does not say what the catalog needs."""


class NotLoaded(ImportError):
    """A file of code that Python does not load; the cause is what was raised."""


class UnknownRecipe(LookupError):
    """No recipe has the name that was asked for."""


class Source(NamedTuple):
    """A text that a recipe's page names at its end: a section of the PTX ISA, an article, an issue."""

    title: str
    url: str  # https://...


@dataclass(frozen=True)
class Recipe:
    """A recipe as its front matter (the YAML key `jupyter.cookbook`) describes it."""

    name: str  # "<track>/<file name>"
    file: Path
    title: str
    claim: str  # one sentence
    track: str
    order: int
    kind: str = "gemm"  # a file of cookbook/products/; only a study may leave out the next three
    targets: tuple[str, ...] = ()  # what it compiles for: ("sm_80", "sm_90a", ...)
    runs_on: str = ANYWHERE  # "sm_90" exactly, "sm_100, sm_103" for each of them, "sm_80+" for it and later ones
    dtypes: tuple[str, ...] = ()  # torch's names: ("bfloat16", "float16")
    path: str = ""  # the way of the data: "tma -> wgmma"
    builds_on: str | None = None  # the name of another recipe
    aside: str = ""  # the group of side pages that it is one of, "Few rows"; "": a step of its track's main line
    operands: str = ""  # what A and B are made of where that is not one of `dtypes`: see cookbook/recipe/formats.py
    tensor_cores: bool = True  # whether a GEMM multiplies on them, out of tiles in shared or tensor memory
    majors: tuple[str, ...] = (
        operand_majors.DEFAULT,
    )  # of the operands that a GEMM takes: see cookbook/recipe/majors.py
    # prefixes of SASS mnemonics that a cubin must hold, by target or majors; those under "all" every one must
    instructions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    max_smem: int | None = None  # bytes a block may use; None: the chip's own limit
    bench_shapes: tuple[tuple[int, ...], ...] = ()  # what `cookbook bench` times; (): what it times of every recipe
    compared_with: str | None = None  # another GEMM, of the same operands, that `cookbook bench` times as one more peer
    baselines: tuple[str, ...] = ()  # variants without the recipe's idea, which it is compared with
    # of a step of a main line: the shape where its idea pays, and the variant or recipe without it
    pays: dict[str, Any] = field(default_factory=dict)  # {at: [M, N, K], over: NAME}
    tuned: bool = False  # whether it is the GEMM to use on its track: pages show it size by size
    # of a GEMM that cookbook.ops may choose: multiply-adds that an SM does in a clock, by architecture: {"sm_90": 2048}
    serves: dict[str, int] = field(default_factory=dict)
    # of such a GEMM: its epilogue that cookbook.ops asks for, add_bias or swiglu; it then serves those, and no others
    fuses: str = ""
    fitted: tuple[str, ...] = ()  # figures of its Calibration that `cookbook calibrate` fits to its variants' times
    measured_by: str | None = None  # a study whose `measure_figures` gives others of them
    measures: str = ""  # what a study measures on a GPU, one of MEASURES; "" if nothing
    # of a study that measures ceilings: instruction -> the class that its module has for it
    ceiling_of: dict[str, str] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()  # `[{title: ..., url: ...}, ...]`: what its page ends with

    # Of a reader's code, "the cells above" or a file's name, and how it differs from the packaged one, in words.
    where = changed = ""

    @property
    def module(self) -> ModuleType:
        """Its code, executed when first asked for and kept in `sys.modules`. Raises what `load` raises."""
        return _module(self)

    @property
    def source(self) -> str:
        """The text of its code cells, with what they import of recipes written in."""
        return "\n\n".join(code(self))

    @property
    def said(self) -> str:
        """This code's name, in words."""
        return f"{self.name} as packaged"

    def instructions_for(self, target: str, majors: str = operand_majors.DEFAULT) -> tuple[str, ...]:
        """The SASS mnemonic prefixes that a cubin for `target` and operands of these majors must hold."""
        return tuple(name for key in ("all", target, majors) for name in self.instructions.get(key, ()))

    @property
    def product(self) -> Any:
        """Its kind of product, a `cookbook.products.base.Product`: the only place to ask for it."""
        return product_of(self.kind)

    def told_apart(self, majors: str) -> str | None:
        """`majors` if the recipe takes several: what a level or record must say to be told from the others."""
        return majors if len(self.majors) > 1 else None

    def runs_on_capability(self, major: int, minor: int) -> bool:
        """Return whether a GPU of compute capability `major`.`minor` runs this recipe."""
        if self.runs_on == ANYWHERE:
            return True
        wanted = capabilities(self.runs_on)
        return (major, minor) >= wanted[0] if self.runs_on.endswith("+") else (major, minor) in wanted

    @property
    def needs_gpu(self) -> str:
        """`runs_on` in words: "sm_80 or later", "sm_100 or sm_103"."""
        return self.runs_on.replace("+", " or later").replace(", ", " or ")

    def target_of(self, major: int, minor: int) -> str | None:
        """The compile target whose kernels a GPU of this capability runs, or None."""
        for target in self.targets:
            if re.fullmatch(rf"sm_{major}{minor}[af]?", target):
                return target
        return None


class FrontMatter(NamedTuple):
    """The front matter that a kind of product asks for."""

    name: str  # of the kind, as an error calls it: "a study"
    extents: str = ""  # letters of a shape
    keys: tuple[str, ...] = ()  # those of OF_SOME that it may have
    formats: tuple[str, ...] = ("",)  # what `operands` may name
    needs_kernel: bool = True  # it must say targets, runs_on and dtypes


@lru_cache(maxsize=64)
def front_matter_of(kind: str) -> FrontMatter:
    """FRONT_MATTER of a kind's file, a literal: to read it imports nothing. `like` is the kind, GEMM if not said, that
    has what it leaves out; the name is that kind's too."""
    text = Path(__file__).parents[1].joinpath("products", f"{kind}.py").read_text(encoding="utf-8")
    found = re.search(r"^FRONT_MATTER = (\{.*?\})$", text, re.MULTILINE | re.DOTALL)
    said = ast.literal_eval(found[1]) if found else {}
    said |= {key: tuple(said[key].split()) for key in ("keys", "formats") if key in said}
    if "name" in said:
        return FrontMatter(**said)
    return front_matter_of(said.pop("like", "gemm"))._replace(**said)


@lru_cache(maxsize=64)
def product_of(kind: str) -> Any:
    """The `PRODUCT` of a kind's file."""
    return importlib.import_module(f"{PRODUCTS}.{kind}").PRODUCT


def kinds() -> tuple[str, ...]:
    """The kinds of product: each a file that has one."""
    files = sorted(Path(__file__).parents[1].joinpath("products").glob("*.py"))
    return tuple(file.stem for file in files if "\nPRODUCT = " in file.read_text(encoding="utf-8"))


_RUNS_ON = r"sm_\d{2,3}(\+|(, sm_\d{2,3})*)"


def capabilities(architectures: str) -> list[tuple[int, int]]:
    """The compute capabilities that a text names: [(10, 0), (10, 3)] of "sm_100, sm_103"."""
    return [(int(digits[:-1]), int(digits[-1])) for digits in re.findall(r"\d+", architectures)]


def recipes_root() -> Path:
    """The folder of the recipes: the source tree's, or the copy inside an installed wheel."""
    return published("recipes")


def recipes(root: Path | None = None) -> list[Recipe]:
    """Every recipe, in reading order: by track, then by `order`.

    Raises:
        CatalogError: a file's front matter lacks a key or holds a wrong value.
    """
    root = root or recipes_root()
    found = [read(file, root) for file in sorted(root.glob("*/*.py")) if not file.name.startswith("_")]
    return sorted(found, key=lambda r: (TRACKS.index(r.track), r.order, r.name))


def find(name: str, root: Path | None = None) -> Recipe:
    """The recipe called `name`: its full name (`hopper/tma_wgmma_gemm`), or the last part of it.

    Raises:
        UnknownRecipe: there is none; the message suggests the nearest names.
    """
    root = root or recipes_root()
    if file := _named(name, root):
        return read(file, root)
    if name.endswith((".py", ".ipynb")):
        raise UnknownRecipe(f"name: got {name!r}, a file; needed the name of a recipe: {_FILES[Path(name).suffix]}")
    everything = recipes(root)
    likeness = {r.name: max(_likeness(name, r.name), _likeness(name, r.name.split("/")[1])) for r in everything}
    best = max(likeness.values(), default=0.0)  # one letter off is no question of which
    near = [n for n, like in likeness.items() if like >= max(0.6, best - 0.05)][:3]
    hint = f"did you mean {' or '.join(near)}?" if near else "`cookbook list` prints them"
    raise UnknownRecipe(f"name: got {name!r}; needed the name of a recipe: {hint}")


_FILES = {
    ".py": "`cookbook check` and `cookbook exercise` take a file",
    ".ipynb": "a notebook checks itself, by cookbook.lab.check_cells; `cookbook exercise` takes one with exercises",
}


def _named(name: str, root: Path) -> Path | None:
    """The file of a recipe, by its full name or the last part of it; no other file is read for that."""
    track, _, stem = name.rpartition("/")
    if stem.startswith("_") or not re.fullmatch(r"\w+", stem) or not re.fullmatch(r"\w*", track):
        return None
    try:
        found = list(root.glob(f"{track or '*'}/{stem}.py"))
    except OSError:  # a name too long for a file
        return None
    return found[0] if len(found) == 1 else None


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


# --- front matter -----------------------------------------------------------------------------------------


def read(file: Path, root: Path) -> Recipe:
    """The Recipe that the front matter of `file` describes; `file` lies in `root/<track>/`."""
    return _read(file, root, file.read_text(encoding="utf-8"))


@lru_cache(maxsize=256)
def _read(file: Path, root: Path, source: str) -> Recipe:
    """`read`, once for each text: a check asks for its recipe hundreds of times, and YAML takes milliseconds."""
    import yaml

    header = front_matter(source)
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C, where PyYAML has it
        described = yaml.load("\n".join(header), Loader=loader)["jupyter"]["cookbook"]
    except (TypeError, KeyError, yaml.YAMLError) as error:
        raise CatalogError(f"{file}: front matter: got {error!r}; needed the key jupyter.cookbook") from None
    name = file.relative_to(root).with_suffix("").as_posix()
    return _described(name, file, dict(described))


def front_matter(source: str) -> list[str]:
    """The YAML lines between the two `# ---` that open a recipe, without their comment signs; [] if none."""
    lines = source.splitlines()
    if not lines or lines[0].rstrip() != "# ---":
        return []
    for number, line in enumerate(lines[1:], start=1):
        if line.rstrip() == "# ---":
            return [text[2:] if text.startswith("# ") else text[1:] for text in lines[1:number]]
    return []


# Keys of front matter that not every kind may have: why not. Which may, its file says.
OF_SOME = {
    "majors": "has no operands A and B",
    "bench_shapes": "has no shapes",
    "compared_with": "is not compared with a GEMM",
    **dict.fromkeys(("measures", "ceiling_of"), "measures nothing but its own"),
    **dict.fromkeys(("operands", "tensor_cores", "tuned", "baselines", "serves", "fuses"), "does not take it"),
}


def _described(name: str, file: Path, described: dict[str, Any]) -> Recipe:
    known = {f.name for f in fields(Recipe)} - {"name", "file"}
    kind, there = described.get("kind", "gemm"), kinds()
    if kind not in there:
        raise CatalogError(f"{file}: kind: got {kind!r}; needed one of {', '.join(there)}")
    front = front_matter_of(kind)
    required = ["title", "claim", "track", "order"]
    if front.needs_kernel:
        required += ["targets", "runs_on", "dtypes"]
    elif described.get("targets"):
        required.append("runs_on")  # it has a kernel
    if missing := [key for key in required if key not in described]:
        raise CatalogError(f"{file}: front matter: got no {', '.join(missing)}; needed {', '.join(required)}")
    if extra := sorted(set(described) - known):
        raise CatalogError(f"{file}: front matter: got unknown keys {', '.join(extra)}; needed fields of Recipe")
    for key in (key for key in OF_SOME if described.get(key) and key not in front.keys):
        needed = f"none: {front.name} {OF_SOME[key]}"
        raise CatalogError(f"{file}: {key}: got {described[key]!r}; needed {needed}")
    if described["track"] != name.split("/")[0] or described["track"] not in TRACKS:
        raise CatalogError(f"{file}: track: got {described['track']!r}; needed its folder's name, one of {TRACKS}")
    if "runs_on" in described and not re.fullmatch(_RUNS_ON, str(described["runs_on"])):
        needed = "sm_90 (exactly), several such with commas between them, or sm_80+"
        raise CatalogError(f"{file}: runs_on: got {described['runs_on']!r}; needed {needed}")
    for key in ("targets", "dtypes", "baselines"):
        described[key] = tuple(described.get(key) or ())
    if described.get("operands", "") not in front.formats:
        needed = f"one of {', '.join(filter(None, front.formats)) or 'none'}, of kind {kind}"
        raise CatalogError(f"{file}: operands: got {described.get('operands', '')!r}; needed {needed}")
    if type(described.get("tensor_cores", True)) is not bool:
        raise CatalogError(f"{file}: tensor_cores: got {described['tensor_cores']!r}; needed true or false")
    described["fitted"] = tuple(described.get("fitted") or ())
    described["sources"] = _sources(file, described.get("sources", []))
    described["majors"] = _majors(file, described)
    described["bench_shapes"] = _bench_shapes(file, front.extents, described)
    _check_pays(file, described.get("pays") or {})
    _check_compared(name, file, described.get("compared_with"))
    _check_measures(file, described)
    _check_serves(file, described)
    instructions = described.get("instructions") or {}
    if isinstance(instructions, list):
        instructions = {"all": instructions}
    if stray := sorted(set(instructions) - {"all", *described["targets"], *described["majors"]}):
        raise CatalogError(f"{file}: instructions: got {', '.join(stray)}; needed targets of this recipe, or majors")
    described["instructions"] = {key: tuple(value) for key, value in instructions.items()}
    return Recipe(name=name, file=file, **described)


def _majors(file: Path, described: dict[str, Any]) -> tuple[str, ...]:
    found = tuple(described.get("majors", (operand_majors.DEFAULT,)))
    known = operand_majors.MAJORS
    if not found or len(set(found)) < len(found) or not set(found) <= set(known):
        raise CatalogError(f"{file}: majors: got {list(found)}; needed a list out of {', '.join(known)}, each once")
    return found


def _bench_shapes(file: Path, extents: str, described: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Read shapes of as many extents as the kind has."""
    found = described.get("bench_shapes", [])
    right = isinstance(found, list) and all(isinstance(shape, list) and len(shape) == len(extents) for shape in found)
    if not right or any(type(x) is not int or x < 1 for shape in found for x in shape):
        needs = f"a list of shapes of {len(extents)} positive integers"
        raise CatalogError(f"{file}: bench_shapes: got {found}; needed {needs}")
    return tuple(tuple(shape) for shape in found)


def _check_pays(file: Path, given: Any) -> None:
    right = isinstance(given, dict) and set(given) in (set(), {"at", "over"})
    if not right or (given and (len(given["at"]) != 3 or any(type(x) is not int or x < 1 for x in given["at"]))):
        raise CatalogError(f"{file}: pays: got {given}; needed {{at: [M, N, K], over: a variant or another recipe}}")


def _sources(file: Path, given: Any) -> tuple[Source, ...]:
    entries = given if isinstance(given, list) else [given]
    for entry in entries:
        right = isinstance(entry, dict) and set(entry) == {"title", "url"} and all(entry.values())
        if not right or not re.fullmatch(r"https://\S+", str(entry["url"])):
            needed = "a list of {title: ..., url: https://...}"
            raise CatalogError(f"{file}: sources: got {entry!r}; needed {needed}")
    return tuple(Source(str(entry["title"]), entry["url"]) for entry in entries)


def _check_compared(name: str, file: Path, other: Any) -> None:
    """Check that a GEMM is compared with another recipe of the same folder of tracks."""
    if other is not None and (other == name or not (file.parents[1] / f"{other}.py").is_file()):
        needed = "the name of another recipe: <track>/<file name>"
        raise CatalogError(f"{file}: compared_with: got {other!r}; needed {needed}")


def _check_measures(file: Path, described: dict[str, Any]) -> None:
    """Only a study of ceilings has ceilings."""
    measures = described.get("measures", "")
    if measures not in ("", *MEASURES):
        raise CatalogError(f"{file}: measures: got {measures!r}; needed one of {', '.join(MEASURES)}, of a study")
    if described.get("ceiling_of") and measures != "ceiling":
        raise CatalogError(f"{file}: ceiling_of: got {described['ceiling_of']}; needed `measures: ceiling` beside it")


def _check_serves(file: Path, described: dict[str, Any]) -> None:
    """Multiply-adds a clock, by architecture, of a GEMM whose operands are of its dtypes."""
    serves, needed = described.get("serves", {}), "positive integers by architecture, as {sm_90: 2048}"
    if not isinstance(serves, dict) or not all(re.fullmatch(r"sm_\d{2,3}", str(arch)) for arch in serves):
        raise CatalogError(f"{file}: serves: got {serves!r}; needed {needed}")
    if any(type(rate) is not int or rate < 1 for rate in serves.values()):
        raise CatalogError(f"{file}: serves: got {serves!r}; needed {needed}")


# --- load -------------------------------------------------------------------------------------------------


class RecipeLoader(importlib.machinery.SourceFileLoader):
    """Executes a recipe without its lab cells.

    Lab lines are blanked, not cut: CuTe reads each kernel's text again from the file by line number.
    """

    def get_code(self, fullname: str) -> Any:  # no .pyc: a cached one could hold the lab cells
        return self.source_to_code(self.get_data(self.path), self.path)

    def source_to_code(self, data: Any, path: Any, **_: Any) -> Any:
        source = without_lab(bytes(data).decode("utf-8"))
        # CuTe DSL 4.7 and earlier run each import in a module's text, as `linecache` has it, when they trace a function
        # of it: that text must not have the lab's. But a script that loads itself needs its own lab cells.
        if str(path) != getattr(sys.modules.get("__main__"), "__file__", None):
            linecache.cache[str(path)] = len(source), None, source.splitlines(True), str(path)  # never read anew
        return compile(source, path, "exec", dont_inherit=True)


class _Loader(RecipeLoader):
    """Loads a recipe of the catalog: what it compiles is kept on disk, and it has this chip's figures."""

    def __init__(self, fullname: str, recipe: Recipe) -> None:
        super().__init__(fullname, str(recipe.file))
        self.recipe = recipe

    def exec_module(self, module: ModuleType) -> None:
        recipe = self.recipe
        versions.check(recipe.name)
        execute(super().exec_module, module, recipe.file)
        cache.serve(module, recipe.name, lambda: source_hash(recipe))
        if recipe.fitted or recipe.measured_by:
            figures.use(recipe.name, module)


def spec_of(recipe: Recipe, module: str) -> importlib.machinery.ModuleSpec:
    """Return how a recipe is loaded as the module of that name."""
    spec = importlib.util.spec_from_file_location(module, recipe.file, loader=_Loader(module, recipe))
    assert spec is not None  # with a loader there is one
    return spec


def code(recipe: Recipe) -> list[str]:
    """The text of each code cell that is not the lab's, with what it imports of recipes written in."""
    return module_code(imports.written_in(recipe.file.read_text(encoding="utf-8")))


def source_hash(recipe: Recipe) -> str:
    """A hash of the text that makes a recipe's kernels: its cells, without the lab's, and what compiles them."""
    shared = Path(__file__).with_name("entry.py").read_text(encoding="utf-8")
    text = "\n".join([*code(recipe), shared])
    return hashlib.sha256(text.encode()).hexdigest()


def load(name: str, root: Path | None = None) -> ModuleType:
    """The recipe's module, executed once without its lab cells and kept in `sys.modules`.

    Raises:
        UnknownRecipe: there is no such recipe.
        ImportError: the CuTe DSL that is installed is too old for it.
        NotLoaded: Python does not load its code.
    """
    return find(name, root).module


def _module(recipe: Recipe) -> ModuleType:
    versions.check(recipe.name)  # of a module that is there already, too
    if recipe.file.parents[1] == published("recipes"):  # as an import of it finds it
        return importlib.import_module(f"{imports.PACKAGE}.{recipe.name.replace('/', '.')}")
    module_name = "cookbook_recipe_" + re.sub(r"\W", "_", recipe.name)
    loaded = sys.modules.get(module_name)
    if loaded is not None and loaded.__file__ == str(recipe.file):
        return loaded
    spec = spec_of(recipe, module_name)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # before execution: dataclasses look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def execute(run: Callable[[ModuleType], None], module: ModuleType, path: Path) -> None:
    """Execute the code of a module by a loader's `exec_module`; the user knows its file as `path`.

    Raises:
        NotLoaded: the code is no Python, raises something, or leaves (SystemExit).
    """
    try:
        run(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        line = _line_of(error, str(path.resolve()))
        where = f"line {line}" if line else "code"
        said = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
        raise NotLoaded(f"NAME: got {path}, whose {where} raises {said}; needed a file that Python loads") from error


def _line_of(error: BaseException, file: str) -> int | None:
    """The line of `file` at which loading it ended."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines, frame = [], error.__traceback__
    while frame is not None:
        lines += [frame.tb_lineno] if frame.tb_frame.f_code.co_filename == file else []
        frame = frame.tb_next
    if not lines and isinstance(error, UnicodeDecodeError):  # the text itself
        return error.object[: error.start].count(b"\n") + 1
    return lines[-1] if lines else None


# --- copy -------------------------------------------------------------------------------------------------

_HEADER = """\
# {title}
#
# From the CuTe-DSL Kernel Cookbook {version}, recipe {name}. Apache-2.0; keep this note when you pass it on.
# Needs {packages} (NVIDIA's own licence){needs}.
{usage}"""


def standalone_source(
    name: str, module: str | None = None, root: Path | None = None, torch_op: str = "", minimal: bool = False
) -> str:
    """The recipe as one file that imports nothing of this package: the code of its non-lab cells under a header.

    Args:
        name: a recipe's name.
        module: what the header's example imports; the recipe's own file name if left out.
        torch_op: of a GEMM: the name of an operator of PyTorch, "mylib::matmul", that the file is to define.
        minimal: with a host side of few lines, of a GEMM of K-major operands.

    Raises:
        ValueError: no such name, or the recipe is no GEMM of two matrices.
    """
    from cookbook import __version__

    recipe = find(name, root)
    tries_itself = recipe.kind == "gemm"
    if minimal and (torch_op or not tries_itself):
        raise ValueError(f"minimal: got {name}{' with torch_op' * bool(torch_op)}; needed a plain GEMM by itself")
    added = [_operator(recipe, torch_op)] if torch_op else []
    body = copy.alone([*code(recipe), *added, *([_tries_itself(recipe)] if tries_itself else [])], minimal)
    if minimal and "class SharedSums" in body:
        raise ValueError(f"minimal: got {name}; needed a GEMM whose CTAs share no sums in global memory")
    usage = ""
    if called := recipe.product.usage(recipe):
        names, call, where = called
        usage = f"#\n#     from {module or recipe.file.stem} import {names}\n#     {call}    # {where}\n"
    needs = "" if recipe.runs_on == ANYWHERE else f", and a GPU of {recipe.needs_gpu} to run"
    others = "torch, apache-tvm-ffi" if TVM_FFI in body else "torch"
    packages = f"{others} and {versions.DSL}>={versions.OLDEST}"
    said = {"title": recipe.title, "version": __version__, "name": recipe.name, "usage": usage}
    return f"{_HEADER.format(packages=packages, needs=needs, **said)}\n{body}"


def _tries_itself(recipe: Recipe) -> str:
    """The code that runs when a copied GEMM is a script."""
    shape = next(filter(None, recipe.product.bench_shapes(recipe)), (4096, 4096, 4096))
    return (
        "from cookbook.recipe.alone import try_out\n\n"
        f'if __name__ == "__main__":\n    try_out(matmul, torch.{recipe.dtypes[0]}, {tuple(shape)})\n'
    )


def _operator(recipe: Recipe, name: str) -> str:
    """The code that makes a recipe's `matmul` an operator."""
    if not recipe.product.of_two_matrices:
        raise ValueError(f"torch_op: got {name}; needed none: {recipe.name} is no product of two matrices alone")
    words = name.split("::")
    if len(words) != 2 or not all(re.fullmatch(r"[A-Za-z_]\w*", each) and not iskeyword(each) for each in words):
        raise ValueError(f"torch_op: got {name!r}; needed LIBRARY::OPERATOR, as mylib::matmul")
    import torch

    if words[0] in {"prim", "cute_cookbook", *(each.split("::")[0] for each in torch._C._dispatch_get_all_op_names())}:
        raise ValueError(
            f"torch_op: got {name!r}, of a library that there is; needed one of your own, as mylib::matmul"
        )
    return (
        "from cookbook.recipe.operator import product_of, register\n\n"
        f"# torch.ops.{name.replace('::', '.')}: for autograd, torch.compile, torch.export and autocast.\n"
        f'OPERATOR = register("{name}", product_of(GEMM, matmul))\n'
    )


# --- text without comments ----------------------------------------------------------------------------------


def normal_form(source: str) -> str:
    """The syntax tree of `source` as text, without docstrings: equal where code differs in comments and layout alone.

    One version of Python writes it; another may write it differently.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
