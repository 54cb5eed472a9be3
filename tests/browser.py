"""Headless Chromium for tests of pages: what the console says, what the page measures, what it looks like."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on PATH")
FRAME = """<!DOCTYPE html><iframe src="{page}" style="border: 0; width: {width}px; height: 4000px"></iframe>
<pre id="found"></pre>
<script>onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  document.getElementById("found").textContent = JSON.stringify((page => {script})(page));
}};</script>"""


def chromium(*options: str, page: Path, query: str = "") -> subprocess.CompletedProcess[str]:
    """Open a page with a new profile and without any network; fails after two minutes."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files"]
        alone = ["--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"]
        command = [CHROMIUM, *fixed, *alone, *options, page.resolve().as_uri() + query]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def opened(page: Path, *options: str) -> tuple[str, list[str]]:
    """The page as it stands once it is loaded, and what the console says about it: nothing, if all is well.

    Parameters
    ----------
    page : an HTML file.
    options : of Chromium, for example `DARK`.
    """
    found = chromium("--enable-logging=stderr", "--v=0", "--dump-dom", *options, page=page)
    return found.stdout, [line for line in found.stderr.splitlines() if "CONSOLE" in line]


def searched(page: Path, word: str) -> list[str]:
    """The links that the search of a page of the site gives for a word, opened from disk."""
    found = chromium("--virtual-time-budget=20000", "--dump-dom", page=page, query=f"?q={word}")
    return re.findall(r'<a href="([^"]*)" class="md-search-result__link"', found.stdout)


DARK = "--blink-settings=preferredColorScheme=0"


def measured(page: Path, script: str, width: int, *options: str) -> Any:
    """What an expression of JavaScript about `page`, the document, gives at a width in pixels, as JSON.

    Parameters
    ----------
    page : an HTML file.
    script : an expression; `page` is the document.
    width : of the window, in pixels.
    """
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(FRAME.format(page=page.name, width=width, script=script))
    dom, errors = opened(frame, *options)
    assert errors == []
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, flags=re.S)
    assert found, "the page was not loaded"
    return json.loads(html.unescape(found[1]))


def screenshot(page: Path, picture: Path, *options: str, width: int = 1200, height: int = 3000) -> Path:
    """A picture of the page, to be looked at; return its path.

    Parameters
    ----------
    page : an HTML file.
    picture : the PNG file to write.
    """
    chromium(f"--screenshot={picture.resolve()}", f"--window-size={width},{height}", *options, page=page)
    return picture


def printed(page: Path, path: Path, *options: str) -> int:
    """Print the page to a PDF file; return how many pages that takes."""
    chromium("--no-pdf-header-footer", f"--print-to-pdf={path.resolve()}", *options, page=page)
    return len(re.findall(rb"/Type\s*/Page\b", path.read_bytes()))
