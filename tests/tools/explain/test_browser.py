"""The page in a real browser, where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest
from budget import HANGS

from edbc.tools.explain.explanation import explain_file

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = """--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --disable-background-networking
--disable-component-update --disable-sync --disable-quic""".split()
FRAME = """<!doctype html><body><iframe width={width} height=900 style="border:0" srcdoc="{page}"></iframe><script>
addEventListener('load', () => {{ const inside = document.querySelector('iframe').contentDocument;
const root = inside.documentElement, drawn = r => r.getBoundingClientRect().height > 0;
document.title = 'measured ' + root.scrollWidth + ' of ' + root.clientWidth
  + ' bars ' + [...inside.querySelectorAll('rect')].filter(drawn).length; }})</script></body>"""
"""The page in a frame, because a browser's own window is never as narrow as a phone."""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
@pytest.mark.parametrize("width", [390, 1100])
def test_the_page_fits_and_its_pictures_are_drawn(started: Path, tmp_path: Path, width: int) -> None:
    """Nothing makes the page scroll sideways, at a phone's width or a desk's, and every batch has a visible bar."""
    page = explain_file(started / "plans" / "trees.yaml").html()
    file = tmp_path / "page.html"
    file.write_text(FRAME.format(width=width, page=escape(page)), encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM or "", *QUIET, profile, "--window-size=1200,900", "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS).stdout
    measured = re.search(r"measured (\d+) of (\d+) bars (\d+)", dom)

    assert measured is not None
    assert int(measured[1]) <= int(measured[2]) == width
    assert int(measured[3]) == page.count("<rect")
