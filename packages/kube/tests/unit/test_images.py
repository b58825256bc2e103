"""Tables of what is known of images."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import DocumentError
from moorage_kube.images import ImageRule, parse_reference, parse_rules, rule_of, short_name, without_tag


@pytest.mark.parametrize(
    ("pattern", "image", "fits"),
    [
        pytest.param("busybox", "busybox", True, id="the same name"),
        pytest.param("busybox", "busybox:1.36", True, id="any tag"),
        pytest.param("busybox", "busybox@sha256:12", True, id="a digest"),
        pytest.param("busybox", "docker.io/library/busybox:1", True, id="the name in full"),
        pytest.param("busybox:1", "busybox:2", False, id="another tag"),
        pytest.param("busybox", "mybusybox", False, id="another name"),
        pytest.param("busybox", "lab/busybox", False, id="another owner"),
        pytest.param("*/busybox*", "lab/busybox:1", True, id="a pattern"),
        pytest.param("localhost:5000/x", "localhost:5000/x", True, id="a port is no tag"),
        pytest.param("localhost", "localhost:5000/x", False, id="a registry is no image"),
        pytest.param("*", "anything/at:all", True, id="everything"),
    ],
)
def test_a_pattern_fits_images(pattern: str, image: str, fits: bool) -> None:
    assert (rule_of([ImageRule(image=pattern)], image) is not None) is fits


def test_the_first_rule_that_fits_counts() -> None:
    rules = [ImageRule(image="a", cmd=("1",)), ImageRule(image="*", cmd=("2",))]
    assert [rule.cmd for image in ("a:1", "b") if (rule := rule_of(rules, image))] == [("1",), ("2",)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("{}", "list", id="no list"),
        pytest.param("[1]", "entry 0", id="no object"),
        pytest.param('[{"image": ""}]', "entry 0", id="no name"),
        pytest.param('[{"image": "a", "command": []}]', "'command'", id="an unknown field"),
        pytest.param('[{"image": "a", "cmd": "sh"}]', "cmd must be a list", id="a text for a list"),
        pytest.param('[{"image": "a", "env": {"A": 1}}]', "env must be", id="a number in env"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        parse_rules(text)


@given(st.text())
def test_any_text_is_a_name_of_an_image(text: str) -> None:
    assert len(without_tag(short_name(text))) <= len(text)
    rule_of([ImageRule(image=text), ImageRule(image="[")], text)


@pytest.mark.parametrize(("image", "want"), [
    ("busybox", ("registry-1.docker.io", "library/busybox", "latest", "")),
    ("argoproj/argosay:v2", ("registry-1.docker.io", "argoproj/argosay", "v2", "")),
    ("docker.io/library/python:3", ("registry-1.docker.io", "library/python", "3", "")),
    ("ghcr.io/org/a/b:1.2-x", ("ghcr.io", "org/a/b", "1.2-x", "")),
    ("localhost:5000/x", ("localhost:5000", "x", "latest", "")),
    ("r.corp/x:1@sha256:" + "a" * 64, ("r.corp", "x", "1", "sha256:" + "a" * 64)),
    ("[::1]:5000/x", ("[::1]:5000", "x", "latest", "")),
])  # fmt: skip
def test_an_image_is_in_a_registry(image, want):
    reference = parse_reference(image)
    assert (reference.host, reference.repository, reference.tag, reference.digest) == want


@pytest.mark.parametrize("image", [
    "", "Team/x", "r.corp/../x", "r.corp/x/", "r.corp/x:", "x@sha256:1", "a b", "user@host/x", "r.corp?y/x",
    "r.corp/x#y", "http://r.corp/x", "r.corp:80:90/x", "x" * 600,
])  # fmt: skip
def test_what_is_no_name_of_an_image_is_refused(image):
    with pytest.raises(DocumentError):
        parse_reference(image)
