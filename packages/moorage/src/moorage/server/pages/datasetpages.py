"""The web pages of datasets: a list, and one page per dataset with its fill, its readers and its users."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import datasets
from moorage.actions.datasets import SHARED
from moorage.actions.objects import get_object
from moorage.api.datasets import Dataset
from moorage.model.dataset import DATASETS
from moorage.server.pages.board import owner_hues
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.formpages import may_make
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.rows import DATASET_STATES, DatasetRow, dataset_row, rows, words_of
from moorage.server.pages.site import Page, Site, change, deletion, key_in, read_form
from moorage.server.problems import Problem

HERE = "/datasets"
CONTROLS = ("delete dataset",)  # of each row
ONE = f"{HERE}/{{namespace}}/{{name}}"


class UseRow(Struct, frozen=True, kw_only=True):
    """A run or workspace that mounts a dataset, or did. A run has a page."""

    namespace: str
    name: str
    is_active: bool
    href: str  # empty: it has no page


async def show_list(site: Site, request: Request) -> Response:
    """The web page of datasets."""
    listed = await _listed(site, request)
    can_make = await may_make(site, request.state.user, DATASETS)
    part = await _list(site, request, listed)
    return site.page(request, "datasets.html", HERE, live_part=part, list=listed, can_make=can_make)


async def live_list(site: Site, request: Request) -> Response:
    """The part of the page of datasets that changes."""
    return HTMLResponse(await _list(site, request, await _listed(site, request)))


async def show(site: Site, request: Request) -> Response:
    """The web page of one dataset."""
    return await _page(site, request)


async def live(site: Site, request: Request) -> Response:
    """The part of a dataset's page that changes."""
    return HTMLResponse(await _one(site, request))


async def refill(site: Site, request: Request) -> Response:
    """Fill a failed dataset again, from its button."""
    await read_form(request)
    act = partial(datasets.refill_dataset, now=site.context.now())
    back = "{}/{}/{}".format(HERE, *key_in(request))
    return await change(site, request, "fill dataset", act, again=_page, back=back, outcome="filling")


async def share(site: Site, request: Request) -> Response:
    """Set which tenants may read a dataset."""
    form = await read_form(request)
    readers = list(dict.fromkeys(form.get("readers", "").replace(",", " ").split()))
    act = partial(datasets.set_readers, readers=readers)
    back = "{}/{}/{}".format(HERE, *key_in(request))
    return await change(site, request, "share dataset", act, again=_page, back=back, outcome="shared")


async def _page(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page of a dataset, with the problem of a change."""
    namespace, name = key_in(request)
    dataset = await datasets.get_dataset(site.context.acting(request.state.user), namespace, name)
    return site.page(
        request,
        "dataset.html",
        HERE,
        problem=problem,
        live_part=await _one(site, request),
        namespace=namespace,
        name=name,
        readers=" ".join(reader.tenant for reader in dataset.readers),
        rights=await site.allowed(request, ("change dataset",), [namespace]),
    )


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a dataset is deleted."""
    namespace, name = key_in(request)
    api = site.context.acting(request.state.user)
    users = await datasets.users_of(api, await get_object(api, datasets.DATASET, namespace, name))
    question = deletion("dataset", namespace, name, HERE, "Its volume is deleted too.", users.all)
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a dataset, after the page has asked."""
    form = await read_form(request)
    act = partial(datasets.delete_dataset, force=bool(form.get("force")))
    return await change(site, request, "delete dataset", act, again=ask_delete, back=HERE, outcome="deleted")


PAGES = (
    Page(method="GET", path=HERE, handler=show_list),
    Page(method="GET", path=f"{HERE}/live", handler=live_list, live=True),
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="POST", path=f"{ONE}/fill", handler=refill),
    Page(method="POST", path=f"{ONE}/share", handler=share),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete dataset",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
)


async def _listed(site: Site, request: Request) -> Shown[DatasetRow]:
    user = request.state.user
    api = site.context.acting(user)

    async def in_namespace(namespace: str | None) -> list[Dataset]:
        return (await datasets.list_datasets(api, namespace))[0]

    listed = await site.everywhere(user, DATASETS, in_namespace)
    shown = rows(_each_once(listed), dataset_row, site.context.now())
    wanted = wanted_of(request.query_params)
    return page_of(shown, wanted, HERE, words=words_of, state=lambda row: row.state, states=DATASET_STATES)


async def _one(site: Site, request: Request) -> str:
    """The content of a dataset's page, read as the user. Raises NotFound."""
    namespace, name = key_in(request)
    context = site.context
    dataset = await datasets.get_dataset(context.acting(request.state.user), namespace, name)
    await context.ready()
    uses = [
        UseRow(
            namespace=use.namespace,
            name=use.name,
            is_active=use.active,
            href=site.address_of(use.namespace, use.name),
        )
        for use in dataset.used_by
    ]
    row = dataset_row(dataset, owner_hues([dataset.owner])[dataset.owner], context.now())
    rights = await site.allowed(request, ("change dataset", "delete dataset", "create run"), [namespace])
    return fragment("dataset_live.html", row=row, dataset=dataset, uses=uses, rights=rights)


async def _list(site: Site, request: Request, listed: Shown[DatasetRow]) -> str:
    rights = await site.allowed(request, CONTROLS, (row.namespace for row in listed.rows))
    can_make = await may_make(site, request.state.user, DATASETS)
    return fragment(
        "datasets_live.html", list=listed, rights=rights, address_of=site.address_of, can_make=can_make
    )


def _each_once(listed: Iterable[Dataset]) -> list[Dataset]:
    """Each dataset once: shared ones are left out if they are listed already."""
    own_first = sorted(listed, key=lambda dataset: dataset.reason == SHARED)
    by_key: dict[tuple[str, str], Dataset] = {}
    for dataset in own_first:
        by_key.setdefault((dataset.namespace, dataset.name), dataset)
    return list(by_key.values())
