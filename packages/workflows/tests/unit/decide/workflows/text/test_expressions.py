"""Expressions in expr-lang: what its documentation promises, and its limits."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError, TooMuchWork
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem, UnresolvedTag
from moorage_workflows.decide.workflows.text.expressions import Scope, evaluate, expression_text, names_in
from moorage_workflows.decide.workflows.text.functions import BUILTINS
from moorage_workflows.decide.workflows.text.sprig import REFUSED, SPRIG

SCOPE = {
    "n": 5,
    "text": "Hello",
    "none": None,
    "users": [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 17}, {"name": "Cleo", "age": 36}],
    "tree": {"a": {"b": [1, 2, 3]}, "empty": None, "odd key": 1},
    "inputs.parameters.x-y": "dash",
    "inputs.parameters.count": "3",
    "tasks.a.outputs.result": "heads",
    "tasks.b.outputs.parameters.msg": None,
}


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        # literals
        ("42", 42),
        ("0x2A", 42),
        ("0o52", 42),
        ("0b101010", 42),
        ("1_000", 1000),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("'it\\'s' + \"\\u00e9\\n\"", "it'sé\n"),
        ("`raw \\n`", "raw \\n"),
        ("[1, 'a', true, nil,]", [1, "a", True, None]),
        ("{a: 1, 'b c': 2, 3: 4, ('d' + 'e'): 5}", {"a": 1, "b c": 2, "3": 4, "de": 5}),
        ("1 /* one */ + 2 // two", 3),
        ("b'\\xff\\101' == b'\\377A'", True),
        # arithmetic, as Go has it
        ("7 / 2", 3.5),
        ("6 / 2", 3.0),
        ("7 % 3", 1),
        ("-7 % 3", -1),
        ("2 ** 3", 8.0),
        ("2 ^ 3 ^ 2", 512.0),
        ("-2 ** 2", -4.0),
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("9223372036854775807 + 1", -(2**63)),
        ("1.5 + 1", 2.5),
        ("-n", -5),
        # comparison and logic
        ("1 == 1.0", True),
        ("1 == '1'", False),
        ("true == 1", False),
        ("[1, [2.0]] == [1.0, [2]]", True),
        ("1 < 2 <= 2", True),
        ("1 < 2 < 2", False),
        ("'a' < 'b'", True),
        ("not (1 > 2) and 2 > 1", True),
        ("!true || 1 != 2", True),
        ("false && unknown", False),
        ("true || unknown", True),
        ("n > 3 ? 'big' : 'small'", "big"),
        ("n > 9 ? 'big' : n > 3 ? 'mid' : 'small'", "mid"),
        ("n > 3 ?: unknown", True),
        ("if n > 9 { 'big' } else if n > 3 { 'mid' } else { 'small' }", "mid"),
        ("none ?? 'x'", "x"),
        ("none ?? none ?? 1", 1),
        # strings
        ("'a' + 'b'", "ab"),
        ("text contains 'ell'", True),
        ("text startsWith 'He'", True),
        ("text endsWith 'lo'", True),
        ("text matches '^H.*o$'", True),
        ("not (text matches 'x')", True),
        ("text not contains 'x'", True),
        ("text[1:3]", "el"),
        ("text[-2:]", "lo"),
        ("text[9:]", ""),
        ("text[0]", 72),
        # members
        ("tree.a.b[-1]", 3),
        ("tree['a'].b[0:2]", [1, 2]),
        ("tree['odd key']", 1),
        ("tree.empty?.deeper.still", None),
        ("tree.empty?.deeper ?? 'x'", "x"),
        ("tree?.a?.b?.[0]", 1),
        ("'a' in tree", True),
        ("2 in tree.a.b", True),
        ("7 not in tree.a.b", True),
        ("'x' in none", False),
        ("inputs.parameters['x-y']", "dash"),
        ("$env['n']", 5),
        ("'n' in $env and 'z' not in $env", True),
        ("tasks['a'].outputs.result", "heads"),
        ("tasks.b.outputs.parameters.msg ?? 'fallback'", "fallback"),
        ("tasks.b.outputs.parameters.none ?? 'fallback'", "fallback"),
        ("tasks.a.outputs.result == 'heads' ? 1 : tasks.never.outputs.result", 1),
        # pipes, let, sequences, ranges
        ("'a b' | split(' ') | map(upper(#)) | join('-')", "A-B"),
        ("let x = 42; x * 2", 84),
        ("let x = 1; let y = x + 1; x + y", 3),
        ("1; 2; 3", 3),
        ("1..3", [1, 2, 3]),
        ("3..1", []),
        ("map(1..3, let y = # * 2; y + 1)".replace("let y = # * 2; y + 1", "{let y = # * 2; y + 1}"), [3, 5, 7]),
        # predicates
        ("all(1..3, # > 0)", True),
        ("any([], # > 0)", False),
        ("one([1, 2], # > 1)", True),
        ("none([1, 2], # > 2)", True),
        ("filter(0..9, {# % 2 == 0})", [0, 2, 4, 6, 8]),
        ("filter(users, .age > 18) | map(.name)", ["Ada", "Cleo"]),
        ("find([1, 2, 3, 4], # > 2)", 3),
        ("find([1], # > 2)", None),
        ("findIndex([1, 2, 3, 4], # > 2)", 2),
        ("findLast([1, 2, 3, 4], # > 2)", 4),
        ("findLastIndex([1, 2, 3, 4], # > 9)", -1),
        ("count(users, .age == 36)", 2),
        ("count([true, false, true])", 2),
        ("groupBy(users, .age) | keys()", [17, 36]),
        ("sum([1, 2, 3])", 6),
        ("sum(users, .age)", 89),
        ("reduce(1..9, #acc + #)", 45),
        ("reduce(1..3, #acc + #index, 10)", 13),
        ("reduce([], #acc + #, 7)", 7),
        ("sortBy(users, .age) | map(.name)", ["Bob", "Ada", "Cleo"]),
        ("sortBy(users, .name, 'desc') | map(.name)", ["Cleo", "Bob", "Ada"]),
        ("map([[1, 2], [3]], map(#, # * 2))", [[2, 4], [6]]),
        ("filter([1, 2], {let outer = #; any([2], # == outer)})", [2]),
        ("map(['a'], #index)", [0]),
        # functions
        ("trim('  a ') + trim('__a__', '_')", "aa"),
        ("trimPrefix('HelloWorld', 'Hello') + trimSuffix('HelloWorld', 'World')", "WorldHello"),
        ("upper('a') + lower('B')", "Ab"),
        ("split('a,b,c', ',', 2)", ["a", "b,c"]),
        ("split('ab', '')", ["a", "b"]),
        ("splitAfter('a,b', ',')", ["a,", "b"]),
        ("replace('aXbX', 'X', '-') + replace('aXbX', 'X', '-', 1)", "a-b-a-bX"),
        ("repeat('Hi', 3)", "HiHiHi"),
        ("join(['a', 'b']) + join(['a', 'b'], ',')", "aba,b"),
        ("indexOf('apple pie', 'pie')", 6),
        ("indexOf('éa', 'a')", 2),
        ("lastIndexOf('aXa', 'a')", 2),
        ("hasPrefix('ab', 'a') && hasSuffix('ab', 'b')", True),
        ("max(5, 7) + min([5, 7], 3)", 10),
        ("abs(-5)", 5),
        ("[ceil(1.5), floor(1.5), round(1.5), round(-2.5)]", [2.0, 1.0, 2.0, -3.0]),
        ("mean([1, 2, 3]) + median([3, 1, 2, 9])", 4.5),
        ("concat([1], [2, 3])", [1, 2, 3]),
        ("flatten([1, [2, [3]]])", [1, 2, 3]),
        ("uniq([1, 2, 1.0, 'a', 'a'])", [1, 2, "a"]),
        ("[first([1, 2]), last([1, 2]), first([])]", [1, 2, None]),
        ("take([1, 2, 3], 2)", [1, 2]),
        ("reverse([1, 2])", [2, 1]),
        ("sort([3, 1, 2], 'desc')", [3, 2, 1]),
        ("keys({b: 1, a: 2})", ["a", "b"]),
        ("values({b: 1, a: 2})", [2, 1]),
        ("toPairs({a: 1})", [["a", 1]]),
        ("fromPairs([['a', 1]])", {"a": 1}),
        (
            "[type(1), type(1.5), type('a'), type(nil), type([]), type({}), type(true)]",
            ["int", "float", "string", "nil", "array", "map", "bool"],
        ),
        ("int('42') + int(4.9)", 46),
        ("float('4.25')", 4.25),
        (
            "string(42) + string(1.0) + string([1, 'a']) + string({b: 1, a: nil}) + string(true)",
            "421[1 a]map[a:<nil> b:1]true",
        ),
        ("toJSON({b: [1], a: '<'})", '{\n  "a": "\\u003c",\n  "b": [\n    1\n  ]\n}'),
        ("fromJSON('{\"a\": [1, null]}')", {"a": [1.0, None]}),
        ("toBase64('Hello World')", "SGVsbG8gV29ybGQ="),
        ("fromBase64('SGVsbG8gV29ybGQ=')", "Hello World"),
        ("len('Héllo') + len([1]) + len({a: 1})", 7),
        ("get([1, 2, 3], 1) ?? get({a: 1}, 'b')", 2),
        ("get([1], 7) ?? 'x'", "x"),
        ("[bitand(10, 12), bitor(10, 12), bitxor(10, 12), bitnand(10, 12)]", [8, 14, 6, 2]),
        ("[bitnot(10), bitshl(45, 2), bitshr(45, 2), bitushr(-5, 2)]", [-11, 180, 11, 4611686018427387902]),
        # dates
        ("date('2023-08-14').Year()", 2023),
        ("date('2023-08-14 10:00:00', '2006-01-02 15:04:05', 'Europe/Zurich').UTC().Hour()", 8),
        ("date('2023-08-14T00:00:00Z').In(timezone('Europe/Zurich')).Format('15:04 -0700')", "02:00 +0200"),
        ("(date('2023-08-14') - date('2023-08-13')).Hours()", 24.0),
        ("date('2023-08-14') + duration('36h') > date('2023-08-15')", True),
        ("string(duration('90m'))", "1h30m0s"),
        ("date('2024-01-31').AddDate(0, 1, 0).Format('2006-01-02')", "2024-03-02"),
        ("now().Format('2006-01-02')", "2024-02-05"),
        # Argo's own
        ("asInt(inputs.parameters.count) + 1", 4),
        ("asFloat('1.5') * 2", 3.0),
        ("jsonpath('{\"a\": [{\"b\": 1}]}', '$.a[0].b')", 1.0),
        ("toJson({b: 1, a: 'x'})", '{"a":"x","b":1}'),
        ("sprig.upper('a') + sprig.trimSuffix('-x', 'b-x')", "Ab"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_expression_has_its_value(expression, want):
    value = evaluate(expression, SCOPE, now=datetime(2024, 2, 5, tzinfo=UTC))
    assert value == want
    assert type(value) is type(want)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "a value is missing"),
        ("1 +", "a value is missing"),
        ("(1", "'\\)' is missing"),
        ("[1", "is missing"),
        ("1 2", "not expected"),
        ("1x", "invalid number"),
        ("'abc", "not closed"),
        ("/* a", "a comment is not closed"),
        ("'\\q'", "unknown escape"),
        ("a ?? b && c", "put one of them in parentheses"),
        ("map([1])", "map needs a predicate"),
        ("# > 1", "a value is missing"),
        ("a not b", "after 'not'"),
        ("99999999999999999999", "above 2\\^63"),
        ("nosuch(1)", "no function nosuch"),
        ("len(1, 2)", "takes 1 arguments, not 2"),
        ("sprig.nosuch('a')", "sprig has no function nosuch"),
        ("sprig.env('HOME')", "sprig.env is not supported"),
        ("a | sprig.trim()", "is missing"),
        ("(" * 200 + "1" + ")" * 200, "nested more than"),
        ("-" * 200 + "1", "nested more than"),
        ("1" + " ** 1" * 200, "nested more than"),
        ("@", "not expected"),
        ("x" * 70_000, "the limit is 65,536"),
        ("text matches '(?=a)'", "invalid regular expression"),
    ],
    ids=lambda value: value[:30],
)
def test_wrong_syntax_is_refused(expression, words):
    with pytest.raises(SyntaxProblem, match=words):
        evaluate(expression, SCOPE)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("'a' + 1", "do not go together"),
        ("'a' - 'b'", "do not go together"),
        ("1 < 'a'", "have no order"),
        ("'a' && true", "neither true nor false"),
        ("true && 'a'", "neither true nor false"),
        ("n ? 1 : 2", "neither true nor false"),
        ("!n", "neither true nor false"),
        ("1 % 0", "divided by zero"),
        ("int('a')", "not a whole number"),
        ("int('1.5')", "not a whole number"),
        ("int(' 1')", "not a whole number"),
        ("float('')", "not a number"),
        ("tree.a.b[3]", "outside a list of 3"),
        ("none.x", "none is nil"),
        ("text.x", "has no member"),
        ("'a' in 'abc'", "not a list or map"),
        ("filter(tree, true)", "not a list"),
        ("filter([1], #)", "neither true nor false"),
        ("reduce([], #acc + #)", "the list is empty"),
        ("fromJSON('{')", "not JSON"),
        ("toJSON(1 / 0)", "cannot be written as JSON"),
        ("now()", "the current time is not available"),
        ("date('x')", "no known form"),
        ("timezone('Mars')", "unknown time zone"),
        ("duration('1d')", "write days as hours"),
        ("text.Format('x')", "has no method"),
        ("sprig.fail('my reason')", "my reason"),
        ("{(1): 2}", "not a key of a map"),
        ("sort([1, 'a'])", "have no order"),
        ("sort([1], 'up')", "use 'asc' or 'desc'"),
    ],
    ids=lambda value: value,
)
def test_values_that_do_not_fit_are_refused(expression, words):
    with pytest.raises(TextError, match=words):
        evaluate(expression, SCOPE)


@pytest.mark.parametrize(
    ("expression", "tag"),
    [
        ("unknown", "unknown"),
        ("unknown ?? 1", "unknown"),
        ("unknown?.x", "unknown"),
        ("unknown.x.y + 1", "unknown.x.y"),
        ("tasks.c.outputs.result", "tasks.c.outputs.result"),
        ("tasks['c'].id == 'x'", "tasks.c.id"),
        ("tasks.c.outputs.result ?? 'x'", "tasks.c.outputs.result"),
        ("tree.z", "tree.z"),
        ("map([1], unknown)", "unknown"),
    ],
)
def test_an_unknown_variable_is_named(expression, tag):
    with pytest.raises(UnresolvedTag) as caught:
        evaluate(expression, SCOPE)
    assert caught.value.tag == tag


@pytest.mark.parametrize(
    "expression",
    [
        "repeat('x', 100000000)",
        "1..10000000",
        "map(1..100000, map(1..1000, #))",
        "let a = repeat('x', 100000); replace(a, 'x', a)",
        "let a = [[1,1],[1,1]]; "
        + "".join(
            f"let b{i} = [{'a' if not i else f'b{i - 1}'}," * 1 + f"{'a' if not i else f'b{i - 1}'}]; "
            for i in range(60)
        )
        + "toJSON(b59)",
        "let a = 1..1000; join(map(a, repeat('x', 4000000)))",
        "let a = repeat('x', 4000000); a + a",
        "sprig.indent(1000000, repeat('\\n', 1000))",
        "sprig.until(1000000000)",
        "let a = repeat('x', 4000000); map(1..100000, a startsWith a)",
        "let a = repeat('x', 4000000); map(1..100000, a < a)",
        "let a = repeat('x', 4000000); map(1..100000, hasPrefix(a, a))",
        "let a = repeat('x', 4000000); sort(map(1..1000, a))",
        "uniq(1..90000)",
        "text matches repeat('(a{0,1000})', 1000)",
    ],
    ids=lambda value: value[:40],
)
def test_what_would_run_or_grow_without_end_is_stopped(expression):
    with pytest.raises((TooMuchWork, SyntaxProblem)):
        evaluate(expression, SCOPE)


def test_a_pattern_that_backtracks_for_ever_elsewhere_is_answered():
    assert evaluate("(repeat('a', 5000) + 'c') matches '^(a+)+b$'", {}) is False


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("inputs.parameters.x + 1", {"inputs.parameters.x"}),
        ("tasks['a'].outputs.result", {"tasks.a.outputs.result"}),
        ("item?.a.b ?? workflow.name", {"item.a.b", "workflow.name"}),
        ("sprig.trim(steps.a.id) + string(asInt(x))", {"steps.a.id", "x"}),
        ("let y = a.b; y.c + y", {"a.b"}),
        ("filter(items, .size > limit)", {"items", "limit"}),
        ("tasks[which].id", {"tasks", "which"}),
        ("now().Year() + date(d).Unix()", {"d"}),
        ("$env['a'].b", {"a.b"}),
        ("1 + 2", set()),
    ],
)
def test_names_are_those_that_are_read(expression, names):
    assert names_in(expression) == names


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "a"),
        ('"a"', '"a"'),
        (1, "1"),
        (1.0, "1"),
        (1.5e300, "1.5e+300"),
        (1e-7, "1e-7"),
        (True, "true"),
        (None, "null"),
        ({"b": 1, "a": ["<"]}, '{"a":["\\u003c"],"b":1}'),
        (datetime(2024, 2, 5, 1, 2, 3, 500000, tzinfo=UTC), "2024-02-05T01:02:03.5Z"),
    ],
)
def test_a_result_has_its_text(value, text):
    assert expression_text(value) == text


INTEGERS = st.integers(-(2**40), 2**40)
FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(INTEGERS, INTEGERS, st.sampled_from("+-*"))
def test_whole_numbers_are_reckoned_as_in_64_bits(left, right, sign):
    exact = {"+": left + right, "-": left - right, "*": left * right}[sign]
    assert evaluate(f"a {sign} b", {"a": left, "b": right}) == (exact + 2**63) % 2**64 - 2**63


@given(FLOATS, FLOATS.filter(bool))
def test_floats_are_reckoned_as_python_reckons(left, right):
    assert evaluate("[a + b, a - b, a * b, a / b, a < b]", {"a": left, "b": right}) == [
        left + right,
        left - right,
        left * right,
        left / right,
        left < right,
    ]


@given(INTEGERS, INTEGERS.filter(bool))
def test_a_remainder_has_the_sign_of_what_is_divided(left, right):
    assert evaluate("a % b", {"a": left, "b": right}) == math.fmod(left, right)


@given(st.lists(st.integers(-100, 100), max_size=20))
def test_list_functions_agree_with_python(numbers):
    got = evaluate("[sort(x), sum(x), reverse(x), filter(x, # > 0), map(x, # * 2), len(x)]", {"x": numbers})
    assert got == [
        sorted(numbers),
        sum(numbers),
        numbers[::-1],
        [number for number in numbers if number > 0],
        [number * 2 for number in numbers],
        len(numbers),
    ]


@given(st.text(max_size=20), st.text(min_size=1, max_size=3))
def test_what_is_split_is_joined_again(text, separator):
    assert evaluate("join(split(x, y), y)", {"x": text, "y": separator}) == text


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=20))
def test_strings_come_back_from_their_encodings(text):
    assert evaluate("[fromJSON(toJSON(x)), fromBase64(toBase64(x))]", {"x": text}) == [text, text]


WORDS = st.sampled_from(
    [
        "1",
        "2.5",
        "'a'",
        '"b"',
        "nil",
        "true",
        "n",
        "text",
        "users",
        "tree",
        "unknown",
        "#",
        ".",
        "a",
        "x",
        "(",
        ")",
    ]
    + ["[", "]", "{", "}", ",", ":", ";", "?", "??", "?.", "+", "-", "*", "/", "%", "**", "..", "==", "<", "in"]
    + ["not", "and", "||", "|", "let", "=", "if", "else", "matches", "filter(", "map(", "reduce(", "sortBy(", " "]
    + [f"{name}(" for name in sorted(BUILTINS)]
)
ARGUMENTS = [
    "1",
    "-3",
    "2.5",
    "'a b'",
    "'1h'",
    "nil",
    "true",
    "[1, 'a']",
    "[3, 1]",
    "{a: 1}",
    "users",
    "'$.a'",
    "b'x'",
]
ARGUMENTS += [
    "date('2024-01-02')",
    "duration('1h')",
    "9223372036854775807",
    "1/0",
    "'['",
    "[[1, 2]]",
    "timezone('UTC')",
]


@given(st.lists(WORDS, max_size=14).map(" ".join) | st.text(max_size=30))
@settings(max_examples=400)
def test_any_text_gives_a_value_or_is_refused(text):
    with contextlib.suppress(TextError):
        evaluate(text, SCOPE)


@pytest.mark.parametrize("name", [*sorted(BUILTINS), *(f"sprig.{name}" for name in sorted(SPRIG))])
@given(st.lists(st.sampled_from(ARGUMENTS), max_size=4))
@settings(max_examples=25)
def test_any_arguments_give_a_value_or_are_refused(name, arguments):
    with contextlib.suppress(TextError):
        value = evaluate(f"{name}({', '.join(arguments)})", SCOPE, now=datetime(2024, 2, 5, tzinfo=UTC))
        expression_text(value)


def test_no_function_is_both_there_and_refused():
    assert not REFUSED.keys() & SPRIG.keys()


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "c-d"]), min_size=1, max_size=3).map(".".join)


@given(st.dictionaries(NAMES, st.sampled_from(["x", "y", None]) | st.just({"a": "inner"}), max_size=6), NAMES)
def test_a_path_leads_to_what_the_whole_tree_has(flat, name):
    scope, whole = Scope(flat), Scope(flat)
    path = name.split(".")
    assert whole.tree is not None  # so that `around` has all of it
    level = whole.tree
    for part in path:
        level = level.get(part) if isinstance(level, dict) and part in level else None
        if level is None:
            break
    try:
        got = evaluate(
            "".join([path[0], *(f"['{part}']" for part in path[1:])]) if path[0] != "c-d" else "nil", flat
        )
    except TextError:
        got = None
    assert path[0] == "c-d" or got == level
    assert scope.has(path) == whole.has(path)
