"""Match conditions: the part of CEL that the local cluster evaluates, and that it refuses the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_local.apiserver.admission.conditions import DEPTH_MAX, FIELDS, Unsupported, parse_condition

REQUEST = dict.fromkeys(FIELDS, "") | {
    "name": "train",
    "operation": "UPDATE",
    "resource.version": "v1",
    "resource.resource": "pods",
    "userInfo.username": "system:node:n1",
}


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("true", True),
        ("!true", False),
        ("request.name == 'train'", True),
        ('request.name != "train"', False),
        ("'train' == request.name", True),
        ("request.namespace == ''", True),
        ("request.resource.group == '' && request.resource.resource == 'pods'", True),
        ("request.userInfo.username.startsWith('system:node:')", True),
        ("request.userInfo.username.endsWith('n2') || request.name.contains('rai')", True),
        ("'system'.startsWith('sys')", True),
        ("true || false && false", True),  # && binds stronger
        ("(true || false) && false", False),
        ("!false == true", True),
        ("!(request.operation == 'UPDATE' && request.name == 'train')", False),
        ("!!true", True),
    ],
)
def test_a_condition_holds_as_in_kubernetes(expression, holds):
    assert parse_condition(expression)(REQUEST) is holds


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "object.spec.replicas > 3",
        "request.name",
        "request.name && true",
        "!request.name",
        "request.name == true",
        "request.uid == 'x'",
        "name == 'x'",
        "request.name.matches('x')",
        "request.name.size() == 2",
        "true.startsWith('x')",
        "request.name.startsWith(request.namespace)",
        "request.name in ['a']",
        "authorizer.path('/x').check('get').allowed()",
        "(true",
        "true)",
        "true ||",
        "'a\\n' == 'a'",
        "true == true == true",
        "true " * 2000,
        "!" * (DEPTH_MAX + 2) + "true",
        "(" * 2000 + "true" + ")" * 2000,
    ],
)
def test_what_is_not_understood_is_refused(expression):
    with pytest.raises(Unsupported):
        parse_condition(expression)


@given(st.text(alphabet=" '\"()!&|=.abtruefalsq" + "".join(FIELDS), max_size=60))
def test_no_text_breaks_it(expression):
    try:
        condition = parse_condition(expression)
    except Unsupported:
        return
    assert condition(REQUEST) in (True, False)


_ATOMS = st.sampled_from(["true", "false", "(request.name == 'train')", "(request.name != 'train')"])
_PYTHON = {"true": "True", "false": "False", "||": " or ", "&&": " and ", "!": " not "}


@given(
    st.recursive(
        _ATOMS,
        lambda inner: st.one_of(
            st.builds("!({})".format, inner),
            st.builds("{} && {}".format, inner, inner),
            st.builds("({} || {})".format, inner, inner),
        ),
        max_leaves=8,
    )
)
def test_it_agrees_with_python(expression):
    text = expression.replace("request.name == 'train'", "true").replace("request.name != 'train'", "false")
    for word, other in _PYTHON.items():
        text = text.replace(word, other)
    assert parse_condition(expression)(REQUEST) is eval(text.strip())
