"""Block-scaled operands: what they stand for, against torch's own types and against the definition."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from cookbook.check import ran, scaled
from cookbook.model.fp8_sums import share_lost, summed
from cookbook.model.small_floats import decode, encode
from cookbook.recipe import catalog, formats

torch = pytest.importorskip("torch")

FORMATS = [name for name, form in formats.FORMATS.items() if form.scale]


def values_of(elements, scales, form):
    """What torch makes of its own tensors: the definition once more, by another hand."""
    if form.bits == 4:
        raw = elements.view(torch.uint8).int()
        sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        signed = torch.cat([sizes, -sizes])
        elements = torch.stack([signed[raw & 15], signed[raw >> 4]], dim=-1).reshape(len(raw), -1)
    along = scales.float().repeat_interleave(form.block_of(elements.shape[1]), dim=1)
    return elements.float() * along[:, : elements.shape[1]]


@pytest.mark.parametrize("name", FORMATS)
def test_tensors_stand_for_the_values(name):
    operand = scaled.quantized(np.random.default_rng(0).standard_normal((40, 96)), name)
    form = formats.FORMATS[name]
    elements, scales = scaled.tensors(operand)
    assert (str(elements.dtype), str(scales.dtype)) == (f"torch.{form.torch_element}", f"torch.{form.torch_scale}")
    assert elements.shape == (40, 96 * form.bits // 8) and scales.shape == (40, -(-96 // form.block_of(96)))
    assert np.array_equal(values_of(elements, scales, form).numpy(), operand.values())


@pytest.mark.parametrize("name", FORMATS)
def test_quantizing_is_as_near_as_the_format_allows(name):
    """No element is further off than half a step at its size, or half of the smallest step, of its block's scale."""
    form, random = formats.FORMATS[name], np.random.default_rng(1)
    values = (random.standard_normal((64, 256)) * np.logspace(0, 3, 64)[:, None]).astype(np.float32)
    operand = scaled.quantized(values, name)
    factors = operand.scales if form.scale == "float32" else decode(operand.scales, form.scale)
    scale = np.repeat(factors, form.block_of(256), axis=1).astype(np.float64)
    grid = np.sort(decode(np.arange(1 << form.bits, dtype=np.uint8), form.element))
    grid = np.unique(grid[np.isfinite(grid)]).astype(np.float64)
    inside = np.abs(values) <= grid.max() * scale
    ratio = np.divide(values, scale, where=scale > 0, out=np.zeros(values.shape))
    nearest = grid[np.abs(ratio[..., None] - grid).argmin(axis=-1)] * scale
    off, least = np.abs(operand.values() - values), np.abs(nearest - values)
    assert (off <= least + 1e-6 * np.abs(values))[inside].all()
    assert inside.mean() > (0.9 if form.scale == "ue4m3" else 0.999)  # a rounded scale factor may be too small


@pytest.mark.parametrize("name", FORMATS)
def test_quantizing_what_is_quantized_changes_nothing(name):
    first = scaled.quantized(np.random.default_rng(2).standard_normal((32, 128)), name).values()
    assert np.array_equal(scaled.quantized(first, name).values(), first)
    tensor = torch.from_numpy(first).bfloat16()
    assert torch.equal(tensor.float(), torch.from_numpy(first))  # bfloat16 holds each exactly
    assert torch.equal(scaled.rounded_in_blocks(tensor, formats.FORMATS[name]), tensor)


@pytest.mark.parametrize("name", FORMATS)
def test_a_block_of_zeros_is_zero(name):
    values = np.zeros((4, 64), np.float32)
    values[1, 40] = 5
    found = scaled.quantized(values, name).values()
    assert not np.delete(found, 1, axis=0).any() and found[1, 40] == pytest.approx(5, rel=0.13)


@pytest.mark.parametrize("name", FORMATS)
def test_integers_use_all_scale_factors_and_sum_exactly(name):
    a, b = scaled.integers(33, 256, name, 0), scaled.integers(20, 256, name, 1)
    assert len(np.unique(a.scales)) == 3 and not np.array_equal(a.codes[:20], b.codes)
    exact = a.values().astype(np.float64) @ b.values().astype(np.float64).T
    assert np.array_equal((a.values() @ b.values().T).astype(np.float64), exact)


