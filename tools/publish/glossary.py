"""Links from a page to the glossary, with what it says: each term once, where the page uses it first."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path

_TERM = re.compile(
    r'<dt id="(?P<anchor>[\w-]+)"(?: data-words="(?P<words>[^"]*)")?(?: data-also="[^"]*")?>(?P<title>.*?)</dt>'
)
_DEFINED = re.compile(r'<dt id="(?P<anchor>[\w-]+)"[^>]*>.*?</dt>\s*<dd[^>]*>(?P<text>.*?)</dd>', re.DOTALL)
_EXPLAINED = re.compile(r"\s*\[[^\]]*\]\([^)]*\)$")  # the page that explains a term, at its end
_MARKUP = re.compile(r"<[^>]*>|\[([^\]]*)\]\([^)]*\)|[`*]")
_LEFT_ALONE = re.compile(  # code, links, tags; then a link that ends on the next line, or began on the one before
    r"`[^`]*`|\[[^\]]*\]\([^)]*\)|\[[^\]]*\]\[[^\]]*\]|<[^>]*>|\$[^$]*\$|\[[^\]]*$|^[^\[\]]*\]\([^)]*\)"
)
_NO_PROSE = ("#", "|", "<", ":::", "???", "!!!")  # how lines begin that are headings, tables, blocks of HTML


@cache
def terms(glossary: str) -> dict[str, re.Pattern[str]]:
    """Return what names each term of the glossary's text in prose, by its anchor; terms of long names first.

    A term is the text of a `<dt id=...>`: words set apart by commas, each also with an "s". What the term has in
    parentheses is left out. `data-words` has the words instead, where those of the title are too common; empty: none.
    """
    found: dict[str, tuple[int, re.Pattern[str]]] = {}
    for term in _TERM.finditer(glossary):
        title = re.sub(r"\([^)]*\)", "", term["title"])
        words = [word.strip() for word in (title if term["words"] is None else term["words"]).split(",")]
        spelled = "|".join(
            re.escape(word).replace(r"\ ", r"\s+") for word in sorted(words, key=len, reverse=True) if word
        )
        if spelled:
            pattern = re.compile(rf"(?<![\w/.-])(?:{spelled})s?(?![\w/-]|\.\w)", re.IGNORECASE)
            found[term["anchor"]] = max(map(len, words)), pattern
    return {anchor: words for anchor, (_, words) in sorted(found.items(), key=lambda each: -each[1][0])}


@cache
def said(glossary: str) -> dict[str, str]:
    """What the glossary's text says of each term, by its anchor: words alone, as a link's title takes them."""
    found = {term["anchor"]: _EXPLAINED.sub("", term["text"].strip()) for term in _DEFINED.finditer(glossary)}
    plain = {anchor: html.unescape(_MARKUP.sub(lambda mark: mark[1] or "", text)) for anchor, text in found.items()}
    return {anchor: re.sub(r"\s+", " ", text).replace('"', "'") for anchor, text in plain.items()}


def linked(page: str, glossary: str, address: str) -> str:
    """A page's markdown with the first use of each term linked to its place in the glossary; pointed at it shows that.

    Code, headings, tables, links and HTML are left alone, and so is a term that the page already links.

    Args:
        page: markdown.
        glossary: the text of the glossary's page.
        address: of the glossary, from that page: "../glossary.md".
    """
    known, texts = terms(glossary), said(glossary)
    titles = {anchor: f' "{text}"' if (text := texts.get(anchor)) else "" for anchor in known}
    wanted = {anchor: titles[anchor] for anchor in known if f"glossary.md#{anchor})" not in page}
    lines, fence = page.split("\n"), ""
    for number, line in enumerate(lines):
        bare = line.lstrip()
        mark = re.match(r"`{3,}|~{3,}", bare)
        if mark and (not fence or bare.startswith(fence)):
            fence = "" if fence else mark.group()
        elif not fence and not bare.startswith(_NO_PROSE) and not line.startswith("    "):
            lines[number] = _with_links(line, known, wanted, address)
    return "\n".join(lines)


def _with_links(line: str, known: dict[str, re.Pattern[str]], wanted: dict[str, str], address: str) -> str:
    """One line of prose; what is linked in it, with the title that `wanted` has for it, is wanted no longer.

    A term that is not wanted keeps its words: no shorter one is found in "tensor memory accelerator".
    """
    taken = [found.span() for found in _LEFT_ALONE.finditer(line)]
    links: list[tuple[int, int, str]] = []
    for anchor, words in known.items():
        for found in words.finditer(line):
            start, end = found.span()
            if all(end <= low or high <= start for low, high in taken):
                taken.append((start, end))
                if anchor in wanted:
                    links.append((start, end, f"{address}#{anchor}{wanted.pop(anchor)}"))
    for start, end, target in sorted(links, reverse=True):
        line = f"{line[:start]}[{line[start:end]}]({target}){line[end:]}"
    return line


def text(docs: Path) -> str:
    """The glossary's page."""
    return (docs / "glossary.md").read_text(encoding="utf-8")
