# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: Hello, kernel
#     claim: Python runs a CuTe-DSL kernel once, to write a program down; the GPU runs that program.
#     kind: study
#     track: primer
#     order: 10
#     targets: [sm_80, sm_90a, sm_100a]
#     runs_on: sm_80+
#     path: global -> registers -> global
#     instructions: [LDG, FADD, STG]
#     sources:
#       - title: "NVIDIA, CuTe DSL: how code is generated"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/pythonDSL/cute_dsl_general/dsl_code_generation.html
#       - title: "NVIDIA, CuTe DSL: control flow"
#         url: https://docs.nvidia.com/cutlass/latest/media/docs/pythonDSL/cute_dsl_general/dsl_control_flow.html
#       - title: "CUTLASS issue 3213, an `if` that is traced both ways"
#         url: https://github.com/NVIDIA/cutlass/issues/3213
# ---

# %% [markdown]
# # Hello, kernel
#
# **Claim.** A CuTe-DSL kernel is a Python function that Python runs once for each version that is compiled, and not
# once for each thread. That run writes a program down, operation by operation: it is called
# [tracing](../../docs/glossary.md#trace). The compiler makes a [cubin](../../docs/glossary.md#cubin) of what was
# written down, and the GPU runs that.

# %% tags=["lab"]
from cookbook import draw

draw.flow(
    [
        draw.Stop("trace", "Python runs your function; print prints; range_constexpr unrolls", "Python"),
        draw.Stop("compile", "MLIR, PTX, then a cubin for one architecture", "compiler"),
        draw.Stop("launch", "every thread runs the program; cute.printf prints", "GPU"),
    ],
    ["operations on values that are not known yet", "machine code: keep it, and launch it many times"],
    "What runs when",
)

# %%
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor

TRACED = []  # what `add_one` says while it is traced

# %% [markdown]
# ## A vector add
#
# Three functions. `add_one` is what one thread does. `add_kernel` is the [kernel](../../docs/glossary.md#kernel): it
# asks which thread it is, as CUDA C++ does with `threadIdx`. `add` is host code: it chooses the grid and launches.
# [`@cute.jit`](../../docs/glossary.md#jit) marks what is traced, on the host or inside a kernel; `@cute.kernel` marks
# what is launched. A *CTA* ([cooperative thread array](../../docs/glossary.md#cta)) is CUDA's thread block.
#
# A fourth function compiles them. To be traced, `add` needs vectors, but of a vector only its dtype and shape:
# `make_fake_compact_tensor` makes one that has no memory, and `sym_int32()` leaves its length open.


# %%
@cute.jit
def add_one(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, i: cutlass.Int32):
    """c[i] = a[i] + b[i], by one thread; nothing if there is no element i."""
    TRACED.append(f"i is {i}, a {type(i).__name__}; mC is {mC}")  # Python's: it happens while tracing
    if i < cute.size(mC):
        mC[i] = mA[i] + mB[i]


@cute.kernel
def add_kernel(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor):
    """One thread for each element."""
    (thread, _, _), (block, _, _) = cute.arch.thread_idx(), cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    add_one(mA, mB, mC, block * threads + thread)


@cute.jit
def add(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, threads: cutlass.Constexpr = 256):
    """One CTA for each `threads` elements."""
    blocks = cute.ceil_div(cute.size(mC), threads)
    add_kernel(mA, mB, mC).launch(grid=(blocks, 1, 1), block=(threads, 1, 1))


def compile_for(arch: str, options: str = ""):
    """The launch, compiled for `arch` ("sm_90a") and vectors of any length; no GPU is needed."""
    vector = make_fake_compact_tensor(cutlass.Float32, (cute.sym_int32(),))  # no memory
    return cute.compile(add, vector, vector, vector, options=f"--gpu-arch {arch} {options}".strip())


# %% tags=["lab", "open"]
compiled = compile_for("sm_90a")
print(*TRACED, sep="\n")