@pytest.mark.parametrize(("name", "together"), [("fp8", 1), ("fp8_blockwise", 1), ("fp8_blockwise", 128)])
def test_operands_are_quantized_on_a_device_as_in_numpy(name, together):
    """Blocks that M and K end in are smaller."""
    values = np.random.default_rng(3).standard_normal((150, 96 * 3)).astype(np.float32)
    form, own = formats.FORMATS[name], scaled.quantized(values, name, together)
    elements, scales = scaled.on_device(torch.from_numpy(values), form, together)
    theirs = scaled.tensors(own)
    assert torch.equal(elements.float(), theirs[0].float()) and torch.equal(scales, theirs[1])
    assert scales.shape == (-(-150 // together), 3 if form.block else 1)
    tensor = scaled.rounded(torch.from_numpy(values).bfloat16(), form, together)
    assert torch.equal(scaled.rounded(tensor, form, together), tensor)


def test_rows_of_b_share_their_scale_factors():
    values = np.ones((200, 300), np.float32)
    values[130, 260] = 448 * 1024
    operand = scaled.quantized(values, "fp8_blockwise", 128)
    assert operand.scales.shape == (2, 3) and np.argwhere(operand.scales == 1024).tolist() == [[1, 2]]
    changed = operand.values() != 1
    assert not changed[:128].any() and not changed[:, :256].any() and changed[128:, 256:].all()


def test_a_recipe_of_scaled_rows_takes_a_row_of_scales_for_b():
    def product(a, b, scale_a, scale_b, *, out=None):
        assert scale_a.shape == (8, 1) and scale_b.shape == (1, 24)
        return (a.float() * scale_a) @ (b.float() * scale_b)

    form = formats.FORMATS["fp8"]
    a, bt = (scaled.rounded(torch.randn(rows, 64), form) for rows in (8, 24))
    assert torch.allclose(scaled.as_matmul(product, form)(a, bt.T), a @ bt.T, rtol=1e-5, atol=1e-5)


def test_a_recipe_of_scaled_blocks_takes_a_matrix_of_scales():
    def product(a, b, scale_a, scale_b, *, out=None):
        assert scale_a.shape == (8, 2) and scale_b.shape == (2, 3)
        by_row, by_block = (x.repeat_interleave(128, 1) for x in (scale_a, scale_b))
        return (a.float() * by_row[:, :192]) @ (b.float() * by_block.repeat_interleave(128, 0)[:192, :300])

    form = formats.FORMATS["fp8_blockwise"]
    a, bt = (scaled.rounded(torch.randn(rows, 192), form, each) for rows, each in ((8, 1), (300, 128)))
    assert torch.allclose(scaled.as_matmul(product, form)(a, bt.T), a @ bt.T, rtol=1e-5, atol=1e-4)


def test_a_sum_that_cancels_may_lose_what_its_terms_lose():
    """Products of 1 x 1 x 64 into float16, made as `fp8_sums` says that tensor cores make them; then without one."""
    form, random = formats.FORMATS["fp8_blockwise"], np.random.default_rng(4)
    a, b = (torch.from_numpy(decode(encode(random.standard_normal((1000, 64)), "e4m3"), "e4m3")) for _ in range(2))
    products = (a * b).double().numpy()

    def problems(sums):
        found = []
        for x, y, each in zip(a, b, torch.from_numpy(sums).half(), strict=True):
            exact = (x.double() @ y.double()).reshape(1, 1)
            error = ran.relative_error(each.reshape(1, 1), exact)
            may_be_lost = 0.0, scaled.lost(x[None], y[:, None], exact, form)
            found.append([ran.verdict(error, error, 1, "float16", lost) for lost in may_be_lost])
        return [sum(map(bool, each)) for each in zip(*found, strict=True)]

    plain, judged = problems(summed(products))
    assert plain > 50 and judged == 0
    assert min(problems(summed(products) - products[:, 5])) > 950


def test_the_loss_allowed_is_that_of_a_few_elements():
    assert ran.verdict(6e-4, 1.0, ran.RATIO_ELEMENTS - 1, "float16", lost=2e-4) == ""
    assert "at most 4.88e-04" in ran.verdict(6e-4, 1.0, ran.RATIO_ELEMENTS, "float16", lost=2e-4)


def test_a_loss_above_rounding_is_allowed_with_many_elements():
    """Fast accumulation over a K of 1024 loses more than half a unit of float16, and less than one of bfloat16."""
    lost = share_lost(1024)
    assert ran.tolerance("float16") < lost < ran.tolerance("bfloat16")
    assert ran.verdict(6e-4, 1.0, 10**6, "float16", lost) == ""
    assert "at most 2.78e-03" in ran.verdict(4e-3, 1.0, 10**6, "float16", lost)
    assert "at most 3.91e-03" in ran.verdict(4e-3, 1.0, 10**6, "bfloat16", lost)


MXFP8 = formats.FORMATS["mxfp8"]


def test_shapes_that_have_no_whole_blocks():
    assert formats.misfit((5, 7, 64), MXFP8) == "" and formats.misfit((5, 7, 72), MXFP8) == "K = 72"
    assert formats.align((5, 7, 72), MXFP8) == (5, 7, 96)
    with pytest.raises(ValueError, match=r"values: got shape \(4, 40\); needed \(rows, K\), K a multiple of 32"):
        scaled.quantized(np.zeros((4, 40)), "mxfp8")


def test_atoms_that_are_not_whole_are_refused():
    assert scaled.atoms_as_words(np.zeros(1024, np.uint8), 130).shape == (2, 64)
    with pytest.raises(ValueError, match="atoms: got 512 of uint8; needed bytes, whole atoms for 130 rows"):
        scaled.atoms_as_words(np.zeros(512, np.uint8), 130)


def test_a_recipe_says_what_its_front_matter_says():
    for recipe in catalog.recipes():
        form = formats.of_module(catalog.load(recipe.name)) if recipe.product.is_gemm else None
        assert (form.name if form else "") == recipe.operands
    wrong = SimpleNamespace(
        ELEMENT=SimpleNamespace(__name__="Float8E5M2"), SCALE=SimpleNamespace(__name__="Int8"), BLOCK=32
    )
    with pytest.raises(ValueError, match=r"ELEMENT, SCALE, BLOCK: got .*'Float8E5M2', 'Int8', 32.*; needed"):
        formats.of_module(wrong)


def test_front_matter_that_names_no_format_is_refused(tmp_path):
    source = catalog.find("blackwell/mxfp8_gemm").file.read_text(encoding="utf-8")
    file = tmp_path / "blackwell" / "mxfp8_gemm.py"
    file.parent.mkdir()
    file.write_text(source.replace("operands: mxfp8", "operands: mxfp6"), encoding="utf-8")
    with pytest.raises(
        catalog.CatalogError, match="operands: got 'mxfp6'; needed one of mxfp8, nvfp4, of kind block_scaled"
    ):
        catalog.recipes(tmp_path)
