"""Every text of the pages has a translation, every translation a text; both have the same values in them."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import resources

import polib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from moorage.server.pages import auditpages, machinepages, nodeadmin, tenantpages, userpages
from moorage.server.pages.adminlists import AdminList
from moorage.server.pages.adminview import Form, Table
from moorage.server.pages.environment import make_environment
from moorage.server.pages.texts import (
    ENGLISH,
    LANGUAGES,
    is_prose,
    key_of_text,
    say,
    speaking,
    texts_of,
    translated,
    values_in,
)

PAGES = resources.files("moorage.server.pages")
FOLDERS = (PAGES, resources.files("moorage_workflows.server.pages"))
OTHERS = [tag for tag in LANGUAGES if tag != ENGLISH]
ALWAYS_ENGLISH = {'hx-ext="sse" sse-connect="/events/page?seen={{ mark }}"'}  # an attribute in a block of its own


def templates():
    files = (file for folder in FOLDERS for file in folder.joinpath("templates").iterdir())
    return {file.name: file.read_text("utf-8") for file in files if file.name.endswith(".html")}


def modules():
    files = (file for folder in FOLDERS for file in folder.iterdir())
    return {file: ast.parse(file.read_text("utf-8")) for file in files if file.name.endswith(".py")}


@cache
def catalogue(tag):
    return polib.pofile(PAGES.joinpath("catalogues", f"{tag}.po").read_text("utf-8"))


def said(tree):
    """The texts that a module says: the first argument of say() and N_()."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("say", "N_"):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                yield first.value


def wanted():
    texts = {text for source in templates().values() for text in texts_of(source)}
    return (texts | {text for tree in modules().values() for text in said(tree)}) - ALWAYS_ENGLISH


def there():
    """Every text that a page may say: those that are wanted, and constants that templates say by `_(…)`."""
    texts = set(ALWAYS_ENGLISH)
    for source in templates().values():
        texts |= set(texts_of(source)) | set(re.findall(r'"([^"{}]+)"', source))
    for tree in modules().values():
        texts |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    texts |= {text.lower() for text in texts if isinstance(text, str)}  # titles of lists, within a sentence
    return texts | {text[:-1] for text in texts if isinstance(text, str) and text.endswith("s")}  # "jobs": one job


@pytest.mark.parametrize("tag", OTHERS)
def test_no_text_is_left_untranslated(tag):
    missing = sorted(wanted() - {entry.msgid for entry in catalogue(tag) if entry.msgstr})
    assert not missing, f"add these to catalogues/{tag}.po"


@pytest.mark.parametrize("tag", OTHERS)
def test_every_translation_is_of_a_text_that_there_is(tag):
    known = there()
    made = re.compile(r"(Stop|Terminate|Delete) workflow \{name\}\?")  # named by its button
    states = STATES | {word.capitalize() for word in known if isinstance(word, str) and word.islower()}
    stale = [entry.msgid for entry in catalogue(tag) if entry.msgid not in known | states]
    assert not [text for text in stale if not made.fullmatch(text)], f"take these out of catalogues/{tag}.po"


def strings_in(value):
    """Every text of a table, a form or a list, as the pages of administrators hold them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from strings_in(each)
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            if name not in ("id", "to", "here", "name", "kind", "value"):
                yield from strings_in(getattr(value, name))


@pytest.mark.parametrize("tag", OTHERS)
@pytest.mark.parametrize("module", [auditpages, machinepages, nodeadmin, tenantpages, userpages])
def test_tables_forms_and_lists_of_administrators_are_translated(tag, module):
    shown = [value for value in vars(module).values() if isinstance(value, Table | Form | AdminList)]
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
    def bare(text):  # a value may be said, and a word in it may be another
        return [re.sub(r'"[^"]*"|\'[^\']*\'', '""', value) for value in values_in(text)]

    wrong = [entry.msgid for entry in catalogue(tag) if bare(entry.msgid) != bare(entry.msgstr)]
    assert not wrong


@pytest.mark.parametrize("tag", OTHERS)
def test_a_text_stands_once_in_a_catalogue_and_in_order(tag):
    names = [entry.msgid for entry in catalogue(tag)]
    assert names == sorted(set(names))


@pytest.mark.parametrize("tag", OTHERS)
def test_every_template_can_be_read_in_every_language(tag):
    environment = make_environment(tag)
    for name in templates():
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
