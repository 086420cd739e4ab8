import dataclasses
import types

import pytest

cutlass = pytest.importorskip("cutlass")
import cutlass.cute as cute  # noqa: E402

from cookbook.check import layout  # noqa: E402
from cookbook.check.evaluated import evaluated  # noqa: E402
from cookbook.check.layout import check_layouts, predicted_copies, predicted_wavefronts  # noqa: E402
from cookbook.layouts import Layout, TiledCopyTV  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

HOPPER, AMPERE = "hopper/tma_wgmma_gemm", "ampere/ldmatrix_gemm"


def recipe(name, **changes):
    """The recipe's module, or one like it in which some names are others."""
    original = catalog.load(name)
    module = types.ModuleType(original.__name__)
    module.__dict__.update(vars(original) | changes)
    return module


def with_swizzle(name, bits, base, shift, only="abc"):
    """The recipe with another swizzle over the same strides in the layouts that `only` names."""
    original = catalog.load(name)

    def smem_layouts(dtype, config):
        found = original.smem_layouts(dtype, config)
        swizzle = cute.make_swizzle(bits, base, shift)
        changed = {field: cute.make_composed_layout(swizzle, 0, getattr(found, field).outer) for field in only}
        return found._replace(**changed)

    return recipe(name, smem_layouts=smem_layouts)


def failures(module, config=None, dtype=cutlass.BFloat16):
    found = check_layouts(module, dtype, config or module.CONFIG)
    return {finding.name: finding.detail for finding in found if not finding.ok}


@pytest.mark.parametrize("dtype", [cutlass.Float16, cutlass.BFloat16])
@pytest.mark.parametrize("name", [HOPPER, AMPERE])
def test_the_recipes_hold(name, dtype):
    module = catalog.load(name)
    found = {finding.name: finding for finding in check_layouts(module, dtype, module.CONFIG)}
    assert all(finding.ok for finding in found.values())
    assert {"a.bijective", "b.aligned", "smem.fits", "r2s_c.wavefronts", "s2g_c.covers"} <= set(found)
    assert ("a.descriptor" in found) == (name == HOPPER)
    assert ("s2r_b.wavefronts" in found) == (name == AMPERE)


def test_the_small_configuration_holds():
    module = catalog.load(AMPERE)
    assert module.config_for("sm_89") != module.CONFIG
    assert not failures(module, module.config_for("sm_89"))


def test_predictions_by_kind():
    ampere, hopper = (catalog.load(name) for name in (AMPERE, HOPPER))
    assert predicted_wavefronts(ampere, cutlass.Float16, ampere.CONFIG) == {"g2s": 4, "s2r": 4, "r2s": 1, "s2g": 4}
    assert predicted_wavefronts(hopper, cutlass.Float16, hopper.CONFIG) == {"r2s": 4, "s2g": 4}
    bare = with_swizzle(AMPERE, 0, 4, 3)
    assert predicted_wavefronts(bare, cutlass.Float16, bare.CONFIG) == {"g2s": 4, "s2r": 32, "r2s": 8, "s2g": 4}


def test_swizzle_dropped_conflicts_on_ampere():
    bad = failures(with_swizzle(AMPERE, 0, 4, 3))
    assert set(bad) == {"s2r_a.wavefronts", "s2r_b.wavefronts", "r2s_c.wavefronts"}
    assert "take 32 wavefronts each (ideal 4)" in bad["s2r_a.wavefronts"]


def test_swizzle_dropped_has_no_descriptor_on_hopper():
    bad = failures(with_swizzle(HOPPER, 0, 4, 3, only="ab"))
    assert set(bad) == {"a.descriptor", "b.descriptor"}
    assert set(failures(with_swizzle(HOPPER, 0, 4, 3, only="c"))) == {"r2s_c.wavefronts"}


@pytest.mark.parametrize("name", [HOPPER, AMPERE])
def test_byte_swizzle_used_as_elements(name):
    """S<3,3,3> is right on 16-bit elements; on bytes it tears 16-byte vectors and is no hardware mode."""
    bad = failures(with_swizzle(name, 3, 3, 3))
    assert "adjacent elements" in bad["s2g_c.wavefronts"]
    assert "adjacent elements" in bad["g2s_a.wavefronts"] if name == AMPERE else "S<3,4,3>" in bad["a.descriptor"]


@pytest.mark.parametrize("name", [HOPPER, AMPERE])
@pytest.mark.parametrize("swizzle", [(3, 5, 3), (3, 4, 4), (2, 4, 3)])
def test_swizzle_off_by_one(name, swizzle):
    """One too high, one too far, one bit short: each costs wavefronts or has no descriptor."""
    bad = failures(with_swizzle(name, *swizzle))
    assert "r2s_c.wavefronts" in bad
    assert {"a.descriptor", "b.descriptor"} <= set(bad) if name == HOPPER else "s2r_a.wavefronts" in bad


