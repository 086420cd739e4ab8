"""The host side of a GEMM: operands are checked, a plan is kept for each kind of call, a kernel is compiled once.

The checks take longer than a GPU takes for a small product. But a program calls `matmul` with the same few kinds of
operands again and again, and their kind (shapes, strides, dtypes, devices, alignment) decides whether a call is legal
and which kernel serves it. `cookbook copy` writes what a recipe uses of this text into the copied file.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType
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
TYPES_OF_C = {**DTYPES, torch.int32: cutlass.Int32}  # CuTe's type of those of C, by torch's
LARGEST = 2**31 - 2**12  # of M, N, K: Int32 in a kernel, where the last tile, and a cluster's, may stick out
MAX_PLANS = 4096  # more kinds of calls than a program has, unless its shapes never repeat
# CuTe compiles with state of the whole process: two threads at it abort. One lock, which all copies of this file share:
# they know nothing of each other, so it lies in a module that whoever comes first makes.
SHARED = sys.modules.setdefault("one_cute_compile_at_a_time", ModuleType("one_cute_compile_at_a_time"))
COMPILING = vars(SHARED).setdefault("lock", threading.RLock())


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
    """Describe lines of adjacent elements in bytes: start, from line to line, length of a line, end; no matrix: one."""
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
    """Return what the checks look at in an argument, but for where exactly it lies."""
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


class Call(NamedTuple):
    """Findings of the checks about calls of one kind. A recipe chooses by them what to launch."""

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
    operands: tuple[Any, ...] = MATRICES  # all that `matmul` takes, in its order; of a FurtherGemm more than two
    plans: dict[tuple, tuple] = field(default_factory=dict)  # by the kind of call
    kernels: dict[tuple, Callable[..., None]] = field(default_factory=dict)
    launch: ClassVar[Callable[..., None]]  # of a FurtherGemm

    def matmul(self, a: Any, b: Any, *others: Any, out: Any = None, variant: str = "") -> torch.Tensor:
        """The product of the operands; what is legal, and what is raised of the rest, the recipe's `matmul` says."""
        which = variant if type(variant) in (str, self.family) else kind(variant)
        key = kind(a), kind(b), others and tuple(map(kind, others)), kind(out), torch.is_grad_enabled(), which
        call, kernel, arguments = self.plans.get(key) or self.plan(key, (a, b, *others), out, variant)
        if torch.cuda.current_device() != call.device:
            with torch.cuda.device(call.device):
                return self.matmul(a, b, *others, out=out, variant=variant)
        if (c := out) is None:
            c = a.new_empty(*call.shape) if call.dtype is a.dtype else a.new_empty(*call.shape, dtype=call.dtype)
        pa, pb, pc, spans = a.data_ptr(), b.data_ptr(), c.data_ptr(), call.spans
        if (pa < pc + spans[-1] and pc < pa + spans[0]) or (pb < pc + spans[-1] and pc < pb + spans[1]):
            check_apart(c, a=a, b=b)  # from first to last byte they meet, but may be columns of one wider matrix
        stream = torch._C._cuda_getCurrentRawStream(call.device)  # its number, for which torch makes no Stream object
        made = c if call.direct else c.new_empty(call.mnk[0], call.strides[-1])  # TMA fills a row's last 16 bytes
        if others:
            self.launch(kernel, call, (a, b, *others), c, made, (*arguments, stream))
        else:
            kernel(pa, pb, made.data_ptr(), *arguments, stream)
        if call.direct and out is not None:
            increment_version(c)  # tell autograd that it was overwritten
        return c if call.direct else c.copy_(made[:, : call.mnk[1]])

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
        """Return what is to be known of a legal call."""
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
