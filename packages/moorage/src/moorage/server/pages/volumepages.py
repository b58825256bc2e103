"""The web pages /volumes: a list that updates itself, and forms. The pages work without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import volumes
from moorage.api.volumes import NewVolume, Volume
from moorage.model.storageclass import RWO, RWX
from moorage.server.inputs import as_struct
from moorage.server.listings import visible_storage_classes
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.formpages import may_make
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rows import VOLUME_STATES, VolumeRow, rows, volume_row, volume_state, words_of
from moorage.server.pages.site import (
    Page,
    Question,
    Site,
    change,
    checked_name,
    deletion,
    done,
    key_in,
    problem_to_show,
    read_form,
)
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError
from moorage_kube.resources import PVCS

HERE = "/volumes"
CONTROLS = ("resize volume", "delete volume")  # of each row
ONE = f"{HERE}/{{namespace}}/{{name}}"
MODES = ((RWO, "One node at a time"), (RWX, "Many nodes at once"))


async def show_list(site: Site, request: Request) -> Response:
    """The web page of volumes."""
    return await _list_page(site, request)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of volumes that changes."""
    return HTMLResponse(await _list(site, request, await _listed(site, request)))


async def create(site: Site, request: Request) -> Response:
    """Create a volume from the form of the page."""
    form = await read_form(request)
    try:
        fields = {
            "name": checked_name(form),
            "namespace": form.get("namespace", ""),
            "size": form.get("size", ""),
            "accessMode": form.get("accessMode") or RWO,
            "storageClass": form.get("storageClass", ""),
        }
        body = as_struct(fields, NewVolume)
        claim = volumes.plan_volume(body, request.state.user.name)
        site.context.audit(request, "create volume", f"{body.namespace}/{body.name}")
        await volumes.create_volume(site.context.acting(request.state.user), claim)
    except (Problem, MoorageError) as error:
        return await _list_page(site, request, problem_to_show(error), form)
    return done(HERE, "created", f"{body.namespace}/{body.name}")


async def ask_size(
    site: Site, request: Request, problem: Problem | None = None, given: str | None = None
) -> Response:
    """The page that asks for a volume's new size."""
    namespace, name = key_in(request)
    volume = await volumes.get_volume(site.context.acting(request.state.user), namespace, name)
    question = Question(
        title=say("Resize volume {name}", name=name),
        lines=(say("It has {size}. A volume cannot become smaller.", size=volume.size),),
        button="Resize",
        action=f"{HERE}/{namespace}/{name}/resize",
        back=HERE,
        entry=("size", "New size", volume.size if given is None else given),
    )
    return site.ask(request, HERE, question, problem)


async def resize(site: Site, request: Request) -> Response:
    """Make a volume larger, from the form of the page."""
    form = await read_form(request)
    namespace, name = key_in(request)
    size = form.get("size", "")
    site.context.audit(request, "resize volume", f"{namespace}/{name} to {size}")
    try:
        await volumes.resize_volume(site.context.acting(request.state.user), namespace, name, size)
    except (Problem, MoorageError) as error:
        return await ask_size(site, request, problem_to_show(error), size)
    return done(HERE, "resized", f"{namespace}/{name}")


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a volume is deleted."""
    namespace, name = key_in(request)
    volume = await volumes.get_volume(site.context.acting(request.state.user), namespace, name)
    question = deletion("volume", namespace, name, HERE, "All that is on it is lost.", volume.used_by)
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a volume, after the page has asked."""
    form = await read_form(request)
    act = partial(volumes.delete_volume, force=bool(form.get("force")))
    return await change(site, request, "delete volume", act, again=ask_delete, back=HERE, outcome="deleted")


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="POST", path=HERE, handler=create),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=f"{ONE}/resize", handler=ask_size, controls=("resize volume",)),
    Page(method="POST", path=f"{ONE}/resize", handler=resize),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete volume",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


async def _listed(site: Site, request: Request) -> Shown[VolumeRow]:
    user = request.state.user
    api, used = site.context.acting(user), await site.context.volume_use.used()

    async def in_namespace(namespace: str | None) -> list[Volume]:
        return (await volumes.list_volumes(api, namespace, used))[0]

    shown = rows(await site.everywhere(user, PVCS, in_namespace), volume_row, site.context.now())
    wanted = wanted_of(request.query_params)
    return page_of(shown, wanted, HERE, words=words_of, state=volume_state, states=VOLUME_STATES)


async def _list(site: Site, request: Request, listed: Shown[VolumeRow]) -> str:
    rights = await site.allowed(request, CONTROLS, (row.namespace for row in listed.rows))
    can_make = await may_make(site, request.state.user, PVCS)
    return fragment("volumes_live.html", list=listed, rights=rights, address_of=site.address_of, can_make=can_make)


async def _list_page(
    site: Site, request: Request, problem: Problem | None = None, given: Mapping[str, str] | None = None
) -> Response:
    listed = await _listed(site, request)
    return site.page(
        request,
        "volumes.html",
        HERE,
        problem=problem,
        live_part=await _list(site, request, listed),
        list=listed,
        given=given or {},
        inputs={"spec.resources.requests.storage": "size"},
        unfolded=given is not None or "new" in request.query_params,
        namespaces=await site.places_to_make(request.state.user, PVCS),
        classes=await visible_storage_classes(site.context, request.state.user),
        modes=MODES,
    )
