"""Translations of pages of docs: the page that each translates, and whether that page has changed since.

The first line of a translation names its page and a digest of the text that was translated. After a change of the
page, translate the change and record the new digest:

    python -m moorage_testing.translations --record docs/ja/howto/keep-checkpoints.md

If you do not know the language, put a notice for its readers into the translation instead:

    python -m moorage_testing.translations --mark docs/ja/howto/keep-checkpoints.md
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from pathlib import Path

from msgspec import Struct

NOTICE = "> この翻訳は、英語のページより古い内容です。"  # below the title
_FIRST = re.compile(r"<!-- translation of (?P<page>\S+) (?P<digest>[0-9a-f]{12}) -->")


class Translation(Struct, frozen=True, kw_only=True):
    """One translated page. `page`: path of the English page. `digest`: of the English text that was translated."""

    path: Path
    page: Path
    digest: str

    @property
    def is_older(self) -> bool:
        """The page has changed since it was translated."""
        return self.digest != _digest(self.page)

    @property
    def has_notice(self) -> bool:
        """The translation has the notice for its readers."""
        return f"\n{NOTICE}\n" in self.path.read_text()

    def record(self) -> None:
        """Write the digest of the page as it is now, and remove the notice."""
        _, rest = self.path.read_text().split("\n", 1)
        rest = rest.replace(f"{NOTICE}\n\n", "")
        page = self.page.relative_to(_root(self.path))
        self.path.write_text(f"<!-- translation of {page} {_digest(self.page)} -->\n{rest}")

    def mark(self) -> None:
        """Put the notice below the title, once."""
        if not self.has_notice:
            title, rest = self.path.read_text().split("\n\n", 1)
            self.path.write_text(f"{title}\n\n{NOTICE}\n\n{rest}")


def read(path: Path) -> Translation:
    """Raises ValueError if the first line names no page."""
    first = path.read_text().split("\n", 1)[0]
    match = _FIRST.fullmatch(first)
    if match is None:
        raise ValueError(f"{path}: invalid first line {first!r}: use <!-- translation of PAGE DIGEST -->")
    return Translation(path=path, page=_root(path) / match["page"], digest=match["digest"])


def translations(root: Path) -> list[Translation]:
    """All translations below `docs/ja` of the repository, and its README."""
    return [read(path) for path in sorted([*root.glob("docs/ja/*/*.md"), root / "README.ja.md"])]


def _digest(page: Path) -> str:
    return hashlib.sha256(page.read_bytes()).hexdigest()[:12]


def _root(path: Path) -> Path:
    return next(folder for folder in path.resolve().parents if (folder / "docs").is_dir())


def main() -> int:
    """List the translations that are older than their pages; exit with 1 if one has no notice."""
    parser = argparse.ArgumentParser(prog="python -m moorage_testing.translations", description=main.__doc__)
    parser.add_argument(
        "--record", type=Path, nargs="+", metavar="FILE", default=[], help="it has the page's text of now"
    )
    parser.add_argument("--mark", type=Path, nargs="+", metavar="FILE", default=[], help="put the notice into it")
    chosen = parser.parse_args()
    for path in chosen.record:
        read(path).record()
    for path in chosen.mark:
        read(path).mark()
    older = [each for each in translations(Path.cwd()) if each.is_older]
    for each in older:
        print(f"{each.path}: older than {each.page}{', with a notice' if each.has_notice else ''}")
    return int(any(not each.has_notice for each in older))


if __name__ == "__main__":
    sys.exit(main())
