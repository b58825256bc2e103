"""Shared parts of the pages with a form for a new object: their choices, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from moorage.actions.runfacts import defaults_of, or_none
from moorage.model.dataset import DATASET_LABEL, DATASETS
from moorage.model.names import SECRET_LABEL
from moorage.server.identity.auth import User
from moorage.server.pages.forms import BadForm, Field, Form, faults_of, problem_of_form, with_faults
from moorage.server.pages.jobform import Around
from moorage.server.pages.site import Site, problem_to_show
from moorage.server.problems import Problem
from moorage_kube.errors import ApiError
from moorage_kube.meta import labels_of
from moorage_kube.resources import CONFIGMAPS, PVCS, Obj, Resource

QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
NAMES_SHOWN = 12  # of volumes, datasets and secrets that a form names
QUOTA_WORDS = {
    "requests.nvidia.com/gpu": "GPUs",
    "limits.memory": "memory",
    "requests.memory": "memory",
    "requests.cpu": "CPUs",
    "pods": "pods",
    "count/jobs.batch": "jobs",
}
KEY = Field(name="key", label="", kind="hidden")  # the same form sent twice makes one thing


def form_page(site: Site, request: Request, here: str, form: Form, problem: Problem | None = None) -> Response:
    return site.page(request, "new.html", here, problem=problem, live=False, form=form)


def refused(
    site: Site,
    request: Request,
    here: str,
    form: Form,
    error: Exception,
    inputs: Mapping[str, str] | None = None,
) -> Response:
    """The form again, with the typed values and each refusal at its field."""
    faults = faults_of(error)
    marked, all_shown = with_faults(form, faults, inputs)
    if isinstance(error, BadForm):
        problem = problem_of_form(error.faults)
    else:
        problem = problem_to_show(error)
        if faults and all_shown:
            words = problem_of_form(faults)
            problem = Problem(problem.status, problem.code, words.message)
    return form_page(site, request, here, marked, problem)


async def may_make(site: Site, user: User, resource: Resource) -> bool:
    """Whether the user may make such an object in any namespace. False if it cannot be checked."""
    try:
        return bool(user.account) and bool(await site.places_to_make(user, resource))
    except ApiError:
        return False


async def namespaces_for(site: Site, user: User, resource: Resource) -> list[str]:
    """The namespaces in which a form lets its user make things. Raises Problem 403 for a user who may only
    read.
    """
    site.context.acting(user)
    await site.context.ready()
    return await site.places_to_make(user, resource)


async def around(site: Site, user: User, namespace: str, namespaces: Sequence[str]) -> Around:
    """The choices in the form of a run or of a map, in the chosen namespace."""
    context = site.context
    cluster, api = await context.ready(), context.acting(user)

    async def listed(resource: Resource, label: str | None = None) -> list[Obj]:
        try:
            page = await or_none(api.list(resource, namespace, label_selector=label)) if namespace else None
        except ApiError:
            return []
        return page.items if page is not None else []

    claims, datasets, keys, quotas, tenants = await asyncio.gather(
        listed(PVCS),
        listed(DATASETS),
        listed(CONFIGMAPS, SECRET_LABEL),
        listed(QUOTAS),
        context.tenants.all(),
    )
    return Around(
        namespaces=namespaces,
        gpus=cluster.gpus(),
        defaults=defaults_of(namespace, tenants),
        volumes=_names(claim for claim in claims if DATASET_LABEL not in labels_of(claim)),
        datasets=_names(datasets),
        secrets=tuple(sorted(labels_of(obj)[SECRET_LABEL] for obj in keys)[:NAMES_SHOWN]),
        quota=tuple(quota_words(quotas)),
        on_processes=site.on_processes(),
    )


def quota_words(quotas: Iterable[Obj]) -> Iterable[str]:
    """The use of a namespace's quotas, one sentence for each resource that people ask for."""
    for quota in quotas:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        for name, words in QUOTA_WORDS.items():
            if name in hard:
                yield f"Quota: {used.get(name, '0')} of {hard[name]} {words} in use."


def _names(objs: Iterable[Obj]) -> tuple[str, ...]:
    return tuple(sorted(str(obj["metadata"]["name"]) for obj in objs)[:NAMES_SHOWN])
