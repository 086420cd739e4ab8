"""Follow a `@cute.jit` function as CuTe traced it, with no GPU: `trace`, then values, then steps with exact bytes.

* `trace`: operations with loops and branches in place, each with its line of Python; `adapter`: what of that is private
  to CuTe, and the version that it was tried on; `lines`, `positions`: lines of Python
* `values`: numbers by lane, layouts, pointers, views; `types`: what CuTe's types spell
* `warp`: one warp's control flow, and the table of handlers; `integers`, `views`, `partitions`: what makes values
* `judge`: what is asked of who has an opinion: a method for each kind of step
* `copies`, `multiply`, `waits`, `takeover`, `flags`: what touches memory, waits or signals
* `launch`: what the host function launches

A handler works out what an operation is about and asks the warp what comes of it. Each judge has a kind of `warp.Warp`:
`check.pipeline.recorder.Recorder` notes events, `check.product.follower.Follower` moves the origins of elements,
`check.banks.Counter` counts wavefronts, `check.cost.Tally` bytes and instructions. docs/operations.md lists all
operations.
"""
