"""The hash of device code: what it does not see, what it sees, and what of a recipe it is of."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import cookbook
from cookbook.recipe import catalog
from tools.records import device_code

BODY = '''
import cutlass
import cutlass.cute as cute
from functools import partial

SIZE = 4
UNUSED = 5


class Pair(NamedTuple):
    """Two."""

    first: int
    second: int

    def swapped(self, by):
        return Pair(self.second, self.first + by)


def scaled(x, by=SIZE):
    """Docs."""
    return [x * by for x in range(x) if x]


@cute.jit
def inner(acc, step: cutlass.Constexpr, *, last):
    found = Pair(acc, second=step)
    total: int = 0  # a comment
    for i in cutlass.range_constexpr(step):
        total = total + scaled(i, by=found.first)
    return (lambda given: given + total)(last)


@cute.kernel
def kernel(a: cute.Tensor, config: cutlass.Constexpr):
    tidx, _, _ = cute.arch.thread_idx()
    cute.arch.sync_threads()
    a[tidx] = inner(tidx, config, last=f"{a}" "b")


@cute.jit
def gemm(pA: cute.Pointer, stream, config: cutlass.Constexpr):
    kernel(pA, config).launch(grid=(1, 1, 1), stream=stream)


def compile_for(arch, config=SIZE, options=""):
    return cute.compile(gemm, 16, 0, config, options=options)


def matmul(a, b):
    """Docs."""
    return host(a) + b


def host(a):
    return a
'''
HEADER = "# ---\n# jupyter:\n#   cookbook:\n#     title: A\n# ---\n\n# %%"


def hashes(tmp_path: Path, body: str) -> tuple[str, str]:
    file = tmp_path / "ampere" / "a.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEADER + body)
    return device_code.device_hash("ampere/a", tmp_path), device_code.host_hash("ampere/a", tmp_path)


UNSEEN = {
    "a comment": ("# a comment", "# another"),
    "a docstring": ('"""Docs."""', '"""Other words,\n    two lines."""'),
    "a docstring gone": ('    """Docs."""\n', ""),
    "a local variable": ("total", "sum_of_all"),
    "the target of a loop": ("for i in cutlass.range_constexpr(step):\n        total = total + scaled(i,",
                             "for number in cutlass.range_constexpr(step):\n        total = total + scaled(number,"),
    "a local's annotation": ("total: int = 0", "total = 0"),
    "a parameter": ("pA", "p_left"),
    "a parameter that is passed by keyword": (", last", ", final", "last)", "final)"),
    "a parameter of a helper": ("def scaled(x, by=SIZE)", "def scaled(x, factor=SIZE)", "x * by", "x * factor",
                                "by=found", "factor=found"),
    "a parameter of a lambda": ("lambda given: given", "lambda g: g"),
    "the target of a comprehension": ("x * by for x in range(x) if x", "y * by for y in range(x) if y"),
    "a parameter of a method": ("self, by):\n        return Pair(self.second, self.first + by",
                                "me, more):\n        return Pair(me.second, me.first + more"),
    "how an import is called": ("cute.", "ct.", "cutlass.cute as cute", "cutlass.cute as ct"),
    "how text is parted": ('f"{a}" "b"', '''f"{a}b{''}"'''.replace("{''}", "")),
    "brackets and lines": ("return a\n", "return (\n        a\n    )\n"),
    "a constant that nothing uses": ("UNUSED = 5", "UNUSED = 6"),
    "host code": ("host(a) + b", "b + host(a)"),
    "the lab": ("UNUSED = 5", 'UNUSED = 5\n\n# %% tags=["lab"]\nSIZE = 8\n\n# %%'),
}  # fmt: skip
SEEN = {
    "a constant": ("SIZE = 4", "SIZE = 3"),
    "a constant in a kernel": ("total: int = 0", "total: int = 1"),
    "a barrier": ("    cute.arch.sync_threads()\n", ""),
    "a type of a kernel's parameter": ("a: cute.Tensor, config: cutlass.Constexpr", "a: cute.Tensor, config"),
    "the order of parameters": ("inner(acc, step: cutlass.Constexpr,", "inner(step: cutlass.Constexpr, acc,"),
    "what is passed by keyword": ("second=step", "first=step"),
    "another local": ("scaled(i, by=found.first)", "scaled(total, by=found.first)"),
    "a global instead of a local": ("acc, second=step", "SIZE, second=step"),
    "a local that hides a global": ("    found = Pair", "    Pair = acc\n    found = Pair"),
    "a default": ("by=SIZE", "by=5"),
    "where an import comes from": ("import cutlass.cute as cute", "import cutlass.cuter as cute"),
    "the launch": ("grid=(1, 1, 1)", "grid=(2, 1, 1)"),
    "what is compiled": ("cute.compile(gemm, 16, 0", "cute.compile(gemm, 16, 1"),
    "a value that is put in later": ("UNUSED = 5", "UNUSED = 5\nSIZE += 1"),
    "a value that a call puts in later": ("UNUSED = 5", "UNUSED = 5\nSIZE.update(a=1)"),
    "a decorator": ("@cute.kernel", "@cute.kernel(opt=1)"),
    "a kind of number": ("SIZE = 4", "SIZE = 4.0"),
}


def test_what_cute_moved_counts_by_its_recent_place(tmp_path):
    """So a record stays current when a recipe takes the name from the one place that knows both."""
    before = "\nimport cutlass.memory\nimport cutlass.cute as cute\n"
    kernel = "\n@cute.kernel\ndef kernel(n):\n    smem = {}SmemAllocator()\n    smem.allocate(n)\n"
    after = "\nimport cutlass.cute as cute\nfrom cookbook.recipe.moved import SmemAllocator\n"
    found = hashes(tmp_path, before + kernel.format("cutlass.memory."))
    assert hashes(tmp_path, after + kernel.format("")) == found
    assert hashes(tmp_path, after + kernel.format("").replace("smem", "SmemAllocator")) != found  # a local hides it
    assert hashes(tmp_path, after.replace("Smem", "Tmem") + kernel.format("").replace("Smem", "Tmem")) != found


def changed(pairs: tuple[str, ...], body: str = BODY) -> str:
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in body, old
        body = body.replace(old, new)
    return body


@pytest.mark.parametrize("what", UNSEEN)
def test_device_code_does_not_see(what, tmp_path):
    assert hashes(tmp_path, changed(UNSEEN[what]))[0] == hashes(tmp_path, BODY)[0]


@pytest.mark.parametrize("what", SEEN)
def test_device_code_sees(what, tmp_path):
    assert hashes(tmp_path, changed(SEEN[what]))[0] != hashes(tmp_path, BODY)[0]


def test_the_order_of_definitions_is_not_seen(tmp_path):
    parts = BODY.split("\n\n\n")
    assert hashes(tmp_path, "\n\n\n".join([parts[0], *reversed(parts[1:])]) + "\n") == hashes(tmp_path, BODY)


def test_the_host_has_a_hash_of_its_own(tmp_path):
    device, host = hashes(tmp_path, BODY)
    for what in ("host code", "a constant that nothing uses"):
        assert hashes(tmp_path, changed(UNSEEN[what]))[1] != host
    for pairs in (SEEN["a barrier"], SEEN["a constant"], ("def host(a):\n    return a", "def host(b):\n    return b")):
        assert hashes(tmp_path, changed(pairs))[1] == host
    assert device != host


def test_names_matter_where_a_call_may_use_them(tmp_path):
    """`use` calls what it is given by keyword: exchanging the names of the parameters exchanges what they are."""
    body = BODY + (
        "\n\ndef less(big, small):\n    return big - small\n\n\ndef use(call):\n    return call(big=1, small=2)\n"
        "\n\n@cute.jit\ndef uses():\n    return use(less)\n"
    )
    other = body.replace("less(big, small):\n    return big - small", "less(small, big):\n    return small - big")
    assert hashes(tmp_path, body)[0] != hashes(tmp_path, other)[0]


def test_a_module_of_the_cookbook_is_part_of_what_imports_it(tmp_path):
    """Of the host's hash the whole module; of the device's what the kernels refer to."""
    body = BODY.replace("import cutlass\n", "import cutlass\nfrom cookbook.gf2 import rank, annihilator\n")
    used = body.replace("return [x * by", "return [rank(x) * by")
    found = device_code._recipe(HEADER + used).device()
    assert ("rank", "cookbook.gf2") in found and ("annihilator", "cookbook.gf2") not in found
    (before, host), (after, _) = hashes(tmp_path, body), hashes(tmp_path, used)
    assert before == hashes(tmp_path, BODY)[0] != after and host != hashes(tmp_path, BODY)[1]


@pytest.mark.parametrize("line", ["import cookbook.gf2", "from cookbook import gf2 as cookbook"])
def test_a_module_that_is_imported_whole_counts_whole(line):
    used = BODY.replace("import cutlass\n", f"import cutlass\n{line}\n").replace("return [x * by", "return [cookbook.y")
    assert {("rank", "cookbook.gf2"), ("annihilator", "cookbook.gf2")} <= device_code._recipe(HEADER + used).device()


def test_hash_is_made_once_for_each_text(tmp_path, monkeypatch):
    made, real = [], device_code._Module
    monkeypatch.setattr(device_code, "_Module", lambda source: made.append(source) or real(source))
    bodies = [f"\nonce = {number}  # for this test\n" for number in (1, 2)]
    assert len({hashes(tmp_path, bodies[0]) for _ in range(3)} | {hashes(tmp_path, bodies[1])}) == len(made) == 2


def test_a_recipe_is_found_by_the_last_part_of_its_name():
    assert device_code.device_hash("tma_copy") == device_code.device_hash("hopper/tma_copy")
    with pytest.raises(catalog.UnknownRecipe, match="name: got 'hopper/gone'; needed the name of a recipe"):
        device_code.device_hash("hopper/gone")


HASH = """
import sys
sys.path[:0] = sys.argv[1:3]
from tools.records import device_code
from cookbook.recipe import catalog
print([(device_code.device_hash(r.name), device_code.host_hash(r.name)) for r in catalog.recipes()])
heavy = {"torch", "cutlass"} & set(sys.modules)
print(heavy or "light")
"""


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_hash_is_the_same_for_every_python(version):
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
        pytest.skip(f"no python{version} here")
    roots = [Path(module.__file__).parents[1] for module in (cookbook, yaml)]
    done = subprocess.run([python, "-c", HASH, *map(str, roots)], capture_output=True, text=True, check=False)
    here = [(device_code.device_hash(r.name), device_code.host_hash(r.name)) for r in catalog.recipes()]
    assert done.stdout.splitlines() == [str(here), "light"], done.stderr


def test_hash_of_a_known_text_is_pinned(tmp_path):
    """The values that every version must give; a change here makes every record stale, until it is restamped."""
    assert hashes(tmp_path, BODY) == PINNED


PINNED = (
    "ae0b08bd969dae8d0a0cd8bae90d95d537bd36c056a5de900e3236620bf210a6",
    "3dd86df2faf43ff19182445226c663ff51d678b8ec0a0c401517b390b655d1eb",
)
