from __future__ import annotations

import pytest

from moorage_testing.htmlpage import Page

HTML = """
<nav><a href="/">Home</a></nav><main><h1>Jobs <small>of ada</small></h1>
<p class="note good" role="status">Done.</p>
<table><caption>Runs</caption><thead><tr><th>Run</th><th>Node</th></tr></thead>
<tbody><tr><th><a href="/jobs/a?x=1&amp;y=2">a</a>, new<small>&lt;i&gt;</small></th>
<td>n1</td></tr></tbody></table>
<dl><dt>CPU</dt><dd>2</dd></dl><pre id="log">one
two</pre><a class="big button" href="/new">New</a>
<form method="post" action="/jobs"><input name="name" value="b"><input type="checkbox" name="force" value="yes">
<select name="kind"><option value="x">X</option><option selected>Y</option></select>
<textarea name="command">a\nb</textarea><small id="p-name">No name.</small><button>Start</button></form></main>
"""


def test_a_page_has_its_texts_tables_links_and_forms():
    page = Page(HTML)
    assert (page.heading, page.notes, page.facts) == ("Jobs of ada", ["Done."], {"CPU": "2"})
    assert page.rows("Runs") == [{"Run": "a, new <i>", "Node": "n1"}]
    assert page.links() == [("a", "/jobs/a?x=1&y=2"), ("New", "/new")]
    assert (page.links("nav"), page.buttons()) == ([("Home", "/")], ["New", "Start"])
    assert page.form("/jobs") == {"name": "b", "kind": "Y", "command": "a\nb"}
    assert (page.element("#log").text, page.problem_at("name")) == ("one\ntwo", "No name.")


@pytest.mark.parametrize(
    ("selector", "texts"),
    [("main h1 small", ["of ada"]), ("p.note.good", ["Done."]), ('[role="status"]', ["Done."]), ("p.bad", [])],
)
def test_elements_are_selected_by_tag_id_class_and_attribute(selector, texts):
    assert Page(HTML).texts(selector) == texts


@pytest.mark.parametrize("html", ["<p>text", "<p><b>text</p></b>", "text</p>"])
def test_a_page_whose_tags_do_not_match_is_refused(html):
    with pytest.raises(AssertionError):
        Page(html)
