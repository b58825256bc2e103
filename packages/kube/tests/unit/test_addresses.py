"""Hosts and paths, read once and strictly."""

from __future__ import annotations

import posixpath
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.addresses import (
    Authority,
    client_network,
    is_odd_path,
    parse_authority,
    parse_origin,
    plain_path,
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("localhost", Authority("localhost")),
        ("LocalHost:8080", Authority("localhost", 8080)),
        ("127.0.0.1:1", Authority("127.0.0.1", 1)),
        ("[::1]:65535", Authority("[::1]", 65535)),
        ("[0:0:0:0:0:0:0:1]", Authority("[::1]")),
        ("a-b.c_d.example", Authority("a-b.c_d.example")),
    ],
)
def test_a_host_and_its_port(text, want):
    assert parse_authority(text) == want


@pytest.mark.parametrize(
    "text",
    ["", " localhost", "localhost ", "localhost.", ".localhost", "a..b", "ada@localhost", "localhost@evil.example",
     "localhost:", "localhost:0", "localhost:65536", "localhost:²", "localhost:80:80", "localhost:+80", "[::1",
     "::1", "[::1]evil", "[::1]:", "[localhost]", "[fe80::1%eth0]", "localhost/x", "localhost?", "localhost#",
     "-a", "a-", "lócalhost", "a\tb", "a,b", "localhost\x00", "x" * 64, ".".join(["x" * 60] * 5)],
)  # fmt: skip
def test_what_is_no_plain_host_is_refused(text):
    with pytest.raises(ValueError, match="host|port"):
        parse_authority(text)


@pytest.mark.parametrize(
    "text", ["null", "", "file://", "localhost", "http://", "http://a/", "http://u@a", "ws://a"]
)
def test_what_is_no_web_origin_is_refused(text):
    with pytest.raises(ValueError, match=r"origin|host|port"):
        parse_origin(text)


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("//private", "/private"),
        ("/./private", "/private"),
        ("/x/../private", "/private"),
        ("/x/%2e%2e/private", "/private"),
        ("/%2fprivate", "/private"),
        ("/%70rivate", "/private"),
        ("/\\private", "/private"),
        ("/%5cprivate", "/private"),
        ("/private;x=1/y", "/private/y"),
        ("/private%3bx", "/private"),
        ("/..", "/"),
        ("/a/..", "/"),
        ("/a/.", "/a/"),
        ("/%252e%252e/private", "/%2e%2e/private"),
        ("/%C3%A9", "/é"),
    ],
)
def test_a_path_is_judged_as_the_most_lenient_would_read_it(path, want):
    assert plain_path(path) == want


@pytest.mark.parametrize("path", ["", "a", "*", "/%", "/%g0", "/%ff", "/%00", "/a%0ab"])
def test_a_path_that_nobody_can_read_is_refused(path):
    with pytest.raises(ValueError, match=r"path|escape|control|utf-8"):
        plain_path(path)


SPELLINGS = st.lists(
    st.sampled_from(["/", "//", "/./", "/x/../", "%2f", "%2F", "/%2e/", "/;a/", "\\", "%5c", "/%2e%2e/"]),
    max_size=4,
)


@given(SPELLINGS, st.sampled_from(["private", "%70rivate", "private;x", "priv%61te"]))
def test_no_spelling_of_a_path_gets_past_its_rule(before, name):
    assert plain_path("/" + "".join(before) + name) in ("/private", "/x/private")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1), max_size=5))
def test_a_judged_path_is_judged_the_same_again(parts):
    path = plain_path("/" + "/".join(quote(part, safe="") for part in parts))
    assert plain_path(quote(path, safe="/")) == path
    assert posixpath.normpath(path) == (path.rstrip("/") or "/")


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:0:7:1:2:3:4", "2001:db8:0:7::/64"),
        ("2001:db8:0:7::", "2001:db8:0:7::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("::1", "::/64"),
        ("", ""),
        ("unknown", "unknown"),
    ],
)
def test_the_network_of_a_client(address, network):
    assert client_network(address) == network


@pytest.mark.parametrize(
    "path", ["//a", "/a//b", "/./a", "/a/..", "/a\\b", "/a%2Fb", "/a%2e%2E/b", "/a%5Cb", "/a%00"]
)
def test_what_could_be_read_in_two_ways_is_odd(path):
    assert is_odd_path(path)
    assert not is_odd_path("/api/v1/maps/lab/a.b-c_d/items/0..5")
