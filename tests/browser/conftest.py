"""A real browser, and what it looks at: the built site, or the playground's modules alone, from a server of our own.

Chromium is the system's. Where there is none, or no playwright, the tests are skipped and say so.
"""

from __future__ import annotations

import fcntl
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cookbook.recipe import catalog
from tools.publish import notebooks

ROOT = catalog.recipes_root().parent
NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here:
            item.add_marker(pytest.mark.slow)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: a test says what went wrong."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder's files are served."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(NAMES)} is on PATH")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """The site, built once for all workers; $COOKBOOK_SITE names one that is built already."""
    if given := os.environ.get("COOKBOOK_SITE"):
        return Path(given)
    pytest.importorskip("mkdocs")
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if os.environ.get("PYTEST_XDIST_WORKER") else shared
    folder, done = shared / "browser_site", shared / "browser_site_done"
    with (shared / "browser_site_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be building it
        if not done.exists():
            for recipe in catalog.recipes():
                notebooks.make_if_changed(recipe.name)
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
            subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
            done.touch()
    return folder


@pytest.fixture(scope="session")
def site(built) -> Iterator[str]:
    """The address of the built site."""
    with served(built) as address:
        yield address


@pytest.fixture
def page(browser, request):
    """A page of a context of its own. Its errors, failed and external requests are in `page.faults`."""
    context = browser.new_context(**getattr(request, "param", {"viewport": {"width": 1440, "height": 900}}))
    page = context.new_page()
    page.faults = watched(page)
    yield page
    context.close()


def watched(page) -> list[str]:
    """What goes wrong on a page from now on: errors of its scripts, requests that fail or go elsewhere."""
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("console", lambda said: faults.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("requestfailed", lambda request: faults.append(f"failed: {request.url}") if _lost(request) else None)
    page.on(
        "response", lambda answer: faults.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None
    )
    page.on("request", lambda asked: None if _own(asked.url) else faults.append(f"external: {asked.url}"))
    return faults


def _lost(request) -> bool:
    return request.failure != "net::ERR_ABORTED"  # what a page still waited for when it was left


def _own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:"))
