"""One file a kind of product: its front matter, operands, reference, work, peers, and how each level looks at it.

A recipe's front matter names its kind, and the file of that name here has its `PRODUCT`. The rooms below ask
`recipe.product`, and no other room branches on a kind: a test counts such branches. `base` says what may be asked,
`gemm` answers for C = A B of one dtype; the other files say what is different.
"""
