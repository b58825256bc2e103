"""The path of Chromium, and how tests start it."""

from __future__ import annotations

import os
import shutil

import pytest

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LAUNCH_MS = 180_000  # only bounds a hang: on a busy machine Playwright's own half minute may be too short


def chromium_path() -> str:
    """The path of Chromium; skips the test if Chromium is not installed."""
    path = os.environ.get("MOORAGE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("Chromium is not installed (apt-get install chromium, or set MOORAGE_CHROMIUM)")
    return path
