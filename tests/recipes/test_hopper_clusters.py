"""Two Hopper GEMMs with clusters: who gets which tile, who waits for whom, and how C goes out."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from types import SimpleNamespace

import pytest
from edits import In
from mutations import Mutation, mutant
from plain import plain
from pretend import pretended

from cookbook.check import compiled as compiling
from cookbook.check import layout
from cookbook.recipe import catalog

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

MULTICAST, PERSISTENT = "hopper/multicast_gemm", "hopper/persistent_gemm"
EVERY = [(name, variant) for name in (MULTICAST, PERSISTENT) for variant in catalog.load(name).VARIANTS]


@cache
def compiled(name: str, variant: str) -> compiling.Compiled:
    try:
        return compiling.compile_recipe(name, "sm_90a", "bfloat16", config=catalog.load(name).VARIANTS[variant])
    except compiling.NoDisassembler as missing:
        pytest.skip(str(missing))


# --- which tile ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8192, 8192), (3000, 3000), (128, 256), (1, 1), (16384, 33), (33, 16384)])
@pytest.mark.parametrize("variant", ["alone", "2x1", "1x2", "2x2"])
def test_clusters_compute_every_tile_once(variant, shape):
    config, arch = catalog.load(MULTICAST).VARIANTS[variant], SimpleNamespace()
    tile_of_cta = plain(MULTICAST, "tile_of_cta", arch)
    down = -(-shape[0] // (config.tile_m * config.cluster_m))
    across = -(-shape[1] // (config.tile_n * config.cluster_n))
    found = []
    for cta in range(down * across * config.cluster):
        arch.block_idx = lambda cta=cta: (cta, 0, 0)
        rank = cta % config.cluster
        found.append(tile_of_cta(shape, (rank % config.cluster_m, rank // config.cluster_m), config))
    whole = {(m, n) for m in range(down * config.cluster_m) for n in range(across * config.cluster_n)}
    assert len(found) == len(set(found)) and set(found) == whole


@pytest.mark.parametrize(
    ("down", "across", "clusters"), [(32, 32, 66), (12, 12, 66), (1, 1, 1), (64, 1, 64), (5, 7, 4)]
)
def test_work_tiles_of_all_clusters_compute_every_tile_once(down, across, clusters):
    work_tile, module = plain(PERSISTENT, "work_tile"), catalog.load(PERSISTENT)
    found = []
    for first in range(clusters):
        count = (down * across - first + clusters - 1) // clusters
        ctas = [module.Scheduler(down, across, first, clusters, count, (row, 0)) for row in (0, 1)]
        found += [work_tile(cta, i, module.CONFIG) for i in range(count) for cta in ctas]
    assert len(found) == len(set(found)) == 2 * down * across
    assert set(found) == {(m, n) for m in range(2 * down) for n in range(across)}


def test_a_k_tile_index_says_stage_and_phase(monkeypatch):
    """As a state that is advanced from k-tile to k-tile: the stage goes round, the phase turns with each round."""
    module = catalog.load(PERSISTENT)
    monkeypatch.setattr(module, "pipeline", SimpleNamespace(PipelineState=lambda *fields: fields))
    stages, stage, phase = module.CONFIG.stages, 0, 0
    for number in range(40):
        assert module.state_at(number, module.CONFIG) == (stages, number, stage, phase)
        stage += 1
        if stage == stages:
            stage, phase = 0, 1 - phase


# --- who waits for whom ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "multicasts"), [("alone", 0), ("2x1", 1), ("1x2", 1), ("2x2", 2)])
def test_what_is_shared_is_multicast(variant, multicasts):
    made = compiled(MULTICAST, variant)
    assert (made.count("UTMALDG.2D"), made.count("UTMALDG.2D.MULTICAST")) == (2, multicasts)
    assert bool(re.search(r"barrier\.cluster\.wait", made.ptx)) == (variant != "alone")


@pytest.mark.parametrize(("name", "variant"), EVERY)
def test_a_stage_is_empty_when_all_sharers_have_read_it(name, variant):
    """mbarrier.init: 1 for each full barrier; for each empty one the consumer warps of the CTA's row and column."""
    config, ptx = catalog.load(name).VARIANTS[variant], compiled(name, variant).ptx
    registers = re.findall(r"mbarrier\.init\.shared\.b64\s+\[[^]]*\], (%r\d+);", ptx)
    counts = [int(re.search(rf"mov\.b32\s+{register}, (\d+);", ptx)[1]) for register in registers]
    sharers = config.cluster_m + config.cluster_n - 1
    assert counts == [1] * config.stages + [8 * sharers] * config.stages


