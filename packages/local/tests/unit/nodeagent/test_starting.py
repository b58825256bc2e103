"""Where Moorage and its Python are installed, as far as that lies in /tmp."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from moorage_local.nodeagent.starting import installation_in_tmp


def test_folders_in_tmp_are_shown_once_and_links_to_them_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path.resolve()
    (real / "env" / "inner").mkdir(parents=True)
    (real / "link").symlink_to(real / "env")

    def shown(prefix: Path, base_prefix: Path) -> tuple[str, ...]:
        monkeypatch.setattr(sys, "prefix", str(prefix))
        monkeypatch.setattr(sys, "base_prefix", str(base_prefix))
        return tuple(path for path in installation_in_tmp(str(real)) if path.startswith(f"{real}/"))

    assert shown(real / "env", real / "env" / "inner") == (str(real / "env"),)
    assert shown(real / "link", Path("/usr")) == ()
    assert shown(Path("/usr"), real) == ()
