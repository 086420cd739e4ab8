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
from typing import Any, ClassVar, NamedTuple, get_args

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


def check_apart(out: torch.Tensor, **others: torch.Tensor) -> None:
    """Matrices of lines of adjacent elements: `out` shares no byte with the others, called by their arguments' names.

    Different steps from line to line are not told apart; lines of one step may be columns of one wider matrix.
    """
    start, step, width, end = in_memory(out)
    for name, x in others.items():
        x_start, x_step, x_width, x_end = in_memory(x)
        beside = step == x_step > 0 and width <= (x_start - start) % step <= step - x_width
        require(beside or x_end <= start or end <= x_start, "out", f"memory that overlaps {name}", "memory of its own")


def check_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> None:
    """`out` can take the product of `a` (M, K) and `b` (K, N)."""
    (m, n) = a.shape[0], b.shape[1]
    check_tensor("out", out, (dtype,), empty=0 in (m, n))
    row, column = out.stride()
    require(out.shape == (m, n), "out", f"shape {tuple(out.shape)}", f"({m}, {n})")
    require(column == 1 or n == 1, "out", f"stride {column} along N", "1: rows of adjacent elements")
    require(row >= n or m <= 1, "out", f"row stride {row}", f"at least N = {n}: rows that do not overlap")
    require(out.device == a.device, "out", f"device {out.device}", f"{a.device}, where a is")
    check_apart(out, a=a, b=b)


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
    spans: tuple[int, ...]  # of A, B and C: from the first byte to the last one
    variant: str


