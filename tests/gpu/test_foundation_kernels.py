"""The small kernels of the foundations on a GPU: what they give is what their text says, with and without conflicts."""

from __future__ import annotations

import shutil

import pytest
import torch

import cookbook
from cookbook.measure import experiments, studies
from cookbook.recipe import catalog

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("pitch", [32, 33])
def test_bank_conflicts_kernel_transposes(pitch):
    x = torch.randn(32, 32, device="cuda")
    assert torch.equal(cookbook.load("foundations/bank_conflicts").transpose(x, pitch), x.T)


@pytest.mark.parametrize("bits", [0, 5])
def test_xor_swizzle_kernel_transposes(bits):
    x = torch.randn(32, 32, device="cuda")
    assert torch.equal(cookbook.load("foundations/xor_swizzle").transpose_tile(x, bits), x.T)


@pytest.mark.parametrize("bits", [0, 3])
def test_swizzle_parameters_kernel_regroups_pieces_by_column(bits):
    x = torch.randn(32, 64, device="cuda", dtype=torch.float16)
    wanted = x.view(32, 8, 8).transpose(0, 1)
    assert torch.equal(cookbook.load("foundations/swizzle_parameters").columns(x, bits), wanted)


@pytest.mark.parametrize(
    ("name", "entry", "argument", "wrong"),
    [("bank_conflicts", "transpose", "pitch", 31), ("xor_swizzle", "transpose_tile", "bits", 4),
     ("swizzle_parameters", "columns", "bits", 4)],
)  # fmt: skip
def test_another_variant_is_refused(name, entry, argument, wrong):
    module = cookbook.load(f"foundations/{name}")
    x = torch.zeros(32, 64 if entry == "columns" else 32, device="cuda")
    x = x.half() if entry == "columns" else x
    with pytest.raises(ValueError, match=f"{argument}: got {wrong}; needed"):
        getattr(module, entry)(x, wrong)


@pytest.mark.parametrize("name", ["bank_conflicts", "xor_swizzle", "swizzle_parameters"])
def test_wavefronts_are_the_predicted_ones(name):
    if shutil.which("ncu") is None:
        pytest.skip("ncu is not on PATH")
    record, problems = studies.counted(catalog.find(f"foundations/{name}"))
    assert problems == [] and len(record["figures"]) == 4  # a store and a load, with conflicts and without


def test_every_order_of_the_tiles_gives_the_product():
    experiment = cookbook.load("foundations/thread_block_swizzle").EXPERIMENT
    runs = catalog.find(experiment.recipe)
    if not runs.runs_on_capability(*torch.cuda.get_device_capability()):
        pytest.skip(f"{runs.name} runs on {runs.runs_on}")
    experiments.launch(experiment._replace(shape=(2824, 1288, 200)))  # 23 rows of tiles: no group divides them
