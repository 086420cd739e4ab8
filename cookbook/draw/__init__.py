"""Pictures of layouts, banks, pipelines and measurements, as SVG text with no plotting library.

Every function returns a `Picture`: a notebook shows it, `picture.save("x.svg")` writes it.
"""

from cookbook.draw.accesses import access_view
from cookbook.draw.charts import Bar, bar_chart
from cookbook.draw.layouts import bank_grid, swizzle_view
from cookbook.draw.svg import Picture
from cookbook.draw.timeline import pipeline

__all__ = ["Bar", "Picture", "access_view", "bank_grid", "bar_chart", "pipeline", "swizzle_view"]
