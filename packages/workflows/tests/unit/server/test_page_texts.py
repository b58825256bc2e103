"""Every text of the pages of workflows has a translation, every translation a text."""

from __future__ import annotations

import pytest

from moorage.server.pages.environment import make_environment
from moorage.server.pages.texts import ENGLISH, LANGUAGES
from moorage_testing.pagetexts import PageTexts

OTHERS = [tag for tag in LANGUAGES if tag != ENGLISH]
PAGES = PageTexts("moorage_workflows.server.pages")
MADE = {f"{verb} workflow {{name}}?" for verb in ("Stop", "Terminate", "Delete")}  # named by its button


def of_the_platform(tag):
    return {entry.msgid for entry in PageTexts("moorage.server.pages").catalogue(tag)}


@pytest.mark.parametrize("tag", OTHERS)
def test_no_text_is_left_untranslated(tag):
    assert sorted(PAGES.missing(tag) - of_the_platform(tag)) == [], f"add these to catalogues/{tag}.po"


@pytest.mark.parametrize("tag", OTHERS)
def test_every_translation_is_of_a_text_that_there_is_and_that_the_platform_has_not(tag):
    known = (PAGES.there() | MADE) - of_the_platform(tag)
    stale = [entry.msgid for entry in PAGES.catalogue(tag) if entry.msgid not in known]
    assert stale == [], f"take these out of catalogues/{tag}.po"


@pytest.mark.parametrize("tag", OTHERS)
def test_a_translation_has_the_values_of_its_text_and_its_place_in_order(tag):
    assert PAGES.wrong_values(tag) == []
    names = [entry.msgid for entry in PAGES.catalogue(tag)]
    assert names == sorted(set(names))


@pytest.mark.parametrize("tag", OTHERS)
def test_every_template_can_be_read_in_every_language(tag):
    environment = make_environment(tag)
    for name in PAGES.templates():
        environment.get_template(name)
