"""Kinds of product: what is peculiar to one stands in its file, and a new one needs no other file of the package."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cookbook.recipe import catalog

ROOT = catalog.recipes_root().parent
# Facts about a kind: attributes of a format, functions that look for the names of parameters, protocols of a kind.
OF_FORMAT = {"by_mma", "packed"}
BY_NAME = {"takes_groups"}
PROTOCOLS = {"BlockScaled", "Chained", "FloatScaled", "Fused", "Grouped", "Integer", "Linked", "Packed", "Reduces"}
PROTOCOLS |= {"Study", "Transpose"}


def name_of(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def asks(test: ast.AST) -> bool:
    """Whether a condition asks what kind of product there is."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and name_of(node.left) == "kind":
            said = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            if said & set(catalog.kinds()):
                return True
        if isinstance(node, ast.Attribute) and node.attr in OF_FORMAT:
            return True
        if isinstance(node, ast.Call) and name_of(node.func) in BY_NAME:
            return True
        if isinstance(node, ast.Call) and name_of(node.func) == "isinstance" and name_of(node.args[1]) in PROTOCOLS:
            return True
    return False


def branches(tree: ast.AST) -> int:
    """Conditions that ask for a kind: of statements, expressions and comprehensions."""
    found = set()
    for node in ast.walk(tree):
        tests = [node.test] if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Assert)) else []
        tests += (
            node.ifs if isinstance(node, ast.comprehension) else node.values if isinstance(node, ast.BoolOp) else []
        )
        found |= {(each.lineno, each.col_offset) for each in tests if asks(each)}
    return len({line for line, _ in found})


def test_a_branch_on_a_kind_is_counted():
    for text in (
        "if recipe.kind == 'grouped': pass",
        "x = 1 if form.by_mma else 2",
        "[x for x in y if isinstance(module, contract.Packed)]",
        "y = form and form.packed",
        "while grouped.takes_groups(module): pass",
    ):
        assert branches(ast.parse(text)) == 1, text
    assert branches(ast.parse("if solution.kind == 'plain' or isinstance(x, tuple): pass")) == 0


def test_no_room_branches_on_a_kind_of_product():
    package, found = ROOT / "cookbook", Counter[str]()
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if not name.startswith(("products/", "recipes/")):
            found[name] += branches(ast.parse(file.read_text(encoding="utf-8")))
    assert not {name: count for name, count in found.items() if count}


def test_every_kind_is_that_of_a_recipe():
    assert set(catalog.kinds()) == {recipe.kind for recipe in catalog.recipes()}


# --- a new kind -------------------------------------------------------------------------------------------------------

WHOLE_ROWS = '''\
"""C = A B whose rows of C are whole 16-byte pieces: `kind: whole_rows`. N is a multiple of 8, and `out` lies so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cookbook.check import calls
from cookbook.products.gemm import Gemm, shape_of


class WholeRows(Gemm):
    """A product of matrices whose kernel stores 16 bytes at a time, whatever the call."""

    def align(self, recipe: Any, shape: tuple[int, ...], majors: str) -> tuple[int, ...]:
        m, n, k = super().align(recipe, shape, majors)
        return m, -(-n // 8) * 8, k

    def fits(self, recipe: Any, shape: tuple[int, ...]) -> tuple[bool, str]:
        fits, needed = super().fits(recipe, shape)
        return fits and shape[1] % 8 == 0, f"{needed}, N a multiple of 8"

    def drawn_call(self, recipe: Any, drawn: dict[str, Any]) -> calls.Call:
        return super().drawn_call(recipe, drawn | {name: 8 * drawn[name] for name in ("out_gap", "out_start")})

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        return super().illegal() | {"N that is no multiple of 8": lambda call: setattr(call, "b", call.b[:, :-1])}


PRODUCT = WholeRows()
'''
WHOLE_ROWS_OF_B = '''\
def whole_rows(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """As `k_major`, of a B whose columns fill rows of C."""
    require(name == "a" or x.shape[1] % 8 == 0, name, f"N = {x.shape[1]}", "a multiple of 8")
    return k_major(name, x, k_mode, whole)


'''
WHOLE_ROWS_OF_C = """\
    require(call.direct, "out", "rows that do not begin at multiples of 16 bytes", "rows of whole 16-byte pieces")
"""
NAME = "ampere/whole_rows_gemm"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what a new kind may touch, and `cookbook new` called there."""
    root = copied(tmp_path_factory.mktemp("checkout"))
    before = texts(root)
    run(root, "new", NAME)
    recipe = root / "recipes" / f"{NAME}.py"
    text = recipe.read_text(encoding="utf-8")
    text = text.replace("#     targets:", "#     kind: whole_rows\n#     targets:", 1)
    text = text.replace(
        'needs="cp.async", whole=True)', 'needs="cp.async", major_of=whole_rows, whole=True, padded=True)', 1
    )
    text = text.replace("GEMM = Gemm(", WHOLE_ROWS_OF_B + "GEMM = Gemm(", 1)
    text = text.replace("import Call, Gemm, compile_host", "import Call, Gemm, compile_host, k_major, require", 1)
    text = text.replace("    return (CONFIG,), (call", WHOLE_ROWS_OF_C + "    return (CONFIG,), (call", 1)
    assert all(each in text for each in ("major_of=whole_rows", "k_major, require", WHOLE_ROWS_OF_B, WHOLE_ROWS_OF_C))
    recipe.write_text(text, encoding="utf-8")
    (root / "cookbook" / "products" / "whole_rows.py").write_text(WHOLE_ROWS, encoding="utf-8")
    return root, before


def copied(root: Path) -> Path:
    for folder in ("cookbook", "recipes", "tools"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests" / "recipes").mkdir(parents=True)
    (root / "results").mkdir()
    return root


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    told = os.environ | {"PYTHONPATH": str(root), "COOKBOOK_CACHE": "off"}
    return subprocess.run(
        [sys.executable, "-m", "cookbook", *arguments], cwd=root, env=told, capture_output=True, text=True, check=False
    )


def texts(root: Path) -> dict[str, str]:
    files = (file for file in root.rglob("*.py") if "__pycache__" not in file.parts)
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}


def test_a_new_kind_touches_one_file_of_the_package(checkout):
    """The results, which a GPU writes, make four."""
    root, before = checkout
    now = texts(root)
    touched = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    assert touched == {f"recipes/{NAME}.py", "tests/recipes/test_whole_rows_gemm.py", "cookbook/products/whole_rows.py"}


def test_every_level_that_needs_no_gpu_takes_a_new_kind(checkout):
    root, _ = checkout
    done = run(root, "check", NAME, "--dtype", "bfloat16", "--target", "sm_80")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for level in ("layout", "model", "product", "host", "pipeline", "compiled"):
        (line, *_) = [each for each in said.splitlines() if level in each]
        assert "passed" in line or "ok" in line, said
    refused = run(root, "check", NAME, "--shape", "64,60,64")
    assert refused.returncode == 2 and "N a multiple of 8" in " ".join((refused.stdout + refused.stderr).split())


# --- a new kind with an operand of its own ----------------------------------------------------------------------------

LISTED = '''\
"""C = A B of a block-sparse A: `kind: listed`. Its blocks of 64 columns are stored, and `blocks` lists those of B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, replace
from typing import Any

