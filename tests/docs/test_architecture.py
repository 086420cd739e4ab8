"""The page on the architecture: short, with every room; the contract has each protocol, quoted from the code."""

from __future__ import annotations

import re

from cookbook.recipe import catalog, contract

ROOT = catalog.recipes_root().parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_architecture_is_one_page_with_one_picture():
    assert len(TEXT.split()) <= 1500
    assert TEXT.count("```text") + TEXT.count("](assets/") + TEXT.count("<svg") == 1


def test_every_room_of_the_package_is_in_the_table():
    package = ROOT / "cookbook"
    rooms = {f"{p.name}/" for p in package.iterdir() if (p / "__init__.py").is_file()}
    rooms |= {p.name for p in package.glob("*.py") if not p.name.startswith("__")}
    table = "".join(re.findall(r"^\| (`.*?) \|", TEXT, re.M))
    assert rooms == set(re.findall(r"`([\w./]+)`", table))


def test_every_protocol_stands_in_the_contract():
    marks = re.findall(r"<!-- contract: ([\w ]+) -->", (ROOT / "docs" / "contract.md").read_text(encoding="utf-8"))
    shown = [name for mark in marks for name in mark.split()]
    known = {name for name, each in vars(contract).items() if getattr(each, "_is_protocol", False)}
    assert len(shown) == len(set(shown)) and {name for name in known if name != "Protocol"} - set(shown) == set()


def test_no_paragraph_of_either_page_is_long():
    for page in ("architecture.md", "contract.md"):
        text = re.sub(r"```.*?```", "", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.S)
        blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[*|]|\d\.) )", text)
        assert [block[:60] for block in blocks if len(block.split()) > 90 and not block.startswith("|")] == []
