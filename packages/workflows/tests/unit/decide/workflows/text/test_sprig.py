"""Functions of sprig in expressions."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.semver import compare
from moorage_workflows.decide.workflows.text.sprig import REFUSED, SPRIG

# all of sprig 3.3
NAMES = """
hello ago date date_in_zone date_modify dateInZone dateModify duration durationRound htmlDate htmlDateInZone
must_date_modify mustDateModify mustToDate now toDate unixEpoch abbrev abbrevboth trunc trim upper lower title
untitle substr repeat trimall trimAll trimSuffix trimPrefix nospace initials randAlphaNum randAlpha randAscii
randNumeric swapcase shuffle snakecase camelcase kebabcase wrap wrapWith contains hasPrefix hasSuffix quote
squote cat indent nindent replace plural sha1sum sha256sum sha512sum adler32sum toString atoi int64 int
float64 seq toDecimal split splitList splitn toStrings until untilStep add1 add sub div mod mul randInt add1f
addf subf divf mulf biggest max min maxf minf ceil floor round join sortAlpha default empty coalesce all any
compact mustCompact fromJson toJson toPrettyJson toRawJson mustFromJson mustToJson mustToPrettyJson
mustToRawJson ternary deepCopy mustDeepCopy typeOf typeIs typeIsLike kindOf kindIs deepEqual env expandenv
getHostByName base dir clean ext isAbs osBase osClean osDir osExt osIsAbs b64enc b64dec b32enc b32dec tuple
list dict get set unset hasKey pluck keys pick omit merge mergeOverwrite mustMerge mustMergeOverwrite values
append push mustAppend mustPush prepend mustPrepend first mustFirst rest mustRest last mustLast initial
mustInitial reverse mustReverse uniq mustUniq without mustWithout has mustHas slice mustSlice concat dig chunk
mustChunk bcrypt htpasswd genPrivateKey derivePassword buildCustomCert genCA genCAWithKey genSelfSignedCert
genSelfSignedCertWithKey genSignedCert genSignedCertWithKey encryptAES decryptAES randBytes uuidv4 semver
semverCompare fail regexMatch mustRegexMatch regexFindAll mustRegexFindAll regexFind mustRegexFind
regexReplaceAll mustRegexReplaceAll regexReplaceAllLiteral mustRegexReplaceAllLiteral regexSplit
mustRegexSplit regexQuoteMeta urlParse urlJoin
"""


def test_every_function_is_there_or_refused_with_a_reason():
    assert set(NAMES.split()) - SPRIG.keys() - REFUSED.keys() == set()
    assert all(REFUSED.values())


@pytest.mark.parametrize(
    ("call", "want"),
    [
        ("abbrev(5, 'hello world')", "he..."),
        ("abbrevboth(5, 10, '1234 5678 9123')", "...5678..."),
        ("trunc(5, 'hello world')", "hello"),
        ("trunc(-5, 'hello world')", "world"),
        ("trim('  hello ')", "hello"),
        ("trimAll('$', '$5.00$')", "5.00"),
        ("trimSuffix('-', 'hello-') + sprig.trimPrefix('-', '-hello')", "hellohello"),
        ("title('hello world')", "Hello World"),
        ("untitle('Hello World')", "hello world"),
        ("repeat(3, 'hi')", "hihihi"),
        ("substr(0, 5, 'hello world') + sprig.substr(6, -1, 'hello world')", "helloworld"),
        ("nospace('h e\\tl')", "hel"),
        ("initials('First Try')", "FT"),
        ("swapcase('aB')", "Ab"),
        ("snakecase('FirstName')", "first_name"),
        ("snakecase('HTTPServer')", "http_server"),
        ("snakecase('http2xx')", "http_2xx"),
        ("snakecase('GO PATH')", "go_path"),
        ("kebabcase('FirstName')", "first-name"),
        ("camelcase('http_server')", "HttpServer"),
        ("camelcase('_complex__case_')", "_ComplexCase_"),
        ("wrap(5, 'aaa bbb ccc')", "aaa\nbbb\nccc"),
        ("wrapWith(3, '|', 'aaaaa b')", "aaa|aa|b"),
        ("contains('ell', 'hello')", True),
        ("hasPrefix('he', 'hello') && sprig.hasSuffix('lo', 'hello')", True),
        ("quote('a', 1, 'b\"c')", '"a" "1" "b\\"c"'),
        ("squote('a', 'b')", "'a' 'b'"),
        ("cat('a', 1, nil, true)", "a 1 true"),
        ("indent(2, 'a\\nb')", "  a\n  b"),
        ("nindent(2, 'a')", "\n  a"),
        ("replace(' ', '-', 'a b c')", "a-b-c"),
        ("plural('one', 'many', 1) + sprig.plural('one', 'many', 0)", "onemany"),
        ("sha256sum('')", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("sha1sum('')", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("adler32sum('Wikipedia')", "300286872"),
        ("b64enc('hi') + sprig.b64dec('aGk=')", "aGk=hi"),
        ("b32enc('hi') + sprig.b32dec('NBUQ====')", "NBUQ====hi"),
        ("atoi('42') + sprig.atoi('x')", 42),
        ("int('0x10') + sprig.int(true) + sprig.int(2.9) + sprig.int('x')", 19),
        ("float64('1.5')", 1.5),
        ("toDecimal('777')", 511),
        ("seq(1, 2, 7)", "1 3 5 7"),
        ("seq(3)", "1 2 3"),
        ("seq(-2)", "1 0 -1 -2"),
        ("until(3)", [0, 1, 2]),
        ("untilStep(3, 6, 2)", [3, 5]),
        ("untilStep(3, 0, -1)", [3, 2, 1]),
        ("add(1, 2, '3')", 6),
        ("sub(5, 2) + sprig.mul(2, 3, 4) + sprig.add1(1)", 29),
        ("div(-7, 2)", -3),
        ("mod(-7, 3)", -1),
        ("addf(1.5, 2, 0.1)", 3.6),
        ("divf(10, 4)", 2.5),
        ("subf(7.5, 2, 3)", 2.5),
        ("max(1, 3, 2) + sprig.min(1, 3, 2)", 4),
        ("maxf(1.5, 3)", 3.0),
        (
            "[sprig.ceil(1.1), sprig.floor(1.9), sprig.round(123.555555, 3)]".replace(
                "[sprig.", "list(sprig.", 1
            ).replace("]", ")"),
            [2.0, 1.0, 123.556],
        ),
        ("split('$', 'a$b')", {"_0": "a", "_1": "b"}),
        ("splitn('$', 2, 'a$b$c')", {"_0": "a", "_1": "b$c"}),
        ("splitList('$', 'a$b')", ["a", "b"]),
        ("join('-', ['a', 1, nil])", "a-1"),
        ("sortAlpha(['b', 'a'])", ["a", "b"]),
        ("toStrings([1, 'a'])", ["1", "a"]),
        ("default('x', '') + sprig.default('x', 'y')", "xy"),
        ("empty([]) && sprig.empty(0) && !sprig.empty('a')", True),
        ("coalesce(0, '', 'a')", "a"),
        ("all(1, '')", False),
        ("any(1, '')", True),
        ("compact([1, '', 'a', nil])", [1, "a"]),
        ("ternary('a', 'b', true)", "a"),
        ("fromJson('{\"a\": 1}')", {"a": 1.0}),
        ("fromJson('{')", None),
        ("toJson({b: '<', a: 1})", '{"a":1,"b":"\\u003c"}'),
        ("toRawJson('<')", '"<"'),
        ("typeOf(1.5)", "float64"),
        ("kindOf({a: 1})", "map"),
        ("kindIs('slice', [])", True),
        ("deepEqual([1, [2]], [1, [2]])", True),
        ("base('/a/b/') + sprig.dir('/a/b') + sprig.ext('x/y.tar.gz') + sprig.clean('/a/../b//c')", "b/a.gz/b/c"),
        ("base('') + sprig.base('/') + sprig.dir('a')", "./."),
        ("isAbs('/a')", True),
        ("dict('a', 1, 'b')", {"a": 1, "b": ""}),
        ("get({a: 1}, 'a')", 1),
        ("get({a: 1}, 'b')", ""),
        ("set({a: 1}, 'b', 2)", {"a": 1, "b": 2}),
        ("unset({a: 1, b: 2}, 'b')", {"a": 1}),
        ("pluck('a', {a: 1}, {b: 2}, {a: 3})", [1, 3]),
        ("keys({b: 1}, {a: 2})", ["b", "a"]),
        ("pick({a: 1, b: 2}, 'a')", {"a": 1}),
        ("omit({a: 1, b: 2}, 'a')", {"b": 2}),
        ("merge({a: 1, c: {x: 1}}, {a: 2, b: 3, c: {y: 2}})", {"a": 1, "b": 3, "c": {"x": 1, "y": 2}}),
        ("mergeOverwrite({a: 1}, {a: 2})", {"a": 2}),
        ("dig('a', 'b', 'none', {a: {b: 1}})", 1),
        ("dig('a', 'z', 'none', {a: {b: 1}})", "none"),
        ("append([1], 2)", [1, 2]),
        ("prepend([1], 2)", [2, 1]),
        ("list(sprig.first([1, 2]), sprig.last([1, 2]), sprig.first([]))", [1, 2, None]),
        ("list(sprig.rest([1, 2]), sprig.initial([1, 2]), sprig.reverse([1, 2]))", [[2], [1], [2, 1]]),
        ("uniq([1, 1, 2])", [1, 2]),
        ("without([1, 2, 3], 1, 3)", [2]),
        ("has(2, [1, 2])", True),
        ("slice([1, 2, 3], 1)", [2, 3]),
        ("concat([1], [2])", [1, 2]),
        ("chunk(2, [1, 2, 3])", [[1, 2], [3]]),
        ("regexMatch('^a', 'abc')", True),
        ("regexFindAll('[0-9]', 'a1b2c3', 2)", ["1", "2"]),
        ("regexFind('[a-c][1-3]', 'abc1')", "c1"),
        ("regexReplaceAll('a(x*)b', '-ab-axxb-', '${1}W')", "-W-xxW-"),
        ("regexReplaceAll('a(x*)b', '-axxb-', '$1W')", "--"),
        ("regexReplaceAllLiteral('a(x*)b', '-axxb-', '$1')", "-$1-"),
        ("regexSplit('z+', 'pizza', -1)", ["pi", "a"]),
        ("regexSplit('', 'abc', -1)", ["a", "b", "c"]),
        ("regexQuoteMeta('1.2')", "1\\.2"),
        (
            "urlParse('https://u:p@h:1/a%20b?q=1#f')",
            {
                "scheme": "https",
                "host": "h:1",
                "hostname": "h",
                "path": "/a b",
                "query": "q=1",
                "opaque": "",
                "fragment": "f",
                "userinfo": "u:p",
            },
        ),
        ("urlJoin({scheme: 'http', host: 'h', path: 'a', query: 'q=1'})", "http://h/a?q=1"),
        ("date('2006-01-02', 0)", "1970-01-01"),
        ("date('2006-01-02', 'any text')", "2024-02-05"),
        ("date('2006-01-02', '2023-11-24 18:30:00 +0000 UTC')", "2023-11-24"),
        ("dateInZone('2006-01-02', '2023-11-24T23:30:00Z', 'Asia/Tokyo')", "2023-11-25"),
        ("dateInZone('15:04', date('2024-07-01'), 'Europe/Zurich')", "02:00"),
        ("htmlDate(date('2024-07-01'))", "2024-07-01"),
        ("unixEpoch(date('1970-01-02'))", "86400"),
        ("dateModify('-24h', date('1970-01-02')).Unix()", 0),
        ("toDate('2006', '2024').Year()", 2024),
        ("duration('95')", "1m35s"),
        ("durationRound('2h10m5s')", "2h"),
        ("ago(date('2024-02-04'))", "24h0m0s"),
        ("mustToJson([1])", "[1]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_has_its_value(call, want):
    assert evaluate(f"sprig.{call}", {}, now=datetime(2024, 2, 5, tzinfo=UTC)) == want


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_function_says_why(name):
    with pytest.raises(SyntaxProblem, match=f"sprig.{name} is not supported: "):
        evaluate(f"sprig.{name}('x')", {})


def test_the_moment_of_creation_may_be_formatted_in_a_decision():
    scope = {
        "workflow.creationTimestamp": "2023-11-24 18:30:00 +0000 UTC",
        "workflow.creationTimestamp.RFC3339": "2023-11-24T18:30:00Z",
        "workflow.scheduledTime": "2022-11-24T18:30:00Z",
    }
    assert evaluate("sprig.date('2006', workflow.creationTimestamp)", scope) == "2023"
    assert evaluate("sprig.date('2006', workflow.scheduledTime)", scope) == "2022"


@pytest.mark.parametrize("call", ["now()", "date('2006', 'x')", "ago('x')"])
def test_the_clock_is_not_read(call):
    with pytest.raises(TextError, match="the current time is not available"):
        evaluate(f"sprig.{call}", {})


@pytest.mark.parametrize(
    ("constraint", "version", "want"),
    [
        ("1.2.3", "1.2.3", True),
        ("=1.2.3", "v1.2.3", True),
        ("!=1.2.3", "1.2.4", True),
        (">1.2", "1.2.9", False),
        (">1.2", "1.3.0", True),
        (">=1.2.0, <2", "1.9.0", True),
        (">= 1.2 < 2", "2.0.0", False),
        ("^1.2", "1.9.1", True),
        ("^1.2", "2.0.0", False),
        ("^0.2.3", "0.3.0", False),
        ("^0.2.3", "0.2.9", True),
        ("~1.2.3", "1.2.9", True),
        ("~1.2.3", "1.3.0", False),
        ("~1", "1.9.0", True),
        ("1.2.x", "1.2.7", True),
        ("*", "0.0.1", True),
        ("1.0 - 2.0", "1.5.0", True),
        ("<1 || >=3", "3.0.0", True),
        (">=1.0.0", "1.1.0-alpha", False),
        (">=1.0.0-0", "1.1.0-alpha", True),
        ("<1.1.0-beta", "1.1.0-alpha.2", True),
    ],
)
def test_a_version_meets_a_constraint(constraint, version, want):
    assert compare(constraint, version) is want


@pytest.mark.parametrize(("constraint", "version"), [("", "1.2.3"), (">>1", "1.2.3"), ("1.2.3", "x"), ("1", "")])
def test_what_is_no_version_is_refused(constraint, version):
    with pytest.raises(TextError, match="semverCompare"):
        compare(constraint, version)


VERSIONS = st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20))


@given(VERSIONS, VERSIONS)
def test_versions_have_the_order_of_their_numbers(left, right):
    one, other = ".".join(map(str, left)), ".".join(map(str, right))
    assert compare(f"<{other}", one) is (left < right)
    assert compare(f">={other}", one) is (left >= right)