@dataclass
class Gemm:
    """A kernel as a function of two matrices: what a recipe's `matmul` calls."""

    elements: ClassVar[dict[torch.dtype, Any]] = DTYPES  # CuTe's type of those of C, by torch's
    empty: ClassVar[bool] = False  # it takes matrices with no rows or columns: their product is zeros
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
    plans: dict[tuple, tuple] = field(default_factory=dict)  # by the kind of call
    kernels: dict[tuple, Callable[..., None]] = field(default_factory=dict)

    def matmul(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, variant: str = "") -> torch.Tensor:
        """`a @ b`; what is legal, and what is raised of the rest, the recipe's `matmul` says."""
        which = variant if type(variant) in (str, self.family) else kind(variant)
        key = kind(a), kind(b), kind(out), torch.is_grad_enabled(), which
        call, launch, arguments = self.plans.get(key) or self.plan(key, a, b, out, variant)
        if torch.cuda.current_device() != call.device:
            with torch.cuda.device(call.device):
                return self.matmul(a, b, out, variant)
        (m, n, _), (a_span, b_span, c_span) = call.mnk, call.spans
        fresh, out = out is None, a.new_empty(m, n) if out is None else out
        pa, pb, pc = a.data_ptr(), b.data_ptr(), out.data_ptr()
        if (pa < pc + c_span and pc < pa + a_span) or (pb < pc + c_span and pc < pb + b_span):
            check_apart(out, a=a, b=b)  # from first to last byte they meet, but may be columns of one wider matrix
        stream = torch._C._cuda_getCurrentRawStream(call.device)  # its number, for which torch makes no Stream object
        made = out if call.direct else a.new_empty(m, call.strides[2])  # TMA finishes the last 16 bytes of a row
        launch(pa, pb, made.data_ptr(), *arguments, stream)
        if call.direct and not fresh:
            increment_version(out)  # tell autograd that it was overwritten
        return out if call.direct else out.copy_(made[:, :n])

    def plan(self, key: tuple, *given) -> tuple[Call, Callable[..., None], tuple]:
        """Check a call; prepare, compile and keep what all of its kind need. Raises what `matmul` raises."""
        call = self.check(*given)
        with torch.cuda.device(call.device), COMPILING:
            plan = call, nothing, ()
            if 0 not in call.mnk:
                which, arguments = self.prepare(call)
                name = call.arch, self.elements[call.dtype], *which
                if name not in self.kernels:
                    # TVM-FFI makes it a function of plain integers: a call costs little more than the launch itself.
                    self.kernels[name] = self.compile_for("", *name[1:], options="--enable-tvm-ffi")
                plan = call, self.kernels[name], arguments
            if len(self.plans) >= MAX_PLANS:
                self.plans.clear()
            if not torch.cuda.is_current_stream_capturing():  # what a capture forbids to ask for, the plan may lack
                self.plans[key] = plan
        return plan

    def check(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call."""
        known = tuple(self.variants)  # a tuple may be asked about what a dict could not hold
        needed = f"one of {', '.join(known)}" + (", or a Config" if self.family else "")
        require(variant in known or type(variant) is self.family, "variant", repr(variant), needed)
        check_tensor("a", a, self.takes, empty=self.empty)
        check_tensor("b", b, self.takes, empty=self.empty)
        dtype = self.takes[a.dtype]
        require(self.takes[b.dtype] == dtype, "b", b.dtype, f"{a.dtype}, the dtype of a", TypeError)
        (m, k), n = a.shape, b.shape[1]
        require(b.shape[0] == k, "b", f"shape {tuple(b.shape)}", f"({k}, N), for a is {tuple(a.shape)}")
        for name, index, extent in (("a", "M", m), ("b", "N", n), ("a", "K", k)):
            require(extent <= LARGEST, name, f"{index} = {extent}", f"at most {LARGEST}: kernels count in 32 bits")
        (a_major, lda), (b_major, ldb) = self.major_of("a", a, 1, self.whole), self.major_of("b", b, 0, self.whole)
        if out is not None:
            check_out(out, a, b, dtype)
        arch = check_gpu("a", a, self.gpus, self.needs)
        require(b.device == a.device, "b", f"device {b.device}", f"{a.device}, where a is")
        ldc, vec, direct, c_span = self.rows_of(a, n, dtype, out)
        spans = (*(end - start for start, _, _, end in map(in_memory, (a, b))), c_span)
        sms = torch.cuda.get_device_properties(a.device).multi_processor_count
        majors, strides = (a_major, b_major), (lda, ldb, ldc)
        types, mnk = (a.dtype, b.dtype), (m, n, k)
        return Call(dtype, types, a.get_device(), arch, sms, mnk, majors, strides, vec, direct, spans, variant)

    def rows_of(self, a, n: int, dtype: torch.dtype, out: torch.Tensor | None) -> tuple[int, int, bool, int]:
        """Of a C of n columns, by the fields of `Call`: the stride of what is written, vec, direct, and its span."""
        m, padded = a.shape[0], -(-n // 8) * 8
        c = a.new_empty(m, n, dtype=dtype) if out is None else out  # memory of torch's own is aligned alike each time
        ldc = c.stride(0) if m > 1 else padded
        vec = store_width(c, ldc)
        direct = vec == 8 or not self.padded
        start, _, _, end = in_memory(c)
        return ldc if direct else padded, vec, direct, end - start


def scale_stride(name: str, scale: torch.Tensor, extent: int, along: int, device: torch.device) -> int:
    """The stride, in elements, of `extent` scale factors along mode `along`; 0 of one for all."""
    one = isinstance(scale, torch.Tensor) and scale.numel() == 1
    scale = scale.reshape(1, 1) if one else scale
    check_tensor(name, scale, (torch.float32,))
    shape = (extent, 1) if along == 0 else (1, extent)
    require(one or scale.shape == shape, name, f"shape {tuple(scale.shape)}", f"{shape}, or one element")
    require(scale.device == device, name, f"device {scale.device}", f"{device}, where a is")
    stride = 0 if one else scale.stride(along)
    require(stride < 1 << 31, name, f"stride {stride}", "one below 2**31")
    return stride


@dataclass
class FurtherGemm(Gemm):
    """A `Gemm` whose kernel reads further tensors, called `names`; None where it has none."""

    names: tuple[str, ...] = ()

    def handed(self, further: list[int]) -> tuple:
        """What the launch takes behind pC, of the addresses of the further tensors; 0: None."""
        return tuple(further)

    def shape_of(self, call: Call) -> tuple[int, ...]:
        """The shape of C."""
        return call.mnk[:2]

    def before_launch(self, call: Call, given: tuple) -> None:
        """What a launch needs of `given` beside the checks: it comes behind them all, on the stream of the launch."""

    def matmul(self, given: tuple, out: torch.Tensor | None, variant: str) -> torch.Tensor:
        """The product of `given`: a, b and the further tensors."""
        key = (*map(kind, given), kind(out), torch.is_grad_enabled(), kind(variant))
        call, launch, arguments = self.plans.get(key) or self.plan(key, *given, out, variant)
        if torch.cuda.current_device() != call.device:
            with torch.cuda.device(call.device):
                return self.matmul(given, out, variant)
        (m, n, _), a, fresh = call.mnk, given[0], out is None
        out = a.new_empty(*self.shape_of(call), dtype=call.dtype) if out is None else out
        if launch is nothing:
            return out.zero_()
        pa, pb, *further = [0 if x is None else x.data_ptr() for x in given]
        start, (*spans, size) = out.data_ptr(), call.spans
        if any(x < start + size and start < x + span for x, span in zip((pa, pb, *further), spans, strict=True)):
            read = zip(("a", "b", *self.names), given, strict=True)
            check_apart(as_matrix(out), **{name: as_matrix(x) for name, x in read if x is not None})
        made = out if call.direct else out.new_empty(m, call.strides[2])  # TMA finishes the last 16 bytes of a row
        stream = torch._C._cuda_getCurrentRawStream(call.device)  # its number, for which torch makes no Stream object
        self.before_launch(call, given)
        launch(pa, pb, made.data_ptr(), *self.handed(further), *arguments, stream)
        if call.direct and not fresh:
            increment_version(out)
        return out if call.direct else out.copy_(made[:, :n])


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


EXACT_K = (2**31 - 1) // 2**14  # products of two int8, of which the largest is 2**14, whose sum int32 holds


class IntegerGemm(FurtherGemm):
    """A `Gemm` of int8 operands whose sums are exact: C is int32."""

    elements: ClassVar[dict[torch.dtype, Any]] = {torch.int32: cutlass.Int32}

    def check(self, a, b, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call."""
        call = super().check(a, b, out, variant)
        k = call.mnk[2]
        require(k <= EXACT_K, "a", f"K = {k}", f"at most {EXACT_K}: of more products int32 may not hold the sum")
        return call


@dataclass
class RowScaledGemm(FurtherGemm):
    """A `Gemm` of operands of which each row of A and each column of B has a scale factor."""

    names: tuple[str, ...] = ("scale_a", "scale_b")

    def check(self, a, b, scale_a, scale_b, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call."""
        call = super().check(a, b, out, variant)
        (m, n, _), (a_span, b_span, out_span) = call.mnk, call.spans
        along = scale_stride("scale_a", scale_a, m, 0, a.device), scale_stride("scale_b", scale_b, n, 1, a.device)
        spans = a_span, b_span, span_of(scale_a), span_of(scale_b), out_span
        return call._replace(strides=(*call.strides, *along), spans=spans)


def check_groups(name: str, x: torch.Tensor, weight: torch.Tensor, dtypes: tuple, one: bool) -> torch.Tensor:
    """Scales or zero points of a weight (N, K) as (N, K / 128); one: of a row there may be one for all of K."""
    n, groups = weight.shape[0], weight.shape[1] // 128
    check_tensor(name, x, dtypes)
    needed = f"({n}, {groups}): one for each row and each 128 along K" + (f", or ({n}, 1)" if one else "")
    require(x.shape == (n, groups) or (one and x.shape == (n, 1)), name, f"shape {tuple(x.shape)}", needed)
    require(x.device == weight.device, name, f"device {x.device}", f"{weight.device}, where the weight is")
    return x.expand(n, groups)


NARROW = (torch.uint8, torch.int8, torch.float8_e4m3fn)  # of packed weights; uint8 is of elements of 4 bits


def check_quantized(weight: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
    """A weight (N, K) of 4-bit elements in uint8, of int8 or of e4m3, its scales and its zero points; the scales of all
    groups."""
    check_tensor("weight", weight, NARROW)
    n, k = weight.shape
    require(n % 64 == 0, "weight", f"N = {n}", "a multiple of 64: whole blocks")
    require(k % 128 == 0, "weight", f"K = {k}", "a multiple of 128: whole groups")
    four = weight.dtype == torch.uint8
    largest = int(weight.max()) if four else 0
    require(largest < 16, "weight", f"a value of {largest}", "0 to 15: elements of 4 bits")
    if weight.dtype == torch.float8_e4m3fn:
        require(int(weight.view(torch.uint8).bitwise_and(127).max()) < 127, "weight", "NaN", "numbers")
    if zeros is not None:
        require(four, "zeros", type(zeros).__name__, f"None: {weight.dtype} has no zero points")
        check_groups("zeros", zeros, weight, (torch.uint8,), False)
        require(int(zeros.max()) < 16, "zeros", f"a value of {int(zeros.max())}", "0 to 15")
    return check_groups("scales", scales, weight, (torch.bfloat16, torch.float16), True)


@dataclass
class PackedGemm(FurtherGemm):
    """A `Gemm` of a weight that the recipe's `pack` has reordered: blocks of 64 rows by groups of 128 along K.

    weight: (BLOCK, GROUP, bytes), one of `NARROW`; scales and zeros: (BLOCK, GROUP, 64).
    """

    names: tuple[str, ...] = ("scales", "zeros")

    def handed(self, further: list[int]) -> tuple:
        return (tuple(further),)

    def check(self, a, b, scales, zeros, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call. The span of no zero points is 0."""
        check_tensor("a", a, self.takes)
        check_tensor("weight", b, NARROW, (3,))
        (_, k), (blocks, groups, size) = a.shape, b.shape
        four = b.dtype == torch.uint8
        require(size == (4096 if four else 8192), "weight", f"{size} bytes of a block", "what `pack` returns")
        require(k == 128 * groups, "a", f"K = {k}", f"{128 * groups}, the K of the packed weight")
        require(four or zeros is None, "zeros", type(zeros).__name__, f"None: {b.dtype} has no zero points")
        check_tensor("scales", scales, (a.dtype,), (3,))
        for name, x, dtype in (("scales", scales, a.dtype), ("zeros", zeros, torch.uint8)):
            if x is not None:
                check_tensor(name, x, (dtype,), (3,))
                require(x.shape == (blocks, groups, 64), name, f"shape {tuple(x.shape)}", f"({blocks}, {groups}, 64)")
        for name, x in (("weight", b), ("scales", scales), ("zeros", zeros)):
            if x is not None:
                require(x.is_contiguous(), name, f"strides {x.stride()}", "contiguous, as `pack` returns it")
                require(x.data_ptr() % 16 == 0, name, f"address {x.data_ptr():#x}", "a multiple of 16 bytes")
                require(x.device == a.device, name, f"device {x.device}", f"{a.device}, where a is")
        if isinstance(out, torch.Tensor) and out.ndim == 2:
            read = {"weight": b, "scales": scales, "zeros": zeros}
            check_apart(out, **{name: as_matrix(x) for name, x in read.items() if x is not None})
        # To the other checks the weight is a matrix (K, N) somewhere in its memory, of which no element is read.
        call = super().check(a, b.view(a.dtype).as_strided((k, 64 * blocks), (1, 8)), out, variant)
        spans = call.spans[0], *map(span_of, (b, scales, zeros)), call.spans[-1]
        return call._replace(operands=(a.dtype, b.dtype), spans=spans)


@dataclass
class FusedGemm(FurtherGemm):
    """A `Gemm` whose kernel applies a function to each element of the product. `needed` says which of `names` it takes,
    each of a shape that torch broadcasts to that of C."""

    names: tuple[str, ...] = ("bias", "residual", "row_scale", "column_scale", "alpha", "beta")
    needed: tuple[str, ...] = ()

    def ordered(self, given: dict[str, Any]) -> list:
        """Operands by their names, in the order of `names`; None of one that is not given."""
        unknown = ", ".join(given.keys() - set(self.names))
        require(not unknown, "operands", unknown, f"some of {', '.join(self.names)}", TypeError)
        return [given.get(name) for name in self.names]

    @classmethod
    def told(cls, needed: Iterable[str]) -> tuple[str, ...]:
        """The operands whose addresses a launch is told, in order: 0 of a bias or residual that is not needed."""
        return tuple(name for name in cls.names if name in ("bias", "residual", *needed))

    def handed(self, further: list[int]) -> tuple:
        return ((*further[:2], *filter(None, further[2:])),)

    def check(self, a, b, *given) -> Call:
        """What is to be known of a legal call. `strides` then has the residual's too, 0 of none."""
        *further, out, variant = given
        call = super().check(a, b, out, variant)
        (m, n, _), (a_span, b_span, out_span) = call.mnk, call.spans
        shapes = {"bias": (n,), "residual": (m, n), "row_scale": (m, 1), "column_scale": (n,)}
        line = 0
        for name, x in zip(self.names, further, strict=True):
            if name not in self.needed:
                needed = f"None: the epilogue takes {' and '.join(self.needed) or 'none'}"
                require(x is None, name, type(x).__name__, needed)
                continue
            shape = shapes.get(name, (1,))
            dtype = call.dtype if name in ("bias", "residual") else torch.float32
            check_tensor(name, x, (dtype,), (len(shape),))
            require(x.shape == shape, name, f"shape {tuple(x.shape)}", f"{shape}")
            require(x.device == a.device, name, f"device {x.device}", f"{a.device}, where a is")
            if name == "residual":
                line = line_stride(name, x, 1, "N")
            else:
                require(x.stride(0) == 1 or len(x) == 1, name, f"stride {x.stride(0)}", "1: adjacent elements")
        spans = a_span, b_span, *map(span_of, further), out_span
        return call._replace(strides=(*call.strides, line), spans=spans)


@dataclass
class GatedGemm(FurtherGemm):
    """A `Gemm` whose kernel applies a function to each element of two products: with b, and with `up` (K, N). `gated`
    says whether it takes that one."""

    names: tuple[str, ...] = ("up",)
    gated: bool = False

    def check(self, a, b, up, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call. `strides` then has that of `up` too, 0 of none."""
        call = super().check(a, b, out, variant)
        a_span, b_span, out_span = call.spans
        if not self.gated:
            require(up is None, "up", type(up).__name__, "None: the epilogue takes none")
            return call._replace(strides=(*call.strides, 0), spans=(a_span, b_span, 0, out_span))
        check_tensor("up", up, (b.dtype,))
        require(up.shape == b.shape, "up", f"shape {tuple(up.shape)}", f"{tuple(b.shape)}, as b has")
        require(up.device == a.device, "up", f"device {up.device}", f"{a.device}, where a is")
        strides = *call.strides, line_stride("up", up, 0, "K", self.whole)
        return call._replace(strides=strides, spans=(a_span, b_span, span_of(up), out_span))


WIDEST = 256  # columns of one wgmma


@dataclass
class ChainedGemm(FurtherGemm):
    """A `Gemm` whose product, rounded, is multiplied by `b2` (N1, N); b then is (K, N1), and C is (M, N)."""

    names: tuple[str, ...] = ("b2",)

    def check(self, a, b, b2, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call. `strides` then has that of `b2` too, and N1."""
        call = super().check(a, b, None, variant)
        (m, middle, k), (lda, ldb, _), (a_span, b_span, _) = call.mnk, call.strides, call.spans
        require(
            middle <= WIDEST, "b", f"N1 = {middle}", f"at most {WIDEST}: a tile has all columns of the first product"
        )
        check_tensor("b2", b2, (b.dtype,))
        require(b2.shape[0] == middle, "b2", f"shape {tuple(b2.shape)}", f"({middle}, N), for b is {tuple(b.shape)}")
        n = b2.shape[1]
        require(n <= LARGEST, "b2", f"N = {n}", f"at most {LARGEST}: kernels count in 32 bits")
        require(b2.device == a.device, "b2", f"device {b2.device}", f"{a.device}, where a is")
        along = line_stride("b2", b2, 0, "N1", self.whole)
        if out is not None:
            check_tensor("out", out, (call.dtype,))
            check_apart(out, b=b, b2=b2)
            check_out(out, a, b2, call.dtype)
        ldc, vec, direct, c_span = self.rows_of(a, n, call.dtype, out)
        spans, strides = (a_span, b_span, span_of(b2), c_span), (lda, ldb, ldc, along, middle)
        return call._replace(mnk=(m, n, k), strides=strides, spans=spans, vec=vec, direct=direct)


@dataclass
class GroupedGemm(FurtherGemm):
    """A `Gemm` of groups: the rows of A from one of `offs` to the next one have a B of their own.

    a (M, K), b (GROUPS, K, N), offs (GROUPS,).
    """

    names: tuple[str, ...] = ("offs",)
    empty: ClassVar[bool] = True

    def check(self, a, b, offs: torch.Tensor, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call. Its strides end with the elements between groups, and their number."""
        check_tensor("b", b, self.takes, (3,))
        groups, _, n = b.shape
        require(n % 8 == 0, "b", f"N = {n}", "a multiple of 8: whole 16-byte pieces of the rows of C")
        call = super().check(a, b[0], out, variant)
        require(call.direct, "out", "rows that do not begin at multiples of 16 bytes", "rows that TMA can write")
        check_tensor("offs", offs, (torch.int32,), (1,))
        require(offs.shape == (groups,), "offs", f"shape {tuple(offs.shape)}", f"({groups},): an end for each group")
        require(offs.stride(0) == 1 or groups == 1, "offs", f"stride {offs.stride(0)}", "1")
        require(offs.device == a.device, "offs", f"device {offs.device}", f"{a.device}, where a is")
        apart, piece = b.stride(0) if groups > 1 else call.strides[1] * n, 16 // b.element_size()
        needed = f"groups a multiple of 16 bytes apart (a multiple of {piece} elements), at least 0"
        require(apart >= 0 and apart % piece == 0, "b", f"groups {apart} elements apart", needed)
        a_span, _, c_span = call.spans
        spans = a_span, span_of(b), span_of(offs), c_span
        return call._replace(strides=(*call.strides, apart, groups), spans=spans)


@dataclass
class GroupedScaledGemm(GroupedGemm):
    """A `GroupedGemm` of operands of which each row of A has a scale factor, scale_a (M,), and each column of each
    group's B, scale_b (GROUPS, N)."""

    names: tuple[str, ...] = ("scale_a", "scale_b", "offs")

    def handed(self, further: list[int]) -> tuple:
        return (tuple(further),)

    def check(self, a, b, scale_a, scale_b, offs: torch.Tensor, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call. Its strides end with the factors between groups."""
        call = super().check(a, b, offs, out, variant)
        (m, n, _), (*_, groups) = call.mnk, call.strides
        for name, scale, shape in (("scale_a", scale_a, (m,)), ("scale_b", scale_b, (groups, n))):
            check_tensor(name, scale, (torch.float32,), (len(shape),), empty=0 in shape)
            require(scale.shape == shape, name, f"shape {tuple(scale.shape)}", f"{shape}")
            adjacent = scale.stride(-1) == 1 or shape[-1] == 1
            require(adjacent, name, f"stride {scale.stride(-1)}", "1: adjacent elements")
            require(scale.device == a.device, name, f"device {scale.device}", f"{a.device}, where a is")
        a_span, b_span, *others = call.spans
        spans = a_span, b_span, span_of(scale_a), span_of(scale_b), *others
        return call._replace(strides=(*call.strides, scale_b.stride(0)), spans=spans)


@dataclass
class GroupedKGemm(FurtherGemm):
    """A `Gemm` of groups along K: each of them, from one of `offs` to the next one, has a product of its own.

    a (M, K), b (K, N), offs (GROUPS,), C (GROUPS, M, N).
    """

    names: tuple[str, ...] = ("offs",)
    empty: ClassVar[bool] = True

    def shape_of(self, call: Call) -> tuple[int, ...]:
        return call.strides[4], *call.mnk[:2]

    def check(self, a, b, offs: torch.Tensor, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call. Its strides end with the elements between groups, and their number."""
        check_tensor("offs", offs, (torch.int32,), (1,))
        groups = offs.shape[0]
        require(offs.stride(0) == 1 or groups == 1, "offs", f"stride {offs.stride(0)}", "1")
        if out is not None:
            check_tensor("out", out, None, (3,), empty=True)
            require(len(out) == groups, "out", f"{len(out)} group(s)", f"{groups}: one for each of offs")
        call = super().check(a, b, None if out is None else out[0], variant)
        require(offs.device == a.device, "offs", f"device {offs.device}", f"{a.device}, where a is")
        require(call.direct, "out", "rows that do not begin at multiples of 16 bytes", "rows that TMA can write")
        (m, n, _), (a_span, b_span, _) = call.mnk, call.spans
        size = (m - 1) * call.strides[2] + n
        apart = out.stride(0) if out is not None and groups > 1 else m * call.strides[2]
        needed = f"a multiple of 8, at least {size}: groups that do not overlap"
        require(apart >= size and apart % 8 == 0, "out", f"groups {apart} elements apart", needed)
        spans = a_span, b_span, span_of(offs), ((groups - 1) * apart + size) * a.element_size()
        return call._replace(strides=(*call.strides, apart, groups), spans=spans)


def block_strides(
    name: str, scale: torch.Tensor, needed: tuple, padded: tuple, device: torch.device
) -> tuple[int, int]:
    """The strides, in elements, of a matrix of scale factors of shape `needed`, or `padded`."""
    check_tensor(name, scale, (torch.float32,))
    shapes = " or ".join(map(str, dict.fromkeys((needed, padded))))
    require(scale.shape in (needed, padded), name, f"shape {tuple(scale.shape)}", shapes)
    require(scale.device == device, name, f"device {scale.device}", f"{device}, where a is")
    lines = any(stride == 1 or extent == 1 for stride, extent in zip(scale.stride(), scale.shape, strict=True))
    require(lines, name, f"strides {scale.stride()}", "one of them 1: lines of adjacent elements")
    span = span_of(scale) // 4
    needed_span = f"at most {LARGEST}: kernels count in 32 bits"
    require(span <= LARGEST, name, f"{span} elements from first to last", needed_span)
    return scale.stride(0), scale.stride(1)


class BlockwiseGemm(RowScaledGemm):
    """A `Gemm` of operands that have a scale factor for each 1 x 128 elements of A and each 128 x 128 of B."""

    def check(self, a, b, scale_a, scale_b, out: torch.Tensor | None, variant: str) -> Call:
        """What is to be known of a legal call."""
        call = Gemm.check(self, a, b, out, variant)
        (m, n, k), (a_span, b_span, out_span) = call.mnk, call.spans
        down, across = -(-k // 128), -(-n // 128)
        whole = -(-down // 4) * 4  # torch.nn.functional.scaled_mm rounds up: each line begins at 16 bytes
        of_a = block_strides("scale_a", scale_a, (m, down), (m, down), a.device)
        of_b = block_strides("scale_b", scale_b, (down, across), (whole, across), a.device)
        spans = a_span, b_span, span_of(scale_a), span_of(scale_b), out_span
        return call._replace(strides=(*call.strides, *of_a, *of_b), spans=spans)


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

    def plan(self, key: tuple, *given) -> tuple[Call, Callable[..., None], tuple]:
        """As `Gemm.plan`; the launch makes the sums."""
        call, launch, (floats, count, *arguments) = super().plan(key, *given)
        device = given[0].device

        def shared(pa: int, pb: int, pc: int, *others) -> None:
            sums = torch.empty(floats, dtype=torch.float32, device=device)
            flags = flags_of(device, others[-1], count)
            launch(pa, pb, pc, sums.data_ptr(), flags.data_ptr(), *others)

        plan = call, shared, tuple(arguments)
        if key in self.plans:
            self.plans[key] = plan
        return plan
