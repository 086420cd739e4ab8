"""`matmul` of block-scaled operands: what it launches, and what it refuses. No GPU: see test_entry_plans."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pretend import NoDevice, pretended

from cookbook.check import scaled
from cookbook.model.scale_factors import to_atoms
from cookbook.model.small_floats import unpack
from cookbook.recipe import catalog, formats

RECIPES = [r.name for r in catalog.recipes() if r.operands and formats.FORMATS[r.operands].by_mma]
M, N, K = 130, 40, 96


@pytest.fixture(params=RECIPES)
def case(request, monkeypatch):
    """(module, its format, what matmul takes: a, b, a_scale, b_scale)."""
    form = formats.FORMATS[catalog.find(request.param).operands]
    (a, a_scale), (bt, b_scale) = (scaled.tensors(scaled.integers(rows, K, form.name, rows)) for rows in (M, N))
    operands = {"a": a, "b": bt.T, "a_scale": a_scale, "b_scale": b_scale}
    return pretended(request.param, monkeypatch), form, operands


def as_bytes(x):
    """A tensor on which torch can do more than keep it."""
    return x.view(torch.uint8)


def test_what_is_launched(case, monkeypatch):
    """Addresses of what was given and of atoms made of the scale factors; sizes in elements, strides in bytes."""
    module, _, operands = case
    seen, made = [], module.to_atoms
    where = module.GEMM.operands[2].read_as.__globals__
    monkeypatch.setitem(where, "to_atoms", lambda x: seen.append(made(x)) or seen[-1])
    out = module.matmul(**operands)
    assert out.shape == (M, N) and out.dtype == torch.bfloat16 and len(module.planned) == 1
    ((_, arguments),) = module.launched
    given = (operands["a"], operands["b"], *seen, out)
    row = operands["a"].stride(0)
    assert arguments == (*(x.data_ptr() for x in given), ((M, N, K), (row, row, N), 132), 7)
    for scale, atoms in zip((operands["a_scale"], operands["b_scale"]), seen, strict=True):
        assert np.array_equal(atoms.numpy(), to_atoms(as_bytes(scale).numpy()))


def test_scale_factors_in_atoms_are_taken_as_they_are(case):
    module, _, operands = case
    atoms = {name: module.to_atoms(operands[name]) for name in ("a_scale", "b_scale")}
    module.matmul(**operands | atoms)
    assert module.launched[0][1][2:4] == (atoms["a_scale"].data_ptr(), atoms["b_scale"].data_ptr())


def test_bytes_are_taken_for_the_types_that_torch_may_lack(case):
    module, form, operands = case
    taken = {"a_scale", "b_scale", *(("a", "b") if form.bits < 8 else ())}
    module.matmul(**{name: as_bytes(x.T).T if name == "b" and name in taken else as_bytes(x) if name in taken else x
                     for name, x in operands.items()})  # fmt: skip
    assert len(module.launched) == 1


def test_a_second_call_of_a_kind_is_launched_without_the_checks(case):
    module, _, operands = case
    for _ in range(3):
        module.matmul(**operands)
    assert len(module.planned) == 1 and len(module.launched) == 3
    module.matmul(**operands | {"a_scale": module.to_atoms(operands["a_scale"])})
    module.matmul(**operands, variant=list(module.VARIANTS)[1])
    assert len(module.planned) == 3 and len(module.GEMM.plans) == 3


def test_an_out_that_tma_cannot_write_is_made_in_padded_rows(case):
    module, _, operands = case
    out = torch.zeros(M, N + 1, dtype=torch.bfloat16)[:, :N]
    assert module.matmul(**operands, out=out) is out
    _, arguments = module.launched[0]
    assert arguments[4] != out.data_ptr() and arguments[5].strides[2] == N


def test_where_out_lies_is_looked_at_each_time(case):
    module, _, operands = case
    out = torch.zeros(M, N, dtype=torch.bfloat16)
    atoms = {"b_scale": out.view(torch.uint8).reshape(-1)[: len(module.to_atoms(operands["b_scale"]))]}
    for _ in range(2):
        module.matmul(**operands, out=out)
        with pytest.raises(ValueError, match="out: got memory that overlaps b_scale; needed memory of its own"):
            module.matmul(**operands | atoms, out=out)
    memory = torch.zeros(4 * M * N, dtype=torch.uint8)
    width = operands["a"].shape[1]
    a = memory[: M * width].view(M, width).view(operands["a"].dtype)
    with pytest.raises(ValueError, match="out: got memory that overlaps a"):
        module.matmul(**operands | {"a": a}, out=memory.view(torch.bfloat16)[8 : 8 + M * N].view(M, N))


def shifted(x, by=1):
    """The same matrix, `by` bytes further than a multiple of 16."""
    flat = torch.zeros(x.numel() + 32, dtype=torch.uint8)
    start = -flat.data_ptr() % 16 + by
    return flat[start : start + x.numel()].view(x.shape).view(x.dtype)


def test_bad_input_is_refused_before_anything_is_launched(case):
    module, form, operands = case
    a, a_scale, b_scale = (operands[name] for name in ("a", "a_scale", "b_scale"))
    apart = torch.zeros(M, a.shape[1] + 8, dtype=torch.uint8)[:, : a.shape[1]].view(a.dtype)
    half = module.to_atoms(a_scale)[:512]
    wrong = [
        (TypeError, "a: got list; needed a torch.Tensor", {"a": [[1.0]]}),
        (TypeError, "a: got torch.bfloat16; needed torch.float", {"a": torch.zeros(M, K, dtype=torch.bfloat16)}),
        (TypeError, "a_scale: got torch.float32; needed torch.float8", {"a_scale": torch.zeros(M, K // form.block)}),
        (TypeError, "a_scale: got NoneType", {"a_scale": None}),
        (TypeError, "out: got torch.float32; needed torch.bfloat16", {"out": torch.zeros(M, N)}),
        (ValueError, "a: got stride", {"a": as_bytes(a).T.contiguous().T.view(a.dtype)}),
        (ValueError, "a: got address", {"a": shifted(a)}),
        (ValueError, "a: got .*K = .*, rows .* bytes apart", {"a": apart}),
        (ValueError, "b: got shape", {"b": operands["b"][: a.shape[1] // 2]}),
        (ValueError, r"a_scale: got shape \(40, .*needed \(130, ", {"a_scale": b_scale}),
        (ValueError, r"a_scale: got shape \(512,\); needed \(130, \d+\), or", {"a_scale": half}),
        (ValueError, "a_scale: got 3 dimension", {"a_scale": as_bytes(a_scale)[None]}),
        (ValueError, "a_scale: got address", {"a_scale": shifted(module.to_atoms(a_scale), 8)}),
        (ValueError, "out: got shape", {"out": torch.zeros(N, M, dtype=torch.bfloat16)}),
        (ValueError, "variant: got 'three'", {"variant": "three"}),
    ]  # fmt: skip
    for error, message, changes in wrong * 2:
        with pytest.raises(error, match=message):
            module.matmul(**operands | changes)
    assert not module.launched and not module.GEMM.plans


@pytest.mark.parametrize("name", RECIPES)
def test_k_is_a_multiple_of_32(name):
    module = catalog.load(name)
    form = formats.FORMATS[catalog.find(name).operands]
    narrow = torch.zeros(16, 48 * form.bits // 8, dtype=torch.uint8).view(getattr(torch, form.torch_element))
    scale = torch.zeros(16, -(-48 // form.block), dtype=torch.uint8)
    with pytest.raises(ValueError, match="a: got K = 48; needed a multiple of 32"):
        module.matmul(narrow, narrow.T, scale, scale)


@pytest.mark.parametrize("name", RECIPES)
def test_with_no_gpu_the_device_is_refused(name):
    module = catalog.load(name)
    form = catalog.find(name).operands
    (a, a_scale), (bt, b_scale) = (scaled.tensors(scaled.integers(16, 64, form)) for _ in "ab")
    with pytest.raises(ValueError, match="a: got device cpu; needed a CUDA device"):
        module.matmul(a, bt.T, a_scale, b_scale)


def test_the_device_of_the_operands_is_current_at_the_launch(case, monkeypatch):
    module, _, operands = case
    module.matmul(**operands)
    current = [3, -1]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current.pop(0))
    NoDevice.made_current.clear()
    module.matmul(**operands)
    assert NoDevice.made_current == [-1] and not current and len(module.launched) == 2


def test_level_ran_gives_it_quantized_operands(case, monkeypatch):
    """The checks on a GPU call it with two matrices: what it is given then stands for these very matrices."""
    module, form, _ = case
    given = []

    def matmul(a, b, a_scale, b_scale, out=None, variant=None):
        given.append((a, b, a_scale, b_scale))
        return out

    monkeypatch.setattr(module, "matmul", matmul)
    x = scaled.rounded_in_blocks(torch.randn(24, 64).bfloat16(), form)
    assert torch.equal(scaled.rounded_in_blocks(x, form), x)
    recipe = next(recipe for recipe in catalog.recipes() if catalog.load(recipe.name) is module)
    calls = recipe.product.matmuls(recipe, module)
    assert list(calls) == list(module.VARIANTS)
    for call in calls.values():
        call(x, x.T, out=x)
    a, b, a_scale, _ = given[0]
    codes = as_bytes(a).numpy() if form.bits == 8 else unpack(as_bytes(a).numpy(), 4)
    assert torch.equal(torch.from_numpy(scaled.Scaled(form.name, codes, as_bytes(a_scale).numpy()).values()), x.float())
    assert b.shape == a.T.shape and b.stride(0) == 1
