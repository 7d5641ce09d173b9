"""The page in a real browser, where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edbc.report.explain import explain_file

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = """--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --disable-background-networking
--disable-component-update --disable-sync --disable-quic""".split()
MEASURE = """<script>addEventListener('load', () => { const root = document.documentElement;
document.title = 'measured ' + root.scrollWidth + ' of ' + root.clientWidth
  + ' bars ' + [...document.querySelectorAll('rect')].filter(r => r.getBoundingClientRect().height > 0).length; })
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on PATH")
@pytest.mark.parametrize("width", [500, 1000])
def test_the_page_fits_and_its_pictures_are_drawn(started: Path, tmp_path: Path, width: int) -> None:
    """Nothing makes the page scroll sideways, at a phone's width or a desk's, and every batch has a visible bar."""
    page = explain_file(started / "plans" / "trees.yaml").html()
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", MEASURE), encoding="utf-8")
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM or "", *QUIET, profile, f"--window-size={width},900", "--dump-dom", file.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    measured = re.search(r"measured (\d+) of (\d+) bars (\d+)", dom)

    assert measured is not None
    assert int(measured[1]) <= int(measured[2])
    assert int(measured[3]) == page.count("<rect")
