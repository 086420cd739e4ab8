# ---
# jupyter:
#   jupytext: {text_representation: {extension: .py, format_name: percent}}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
#   cookbook:
#     title: GPC-aware cluster remapping
#     claim: >-
#       Simultaneous requests for one line by the SMs of a GPC reach L2 once, so a GPC's clusters should share rows of A
#       or columns of B.
#     kind: study
#     track: foundations
#     order: 85
#     aside: What a GPU can do
#     builds_on: foundations/thread_block_swizzle
#     targets: [sm_90a]
#     runs_on: sm_90
#     path: "%smid -> global"
#     instructions:
#       sm_90a: [CS2R, STG.E]
#     sources:
#       - title: "Nsight Compute, the memory chart and its units"
#         url: "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#memory-chart"
#       - title: "PTX ISA, special registers: %smid"
#         url: "https://docs.nvidia.com/cuda/parallel-thread-execution/#special-registers-smid"
#       - title: "CUDA C++ Programming Guide, thread block clusters"
#         url: "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#thread-block-clusters"
# ---

# %% [markdown]
# # GPC-aware cluster remapping
#
# **Claim.** Simultaneous requests for one line by the [SMs](../../docs/glossary.md#sm) of a GPC reach L2 once. So the
# [clusters](../../docs/glossary.md#cluster) of a GPC should compute tiles that need the same rows of A or columns of B.
#
# The tiles of C that 64 clusters compute at once, a colour for each GPC (the first colour has four unknown pairs too):

# %% tags=["lab"]
import cookbook
from cookbook import draw

page = cookbook.load("foundations/gpc_remapping")  # this page's own code, which follows below
GPCS = page.H200[: page.WAVE.count]


def by_gpc(numbers):
    """Places of the cluster tiles, those of one GPC after those of another."""
    order = sorted(range(len(GPCS)), key=lambda cluster: (GPCS[cluster] in "bcdefgh", GPCS[cluster]))
    return [page.WAVE.place(numbers[cluster]) for cluster in order]


draw.tile_order(
    {"by cluster number": by_gpc(range(len(GPCS))), "remapped": by_gpc(page.remapping(GPCS, page.WAVE.together))},
    wave=page.WAVE.count,
    tile=(page.WAVE.tile_m, page.WAVE.tile_n),
    title="Cluster tiles by the GPC that computes them, on an H200",
)

# %% [markdown]
# On the left, with the hardware's own numbers, each GPC needs all columns of B. On the right most GPCs need the columns
# of one group. ncu's count at L2 is [below](#measured).

# %% [markdown]
# The SMs of a GPU are grouped in [GPCs](../../docs/glossary.md#gpc) (graphics processing clusters); an H200 has eight,
# most of them of 16 or 18 SMs. What they ask of L2 passes a unit that ncu calls LRC, the *L2 request coalescer*. Where
# several SMs of a GPC ask for the same [line](../../docs/glossary.md#sector) at about the same time, it asks L2 once.
# Counted by ncu on an H200 with [the tuned GEMM](../hopper/tuned_gemm.ipynb), two things hold:
#
# * L2's coalescer merges what a [CTA](../../docs/glossary.md#cta) loads for itself.
# * It does not merge what a CTA loads for its cluster, by [multicast](../../docs/glossary.md#multicast).
#
# The records hold the sum of both, and not each by itself: the table [below](#measured).
#
# So a cluster of two side by side, which shares A by multicast, should have neighbours in its GPC that need the same
# *columns of B*. L2 then reads these once for all of them. That should save the energy of moving data across the chip,
# and so allow a higher clock at the power limit. No record here shows how much.

# %%
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch

from cookbook.recipe.moved import SmemAllocator

# %% [markdown]
# ## Where the hardware starts clusters
#
# An idle GPU starts clusters in one GPC after the other, like a dealer of cards. So clusters with neighbouring numbers
# start in different GPCs. This is the order on one H200: 66 clusters of two fit, and each letter is a GPC.
#
# The first four ran on pairs of SMs that never were in a larger cluster. Their GPC is not known: each may be that of a
# neighbour. Then the eight GPCs follow, one cluster each, again and again; those with more SMs still have room at the
# end.

# %%
H200 = tuple("wxyz" + 4 * "abcdefgh" + 4 * "bcdefgh" + "gh")  # the GPC of each cluster of two, in launch order

