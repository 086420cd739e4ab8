"""Microbenchmarks that ask the hardware what the models here only say.

`probes/shared_memory`: kernels that issue one kind of shared-memory instruction over a table of lane addresses, their
wavefronts counted by Nsight Compute and held against `cookbook.banks`, their values against `cookbook.model`.
`probes/fresh`: the same with a random table, drawn from a seed, that has no pair in common with the standing one: the
rules of `cookbook.banks` were found on that.
`probes/past_l1`: cp.async past L1, which the profiler does not always count, issued in several ways.
`probes/tma`: boxes loaded by TMA in every swizzle mode, the raw bytes of shared memory held against `cookbook.model`.

`python -m tools.probes --help`
"""
