"""The page /datasets/new: a form that creates a dataset, and the equivalent `moor dataset create` command."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from moorage.actions import datasets
from moorage.api.datasets import NewDataset
from moorage.model.dataset import DATASETS
from moorage.present.commandlines import dataset_line
from moorage.server.idempotency import mark_of
from moorage.server.inputs import as_struct
from moorage.server.listings import visible_storage_classes
from moorage.server.pages.formpages import KEY, form_page, namespaces_for, refused
from moorage.server.pages.forms import BadForm, Field, Form, Option
from moorage.server.pages.site import Page, Site, checked_name, done, read_form
from moorage.server.problems import Problem
from moorage_kube.errors import MoorageError

HERE = "/datasets"
NEW = f"{HERE}/new"
INPUT_OF = {  # field of a problem → input of the form
    "metadata.name": "name",
    "spec.source.url": "url",
    "spec.size": "size",
    "spec.readers": "readers",
    "spec": "url",
}


async def show_form(site: Site, request: Request) -> Response:
    """The form of a new dataset."""
    return form_page(site, request, HERE, await _form(site, request, {"key": secrets.token_urlsafe(18)}))


async def submit(site: Site, request: Request) -> Response:
    """Check the dataset of a form, or create it. A new dataset starts to fill at once."""
    given, context, user = await read_form(request), site.context, request.state.user
    is_check = given.get("do") == "check"
    form = await _form(site, request, given)
    try:
        body = dataset_request(given, dry_run=is_check)
        form = replace(form, line=dataset_line(body))
        context.audit(request, "check dataset" if is_check else "create dataset", f"{body.namespace}/{body.name}")
        obj = datasets.plan_dataset(body, user.name)
        key = given.get("key", "")
        mark = mark_of(user.name, f"form\0{key}", body) if key and not is_check else ""
        async with context.turns.turn(mark):
            await datasets.create_dataset(context.acting(user), obj, mark=mark, dry_run=is_check)
    except (BadForm, Problem, MoorageError) as error:
        return refused(site, request, HERE, form, error, INPUT_OF)
    if is_check:
        remark = "The API server would accept this dataset. Whether its source can be read shows when it fills"
        return form_page(site, request, HERE, replace(form, remarks=(remark,)))
    return done(f"{HERE}/{body.namespace}/{body.name}", "created", f"{body.namespace}/{body.name}")


PAGES = (
    Page(method="GET", path=NEW, handler=show_form),
    Page(method="POST", path=NEW, handler=submit),
)


def dataset_request(given: Mapping[str, str], *, dry_run: bool) -> NewDataset:
    """The request of a form. Raises Problem 422."""
    source = {"url": given.get("url", ""), "secret": given.get("secret", "")}
    ticks = {name: True for name in ("anonymous", "unpack") if given.get(name)}
    spec: dict[str, Any] = {
        "source": {name: text for name, text in source.items() if text} | ticks,
        "size": given.get("size", ""),
        "storageClass": given.get("storageClass", ""),
        "readers": list(dict.fromkeys(given.get("readers", "").replace(",", " ").split())),
    }
    body = {
        "name": checked_name(given),
        "namespace": given.get("namespace", ""),
        "spec": {name: value for name, value in spec.items() if value},
        "dryRun": dry_run,
    }
    return as_struct(body, NewDataset)


async def _form(site: Site, request: Request, given: Mapping[str, str]) -> Form:
    # choices that depend on the user's rights
    user = request.state.user
    namespaces = await namespaces_for(site, user, DATASETS)
    classes = await visible_storage_classes(site.context, user)
    return Form(
        title="New dataset",
        action=NEW,
        back=HERE,
        button="Create and fill",
        can_check=True,
        can_send=bool(namespaces),
        notes=(
            "A dataset is a volume that is filled once and then read by many runs. To send a folder of your"
            " machine, run moor dataset create NAME --source ./FOLDER.",
        ),
        # the fields that each dataset needs
        fields=(
            KEY,
            Field(name="name", label="Name", hint="a-z, 0-9 and -", required=True, most=63),
            Field(
                name="namespace",
                label="Namespace",
                kind="choice",
                options=tuple(Option(name, name) for name in namespaces),
            ),
            Field(
                name="url",
                label="Source",
                example="s3://bucket/images",
                hint="s3://…, gs://…, https://… (with / at its end a folder), or volume:NAME/FOLDER.",
                required=True,
                most=2048,
            ),
            Field(name="size", label="Size", value="10Gi", hint="Such as 100Gi.", required=True),
        ),
        # the rest, under "More"
        folded=(
            Field(name="secret", label="Secret with the credentials", hint="A Secret of the same namespace."),
            Field(name="readers", label="Other tenants that may read it", hint="Their names.", most=2000),
            Field(
                name="storageClass",
                label="Storage class",
                kind="choice",
                options=(Option("", "the cluster's own"), *(Option(item.name, item.name) for item in classes)),
            ),
            Field(name="anonymous", label="Ask the store without credentials", kind="tick"),
            Field(name="unpack", label="The source is one archive: unpack it", kind="tick"),
        ),
        given=given,
    )
