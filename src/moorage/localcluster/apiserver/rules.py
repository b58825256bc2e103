"""The rules of the built-in kinds, by (group, plural)."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.localcluster.apiserver.kinds import Rules, spec_changed

RULES: Mapping[tuple[str, str], Rules] = {
    ("batch", "jobs"): Rules(generation=spec_changed, orphan_by_default=True),
}
