"""A namespace that was deleted and created again, and the users who can still read data of the old one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from moorage_kube.clock import rfc3339
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.clock import NOON
from moorage_testing.site import Site

LATER = NOON + timedelta(seconds=1)
ADA = {"authorization": "Bearer kube-token"}


class RecreatedNamespace:
    """The namespace lab, created at noon; the user ada may read it.

    `reads`: paths that show records with names "old-…".
    """

    def __init__(self, site: Site, reads: Sequence[str]) -> None:
        self.site, self.service, self._reads = site, site.service, reads
        site.api.with_token = lambda *_: site.api  # type: ignore[attr-defined]
        site.api.readers |= {("ada", "lab")}
        self.namespace()

    def namespace(self, created: datetime = NOON, **annotations: str) -> None:
        meta = {"name": "lab", "creationTimestamp": rfc3339(created), "annotations": annotations}
        self.site.api.put(NAMESPACES, {"metadata": meta})

    async def seen(self) -> set[str]:
        """Return the paths of `reads` that show old records."""
        answers = {path: await self.site.ask(path, headers=ADA, token=False) for path in self._reads}
        assert not {path: answer.status for path, answer in answers.items() if answer.status >= 500}
        return {path for path, answer in answers.items() if answer.status == 200 and "old-" in answer.text}
