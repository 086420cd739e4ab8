"""What tests of pictures share: an SVG is parsed, and its groups, labels and colours are read back."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from types import SimpleNamespace

import numpy as np

from cookbook import draw
from cookbook.access import Access
from cookbook.layouts import Layout, SmemLayout
from cookbook.swizzle import Swizzle

NS = "{http://www.w3.org/2000/svg}"


def parse(picture):
    return ET.fromstring(picture.svg)


def found(picture, tag="g", **wanted):
    return [
        g
        for g in parse(picture).iter(f"{NS}{tag}")
        if all(g.get(f"data-{k.replace('_', '-')}") == str(v) for k, v in wanted.items())
    ]


def label(g):
    return g.find(f"{NS}text").text


def fill(g):
    return g.find(f"{NS}rect").get("fill")


def labels(groups):
    return [g.find(f"{NS}text").text for g in groups]


def labels_of(picture, **wanted):
    return [g.find(f"{NS}text").text for g in found(picture, **wanted)]


def fills_of(picture, **wanted):
    return [g.find(f"{NS}rect").get("fill") for g in found(picture, **wanted)]


def texts(picture):
    return [t.text for t in ET.fromstring(picture.svg).iter(f"{NS}text")]


def described(picture):
    return parse(picture).find(f"{NS}desc").text


# --- what is drawn ----------------------------------------------------------------------------------------------

INDEX = np.arange(64).reshape(8, 8)
SWIZZLED = Swizzle(3, 0, 3)(INDEX)
COLUMN = [(r, 0) for r in range(8)]


class Tile:
    """A row-major (rows, cols) tile in the smallest form the pictures read: byte XOR written out here by hand."""

    def __init__(self, rows, cols, bits, element_bits=16, mn_major=False, stages=None):
        index = np.arange(rows * cols).reshape(rows, cols)
        if mn_major:
            index = np.arange(rows * cols).reshape(cols, rows).T
        if stages:
            index = index[..., None] + rows * cols * np.arange(stages)
        self.element_bits, self._index, self._bits = element_bits, index, bits
        self.outer = SimpleNamespace(table=lambda: index)
        self.swizzle = SimpleNamespace(bits=bits, base=4, shift=3)

    def byte_offsets(self):
        plain = self._index * (self.element_bits // 8)
        return plain ^ ((plain >> 3) & (((1 << self._bits) - 1) << 4))


SW128 = Tile(8, 64, 3)
BARS = [draw.Bar("4096^3 bf16", "ours", 400.0, 390, 410), draw.Bar("4096^3 bf16", "torch.matmul", 500.0)]
POINTS = {
    "ours": [draw.Point(1024, 300, 250, 330), draw.Point(512, 100), draw.Point(4096, 400)],
    "ceiling": [draw.Point(512, 450), draw.Point(1024, 450), draw.Point(4096, 450)],
}


def ask(addresses, width, kind="test"):
    return Access(np.asarray(addresses, dtype=np.int64), width, kind)


def swizzled_transpose(**given):
    return draw.toy_transpose(lambda r, t: (r, r ^ t), lambda i, t: (t, t ^ i), **given)


def atom(bits, mn_major=False, element_bits=16):
    width = (128 << bits) // element_bits
    outer = Layout((width, 8), (1, width)) if mn_major else Layout((8, width), (width, 1))
    return SmemLayout(outer, Swizzle(bits, 4, 3), element_bits)


def tiling(bits, shape, stride):
    return SmemLayout(Layout(shape, stride), Swizzle(bits, 4, 3), 16)
