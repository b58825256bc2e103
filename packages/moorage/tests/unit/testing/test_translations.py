"""Whether a page has changed since its translation."""

from __future__ import annotations

from moorage_testing.translations import NOTICE, read


def test_a_translation_that_is_older_gets_a_notice_until_it_is_translated_again(tmp_path):
    page, path = tmp_path / "docs" / "page.md", tmp_path / "docs" / "ja" / "page.md"
    path.parent.mkdir(parents=True)
    page.write_text("# Page\n\nText.\n")
    path.write_text("<!-- translation of docs/page.md 000000000000 -->\n# ページ\n\n文。\n")
    old = read(path)
    assert old.is_older
    old.mark()
    old.mark()
    assert path.read_text().split("\n\n") == [
        "<!-- translation of docs/page.md 000000000000 -->\n# ページ",
        NOTICE,
        "文。\n",
    ]
    old.record()
    assert not read(path).is_older
    assert path.read_text().partition("\n")[2] == "# ページ\n\n文。\n"
