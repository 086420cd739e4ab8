"""The operators on DTensors, with tensor parallelism and FSDP: two processes over gloo, see distributed.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cookbook.ops import sharding

HERE = Path(__file__).parent
NO_GLOO = not (torch.distributed.is_available() and torch.distributed.is_gloo_available())


@pytest.mark.skipif(NO_GLOO, reason="PyTorch was built without gloo")
def test_two_ranks(tmp_path):
    command = [sys.executable, str(HERE / "distributed.py")]
    path = os.pathsep.join([str(HERE.parent), str(HERE.parents[1])])
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    done = [each.communicate(timeout=300) for each in ranks]
    for each, (out, err) in zip(ranks, done, strict=True):
        assert (each.returncode, out.split()) == (0, ["products", "layers", "gates", "fully_sharded"]), err[-4000:]


def test_nothing_of_dtensor_is_imported_before_it_is_needed():
    said = "import sys, cookbook.ops as ops; print(ops.sharding.register(), 'torch.distributed.tensor' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(("ways", "operands"), [(sharding.PRODUCT, 3), (sharding.SWIGLU, 3)])
def test_a_way_to_shard_has_a_place_for_c_and_each_operand(ways, operands):
    assert all(len(way) == 1 + operands for way in ways) and len(set(ways)) == len(ways)
