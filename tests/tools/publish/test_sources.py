"""What docs/sources.md says of other texts is what the commands beside it print."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from cookbook.cli.app import app
from cookbook.recipe import catalog

PAGE = catalog.recipes_root().parent / "docs" / "sources.md"
SHOWN = re.findall(r"^\$ cookbook (banks .*?) +# (\d+) taken, (\d+) needed$", PAGE.read_text(encoding="utf-8"), re.M)


def test_the_page_shows_its_claims_by_commands():
    assert len(SHOWN) >= 10


@pytest.mark.parametrize(("command", "wavefronts", "needs"), SHOWN)
def test_a_command_prints_what_the_page_says(command, wavefronts, needs):
    answer = CliRunner().invoke(app, [*command.split(), "--json"])
    (counted,) = json.loads(answer.stdout)
    assert (counted["wavefronts"], counted["ideal"]) == (int(wavefronts), int(needs))


def test_what_the_page_says_without_a_number():
    import numpy as np

    from cookbook import atoms, banks
    from cookbook.swizzle import Swizzle

    offsets = np.arange(256)
    moved = offsets ^ ((offsets & (7 << 5)) >> 3)
    assert np.bincount(moved[::32] % 8).max() == 4
    assert banks.wavefronts(np.zeros(32, dtype=np.int64), 4).actual == 1
    assert all(Swizzle(0, base, 0)(offset) == offset for base in (0, 4) for offset in range(64))
    assert atoms.select("MN", 32, (32, 64), "sm_100").name == "MN_SW128_32B"
