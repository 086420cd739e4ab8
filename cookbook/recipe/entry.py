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


def nothing(*arguments) -> None:
    """What an empty product launches."""


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
    """Of a matrix of lines of adjacent elements, in bytes: its start, from line to line, length of a line, its end."""
    by_columns = (x.stride(0) == 1 and x.shape[0] > 1) or (x.stride(1) != 1 and x.shape[1] > 1)
    x, size = (x.T if by_columns else x), x.element_size()
    start, step, width = x.data_ptr(), x.stride(0) * size, x.shape[1] * size
    return start, step, width, start + (x.shape[0] - 1) * step + width


def are_apart(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two matrices of lines of adjacent elements share no byte.

    Different steps from line to line are not told apart; lines of one step may be columns of one wider matrix.
    """
    (start, step, width, end), (y_start, y_step, y_width, y_end) = in_memory(x), in_memory(y)
    beside = step == y_step > 0 and width <= (y_start - start) % step <= step - y_width
    return beside or y_end <= start or end <= y_start


def check_apart(out: torch.Tensor, **others: torch.Tensor) -> None:
    """`out` shares no byte with the other matrices, called by their arguments' names."""
    for name, x in others.items():
        require(are_apart(out, x), "out", f"memory that overlaps {name}", "memory of its own")


def check_out(out: torch.Tensor, m: int, n: int, dtype: torch.dtype, device: torch.device) -> None:
    """`out` can take a product (M, N)."""
    check_tensor("out", out, (dtype,), empty=0 in (m, n))
    row, column = out.stride()
    require(out.shape == (m, n), "out", f"shape {tuple(out.shape)}", f"({m}, {n})")
    require(column == 1 or n == 1, "out", f"stride {column} along N", "1: rows of adjacent elements")
    require(row >= n or m <= 1, "out", f"row stride {row}", f"at least N = {n}: rows that do not overlap")
    require(out.device == device, "out", f"device {out.device}", f"{device}, where a is")


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


class Argument(NamedTuple):
    """A tensor that `matmul` takes and the kernel reads."""

    name: str
    # Letters are extents, the same in all operands: "GROUPS K N". "K/128" is rounded up; the first to have K tells K.
    shape: str
    dtypes: tuple[torch.dtype, ...] = ()  # (): of a matrix what the GEMM takes, of others that of C
    # What must hold of where its elements lie, of (name, x, extents); what the launch has to know of it, in elements.
    # None: a matrix, read by lines as `major_of` says
    lies: Callable[..., tuple[int, ...]] | None = None
    also: Callable[[Any], tuple[int, ...]] | None = None  # of its shape, another that it may have
    wanted: bool | None = True  # None: it may be None; False: it must be
    zeroed: bool = False  # the kernel adds to it: it is 0 before each launch
    read_as: Callable[[torch.Tensor], torch.Tensor] | None = None  # what the kernel is given in its place

    def extents(self, known: dict[str, int]) -> tuple[int | str, ...]:
        """The extents of its shape: a number each, but the text of one that is not known."""
        found: list[int | str] = []
        for text in self.shape.split():
            letters, _, step = text.partition("/")
            extent = int(letters) if letters.isdigit() else known.get(letters)
            found.append(text if extent is None else -(-extent // int(step or 1)))
        return tuple(found)


MATRICES = Argument("a", "M K"), Argument("b", "K N")


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
    majors: tuple[str, str]  # "k", or "m" of A and "n" of B
    strides: tuple[int, ...]  # from line to line of A, of B, and from row to row of what is written; in elements
    vec: int  # elements of C that one store can take: 8, 4, 2 or 1
    direct: bool  # the kernel writes `out` itself, not padded rows that are copied
    spans: tuple[int, ...]  # of the operands and C: from the first byte to the last one
    variant: str
    shape: tuple[int, ...] = ()  # of C
    extents: tuple[tuple[str, int], ...] = ()  # of the operands, by letter
    apart: tuple[tuple[str, tuple[int, ...]], ...] = ()  # by operand: see `numbers`

    def numbers(self, name: str) -> tuple[int, ...]:
        """What `Argument.lies` has the launch know of an operand; () of one that is None."""
        return dict(self.apart)[name]


TYPES_OF_C = {**DTYPES, torch.int32: cutlass.Int32}  # CuTe's type of those of C, by torch's


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
    operands: tuple[Argument, ...] = MATRICES  # all that `matmul` takes, in its order
    c: str = "M N"  # the shape of C; before M the groups that have a C each
    no_padding: bool = False  # rows of `out` are what the kernel writes: none are padded and copied
    empty: bool = False  # operands may have no rows or columns: the product is zeros
    most: dict[str, tuple[int, str]] = field(default_factory=dict)  # of an extent: the largest, and why
    c_at: int = 2  # the place of C's address among those of the operands
    together: bool = False  # the launch takes the addresses behind C's as one tuple
    plans: dict[tuple, tuple] = field(default_factory=dict)  # by the kind of call
    kernels: dict[tuple, Callable[..., None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.further = any(each.zeroed or each.read_as for each in self.operands)

    def matmul(self, *given: Any, out: Any = None, variant: str = "") -> torch.Tensor:
        """The product of `given`; what is legal, and what is raised of the rest, the recipe's `matmul` says."""
        which = variant if type(variant) in (str, self.family) else kind(variant)
        key = (*map(kind, given), kind(out), torch.is_grad_enabled(), which)
        call, launch, arguments = self.plans.get(key) or self.plan(key, given, out, variant)
        if torch.cuda.current_device() != call.device:
            with torch.cuda.device(call.device):
                return self.matmul(*given, out=out, variant=variant)
        a, fresh = given[0], out is None
        out = a.new_empty(call.shape, dtype=call.dtype) if out is None else out
        if launch is nothing:
            return out.zero_()
        pointers, start = [0 if x is None else x.data_ptr() for x in given], out.data_ptr()
        end = start + call.spans[-1]
        for pointer, span in zip(pointers, call.spans, strict=False):
            if pointer < end and start < pointer + span:  # they meet, but may be columns of one wider matrix
                self.check_apart("out", out, given)
        if self.further:
            given = self.read(given)
            pointers = [x.data_ptr() for x in given]
        stream = torch._C._cuda_getCurrentRawStream(call.device)  # its number, for which torch makes no Stream object
        made = out if call.direct else out.new_empty(call.mnk[0], call.strides[2])  # TMA fills a row's last 16 bytes
        before, behind = pointers[: self.c_at], pointers[self.c_at :]
        launch(*before, made.data_ptr(), *((tuple(behind),) if self.together else behind), *arguments, stream)
        if call.direct and not fresh:
            increment_version(out)  # tell autograd that it was overwritten
        return out if call.direct else out.copy_(made[:, : call.mnk[1]])

    def read(self, given: tuple) -> tuple:
        """What the kernel reads of `given`; what it adds to is 0, on the stream of the launch."""
        for operand, x in zip(self.operands, given, strict=True):
            if operand.zeroed:
                self.check_apart(operand.name, x, tuple(None if each is x else each for each in given))
                x.zero_()
        pairs = zip(self.operands, given, strict=True)
        return tuple(operand.read_as(x) if operand.read_as else x for operand, x in pairs)

    def check_apart(self, name: str, x: Any, given: tuple) -> None:
        """A tensor that is written shares no byte with the operands."""
        for operand, each in zip(self.operands, given, strict=True):
            apart = each is None or are_apart(as_matrix(x), as_matrix(each))
            require(apart, name, f"memory that overlaps {operand.name}", "memory of its own")

    def plan(
        self, key: tuple, given: tuple[Any, ...], out: Any, variant: Any
    ) -> tuple[Call, Callable[..., None], tuple]:
        """Check a call; prepare, compile and keep what all of its kind need. Raises what `matmul` raises."""
        call = self.check(given, out, variant)
        with torch.cuda.device(call.device), COMPILING:
            plan = call, nothing, ()
            if 0 not in call.mnk:
                which, arguments = self.prepare(call)
                name = call.arch, TYPES_OF_C[call.dtype], *which
                if name not in self.kernels:
                    # TVM-FFI makes it a function of plain integers: a call costs little more than the launch itself.
                    self.kernels[name] = self.compile_for("", *name[1:], options="--enable-tvm-ffi")
                plan = call, self.kernels[name], arguments
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            if not torch.cuda.is_current_stream_capturing():  # what a capture forbids to ask for, the plan may lack
                self.plans[key] = plan
        return plan

    def check(self, given: tuple, out: Any, variant: str) -> Call:
        """What is to be known of a legal call."""
        known = tuple(self.variants)  # a tuple may be asked about what a dict could not hold
        needed = f"one of {', '.join(known)}" + (", or a Config" if self.family else "")
        require(variant in known or type(variant) is self.family, "variant", repr(variant), needed)
        a, b = given[:2]
        extents, apart = dict[str, int](), dict[str, tuple[int, ...]]()
        majors, strides = list[str](), list[int]()
        each: Iterable[tuple[Argument, Any]] = zip(self.operands, given, strict=True)
        for operand, x in each:
            apart[operand.name] = ()
            if x is None and operand.wanted is not True:
                continue
            require(operand.wanted is not False, operand.name, type(x).__name__, "None: this product takes none")
            self.check_shape(operand, x, a, extents)
            assert x is not None  # else that raised
            if operand.lies:
                apart[operand.name] = operand.lies(operand.name, x, extents)
                continue
            matrix: torch.Tensor = x[0] if x.ndim == 3 else x  # of groups all matrices lie alike
            k_mode = [text[0] for text in operand.shape.split()[-2:]].index("K")
            major, line = self.major_of(operand.name, matrix, k_mode, self.whole)
            majors, strides = [*majors, major], [*strides, line]
            if x.ndim == 3:
                apart[operand.name] = self.check_groups(operand.name, x, line * matrix.shape[1 - k_mode])
        (m, n, k), dtype = (extents[index] for index in "MNK"), self.takes[a.dtype]
        *groups, _, _ = shape = tuple(extents[index] for index in self.c.split())
        if self.no_padding:
            require(n % 8 == 0, "b", f"N = {n}", "a multiple of 8: whole 16-byte pieces of the rows of C")
        one = out
        if out is not None and groups:
            check_tensor("out", out, (dtype,), (3,), empty=True)
            require(len(out) == groups[0], "out", f"{len(out)} group(s)", f"{groups[0]}: one for each of offs")
            one = out[0]
        if one is not None:
            check_out(one, m, n, dtype, a.device)
            self.check_apart("out", out, given)
        arch = check_gpu("a", a, self.gpus, self.needs)
        for operand, x in zip(self.operands, given, strict=True):
            if x is not None:
                require(x.device == a.device, operand.name, f"device {x.device}", f"{a.device}, where a is")
        ldc, vec, direct, span = self.rows_of(a, n, dtype, one)
        if self.no_padding:
            require(direct, "out", "rows that do not begin at multiples of 16 bytes", "rows that TMA can write")
        if groups:
            size, count = (m - 1) * ldc + n, groups[0]
            far = out.stride(0) if out is not None and count > 1 else m * ldc
            needed = f"a multiple of 8, at least {size}: groups that do not overlap"
            require(far >= size and far % 8 == 0, "out", f"groups {far} elements apart", needed)
            apart["out"], span = (far,), ((count - 1) * far + size) * a.element_size()
        lines, (a_major, b_major, *_) = (*strides, 0)[:2], (*majors, "k")  # a weight that is packed has no lines
        sms = torch.cuda.get_device_properties(a.device).multi_processor_count
        spans = *map(span_of, given), span
        facts = a.get_device(), arch, sms, (m, n, k), (a_major, b_major), (*lines, ldc), vec, direct, spans, variant
        return Call(dtype, (a.dtype, b.dtype), *facts, shape, tuple(extents.items()), tuple(apart.items()))

    def check_shape(self, operand: Argument, x: Any, a: torch.Tensor, extents: dict[str, int]) -> None:
        """The type and the shape of an operand; what its extents tell is in `extents` then."""
        name, is_matrix = operand.name, operand.lies is None
        dtypes = operand.dtypes or (self.takes if is_matrix else (self.takes[a.dtype],))
        rank = len(operand.shape.split())
        needed = operand.extents(extents)
        other = operand.also(needed) if operand.also else needed
        alike = isinstance(x, torch.Tensor) and other == (1,) and x.numel() == 1  # one element, of any rank
        empty = self.empty and rank == 2 if is_matrix else alike or 0 in needed
        check_tensor(name, x, dtypes, (x.ndim,) if alike else tuple(sorted({rank, len(other)})), empty)
        if is_matrix and not operand.dtypes:
            right = self.takes[x.dtype] == self.takes[a.dtype]
            require(right, name, x.dtype, f"{a.dtype}, the dtype of a", TypeError)
        if x.shape != other and not alike:
            pairs = zip(needed, x.shape, strict=False)
            fits = x.ndim == rank and all(type(wanted) is str or wanted == extent for wanted, extent in pairs)
            said = f"({', '.join(map(str, needed))}{',' * (rank == 1)})"
            said += "" if other == needed else ", or one element" if other == (1,) else f", or {other}"
            require(fits, name, f"shape {tuple(x.shape)}", said if x is a else f"{said}, for a is {tuple(a.shape)}")
            for text, extent in zip(operand.shape.split(), x.shape, strict=True):
                index, _, step = text.partition("/")
                if index not in extents and not index.isdigit():
                    extents[index] = extent * int(step or 1)
                    limit, why = self.most.get(index, (LARGEST, "kernels count in 32 bits"))
                    require(extents[index] <= limit, name, f"{index} = {extents[index]}", f"at most {limit}: {why}")

    def check_groups(self, name: str, x: Any, least: int) -> tuple[int]:
        """The elements from one matrix of `x` (GROUPS, K, N) to the next. least: of one group."""
        piece, far = 16 // x.element_size(), x.stride(0) if len(x) > 1 else least
        needed = f"groups a multiple of 16 bytes apart (a multiple of {piece} elements), at least 0"
        require(far >= 0 and far % piece == 0, name, f"groups {far} elements apart", needed)
        return (far,)

    def rows_of(self, a, n: int, dtype: torch.dtype, out: torch.Tensor | None) -> tuple[int, int, bool, int]:
        """Of a C of n columns, by the fields of `Call`: the stride of what is written, vec, direct, and its span."""
        m, padded = a.shape[0], -(-n // 8) * 8
        c = a.new_empty(m, n, dtype=dtype) if out is None else out  # memory of torch's own is aligned alike each time
        ldc = c.stride(0) if m > 1 else padded
        vec = store_width(c, ldc)
        direct = vec == 8 or not self.padded
        start, _, _, end = in_memory(c)
        return ldc if direct else padded, vec, direct, end - start


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    """A vector, or one element, as a matrix of one column, a matrix as it is; several as one line."""
    if x.ndim > 2:
        last = sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride(), strict=True))
        return x.as_strided((1, last + 1), (0, 1))
    return x if x.ndim == 2 and min(x.shape) > 1 else x.reshape(-1, 1)


def span_of(x: torch.Tensor | None) -> int:
    """Bytes from the first to the last of a tensor; 0 of none."""
    start, _, _, end = (0, 0, 0, 0) if x is None else in_memory(as_matrix(x))
    return end - start


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
        call, launch, (floats, count, *arguments) = super().plan(key, given, out, variant)
        device = given[0].device

        def shared(pa: int, pb: int, pc: int, *others) -> None:
            sums = torch.empty(floats, dtype=torch.float32, device=device)
            flags = flags_of(device, others[-1], count)
            launch(pa, pb, pc, sums.data_ptr(), flags.data_ptr(), *others)

        plan = call, shared, tuple(arguments)
        if key in self.plans:
            self.plans[key] = plan
        return plan
