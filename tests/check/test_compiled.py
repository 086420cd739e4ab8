"""Every recipe, target and dtype: a real cubin with the instructions it must hold, no spills, within the chip."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest

from cookbook.check import compiled as compiling
from cookbook.check import tensor_memory
from cookbook.check.evaluated import evaluated
from cookbook.recipe import catalog, majors

GEMMS = [r for r in catalog.recipes() if r.product.is_gemm]
compile_once = cache(compiling.compile_recipe)  # as no test changes what it gets


def cases() -> Iterator[object]:
    """All there are: (name, target, dtype, majors). Each recipe is quick once, with a dtype and target that change from
    recipe to recipe; the first one of a track that takes other majors, once for each. The other combinations are slow:
    dtypes differ in the multiplication alone."""
    turned = set()
    for number, recipe in enumerate(GEMMS):
        targets, dtypes, majors = recipe.targets, recipe.dtypes, recipe.majors
        some = majors[:1] if recipe.track in turned else majors
        turned |= {recipe.track} if len(majors) > 1 else set()
        quick = {
            (targets[(number + i) % len(targets)], dtypes[(number + i) % len(dtypes)], each)
            for i, each in enumerate(some)
        }
        for case in product(targets, dtypes, majors):
            yield pytest.param(recipe.name, *case, marks=() if case in quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "target", "dtype", "which"), list(cases()))
def test_every_target_compiles_to_what_the_recipe_says(name, target, dtype, which):
    config = majors.configured(compiling.config_for(catalog.load(name), target), which)
    compiled = compile_once(name, target, dtype, config=config)
    required = catalog.find(name).instructions_for(target, which)
    assert [f for f in compiling.findings(compiled, required) if not f.ok] == []
    assert compiled.spills == 0 and 16 <= compiled.registers <= 255
    assert f".target {target}" in compiled.ptx
    assert sum(compiled.sass_counts.values()) > 200
    narrow = catalog.find(name).operands.startswith("fp8")  # then C says nothing about the types that are multiplied
    mma = "F32" if narrow else {"bfloat16": "BF16", "float16": "F32", "int32": "S8"}[dtype]
    products = [full for full in compiled.sass_counts if "MMA" in full and full != "HFMA2.MMA"]  # that makes constants
    # a descriptor says the types of tcgen05.mma: level "compiled" compares that
    if "tcgen05.mma" in compiled.ptx:
        check_words_of_tcgen05(name, compiled, config)
    told = any(mma in full.split(".") or full.startswith("UTC") for full in products)
    assert told if catalog.find(name).tensor_cores else not products


def check_words_of_tcgen05(name, compiled, config):
    """Instruction descriptor, matrix descriptors, allocation and counts: the compiler's are the model's."""
    found = evaluated(catalog.load(name), compiling.cutlass_dtype(compiled.dtype), config)
    findings = tensor_memory.compiled_findings(found, compiled, compiled.dtype)
    assert {f.name for f in findings} >= {"idesc.bits", "tmem.bits", "descriptors.bits", "LDTM.count"}
    assert not [f for f in findings if not f.ok]


def test_the_two_dtypes_differ_in_the_multiplication_alone():
    name, arch = "ampere/ldmatrix_gemm", "sm_80"
    counts = {d: compile_once(name, arch, d) for d in ("bfloat16", "float16")}
    assert counts["bfloat16"].count("HMMA.16816.F32.BF16") == counts["float16"].count("HMMA.16816.F32") > 0
    assert counts["float16"].count("HMMA.16816.F32.BF16") == 0


def test_ldmatrix_is_turned_for_mn_major_operands_alone():
    name, module = "ampere/majors_gemm", catalog.load("ampere/majors_gemm")
    found = {}
    for which in majors.MAJORS:
        config = majors.configured(module.config_for("sm_80"), which)
        compiled = compile_once(name, "sm_80", "bfloat16", config=config)
        found[which] = (compiled.count("LDSM.16.M88.4"), compiled.count("LDSM.16.MT88.4"))
    straight, turned = found["tn"][0], found["nt"][1]
    assert straight == turned > 0 and found["tn"][1] == found["nt"][0] == 0
    assert all(sum(found[which]) == straight and min(found[which]) > 0 for which in ("nn", "tt"))


def test_a_missing_instruction_is_a_finding():
    compiled = compile_once("ampere/ldmatrix_gemm", "sm_80", "float16")
    missing, narrower, *rest = compiling.findings(compiled, ("HGMMA", "LDSM.16.M88.2"))
    assert (missing.name, missing.ok, missing.detail) == ("HGMMA", False, "0 in the SASS; at least 1")
    why = "0 in the SASS; at least 1: of LDSM the configuration gives LDSM.16.M88.4"
    assert (narrower.ok, narrower.detail) == (False, why)
    assert all(finding.ok for finding in rest)


def test_too_large_a_configuration_is_found_out():
    from dataclasses import replace

    module = catalog.load("ampere/ldmatrix_gemm")
    large = replace(module.config_for("sm_80"), stages=6)
    compiled = compile_once("ampere/ldmatrix_gemm", "sm_89", "float16", config=large)
    smem = next(f for f in compiling.findings(compiled) if f.name == "smem")
    assert not smem.ok and "101376" in smem.detail and str(large.smem_bytes) in smem.detail


@pytest.mark.parametrize(
    ("full", "wanted", "same"),
    [
        ("HMMA.16816.F32", "HMMA", True),
        ("HMMA.16816.F32", "HMMA.16816", True),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.E.BYPASS.128", True),
        ("LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.BYPASS.E", False),
        ("LDSM.16.MT88.4", "LDSM.16.M88.4", False),
        ("HGMMA.64x256x16.F32", "HMMA", False),
        ("STS", "STS.128", False),
    ],
)
def test_mnemonics_match_by_their_parts_in_order(full, wanted, same):
    assert compiling.matches(full, wanted) is same


@pytest.mark.parametrize(("arch", "kib"), [("sm_80", 163), ("sm_89", 99), ("sm_90a", 227), ("sm_120a", 99)])
def test_smem_limits(arch, kib):
    assert compiling.smem_limit(arch) == kib * 1024


@pytest.mark.parametrize("arch", ["sm_70", "90a", "sm_90x", "sm_75", ""])
def test_unknown_arch_is_named(arch):
    with pytest.raises(ValueError, match=r"arch: got .*needed one of sm_80"):
        compiling.smem_limit(arch)


def test_unknown_dtype_is_named():
    with pytest.raises(ValueError, match="dtype: got 'float64'; needed one of float16, bfloat16, float32"):
        compiling.cutlass_dtype("float64")


def test_spills_and_registers_are_read_from_ptxas():
    """Two kernels in one report: the most registers, the sum of the spills."""
    said = (
        "ptxas 8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\n"
        "ptxas info : Used 96 registers, used 1 barriers\n\n"
        "ptxas info : Used 40 registers, 32 bytes smem\n"
    )
    assert compiling._REGISTERS.findall(said) == [("96", "1"), ("40", "")]
    assert compiling._SPILLS.findall(said) == [("4", "12")]
    assert compiling._STATIC_SMEM.findall(said) == ["32"]


@pytest.mark.parametrize(("name", "asks"), [("hopper/first_gemm", True), ("hopper/tma_wgmma_gemm", False)])
def test_nvidia_s_checker_runs_in_the_same_compile_as_a_note(name, asks, capfd):
    compiled = compile_once(name, "sm_90a", "bfloat16")
    assert bool(compiled.checker) is asks and compiled.registers > 0
    assert all(re.search(r"verify .* \(\w+\.py:\d+\)$", each) for each in compiled.checker)
    assert compiled.figures()["checker"] == list(compiled.checker) and capfd.readouterr().err == ""
    assert [f for f in compiling.findings(compiled) if not f.ok] == []


def test_instructions_are_counted_predicated_or_not():
    sass = (
        "        /*0000*/                   LDC R1, c[0x0][0x28] ;\n"
        "        /*0010*/              @!P0 BRA `(.L_x_1) ;\n"
        "        /*0020*/             @!UP1 UTMALDG.2D [UR8], [UR4], desc[UR6] ;\n"
        "        /*0030*/   .byte 0x80\n"
    )
    assert compiling._INSTRUCTION.findall(sass) == ["LDC", "BRA", "UTMALDG.2D"]


def test_several_configurations_together_are_what_each_is_alone():
    """The machine code goes through the disassembler in one piece: what is whose is told by its address."""
    name = "foundations/matrix_transpose"
    configs = catalog.load(name).configs_for("sm_90a", compiling.cutlass_dtype("bfloat16"))
    together = compiling.compile_modules(catalog.load(name), name, "sm_90a", "bfloat16", configs.values())
    assert together[0].sass_counts != together[3].sass_counts != together[4].sass_counts
    for config, compiled in zip(configs.values(), together, strict=True):
        alone = compile_once(name, "sm_90a", "bfloat16", config=config)
        assert compiled.sass_counts == alone.sass_counts and compiled.figures().keys() == alone.figures().keys()
        assert (compiled.registers, compiled.smem_bytes) == (alone.registers, alone.smem_bytes)


def test_the_innermost_loop_around_an_instruction():
    listing = """
