"""Wavefronts of a traced kernel's lines: those that its layouts predict, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cutlass")

from edits import In
from mutations import Mutation, mutant

from cookbook.check import banks, compiled, pipeline
from cookbook.recipe import catalog

CONFLICTING, SWIZZLED, STAGED = "ampere/first_gemm", "ampere/ldmatrix_gemm", "hopper/persistent_gemm"
FIRST, HALF = "hopper/tma_wgmma_gemm", "ampere/tuned_gemm"

LOST = Mutation(
    STAGED,
    "no buffer has a swizzle",
    In("allocate_tiles").replace("_smem.allocate_tensor(..., swizzle=_x.inner)", "_smem.allocate_tensor(...)"),
)
BEYOND = Mutation(
    FIRST,
    "A is read a stage too far",
    In("issue_wgmmas").replace(
        "cute.gemm(..., _tCrA[None, None, _k, _stage], ...)", "cute.gemm(..., _tCrA[None, None, _k, _stage + 1], ...)"
    ),
)
FAULTS = [LOST, BEYOND]


def counted(module, arch: str) -> list[banks.Count]:
    """The counts of the first of the small problems."""
    config = compiled.config_for(module, arch)
    return first_of(pipeline.Run(module, arch, compiled.cutlass_dtype("bfloat16"), config))


def first_of(run: pipeline.Run) -> list[banks.Count]:
    return banks.counted(run.warps(run.problems[0], kind=banks.Counter))


def test_a_kernel_has_the_conflicts_that_its_page_names():
    module = catalog.load(CONFLICTING)
    found = counted(module, "sm_80")
    excess = {wavefronts for wavefronts, _ in module.EXPECTED_EXCESS.values()}
    loads = [one for one in found if one.what == "ldmatrix"]
    assert loads and {one.worst for one in loads} == excess
    assert all(one.wavefronts == one.ideal + one.instructions * one.worst for one in loads)
    assert all(one.worst == 0 for one in found if one.what != "ldmatrix")
    assert all(one.avoidable == one.worst for one in found)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        (SWIZZLED, {"cp.async", "ldmatrix", "st", "ld"}),
        (STAGED, {"stmatrix"}),
        ("hopper/tma_wgmma_gemm", {"stmatrix", "ld"}),
    ],
)
def test_a_swizzled_kernel_has_none(name, kinds):
    found = counted(catalog.load(name), catalog.find(name).targets[0])
    assert {one.what for one in found} == kinds
    assert all(one.worst == 0 and one.wavefronts == one.at_most == one.ideal > 0 for one in found)
    assert all(one.line.source for one in found)


def test_a_swizzle_that_is_left_out_is_counted_at_its_line(tmp_path: Path):
    (bad,) = [one for one in counted(mutant(LOST, tmp_path), "sm_90a") if one.worst]
    assert bad.what == "stmatrix" and bad.wavefronts == 8 * bad.ideal and "cute.copy" in bad.line.source


def test_a_stage_that_is_not_there_is_out_of_bounds(tmp_path: Path):
    module = mutant(BEYOND, tmp_path)
    run = pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), module.CONFIG)
    _, followed = next(run.clusters(run.problems[0]))
    wrong = [event.name for event in followed.warps[0, 0] if event.what == "wrong"]
    assert wrong and all(text.startswith("bounds: bytes 66") and "what has 1024 to 66559" in text for text in wrong)


def test_half_lines_of_a_matrix_are_no_avoidable_conflict():
    module = catalog.load(HALF)
    config = compiled.variants(module, "sm_80")["256x192"]
    found = first_of(pipeline.Run(module, "sm_80", compiled.cutlass_dtype("bfloat16"), config))
    copies = [one for one in found if one.what == "cp.async"]
    assert copies and all(one.wavefronts == 2 * one.ideal and one.avoidable == 0 for one in copies)
