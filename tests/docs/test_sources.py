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


WORDS = {  # of other texts, each on the page where its thing is
    "atomicity": "foundations/mma_smem_atoms",
    "sm100_smem_selector": "foundations/mma_smem_atoms",
    "SM80_16x8x16_F32BF16BF16F32_TN": "foundations/fragments_and_ldmatrix",
    "inverse TV layout": "foundations/fragments_and_ldmatrix",
    "print_svg": "foundations/fragments_and_ldmatrix",
    "cute_viz": "foundations/swizzle_parameters",
    "zzz": "foundations/swizzle_parameters",
    "Sudoku": "foundations/bank_conflicts",
    "swizzle switch": "foundations/bank_conflicts",
    "swizzle.cu": "foundations/xor_swizzle",
}


@pytest.mark.parametrize(("word", "page"), WORDS.items())
def test_a_word_that_readers_bring_stands_on_its_page(word, page):
    text = re.sub(r"\s+(?:# )?", " ", catalog.find(page).file.read_text(encoding="utf-8").split("# ---\n")[-1])
    assert word in text


def credited():
    """(pages of ours, addresses) of each text in the page's tables that some page computes or continues."""
    for row in re.findall(r"^\| (?!---|text)(.*) \|$", PAGE.read_text(encoding="utf-8"), re.M):
        text, *cells = row.split(" | ")
        pages = [name for cell in cells for name in re.findall(r"recipes/(\w+/\w+)\.md", cell)]
        addresses = re.findall(r"\]\((https://[^)]*)\)", text)
        if pages := [name for name in pages if not name.endswith("/index")]:
            yield pages, addresses


def test_a_text_is_credited_on_a_page_that_it_leads_to():
    rows = list(credited())
    assert len(rows) >= 18
    for pages, addresses in rows:
        texts = [catalog.find(name).file.read_text(encoding="utf-8") for name in pages]
        assert any(address in text for address in addresses for text in texts), (addresses, pages)


def test_nothing_is_said_to_be_wrong_without_being_shown():
    """Every claim of the second half has its command, or a link to the page that computes it."""
    _, claims = PAGE.read_text(encoding="utf-8").split("## Claims to be careful with")
    assert "is said to be" not in claims
    with_commands, without = claims.split("And without a number:")
    bold = re.findall(r"^\*\*.*?(?=^\*\*|\Z)", with_commands, re.M | re.S)
    assert [claim for claim in bold if "$ cookbook banks" not in claim] == []
    points = re.findall(r"^\* .*?(?=^\* |\Z)", without, re.M | re.S)
    assert [point for point in points if "](recipes/" not in point and "never answers" not in point] == []
