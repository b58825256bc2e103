"""/api/v1/datasets: create, list, show, share and delete datasets as the caller: cluster rights decide."""

from __future__ import annotations

from typing import Any

from moorage.actions import datasets
from moorage.api.datasets import Dataset, DatasetList, NewDataset, Readers
from moorage.api.fields import Force, Page
from moorage.server.endpoint import Call, Endpoint

ALL = "/api/v1/datasets"
ONE = f"{ALL}/{{namespace}}/{{name}}"


async def list_datasets(call: Call[None, Page]) -> DatasetList:
    """List datasets of a namespace and those shared with it, or of all namespaces where the user may list them.

    `limit` and `continue` page.
    """
    page = call.query
    namespace = page.namespace or None
    rows, after = await datasets.list_datasets(call.api, namespace, limit=page.limit, after=page.after)
    return DatasetList(datasets=tuple(rows), after=after)


async def create_dataset(call: Call[NewDataset, None]) -> Dataset | tuple[int, Dataset]:
    """Create a dataset; it starts to fill at once. With `dryRun` nothing is created.

    `Idempotency-Key`: asking twice is as once.
    """
    obj = datasets.plan_dataset(call.body, call.user.name)
    call.audit("create dataset", f"{call.body.namespace}/{call.body.name}")
    dry_run = call.body.dry_run
    dataset = await datasets.create_dataset(call.api, obj, mark=call.mark, dry_run=dry_run)
    return (200, dataset) if dry_run else dataset


async def show_dataset(call: Call[None, None]) -> Dataset:
    """Show the progress, contents, readers and users of a dataset."""
    return await datasets.get_dataset(call.api, call.namespace, call.name)


async def share_dataset(call: Call[Readers, None]) -> Dataset:
    """Set which tenants may read a dataset."""
    call.audit("share dataset", f"{call.namespace}/{call.name}")
    return await datasets.set_readers(call.api, call.namespace, call.name, call.body.readers)


async def delete_dataset(call: Call[None, Force]) -> None:
    """Delete a dataset. 409 while it is in use, unless `force=true`: then its pods in this namespace end."""
    call.audit("delete dataset", f"{call.namespace}/{call.name}")
    await datasets.delete_dataset(call.api, call.namespace, call.name, force=call.query.force)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=ALL, handler=list_datasets, query=Page, answer=DatasetList),
    Endpoint(
        method="POST", path=ALL, handler=create_dataset, body=NewDataset, answer=Dataset, status=201, once=True
    ),
    Endpoint(method="GET", path=ONE, handler=show_dataset, answer=Dataset),
    Endpoint(method="PATCH", path=ONE, handler=share_dataset, body=Readers, answer=Dataset),
    Endpoint(method="DELETE", path=ONE, handler=delete_dataset, query=Force),
)
