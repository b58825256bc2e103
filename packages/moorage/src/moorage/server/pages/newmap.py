"""The page /maps/new: a form that creates a map with items, and the equivalent `moor map create` command."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace
from msgspec.structs import replace as replace_fields
from starlette.requests import Request
from starlette.responses import Response

from moorage.actions import mapjobs, maps
from moorage.api.maps import MapPolicy, MapWorkers, NewMap
from moorage.decide.maps.mapjob import MapJobPlan, MapRequest, takes_item
from moorage.decide.runs.request import Caller
from moorage.decide.runs.timelimit import parse_time
from moorage.model.mapjob import MAPJOBS, PARALLELISM_MAX
from moorage.present.commandlines import map_line
from moorage.server.context import Context
from moorage.server.idempotency import mark_of
from moorage.server.identity.auth import User
from moorage.server.inputs import as_struct
from moorage.server.pages.formpages import KEY, around, form_page, namespaces_for, refused
from moorage.server.pages.forms import BadForm, Field, Form, Reader, Verdict
from moorage.server.pages.jobform import (
    Around,
    host_field,
    image_field,
    mount_fields,
    place_fields,
    read_command,
    size_fields,
)
from moorage.server.pages.site import Page, Site, done, read_form
from moorage.server.problems import Problem
from moorage.server.runfacts import nodes_of
from moorage.worker.mapworker.placeholders import fill
from moorage_kube.api import Api
from moorage_kube.errors import MoorageError
from moorage_kube.quantity import counted

HERE = "/maps"
NEW = f"{HERE}/new"
FORM_BYTES = 1024 * 1024  # items are typed or pasted
ITEMS_MAX = 100_000  # of a form; more come by `moor map create` or over REST
INPUT_OF = {"image": "image", "time": "time", "parallelism": "parallelism"}


class Items(Struct, frozen=True):
    """The items of a form: the command-line options that select them, and their values."""

    options: tuple[str, ...]
    values: Iterable[str | int]
    count: int

    async def lines(self) -> AsyncIterator[tuple[int, bytes]]:
        """The items as numbered lines, in the format of a REST request."""
        for number, value in enumerate(self.values, 1):
            yield number, json.dumps({"value": value}).encode()


async def show_form(site: Site, request: Request) -> Response:
    """The form of a new map."""
    return form_page(
        site, request, HERE, await _form(site, request.state.user, {"key": secrets.token_urlsafe(18)})
    )


async def submit(site: Site, request: Request) -> Response:
    """Check the map of a form, or create it and add its items."""
    given, context, user = await read_form(request, FORM_BYTES), site.context, request.state.user
    is_check, notes = given.get("do") == "check", list[str]()
    form = await _form(site, user, given)
    namespace = given.get("namespace", "")
    try:
        body, workers, items = read_map(given)
        form = replace(form, line=map_line(namespace, body, workers, items.options))
        context.audit(request, "check map" if is_check else "create map", f"{namespace}/{body.name}")
        map_request = mapjobs.request_of(namespace, body, workers)
        caller = Caller(user=user.name, cwd="", program=workers.command[0])
        api = context.acting(user)
        if is_check:
            plan = await _check(context, api, map_request, caller)
            headline = f"map {namespace}/{body.name} would be made with {counted(items.count, 'item')}"
            verdict = Verdict(tone="good", headline=headline, lines=(_workers_words(workers),))
            return form_page(site, request, HERE, replace(form, verdict=verdict, remarks=plan.notes))
        mark = mark_of(user.name, f"map\0{namespace}\0{body.request}", body)
        async with context.turns.turn(mark):
            await mapjobs.submit_map(
                api,
                map_request,
                caller,
                cluster_nodes=lambda: nodes_of(context, map_request.run),
                clock=context.clock,
                note=notes.append,
                mark=mark,
            )
            stored = await maps.get_map(context.queue, namespace, body.name)
            if not stored.map.closed:  # the same form sent again finds its items there
                await maps.add_items(context.queue, stored, items.lines(), first=0, close=True)
    except (BadForm, Problem, MoorageError) as error:
        return refused(site, request, HERE, form, error, INPUT_OF)
    return done(f"{HERE}/{namespace}/{body.name}", "created", f"{namespace}/{body.name}")


PAGES = (
    Page(method="GET", path=NEW, handler=show_form),
    Page(method="POST", path=NEW, handler=submit),
)


async def _check(context: Context, api: Api, request: MapRequest, caller: Caller) -> MapJobPlan:
    """Let the API server check the map in a dry run; nothing is created."""
    plan = await mapjobs.plan_map(api, request, caller, cluster_nodes=nodes_of(context, request.run))
    await mapjobs.check_map(api, plan, request.run.namespace)
    return plan


def _workers_words(workers: MapWorkers) -> str:
    count = workers.parallelism
    return "One worker takes one item after the other" if count == 1 else f"At most {count:,} workers share them"


def read_map(given: Mapping[str, str]) -> tuple[NewMap, MapWorkers, Items]:
    """The request of a form. Raises BadForm with all values that cannot be read, Problem 422."""
    reader = Reader(given)
    command = read_command(reader, given)
    items = _items(reader, given)
    name = reader.text("name")
    if name is None:
        reader.refuse("name", "no name given: use a-z, 0-9 and -")
    if not takes_item(command):
        reader.refuse(
            "command",
            "the command is the same for every item: write {item} in its place;"
            " for a program that reads $MOORAGE_ITEM by itself, use `moor map create`",
        )
    policy: dict[str, object] = {"retries": reader.number("retries", MapPolicy().retries, "number of retries")}
    if time := reader.text("time"):
        try:
            policy["timeSeconds"] = float(parse_time(time))
        except ValueError:
            reader.refuse("time", f"invalid time limit {time!r}: use a time such as 30s, 5m or 2h")
    workers = {
        "command": command,
        "parallelism": reader.number("parallelism", 1, "number of workers"),
        "slots": reader.number("slots", 1, "number of slots"),
        "image": reader.text("image"),
        "env": reader.pairs("env", "variable", "NAME=VALUE"),
        "secrets": reader.lines("secrets"),
        "cpu": reader.text("cpu"),
        "memory": reader.text("memory"),
        "gpus": reader.number("gpus", 0, "number of GPUs"),
        "gpuType": reader.text("gpuType"),
        "volumes": reader.lines("volumes"),
        "datasets": reader.lines("datasets"),
        "hostEnv": reader.ticked("hostEnv"),
    }
    # a field that an item lacks is an error before the map is created
    for at, value in enumerate(items.values):
        try:
            fill(command, at, value)
        except ValueError as error:
            reader.refuse("command", f"the command does not fit item {at + 1}: {error}")
            break
    reader.check()
    key = given.get("key") or secrets.token_urlsafe(18)
    asked = as_struct(workers, MapWorkers)
    body = as_struct({"name": name, "request": key[:64], "policy": policy}, NewMap)
    return replace_fields(body, workers=asked), asked, items


def _items(reader: Reader, given: Mapping[str, str]) -> Items:
    """Read the items of the form: a range, or one item per line."""
    span, lines = given.get("range", ""), reader.lines("items")
    if bool(span) == bool(lines):
        reader.refuse("range", "give either a range or items" + (", not both" if span else ""))
        return Items((), (), 0)
    if lines:
        if len(lines) > ITEMS_MAX:
            reader.refuse("items", f"{len(lines):,} items are too many for a form: use at most {ITEMS_MAX:,}")
        return Items(("-f", "items.txt"), lines, len(lines))
    try:
        numbers = range(*(int(part) for part in span.split(":")[:4]))
        if not 2 <= len(span.split(":")) <= 3:
            raise ValueError
    except (ValueError, TypeError):
        reader.refuse("range", f"invalid range {span!r}: use A:B or A:B:STEP; 0:100 counts from 0 to 99")
        return Items((), (), 0)
    if not 1 <= len(numbers) <= ITEMS_MAX:
        reader.refuse("range", f"range {span} has {len(numbers):,} items: use 1 to {ITEMS_MAX:,}")
    return Items(("--range", span), numbers, len(numbers))


async def _form(site: Site, user: User, given: Mapping[str, str]) -> Form:
    namespaces = await namespaces_for(site, user, MAPJOBS)
    chosen = given.get("namespace") or (namespaces[0] if namespaces else "")
    place = await around(site, user, chosen, namespaces)
    common, folded = map_fields(place)
    return Form(
        title="New map",
        action=NEW,
        back=HERE,
        button="Create",
        can_check=True,
        can_send=bool(namespaces),
        notes=("A map runs one command for each of many items, on as many workers as you allow.",),
        fields=(KEY, *common),
        folded=folded,
        given=given,
    )


def map_fields(place: Around) -> tuple[tuple[Field, ...], tuple[Field, ...]]:
    """The common fields of a new map, and those under "More"."""
    # a map needs a name, and its items come from one of two fields
    name, namespace = place_fields(place)
    common = (
        replace(name, example="squares", required=True),
        namespace,
        Field(
            name="command",
            label="Command for one item",
            kind="area",
            example="python square.py {item}",
            hint="{item} is the item, {index} its number. The last line that it prints is its result.",
            required=True,
        ),
        Field(
            name="range", label="Items: a range", example="0:1000", hint="0:1000 counts from 0 to 999.", most=60
        ),
        Field(
            name="items",
            label="Or one item on each line",
            kind="area",
            example="2019-10-03",
            hint=f"At most {ITEMS_MAX:,}. Files and queries: moor map create.",
            rows=4,
            most=FORM_BYTES,
        ),
        Field(
            name="parallelism",
            label="Workers",
            kind="number",
            value="1",
            hint="At most so many pods at a time.",
            most=PARALLELISM_MAX,
        ),
        *(() if place.on_processes else (image_field(place),)),
    )
    # the rest, under "More": sizes, failures and mounts
    folded = (
        *size_fields(place, "a worker's"),
        Field(name="slots", label="Items at a time in each worker", kind="number", value="1", most=1000),
        Field(name="retries", label="Retries of a failed item", kind="number", value="3", most=1000),
        Field(name="time", label="Time limit of an item", example="none", hint="30s, 5m or 2h.", most=20),
        *mount_fields(place),
        *((image_field(place), host_field()) if place.on_processes else ()),
    )
    return common, folded
