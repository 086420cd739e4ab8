"""Steps of the ladders whose gain no GPU has timed yet: docs/open.md says how to. Empty it then."""

NOT_YET = {  # no GPU has timed them next to the step before: docs/open.md
    *("ampere/multistage_gemm", "ampere/staged_epilogue_gemm", "ampere/smem_gemm"),
    *("hopper/wide_tile_gemm", "hopper/producer_warp_gemm", "hopper/tma_wgmma_gemm"),
}
