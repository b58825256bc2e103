"""Changes on the page of a map: pause, resume, cancel, retry, set its workers, delete; and its items by
state.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import UNSET, Struct
from msgspec.json import decode
from starlette.requests import Request
from starlette.responses import Response

from moorage.actions import mapjobs, maps
from moorage.actions.maps import WORDS
from moorage.api.errors import ErrorCode
from moorage.api.maps import MapChange, MapItem, MapResult, MapState
from moorage.model.names import GROUP
from moorage.present.resultcolumns import Columns, cell
from moorage.queue.store import Store, Stored
from moorage.server.inputs import number
from moorage.server.pages.mapboard import VALUE_CHARACTERS
from moorage.server.pages.site import Page, Question, Site, done, key_in, problem_to_show, read_form
from moorage.server.pages.texts import say
from moorage.server.problems import Problem
from moorage.server.queue.access import oldest_map
from moorage_kube.errors import Forbidden, MoorageError
from moorage_kube.integers import integer_or

HERE = "/maps"
ONE = f"{HERE}/{{namespace}}/{{name}}"
ITEMS_SHOWN = 100
COLUMNS_SHOWN = 12
PARSED_BYTES = 4096  # of a value; longer ones are text: parsing many would keep others waiting
ITEMS_SEARCHED = 20_000  # so many items at most are looked through for one page
STATES = (
    ("", "All states"),
    ("ready", "Ready"),
    ("waiting", "Waiting for the next try"),
    ("leased", "Running"),
    ("done", "Done"),
    ("dead", "Failed"),
)


class ItemRow(Struct, frozen=True, kw_only=True):
    """One item of a map."""

    item: int
    name: str  # its key or its value; empty if its value is in columns
    state: str
    tries: str
    took: str
    why: str
    cells: tuple[str, ...]  # of the columns that `item_table` names


async def pause(site: Site, request: Request) -> Response:
    """Pause a map from its button."""
    return await _change(site, request, "pause map", "paused", MapChange(state=MapState.PAUSED))


async def resume(site: Site, request: Request) -> Response:
    """Resume a paused or cancelled map, from its button."""
    return await _change(site, request, "resume map", "resumed", MapChange(state=MapState.RUNNING))


async def ask_cancel(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a map is cancelled."""
    namespace, name = key_in(request)
    await _map(site, request, "update")
    question = Question(
        title=say("Cancel map {name}?", name=name),
        lines=("Its running items are ended and no other begins. Results stay, and it can be resumed.",),
        button="Cancel the map",
        action=f"{HERE}/{namespace}/{name}/cancel",
        back=f"{HERE}/{namespace}/{name}",
        danger=True,
    )
    return site.ask(request, HERE, question, problem)


async def cancel(site: Site, request: Request) -> Response:
    """Cancel a map, after the page has asked."""
    change = MapChange(state=MapState.CANCELLED)
    return await _change(site, request, "cancel map", "cancelled", change, again=ask_cancel)


async def retry(site: Site, request: Request) -> Response:
    """Run the failed items again, from the button."""

    async def act(stored: Stored) -> object:
        return await maps.retry_map(site.context.queue, stored)

    return await _act(site, request, "retry map", "retried", act)


async def set_workers(site: Site, request: Request) -> Response:
    """Change the maximum number of workers of a map, from the form."""
    form = await read_form(request)
    namespace, name = key_in(request)

    async def act(_: Stored) -> None:
        workers = number(form.get("workers", ""), "number of workers")
        api = site.context.acting(request.state.user)
        await mapjobs.set_workers(api, namespace, name, workers)

    return await _act(site, request, "change workers of map", "resized-workers", act)


