"""Addresses of git repositories: read as users write them, and nothing else reaches git."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.runs.gitaddress import USAGE, GitAddress, parse_git, pinned


@pytest.mark.parametrize(
    ("text", "url", "ref"),
    [
        ("https://github.com/org/repo", "https://github.com/org/repo", ""),
        ("https://github.com/org/repo.git@main", "https://github.com/org/repo.git", "main"),
        ("https://git.lab:8443/a/b@feature/new-loss", "https://git.lab:8443/a/b", "feature/new-loss"),
        ("git@github.com:org/repo.git", "git@github.com:org/repo.git", ""),
        ("git@github.com:org/repo.git@v1.2", "git@github.com:org/repo.git", "v1.2"),
        ("ssh://git@git.lab:2222/org/repo@5f0ac3e", "ssh://git@git.lab:2222/org/repo", "5f0ac3e"),
        ("ssh://git.lab/org/repo", "ssh://git.lab/org/repo", ""),
        ("http://127.0.0.1:8000/repo.git@main", "http://127.0.0.1:8000/repo.git", "main"),
        ("https://h/@scope/repo.git@a@b", "https://h/@scope/repo.git", "a@b"),
    ],
)
def test_an_address_is_a_url_and_a_reference(text, url, ref):
    assert parse_git(text)[0] == GitAddress(url, ref)
    assert parse_git(pinned(text, "0" * 40))[0] == GitAddress(url, "0" * 40)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid git address"),
        ("--upload-pack=touch /tmp/x", "invalid git address"),
        ("ext::sh -c touch% /tmp/x", "invalid git address"),
        ("file:///etc", "invalid git address"),
        ("/srv/repo", "invalid git address"),
        ("https://-oProxyCommand=x/repo", "invalid git address"),
        ("ssh://-oProxyCommand=x/repo", "invalid git address"),
        ("git@-oProxyCommand=x:repo", "invalid git address"),
        ("git@host:-repo", "invalid git address"),
        ("https://host/a b", "invalid git address"),
        ("https://host/a\n.git", "invalid git address"),
        ("https://host/$(id)", "invalid git address"),
        ("http://host/repo", "http is allowed for localhost only"),
        ("https://ada:s3cret@host/repo", "contains a user or token"),
        ("https://ghp_0123456789@host/repo", "contains a user or token"),
        ("ssh://git:s3cret@host/repo", "contains a user or token"),
        ("https://host/repo@--orphan", "invalid branch"),
        ("https://host/repo@a..b", "invalid branch"),
        ("https://host/repo.git@HEAD@{1}", "invalid branch"),
        ("https://host/repo.git@a b", "invalid branch"),
        ("https://host/" + "x" * 3000, "too long"),
        ("https://host/repo@" + "x" * 300, "too long"),
    ],
)
def test_another_form_is_refused_and_no_credential_is_repeated(text, says):
    address, problem, hint = parse_git(text)
    assert (address, says in problem, bool(hint)) == (None, True, True)
    assert [secret for secret in ("s3cret", "ghp_") if secret in problem + hint] == []


def test_each_form_that_the_hint_names_is_accepted():
    forms = re.findall(r"\S+/PATH|\S+:PATH", USAGE)
    addresses = [form.replace("PORT", "8000").replace("HOST", "git.lab") for form in forms]
    assert addresses == [
        "https://git.lab/PATH",
        "ssh://git@git.lab/PATH",
        "git@git.lab:PATH",
        "http://127.0.0.1:8000/PATH",
    ]
    assert [parse_git(address)[0] for address in addresses] == [GitAddress(address) for address in addresses]


@given(st.text(max_size=40) | st.from_regex(r"(https://|git@|ssh://)[ -~]{0,30}", fullmatch=True))
def test_no_text_becomes_an_option_of_git_or_another_transport(text):
    address, problem, _ = parse_git(text)
    assert (address is None) == bool(problem)
    if address is not None:
        assert address.url.startswith(("https://", "http://", "ssh://")) or "@" in address.url.partition(":")[0]
        assert [part for part in (address.url, address.ref) if part.startswith("-")] == []
        assert not set(" \t\n\0\\'\"`$;|&<>()") & set(address.url)
