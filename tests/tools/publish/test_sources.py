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
