"""The script of a copied GEMM: it tries itself. `cookbook copy` writes this into the file."""

from collections.abc import Callable

import torch


def try_out(matmul: Callable[..., torch.Tensor], dtype: torch.dtype, timed: tuple[int, int, int]) -> None:
    """Compare `matmul` with torch's on ragged shapes and print one line with both times; with no GPU say so."""
    if not torch.cuda.is_available():
        print(f"no GPU here: nothing was run; cookbook check {__file__} needs none")
        return

    def operands(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (torch.randn(rows, k, device="cuda", dtype=dtype) for rows in (m, n))
        return a, b.T

    worst = 0.0
    for shape in ((1, 8, 8), (65, 136, 72), (127, 1032, 200), (200, 336, 4096)):
        a, b = operands(*shape)
        wanted = a.double() @ b.double()
        worst = max(worst, ((matmul(a, b).double() - wanted).abs().max() / wanted.abs().max()).item())
    if not worst < 2**-7:  # C is rounded to 8 bits or more
        raise AssertionError(f"matmul: got a relative error of {worst:.1e}; needed less than {2**-7:.1e}")
    a, b = operands(*timed)
    times: dict[Callable, list[float]] = {matmul: [], torch.matmul: []}
    for _ in range(25):  # interleaved; the first five warm up
        for product, taken in times.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            product(a, b)
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end))
    ours, torchs = (1000 * sorted(taken[5:])[10] for taken in times.values())
    size = " x ".join(map(str, timed))
    print(f"relative error {worst:.1e} on ragged shapes; {size}: {ours:.1f} us, torch.matmul {torchs:.1f} us")
