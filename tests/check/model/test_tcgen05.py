"""Blackwell's GEMMs simulated in numpy, their descriptors against the compiler's, and faults that must be caught."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from walked import failures, integers, rounded  # noqa: E402

from cookbook.check import compiled as compiling  # noqa: E402
from cookbook.check import tensor_memory  # noqa: E402
from cookbook.check.evaluated import evaluated, vector_for  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate, simulate_evaluated  # noqa: E402
from cookbook.check.model.tcgen05 import descriptors_of, instruction_of, loads_of, tmem_columns  # noqa: E402
from cookbook.layouts import Layout  # noqa: E402
from cookbook.model import BlackwellDescriptor, InstructionDescriptor  # noqa: E402
from cookbook.recipe import catalog, majors  # noqa: E402
from cookbook.swizzle import Swizzle  # noqa: E402

NAME = "blackwell/tma_tcgen05_gemm"
RECIPES = [r.name for r in catalog.recipes() if any(i.startswith("UTCHMMA") for i in r.instructions_for("sm_100a"))]
CASES = [(name, which) for name in RECIPES for which in catalog.find(name).majors]
DTYPES = {"float16": cutlass.Float16, "bfloat16": cutlass.BFloat16}


def looked_at(name=NAME, which="tn", dtype="bfloat16", **changes):
    module = catalog.load(name)
    config = majors.configured(dataclasses.replace(module.CONFIG, **changes), which)
    return module, config, evaluated(module, DTYPES[dtype], config)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((128, 256, 64), "float16"), ((8, 8, 8), "bfloat16"), ((136, 264, 328), "bfloat16"), ((200, 336, 136), "float16")],
)
@pytest.mark.parametrize(("name", "which"), CASES)
def test_equals_torch_on_integers(name, which, shape, dtype):
    """Whole and ragged tiles, one k-tile and more of them than stages, one tile and several."""
    module, config, _ = looked_at(name, which)
    a, b = integers(*shape)
    assert np.array_equal(simulate(module, a, b, DTYPES[dtype], config), rounded(a @ b, dtype))


@pytest.mark.parametrize("n", [333, 6, 1])
def test_any_n(n):
    module, config, _ = looked_at()
    a, b = integers(130, n, 72)
    assert np.array_equal(simulate(module, a, b, cutlass.BFloat16, config), rounded(a @ b))


@pytest.mark.parametrize(
    "changes",
    [{"tile_k": 32}, {"tile_k": 16, "stages": 6}, {"tile_k": 128, "stages": 2}, {"tile_n": 128}, {"epi_n": 64},
     {"tile_n": 64, "epi_n": 16}, {"stages": 2}],
)  # fmt: skip
def test_other_configurations(changes):
    """tile_k = 32 and 16 make the recipe choose the 64- and the 32-byte swizzle; 128 a row of two atoms."""
    module, config, _ = looked_at(**changes)
    assert not failures(check_layouts(module, cutlass.BFloat16, config))
    a, b = integers(140, 150, 136)
    assert np.array_equal(simulate(module, a, b, cutlass.BFloat16, config), rounded(a @ b))


def replaced(found, field, **changes):
    layout = dataclasses.replace(found.smem[field], **changes)
    return dataclasses.replace(found, smem=found.smem | {field: layout})


@pytest.mark.parametrize("side", ["writer", "reader"])
@pytest.mark.parametrize("field", ["a", "b", "c"])
@pytest.mark.parametrize("swizzle", [(0, 4, 3), (3, 3, 3), (3, 5, 3), (2, 4, 3), (3, 4, 4)])
def test_a_different_swizzle_on_one_side_is_caught(swizzle, field, side):
    """Dropped, counted in elements, one too high, one bit short, one too far: wrong, or refused by an instruction."""
    module, config, _ = looked_at()
    right = evaluated(module, cutlass.BFloat16, config, vector_for(256))
    wrong = replaced(right, field, swizzle=Swizzle(*swizzle))
    a, b = integers(128, 256, 64)
    try:
        product = simulate_evaluated(
            *((wrong, right) if side == "writer" else (right, wrong)), a, b, "bfloat16", config
        )
    except ValueError as refused:
        assert "needed" in str(refused)
    else:
        assert (product != rounded(a @ b)).mean() > 0.25


@pytest.mark.parametrize("name", RECIPES)
def test_steps_that_are_not_the_layouts_are_caught(name):
    """A fragment that counts elements where descriptors count 16 bytes, or passes a stage by."""
    _, config, found = looked_at(name)
    a, b = integers(config.tile_m, config.tile_n, 3 * config.tile_k)
    blocks = found.fragments["a"]
    for factor in ((1, 1, 8, 1), (1, 1, 1, 2)):
        stride = tuple(_times(s, f) for s, f in zip(blocks.stride, factor, strict=True))
        wrong = dataclasses.replace(found, fragments=found.fragments | {"a": Layout(blocks.shape, stride)})
        assert not tensor_memory.descriptor_finding(wrong, "a").ok
        try:
            product = simulate_evaluated(found, wrong, a, b, "bfloat16", config)
        except ValueError as refused:
            assert "needed" in str(refused)
        else:
            assert (product != rounded(a @ b)).mean() > 0.25


def _times(stride, factor):
    return tuple(_times(s, factor) for s in stride) if isinstance(stride, tuple) else stride * factor


def test_sums_in_other_lanes_are_caught():
    """Rows 32 lanes up, or columns in lanes: no tcgen05.ld of a warp gives its threads what they then store."""
    _, config, found = looked_at()
    sums, tile = found.fragments["c"], (config.tile_m, config.tile_n)
    copy = found.copies["t2r_c"]
    assert loads_of(copy, sums, tile).shape == "32x32b"
    for stride in (((1, 65536), 0, 0, 0), ((65536, 2), 0, 0, 0)):
        with pytest.raises(ValueError, match="t2r_c"):
            loads_of(copy, Layout(sums.shape, stride), tile)


def test_a_warp_that_asks_for_the_lanes_of_another_is_caught():
    """All four warps ask for rows 0 to 31: three of them cannot reach these, and 96 rows nobody has."""
    _, config, found = looked_at()
    copy = found.copies["t2r_c"]
    greedy = dataclasses.replace(copy, dst_tv=Layout(copy.dst_tv.shape, ((1, 0), copy.dst_tv.stride[1])))
    wrong = dataclasses.replace(found, copies=found.copies | {"t2r_c": greedy})
    assert set(failures(tensor_memory.tensor_memory_findings(wrong, config))) == {"t2r_c.loads"}
    a, b = integers(128, 256, 64)
    with pytest.raises(ValueError, match=r"thread 32 is asked for \(32, 0\), which it does not hold"):
        simulate_evaluated(found, wrong, a, b, "bfloat16", config)


@pytest.mark.parametrize("changes", [{"tmem_columns": 128}, {"tmem_columns": 512}, {"tmem_columns": 200}])
def test_an_allocation_of_another_size_is_a_finding(changes):
    _, config, found = looked_at()

    class Other(type(config)):
        tmem_columns = changes["tmem_columns"]

    bad = failures(tensor_memory.tensor_memory_findings(found, Other()))
    assert set(bad) == {"tmem.columns"} and "needed 256" in bad["tmem.columns"]
    assert tmem_columns(found) == config.tmem_columns


def test_stages_over_one_another_are_a_finding():
    """The second tile 128 columns after the first: as many columns are allocated as before, and half are shared."""
    _, config, found = looked_at("blackwell/pipelined_gemm")
    sums = found.fragments["c"]
    closer = Layout(sums.shape, (*sums.stride[:3], sums.stride[3] // 2))
    wrong = dataclasses.replace(found, fragments=found.fragments | {"c": closer})
    assert not failures(tensor_memory.tensor_memory_findings(found, config))
    assert set(failures(tensor_memory.tensor_memory_findings(wrong, config))) == {"tmem.injective"}


# --- the compiler's own words ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled():
    return compiling.compile_recipe(NAME, "sm_100a", "bfloat16")


@pytest.mark.parametrize("changes", [{"tile_k": 32}, {"tile_k": 16, "stages": 3}, {"tile_n": 128}, {"tile_n": 64}])
def test_other_descriptors_equal_the_compilers_too(changes):
    _, config, found = looked_at(**changes)
    built = compiling.compile_recipe(NAME, "sm_100a", "bfloat16", config=config)
    assert not failures(tensor_memory.compiled_findings(found, built, "bfloat16"))


@pytest.mark.parametrize("which", ["tt", "nt"])
@pytest.mark.parametrize("tile_n", [64, 32, 16])
def test_narrow_tiles_along_n(tile_n, which):
    """B's lines along N of 128, 64 and 32 bytes: other modes and other strides, in the model and in the PTX."""
    one = {"tile_n": tile_n, "epi_n": tile_n, "epi_stages": 1}  # a tile is one subtile
    module, config, found = looked_at("blackwell/majors_gemm", which, **one)
    assert not failures(check_layouts(module, cutlass.BFloat16, config))
    built = compiling.compile_recipe("blackwell/majors_gemm", "sm_100a", "bfloat16", config=config)
    assert not failures(tensor_memory.compiled_findings(found, built, "bfloat16"))
    assert descriptors_of(found, "b")[0][0][0].mode == min(128, 2 * config.tile_n)
    a, b = integers(136, 72, 136)
    assert np.array_equal(simulate(module, a, b, cutlass.BFloat16, config), rounded(a @ b))


