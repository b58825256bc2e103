"""Metrics of the operator, and the small application that serves them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moorage import __version__
from moorage.controllers.loop import Loop
from moorage.metrics.caches import FAMILIES as CACHES
from moorage.metrics.caches import measure_caches
from moorage.metrics.counters import Histogram, Tally
from moorage.metrics.families import Family, Measured, measured
from moorage.metrics.page import BUILD, MEDIA_TYPE, PATH, exposition
from moorage_kube.informer import Informer

LOOPS_MAX = 100  # a controller each; four outcomes

PASSES = Family(
    name="moorage_reconcile_duration_seconds",
    help="Time of a pass by controller and outcome: done, conflict, refused (by the API) or failed (a defect)",
    kind="histogram",
    labels=("controller", "outcome"),
    series_max=LOOPS_MAX,
)
DEPTH = Family(
    name="moorage_reconcile_queue_depth",
    help="Keys that wait for a pass now",
    labels=("controller",),
    series_max=LOOPS_MAX,
)
RETRIES = Family(
    name="moorage_reconcile_retries",
    help="Keys whose last pass failed, and which are tried again",
    labels=("controller",),
    series_max=LOOPS_MAX,
)
HEALS = Family(
    name="moorage_reconcile_healed_total",
    help="Passes of the regular full resync that repaired a missed change: each is a defect",
    kind="counter",
    labels=("controller",),
    series_max=LOOPS_MAX,
)
LEADS = Family(
    name="moorage_operator_leads", help="1 while this operator works, 0 while it waits for the lease", series_max=1
)
FAMILIES = (PASSES, DEPTH, RETRIES, HEALS, LEADS, *CACHES, BUILD)


class OperatorMeasures:
    """Metrics of the operator. The loops of one process update them (`LoopMetrics`)."""

    def __init__(self) -> None:
        self._passes, self._heals = Histogram(PASSES), Tally(HEALS)
        self._loops: Sequence[Loop] = ()
        self._informers: Sequence[Informer] = ()

    def passed(self, controller: str, outcome: str, seconds: float) -> None:
        self._passes.observe(seconds, controller, outcome)

    def healed(self, controller: str) -> None:
        self._heals.add(controller)

    def began(self, loops: Sequence[Loop], informers: Sequence[Informer]) -> None:
        self._loops, self._informers = loops, informers

    def ended(self) -> None:
        self._loops = self._informers = ()

    def read(self) -> list[Measured]:
        return [
            self._passes.read(),
            measured(DEPTH, (((loop.name,), len(loop.queue)) for loop in self._loops)),
            measured(RETRIES, (((loop.name,), loop.queue.failing) for loop in self._loops)),
            self._heals.read(),
            measured(LEADS, [((), bool(self._loops))]),
            *measure_caches(self._informers),
            measured(BUILD, [((__version__,), 1)]),
        ]


def make_app(measures: OperatorMeasures) -> Starlette:
    """`GET /metrics`, `/healthz` and `/readyz`: an operator that waits for the lease is ready."""
    return Starlette(
        routes=[
            Route("/healthz", _ok, methods=["GET"]),
            Route("/readyz", _ok, methods=["GET"]),
            Route(PATH, partial(_metrics, measures), methods=["GET"]),
        ]
    )


async def _ok(_: Request) -> Response:
    return PlainTextResponse("ok")


async def _metrics(measures: OperatorMeasures, _: Request) -> Response:
    return Response(exposition(measures.read(), process=True), media_type=MEDIA_TYPE)