# %% [markdown]
# The kernel was compiled for Hopper, and nothing was launched. The list has *one* line, written at trace time. `i` is
# an `Int32` whose value prints as `?`: it stands for whatever each thread will find. The length of the vectors prints
# as `?` too.
#
# ## The same body on the CPU
#
# A jit function that launches nothing is host code, and runs without a GPU. So here is a loop in place of a grid. It
# takes eight "threads", two CTAs of four, for five elements. `from_dlpack` makes a CuTe tensor of a torch tensor: the
# same memory. The guard in `add_one` must keep three of them away.

# %% tags=["lab"]
threads = [[4 * block + thread for thread in range(4)] for block in range(2)]
outside = [(1, 1), (1, 2), (1, 3)]
draw.number_grid(threads, "i by CTA (rows) and thread (columns)", mark=outside, note="framed: there is no such element")


# %%
@cute.jit
def for_each_thread(body: cutlass.Constexpr, threads: cutlass.Int32, *tensors):
    """Call body(*tensors, i) for every i below `threads`, one after the other, on the CPU."""
    for i in cutlass.range(threads):
        body(*tensors, i)


def any_length(x: torch.Tensor):
    """The tensor for CuTe, its length a run-time value, and not a part of the program."""
    return from_dlpack(x).mark_layout_dynamic()


# %% tags=["lab", "open"]
x, y = torch.arange(5.0), torch.full((8,), -1.0)  # y is longer than x: -1 must stay there
for_each_thread(add_one, 8, any_length(x), any_length(x), any_length(y[:5]))
print(y.tolist(), len(TRACED))

# %% [markdown]
# Five are doubled, three untouched. Eight rounds of the loop wrote one more line into `TRACED`.
#
# ## Two kinds of values
#
# | | [compile-time (`Constexpr`)](../../docs/glossary.md#constexpr) | run-time |
# |---|---|---|
# | what it is | any Python object: a number, a tuple, a function, a dtype | `Int32`, `Float32`, `Boolean`, a pointer |
# | known | while tracing: `print` shows it | when the program runs: `print` shows `?`, `cute.printf` the value |
# | `if` | Python decides; write `cutlass.const_expr(...)` to say so | both branches are traced |
# | loop | `cutlass.range_constexpr(n)`: the body is traced n times | `cutlass.range(n)`: the body is traced once |
# | a new value | another program: it is compiled again | the same program |
#
# Both ranges also take start, stop and step, as Python's. A `for` over a plain `range` is `cutlass.range`, even with
# numbers that are known; a list comprehension and a `for` over a tuple are plain Python. `x if n > 3 else y` works for
# run-time values of one type. The text of a function must lie in a file or a notebook's cell: CuTe reads it again.
# Watch both loops:


# %%
@cute.jit
def both_kinds(mX: cute.Tensor, n: cutlass.Int32, rounds: cutlass.Constexpr):
    """A loop that is unrolled, and one that is not."""
    for j in cutlass.range_constexpr(rounds):
        print(f"trace: unrolled round {j}")
    for i in cutlass.range(n):
        print(f"trace: round {i} of a loop of {n}")
        cute.printf("run: i = %d", i)


# %% tags=["lab", "open"]
vector = any_length(torch.ones(4))
program = cute.compile(both_kinds, vector, cutlass.Int32(9), 2)

# %% [markdown]
# And now the run. `rounds` (2) is compiled in, so the call does not pass it. `n` is still an argument: 9 at compile
# time, 3 now.

# %% tags=["lab", "open"]
status = program(vector, cutlass.Int32(3))

