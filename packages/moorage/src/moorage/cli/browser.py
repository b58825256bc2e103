"""Open an address in the user's browser, if there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Callable, Mapping

SCREENS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME")  # each says that a browser can be shown


def open_browser(
    url: str,
    *,
    env: Mapping[str, str] = os.environ,
    platform: str = sys.platform,
    find: Callable[[], webbrowser.BaseBrowser] = webbrowser.get,
) -> bool:
    """Start a browser; return whether it started. Without a screen, do nothing: a text browser would block."""
    if platform not in ("darwin", "win32") and not any(env.get(name) for name in SCREENS):
        return False
    try:
        return bool(find().open(url))
    except (webbrowser.Error, OSError):
        return False