def test_a_wrong_major_is_caught():
    """M-major tiles read by an instruction that takes them for K-major: a finding, and the wrong product."""
    _, config, found = looked_at("blackwell/majors_gemm", "nn")
    wrong = dataclasses.replace(found, mma=dataclasses.replace(found.mma, majors=("K", "K")))
    built = compiling.compile_recipe("blackwell/majors_gemm", "sm_100a", "bfloat16", config=config)
    assert not failures(tensor_memory.compiled_findings(found, built, "bfloat16"))
    a, b = integers(128, 256, 64)
    with pytest.raises(ValueError, match="which no K-major descriptor of the 128-byte mode says"):
        simulate_evaluated(found, wrong, a, b, "bfloat16", config)
    with pytest.raises(ValueError, match="which no K-major descriptor"):
        tensor_memory.compiled_findings(wrong, built, "bfloat16")


def test_what_the_words_say(compiled):
    _, _, found = looked_at()
    first = descriptors_of(found, "a")[0][0][0]
    assert first == BlackwellDescriptor(0, 16, 1024, 128)  # eight rows of 128 bytes to the next eight
    assert instruction_of(found, "bfloat16") == InstructionDescriptor("f16", 128, 256, "bfloat16")
    steps = [block.start for block in descriptors_of(found, "a")[1][0]]
    assert steps == [128 * 128 + 32 * k for k in range(4)]  # the second stage; 16 elements to the next
    assert (compiled.count("UTCHMMA"), compiled.count("UTMALDG.2D"), compiled.count("LDTM.x32")) == (4, 2, 8)
    assert compiled.smem_bytes <= 227 * 1024 and compiled.registers <= 255 and compiled.threads == 160