# %% [markdown]
# ## What one cannot do
#
# Where a value is not known, Python's flow cannot follow it. `n` and `mX[i]` are run-time values:
#
# | attempt | what CuTe says | instead |
# |---|---|---|
# | `if n > 3: return`, or `break` | `UNSUP_EARLY_EXIT` | the rest under the opposite `if` |
# | `if n > 3: v = 1.0`, and then `v` | `NameError`: name 'v' is not defined | `v` gets a value before the `if` |
# | `v = 0`, and in a loop `v = v + mX[i]` | `TYPE_UNSTABLE_JOIN` | `v = cutlass.Float32(0)` |
# | `cutlass.range_constexpr(n)` | `ARG_NON_CONSTANT` | `cutlass.range(n)`, or `n` a `Constexpr` |
# | `(1.0, 2.0)[n]` | `PHASE_DYNAMIC_INDEX` | a tensor in registers: [the third page](who_holds_what.ipynb) |
# | an `if n > 3` in a function with no decorator | `PHASE_DYNAMIC_TO_STATIC_BOOL` | `@cute.jit` for that function too |
#
# Where there is a GPU, the kernel itself runs, and is compared with `torch`:


# %% tags=["lab", "open"]
if torch.cuda.is_available():
    a, b, c = torch.randn(3, 1_000_003, device="cuda")
    add(*map(any_length, (a, b, c)))
    torch.cuda.synchronize()
    print("equal to torch:", torch.equal(c, a + b))

# %% [markdown]
# ## Exercises
#
# Write the three bodies, run their cell, then the last cell. Or work in a file: `cookbook copy primer/hello_kernel
# hello.py` writes it, `cookbook exercise hello.py` checks it.


# %%
@cute.jit
def scale_one(mX: cute.Tensor, mY: cute.Tensor, i: cutlass.Int32):
    """Exercise 1: y[i] = 2 x[i], by thread i. There may be more threads than elements of mY."""
    raise NotImplementedError


@cute.jit
def square_strided(mX: cute.Tensor, mY: cute.Tensor, threads: cutlass.Int32, thread: cutlass.Int32):
    """Exercise 2: y = x * x by few threads. This one takes elements thread, thread + threads, ..."""
    raise NotImplementedError


@cute.jit
def find_largest(mX: cute.Tensor, mY: cute.Tensor, i: cutlass.Int32):
    """Exercise 3: y[0] is the largest element of mX, found by one thread. Its length is a run-time value."""
    raise NotImplementedError


# %% tags=["folded"]
def after(body, threads: int, x: list[float], length: int, *more) -> list[float]:
    """y after threads 0, 1, ... ran body(x, y, *more, i): `length` elements that began as -1, and three behind them."""
    given, y = torch.tensor(x), torch.full((length + 3,), -1.0)
    for_each_thread(body, threads, any_length(given), any_length(y[:length]), *more)
    return y.tolist()


X, REST, TINY = [3.0, -5.0, 4.0, 1.0, 2.0, 6.0], [-1.0] * 3, -(2.0**127)
EXERCISES = {
    "scale_one": lambda f: [
        (
            f"y of {n} and 3 elements behind it, {t} threads",
            after(f, t, X, n),
            [2 * v for v in X[: min(n, t)]] + [-1.0] * m,
        )
        for t, n, m in ((8, 6, 3), (8, 4, 3), (2, 6, 7))
    ],
    "square_strided": lambda f: [
        (
            f"y by threads 0 to {ran - 1} of {t}",
            after(f, ran, X, 6, cutlass.Int32(t)),
            [v * v if i % t < ran else -1.0 for i, v in enumerate(X)] + REST,
        )
        for ran, t in ((4, 4), (1, 4), (2, 3), (8, 8))
    ],
    "find_largest": lambda f: [
        (f"y of {x}", after(f, 1, x, 1), [max(x), *REST])
        for x in (X, [-2.0, -1.0], [-7.0], [9.0, 1.0, 2.0], [1.0, 9.0, 2.0, 5.0], [1.5 * TINY, TINY])
    ],
}


def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    before = len(TRACED)
    doubled = after(lambda mX, mY, i: add_one(mX, mX, mY, i), 8, X, 6)
    return [
        ("the_guard_keeps_threads_out", doubled == [2 * v for v in X] + REST, f"6 elements by 8 threads: {doubled}"),
        ("a_loop_is_traced_once", len(TRACED) == before + 1, f"8 rounds, traced {len(TRACED) - before} times"),
    ]


# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("primer/hello_kernel")

# %% [markdown]
# Next: [layouts](layouts.ipynb).
