"""An HTML page as a tree: its texts, tables, links and forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "hr", "img", "input", "link", "meta"}  # elements without an end tag
INLINE = {"a", "b", "code", "em", "i", "strong", "time"}  # elements inside a sentence: no space before them
PART = re.compile(
    r'([#.]?)([\w-]+)|\[([\w-]+)(?:="([^"]*)")?\]'
)  # of a selector: main, #log, .name, [role="alert"]


@dataclass
class Element:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list[Element | str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Element]:
        """All elements inside this one, in the order of the page."""
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child

    @property
    def content(self) -> str:
        """All text inside, with its line breaks."""
        spaced = (
            child if isinstance(child, str) else " " * (child.tag not in INLINE) + child.content
            for child in self.children
        )
        return "".join(spaced)

    @property
    def text(self) -> str:
        """The text as a browser shows it."""
        return self.content if self.tag in ("pre", "textarea") else " ".join(self.content.split())

    def matches(self, selector: str) -> bool:
        for kind, name, attribute, value in PART.findall(selector):
            match kind:
                case "#":
                    matched = self.attributes.get("id") == name
                case ".":
                    matched = name in self.attributes.get("class", "").split()
                case _ if attribute:
                    matched = attribute in self.attributes and value in ("", self.attributes[attribute])
                case _:
                    matched = self.tag == name
            if not matched:
                return False
        return True

    def all(self, selector: str) -> list[Element]:
        """The elements inside that match, such as `main h2`, `#log`, `a.button` or `[role="alert"]`."""
        first, _, rest = selector.partition(" ")
        matched = [element for element in self if element.matches(first)]
        return [inner for element in matched for inner in element.all(rest)] if rest else matched

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    def element(self, selector: str) -> Element:
        matched = self.all(selector)
        assert len(matched) == 1, f"{len(matched)} elements {selector} in: {self.text}"
        return matched[0]

    def links(self, selector: str = "") -> list[tuple[str, str]]:
        """Text and address of all links inside an element; without a selector, of the main part."""
        return [(link.text, link.attributes["href"]) for link in self._part(selector).all("a[href]")]

    def buttons(self, selector: str = "") -> list[str]:
        """Texts of all buttons inside an element, and of links that look like buttons."""
        return [each.text for each in self._part(selector) if each.matches("button") or each.matches("a.button")]

    def _part(self, selector: str) -> Element:
        return self.element(selector) if selector else next(iter(self.all("main")), self)


class Page(Element, HTMLParser):
    """A whole page, or the part of one that htmx asks for."""

    def __init__(self, html: str) -> None:
        HTMLParser.__init__(self)
        Element.__init__(self, "page")
        self._open: list[Element] = [self]
        self.feed(html)
        self.close()
        assert len(self._open) == 1, f"no end tag of {self._open[1:]}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> ends {self._open[-1].tag}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    @property
    def heading(self) -> str:
        return self.element("h1").text

    @property
    def notes(self) -> list[str]:
        """The result of the last action, or the reason of a page that refuses."""
        return self.texts(".note[role]") or self.texts('section[role="alert"] p')[:1]

    @property
    def note(self) -> str:
        """The only note."""
        [note] = self.notes
        return note

    @property
    def facts(self) -> dict[str, str]:
        """Names and texts of all lists of facts."""
        return dict(zip(self.texts("dt"), self.texts("dd"), strict=True))

    def rows(self, caption: str = "") -> list[dict[str, str]]:
        """Rows of a table: heading of the column to text of the cell."""
        [table] = [each for each in self.all("table") if each.texts("caption") == [caption] * bool(caption)]
        headings = table.texts("thead th")
        cells = [[cell.text for cell in row if cell.tag in ("th", "td")] for row in table.all("tbody tr")]
        return [dict(zip(headings, row, strict=True)) for row in cells]

    def form(self, action: str) -> dict[str, str]:
        """The fields that a form posts, with the values that they have now."""
        [form] = [each for each in self.all('form[method="post"]') if each.attributes.get("action") == action]
        fields = {}
        for each in form.all("[name]"):
            match each.tag:
                case "textarea":
                    fields[each.attributes["name"]] = each.content
                case "select":
                    options = each.all("option")
                    chosen = next((o for o in options if "selected" in o.attributes), options[0])
                    fields[each.attributes["name"]] = chosen.attributes.get("value", chosen.text)
                case "input" if each.attributes.get("type") != "checkbox" or "checked" in each.attributes:
                    fields[each.attributes["name"]] = each.attributes.get("value", "")
        return fields

    def problem_at(self, name: str) -> str:
        """The refusal at a field of a form."""
        return self.element(f"#p-{name}").text