async def ask_delete(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The page that asks before a map is deleted."""
    namespace, name = key_in(request)
    await _map(site, request, "delete")
    question = Question(
        title=say("Delete {what} {name}?", what=say("map"), name=name),
        lines=(
            say(
                "It is in namespace {namespace}. Its items, its results and its workers go with it.",
                namespace=namespace,
            ),
        ),
        button="Delete",
        action=f"{HERE}/{namespace}/{name}/delete",
        back=f"{HERE}/{namespace}/{name}",
        danger=True,
    )
    return site.ask(request, HERE, question, problem)


async def delete(site: Site, request: Request) -> Response:
    """Delete a map, after the page has asked."""
    context = site.context

    async def act(stored: Stored) -> None:
        await mapjobs.delete_stored(context.acting(request.state.user), context.queue, stored)

    return await _act(site, request, "delete map", "deleted", act, verb="delete", back=HERE, again=ask_delete)


async def show_items(site: Site, request: Request) -> Response:
    """The items of a map by state, in pages; with a search text, only items whose value contains it."""
    namespace, name = key_in(request)
    stored = await _map(site, request, "get")
    asked = request.query_params
    state, text = asked.get("state", ""), asked.get("q", "").strip()[:VALUE_CHARACTERS]
    after = integer_or(asked.get("after"), -1, minimum=0)
    items, following = await _items(site, stored, state, text.casefold(), None if after < 0 else after)
    columns, rows = item_table(items, await _results(site, stored, items))
    at = f"{HERE}/{namespace}/{name}/items"
    more = f"{at}?{urlencode({'state': state, 'q': text, 'after': following})}" if following is not None else ""
    return site.page(
        request,
        "map_items.html",
        HERE,
        live=False,
        namespace=namespace,
        name=name,
        columns=columns,
        rows=rows,
        state=state,
        states=STATES,
        text=text,
        more=more,
        first=after >= 0,
    )


PAGES = (
    Page(method="POST", path=f"{ONE}/pause", handler=pause),
    Page(method="POST", path=f"{ONE}/resume", handler=resume),
    Page(method="POST", path=f"{ONE}/retry", handler=retry),
    Page(method="POST", path=f"{ONE}/workers", handler=set_workers),
    Page(method="GET", path=f"{ONE}/cancel", handler=ask_cancel, controls=("change map",)),
    Page(method="POST", path=f"{ONE}/cancel", handler=cancel),
    Page(method="GET", path=f"{ONE}/delete", handler=ask_delete, controls=("delete map",)),
    Page(method="POST", path=f"{ONE}/delete", handler=delete),
    Page(method="GET", path=f"{ONE}/items", handler=show_items),
)

Again = Callable[[Site, Request, Problem], Awaitable[Response]]


async def _change(
    site: Site, request: Request, what: str, outcome: str, change: MapChange, *, again: Again | None = None
) -> Response:
    async def act(stored: Stored) -> object:
        return await maps.change_map(site.context.queue, stored, change)

    await read_form(request)
    return await _act(site, request, what, outcome, act, again=again)


async def _act(
    site: Site,
    request: Request,
    what: str,
    outcome: str,
    act: Callable[[Stored], Awaitable[object]],
    *,
    verb: str = "update",
    back: str = "",
    again: Again | None = None,
) -> Response:
    """Do something to the map of the path, if the user may; then redirect to its page, which shows the
    outcome.
    """
    namespace, name = key_in(request)
    site.context.audit(request, what, f"{namespace}/{name}")
    page = f"{HERE}/{namespace}/{name}"
    try:
        await act(await _map(site, request, verb))
    except (Problem, MoorageError) as error:
        if again is None:
            raise
        return await again(site, request, problem_to_show(error))
    return done(back or page, outcome, f"{namespace}/{name}")


async def _map(site: Site, request: Request, verb: str) -> Stored:
    """The map of the path. Raises NotFound, and Forbidden if the user may not do this with it now."""
    namespace, name = key_in(request)
    user = request.state.user
    since = await oldest_map(site.context, user, verb, namespace)
    stored = await maps.get_map(site.context.queue, namespace, name, since=since)
    if not await site.context.auth.may_use_maps(user, verb, namespace):
        raise Forbidden(
            f"{user.name} may not {verb} mapjobs.{GROUP} in {namespace}",
            hint="ask whoever manages the namespace's roles",
            code=ErrorCode.FORBIDDEN,
        )
    return stored


async def _items(
    site: Site, stored: Stored, state: str, text: str, after: int | None
) -> tuple[list[MapItem], int | None]:
    """The next matching items, and the position where the next page starts; None if this is the last page."""
    matching: list[MapItem] = []
    searched = 0
    states = (state,) if state else ()
    while True:
        page = await maps.list_items(
            site.context.queue, stored, states=states, after=after, limit=None if text else ITEMS_SHOWN
        )
        for item in page.items:
            if text in _name(item).casefold() or text in _why(item).casefold():
                matching.append(item)
                if len(matching) == ITEMS_SHOWN:
                    return matching, item.item
        searched += len(page.items)
        after = page.next
        if after is None or searched >= ITEMS_SEARCHED:
            return matching, after


async def _results(site: Site, stored: Stored, items: Sequence[MapItem]) -> dict[int, MapResult]:
    """The results of these items that are done, by item."""
    done = [item.item for item in items if item.state == "done"]

    def read(store: Store) -> list[MapResult]:
        return [result for item in done for result in store.results(stored.map.id, after=item - 1, limit=1)]

    return {result.item: result for result in await site.context.queue.read(read)}


def item_table(
    items: Sequence[MapItem], results: Mapping[int, MapResult]
) -> tuple[tuple[str, ...], tuple[ItemRow, ...]]:
    """The columns of the items' settings and results, named as in `moor map results`, and the rows.

    Where they would be more than COLUMNS_SHOWN, there are none.
    """
    columns, values = Columns(), []
    for item in items:
        result = results.get(item.item)
        value = _parsed(result.value) if result is not None and result.value is not UNSET else None
        values.append({"path": item.path, "input": _parsed(item.value), "value": value})
        columns.see(values[-1])
    names = tuple(name for name in columns.names if name not in ("item", "input"))
    names = names if len(names) <= COLUMNS_SHOWN else ()
    rows = []
    for item, value in zip(items, map(columns.row, values), strict=True):
        has_settings = names and "input" not in value
        rows.append(
            ItemRow(
                item=item.item,
                name=item.key or "" if has_settings else _name(item),
                state=WORDS.get(item.state, item.state),
                tries=str(item.tries + item.losses) if item.tries + item.losses else "",
                took="" if item.seconds is None else f"{item.seconds:,.3g} s",
                why=_why(item),
                cells=tuple(_cut(str(cell(value.get(name)))) for name in names),
            )
        )
    return tuple(map(_cut, names)), tuple(rows)


def _parsed(raw: bytes) -> Any:
    """Parse a JSON value; its text if it is long."""
    return decode(raw) if len(raw) <= PARSED_BYTES else bytes(raw)[:PARSED_BYTES].decode("utf-8", "replace")


def _name(item: MapItem) -> str:
    return _cut(item.key or bytes(item.value).decode("utf-8", "replace"))


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS else text[:VALUE_CHARACTERS] + "…"


def _why(item: MapItem) -> str:
    failure = item.failure
    return f"{failure.cause}: {failure.message}".strip(": ") if failure is not None else ""
