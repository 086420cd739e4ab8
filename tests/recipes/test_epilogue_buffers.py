"""A configuration refuses buffers of the epilogue that do not divide a tile's subtiles: the race they would bring."""

from __future__ import annotations

import dataclasses

import pytest

from cookbook.check import compiled, pipeline
from cookbook.recipe import catalog

PERSISTENT = "hopper/persistent_gemm"
FIELDS = ("epi_buffers", "epi_stages")
PINGPONG_ALONE = "hopper/fused_epilogue_gemm"  # no field says so
READ_BY_THREADS = {"ampere/persistent_gemm"}  # no TMA reads its buffers: barriers of the CTA order all that meet there


BUFFERED = [r.name for r in catalog.recipes() if any(f"{field}: int" in r.file.read_text() for field in FIELDS)]


@pytest.mark.parametrize("name", sorted({*BUFFERED} - READ_BY_THREADS))
def test_buffers_must_divide_the_subtiles_of_a_tile(name):
    module = catalog.load(name)
    for config in getattr(module, "VARIANTS", {"": module.CONFIG}).values():
        field = next(field for field in FIELDS if hasattr(config, field))
        subtiles = _subtiles(config, name == PINGPONG_ALONE)
        for buffers in range(1, 2 * max(subtiles) + 1):
            if all(each % buffers == 0 for each in subtiles):
                less = {"stages": 1, field: buffers}  # room for all of them
                assert getattr(dataclasses.replace(config, **less), field) == buffers
                continue
            with pytest.raises(ValueError, match=rf"^{field}: got {buffers}; needed a divisor of \d+, the subtiles"):
                dataclasses.replace(config, **{field: buffers})
        with pytest.raises(ValueError, match=rf"^{field}: got 0; needed a divisor of"):
            dataclasses.replace(config, **{field: 0})


def _subtiles(config, alone: bool) -> list[int]:
    """Epilogue subtiles of each kind of tile that one warpgroup stores, counted from the sizes of C's tile."""
    widths = getattr(config, "widths", (config.tile_n,))
    if hasattr(config, "acc_stages"):  # of tcgen05: a tile is as high as tensor memory has lanes
        return [width // config.epi_n for width in widths]
    sharing = 1 if getattr(config, "pingpong", alone) else 2
    return [config.tile_m * width // (64 * config.epi_n) // sharing for width in widths]


def test_that_number_is_a_race():
    module = catalog.load(PERSISTENT)
    config = dataclasses.replace(module.CONFIG)
    assert config.tile_n // config.epi_n == 4
    object.__setattr__(config, "epi_stages", 3)  # past the check
    found = pipeline.explored(pipeline.Run(module, "sm_90a", compiled.cutlass_dtype("bfloat16"), config))
    assert not found[-1].ok
    assert "race" in found[-1].faults[0] and "(store" in found[-1].faults[0]
