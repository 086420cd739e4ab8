"""A copied recipe stands alone: it runs where `cookbook` cannot be imported, and compiles for its targets."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pretend
import pytest
import torch

from cookbook.check import subjects
from cookbook.recipe import alone, catalog, copy, entry, imports, moved
from cookbook.recipe import minimal as short_side

NAMES = [r.name for r in catalog.recipes()]
MOVED = Path(moved.__file__)
PLAIN = [r.name for r in catalog.recipes() if r.kind == "gemm" and r.name != "hopper/stream_k_gemm"]
GEMMS = [r.name for r in catalog.recipes() if r.product.is_gemm]
copied_source = cache(catalog.standalone_source)

# Runs beside the copied files: how many of them to compile (the others are traced only: nothing is missing in them),
# then FILE=TARGET,TARGET=DTYPE,DTYPE of each. It calls what a stranger would.
STRANGER = """\
import importlib
import sys

class NoCookbook:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cookbook":
            raise ImportError("cookbook is not installed here")

sys.meta_path.insert(0, NoCookbook())
try:
    import cookbook
except ImportError:
    pass
else:
    sys.exit("cookbook could be imported")

import cutlass
import torch
from cutlass.cutlass_dsl import CuTeDSL

for number, argument in enumerate(sys.argv[2:]):
    CuTeDSL._get_dsl().envar.dryrun = number >= int(sys.argv[1])
    name, targets, dtypes = argument.split("=")
    copied = importlib.import_module(name)
    for target in targets.split(","):
        for dtype in dtypes.split(","):
            copied.compile_for(target, getattr(cutlass, dtype))
            print(name, target, dtype, flush=True)
    if torch.cuda.is_available() and number < int(sys.argv[1]):
        a, b = torch.randn(200, 64).cuda().half(), torch.randn(333, 64).cuda().half().T
        try:
            c = copied.matmul(a, b)
        except (TypeError, ValueError) as error:  # other operands, or another chip
            print("not here:", error)
        else:
            error = (c.float() - a.float() @ b.float()).norm() / (a.float() @ b.float()).norm()
            assert error < 5e-4, error
            print("ran", float(error))
