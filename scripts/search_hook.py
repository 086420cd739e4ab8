"""mkdocs calls this: what the site's search looks at, how it ranks pages, and when a page loads the index.

The theme sends a page's worker `search/search_index.json` as soon as the page is there. Here this file has settings
alone; assets/search.js, in front of the theme's worker, loads `search/documents.json` when one searches.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority

# Pages that explain come first, the reference and what is for contributors last; front matter's `search: boost` wins.
_BOOSTS = {
    "api/": 1e-4,
    "architecture/": 0.2,
    "contract/": 0.2,
    "open/": 0.2,
    "faults/": 0.3,
    "playground/": 0.5,
    "recipes/primer/": 1.3,
}
_WORKER = re.compile(r"assets/javascripts/workers/(search\.\w+\.min\.js)")
_DIALOG = 'data-md-component="search" role="dialog"'
_PICTURE = re.compile(r"<svg (?=[^>]*class=\"ckd\")")
_FIGURE = re.compile(r"<td (?=style=\"text-align: right)")
_CODE = re.compile(r"<pre>.*?</pre>", re.DOTALL)
_TERM = re.compile(
    r"<dt id=\"[\w-]+\"(?: data-words=\"[^\"]*\")?(?: data-also=\"(?P<also>[^\"]*)\")?>(?P<title>.*?)</dt>"
    r"\s*<dd[^>]*>(?P<text>.*?)</dd>",
    re.DOTALL,
)
_EXPLAINED = re.compile(r"\]\((?P<page>[\w/-]+)\.md\)$")
_IN_CODE = re.compile(
    r"<code>(?!cookbook\b)([\w.:]+)|\b([A-Z]+[\d_]\w*)"
)  # of a definition: make_composed_layout, SW128
_NAME = re.compile(r"[A-Za-z]\w*_\w+|[A-Z][a-z]+[A-Z]\w+")  # make_layout, TiledCopy; parts of words are in prose
_EVERYWHERE = 12  # a name in the code of more pages than these tells no page from the others
_BASES = re.compile(r"<p>\s*Bases:.*?</p>", re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Leaves pictures and figures in tables out of the index; the theme takes the marks away again."""
    return _FIGURE.sub(
        '<td data-search-exclude="figure" ', _PICTURE.sub('<svg data-search-exclude="picture" ', content)
    )


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Puts our worker in front of the theme's, and gives its dialog a name."""
    return _with_worker(output, page.file.src_uri)


def on_post_template(output: str, template_name: str, **_: Any) -> str:
    """Likewise on the page for addresses that there are not."""
    return _with_worker(output, template_name) if template_name == "404.html" else output


def _with_worker(output: str, name: str) -> str:
    found, times = _WORKER.subn(r"assets/search.js?\1", output)
    if times != 1:
        raise PluginError(f"{name}: got {times} search workers; needed one, that of mkdocs-material")
    return found.replace(_DIALOG, f'{_DIALOG} aria-label="Search"')


@event_priority(-100)  # behind the search plugin, which writes the index
def on_post_build(config: Any, **_: Any) -> None:
    """Divides the index into its settings and its documents."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    places, texts = [each["location"] for each in index["docs"]], [each["text"] for each in index["docs"]]
    pages = pages_of_names(places, texts)
    kept = {name for name, where in pages.items() if len(where) <= _EVERYWHERE}
    searched = [
        summary(text) if place.startswith("api/") else without_code(text, kept)
        for place, text in zip(places, texts, strict=True)
    ]
    documents = [{**_ranked(each), "text": text} for each, text in zip(index["docs"], searched, strict=True)]
    explained = terms((Path(config.docs_dir) / "glossary.md").read_text(encoding="utf-8"))
    for each in documents:
        if words := explained.pop(each["location"], None):
            each["tags"] = words
    if explained:
        raise PluginError(f"glossary.md: got links to {', '.join(explained)}; needed pages of this site")
    path.write_text(_compact({**index, "docs": []}), encoding="utf-8")
    path.with_name("documents.json").write_text(_compact(documents), encoding="utf-8")


def _ranked(document: dict[str, Any]) -> dict[str, Any]:
    """A document with the boost of the place where its page stands."""
    boosts = [boost for place, boost in _BOOSTS.items() if document["location"].startswith(place)]
    return {**({"boost": boosts[0]} if boosts else {}), **document}


def terms(glossary: str) -> dict[str, list[str]]:
    """By address of a page, the terms that the glossary says it explains; the glossary's own are those of no page.

    `data-also` of a term has other spellings that people search for: "streamk".
    """
    found: dict[str, list[str]] = {}
    for term in _TERM.finditer(glossary):
        linked = _EXPLAINED.search(term["text"].strip())
        title = re.sub(r"\([^)]*\)|<[^>]*>", "", html.unescape(term["title"]))
        names = ["".join(name) for name in _IN_CODE.findall(term["text"])]
        found.setdefault(f"{linked['page']}/" if linked else "glossary/", []).extend(
            [*title.split(","), *(term["also"] or "").split(","), *names]
        )
    return {page: list(dict.fromkeys(word.strip() for word in words if word.strip())) for page, words in found.items()}


def pages_of_names(places: list[str], texts: list[str]) -> dict[str, set[str]]:
    """By name in a block of code, the pages that have it; a section's place is its page's address and an anchor."""
    found: dict[str, set[str]] = {}
    for place, text in zip(places, texts, strict=True):
        for name in _names_in_code(text):
            found.setdefault(name, set()).add(place.partition("#")[0])
    return found


def _names_in_code(text: str) -> set[str]:
    return set(_NAME.findall(" ".join(_CODE.findall(text))))


def without_code(text: str, kept: set[str]) -> str:
    """A section's text; instead of its blocks of code those of their names that are `kept`, once each."""
    prose = _CODE.sub(" ", text)
    names = sorted(_names_in_code(text) & kept - set(_NAME.findall(prose)))
    return re.sub(r"\s+", " ", f"{prose} {' '.join(names)}").strip()


def summary(text: str) -> str:
    """Of an entry of the reference its first paragraph: it says what the name is; arguments are found on the page."""
    prose = _BASES.sub("", _CODE.sub(" ", text))
    return re.sub(r"\s+", " ", "".join(prose.partition("</p>")[:2])).strip()


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
