"""The host side of a GEMM: operands are checked, a plan is kept for each kind of call, a kernel is compiled once.

The checks take longer than a GPU takes for a small product. But a program calls `matmul` with the same few kinds of
operands again and again, and their kind (shapes, strides, dtypes, devices, alignment) decides whether a call is legal
and which kernel serves it. `cookbook copy` writes what a recipe uses of this text into the copied file.
"""

import ctypes
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args

import cutlass
import cutlass.cute as cute
import torch
from torch.autograd.graph import increment_version


def require(ok: bool, name: str, got: object, needed: str, error: type[Exception] = ValueError) -> None:
    """Raise `error` about the argument `name` unless `ok`."""
    if not ok:
        raise error(f"{name}: got {got}; needed {needed}")


def check_epilogue(name: str, buffers: int, subtiles: int) -> None:
    """Each tile begins with buffer 0, so the tile before must end with the last one: TMA may still read from it."""
    needed = f"a divisor of {subtiles}, the subtiles of a tile: each tile begins with the buffer written longest ago"
    require(buffers > 0 and subtiles % buffers == 0, name, buffers, needed)


DTYPES = {torch.float16: cutlass.Float16, torch.bfloat16: cutlass.BFloat16}
TYPES_OF_C = {**DTYPES, torch.int32: cutlass.Int32}  # CuTe's type of those of C, by torch's
LARGEST = 2**31 - 2**12  # of M, N, K: Int32 in a kernel, where the last tile, and a cluster's, may stick out
MAX_PLANS = 4096  # more kinds of calls than a program has, unless its shapes never repeat
# CuTe compiles with state of the whole process: two threads at it abort. One lock, which all copies of this file share.
COMPILING = cutlass.__dict__.setdefault("_one_compile_at_a_time", threading.RLock())


def compile_host(host, arch: str, pointers: tuple, constants: tuple, options: str = ""):
    """Compile `host`, a `cute.jit` function, for dummies of the types in its annotations, then `constants`.

    arch: "sm_90a", which needs no GPU; "": the GPU that is here. pointers: (element type, alignment in bytes) each.
    A `list` of pointers in an annotation ends where these end; TVM-FFI would count the elements of a `tuple`.
    """
    described = iter(pointers)

    def dummy(of) -> object:
        if of is cute.Pointer:
            element, align = next(described)
            return cute.runtime.make_ptr(element, 16, cute.AddressSpace.gmem, assumed_align=align)
        fields = get_args(of) or [of.__annotations__[name] for name in getattr(of, "_fields", ())]
        return getattr(of, "_make", tuple)(map(dummy, fields)) if fields else of(0)

    types = (each.annotation for each in inspect.signature(host).parameters.values())
    dummies = [dummy(of) for of in types if of is not cutlass.Constexpr]
    options = f"--gpu-arch {arch} {options}" if arch else options
    with COMPILING:
        return cute.compile(host, *dummies, *constants, options=options.strip() or None)


def once(kept: dict, key: tuple, make: Callable) -> Callable[..., None]:
    """`make()`, a compiled kernel, kept by `key`: threads that ask for it at once get the same one."""
    if key not in kept:
        with COMPILING:
            if key not in kept:
                kept[key] = make()
    return kept[key]


def check_tensor(
    name: str, x: torch.Tensor, dtypes: Iterable | None, dimensions: tuple[int, ...] = (2,), empty: bool = False
) -> None:
    """A dense tensor of one of `dtypes` (None: any) and `dimensions`; its values are what is in memory.

    empty: it may be.
    """
    require(isinstance(x, torch.Tensor), name, type(x).__name__, "a torch.Tensor", TypeError)
    require(x.layout == torch.strided, name, f"layout {x.layout}", "torch.strided: a dense matrix", TypeError)
    require(x.ndim in dimensions, name, f"{x.ndim} dimension(s)", " or ".join(map(str, dimensions)))
    require(dtypes is None or x.dtype in dtypes, name, x.dtype, " or ".join(map(str, dtypes or ())), TypeError)
    require(empty or min(x.shape) > 0, name, f"shape {tuple(x.shape)}", "no empty dimension")
    tracked = x.requires_grad and torch.is_grad_enabled()
    require(not tracked, name, "requires_grad=True", "torch.no_grad(): there is no backward")
    for bit, is_set in (("neg", x.is_neg()), ("conj", x.is_conj())):  # of a view, to be negated when torch reads it
        require(not is_set, name, f"a view with PyTorch's {bit} bit", f"its values in memory: .resolve_{bit}()")


