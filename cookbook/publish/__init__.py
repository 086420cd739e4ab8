"""What is published from recipes, notebooks and records: pages, tables, plots, notebooks."""
