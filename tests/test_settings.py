"""CuTe's settings are changed for a block alone, and for no other thread that compiles."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("cutlass")

from cutlass.cutlass_dsl import CuTeDSL

from cookbook.recipe.entry import COMPILING
from cookbook.settings import cute_settings


def test_settings_are_restored_even_after_an_error():
    settings = CuTeDSL._get_dsl().envar
    before = dict(vars(settings))
    with pytest.raises(RuntimeError, match="stop"), cute_settings(dryrun=True, arch="sm_80"):
        assert settings.dryrun and settings.arch == "sm_80"
        raise RuntimeError("stop")
    assert vars(settings) == before


def test_a_recipe_in_another_thread_does_not_compile_meanwhile():
    free = []
    with cute_settings(dryrun=True):
        other = threading.Thread(target=lambda: free.append(COMPILING.acquire(blocking=False)))
        other.start()
        other.join()
    assert free == [False]