@pytest.mark.parametrize(
    ("wrong", "finding"),
    [
        (lambda f: replaced(f, "a", swizzle=Swizzle(2, 4, 3)), "descriptors.bits"),
        (lambda f: dataclasses.replace(f, mma=dataclasses.replace(f.mma, shape_mnk=(128, 128, 16))), "idesc.bits"),
        (lambda f: dataclasses.replace(f, fragments=f.fragments | {"c": doubled(f.fragments["c"])}), "tmem.bits"),
    ],
    ids=["swizzle mode", "N", "columns"],
)
def test_words_that_differ_are_findings(compiled, wrong, finding):
    _, _, found = looked_at()
    assert not failures(tensor_memory.compiled_findings(found, compiled, "bfloat16"))
    assert "idesc.bits" in failures(tensor_memory.compiled_findings(found, compiled, "float16"))
    try:
        bad = failures(tensor_memory.compiled_findings(wrong(found), compiled, "bfloat16"))
    except ValueError as refused:
        assert "needed" in str(refused)
    else:
        assert finding in bad


def doubled(sums):
    """A second stage, 256 columns on."""
    return Layout((*sums.shape[:3], 2), (*sums.stride[:3], 256))


def test_instructions_that_are_not_there_are_findings(compiled):
    _, _, found = looked_at()
    fewer = dataclasses.replace(compiled, sass_counts=compiled.sass_counts | {"UTCHMMA": 0, "LDTM.x32": 0})
    assert set(failures(tensor_memory.compiled_findings(found, fewer, "bfloat16"))) == {"UTCHMMA.count", "LDTM.count"}


def test_a_descriptor_that_is_no_constant_is_called_that(compiled):
    _, _, found = looked_at()
    registers = "|".join(set(tensor_memory.MMA.findall(compiled.ptx)))
    unknown = dataclasses.replace(compiled, ptx=re.sub(rf"mov\.\w+\s+(?:{registers}), -?\d+;", "", compiled.ptx))
    bad = [f for f in tensor_memory.compiled_findings(found, unknown, "bfloat16") if not f.ok]
    assert [f.name for f in bad] == ["idesc.bits"] and bad[0].detail.startswith(
        "a value computed at run time in the PTX"
    )


def test_other_gpus_are_refused(monkeypatch):
    """Checked before anything is compiled or launched; on a machine with no GPU the device is refused first."""
    module = catalog.load(NAME)
    a, b = torch.zeros(16, 64, dtype=torch.bfloat16), torch.zeros(16, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="a: got device cpu; needed a CUDA device"):
        module.matmul(a, b.T)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(ValueError, match=r"got a GPU of compute capability \(9, 0\); needed \(10, 0\) or \(10, 3\)"):
        module.matmul(a, b.T)