def line_stride(name: str, x: torch.Tensor, along: int, index: str, whole: bool = False) -> int:
    """Elements from line to line of `x` along mode `along`, called `index`, if 16-byte pieces can read the lines.

    whole: a line has whole pieces, for what lies behind it must not be read.
    """
    extent, size, stride = x.shape[along], x.element_size(), x.stride(along)
    piece, lines = 16 // size, ("columns", "rows")[along]
    require(stride == 1 or extent == 1, name, f"stride {stride} along {index}", f"1: {index}-major")
    needed = f"a multiple of {piece}: whole 16-byte pieces"
    require(not whole or extent % piece == 0, name, f"{index} = {extent}", needed)
    apart = x.stride(1 - along) if x.shape[1 - along] > 1 else -(-extent // piece) * piece  # one line: any will do
    needed = f"{lines} a multiple of 16 bytes apart (a multiple of {piece} elements: 16-byte pieces)"
    require(apart > 0 and apart % piece == 0, name, f"{index} = {extent}, {lines} {size * apart} bytes apart", needed)
    require(x.data_ptr() % 16 == 0, name, f"address {x.data_ptr():#x}", "a multiple of 16 bytes")
    return apart


def k_major(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """The major of an operand whose mode `k_mode` is K, and its `line_stride`: it has to be K-major."""
    return "k", line_stride(name, x, k_mode, "K", whole)


def either_major(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """`k_major`, or, where `x` cannot be read so, the same for its other mode: "m" of a, "n" of b."""
    other, errors = "m" if name == "a" else "n", []
    for index, along in (("k", k_mode), (other, 1 - k_mode)):
        try:
            return index, line_stride(name, x, along, index.upper(), whole)
        except ValueError as error:
            errors.append(error)
    near = [error for error in errors if not str(error).startswith(f"{name}: got stride")]
    strides = f"{name}: got strides {x.stride()}; needed one of them 1: contiguous along K or {other.upper()}"
    raise near[0] if near else ValueError(strides)


def mn_major(name: str, x: torch.Tensor, k_mode: int, whole: bool) -> tuple[str, int]:
    """The major of an operand that has to be contiguous along its other mode, and its `line_stride`: "m" of a, "n" of
    b."""
    other = "m" if name == "a" else "n"
    return other, line_stride(name, x, 1 - k_mode, other.upper(), whole)


def in_memory(x: torch.Tensor) -> tuple[int, int, int, int]:
    """Of lines of adjacent elements, in bytes: start, from line to line, length of a line, end; no matrix: one line."""
    size, last = x.element_size(), sum((extent - 1) * step for extent, step in zip(x.shape, x.stride(), strict=True))
    x = x if x.ndim == 2 else x.as_strided((1, last + 1), (0, 1))
    by_columns = (x.stride(0) == 1 and x.shape[0] > 1) or (x.stride(1) != 1 and x.shape[1] > 1)
    x = x.T if by_columns else x
    start, step, width = x.data_ptr(), x.stride(0) * size, x.shape[1] * size
    return start, step, width, start + (x.shape[0] - 1) * step + width


def check_apart(out: torch.Tensor, called: str = "out", /, **others: torch.Tensor) -> None:
    """`out` shares no byte with the other tensors, called by their arguments' names.

    Different steps from line to line are not told apart; lines of one step may be columns of one wider matrix.
    """
    start, step, width, end = in_memory(out)
    for name, (other, other_step, other_width, other_end) in ((name, in_memory(x)) for name, x in others.items()):
        beside = step == other_step > 0 and width <= (other - start) % step <= step - other_width
        apart = beside or other_end <= start or end <= other
        require(apart, called, f"memory that overlaps {name}", "memory of its own")


def store_width(out: torch.Tensor, ldc: int) -> int:
    """Elements of 2 bytes per store: the most (8 are 16 bytes) that divide N and to which every row is aligned."""
    together = out.shape[1] | ldc | out.data_ptr() // 2
    return next(vec for vec in (8, 4, 2, 1) if together % vec == 0)


def check_gpu(name: str, x: torch.Tensor, gpus: tuple, needs: str) -> str:
    """The GPU of `x` as "sm_90": its compute capability is one of `gpus`; ((8, 0), ...) is that one or a later one."""
    require(x.is_cuda, name, f"device {x.device}", "a CUDA device")
    found = torch.cuda.get_device_capability(x.device)
    needed = " or ".join(map(str, gpus)).replace("Ellipsis", "later")
    fits = found in gpus or (gpus[-1] is ... and found >= gpus[0])
    require(fits, name, f"a GPU of compute capability {found}", f"{needed}, for {needs}")
    return "sm_{}{}".format(*found)


def kind(x: Any) -> object:
    """What the checks look at in an argument, but for where exactly it lies."""
    if x is None:
        return None
    try:
        return x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % 16, x.requires_grad, x.is_neg()
    except (AttributeError, RuntimeError):  # not a dense tensor: no call of its kind has a plan
        return x if isinstance(x, str) else type(x)


class Matrix(NamedTuple):
    """A matrix that `matmul` takes and the kernel reads by lines. A letter of its shape is one extent everywhere."""

    name: str
    shape: str  # "M K"
    empty: bool = False  # it may have no rows or columns: the product is zeros

    def check(self, gemm: Any, x: Any, given: tuple, known: dict[str, Any]) -> tuple[str, int]:
        """Its major, and the elements from line to line; `known` gets the extents that it tells."""
        check_tensor(self.name, x, gemm.takes, empty=self.empty)
        a, letters = given[0], self.shape.split()
        right = gemm.takes[x.dtype] == gemm.takes[a.dtype]
        require(right, self.name, x.dtype, f"{a.dtype}, the dtype of a", TypeError)
        needed = ", ".join(str(known.get(letter, letter)) for letter in letters)
        for letter, extent in zip(letters, x.shape, strict=True):
            fits, most = known.setdefault(letter, extent) == extent, f"at most {LARGEST}: kernels count in 32 bits"
            require(fits, self.name, f"shape {tuple(x.shape)}", f"({needed}), for a is {tuple(a.shape)}")
            require(extent <= LARGEST, self.name, f"{letter} = {extent}", most)
        return gemm.major_of(self.name, x, letters.index("K"), gemm.whole)


MATRICES = Matrix("a", "M K"), Matrix("b", "K N")


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
        """What `lies` says; () of None."""
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


class Call(NamedTuple):
    """What the checks found out about calls of one kind: by this a recipe chooses what to launch."""

    dtype: torch.dtype  # of C
    operands: tuple[torch.dtype, torch.dtype]  # dtypes of A and of B
    device: int  # of CUDA's
    arch: str  # "sm_90"
    sms: int
    mnk: tuple[int, int, int]
    majors: tuple[str, ...]  # of each matrix: "k", or "m" of A and "n" of B
    strides: tuple[int, ...]  # from line to line of each matrix, and from row to row of what is written; in elements
    vec: int  # elements of C that one store can take: 8, 4, 2 or 1
    direct: bool  # the kernel writes `out` itself, not padded rows that are copied
    spans: tuple[int, ...]  # of the operands and C: from the first byte to the last one
    variant: str
    shape: tuple[int, ...]  # of C
    known: dict[str, Any]  # extents by letter; of operands what their `check` returned: of a matrix its major and lines


@dataclass
class Gemm:
    """A kernel as a function of `operands`: what a recipe's `matmul` calls."""

    compile_for: Callable[..., Callable[..., None]]
    prepare: Callable[[Call], tuple[tuple, tuple]]  # what `compile_for` takes behind the dtype, the launch behind pC
    gpus: tuple  # see check_gpu
    needs: str
    variants: Iterable[str] = ("",)
    major_of: Callable[..., tuple[str, int]] = k_major
    whole: bool = False  # see line_stride
    padded: bool = False  # it stores by TMA: rows that begin and end at multiples of 16 bytes
    takes: dict[torch.dtype, torch.dtype] = field(default_factory=lambda: {each: each for each in DTYPES})  # A, B: C
    family: type | None = None  # the recipe's Config, where each legal one is a variant too
    operands: tuple[Any, ...] = MATRICES  # all that `matmul` takes, in its order: a Matrix, Batch or Argument each
    plans: dict[tuple, tuple] = field(default_factory=dict)  # by the kind of call
    kernels: dict[tuple, Callable[..., None]] = field(default_factory=dict)

    def matmul(self, *given: Any, out: Any = None, variant: str = "") -> torch.Tensor:
        """The product of `given`; what is legal, and what is raised of the rest, the recipe's `matmul` says."""
        which = variant if type(variant) in (str, self.family) else kind(variant)
        key = (*map(kind, given), kind(out), torch.is_grad_enabled(), which)
        call, kernel, arguments = self.plans.get(key) or self.plan(key, given, out, variant)
        if torch.cuda.current_device() != call.device:
            with torch.cuda.device(call.device):
                return self.matmul(*given, out=out, variant=variant)
        fresh, out = out is None, given[0].new_empty(*call.shape, dtype=call.dtype) if out is None else out
        pointers, start, spans = [0 if x is None else x.data_ptr() for x in given], out.data_ptr(), call.spans
        for i, pointer in enumerate(() if fresh else pointers):
            if pointer < start + spans[-1] and start < pointer + spans[i]:  # but may be columns of one matrix
                check_apart(out, **{self.operands[i].name: given[i]})
        stream = torch._C._cuda_getCurrentRawStream(call.device)  # its number, for which torch makes no Stream object
        made = out if call.direct else out.new_empty(call.mnk[0], call.strides[-1])  # TMA fills a row's last 16 bytes
        self.launch(kernel, given, pointers, made, (*arguments, stream))
        if call.direct and not fresh:
            increment_version(out)  # tell autograd that it was overwritten
        return out if call.direct else out.copy_(made[:, : call.mnk[1]])

    def launch(self, kernel: Callable, given: tuple, pointers: list[int], made: torch.Tensor, others: tuple) -> None:
        """Launch a compiled kernel, which writes `made`. pointers: the addresses of `given`."""
        kernel(*pointers[:2], made.data_ptr(), *pointers[2:], *others)

    def plan(self, key: tuple, given: tuple, out: Any, variant: Any) -> tuple[Call, Callable[..., None], tuple]:
        """Check a call; prepare, compile and keep what all of its kind need. Raises what `matmul` raises."""
        call = self.check(given, out, variant)
        with torch.cuda.device(call.device), COMPILING:
            plan = call, *self.prepared(call)
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            if not torch.cuda.is_current_stream_capturing():  # what a capture forbids to ask for, the plan may lack
                self.plans[key] = plan
        return plan

    def prepared(self, call: Call) -> tuple[Callable[..., None], tuple]:
        """The kernel for a call, compiled if none of its kind has been, and what it takes behind the addresses."""
        which, arguments = self.prepare(call)
        name = call.arch, TYPES_OF_C[call.dtype], *which
        if name not in self.kernels:
            # TVM-FFI makes it a function of plain integers: a call costs little more than the launch itself.
            self.kernels[name] = self.compile_for("", *name[1:], options="--enable-tvm-ffi")
        return self.kernels[name], arguments

    def check(self, given: tuple, out: Any, variant: str) -> Call:
        """What is to be known of a legal call."""
        names = tuple(self.variants)  # a tuple may be asked about what a dict could not hold
        needed = f"one of {', '.join(names)}" + (", or a Config" if self.family else "")
        require(variant in names or type(variant) is self.family, "variant", repr(variant), needed)
        (a, b, *_), known = given, {}
        for each, x in zip(self.operands, given, strict=True):
            known[each.name] = each.check(self, x, given, known)
        majors, lines = zip(*(known[x.name][:2] for x in self.operands if isinstance(x, Matrix)), strict=True)
        shape, ldc, vec, direct, c_span = self.result(a, known, out)
        named = {each.name: x for each, x in zip(self.operands, given, strict=True) if x is not None}
        if out is not None:
            check_apart(out, **named)
        arch = check_gpu("a", a, self.gpus, self.needs)
        for name, x in named.items():
            require(x.device == a.device, name, f"device {x.device}", f"{a.device}, where a is")
        spans = (*(0 if x is None else in_memory(x)[3] - x.data_ptr() for x in given), c_span)
        sms, mnk = torch.cuda.get_device_properties(a.device).multi_processor_count, tuple(known[x] for x in "MNK")
        facts = a.get_device(), arch, sms, mnk, majors, (*lines, ldc), vec, direct, spans, variant, shape, known
        return Call(self.takes[a.dtype], (a.dtype, b.dtype), *facts)

    def result(self, a: Any, known: dict[str, Any], out: Any) -> tuple[tuple[int, ...], int, int, bool, int]:
        """`out` can take C. Of C, by the fields of `Call`: shape, stride of what is written, vec, direct, span."""
        m, n, dtype = known["M"], known["N"], self.takes[a.dtype]
        if out is not None:
            check_tensor("out", out, (dtype,), empty=0 in (m, n))
            row, column = out.stride()
            require(out.shape == (m, n), "out", f"shape {tuple(out.shape)}", f"({m}, {n})")
            require(column == 1 or n == 1, "out", f"stride {column} along N", "1: rows of adjacent elements")
            require(row >= n or m <= 1, "out", f"row stride {row}", f"at least N = {n}: rows that do not overlap")
            require(out.device == a.device, "out", f"device {out.device}", f"{a.device}, where a is")
        c = a.new_empty(m, n, dtype=dtype) if out is None else out  # memory of torch's own is aligned alike each time
        padded = -(-n // 8) * 8
        ldc = c.stride(0) if m > 1 else padded
        vec = store_width(c, ldc)
        direct = vec == 8 or not self.padded
        return (m, n), ldc if direct else padded, vec, direct, in_memory(c)[3] - c.data_ptr()


@dataclass
class FurtherGemm(Gemm):
    """A `Gemm` whose launch takes addresses otherwise than A, B, C and the other operands, or not as they are given."""

    c_at: int = 2  # the place of C's address among those of the operands
    together: bool = False  # the launch takes the addresses behind C's as one tuple

    def launch(self, kernel: Callable, given: tuple, pointers: list[int], made: torch.Tensor, others: tuple) -> None:
        """As of `Gemm`; what the kernel adds to is 0, on the stream of the launch."""
        read = list(given)
        for i, each in enumerate(self.operands):
            if getattr(each, "zeroed", False):
                named = zip(self.operands, given, strict=True)
                check_apart(given[i], each.name, **{x.name: y for x, y in named if x is not each and y is not None})
                given[i].zero_()
            if getattr(each, "read_as", None):
                read[i] = each.read_as(given[i])
        pointers = [0 if x is None else x.data_ptr() for x in read]
        before, behind = pointers[: self.c_at], pointers[self.c_at :]
        kernel(*before, made.data_ptr(), *((tuple(behind),) if self.together else behind), *others)


def nothing(*arguments) -> None:
    """What an empty product launches."""


@dataclass
class GroupedGemm(FurtherGemm):
    """A `FurtherGemm` of groups, which may be empty. The kernel writes rows of `out`: none are padded and copied."""

    for_each: bool = False  # each group has a C

    def prepared(self, call: Call) -> tuple[Callable[..., None], tuple]:
        """As of `Gemm`; of an empty product nothing is compiled."""
        return (nothing, ()) if 0 in call.mnk else super().prepared(call)

    def launch(self, kernel: Callable, given: tuple, pointers: list[int], made: torch.Tensor, others: tuple) -> None:
        """As of `FurtherGemm`; an empty product is zeros."""
        if kernel is nothing:
            made.zero_()
        else:
            super().launch(kernel, given, pointers, made, others)

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


REMAPS: dict[tuple, torch.Tensor] = {}  # by device, GPC of each cluster, and length of a group


def remapping(gpcs: Sequence, together: int) -> list[int]:
    """The number of the first cluster tile of each cluster, given its GPC: `together` consecutive numbers are of one
    GPC, as long as it has clusters; those that fill no group come last."""
    groups, rest = [], []
    for gpc in dict.fromkeys(gpcs):
        members = [cluster for cluster, each in enumerate(gpcs) if each == gpc]
        full = len(members) // together * together
        groups, rest = groups + members[:full], rest + members[full:]
    order = groups + rest
    return sorted(range(len(order)), key=order.__getitem__)  # for each cluster, its place in that order


def remap_table(device: int, gpcs: tuple, together: int) -> int:
    """The address of `remapping` as a table of Int32 on the device; 0 (no table) if there is none yet and a graph is
    being captured, which allows no copy to the device."""
    key = device, gpcs, together
    if key not in REMAPS:
        if torch.cuda.is_current_stream_capturing():
            return 0
        stream, table = torch.cuda.Stream(device), remapping(gpcs, together)  # of its own: no work is waited for
        with torch.cuda.stream(stream):
            REMAPS[key] = torch.tensor(table, dtype=torch.int32, device=torch.device("cuda", device))
        stream.synchronize()  # kernels read the table without waiting for anything
    return REMAPS[key].data_ptr()


FLAGS: dict[tuple, torch.Tensor] = {}  # by device, stream, number and capture: each launch counts up what it finds
SPARE: dict[torch.device, tuple[torch.Tensor, Iterator[torch.Tensor]]] = {}  # zeros for graphs, and those not in use
SPARE_FLAGS = 512, 1024  # for how many captures, and how many flags for each


def capture_of(stream: int) -> int:
    """The number of the capture that a stream is in, which no other has; 0 where the driver does not say."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    try:
        asked = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return 0
    wanted = ctypes.byref(status), ctypes.byref(number), None, None, None
    return 0 if asked(ctypes.c_void_p(stream), *wanted) else number.value


def flags_of(device: torch.device, stream: int, count: int) -> torch.Tensor:
    """`count` flags that launches count up alike: those of the stream, for what is on a stream runs in order.

    What is captured on a stream has its own, for two graphs may run at once. Where none are spare, the graph sets flags
    to zero before each launch.
    """
    capturing = torch.cuda.is_current_stream_capturing()
    key = device, stream, count, capture_of(stream) if capturing else 0
    if key in FLAGS:
        return FLAGS[key]
    if not capturing and device not in SPARE:
        zeros = torch.zeros(SPARE_FLAGS, dtype=torch.int32).to(device)  # waits for them: other streams will use them
        SPARE[device] = zeros, iter(zeros)
    spare = None
    if key[3] and device in SPARE and count <= SPARE_FLAGS[1]:
        spare = next(SPARE[device][1], None)
    flags = torch.zeros(count, dtype=torch.int32, device=device) if spare is None else spare
    if not capturing or spare is not None:  # what a graph allocates it may give to its next node
        FLAGS[key] = flags
    return flags


class SharedSums(Gemm):
    """A `Gemm` whose CTAs tell one another partial sums, in global memory: the kernel takes `sums` and `flags`.

    `prepare` says how many of each the launch needs, in front of the other arguments. The sums of a call are its own;
    flags are zero before their first launch, and each launch counts all of them up by the same number.
    """

    def plan(
        self, key: tuple, given: tuple[Any, ...], out: Any, variant: Any
    ) -> tuple[Call, Callable[..., None], tuple]:
        """As `Gemm.plan`; the launch makes the sums."""
        call, kernel, (floats, count, *arguments) = super().plan(key, given, out, variant)
        device = given[0].device

        def shared(pa: int, pb: int, pc: int, *others) -> None:
            sums = torch.empty(floats, dtype=torch.float32, device=device)
            flags = flags_of(device, others[-1], count)
            kernel(pa, pb, pc, sums.data_ptr(), flags.data_ptr(), *others)

        plan = call, shared, tuple(arguments)
        if key in self.plans:
            self.plans[key] = plan
        return plan