# %% [markdown]
# ## The remapping
#
# A kernel takes its [work tile](../../docs/glossary.md#work-tile) by the number of its cluster. A **table** replaces
# that number: `remapping` gives `together` consecutive numbers to clusters of one GPC, as long as it has enough.
# Clusters that fill no group come last. The kernel's [rasterization](../../docs/glossary.md#rasterization) must put
# `together` consecutive cluster tiles where they need the same columns of B (or rows of A).
#
# The table is a permutation. Whatever is wrong with it costs time and nothing else: no tile depends on where a cluster
# really runs.


# %%
def remapping(gpcs: Sequence, together: int) -> list[int]:
    """The new number of each cluster, given its GPC: `together` consecutive numbers are of one GPC, as long as it has
    clusters; those that fill no group come last."""
    groups, rest = [], []
    for gpc in dict.fromkeys(gpcs):
        members = [cluster for cluster, each in enumerate(gpcs) if each == gpc]
        full = len(members) // together * together
        groups, rest = groups + members[:full], rest + members[full:]
    number = {cluster: i for i, cluster in enumerate(groups + rest)}
    return [number[cluster] for cluster in range(len(gpcs))]


# %% [markdown]
# An example: C of 2048 x 2048 in tiles of 128 x 256 is 64 clusters of two in one wave, sixteen down and four across.
# They are numbered in groups of eight, down C.


# %%
@dataclass(frozen=True)
class Wave:
    """Clusters of two, side by side, that compute one wave of C; each shares its tile of A by multicast."""

    down: int = 16
    across: int = 4
    tile_m: int = 128  # rows of C of a cluster
    tile_n: int = 512  # its columns: two tiles
    together: int = 8  # consecutive numbers, down C

    @property
    def count(self) -> int:
        return self.down * self.across

    def place(self, number: int) -> tuple[int, int]:
        """(row, column) of a cluster tile: groups of `together` rows, and in each of them column by column."""
        group, inside = divmod(number, self.together * self.across)
        return group * self.together + inside % self.together, inside // self.together

    def rows_asked(self, numbers: Sequence[int], gpcs: Sequence) -> int:
        """Columns of B that L2 is asked for in one k-tile: those of a cluster once for all clusters of its GPC."""
        asked = {(gpc, self.place(number)[1]) for gpc, number in zip(gpcs, numbers, strict=True)}
        return self.tile_n * len(asked)


WAVE = Wave()

# %% [markdown] tags=["lab"]
# The number of cluster tiles that stay together is a choice. Half as many leave fewer clusters over at the end of a
# GPC, and share a column of B half as widely:

# %% tags=["lab"]
halved = WAVE.together // 2
draw.tile_order(
    {
        f"{WAVE.together} together": by_gpc(remapping(GPCS, WAVE.together)),
        f"{halved} together": by_gpc(remapping(GPCS, halved)),
    },
    wave=WAVE.count,
    tile=(WAVE.tile_m, WAVE.tile_n),
    title="Cluster tiles by the GPC that computes them, for two sizes of a group",
)

# %% [markdown] tags=["lab"]
# What that saves, by the model. For each k-tile, each cluster asks for 128 rows of A by multicast, which merge with
# nothing, and for 512 columns of B. *Random* is the mean over random orders: that is what becomes of any order where
# the next kernel starts before the previous one has ended.

# %% tags=["lab"]
from IPython.display import Markdown

from cookbook.lab import table


def by_order() -> dict[str, float]:
    """Columns of B that L2 is asked for in one k-tile of `WAVE`, by how clusters are numbered."""
    numbers, shuffle = list(range(WAVE.count)), random.Random(0)
    chance = mean(WAVE.rows_asked(shuffle.sample(numbers, WAVE.count), GPCS) for _ in range(1000))
    mapped = WAVE.rows_asked(remapping(GPCS, WAVE.together), GPCS)
    return {"cluster number": WAVE.rows_asked(numbers, GPCS), "random": chance, "remapped": mapped}


of_b, of_a = WAVE.count * WAVE.tile_n, WAVE.count * WAVE.tile_m
rows = [[way, f"{asked:.0f}", f"{(of_a + asked) / (of_a + of_b):.0%}"] for way, asked in by_order().items()]
Markdown(table(["order", f"columns of B, of {of_b}", "of A and B, of what clusters ask for"], rows))

# %% [markdown]
# ## Finding the GPCs
#
# No interface says which SMs form a GPC. But a CTA can read the number of its SM (`%smid`), and the CTAs of a cluster
# are always in one GPC. So a **probe kernel** writes its SM numbers:
#
# * Clusters of seven and of five CTAs, many times, whose CTAs run for different lengths of time. SMs that were seen in
#   one cluster are in one GPC, and so are those that a chain of such clusters links.
# * Clusters of two, twice, on an idle GPU: the order in which it starts them.
#
# A CTA takes more than half of an SM's shared memory, so an SM runs only one.


