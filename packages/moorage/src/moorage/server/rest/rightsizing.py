"""/api/v1/rightsize: advice on the requests of runs, from the use of past runs."""

from __future__ import annotations

from typing import Any

from moorage.api.rightsizing import Rightsize, RightsizeQuery
from moorage.decide.usage.rightsizing import Asked
from moorage.present.rightsizing import make_work
from moorage.server.endpoint import Call, Endpoint
from moorage.server.rightsizing import readable_works, work_of_new, work_of_run


async def get_rightsize(call: Call[None, RightsizeQuery]) -> Rightsize:
    """Show which resources runs should request: by default of all work for which there is advice."""
    query = call.query
    works = await readable_works(call.context.rightsizing, call.context.auth, call.user, namespace=query.namespace)
    if query.work:
        asked = Asked(cpu_milli=query.cpu_milli or 0, memory_bytes=query.memory_bytes or 0, gpus=query.gpus or 0)
        work = work_of_new(works, query.namespace, call.user.name, query.work, query.run, asked)
    elif query.run:
        work = work_of_run(works, query.namespace, query.run)
    else:
        return Rightsize(works=tuple(make_work(work) for work in works if work.advice))
    return Rightsize(works=() if work is None else (make_work(work),))


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(
        method="GET", path="/api/v1/rightsize", handler=get_rightsize, query=RightsizeQuery, answer=Rightsize
    ),
)
