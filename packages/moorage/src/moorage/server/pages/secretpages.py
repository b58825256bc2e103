"""The web pages of secrets: a list with names and keys, a form with values that no page shows, and a deletion."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from moorage.actions.secrets import SECRET, NewValues, create_secret, delete_secret, list_secrets
from moorage.api.secrets import Secret
from moorage.server.pages.board import owner_hues
from moorage.server.pages.formpages import form_page, may_make, namespaces_for, refused
from moorage.server.pages.forms import BadForm, Field, Form, Option, Reader
from moorage.server.pages.paging import page_of, wanted_of
from moorage.server.pages.site import Page, Site, change, checked_name, deletion, done, key_in, read_form
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError
from moorage_kube.resources import CONFIGMAPS, SECRETS

HERE = "/secrets"
NEW = f"{HERE}/new"
ONE = f"{HERE}/{{namespace}}/{{name}}"
HIDDEN = ("value", "values")  # inputs with values: a form that is shown again does not have them


async def show_list(site: Site, request: Request) -> Response:
    """The web page of secrets: names and keys, without values."""
    user = request.state.user
    api = site.context.acting(user)
    listed = await site.everywhere(user, CONFIGMAPS, partial(list_secrets, api))
    shown = page_of(listed, wanted_of(request.query_params), HERE, words=_words, state=lambda _: "")
    return site.page(
        request,
        "secrets.html",
        HERE,
        live=False,
        list=shown,
        hues=owner_hues(secret.owner for secret in listed),
        rights=await site.allowed(request, ("delete secret",), (row.namespace for row in shown.rows)),
        address_of=site.address_of,
        can_make=await may_make(site, user, SECRETS),
    )


async def show_form(site: Site, request: Request) -> Response:
    """The form of a new secret."""
    return form_page(site, request, HERE, await _form(site, request))


async def create(site: Site, request: Request) -> Response:
    """Create a secret from its form."""
    given, user = await read_form(request), request.state.user
    kept = {name: text for name, text in given.items() if name not in HIDDEN}
    form = replace(await _form(site, request), given=kept)
    namespace = given.get("namespace", "")
    site.context.audit(request, "create secret", f"{namespace}/{given.get('name', '')[:200]}")
    try:
        reader = Reader(given)
        values = _values(reader, given)
        reader.check()
        new = NewValues(
            name=checked_name(given), namespace=namespace, values=values, replace=reader.ticked("replace")
        )
        await create_secret(site.context.acting(user), new, user.name, site.context.clock)
    except (BadForm, Problem, MoorageError) as error:
        return refused(site, request, HERE, form, error)
    return done(HERE, "created", f"{namespace}/{new.name}")


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a secret is deleted."""
    namespace, name = key_in(request)
    listed = await list_secrets(site.context.acting(request.state.user), namespace)
    secret = next((row for row in listed if row.name == name), None)
    if secret is None:
        raise SECRET.missing(namespace, name)
    question = deletion("secret", namespace, name, HERE, "Its values are lost.", secret.used_by)
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a secret, after the page has asked."""
    act = partial(delete_secret, force=bool((await read_form(request)).get("force")))
    return await change(site, request, "delete secret", act, again=ask_delete, back=HERE, outcome="deleted")


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=NEW, handler=show_form),
    Page(method="POST", path=NEW, handler=create),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete secret",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


async def _form(site: Site, request: Request) -> Form:
    namespaces = await namespaces_for(site, request.state.user, SECRETS)
    return Form(
        title="New secret",
        action=NEW,
        back=HERE,
        button="Create",
        can_send=bool(namespaces),
        notes=("All members of the namespace may use it in runs. No page shows its values again.",),
        fields=(
            Field(name="name", label="Name", example="git", hint="a-z, 0-9 and -", required=True, most=63),
            Field(
                name="namespace",
                label="Namespace",
                kind="choice",
                options=tuple(Option(name, name) for name in namespaces),
            ),
            Field(name="key", label="Key", example="GIT_TOKEN", hint="Runs get a variable of this name."),
            Field(name="value", label="Value", kind="password", most=8000),
            Field(
                name="values",
                label="More keys and values",
                kind="area",
                example="KEY=VALUE",
                hint="One on each line. For values of several lines: moor secret create NAME --from-file KEY=PATH",
            ),
            Field(name="replace", label="Replace all values of a secret that exists", kind="tick"),
        ),
    )


def _values(reader: Reader, given: Mapping[str, str]) -> dict[str, bytes]:
    """The values of a form by key. Errors do not repeat a value."""
    values = {}
    key, value = given.get("key", ""), given.get("value", "")
    if bool(key) != bool(value):
        reader.refuse("value" if key else "key", "give a key and its value, or leave both empty")
    elif key:
        values[key] = value.encode()
    for number, line in enumerate(reader.lines("values"), 1):
        name, sign, text = line.partition("=")
        if not sign:
            reader.refuse("values", f"line {number} is invalid: use KEY=VALUE, one on each line")
        values[name.strip()] = text.strip().encode()
    if not values:
        reader.refuse("key", "a secret needs a key and its value, such as GIT_TOKEN")
    return values


def _words(secret: Secret) -> tuple[str, ...]:
    return (f"{secret.namespace}/{secret.name}", secret.owner, *secret.keys, *secret.used_by)