# %%
@dataclass(frozen=True)
class Config:
    """The probe kernel."""

    threads: int = 32
    smem_bytes: int = 128 * 1024  # more than half of what an SM has
    clocks: int = 10_000  # that a CTA stays at least


CONFIG = Config()
SIZES = (7, 5, 2)  # CTAs of a cluster


@cute.kernel
def probe(smids: cute.Pointer, seed: cutlass.Int32, size: cutlass.Constexpr):
    """Each CTA writes the number of its SM, and stays for a while: some clusters long, some not."""
    SmemAllocator().allocate_array(cutlass.Int64, CONFIG.smem_bytes // 8)
    start = cute.arch.clock64()
    tidx, _, _ = cute.arch.thread_idx()
    cta, _, _ = cute.arch.block_idx()
    ctas, _, _ = cute.arch.grid_dim()
    if tidx == 0:
        cute.make_tensor(smids, cute.make_layout(ctas))[cta] = cute.arch.smid()
    stay = CONFIG.clocks * (1 + (cta // size * 7 + seed * 3) % 5)
    while cute.arch.clock64() - start < stay:
        pass


@cute.jit
def launch_probe(
    smids: cute.Pointer, seed: cutlass.Int32, count: cutlass.Int32, stream: cuda.CUstream, size: cutlass.Constexpr
):
    """`count` clusters of `size` CTAs."""
    probe(smids, seed, size).launch(
        grid=(count * size, 1, 1), block=(CONFIG.threads, 1, 1), cluster=(size, 1, 1), stream=stream
    )


@cute.jit
def launch_each(smids: cute.Pointer, seed: cutlass.Int32, count: cutlass.Int32, stream: cuda.CUstream):
    """A probe of each size."""
    for size in cutlass.range_constexpr(len(SIZES)):
        launch_probe(smids, seed, count, stream, SIZES[size])


def arguments(address: int, seed: int, count: int, stream: int) -> tuple:
    """Plain addresses and integers as the typed values that `launch_probe` takes."""
    smids = cute.runtime.make_ptr(cutlass.Int32, address, cute.AddressSpace.gmem, assumed_align=16)
    return smids, cutlass.Int32(seed), cutlass.Int32(count), cuda.CUstream(stream)


def compile_for(arch: str, options: str = ""):
    """Compile the probe in all sizes for `arch` ("sm_90a"); needs no GPU."""
    return cute.compile(launch_each, *arguments(16, 0, 1, 0), options=f"--gpu-arch {arch} {options}".strip())


def sms_of_clusters(size: int, count: int, calls: int) -> list[list[int]]:
    """The SMs of each of `count` clusters of `size` CTAs, of the present device; and again, `calls` times in all."""
    smids = torch.empty(count, size, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    run = cute.compile(launch_probe, *arguments(smids.data_ptr(), 0, count, stream), size)
    seen = []
    for seed in range(calls):
        torch.cuda.synchronize()  # nothing else runs
        run(*arguments(smids.data_ptr(), seed, count, stream))
        seen += smids.tolist()
    return seen


def gpcs_of_sms(seen: Sequence[Sequence[int]]) -> dict[int, int]:
    """The GPC of each SM, named by its lowest SM: those seen in one cluster, or linked by a chain of clusters."""
    gpc = {sm: sm for cluster in seen for sm in cluster}
    for cluster in seen:
        met = {gpc[sm] for sm in cluster}
        if len(met) > 1:
            gpc = {sm: min(met) if one in met else one for sm, one in gpc.items()}
    return gpc


def launch_order(device: int | None = None) -> tuple[int, ...]:
    """The GPC of each cluster of two, in the order in which the idle GPU starts them; takes a few seconds.

    device: CUDA's number; None: the present one. Needs a GPU of compute capability 9.0 with nothing else at work.
    """
    with torch.cuda.device(device):
        sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        pairs = sms_of_clusters(2, sms // 2, 2)
        seen = [cluster for size in (7, 5) for cluster in sms_of_clusters(size, 4 * sms // size, 10)]
    gpc = gpcs_of_sms(seen + pairs)
    return tuple(gpc[sm] for sm, _ in pairs[-(sms // 2) :])


def measure_figures() -> dict[str, list[int]]:
    """Return what `cookbook calibrate` records of a GEMM that uses the remapping: its figure `gpcs`, of the present
    device."""
    return {"gpcs": list(launch_order())}


# %% [markdown]
# A GEMM takes the result once, before its first `matmul`: `tuned_gemm.calibrate(gpcs=launch_order())`. In a checkout
# `cookbook calibrate hopper/tuned_gemm` measures it, and keeps a record that later sessions on such a GPU use.
#
# ## When it helps
#
# * **The GPU must be idle when the kernel starts.** With [PDL](../../docs/glossary.md#pdl) it mostly is not: a kernel
#   that is let in early gets SMs in the order in which the previous one leaves them. So a kernel with a table does not
#   let the *next* one in.
# * **Clusters must be many.** Where few run, most GPCs have less than one group of them.
# * **Power must matter.** A product that is over sooner gains more by an early start.
# * **Loads must go through TMA.** Requests of `cp.async` hardly merge.
#
# If the number of clusters is no multiple of `together`, the clusters of a GPC move on by some places with each work
# tile, and lie across two columns of B.

# %% [markdown] tags=["lab"]
# ## Measured
#
# What ncu counts at L2 for [the tuned GEMM](../hopper/tuned_gemm.ipynb), by variant, as a part of all that its clusters
# ask for. L2 is in two halves, and what one half fetches from the other is counted twice.

# %% tags=["lab"]
from cookbook.lab import records


def counted_at_l2(recipe: str = "hopper/tuned_gemm") -> str:
    """Bytes read through L2 by each variant, by the current records, as a part of all that its clusters ask for."""
    module, rows = cookbook.load(recipe), []
    for record in records.of_one_gpu(recipe, records.LIMITS):
        m, n, k = record["shape"]
        for name, figures in record["figures"]["variants"].items():
            if "l2_read_bytes" not in figures or name not in module.VARIANTS:
                continue
            config = module.VARIANTS[name]
            down, across = module.cluster_tiles(config, m, n)
            tile = config.tile_m / config.cluster_n + config.tile_n / config.cluster_m
            wanted = down * across * config.cluster * tile * k * 2
            rows.append([record["device"], f"`{name}`", f"{m} x {n} x {k}", f"{figures['l2_read_bytes'] / wanted:.0%}"])
    header = ["device", "variant", "M x N x K", "read through L2, of what clusters ask for"]
    return table(header, rows, right=3) if rows else "*Not counted yet.*"


Markdown(counted_at_l2())

# %% [markdown]
# ## Check
#
# `cookbook check foundations/gpc_remapping` computes each claim of this page, by these lines:


# %% tags=["folded"]
def facts() -> list[tuple[str, bool, str]]:
    """The claims: a name, whether it holds, what was found."""
    counts, groups = range(1, len(H200) + 1), range(1, 11)
    wrong = [
        (count, together)
        for count in counts
        for together in groups
        if sorted(remapping(H200[:count], together)) != list(range(count))
    ]
    numbers = remapping(H200, 8)
    cluster = {number: i for i, number in enumerate(numbers)}
    full = sum(H200.count(gpc) // 8 for gpc in set(H200))
    mixed = [g for g in range(full) if len({H200[cluster[8 * g + i]] for i in range(8)}) > 1]
    gpcs = H200[: WAVE.count]
    before, after = (WAVE.rows_asked(way, gpcs) for way in (range(WAVE.count), remapping(gpcs, WAVE.together)))
    neighbours = [i for i in range(len(H200) - 1) if H200[i] == H200[i + 1]]
    linked = gpcs_of_sms([[4, 5], [0, 1], [1, 4], [2, 3]])
    return [
        ("permutation", not wrong, f"(clusters, group) whose table is none: {wrong}"),
        ("groups_of_one_gpc", full > 0 and not mixed, f"{full} groups of 8; of several GPCs: {mixed}"),
        ("neighbours_apart", not neighbours, f"neighbours by number in one known GPC: {neighbours}"),
        ("fewer_requests", after < 0.5 * before, f"columns of B: {before} by number, {after} remapped; needed < half"),
        ("linked", linked == {0: 0, 1: 0, 4: 0, 5: 0, 2: 2, 3: 2}, f"SMs linked by clusters: {linked}"),
    ]


# %% tags=["lab"]
print("what does not hold:", [name for name, holds, _ in facts() if not holds])

# %% [markdown]
# The last cell checks the cells above: edit one, run it, and check again.

# %% tags=["lab"]
from cookbook import lab

lab.check_cells("foundations/gpc_remapping")

# %% [markdown]
# ## Exercises
#
# Change a cell, and run the last cell of this section; or `cookbook copy foundations/gpc_remapping my.py` and `cookbook
# exercise my.py`.
#
# **Finish it.** Judge a table: how many of its groups have all their tiles in one GPC?


# %%
def groups_of_one_gpc(numbers, gpcs, together):
    """Exercise 1, finish it: how many whole groups of `together` consecutive numbers are of one GPC. `numbers[i]` is
    the new number of cluster i, `gpcs[i]` its GPC; the first group is the numbers 0 to together - 1."""
    raise NotImplementedError


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# The table goes from a cluster to its number. Here the question goes from a number to the cluster. Turn the table round
# first.
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# Write down the GPC of number 0, 1, 2 and so on. Cut that into pieces of `together`. A set says how many GPCs a piece
# has. What is left at the end is no whole group.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# ```python
# def groups_of_one_gpc(numbers, gpcs, together):
#     by_number = [gpc for _, gpc in sorted(zip(numbers, gpcs))]
#     groups = [by_number[i * together : (i + 1) * together] for i in range(len(gpcs) // together)]
#     return sum(len(set(group)) == 1 for group in groups)
# ```
#
# </details>
#
# **Find the bug.** This function is to link SMs by the clusters in which they were seen. From `[[4, 5], [1, 4]]` it
# concludes that SM 5 is alone in a GPC.


# %%
def linked(seen):
    """Exercise 2, find the bug: the GPC of each SM, named by its lowest SM, as `gpcs_of_sms`."""
    gpc = {sm: sm for cluster in seen for sm in cluster}
    for cluster in seen:
        lowest = min(gpc[sm] for sm in cluster)
        for sm in cluster:
            gpc[sm] = lowest
    return gpc


# %% [markdown]
# <details markdown="1"><summary>Tip 1</summary>
#
# Follow `gpc` by hand. After the first cluster SMs 4 and 5 are in GPC 4. Which of them does the second one move?
#
# </details>
#
# <details markdown="1"><summary>Tip 2</summary>
#
# A cluster does not link SMs alone: it links all that was linked to them before.
#
# </details>
#
# <details markdown="1"><summary>Solution</summary>
#
# Every SM of a GPC that the cluster meets has to move, not only those of the cluster.
#
# ```python
# def linked(seen):
#     gpc = {sm: sm for cluster in seen for sm in cluster}
#     for cluster in seen:
#         met = {gpc[sm] for sm in cluster}
#         for sm in gpc:
#             if gpc[sm] in met:
#                 gpc[sm] = min(met)
#     return gpc
# ```
#
# </details>


# %% tags=["folded"]
EXERCISES = {
    "groups_of_one_gpc": lambda f: (
        (f"GPCs {''.join(gpcs)}, numbers {numbers}, {together} together", f(numbers, list(gpcs), together), needed)
        for gpcs, numbers, together, needed in (
            ("aabb", [0, 1, 2, 3], 2, 2),
            ("abab", [0, 1, 2, 3], 2, 0),
            ("abab", [0, 2, 1, 3], 2, 2),
            ("aabbb", [0, 2, 3, 4, 1], 2, 0),
            ("aabbab", [2, 3, 5, 0, 4, 1], 2, 2),
            ("aabbabb", [2, 3, 5, 0, 4, 1, 6], 2, 2),
            *((H200, remapping(H200, each), each, sum(H200.count(x) // each for x in set(H200))) for each in (8, 4)),
        )
    ),
    "linked": lambda f: (
        (f"clusters {seen}", f(seen), gpcs_of_sms(seen))
        for seen in (
            [[4, 5], [1, 4]],
            [[0, 1], [2, 3]],
            [[2, 3], [0, 1], [1, 2]],
            [[6, 7], [5, 6], [4, 5], [3, 4], [0, 1]],
            [[0, 1], [1, 2], [2, 3]],
            [[4, 5], [0, 1], [2, 3], [5, 1], [3, 4]],
        )
    ),
}

# %% tags=["lab"]
from cookbook import lab

lab.check_exercises("foundations/gpc_remapping")

# %% [markdown] tags=["lab"]
# ## Conclusion
#
# Where on the chip a cluster runs decides what its requests merge with. A table of a few hundred bytes puts clusters
# that need the same data into one GPC. It changes no result, and it costs one load at the start of the kernel, and the
# early start of the next one.
#
# Next: [the transpose](matrix_transpose.ipynb), which puts the swizzles of shared memory to work; or the kernel that
# uses the table, [the tuned GEMM](../hopper/tuned_gemm.ipynb).
#
# To use it: `cookbook copy foundations/gpc_remapping gpc.py`, then `from gpc import launch_order`.
