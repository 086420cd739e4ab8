"""The levels of checking: layout, model, pipeline, compiled, ran, counted and sanitized."""