.L_x_0:
        /*0000*/              @!P0 IADD3 R1, R1, 0x1, RZ ;
.L_x_1:
        /*0010*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/              @!P1 BRA `(.L_x_0) ;
        /*0040*/                   BRA `(.L_x_2) ;
.L_x_2:
"""
    assert [each.split()[0] for each in compiling.innermost_loop(listing, "HGMMA")] == [
        "HGMMA.64x128x16.F32.BF16",
        "BRA",
    ]
    assert compiling.innermost_loop(listing, "IADD3")[0].startswith("IADD3")
    with pytest.raises(ValueError, match="no loop has one"):
        compiling.innermost_loop(listing, "HMMA")


SHAPED = re.compile(r"\.\d+x\d+x\d+|LDTM\.x|MULTICAST$")


@pytest.mark.parametrize("recipe", [r for r in GEMMS if not r.name.startswith("ampere/")], ids=lambda r: r.name)
def test_no_front_matter_instruction_is_of_one_configuration(recipe):
    """A tile of another size, or no cluster, is legal too; where a multicast must be, level "pipeline" counts bytes."""
    wanted = {name for each in recipe.instructions.values() for name in each}
    assert [name for name in wanted if SHAPED.search(name)] in ([], ["UTCBAR.2CTA.MULTICAST"])  # a pair's


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("hopper/tma_wgmma_gemm", {"tile_n": 128}),
        ("hopper/persistent_gemm", {"cluster_m": 1, "cluster_n": 1}),
    ],
)
def test_a_legal_configuration_has_the_instructions(name, change):
    from dataclasses import replace

    recipe = catalog.find(name)
    config = replace(compiling.config_for(catalog.load(name), recipe.targets[0]), **change)
    compiled = compiling.compile_recipe(name, recipe.targets[0], recipe.dtypes[0], config=config)
    found = compiling.findings(compiled, recipe.instructions_for(recipe.targets[0]))
    assert [finding for finding in found if not finding.ok] == []


@pytest.mark.parametrize(
    ("ptx", "dtype", "element", "ok"),
    [
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {", "bfloat16", "", True),
        ("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {", "bfloat16", "", False),
        ("wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {", "bfloat16", "e4m3", True),
        ("wgmma.mma_async.sync.aligned.m64n256k32.f32.e5m2.e4m3 {", "bfloat16", "e4m3", False),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {", "float16", "", True),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {", "float16", "", False),
    ],
)
def test_the_types_of_an_mma_are_those_of_the_operands(ptx, dtype, element, ok):
    from types import SimpleNamespace

    (finding,) = compiling.type_findings(SimpleNamespace(ptx=ptx, dtype=dtype), element)
    assert (finding.name, finding.ok) == ("mma types", ok) and "needed f32." in finding.detail
    assert compiling.type_findings(SimpleNamespace(ptx="tcgen05.mma.cta_group::1.kind::f16", dtype=dtype)) == []
