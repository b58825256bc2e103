"""Conditions of `when`, with all that surprises people in them."""

from __future__ import annotations

import contextlib
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text.when import holds


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", True, id="nothing holds"),
        pytest.param("true", True, id="true"),
        pytest.param("false", False, id="false"),
        pytest.param("heads == heads", True, id="words without quotes are strings"),
        pytest.param("heads == tails", False, id="other words"),
        pytest.param("heads == 'heads'", True, id="a word equals its quoted form"),
        pytest.param("\"heads\" == 'heads'", True, id="both kinds of quotes"),
        pytest.param("Succeeded != Failed", True, id="unequal"),
        pytest.param("5 < 10", True, id="numbers compare as numbers"),
        pytest.param("'5' < '10'", False, id="quoted numbers compare as strings"),
        pytest.param("5 == 5.0", True, id="all numbers are floats"),
        pytest.param("0x1F == 31", True, id="hexadecimal"),
        pytest.param('"1" == 1', False, id="a quoted number is not a number"),
        pytest.param("true == 'true'", False, id="a bool is not a string"),
        pytest.param("TRUE == 'TRUE'", True, id="TRUE is a word"),
        pytest.param("tails =~ tai", True, id="a pattern is found anywhere"),
        pytest.param("tails =~ '^ai'", False, id="a pattern with an anchor"),
        pytest.param("tails !~ hea", True, id="a pattern is not found"),
        pytest.param("a == a && b == b", True, id="and"),
        pytest.param("a == b || b == b", True, id="or"),
        pytest.param("a == b && x || b == b", True, id="and binds closer, and stops early"),
        pytest.param("!(a == b)", True, id="not"),
        pytest.param("!true == false", True, id="not binds to the value"),
        pytest.param("b in ('a', 'b')", True, id="in a list"),
        pytest.param("c IN (a, b)", False, id="IN, with words"),
        pytest.param("2 in (1, 2, 3)", True, id="in numbers"),
        pytest.param("'2' in (1, 2)", False, id="in numbers, as a string"),
        pytest.param("1 + 2 * 3 == 7", True, id="precedence"),
        pytest.param("10 - 3 - 2 == 5", True, id="from left to right"),
        pytest.param("2 ** 3 ** 2 == 64", True, id="powers too"),
        pytest.param("7 % 4 == 3", True, id="remainder"),
        pytest.param("7 / 2 == 3.5", True, id="division"),
        pytest.param("-3 + 4 == 1", True, id="negative number"),
        pytest.param("~1 == -2", True, id="bitwise not"),
        pytest.param("(6 & 3) == 2", True, id="bitwise and"),
        pytest.param("(6 | 3) == 7", True, id="bitwise or"),
        pytest.param("(6 ^ 3) == 5", True, id="bitwise xor"),
        pytest.param("1 << 4 == 16", True, id="shift left binds closer than =="),
        pytest.param("16 >> 2 == 4", True, id="shift right"),
        pytest.param("a + b == ab", True, id="strings are joined"),
        pytest.param("a + 1.50 == 'a1.5'", True, id="a string and a number are joined"),
        pytest.param("true ? true : false", True, id="ternary"),
        pytest.param("false ? true : false", False, id="ternary, the other"),
        pytest.param("1 > 2 ? false : true", True, id="ternary of a comparison"),
        pytest.param("2024-01-01 == 2022", True, id="a date without quotes is a subtraction"),
        pytest.param("'2024-01-01' < '2024-01-01T00:00:01Z'", True, id="quoted dates are moments"),
        pytest.param("'2024-01-01' == 1704067200", True, id="quoted dates are seconds"),
        pytest.param("foo\\-bar == 'foo-bar'", True, id="a backslash keeps a hyphen"),
        pytest.param("[foo bar] == 'foo bar'", True, id="square brackets hold a word with spaces"),
        pytest.param("'a' < 'b'", True, id="strings have an order"),
        pytest.param("\n a\n ==\ta ", True, id="white space"),
    ],
)
def test_a_condition_holds_or_not(text, want):
    assert holds(text) is want


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("foo-bar == x", "'foo' is not a number", id="a hyphen is a minus"),
        pytest.param("a/b == c", "'a' is not a number", id="a slash is a division"),
        pytest.param("'a' < 1", "have no order", id="a string against a number"),
        pytest.param("yes", "neither true nor false", id="a word alone"),
        pytest.param("1 + 1", "neither true nor false", id="a number alone"),
        pytest.param("false ? true", "neither true nor false", id="a ternary without its end"),
        pytest.param("a && true", "neither true nor false", id="and of a word"),
        pytest.param("false || a", "neither true nor false", id="or of a word"),
        pytest.param("x in ('x')", "is not a list", id="a list of one"),
        pytest.param("5 =~ 5", "is not a string", id="a pattern against a number"),
        pytest.param("a =~ '('", "invalid regular expression", id="a wrong pattern"),
        pytest.param("!a", "not expected after prefix", id="not of a word"),
        pytest.param("!'a'", "not expected after prefix", id="not of a string"),
        pytest.param("a.b == c", "has a dot", id="a dot in a word"),
        pytest.param("1.2.3 == x", "invalid number", id="a version"),
        pytest.param("1a == x", "not expected after number", id="a number that runs into a word"),
        pytest.param("a ==-1", "'==-' is not an operator", id="operators that touch"),
        pytest.param("a = b", "'=' is not an operator", id="a single ="),
        pytest.param("a == 'b", "not closed", id="an open string"),
        pytest.param("'it's' == a", "not expected after string", id="either quote ends a string"),
        pytest.param("(a == b", "not closed", id="an open bracket"),
        pytest.param("a == b)", "not expected", id="a bracket too many"),
        pytest.param("a ==", "ends too early", id="no right side"),
        pytest.param("   ", "ends too early", id="white space alone"),
        pytest.param("a b", "not expected after word", id="two words"),
        pytest.param("{{x}} == a", "not an operator", id="a tag that was not replaced"),
        pytest.param("(" * 300 + "true" + ")" * 300, "nested more than", id="brackets without end"),
        pytest.param("x" * 70_000, "the limit is 65,536", id="too long"),
        pytest.param("a\\", "backslash", id="a backslash at the end"),
        pytest.param("'2024-01-01' ? true : false", "not expected after date", id="a date as a condition"),
    ],
)
def test_what_govaluate_refuses_is_refused(text, words):
    with pytest.raises(TextError, match=words) as caught:
        holds(text)
    assert "when condition" in caught.value.message or "character" in caught.value.message


