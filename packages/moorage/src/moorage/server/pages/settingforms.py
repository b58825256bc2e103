"""Forms for objects of the cluster of which administrators set fields: Budgets, IdlePolicies, Tenants.

A form has the present values. It is refused if the object has another generation by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from moorage.actions.specs import Changes, Set, delete_object, missing, only_changes
from moorage.model.machine import Fault
from moorage.server.pages.formpages import form_page, refused
from moorage.server.pages.forms import BadForm, Field, Form, Reader, faults_of
from moorage.server.pages.site import Question, Site, checked_name, done, input_of, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.api import Api
from moorage_kube.errors import Conflict, MoorageError, NotFound
from moorage_kube.mergepatch import merge_patch
from moorage_kube.resources import Obj, Resource

SEEN = "seen"  # input with the generation of the object that the form shows
NAME = Field(name="name", label="Name", hint="a-z, 0-9 and -", required=True, most=63)


class Setting(Struct, frozen=True, kw_only=True):
    """A kind of object with a form. `texts`: spec → text of each input; `fields_of`: inputs → fields of the spec.

    `set`: the action, with the name, the changes and the generation that the form has shown. `check`: the faults
    of an object, which are shown together with those of the form.
    """

    resource: Resource
    noun: str
    here: str  # the list
    change_title: str
    new_title: str = ""
    loss: str = ""  # effect of its deletion
    note: str
    inputs: tuple[Field, ...]
    folded: tuple[Field, ...] = ()
    texts: Callable[[Obj], Mapping[str, str]]
    fields_of: Callable[[Reader, Obj], Changes]
    set: Callable[[Api, str, Changes, int], Awaitable[Set]]
    check: Callable[[Obj], Sequence[Fault]] = lambda _: ()
    back_to_list: bool = True

    def page_of(self, name: str) -> str:
        return self.here if self.back_to_list or not name else f"{self.here}/{name}"


async def new_form(site: Site, request: Request, setting: Setting) -> Response:
    """The form for a new object."""
    return form_page(site, request, setting.here, _form(setting, request, None, {}))


async def change_form(site: Site, request: Request, setting: Setting, problem: Problem | None = None) -> Response:
    """The form with the present values of the object that the path names."""
    obj = await _get(site, request, setting)
    return form_page(site, request, setting.here, _form(setting, request, obj, {}), problem)


async def save(site: Site, request: Request, setting: Setting) -> Response:
    """Create or change an object from its form; a refusal is shown at its field."""
    given, name = await read_form(request), request.path_params.get("name", "")
    obj = await _get(site, request, setting) if name else None
    spec: Obj = obj["spec"] if obj is not None else {}
    site.context.audit(request, "change" if name else "create", f"{setting.noun} {name or given.get('name', '')}")
    try:
        name = name or checked_name(given)
        reader = Reader(given)
        for field in setting.inputs:
            if field.required and not given.get(field.name):
                reader.refuse(field.name, "this field needs a value")
        wanted = setting.fields_of(reader, spec)
        for problem in setting.check({"spec": merge_patch(spec, wanted)}):
            reader.refuse(input_of(problem.field), f"{problem.value!r} {problem.message}", once=True)
        reader.check()
        seen = int(given[SEEN]) if obj is not None and given.get(SEEN, "").isdecimal() else 0
        if obj is None or seen != _generation(obj) or only_changes(spec, wanted):
            await setting.set(site.context.acting(request.state.user), name, only_changes(spec, wanted), seen)
    except Conflict as error:
        return await change_form(site, request, setting, problem_to_show(error))
    except (BadForm, Problem, MoorageError) as error:
        inputs = {fault.field: input_of(fault.field) for fault in faults_of(error)}
        form = _form(setting, request, obj, given)
        return refused(site, request, setting.here, form, error, inputs)
    return done(setting.page_of(name), "changed" if obj is not None else "created", name)


async def ask_delete(site: Site, request: Request, setting: Setting, problem: Problem | None = None) -> Response:
    """The page that asks before the object is deleted."""
    name = str((await _get(site, request, setting))["metadata"]["name"])
    question = Question(
        title=say("Delete {what} {name}?", what=say(setting.noun), name=name),
        lines=(setting.loss,),
        button="Delete",
        action=f"{setting.here}/{name}/delete",
        back=setting.here,
        danger=True,
    )
    return site.ask(request, setting.here, question, problem)


async def delete(site: Site, request: Request, setting: Setting) -> Response:
    """Delete the object, after the page has asked."""
    await read_form(request)
    name = request.path_params["name"]
    site.context.audit(request, "delete", f"{setting.noun} {name}")
    try:
        await delete_object(site.context.acting(request.state.user), setting.resource, name)
    except (Problem, MoorageError) as error:
        return await ask_delete(site, request, setting, problem_to_show(error))
    return done(setting.here, "deleted", name)


def listed(names: Any) -> str:
    """Names as the text of an input."""
    return ", ".join(str(name) for name in names or ())


def pair_lines(pairs: Mapping[str, Any] | None) -> str:
    """NAME=VALUE on each line, as `Reader.pairs` reads them."""
    return "\n".join(f"{key}={value}" for key, value in (pairs or {}).items())


def _form(setting: Setting, request: Request, obj: Obj | None, given: Mapping[str, str]) -> Form:
    name = str(obj["metadata"]["name"]) if obj is not None else ""
    values = dict(setting.texts(obj["spec"])) if obj is not None else {}
    hidden = Field(name=SEEN, label="", kind="hidden", value=str(_generation(obj)) if obj is not None else "")

    def filled(fields: tuple[Field, ...]) -> tuple[Field, ...]:
        return tuple(replace(field, value=values.get(field.name, field.value)) for field in fields)

    return Form(
        title=say(setting.change_title, name=name) if name else setting.new_title,
        action=request.url.path,
        back=setting.page_of(name),
        button="Save" if name else "Create",
        fields=((hidden,) if name else (NAME,)) + filled(setting.inputs),
        folded=filled(setting.folded),
        notes=(setting.note,),
        given=given,
    )


async def _get(site: Site, request: Request, setting: Setting) -> Obj:
    name = request.path_params["name"]
    try:
        return await site.context.acting(request.state.user).get(setting.resource, name)
    except NotFound as error:
        raise missing(setting.resource, name) from error


def _generation(obj: Obj) -> int:
    return int(obj["metadata"].get("generation") or 0)