# --- how C goes out --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", catalog.load(PERSISTENT).VARIANTS)
def test_every_box_is_fenced_sent_by_one_thread_and_waited_for(variant):
    ptx = compiled(PERSISTENT, variant).ptx
    found = re.findall(
        r"(cp\.async\.bulk\.wait_group\S*\s+\d+|fence\.proxy\.async[.:\w]*|bar\.sync|elect\.sync"
        r"|cp\.async\.bulk\.tensor\.2d\.global|cp\.async\.bulk\.commit_group)",
        ptx[ptx.index("cp.async.bulk.wait_group") :],
    )
    found = [re.sub(r"\s+", " ", each) for each in found]
    piece = ["cp.async.bulk.wait_group.read 1", "bar.sync", "fence.proxy.async.shared::cta", "bar.sync"]
    piece += ["elect.sync", "cp.async.bulk.tensor.2d.global", "cp.async.bulk.commit_group"]
    assert found == piece * 4 + ["cp.async.bulk.wait_group.read 0"]


def test_the_first_wgmma_of_a_tile_overwrites():
    """Of the batch before the loop one, its first; in the loop none."""
    ptx = compiled(PERSISTENT, "persistent").ptx
    scales = re.findall(r"setp\.ne\.b32 p, (%r\d+), 0;\s*wgmma\.mma_async", ptx)
    values = [int(re.search(rf"mov\.b32\s+{register}, (\d+);", ptx)[1]) for register in scales]
    assert values == [0] + [1] * 7


def test_which_rows_tma_can_write(monkeypatch):
    """Into others it writes padded rows, which are copied."""
    module, memory = pretended(PERSISTENT, monkeypatch), torch.zeros(4096, dtype=torch.bfloat16)
    assert memory.data_ptr() % 16 == 0
    for columns, row, offset, fits in ((16, 16, 0, True), (16, 24, 8, True), (12, 16, 0, False), (16, 20, 0, False),
                                       (16, 16, 4, False), (1, 8, 0, False)):  # fmt: skip
        out = memory.as_strided((3, columns), (row, 1), offset)
        module.matmul(memory[:96].view(3, 32).clone(), torch.zeros(columns, 32, dtype=memory.dtype).T, out=out)
        _, (_, _, written, _, (*_, apart), *_) = module.launched[-1]
        assert (written == out.data_ptr()) == fits and apart == (row if fits else -(-columns // 8) * 8)


def test_shared_memory_is_nearly_all_of_an_sm():
    module = catalog.load(PERSISTENT)
    assert module.CONFIG.smem_bytes <= 227 * 1024
    assert dataclasses.replace(module.CONFIG, stages=5).smem_bytes > 227 * 1024


@pytest.mark.parametrize("recipe", [PERSISTENT])
@pytest.mark.parametrize(
    ("what", "edit"),
    [
        (
            "the swizzle is dropped",
            In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)"),
        ),
        (
            "the byte swizzle is given in elements",
            In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(_bits, 3, 3)"),
        ),
        ("stmatrix writes twice as wide a piece", In("tiled_copies").replace("_config.epi_n", "2 * _config.epi_n")),
        (
            "stmatrix is that of the whole CTA",
            In("tiled_copies").where("_config.epi_n").replace("(1, 1, 1)", "(_config.warpgroups, 1, 1)"),
        ),
        (
            "C is not counted in shared memory",
            In("Config.smem_bytes").replace(
                "1024 + self.stages * self.stage_bytes + self.epi_bytes", "1024 + self.stages * self.stage_bytes"
            ),
        ),
        ("a piece does not divide the tile", In("Config").replace("epi_n: int = 64", "epi_n: int = 96")),
    ],
)
def test_a_fault_in_the_epilogue_is_caught_with_no_gpu(tmp_path, recipe, what, edit):
    module = mutant(Mutation(recipe, what, edit), tmp_path)
    findings = layout.check_layouts(module, cutlass.BFloat16, module.CONFIG)
    assert [finding.name for finding in findings if not finding.ok], what


def test_the_epilogue_itself_is_not_accused():
    module = catalog.load(PERSISTENT)
    assert all(finding.ok for finding in layout.check_layouts(module, cutlass.BFloat16, module.CONFIG))