import numpy as np

from cookbook.check import calls
from cookbook.check.product import problems
from cookbook.check.product.memory import Operand
from cookbook.products.gemm import Gemm, shape_of

BLOCK = 64


class Blocks(Operand):
    """B, whose blocks along K are met from the last one to the first."""

    def places(self, byte_addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        row, column, inside = super().places(byte_addresses)
        block, k = np.divmod(column, BLOCK)
        return row, (self.shape[1] // BLOCK - 1 - block) * BLOCK + k, inside


class Listed(Gemm):
    """`matmul(a, b, blocks)`: a (M, K), b (DEPTH, N), blocks (K / 64,)."""

    of_two_matrices = False

    def align(self, recipe: Any, shape: tuple[int, ...], majors: str) -> tuple[int, ...]:
        m, n, k = super().align(recipe, shape, majors)
        return m, n, -(-k // BLOCK) * BLOCK

    def fits(self, recipe: Any, shape: tuple[int, ...]) -> tuple[bool, str]:
        fits, needed = super().fits(recipe, shape)
        return fits and shape[2] % BLOCK == 0, f"{needed}, K a multiple of {BLOCK}"

    # --- the kernel, followed ---

    def problems(self, module: Any, config: Any) -> tuple[problems.Case, ...]:
        cases = super().problems(module, config)
        return tuple(replace(x, problem=replace(x.problem, k=-(-x.problem.k // BLOCK) * BLOCK)) for x in cases)

    def placed(self, place: problems.Place) -> Operand | None:
        return Blocks(*astuple(problems.matrix_of(place))) if place.name == "B" else None

    # --- host ---

    def drawn_call(self, recipe: Any, drawn: dict[str, Any]) -> calls.Call:
        import torch

        (m, n, k), dtype = self.align(recipe, shape_of(drawn), "tn"), getattr(torch, drawn["dtype"])
        depth = 3 * BLOCK
        a, b = calls.matrix(m, k, dtype, False, drawn["gap_a"]), calls.matrix(depth, n, dtype, True, drawn["gap_b"])
        blocks, out = torch.arange(k // BLOCK, dtype=torch.int32), calls.out_of(m, n, dtype, drawn)
        numbers = {"blocks": (blocks.data_ptr(),), "depth": (depth,)}
        return calls.Call(a, b, out, (blocks,), (m, n, k), "tn", numbers=numbers)

    def illegal(self) -> dict[str, Callable[[calls.Call], None]]:
        kept = {name: change for name, change in super().illegal().items() if name != "b of another K"}
        kept["blocks of 64 bits"] = calls.other(0, lambda blocks: blocks.long())
        kept["more blocks than A has"] = calls.other(0, lambda blocks: blocks.repeat(2))
        return kept


PRODUCT = Listed()
'''
LISTED_NAME = "ampere/listed_gemm"
TABLE = '''\
def whole_blocks(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """As `k_major`, of an A of whole blocks."""
    require(x.shape[k_mode] % 64 == 0, name, f"K = {x.shape[k_mode]}", "a multiple of 64: whole blocks")
    return k_major(name, x, k_mode, whole)


LISTED = (
    Matrix("a", "M K"),
    Argument("b", "DEPTH N", (), by_lines(0, "DEPTH")),
    Argument("blocks", "K/64", (torch.int32,), adjacent),
)
'''
NUMBERS = '''\
    (lda, ldc), (ldb,) = call.strides, call.known["b"]
    return (CONFIG,), (call.known["DEPTH"], call.mnk, (lda, ldb, ldc))


def depth(k: int) -> int:
    """Of the problems that a kernel is followed for: rows of B."""
    return k


def blocks(k: int) -> tuple[int, ...]:
    """Of the same: the blocks of B, from the last one to the first."""
    return tuple(range(-(-k // 64)))[::-1]
'''
WHICH = "        load_tile(load_b, blocks[k_tile])\n"  # the block of B that this one of A is multiplied by
IMPORTS = """import Call, Matrix, compile_host, k_major, require
from cookbook.recipe.operands import Argument, FurtherGemm, adjacent, by_lines
"""
EDITS = (
    ("#     targets:", "#     kind: listed\n#     targets:"),
    ("import Call, Gemm, compile_host\n", IMPORTS),
    ("load_a: Load, load_b: Load):", "load_a: Load, load_b: Load, blocks: cute.Tensor):"),
    ("        load_tile(load_b, k_tile)\n", WHICH),
    ("    mC: cute.Tensor,  # (M, N)\n", "    mC: cute.Tensor,  # (M, N)\n    blocks: cute.Tensor,\n"),
    ("    mainloop(mma, acc, a, b, load_a, load_b)\n", "    mainloop(mma, acc, a, b, load_a, load_b, blocks)\n"),
    ("    pC: cute.Pointer,\n", "    pC: cute.Pointer,\n    blocks: cute.Pointer,\n    depth: cutlass.Int32,\n"),
    ("row_major(pB, n, k, ldb, 8)", "row_major(pB, n, depth, ldb, 8)"),
    (
        "    kernel(mA, mB, mC, dtype",
        "    blocks = cute.make_tensor(blocks, cute.make_layout(cute.ceil_div(k, config.tile_k)))\n"
        "    kernel(mA, mB, mC, blocks, dtype",
    ),
    ("(dtype, 16), (dtype, 2)\n", "(dtype, 16), (dtype, 2), (cutlass.Int32, 4)\n"),
    ("    return (CONFIG,), (call.mnk, call.strides)\n", NUMBERS),
    ("GEMM = Gemm(", TABLE + "GEMM = FurtherGemm("),
    ('needs="cp.async", whole=True)', 'needs="cp.async", major_of=whole_blocks, operands=LISTED)'),
    (
        "def matmul(a: torch.Tensor, b: torch.Tensor,",
        "def matmul(a: torch.Tensor, b: torch.Tensor, blocks: torch.Tensor,",
    ),
    ("GEMM.matmul(a, b, out=out)", "GEMM.matmul(a, b, blocks, out=out)"),
)


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """A copy as of `checkout`, with a block-sparse A."""
    root = copied(tmp_path_factory.mktemp("listed"))
    before = texts(root)
    run(root, "new", LISTED_NAME)
    recipe = root / "recipes" / f"{LISTED_NAME}.py"
    text = recipe.read_text(encoding="utf-8")
    for old, new in EDITS:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    recipe.write_text(text, encoding="utf-8")
    (root / "cookbook" / "products" / "listed.py").write_text(LISTED, encoding="utf-8")
    return root, before


def test_a_kind_with_its_own_operand_touches_one_package_file(listed):
    root, before = listed
    now = texts(root)
    touched = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    assert touched == {f"recipes/{LISTED_NAME}.py", "tests/recipes/test_listed_gemm.py", "cookbook/products/listed.py"}


def test_every_level_without_a_gpu_takes_an_own_operand(listed):
    said = levels_of(listed[0], LISTED_NAME)
    assert set(said.values()) == {"passed"} and {"product", "host", "pipeline"} <= said.keys(), said


def test_a_kernel_that_does_not_read_the_list_is_told(listed):
    root, _ = listed
    recipe = root / "recipes" / f"{LISTED_NAME}.py"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_text(text.replace(WHICH, "        load_tile(load_b, k_tile)\n"), encoding="utf-8")
    try:
        assert {level for level, status in levels_of(root, LISTED_NAME).items() if status != "passed"} == {"product"}
    finally:
        recipe.write_text(text, encoding="utf-8")


def levels_of(root: Path, name: str) -> dict[str, str]:
    """What became of each level that needs no GPU."""
    done = run(root, "check", name, "--dtype", "bfloat16", "--target", "sm_80", "--json")
    (found,) = json.loads(done.stdout)["recipes"]
    return {each["level"]: each["status"] for each in found["levels"] if each["status"] != "not checked"}
