"""Every text of the pages has a translation, every translation a text; both have the same values in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from moorage.server.pages import (
    auditpages,
    budgetpages,
    idlepages,
    machinepages,
    nodeadmin,
    tenantpages,
    userpages,
)
from moorage.server.pages.adminlists import AdminList
from moorage.server.pages.adminview import Form, Table
from moorage.server.pages.environment import make_environment
from moorage.server.pages.settingforms import Setting
from moorage.server.pages.texts import (
    ENGLISH,
    LANGUAGES,
    is_prose,
    key_of_text,
    say,
    speaking,
    texts_of,
    translated,
)
from moorage_testing.pagetexts import PageTexts

OTHERS = [tag for tag in LANGUAGES if tag != ENGLISH]
PAGES = PageTexts("moorage.server.pages")


@pytest.mark.parametrize("tag", OTHERS)
def test_no_text_is_left_untranslated(tag):
    assert sorted(PAGES.missing(tag)) == [], f"add these to catalogues/{tag}.po"


@pytest.mark.parametrize("tag", OTHERS)
def test_every_translation_is_of_a_text_that_there_is(tag):
    known = PAGES.there()
    states = STATES | {word.capitalize() for word in known if word.islower()}
    stale = [entry.msgid for entry in PAGES.catalogue(tag) if entry.msgid not in known | states]
    assert stale == [], f"take these out of catalogues/{tag}.po"


def strings_in(value):
    """Every text of a table, a form or a list, as the pages of administrators hold them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from strings_in(each)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            if name not in ("id", "to", "here", "name", "kind", "value", "example", "resource"):
                yield from strings_in(getattr(value, name))


@pytest.mark.parametrize("tag", OTHERS)
@pytest.mark.parametrize(
    "module", [auditpages, budgetpages, idlepages, machinepages, nodeadmin, tenantpages, userpages]
)
def test_tables_forms_and_lists_of_administrators_are_translated(tag, module):
    shown = [value for value in vars(module).values() if isinstance(value, Table | Form | AdminList | Setting)]
    assert shown
    texts = {text for value in shown for text in strings_in(value) if is_prose(text)}
    with speaking(tag):
        assert sorted(text for text in texts if say(text) == text) == []


# Words of Kubernetes and of our decisions, which pages say as states.
STATES = {
    "Running", "Waiting", "Restarting", "Succeeded", "Failed", "Cancelled", "Suspended", "Pending", "Active",
    "Deleting", "Deleted", "Stopped", "Starting", "Ready", "Bound", "Lost", "Finished", "Paused", "Error",
    "OOMKilled",
    "Skipped", "Omitted", "Invalid", "Overdue", "Done", "node not ready", "device unhealthy", "warned",
    "reminded", "snoozed", "exempt", "Refused", "Expired", "Publishing",
}  # fmt: skip


@pytest.mark.parametrize("tag", OTHERS)
def test_a_translation_has_the_values_of_its_text(tag):
    assert PAGES.wrong_values(tag) == []


@pytest.mark.parametrize("tag", OTHERS)
def test_a_text_stands_once_in_a_catalogue_and_in_order(tag):
    names = [entry.msgid for entry in PAGES.catalogue(tag)]
    assert names == sorted(set(names))


@pytest.mark.parametrize("tag", OTHERS)
def test_every_template_can_be_read_in_every_language(tag):
    environment = make_environment(tag)
    for name in PAGES.templates():
        environment.get_template(name)


def test_a_template_is_translated_with_its_values_and_attributes():
    source = (
        '<p title="Age">and {{ more }} more; <code>moor jobs</code> lists all</p>{% if x %}free{% endif %}<b>–</b>'
    )
    texts = {
        "and {{ more }} more; <code>moor jobs</code> lists all": "他 {{ more }} 件（<code>moor jobs</code>）",
        "Age": "経過",
        "free": "空き",
    }
    assert texts_of(source) == ["Age", "and {{ more }} more; <code>moor jobs</code> lists all", "free"]
    assert translated(source, texts) == (
        '<p title="経過">他 {{ more }} 件（<code>moor jobs</code>）</p>{% if x %}空き{% endif %}<b>–</b>'
    )
    assert translated(source, {}) == source


@given(st.text(alphabet='ab <>/{}%#"=\n', max_size=60))
def test_without_translations_any_source_stays_as_it_is(source):
    assert translated(source, {}) == source


@pytest.mark.parametrize("text", ["{{ name }}", "– ", "· {{ x }} %", "<code>moor jobs</code>", "&nbsp;"])
def test_what_has_no_words_is_no_text(text):
    assert not is_prose(key_of_text(text))


def test_python_says_texts_with_their_values():
    with speaking("ja"):
        assert say("{hours}h {minutes}m", hours=3, minutes=5) == "3時間5分"
        assert say("no such text") == "no such text"
    assert say("{hours}h", hours=3) == "3h"