def test_a_known_excess_is_declared_with_its_reason():
    bare = with_swizzle(AMPERE, 0, 4, 3)
    bare.EXPECTED_EXCESS = {
        "s2r_a": (28, "no swizzle"),
        "s2r_b": (28, "no swizzle"),
        "r2s_c": (7, "no swizzle, on purpose"),
    }
    found = {f.name: f for f in check_layouts(bare, cutlass.BFloat16, bare.CONFIG)}
    assert all(f.ok for f in found.values())
    assert "excess of 7 each: no swizzle, on purpose" in found["r2s_c.wavefronts"].detail
    swizzled = recipe(AMPERE, EXPECTED_EXCESS={"s2r_a": (28, "wrong")})
    assert set(failures(swizzled)) == {"s2r_a.wavefronts"}


def test_shared_memory_too_small():
    module = catalog.load(AMPERE)

    class Tight(module.Config):
        smem_bytes = 196607

    assert "196608 bytes; the launch asks for 196607" in failures(module, Tight())["smem.fits"]


def test_stages_out_of_step_with_the_swizzle():
    original = catalog.load(HOPPER)

    def smem_layouts(dtype, config):
        found = original.smem_layouts(dtype, config)
        outer = cute.make_layout((128, 64, 2), stride=(64, 1, 128 * 64 + 64))
        return found._replace(a=cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, outer))

    bad = failures(recipe(HOPPER, smem_layouts=smem_layouts))
    assert "[0, 16512]; needed multiples of 1024" in bad["a.aligned"]
    assert "a.bijective" in bad  # the gap between the stages is a hole


def test_copy_that_leaves_elements_out(monkeypatch):
    """A row of 256 elements by 32 threads of 8: if lanes 16 to 31 repeat 0 to 15, half of it is never moved."""
    module = catalog.load(HOPPER)
    found = evaluated(module, cutlass.BFloat16, module.CONFIG)
    halves = Layout(((16, 2, 8), (8, 1)), ((64, 0, 1), (8, 0)))
    copies = found.copies | {"s2g_c": TiledCopyTV(halves, halves, (8, 256))}
    monkeypatch.setattr(layout, "evaluated", lambda *_: dataclasses.replace(found, copies=copies))
    assert failures(module) == {"s2g_c.covers": "each element is moved 0 to 2 times"}


def with_padding(declared, strides=(72, 1, 128 * 72)):
    """The Ampere recipe with A's rows of 64 elements 72 apart and no swizzle; `declared` is what its Config says."""
    original = catalog.load(AMPERE)

    def smem_layouts(dtype, config):
        found = original.smem_layouts(dtype, config)
        outer = cute.make_layout(tuple(map(cute.size, found.a.outer.shape)), stride=strides)
        return found._replace(a=cute.make_composed_layout(cute.make_swizzle(0, 4, 3), 0, outer))

    class Padded(original.Config):
        padding = declared

        @property
        def smem_bytes(self):
            return 2 * self.stages * (self.tile_m * 72 + self.tile_n * 64)

    return recipe(AMPERE, smem_layouts=smem_layouts), Padded()


def test_padding_is_free_of_conflicts_and_has_to_be_declared():
    bad = failures(*with_padding(8))
    assert set(bad) == {"b.injective"}  # B has none, and 8 are declared
    assert "a.bijective" in failures(*with_padding(0))
    assert "a.injective" in failures(*with_padding(16))


def test_rows_that_overlap_are_no_padding():
    assert "a.injective" in failures(*with_padding(8, strides=(56, 1, 128 * 72)))


def test_an_excess_may_depend_on_the_configuration():
    bare = with_swizzle(AMPERE, 0, 4, 3, only="ab")
    bare.expected_excess = lambda config: dict.fromkeys(("s2r_a", "s2r_b"), (28, f"{config.stages} stages, no swizzle"))
    assert not failures(bare)
    swizzled = recipe(AMPERE, expected_excess=lambda config: {})
    assert not failures(swizzled)


def test_copies_past_l1_of_plain_padded_and_swizzled_rows():
    module = catalog.load("ampere/smem_gemm")
    each = {}
    for name, config in module.VARIANTS.items():
        count, wavefronts = predicted_copies(module, cutlass.BFloat16, config, (1536, 1536, 1024))
        each[name] = wavefronts / count
    assert each == {"plain": 4.0, "padded": 10.5, "swizzled": 4.0}  # as counted on an H200


def test_a_padded_tile_is_told_of_and_not_judged():
    module = catalog.load("ampere/smem_gemm")
    found = {f.name: f for f in check_layouts(module, cutlass.BFloat16, module.VARIANTS["padded"])}
    assert found["g2s_a.wavefronts"].ok
    assert "cp_async take 10 wavefronts each (ideal 4)" in found["g2s_a.wavefronts"].detail
