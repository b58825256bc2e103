from __future__ import annotations

from moorage_testing.wording import texts
from moorage_testing.wording.texts import Text

SOURCE = '''"""A module."""

LIMIT = 3  # tries, as in Argo
# first line of a comment
# and its second line


class Pod:
    """A pod."""

    def delete(self, name):
        """Delete it."""
        query = "SELECT name FROM pods"
        raise ValueError(f"pod {name} of {query} has no {self!r} node", "a key")
'''

PAGE = """# A heading of many words that is not a sentence

One short sentence here. Another sentence
that has `some code in it` and [a link](x.md)! Too short.

- an item of a list
  in two lines

```bash
moor run -- python train.py and more
```

| a short cell | another |
|---|---|
| x | a long cell: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 of its words |
"""


def test_docstrings_messages_and_comments_are_told_apart():
    assert [text.text for text in texts.docstrings("a.py", SOURCE)] == ["A module.", "A pod.", "Delete it."]
    assert list(texts.messages("a.py", SOURCE)) == [Text("a.py", 14, "pod {} of {} has no {} node")]
    assert list(texts.comments("a.py", SOURCE)) == [
        Text("a.py", 3, "tries, as in Argo"),
        Text("a.py", 4, "first line of a comment and its second line"),
    ]


def test_a_trailing_comment_does_not_head_a_step_of_a_long_function():
    short = "def short():\n" + "    pass\n" * 38
    long = "def long():\n" + "    pass\n" * 37 + "    # why\n    pass  # because\n"
    assert [text.text for text in texts.long_functions("a.py", short + long)] == ["long: 40 lines, 1 comments"]


def test_sentences_leave_out_code_headings_and_short_cells():
    assert [(text.line, text.text) for text in texts.sentences("a.md", PAGE)] == [
        (3, "One short sentence here."),
        (3, "Another sentence that has `code` and a link!"),
        (6, "an item of a list in two lines"),
        (15, " a long cell: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 of its words "),
    ]


def test_the_words_of_a_template_keep_their_lines():
    template = (
        '<p>\n{# not shown #}All node ports are in use{% if x %}</p>\n<a href="what">{{ name }} has two pods</a>\n'
    )
    assert list(texts.template_texts("a.html", template)) == [
        Text("a.html", 2, "All node ports are in use"),
        Text("a.html", 3, "{} has two pods"),
    ]
