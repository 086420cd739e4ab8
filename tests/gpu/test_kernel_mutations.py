"""Every fault planted in a kernel is caught by the checks of level "ran"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutations import KERNEL_MUTATIONS

from cookbook.recipe import catalog

SCRIPT = Path(__file__).parents[1] / "mutations.py"
SECONDS = 120  # a planted fault may also make the kernel wait for ever


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(len(KERNEL_MUTATIONS)), ids=[str(m) for m in KERNEL_MUTATIONS])
def test_planted_fault_is_caught(number: int) -> None:
    import torch

    recipe = catalog.find(KERNEL_MUTATIONS[number].recipe)
    if not recipe.runs_on_capability(*torch.cuda.get_device_capability()):
        pytest.skip(f"{recipe.name} runs on {recipe.runs_on}")
    path = os.pathsep.join([str(SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), str(number)]
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return  # caught: it never ended
    last = (ran.stdout.strip().splitlines() or ["it printed nothing"])[-1]
    assert last.startswith("caught: "), f"{last}\n{ran.stderr[-2000:]}"
