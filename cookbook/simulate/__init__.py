"""Follow a `@cute.jit` function as CuTe traced it, with no GPU: `trace`, then values, then events.

* `trace`: operations with loops and branches in place, each with its line of Python
* `adapter`: what of that is private to CuTe, and the versions that it was tried on
"""