NUMBERS = st.integers(0, 10**6) | st.decimals(0, 1000, places=3).map(float)
ORDERS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def written(number) -> str:
    return f"{number:.3f}"


@given(NUMBERS, st.sampled_from(sorted(ORDERS)), NUMBERS)
def test_numbers_compare_as_in_python(left, sign, right):
    assert holds(f"{written(left)} {sign} {written(right)}") is ORDERS[sign](float(left), float(right))


@given(
    st.text(alphabet="abc xyz_ÄÖ.-/{}[]", max_size=15),
    st.sampled_from(["==", "!=", "<", ">"]),
    st.text(alphabet="abc.-", max_size=5),
)
def test_quoted_strings_compare_as_in_python(left, sign, right):
    assert holds(f"'{left}' {sign} \"{right}\"") is ORDERS[sign](left, right)


BOOLEANS = st.recursive(
    st.booleans(),
    lambda inner: st.tuples(st.sampled_from(["&&", "||"]), inner, inner) | st.tuples(st.just("!"), inner),
    max_leaves=15,
)


def spelled(tree) -> str:
    match tree:
        case bool():
            return "true" if tree else "false"
        case ("!", inner):
            return f"!({spelled(inner)})"
        case (sign, left, right):
            return f"({spelled(left)}) {sign} ({spelled(right)})"
    raise AssertionError(tree)


def truth(tree) -> bool:
    match tree:
        case bool():
            return tree
        case ("!", inner):
            return not truth(inner)
        case ("&&", left, right):
            return truth(left) and truth(right)
        case (_, left, right):
            return truth(left) or truth(right)
    raise AssertionError(tree)


@given(BOOLEANS)
def test_logic_is_logic(tree):
    assert holds(spelled(tree)) is truth(tree)


PARTS = [
    "a",
    "true",
    "1",
    "2.5",
    "'x'",
    '"2024-01-01"',
    "(",
    ")",
    "==",
    "!=",
    "<",
    "=~",
    "!~",
    "in",
    ",",
    "&&",
    "||",
    "!",
]
PARTS += ["-", "+", "*", "**", "/", "%", "?", ":", "??", "~", "&", "|", "^", "<<", ">>", "[", "]", "\\", " ", "."]


@given(st.lists(st.sampled_from(PARTS), max_size=12).map(" ".join) | st.text(max_size=30))
@settings(max_examples=500)
def test_any_text_holds_or_not_or_is_refused(text):
    with contextlib.suppress(TextError):
        assert holds(text) in (True, False)
