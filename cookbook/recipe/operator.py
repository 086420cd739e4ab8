"""A GEMM as an operator of PyTorch: what torch.compile, torch.export, autograd, autocast and vmap have to know of it.

`define` gives an operator its schema, kernels, fake, backward, autocast and batching rule; `register` does it for a
product. `fitted` copies the operands that a recipe cannot read as they lie. `cookbook copy --torch-op` writes what it
uses of this text into the copied file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from cookbook.recipe.entry import Gemm, either_major, require

LIBRARIES: list[torch.library.Library] = []  # an operator is gone when its Library is


class Fit(NamedTuple):
    """A GEMM's view of an operand: how it is read."""

    major: str  # "k", or "m" of A and "n" of B
    why: str  # it has to be copied for; "": it is read where it lies
    k: int  # elements along K; in a copy more than there were, the rest zeros


def fit(gemm: Gemm, a: Any, b: Any) -> tuple[Fit, Fit]:
    """Return how `gemm` reads a (M, K) and b (K, N): tensors, or what has a shape, `stride`, `element_size` and
    `data_ptr`."""
    k = a.shape[1]
    fits = _fit(gemm, "a", a, 1), _fit(gemm, "b", b, 0)
    whole = -(-k // 8) * 8
    if not gemm.whole or k == whole or "k" not in (fits[0].major, fits[1].major):
        return fits
    filled = Fit("k", f"K = {k}, filled up with zeros to {whole}", whole)
    return filled, filled


def _fit(gemm: Gemm, name: str, x: Any, k_mode: int) -> Fit:
    try:
        return Fit(gemm.major_of(name, x, k_mode, gemm.whole)[0], "", x.shape[k_mode])
    except ValueError as error:
        why = str(error).partition(": got ")[2].partition("; needed")[0]
    # A copy keeps the major where it can: to turn a matrix around costs more than to move it.
    as_it_lies = gemm.major_of is either_major and not gemm.whole and x.stride(1 - k_mode) == 1 != x.stride(k_mode)
    return Fit(("m" if name == "a" else "n") if as_it_lies else "k", why, x.shape[k_mode])


def fitted(gemm: Gemm, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a (M, K) and b (K, N), or copies of them that `gemm` can read: lines 16-byte aligned, whole pieces along K."""
    for_a, for_b = fit(gemm, a, b)
    return copied(a, for_a) if for_a.why else a, copied(b.T, for_b).T if for_b.why else b


def copied(x: torch.Tensor, needed: Fit) -> torch.Tensor:
    """A copy of x (rows, K) with lines of the `needed` major, each beginning at a multiple of 16 bytes."""
    if needed.major != "k":
        lines = x.new_empty(x.shape[1], -(-x.shape[0] // 8) * 8)
        return lines[:, : x.shape[0]].T.copy_(x)
    lines = x.new_empty(x.shape[0], -(-x.shape[1] // 8) * 8)
    lines[:, : x.shape[1]].copy_(x)
    lines[:, x.shape[1] : needed.k].zero_()
    return lines[:, : needed.k]


def product_of(gemm: Gemm, matmul: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A recipe's `matmul`, whose host side is `gemm`, for operands that lie anyhow: what `register` takes."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        check_matrices(a, b)
        require(a.is_cuda, "a", f"device {a.device}", "a CUDA device")
        if 0 in (*a.shape, *b.shape):
            return a.new_zeros(a.shape[0], b.shape[1])
        return matmul(*fitted(gemm, a.detach(), b.detach()))  # the operator's backward is elsewhere

    return product


def check_matrices(a: torch.Tensor, b: torch.Tensor) -> None:
    """Check what a fake tensor can say of any product: two matrices of a dtype, on a device, with K in common."""
    for name, x in (("a", a), ("b", b)):
        check_dense(name, x)
        known = x.dtype in (torch.float16, torch.bfloat16)
        require(known, name, x.dtype, "torch.float16 or torch.bfloat16", TypeError)
        require(x.ndim == 2, name, f"{x.ndim} dimension(s)", "2")
    require(a.dtype == b.dtype, "b", b.dtype, f"{a.dtype}, the dtype of a", TypeError)
    require(a.device == b.device, "b", f"device {b.device}", f"{a.device}, where a is")
    torch._check_value(
        a.shape[1] == b.shape[0],
        lambda: f"b: got shape {tuple(b.shape)}; needed ({a.shape[1]}, N), for a is {tuple(a.shape)}",
    )


def check_dense(name: str, x: Any) -> None:
    """A tensor that has strides."""
    require(isinstance(x, torch.Tensor), name, type(x).__name__, "a torch.Tensor", TypeError)
    require(x.layout == torch.strided, name, f"layout {x.layout}", "torch.strided: a dense matrix", TypeError)


def check_bias(b: torch.Tensor, bias: Any) -> None:
    """Check a bias that is added to the rows of a product with `b` (K, N)."""
    check_dense("bias", bias)
    require(bias.ndim == 1, "bias", f"{bias.ndim} dimension(s)", "1: (N,)")
    require(bias.dtype == b.dtype, "bias", bias.dtype, f"{b.dtype}, the dtype of b", TypeError)
    require(bias.device == b.device, "bias", f"device {bias.device}", f"{b.device}, where b is")
    torch._check_value(bias.shape[0] == b.shape[1], lambda: f"bias: got shape {tuple(bias.shape)}; needed (N,)")


def fake_product(a: torch.Tensor, b: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
    """Return what a product looks like: rows of adjacent elements."""
    check_matrices(a, b)
    for each in bias:
        check_bias(b, each)
    return a.new_empty(a.shape[0], b.shape[1])


def flops_of_product(a: tuple[int, int], b: tuple[int, int], *bias: tuple[int], out_shape: Any = None) -> int:
    """Multiplications and additions of a product, as of torch.mm, of the shapes of its operands."""
    return 2 * a[0] * a[1] * b[1]


def is_transposed(x: torch.Tensor) -> bool:
    """Return whether a matrix is the transpose of one of adjacent elements in rows."""
    return x.stride(0) == 1 and x.stride(1) != 1


def register(name: str, product: Callable[..., torch.Tensor], plain: Any = None) -> Any:
    """Define the operator `name` ("mylib::matmul") and return it: a (M, K) times b (K, N), float16 or bfloat16.

    product: computes it, for CUDA tensors that lie anyhow.
    plain: an operator without a bias, by which gradients are computed of this one, which then adds a bias (N).

    Raises what `define` raises.
    """
    operands = ("a", "b", "bias") if plain else ("a", "b")
    return define(
        name, operands, product, fake_product, lambda operator: (keep, backward_by(plain or operator)), flops_of_product
    )


def define(
    name: str,
    operands: tuple[str, ...],
    product: Callable[..., torch.Tensor],
    fake: Callable[..., torch.Tensor],
    gradients: Callable[[Any], tuple[Callable, Callable]],
    flops: Callable[..., int],
) -> Any:
    """Define the operator `name` ("mylib::matmul") of tensors and return it.

    product: computes it, for CUDA tensors. fake: what comes out, of fake tensors.
    gradients: of the operator, what keeps its operands for the backward, and the backward.
    flops: of the operands' shapes, what FlopCounterMode counts.

    Beneath it lies a twin, "mylib::_matmul", without gradients, autocast and vmap: what is left once a compiler has
    traced these. A compiled graph calls it, and PyTorch's dispatcher goes through Python for the product alone.

    Raises ValueError for a name without a library, or one that is taken.
    """
    library, _, op = name.partition("::")
    require(library.isidentifier() and op.isidentifier(), "name", repr(name), "LIBRARY::OPERATOR, as mylib::matmul")
    taken = hasattr(getattr(torch.ops, library), op)
    require(not taken, "name", repr(name), "the name of no operator that there is")
    made = torch.library.Library(library, "FRAGMENT")
    LIBRARIES.append(made)
    schema = f"({', '.join(f'Tensor {each}' for each in operands)}) -> Tensor"
    for each in (op, f"_{op}"):
        made.define(each + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CUDA", "CPU"):  # on the CPU `product` says what is needed
            made.impl(each, product, key)
        torch.library.register_fake(f"{library}::{each}", fake, lib=made)
        register_flop_formula(getattr(getattr(torch.ops, library), each))(flops)
    operator, beneath = (getattr(getattr(torch.ops, library), each).default for each in (op, f"_{op}"))
    tracked = tracking(beneath, *gradients(operator))

    def differentiable(*given: torch.Tensor) -> torch.Tensor:
        if forward_ad._current_level >= 0:
            check_no_duals(operands, given)
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in given)
        return tracked.apply(*given) if wanted else beneath(*given)  # pyright: ignore[reportReturnType]

    made.impl(op, differentiable, "Autograd")
    made.impl(op, autocasting(operator), "AutocastCUDA")
    torch.library.register_vmap(name, batching(operator, operands), lib=made)
    return operator


def check_no_duals(operands: tuple[str, ...], given: tuple[torch.Tensor, ...]) -> None:
    """An operator without a rule for tangents would lose them without a word."""
    for name, x in zip(operands, given, strict=True):
        dual = forward_ad.unpack_dual(x).tangent is not None
        require(not dual, name, "a dual tensor", "gradients backward: there is no forward mode")


def tracking(product: Callable[..., torch.Tensor], keep: Callable, backward: Callable) -> type[torch.autograd.Function]:
    """A product that autograd differentiates by `backward`, of what `keep` has kept."""

    def forward(ctx: Any, *operands: torch.Tensor) -> torch.Tensor:
        # Not setup_context, for which PyTorch looks at this function's signature at each call: 40 us.
        keep(ctx, operands)
        return product(*operands)

    return type(
        "Tracked", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


def keep(ctx: Any, operands: tuple) -> None:
    """Keep the operands that the backward of a product needs: for each gradient the other one."""
    (a, b, *_), (of_a, of_b, *_) = operands, ctx.needs_input_grad
    ctx.save_for_backward(a if of_b else None, b if of_a else None)  # a frozen weight keeps no activations alive
    ctx.transposed = is_transposed(a), is_transposed(b)


def backward_by(product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., tuple]:
    """The backward of a @ b: two more products; of a bias the sum of the gradient's rows."""

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, b), (a_columns, b_columns) = ctx.saved_tensors, ctx.transposed
        of_a = of_b = None
        # A gradient is laid out like its operand, as torch.mm's is: autograd adds it to `.grad` without a copy.
        if b is not None:
            of_a = product(b, grad.T).T if a_columns else product(grad, b.T)
        if a is not None:
            of_b = product(grad.T, a).T if b_columns else product(a.T, grad)
        return of_a, of_b, *(grad.sum(0) if needed else None for needed in ctx.needs_input_grad[2:])

    return backward


def autocasting(operator: Any) -> Callable:
    """The operator under torch.autocast: operands of the dtype that it is set to."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def cast(*operands: torch.Tensor) -> torch.Tensor:
        dtype = torch.get_autocast_dtype("cuda")
        operands = tuple(x.to(dtype) if x.dtype.is_floating_point else x for x in operands)
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return operator(*operands)

    return cast


def batching(operator: Any, operands: tuple[str, ...]) -> Callable:
    """The operator under torch.vmap: a batch of the first operand is a matrix of more rows."""

    def batched(info: Any, in_dims: tuple, a: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, int]:
        for name, batch in zip(operands[1:], in_dims[1:], strict=True):
            require(batch is None, name, "a batch under vmap", f"one {name} for all: torch.bmm multiplies batches")
        a = a.movedim(in_dims[0], 0)
        return operator(a.flatten(0, 1), *others).unflatten(0, a.shape[:2]), 0

    return batched
