"""The pages of secrets: names and keys, values that no page shows, and deletions that ask."""

from __future__ import annotations

import base64
from urllib.parse import urlencode

import pytest

from moorage.model.names import SECRET_LABEL
from moorage_kube.resources import CONFIGMAPS, NAMESPACES, SECRETS
from tests.unit.server.pages.test_newjob import Browser

pytestmark = pytest.mark.anyio
VALUE = "hf_not-for-your-eyes"


@pytest.fixture
async def ada(site):
    async with site.running():
        browser = Browser(site)
        browser.api.put(NAMESPACES, {"metadata": {"name": "team"}})
        yield browser


async def create(ada, **form):
    headers = {"authorization": "Bearer kube-token", "content-type": "application/x-www-form-urlencoded"}
    form = {"name": "hf", "namespace": "team", "key": "HF_TOKEN", "value": VALUE} | form
    return await ada.site.ask(
        "/secrets/new", method="POST", headers=headers, body=urlencode(form).encode(), token=False
    )


async def test_a_secret_is_created_listed_without_its_values_and_deleted(ada):
    created = await create(ada, values="USER=ada\r\nPASSWORD = a=b\r\n")
    assert (created.status, created.headers["location"]) == (303, "/secrets?done=created&what=team%2Fhf")
    [secret] = (await ada.api.list(SECRETS, "team")).items
    assert {key: base64.b64decode(value).decode() for key, value in secret["data"].items()} == {
        "HF_TOKEN": VALUE, "USER": "ada", "PASSWORD": "a=b",
    }  # fmt: skip
    page = await ada.get("/secrets")
    [row] = page.page.rows("Secrets with their keys and users")
    assert (row["Keys"], row["In use by"]) == ("HF_TOKEN, PASSWORD, USER", "–")
    assert VALUE not in page.text
    assert (await ada.get("/secrets?q=password")).page.rows("Secrets with their keys and users") == [row]
    asked = await ada.get("/secrets/team/hf/delete")
    assert "Its values are lost." in asked.text
    assert (await ada.post("/secrets/team/hf/delete")).status == 303
    assert [
        obj for obj in (await ada.api.list(CONFIGMAPS, "team")).items if SECRET_LABEL in obj["metadata"]["labels"]
    ] == []
    assert (await ada.get("/secrets/team/hf/delete")).status == 404


@pytest.mark.parametrize(
    ("form", "field", "says"),
    [
        ({"name": "HF"}, "name", "Invalid name 'HF'"),
        ({"key": ""}, "key", "Give a key and its value, or leave both empty."),
        ({"value": ""}, "value", "Give a key and its value, or leave both empty."),
        ({"key": "", "value": ""}, "key", "A secret needs a key and its value"),
        ({"key": "a key"}, "values", "Invalid key 'a key'"),
        ({"values": f"A=1\n{VALUE}"}, "values", "Line 2 is invalid: use KEY=VALUE, one on each line."),
    ],
)
async def test_a_refused_form_has_the_error_at_its_field_and_no_value(ada, form, field, says):
    answer = await create(ada, **form)
    assert (answer.status, VALUE in answer.text) == (422, False)
    assert answer.page.problem_at(field).startswith(says)


async def test_values_are_replaced_only_when_asked_for(ada):
    assert (await create(ada, replace="yes")).page.note.startswith("Secret 'hf' not found in namespace team.")
    await create(ada)
    again = await create(ada, value="new")
    assert (again.status, again.page.problem_at("name")[:13]) == (409, "The name 'hf'")
    assert (await create(ada, value="new", replace="yes")).status == 303
    [secret] = (await ada.api.list(SECRETS, "team")).items
    assert base64.b64decode(secret["data"]["HF_TOKEN"]) == b"new"
