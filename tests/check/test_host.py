"""The level host accuses no recipe, and finds what is planted in the host code of a copied file."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from cookbook.check import host, levels, subjects
from cookbook.recipe import catalog
from cookbook.recipe.contract import Linked

GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.kind == "gemm"]
HOPPER, AMPERE, PADDED = "hopper/tma_wgmma_gemm", "ampere/pipelined_gemm", "blackwell/pipelined_gemm"
TOGETHER = "out.shape[1] | ldc | out.data_ptr() // 2"

# (recipe, what, what is replaced, by what, words that must be said)
FAULTS = [
    (HOPPER, "the store width forgets the row stride", TOGETHER, TOGETHER.replace(" | ldc", ""), "vec: got stores of"),
    (HOPPER, "the store width forgets N", TOGETHER, TOGETHER.replace("out.shape[1] | ", ""), "vec: got stores of"),
    (AMPERE, "the store width forgets the address", TOGETHER, "out.shape[1] | ldc", "pC: got address"),
    (AMPERE, "plans forget how out is aligned", "x.data_ptr() % 16, ", "", "pC: got address"),
    (AMPERE, "plans forget strides", "x.shape, x.stride(), x.dtype", "x.shape, x.dtype", "strides: got"),
    (PADDED, "plans forget out", "key = kind(a), kind(b), kind(out),", "key = kind(a), kind(b),", "; needed"),
    (PADDED, "rows that TMA cannot write are not padded", "vec == 8 or not self.padded", "True", "needed"),
    (PADDED, "padded rows are not copied back", "else out.copy_(made[:, :n])", "else out", "a result that is not"),
    (PADDED, "the strides of A and B change places", "strides = (a_major, b_major), (lda, ldb,",
     "strides = (a_major, b_major), (ldb, lda,", "strides: got"),
    ("hopper/split_k_gemm", "kernels are kept for both dtypes", "self.elements[call.dtype]",
     "list(self.elements.values())[0]", "pA: got a kernel for float16; needed one for bfloat16"),
    ("ampere/majors_gemm", "a kernel for other majors", "a_major, b_major = call.majors", "a_major, b_major = 'k', 'k'",
     "config: got a kernel for tn operands; needed one for"),
    ("hopper/fp8_gemm", "the strides of the scale factors change places", "(*call.strides, *along)",
     "(*call.strides, *along[::-1])", "stride_sa: got"),
    ("hopper/grouped_gemm", "the strides of groups and of rows change places", "(*call.strides, apart, groups)",
     "(*call.strides, call.strides[1], groups)", "group_stride: got"),
    ("hopper/grouped_gemm", "offs are read from a", "*self.handed(further), *", "*self.handed([pa]), *",
     "offs: got"),
    ("hopper/grouped_wgrad_gemm", "the groups of out are taken for adjacent", "apart = out.stride(0) if",
     "apart = m * call.strides[2] if", "group_stride: got"),
    ("blackwell/mxfp8_gemm", "no SM is left", "call.strides, call.sms)", "call.strides, 0)", "sms: got 0; needed 132"),
    (HOPPER, "the stream is another", "data_ptr(), *arguments, stream)", "data_ptr(), *arguments, 0)",
     "stream: got 0"),
    (HOPPER, "an odd address is not refused", "x.data_ptr() % 16 == 0, name", "True, name",
     "at an odd address: got a launch"),
    (HOPPER, "K is not compared", "b.shape[0] == k, ", "True, ", "b of another K: got a launch"),
    (HOPPER, "where out lies is not looked at", "require(beside or", "require(True or",
     "an out that overlaps b: got a launch"),
]  # fmt: skip


def copied(name: str, root: Path, old: str = "", new: str = "") -> subjects.Recipe:
    """A recipe's copied file, with one change."""
    source = catalog.standalone_source(name)
    assert old in source
    file = root / "my_gemm.py"
    file.write_text(source.replace(old, new) if old else source, encoding="utf-8")
    return subjects.of_file(file, name)


@pytest.mark.parametrize("name", GEMMS)
def test_a_recipe_launches_what_its_calls_ask_for(name):
    module, recipe = catalog.load(name), catalog.find(name)
    found = host.findings(module, recipe)
    shared = [name for name in host.SHARED if name in inspect.signature(module.gemm).parameters]
    chain = ["chain", "a chain whose out overlaps a weight"] if isinstance(module, Linked) else []
    assert [one for one in found if not one.ok] == []
    assert [one.name for one in found] == ["launches", *host.illegal(recipe), *shared, *chain]
    assert found[0].detail.startswith(f"{host.CALLS} calls, ")


@pytest.mark.parametrize(("name", "what", "old", "new", "says"), FAULTS, ids=[f"{x[0]}: {x[1]}" for x in FAULTS])
def test_a_fault_of_the_host_code_is_told(name, what, old, new, says, tmp_path):
    level = levels.host_level(copied(name, tmp_path, old, new))
    assert level.status == "failed" and says in level.reason


def test_plans_and_torch_are_as_before():
    import torch

    module = catalog.load(HOPPER)
    module.GEMM.plans["kept"] = before = ()
    here = torch.cuda.current_device, torch.Tensor.new_empty
    host.findings(module, catalog.find(HOPPER))
    assert module.GEMM.plans.pop("kept") is before and not module.GEMM.kernels
    assert here == (torch.cuda.current_device, torch.Tensor.new_empty) and not torch.zeros(1).is_cuda


def test_another_host_side_is_not_looked_at(tmp_path):
    """Never passed in silence: it says so."""
    level = levels.host_level(copied(HOPPER, tmp_path, "kernels", "compiled"))
    assert level.status == "not checked" and level.reason.startswith("matmul: got a host side of another kind; needed")
