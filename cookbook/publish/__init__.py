"""Make pages, tables, plots and notebooks from recipes and records."""
