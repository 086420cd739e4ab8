"""The Chinese pages: translations/zh/ has their text, block by block; code and figures are the English page's.

A block is a markdown cell of a recipe, or a section of a page of docs/. Its translation stands below a comment with a
hash of the English block. Where the English block has changed since, the page shows it in English. A table or plot that
the English block asks for by a comment stands where the translation has "<!-- = -->".

    python -m tools.publish.chinese                 says which blocks have changed since they were translated
    python -m tools.publish.chinese --accept NAME   the translation of this page was read again: renew its hashes
"""

from __future__ import annotations

import argparse
import hashlib
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cookbook.recipe import catalog
from tools.publish import notebooks
from tools.publish.pages import linked

ROOT = catalog.recipes_root().parent
FOLDER = ROOT / "translations" / "zh"
TERMS = "terms"  # the glossary: a page that has no English one
_MARK = re.compile(r"^<!-- ([0-9a-f]{8}|\?) -->\n", re.MULTILINE)
_ASKED = re.compile(r"<!-- (?!\?|[0-9a-f]{8} )[^>]+ -->")  # tables, plots, minutes; "<!-- = -->" in a translation
_HEADING = re.compile(r"^(#{1,6}) (.+?)(?: \{ #([\w-]+) \})?$", re.MULTILINE)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([\w./-]+\.\w+)((?:\?[^)#]*)?(?:#[\w-]+)?)\)")
_ADDRESS = re.compile(r'((?:href|src|data-copy-file)=")(?![a-z]+:|#|/)([^"#?]+)')
_OF_TABLE = re.compile(r"^\|.*\|$", re.MULTILINE)


class Term(NamedTuple):
    chinese: str
    english: str
    anchor: str  # in docs/glossary.md
    wrong: tuple[str, ...]  # what is not written in its place


def names() -> list[str]:
    """The pages that have a translation, as paths in docs/ without a suffix: "story", "recipes/primer/layouts"."""
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.md"))


def terms() -> list[Term]:
    """The table of terms: Chinese, English with a link to the glossary, what is not written."""
    rows = re.findall(r"^\| ([^|]+) \| \[(.+?)\]\(glossary\.md#([\w-]+)\) \| ([^|]*)\|$", _text(TERMS), re.MULTILINE)
    return [
        Term(chinese.strip(), english, anchor, tuple(filter(None, map(str.strip, wrong.split("、")))))
        for chinese, english, anchor, wrong in rows
    ]


def english(name: str) -> list[str]:
    """The blocks of an English page: markdown cells of a recipe, sections of another page."""
    if name.startswith("recipes/"):
        cells = notebooks.from_recipe(name.removeprefix("recipes/")).cells
        texts = [c for c in cells if c.cell_type == "markdown" and notebooks.IMPORTED not in c.metadata.get("tags", [])]
        return [cell.source.strip() for cell in texts]
    text, fence, blocks = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8"), False, [[]]
    for line in text.splitlines():
        fence ^= line.startswith("```")
        if _HEADING.match(line) and not fence:
            blocks.append([])
        blocks[-1].append(line)
    return [block for lines in blocks if (block := "\n".join(lines).strip())]


def chinese(name: str) -> list[tuple[str, str]]:
    """(hash of the English block, translation) of each block of a page."""
    parts = _MARK.split(_text(name))
    return [(mark, text.strip()) for mark, text in zip(parts[1::2], parts[2::2], strict=True)]


def digest(block: str) -> str:
    """The hash that stands above a block's translation."""
    return hashlib.sha256(block.encode("utf-8")).hexdigest()[:8]


def changed(name: str) -> list[str]:
    """The first lines of English blocks that have no translation of this wording."""
    if name == TERMS:
        return []
    known = {mark for mark, _ in chinese(name)}
    return [block.splitlines()[0] for block in english(name) if digest(block) not in known]


def accept(name: str) -> None:
    """Renew the hashes of a page whose translation was read again, block by block.

    Raises:
        ValueError: the two pages have different numbers of blocks.
    """
    blocks, found = english(name), chinese(name)
    if len(blocks) != len(found):
        raise ValueError(f"{name}: got {len(found)} translated blocks; needed {len(blocks)}, one for each English one")
    written = (f"<!-- {digest(block)} -->\n{text}\n" for block, (_, text) in zip(blocks, found, strict=True))
    (FOLDER / f"{name}.md").write_text("\n".join(written), encoding="utf-8")


def page(name: str, docs: Path | None = None) -> str:
    """The Chinese page as markdown, its links still those of the English page's place."""
    if name == TERMS:
        return _text(TERMS)
    known = dict(chinese(name))
    pairs = [(block, _whole(block, known[digest(block)])) for block in english(name) if digest(block) in known]
    shown = ((docs or ROOT / "docs") / f"{name}.md").read_text(encoding="utf-8")
    for number, (block, text) in enumerate(pairs):
        if name.startswith("recipes/") and not number:  # title, claim, what was checked, the rest
            shown = _with_head(shown, linked(block), linked(text))
        else:
            shown = shown.replace(linked(block), linked(text), 1)
    return shown


def localized(markdown: str, source: str) -> str:
    """A page that lies in docs/ as `source`: links between the languages, and in a Chinese page the tables' words.

    A Chinese page lies in zh/, at the place of its English page. Its links lead to Chinese pages where there are some.
    """
    known, name = names(), source.removesuffix(".md")
    if not source.startswith("zh/"):
        if name not in known:
            return markdown
        there = posixpath.relpath(f"zh/{source}", posixpath.dirname(source) or ".")
        return _below_title(markdown, f"[中文]({there}){{ .language lang=zh-Hans hreflang=zh-Hans }}")
    original = source.removeprefix("zh/")
    here, was = posixpath.dirname(source), posixpath.dirname(original)
    served, at = (re.sub(r"(^|/)?index$", "", name.removesuffix(".md")) for name in (original, source))

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(was, found[1]))
        target = f"zh/{target}" if target.endswith(".md") and target.removesuffix(".md") in known else target
        return f"]({posixpath.relpath(target, here)}{found[2]})"

    def readdressed(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(served, found[2]))
        target = f"zh/{target}" if target in known else target
        return found[1] + posixpath.relpath(target, at) + "/" * found[2].endswith("/")

    markdown = _LINK.sub(moved, _OF_TABLE.sub(lambda row: _in_chinese(row[0]), markdown))
    if original.removesuffix(".md") != TERMS:
        there = posixpath.relpath(original, here)
        markdown = _below_title(markdown, f"[English]({there}){{ .language lang=en hreflang=en }}")
    for words, said in _SENTENCES.items():
        markdown = re.sub(words, said, markdown)
    return _ADDRESS.sub(readdressed, markdown)


# --- parts ------------------------------------------------------------------------------------------------------


def _text(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def _whole(block: str, text: str) -> str:
    """The translation with what it takes from the English block: what the page asks for, and the ids of headings."""
    asked = iter(_ASKED.findall(block))
    return _with_ids(block, re.sub("<!-- = -->", lambda _: next(asked), text))


def _with_ids(block: str, text: str) -> str:
    """The translation, its headings with the ids of the English ones: links to them hold in both languages."""
    ids = iter([found[3] or _slug(found[2]) for found in _HEADING.finditer(_bare(block))])
    heads = {found.start() for found in _HEADING.finditer(_bare(text))}

    def named(found: re.Match[str]) -> str:
        anchor = next(ids, None) if found.start() in heads else None
        return f"{found[1]} {found[2]} {{ #{anchor} }}" if anchor else found[0]

    return _HEADING.sub(named, text)


def _slug(heading: str) -> str:
    """The id that the site gives a heading."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _bare(text: str) -> str:
    """The text, its fenced code blanked out."""
    return re.sub(r"^```.*?^```$", lambda code: " " * len(code[0]), text, flags=re.MULTILINE | re.DOTALL)


def _with_head(shown: str, block: str, text: str) -> str:
    (old, new) = (each.partition("\n")[2].strip().partition("\n\n") for each in (block, text))
    title = text.partition("\n")[0]
    shown = title + "\n" + shown.partition("\n")[2]
    for was, now in ((old[0], new[0]), (old[2], new[2])):
        shown = shown.replace(was, now, 1) if was else shown
    return shown


def _below_title(markdown: str, line: str) -> str:
    found = re.search(r"^# .+$", markdown, re.MULTILINE)
    return f"{markdown[: found.end()]}\n\n{line}\n{markdown[found.end() :]}" if found else markdown


_WORDS = {  # of tables that are made of records, longest first
    "**this kernel**; before: if both overlap perfectly": "**本 kernel**；左列：两者完全重叠时",
    "multiply: operations over the tensor cores' rate": "计算：运算量 ÷ Tensor Core 速率",
    "load: operand bytes over L2's rate": "访存：操作数字节数 ÷ L2 速率",
    "**this kernel": "**本 kernel",
    "; before: if both overlap perfectly": "；左列：两者完全重叠时",
    "measured over predicted": "实测 ÷ 预测",
    "computed before": "测量前算出",
    "not predicted": "未预测",
    "not measured": "未测量",
    "times as fast as": "相对加速：",
    " of cuBLAS": " 倍 cuBLAS",
    "measured": "实测",
    "predicted": "预测",
    "elements": "个元素",
    "read by": "由谁读取",
    "recipe": "recipe",
    "step": "步骤",
    "none": "无",
}
_SENTENCES = {  # of what the home page and a recipe's page compute
    r"\*\*([^*]+)\*\* of reading, at (\d+) words and (\d+) statements a minute\. "
    r"The (\d+) exercises take (.+?) more, at (\d+) minutes each\.":
        r"阅读共需 **\1**（按英文每分钟 \2 词、代码每分钟 \3 条语句计）；\4 道练习另需 \5，每道 \6 分钟。",
    "as fast with a swizzle, and nothing else changed": "加速：只加 swizzle，其余不变",
    "as fast as cuBLAS: the tuned kernel": "cuBLAS：调优后的 kernel",
    "shared-memory instructions take the wavefronts that the model predicts, as counted by ncu":
        "条共享内存指令的 wavefront 数与模型预测一致（ncu 计数）",
    "Checked with no GPU; ": "已在没有 GPU 的情况下检查；",
    ": details, code, notebook": "：详情、代码、notebook",
    "Show the code of figures": "显示绘图代码",
}  # fmt: skip


def _in_chinese(row: str) -> str:
    """A row of a table: its fixed words in Chinese; links, code and figures stay."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    row = re.sub(r"`[^`]*`|\]\([^)]*\)", keep, row)
    for words, said in _WORDS.items():
        row = re.sub(rf"(?<![\w-]){re.escape(words)}(?![\w-])" if words[0].isalpha() else re.escape(words), said, row)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], row)


def files(docs: Path) -> Iterator[tuple[str, str]]:
    """(path in docs/, markdown) of each Chinese page."""
    for name in names():
        yield f"zh/{name}.md", page(name, docs)


def main(argv: list[str] | None = None) -> int:
    """The command line in the module's text; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.publish.chinese")
    parser.add_argument("--accept", metavar="NAME", choices=[name for name in names() if name != TERMS])
    given = parser.parse_args(argv)
    if given.accept:
        accept(given.accept)
    found = {name: changed(name) for name in names()}
    for name, lines in found.items():
        for line in lines:
            print(f"{name}: changed since it was translated: {line}")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
