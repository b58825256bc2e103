"""Documents from outside are read within bounds, and refused with a reason beyond them."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from moorage_kube.documentbounds import NESTING_MAX
from moorage_kube.documents import parse_document, parse_json, without_depth
from moorage_kube.errors import DocumentError
from moorage_kube.yamldocuments import (
    ALIASED_MAX,
    VALUES_MAX,
    check_yaml,
    parse_yaml,
    parse_yaml_documents,
    plain_scalar,
)

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(-1e300, 1e300) | st.text()
documents = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


def aliases(levels: int, width: int = 9) -> str:
    """The billion laughs: each list holds the one before it `width` times."""
    lines = ["a0: &a0 [x]"]
    for at in range(1, levels):
        lines.append(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * width)}]")
    return "\n".join(lines)


@given(documents)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    text = json.dumps(value)
    assert parse_json(text) == value
    assert parse_json(text.encode()) == value


@given(documents)
def test_yaml_is_read_as_it_was_written(value: Any) -> None:
    quoted = yaml.safe_dump(
        value, default_style='"'
    )  # unquoted, 0E0 is a text to PyYAML and a number to Kubernetes
    assert parse_yaml(quoted) == value


@given(documents)
def test_json_is_read_where_yaml_may_stand(value: Any) -> None:
    assert parse_document(json.dumps([value])) == [value]


@given(st.binary() | st.text(alphabet="[]{}:,-? \n\"'\\&*a!%<>|#\t\x85\u2028\ud800"))
@example("%TAG ! b\n" * 1000)
@example("&a [*a]")
@example("? [a]\n: b")
@example('"\\"\\"\\"')
def test_whatever_the_text_nothing_but_a_refusal_is_raised(text: bytes | str) -> None:
    for read in (parse_json, parse_yaml_documents, parse_document, check_yaml):
        with contextlib.suppress(DocumentError):
            read(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="lists that do not end"),
        pytest.param("{a: " * 25_000, id="mappings that do not end"),
        pytest.param("- " * 50_000, id="lists by indentation"),
        pytest.param("[" * 300 + "]" * 300, id="300 levels"),
        pytest.param("[" * (NESTING_MAX + 1) + "]" * (NESTING_MAX + 1), id="one level too many"),
        pytest.param(
            "a: &a " + "[" * 60 + "]" * 60 + "\nb: " + "[" * 60 + "*a" + "]" * 60, id="an alias inside of lists"
        ),
    ],
)
def test_yaml_that_is_too_deep_is_refused_before_libyaml_builds_it(text: str) -> None:
    for read in (parse_yaml, parse_document, check_yaml, parse_yaml_documents):
        with pytest.raises(DocumentError, match="nested more than 100 levels deep"):
            read(text)


def test_keys_of_keys_are_refused_before_libyaml_builds_them() -> None:
    with pytest.raises(DocumentError, match="nested more than 100 levels deep"):
        check_yaml("? " * 50_000)
    with pytest.raises(DocumentError, match="a key must be a string"):
        parse_yaml("? " * 50_000)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 300, 999, 100_000])
@pytest.mark.parametrize("end", [True, False])
def test_json_that_is_too_deep_is_refused(opening: str, levels: int, end: bool) -> None:
    closing = opening.translate({ord("["): "]", ord("{"): "}", ord('"'): "", ord("a"): "", ord(":"): ""})[::-1]
    text = opening * levels + ("1" + closing * levels if end else "")
    with pytest.raises(DocumentError, match="nested more than 100 levels deep"):
        parse_json(text)


@given(documents, st.integers(0, NESTING_MAX + 50))
def test_json_is_too_deep_exactly_when_it_has_more_levels_than_are_allowed(value: Any, more: int) -> None:
    for _ in range(more):
        value = [value, '"]\\']
    text = json.dumps([value, *([[]] * NESTING_MAX)])  # with brackets enough to be looked at
    if _levels(value) + 1 <= NESTING_MAX:
        assert parse_json(text)[0] == value
    else:
        with pytest.raises(DocumentError, match="nested"):
            parse_json(text)


def test_brackets_inside_of_strings_are_no_levels() -> None:
    assert parse_json(json.dumps(["[" * 1000, '\\"' + "{" * 1000])) == ["[" * 1000, '\\"' + "{" * 1000]


def test_as_many_levels_as_are_allowed_are_read() -> None:
    text = "[" * NESTING_MAX + "]" * NESTING_MAX
    assert parse_json(text) == parse_yaml(text)


@pytest.mark.parametrize("levels", [6, 9, 30])
def test_aliases_that_multiply_are_counted_in_place(levels: int) -> None:
    with pytest.raises(DocumentError, match=f"aliases expand to more than {ALIASED_MAX:,} values"):
        parse_yaml(aliases(levels))


def test_values_are_counted() -> None:
    with pytest.raises(DocumentError, match=f"holds more than {VALUES_MAX:,} values"):
        check_yaml("[" + ",".join("1" * (VALUES_MAX + 1)) + "]")


def test_an_alias_of_a_long_text_is_counted_in_place() -> None:
    with pytest.raises(DocumentError, match="longer than 1,000 bytes once aliases are put in"):
        parse_yaml("a: &a " + "x" * 300 + "\nb: [*a, *a, *a, *a]", bytes_max=1000)


@pytest.mark.parametrize("text", ["&a [*a]", "a: &a {b: *a}", "a: &a\n  b: [[*a]]"])
def test_a_document_that_holds_itself_is_refused(text: str) -> None:
    with pytest.raises(DocumentError, match="the anchor &a contains itself"):
        parse_yaml(text)


def test_an_alias_of_another_document_is_none() -> None:
    with pytest.raises(DocumentError, match=r"the alias \*a has no anchor") as error:
        parse_yaml_documents("a: &a 1\n---\nb: *a\n")
    assert error.value.line == 3


def test_what_an_alias_stands_for_is_a_value_of_its_own() -> None:
    found = parse_yaml("a: &a {b: [1]}\nc: *a")
    found["a"]["b"].append(2)
    assert found == {"a": {"b": [1, 2]}, "c": {"b": [1]}}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("b: {<<: {x: 1, y: 1}, x: 2}", {"b": {"x": 2, "y": 1}}),
        ("a: &a {x: 1}\nb: {<<: [*a, {x: 2, y: 2}], z: 3}", {"a": {"x": 1}, "b": {"x": 1, "y": 2, "z": 3}}),
        ('"<<": {x: 1}', {"<<": {"x": 1}}),
    ],
)
def test_mappings_are_merged(text: str, want: Any) -> None:
    assert parse_yaml(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        # as sigs.k8s.io/yaml reads them
        ("yes", True),
        ("off", False),
        ("~", None),
        ("1_000", 1000),
        ("0x1F", 31),
        ("0b101", 5),
        ("010", 8),
        ("09", 9.0),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-1.", -1.0),
        ("22:22", "22:22"),
        ("2001-01-01", "2001-01-01"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", float(2**64)),
        ("1e400", "1e400"),
        ("9" * 5000, "9" * 5000),
        ("0x" + "f" * 100, "0x" + "f" * 100),
        ("1.2.3", "1.2.3"),
        ("0x", "0x"),
        ("+", "+"),
        ("²", "²"),
        ("1" + ":1" * 200_000, "1" + ":1" * 200_000),  # base 60: time with the square of the length
    ],
)
def test_plain_scalars_are_read_as_kubernetes_reads_them(text: str, want: Any) -> None:
    found = plain_scalar(text)
    assert (found, type(found)) == (want, type(want))
    assert parse_yaml(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("'5'", "5"),
        ("! 5", "5"),
        ("!!str 5", "5"),
        ('!!int "5"', 5),
        ("!!float 5", 5.0),
        ('!!bool "yes"', True),
        ("!!null ''", None),
        ("!!binary aGk=", "hi"),
        ("{1: a, true: b, 1.5: c}", {"1": "a", "true": "b", "1.5": "c"}),
        ("{a: b}", {"a": "b"}),
        ("", None),
        ("\ufeffa: 1", {"a": 1}),
    ],
)
def test_tags_and_keys(text: str, want: Any) -> None:
    assert parse_document(text) == want


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (".inf", "not a JSON value"),
        ("-.NaN", "not a JSON value"),
        ("!!python/object:os.system x", "the tag .* is not known"),
        ("!!set {a}", "the tag .* is not known"),
        ("!foo {a: 1}", "the tag !foo is not known"),
        ("!!int x", "invalid !!int 'x'"),
        ("!!binary '*'", "!!binary must be text in base64"),
        ("{[a]: b}", "a key must be a string"),
        ("{~: b}", "a key must be a string"),
        ("{<<: 1}", "<< takes a mapping"),
        ("a: 1\n--- b", "2 YAML documents where one is expected"),
        ("a: b: c", "mapping values are not allowed"),
        ("\x00", "control characters are not allowed"),
        ("".join(f"%TAG !{at}! b\n" for at in range(200)) + "--- a", "more than 100 %TAG directives"),
    ],
)
def test_what_is_no_document_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(DocumentError, match=why):
        parse_yaml(text)


def test_a_document_of_too_many_bytes_is_refused() -> None:
    for read in (parse_json, parse_yaml, parse_document):
        with pytest.raises(DocumentError, match="longer than 10 bytes"):
            read("x" * 11, bytes_max=10)


@pytest.mark.parametrize("text", ["[1", "nan", "1e400", "9" * 5000, b"\xff", '{"a": 1,}', "\ud800"])
def test_what_is_no_json_is_refused(text: bytes | str) -> None:
    with pytest.raises(DocumentError):
        parse_json(text)


def test_the_line_of_what_is_wrong_is_named() -> None:
    with pytest.raises(DocumentError) as error:
        parse_yaml("a: 1\nb: [1\nc: 2\n")
    assert error.value.line == 3


def _levels(value: Any) -> int:
    """How deep a value is nested, found level by level."""
    level, levels = [value], 0
    while level := [part for part in level if isinstance(part, list | dict)]:
        levels += 1
        level = [child for part in level for child in (part.values() if isinstance(part, dict) else part)]
    return levels


@given(documents, st.integers(0, 5))
def test_what_is_not_too_deep_stays_as_it_is(value: Any, more: int) -> None:
    for _ in range(more):
        value = [value, '"]\\']
    text = json.dumps(value).encode()
    assert without_depth(text) == text


@pytest.mark.parametrize("levels", [NESTING_MAX, 300, 50_000])
def test_an_object_that_is_too_deep_keeps_no_other_from_being_read(levels: int) -> None:
    deep = b'{"a":[' * levels + b'"[{"' + b"]}" * levels
    text = b'{"items":[{"name":"x","deep":' + deep + b'},{"name":"y","deep":"[["}]}'
    items = parse_json(without_depth(text))["items"]
    assert [item["name"] for item in items] == ["x", "y"]
    assert _levels(items[0]) == NESTING_MAX - 2
    assert items[1]["deep"] == "[["


@given(st.binary() | st.text(alphabet='[]{}"\\,:1').map(str.encode))
def test_whatever_is_cut_has_no_depth(data: bytes) -> None:
    with contextlib.suppress(DocumentError):
        parse_json(without_depth(b"[" * 90 + data))
