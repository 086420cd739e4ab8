"""mkdocs calls this: what the site's search looks at, and when a page loads it."""

from __future__ import annotations


def on_post_build(config, **_):
    pass
