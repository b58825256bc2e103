"""The web page /rightsize: runs that request more or less than past runs of the same command used."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from moorage.present.rightsizing import make_work
from moorage.server.pages.site import Page, Site
from moorage.server.rightsizing import readable_works

JOBS_HERE = "/jobs"  # among its pages
WORKS_SHOWN = 500


async def show(site: Site, request: Request) -> Response:
    """The web page of advice: about the reader's own work, and about work that they may list."""
    works = await readable_works(site.context.rightsizing, site.context.auth, request.state.user)
    advised = [make_work(work) for work in works if work.advice]
    return site.page(
        request,
        "rightsize.html",
        JOBS_HERE,
        live=False,
        works=advised[:WORKS_SHOWN],
        more=max(0, len(advised) - WORKS_SHOWN),
        looked_at=len(works),
    )


PAGES = (Page(method="GET", path="/rightsize", handler=show),)
