"""Check any `@cute.jit` function: races, deadlocks, bounds, bank conflicts, and its product where that is said.

* `cases`: what to check of a file, by its table; `tensors`: arguments in words
* `judging`: one trace, followed and judged; `product`: what it computes; `allowed`: comments that allow a finding
* `watching`: whatever a script gives to CuTe, checked in passing
* `report`: what was found, as text, JSON and SARIF
"""

from cookbook.check.kernels.cases import Case, NoTable, cases_of, check
from cookbook.check.kernels.report import FAULT, NOT_ASKED, NOT_FOLLOWED, Found, Place, Report, sarif, status

__all__ = ["FAULT", "NOT_ASKED", "NOT_FOLLOWED", "Case", "Found", "NoTable", "Place", "Report"]
__all__ += ["cases_of", "check", "sarif", "status"]
