"""Further operands of `matmul`: matrices by group, scale factors, a bias, the ends of groups.

A recipe lists them in its table of operands, behind A and B. `cookbook copy` writes what it uses of this text into the
copied file.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cookbook.recipe.entry import LARGEST, Call, Gemm, Matrix, check_apart, check_tensor, line_stride, require


class Batch(Matrix):
    """A matrix for each group, "GROUPS K N": all of them lie alike."""

    def check(self, gemm: Any, x: Any, given: tuple, known: dict[str, Any]) -> tuple[str, int, int]:
        """As of `Matrix`; and the elements from one matrix to the next."""
        check_tensor(self.name, x, gemm.takes, (3,))
        groups, _, shape = self.shape.partition(" ")
        known[groups] = len(x)
        major, line = Matrix(self.name, shape).check(gemm, x[0], given, known)
        piece, rows = 16 // x.element_size(), x.shape[1:][1 - shape.split().index("K")]
        far = x.stride(0) if len(x) > 1 else line * rows
        needed = f"groups a multiple of 16 bytes apart (a multiple of {piece} elements), at least 0"
        require(far >= 0 and far % piece == 0, self.name, f"groups {far} elements apart", needed)
        return major, line, far


class Argument(NamedTuple):
    """Another tensor that `matmul` takes and the kernel reads."""

    name: str
    # Letters are extents, the same in all operands: "GROUPS N". "K/128" is rounded up; a new letter is the extent's.
    shape: str
    dtypes: tuple[torch.dtype, ...]  # (): that of C
    # What must hold of where its elements lie, of (name, x, known); what the launch has to know of it, in elements.
    lies: Callable[..., tuple[int, ...]]
    also: Callable[[Any], tuple[int, ...]] | None = None  # of its shape, another that it may have
    wanted: bool | None = True  # None: it may be None; False: it must be
    zeroed: bool = False  # of a FurtherGemm: the kernel adds to it, and it is 0 before each launch
    read_as: Callable[[torch.Tensor], torch.Tensor] | None = None  # of a FurtherGemm: what the kernel is given

    def check(self, gemm: Any, x: Any, given: tuple, known: dict[str, Any]) -> tuple[int, ...]:
        """Return what `lies` says; () of None."""
        if self.wanted is not True and x is None:
            return ()
        require(self.wanted is not False, self.name, type(x).__name__, "None: the epilogue takes none")
        name, parts = self.name, [text.partition("/") for text in self.shape.split()]
        extents = [int(letter) if letter.isdigit() else known.get(letter) for letter, *_ in parts]
        pairs = zip(extents, parts, strict=True)
        needed = tuple("".join(text) if e is None else -(-e // int(text[2] or 1)) for e, text in pairs)
        other = self.also(needed) if self.also else needed
        alike = (
            self.also is not None and isinstance(x, torch.Tensor) and other == (1,) and x.numel() == 1
        )  # one element, of any rank
        ranks = (x.ndim,) if alike else tuple(sorted({len(needed), len(other)}))
        check_tensor(name, x, self.dtypes or (gemm.takes[given[0].dtype],), ranks, alike or 0 in needed)
        if x.shape != other and not alike:
            pairs = zip(needed, x.shape, strict=False)
            fits = x.ndim == len(needed) and all(type(each) is str or each == extent for each, extent in pairs)
            said = f"({', '.join(map(str, needed))}{',' * (len(needed) == 1)})"
            said += "" if other == needed else ", or one element" if other == (1,) else f", or {other}"
            letters, told = {letter for letter, *_ in parts}, zip(gemm.operands, given, strict=True)
            of_others = [each for each in told if isinstance(each[0], Matrix)]
            source, of = max(of_others, key=lambda each: len(letters.intersection(each[0].shape.split())))
            require(fits, name, f"shape {tuple(x.shape)}", f"{said}, for {source.name} is {tuple(of.shape)}")
            for (letter, _, step), extent, old in zip(parts, x.shape, extents, strict=True):
                known |= {letter: extent * int(step or 1)} if old is None else {}
                found, needed = known.get(letter, 0), f"at most {LARGEST}: kernels count in 32 bits"
                require(found <= LARGEST, name, f"{letter} = {found}", needed)
        return self.lies(name, x, known)


def adjacent(name: str, x: torch.Tensor, known: dict[str, int]) -> tuple[int, ...]:
    """Lines of adjacent elements; the other strides."""
    *others, last = x.stride()
    require(last == 1 or x.shape[-1] == 1, name, f"stride {last}", "1: adjacent elements")
    return tuple(others)


def by_lines(along: int, index: str) -> Callable[..., tuple[int, ...]]:
    """A matrix of lines along mode `along`, called `index`, that 16-byte pieces can read: see `line_stride`."""
    return lambda name, x, known: (line_stride(name, x, along, index),)


def one_for_all(shape: tuple[int, ...]) -> tuple[int]:
    """One element, in place of as many as a shape has."""
    return (1,)


def along(mode: int) -> Callable[..., tuple[int]]:
    """A vector along a mode, or one element for all: from one element to the next, 0 of one."""

    def lies(name: str, x: torch.Tensor, known: dict[str, int]) -> tuple[int]:
        stride = 0 if x.numel() == 1 else x.stride(mode)
        require(stride < 1 << 31, name, f"stride {stride}", "one below 2**31")
        return (stride,)

    return lies


@dataclass
class FurtherGemm(Gemm):
    """A `Gemm` of more operands than two, which are launched behind C; or as these fields say."""

    c_at: int = 2  # the place of C's address among those of the operands
    together: bool = False  # the launch takes the addresses behind C's as one tuple

    def __post_init__(self) -> None:
        further = [(i, each) for i, each in enumerate(self.operands) if isinstance(each, Argument)]
        self.touched = [(i, each) for i, each in further if each.zeroed or each.read_as]

    def launch(
        self, kernel: Callable, call: Call, given: tuple, c: torch.Tensor, made: torch.Tensor, numbers: tuple
    ) -> None:
        """Launch a compiled kernel, which writes `made`: C, or padded rows that are copied there. numbers: behind the
        addresses. What the kernel adds to is 0, on the stream of the launch."""
        read, pointers, start = list(given), [0 if x is None else x.data_ptr() for x in given], c.data_ptr()
        for i, pointer in enumerate(pointers):
            if pointer < start + call.spans[-1] and start < pointer + call.spans[i]:  # as in `matmul`
                check_apart(c, **{self.operands[i].name: given[i]})
        for i, each in self.touched:
            if each.zeroed:
                named = zip(self.operands, given, strict=True)
                check_apart(given[i], each.name, **{x.name: y for x, y in named if x is not each and y is not None})
                given[i].zero_()
            if each.read_as:
                read[i] = each.read_as(given[i])
                pointers[i] = read[i].data_ptr()
        before, behind = pointers[: self.c_at], pointers[self.c_at :]
        kernel(*before, made.data_ptr(), *((tuple(behind),) if self.together else behind), *numbers)


def nothing(*arguments) -> None:
    """Launch nothing: the product is empty."""


@dataclass
class GroupedGemm(FurtherGemm):
    """A `FurtherGemm` of groups, which may be empty. The kernel writes rows of `out`: none are padded and copied."""

    for_each: bool = False  # each group has a C

    def prepared(self, call: Call) -> tuple[Callable[..., None], tuple]:
        """As of `Gemm`; of an empty product nothing is compiled."""
        return (nothing, ()) if 0 in call.mnk else super().prepared(call)

    def launch(
        self, kernel: Callable, call: Call, given: tuple, c: torch.Tensor, made: torch.Tensor, numbers: tuple
    ) -> None:
        """As of `FurtherGemm`; an empty product is zeros."""
        if kernel is nothing:
            made.zero_()
        else:
            super().launch(kernel, call, given, c, made, numbers)

    def result(self, a: Any, known: dict[str, Any], out: Any) -> tuple[tuple[int, ...], int, int, bool, int]:
        """As of `Gemm`; and `known["out"]`, the elements from one group's C to the next."""
        m, n, groups, dtype = known["M"], known["N"], known["GROUPS"], self.takes[a.dtype]
        require(n % 8 == 0, "b", f"N = {n}", "a multiple of 8: whole 16-byte pieces of the rows of C")
        one = out
        if out is not None and self.for_each:
            check_tensor("out", out, (dtype,), (3,), empty=True)
            require(len(out) == groups, "out", f"{len(out)} group(s)", f"{groups}: one for each of offs")
            one = out[0]
        shape, ldc, vec, direct, span = super().result(a, known, one)
        require(direct, "out", "rows that do not begin at multiples of 16 bytes", "rows that TMA can write")
        if not self.for_each:
            return shape, ldc, vec, direct, span
        size = (m - 1) * ldc + n
        far = out.stride(0) if out is not None and groups > 1 else m * ldc
        needed = f"a multiple of 8, at least {size}: groups that do not overlap"
        require(far >= size and far % 8 == 0, "out", f"groups {far} elements apart", needed)
        known["out"] = (far,)
        return (groups, *shape), ldc, vec, direct, ((groups - 1) * far + size) * a.element_size()
