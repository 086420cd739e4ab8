"""The level host accuses no recipe, and finds what is planted in the host code of a copied file."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from edits import In

from cookbook.check import calls, host, levels, subjects
from cookbook.recipe import catalog
from cookbook.recipe.contract import Linked

GEMMS = [recipe.name for recipe in catalog.recipes() if recipe.product.is_gemm]
HOPPER, AMPERE, PADDED = "hopper/tma_wgmma_gemm", "ampere/pipelined_gemm", "blackwell/pipelined_gemm"

# (recipe, what, the edit of its copy, words that must be said)
FAULTS = [
    (HOPPER, "the store width forgets the row stride",
     In("store_width").replace("_out.shape[1] | _ldc", "_out.shape[1]"), "vec: got stores of"),
    (HOPPER, "the store width forgets N",
     In("store_width").replace("_out.shape[1] | _ldc", "_ldc"), "vec: got stores of"),
    (AMPERE, "the store width forgets the address",
     In("store_width").replace("_together | _.data_ptr() // 2", "_together"), "pC: got address"),
    (AMPERE, "plans forget how out is aligned",
     In("kind").replace("(_a, _b, _c, _d, _.data_ptr() % 16, ...)", "(_a, _b, _c, _d, ...)"), "pC: got address"),
    (AMPERE, "plans forget strides", In("kind").replace("(_shape, _.stride(), ...)", "(_shape, ...)"), "strides: got"),
    (PADDED, "plans forget out",
     In("Gemm.matmul").replace("(kind(_a), kind(_b), _others, kind(_c), ...)", "(kind(_a), kind(_b), _others, ...)"),
     "; needed"),
    (PADDED, "rows that TMA cannot write are not padded",
     In("Gemm.result").replace("_vec == 8 or not self.padded", "True"), "needed"),
    (PADDED, "padded rows are not copied back",
     In("Gemm.matmul").replace("_out.copy_(_made[:, :_])", "_out"), "a result that is not"),
    (PADDED, "the strides of A and B change places",
     In("Gemm.check").replace("(_, _, _, _, _, (*_lines, _ldc), ...)", "(_, _, _, _, _, (*_lines[::-1], _ldc), ...)"),
     "strides: got"),
    ("hopper/split_k_gemm", "kernels are kept for both dtypes",
     In("Gemm.prepared").replace("TYPES_OF_C[_call.dtype]", "list(TYPES_OF_C.values())[0]"),
     "pA: got a kernel for float16; needed one for bfloat16"),
    ("ampere/majors_gemm", "a kernel for other majors", In("prepare").replace("_call.majors", "('k', 'k')"),
     "config: got a kernel for tn operands; needed one for"),
    ("hopper/fp8_gemm", "the strides of the scale factors change places",
     In("prepare").replace("_c.known['scale_a'] + _c.known[_]", "_c.known['scale_b'] + _c.known['scale_a']"),
     "stride_sa: got"),
    ("hopper/grouped_gemm", "the strides of groups and of rows change places",
     In("prepare").replace("_call.known['b']", "_call.strides[1:2]"),
     "group_stride: got"),
    ("hopper/grouped_gemm", "offs are read from a",
     In("FurtherGemm.launch").replace("_pointers[self.c_at:]", "_pointers[:1]"), "offs: got"),
    ("hopper/grouped_wgrad_gemm", "the groups of out are taken for adjacent",
     In("GroupedGemm.result").replace("_.stride(0) if _ else _adjacent", "_adjacent"), "group_stride: got"),
    ("blackwell/mxfp8_gemm", "no SM is left", In("prepare").replace("_call.sms", "0"), "sms: got 0; needed 132"),
    (HOPPER, "the stream is another",
     In("Gemm.matmul").replace("_kernel(_a, _b, _c, *_arguments, _stream)", "_kernel(_a, _b, _c, *_arguments, 0)"),
     "stream: got 0"),
    (HOPPER, "an odd address is not refused", In("line_stride").replace("_x.data_ptr() % 16 == 0", "True"),
     "at an odd address: got a launch"),
    (HOPPER, "K is not compared", In("Matrix.check").replace("_.setdefault(_, _e) == _e", "_.setdefault(_, _e) != 0"),
     "b of another K: got a launch"),
    (HOPPER, "where out lies is not looked at", In("check_apart").replace("_ or _ or _", "True"),
     "an out that overlaps b: got a launch"),
]  # fmt: skip


def copied(name: str, root: Path, edit: In = In()) -> subjects.Recipe:  # noqa: B008, frozen
    """A recipe's copied file, edited."""
    file = root / "my_gemm.py"
    file.write_text(edit.of(catalog.standalone_source(name)), encoding="utf-8")
    return subjects.of_file(file, name)


@pytest.mark.parametrize("name", GEMMS)
def test_a_recipe_launches_what_its_calls_ask_for(name):
    module, recipe = catalog.load(name), catalog.find(name)
    found = host.findings(module, recipe)
    shared = [name for name in host.SHARED if name in inspect.signature(module.gemm).parameters]
    chain = ["chain", "a chain whose out overlaps a weight"] if isinstance(module, Linked) else []
    assert [one for one in found if not one.ok] == []
    assert [one.name for one in found] == ["launches", *recipe.product.illegal(), *shared, *chain]
    assert found[0].detail.startswith(f"{calls.CALLS} calls, ")


@pytest.mark.parametrize(("name", "what", "edit", "says"), FAULTS, ids=[f"{x[0]}: {x[1]}" for x in FAULTS])
def test_a_fault_of_the_host_code_is_told(name, what, edit, says, tmp_path):
    level = levels.host_level(copied(name, tmp_path, edit))
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
    file = tmp_path / "my_gemm.py"
    file.write_text(catalog.standalone_source(HOPPER).replace("kernels", "compiled"), encoding="utf-8")
    recipe = subjects.of_file(file, HOPPER)
    (level,) = levels.run_step(levels.Step("host", None, lambda: [levels.host_level(recipe)]))
    assert level.status == "not checked" and level.reason.startswith("matmul: got a host side of another kind; needed")