"""


def compiled_by_a_stranger(names: list[str], folder: Path, most: int | None, dtypes: tuple[str, ...]) -> None:
    """Copies of recipes side by side, compiled in one process for all targets; with `most`, the first copy is compiled
    and the others are traced, for so many targets each."""
    wanted = {name.replace("/", "_"): catalog.find(name).targets[:most] for name in names}
    integers = {file for file, name in zip(wanted, names, strict=True) if catalog.find(name).dtypes == ("int32",)}
    of = {file: ("Int32",) if file in integers else dtypes for file in wanted}
    for name, file in zip(names, wanted, strict=True):
        (folder / f"{file}.py").write_text(catalog.standalone_source(name, file))
    (folder / "stranger.py").write_text(STRANGER)
    run = [
        sys.executable,
        "stranger.py",
        str(1 if most else len(names)),
        *(f"{file}={','.join(targets)}={','.join(of[file])}" for file, targets in wanted.items()),
    ]
    done = subprocess.run(run, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(tuple(wanted))]
    assert said == [f"{file} {target} {d}" for file, targets in wanted.items() for target in targets for d in of[file]]


def test_copied_recipes_compile_where_there_is_no_cookbook(tmp_path):
    compiled_by_a_stranger(GEMMS, tmp_path, 1, ("BFloat16",))


@pytest.mark.slow  # the statements are the recipe's, which compiles for every target: see below
@pytest.mark.parametrize("name", GEMMS)
def test_a_copied_recipe_compiles_for_every_target_and_dtype(name, tmp_path):
    compiled_by_a_stranger([name], tmp_path, None, ("BFloat16", "Float16"))


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_recipe_imports_torch_and_cutlass_alone(name):
    tree = ast.parse(copied_source(name))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported - set(sys.stdlib_module_names) <= {"torch", "cutlass", "cuda"}


@pytest.mark.parametrize("name", NAMES)
def test_copied_recipe_says_where_it_is_from_and_how_to_call_it(name):
    source = catalog.standalone_source(name, "mine")
    compile(source, "mine.py", "exec")
    head = source[:800]
    others = {"study": "", "transpose": "from mine import transpose"}
    usage = others.get(catalog.find(name).kind, "from mine import matmul")
    assert f"recipe {name}" in head and "Apache-2.0" in head and usage in head
    assert "# ---\n" not in source and "jupytext" not in source and 'tags=["lab"]' not in source
    assert ("Needs torch, apache-tvm-ffi and nvidia-cutlass-dsl" in head) == ("--enable-tvm-ffi" in source)
    assert not re.search(r"\.ipynb|\]\([^)]*\.(md|py|html)|https?://|\bthis page|[Nn]otebook|recipe page", source)


@pytest.mark.parametrize("name", NAMES)
def test_the_call_in_the_head_has_the_parameters_names(name):
    """All that have no default, in their order."""
    source = copied_source(name)
    call = re.search(r"^#     [\w, ]+ = (\w+)\((.*?)\)", source, re.MULTILINE)
    if call is None:
        assert catalog.find(name).product.usage(catalog.find(name)) is None
        return
    function = next(node for node in ast.parse(source).body if getattr(node, "name", "") == call[1])
    taken = [each.arg for each in function.args.args]
    needed = taken[: len(taken) - len(function.args.defaults)]
    given, _, unpacked = call[2].partition(", *")
    assert given.split(", ") == (needed[: given.count(",") + 1] if unpacked else needed)


def test_what_is_called_by_another_name_says_so():
    head = catalog.standalone_source("hopper/amax_epilogue_gemm", "mine")[:800]
    assert "from mine import matmul_amax\n" in head and "c, amax = matmul_amax(a, b)" in head


@cache
def statements(source: str) -> list[str]:
    """What a text defines and does at its top level, imports and docstring left out."""
    dropped = (ast.Import, ast.ImportFrom)
    body = [node for node in ast.parse(source).body if not isinstance(node, dropped)]
    text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return [catalog.normal_form(ast.unparse(node)) for node in body[text:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_recipe_has_the_host_side_that_it_uses(name):
    """Each statement of the recipe with its imports written in, in order and unchanged; the others are of moved.py and
    of the modules that hold the host side, in their order. A plain GEMM ends with its trial."""
    copied = statements(copied_source(name))
    if catalog.find(name).kind == "gemm":
        assert "try_out(matmul, torch." in copied_source(name).splitlines()[-1]
        copied.pop()
    text = catalog.find(name).file.read_text(encoding="utf-8")
    own = statements(catalog.without_lab(imports.written_in(text)))
    shared = [each for each in copied if each not in own]
    assert [each for each in copied if each in own] == own
    moved_side, host_side = statements(MOVED.read_text(encoding="utf-8")), statements(copy._sources())
    assert shared == [each for each in (*moved_side, *host_side) if each in shared]
    imports_it = f"from {copy.SHARED[0]} import" in imports.written_in(text)
    assert bool(set(shared) & set(host_side)) == (catalog.find(name).kind != "study" or imports_it)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_host_side_are_not_the_recipes(name):
    """Nor is anything defined twice in a copied file."""
    defined = [node.name for node in ast.parse(copied_source(name)).body if hasattr(node, "name")]
    assert len(defined) == len(set(defined))


def test_what_a_class_checks_when_it_is_made_stands_before_it():
    """A configuration is made while the file is imported; the rest of the host side stands where a GEMM is made."""
    config = "class Config:\n    def __post_init__(self):\n        check_epilogue('n', 1, 1)"
    text = copy.alone(["from cookbook.recipe.entry import check_epilogue, kind", config, "KIND = kind(None)"])
    places = [text.index(part) for part in ("def require", "def check_epilogue", "class Config", "def kind", "KIND =")]
    assert places == sorted(places)
    check = "def check_slots(slots):\n    require(slots, 'slots', slots, 'some')"
    config = "class Config:\n    def __post_init__(self):\n        check_slots(1)"
    text = copy.alone(
        ["from cookbook.recipe.entry import kind, require", check, config, "Config()", "KIND = kind(None)"]
    )
    places = [text.index(part) for part in ("def require", "class Config", "Config()", "def kind", "KIND =")]
    assert places == sorted(places)  # also what a function of the file needs that the class calls


def test_another_import_of_cookbook_cannot_be_copied():
    with pytest.raises(ValueError, match=r"cells: got an import of cookbook; needed none of cookbook but"):
        copy.alone(["from cookbook import banks", "banks.wavefronts([0], 4)"])


# --- copies that try themselves, and short ones -----------------------------------------------------------------------


def loaded(source: str, file: Path):
    file.write_text(source, encoding="utf-8")
    return subjects.load_file(file)


def test_a_copied_gemm_is_a_script_that_needs_a_gpu(tmp_path):
    for minimal in (False, True):
        file = tmp_path / "mine.py"
        file.write_text(catalog.standalone_source("ampere/first_gemm", minimal=minimal))
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout == f"no GPU here: nothing was run; cookbook check {file} needs none\n"


def test_a_trial_finds_a_wrong_product_and_times_a_right_one(monkeypatch, capsys):
    class Event:
        def __init__(self, enable_timing):
            self.at = 0.0

        def record(self):
            self.at = time.perf_counter() * 1000

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.at - self.at

    own = torch.randn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: own(*shape, dtype=dtype))
    alone.try_out(lambda a, b: a @ b, torch.bfloat16, (64, 64, 64))
    said = capsys.readouterr().out
    assert re.fullmatch(
        r"relative error [\d.e-]+ on ragged .*; 64 x 64 x 64: [\d.]+ us, torch.matmul [\d.]+ us\n", said
    )
    with pytest.raises(AssertionError, match=r"matmul: got a relative error of .*; needed less than"):
        alone.try_out(lambda a, b: a[:, :-8] @ b[:-8], torch.bfloat16, (64, 64, 64))


@pytest.mark.parametrize("name", PLAIN)
def test_a_minimal_copy_launches_what_the_full_one_does(name, tmp_path, monkeypatch):
    made = []
    for minimal in (False, True):
        source = catalog.standalone_source(name, minimal=minimal)
        made.append(loaded(source, tmp_path / f"copy_{minimal}.py"))
        assert ("class Matrix" in source) != minimal
    digits = re.findall(r"\d+", catalog.find(name).runs_on)[0]
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (int(digits[:-1]), int(digits[-1])))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=pretend.STREAM))
    pretend.pretend_device(monkeypatch, multi_processor_count=132)
    a, b, out = (torch.zeros(shape, dtype=torch.bfloat16) for shape in ((72, 256), (136, 256), (72, 136)))
    launched = []
    for module in made:
        monkeypatch.setattr(
            module.GEMM, "compile_for", lambda *which, options: lambda *given: launched.append((which, given))
        )
        assert module.matmul(a, b.T, out=out) is out
    (which, given), (which_minimal, given_minimal) = launched
    assert str(which) == str(which_minimal) and str(given) == str(given_minimal)  # classes of two files


def test_a_short_trial_tells_wrong_from_right_and_times_both(monkeypatch, capsys):
    own = torch.randn
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: own(*shape, dtype=dtype))
    short_side.try_out(lambda a, b: a @ b, torch.bfloat16, (64, 64, 64))
    said = capsys.readouterr().out
    assert re.fullmatch(r"right on ragged shapes; 64 x 64 x 64: [\d.]+ us, torch.matmul [\d.]+ us\n", said)
    with pytest.raises(AssertionError, match=r"matmul: got a relative error of .* at \(65, 136, 72\); needed less"):
        short_side.try_out(lambda a, b: a[:, :8] @ b[:8], torch.bfloat16, (64, 64, 64))


def test_minimal_copies_compile_one_at_a_time_and_take_figures(tmp_path):
    """As full copies do: CuTe compiles with state of the whole process, whichever file asks."""
    one, two = (
        loaded(catalog.standalone_source(name, minimal=True), tmp_path / f"{file}.py")
        for file, name in (("one", "hopper/tuned_gemm"), ("two", "ampere/first_gemm"))
    )
    assert one.COMPILING is two.COMPILING is entry.COMPILING
    assert one.calibrate(load_cost=12).load_cost == 12 and one.GEMM.plans == {}


def test_what_has_no_minimal_copy_says_so():
    for name, needed in (("hopper/fp8_gemm", "a plain GEMM"), ("hopper/stream_k_gemm", "whose CTAs share no sums")):
        with pytest.raises(ValueError, match=f"minimal: got {name}; needed a.*{needed[2:]}"):
            catalog.standalone_source(name, minimal=True)
    with pytest.raises(ValueError, match="minimal: got ampere/first_gemm with torch_op"):
        catalog.standalone_source("ampere/first_gemm", minimal=True, torch_op="mylib::matmul")


def test_a_minimal_copy_refuses_what_the_kernel_cannot_read(tmp_path, monkeypatch):
    module = loaded(catalog.standalone_source("ampere/first_gemm", minimal=True), tmp_path / "refusing.py")
    a, b = torch.zeros(8, 16, dtype=torch.bfloat16), torch.zeros(8, 16, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"a, b: got .* on cpu .*, GPU none; needed .*, a GPU for cp.async"):
        module.matmul(a, b.T)  # torch's own error would not say whose tensor it is
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    for given in ((a, b), (a.float(), b.float().T), (a[:, 1:], b[:, 1:].T), (a, b.half().T)):
        with pytest.raises(ValueError, match=r"a, b: got .*; needed \(M, K\) and \(K, N\), K-major"):
            module.matmul(*given)
    with pytest.raises(ValueError, match=r"out: got .*; needed \(8, 8\) torch.bfloat16"):
        module.matmul(a, b.T, out=torch.zeros(8, 9, dtype=torch.bfloat16))
