"""The description of the package on an index: the README without what leads into this repository.

Pictures and links with relative addresses lead nowhere on a package index. The texts of the links stay.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"^!\[[^]]*\]\((?!https?://)[^)]+\)\n\n?", re.MULTILINE)
LINK = re.compile(r"\[([^]]+)\]\((?!https?://|#)[^)]+\)")
OTHER_LANGUAGE = re.compile(r" \[[^]]+\]\(README\.[a-z]+\.md\)")


def description(readme: str) -> str:
    return LINK.sub(r"\1", PICTURE.sub("", OTHER_LANGUAGE.sub("", readme)))


class DescriptionHook(MetadataHookInterface):
    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme)}
