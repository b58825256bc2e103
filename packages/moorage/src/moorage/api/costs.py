"""API types of costs: `/api/v1/cost` and below. Amounts are decimal strings, so that clients do not round them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Query, Request, Text, Time, about

PRICES_MOST = 256 * 1024  # bytes of a price file
Prices = Annotated[str, msgspec.Meta(max_length=PRICES_MOST)]
_BY = about("Group of each row: tenant, user, run, namespace, day, node or type.")
_SINCE = about("Start of the window: a span before now (24h, 7d), a day or RFC 3339.")
_UNTIL = about("End of the window, written as `since`; left out: now.")
_ZONE = about("Time zone in which days begin, such as Asia/Tokyo.")
_FILE = about("Text of a price file, instead of the one that is installed.")


class CostQuery(Query):
    """A window of time, and the groups for which money is summed up."""

    by: Annotated[Text, _BY] = "user"
    since: Annotated[Text, _SINCE] = "30d"
    until: Annotated[Text | None, _UNTIL] = None
    time_zone: Annotated[Text, _ZONE] = "UTC"


class CostRequest(Request):
    """The same query with the caller's own prices."""

    by: Annotated[Text, _BY] = "user"
    since: Annotated[Text, _SINCE] = "30d"
    until: Annotated[Text | None, _UNTIL] = None
    time_zone: Annotated[Text, _ZONE] = "UTC"
    prices: Annotated[Prices, _FILE] = ""


class PriceSource(Answer, frozen=True):
    """The source of the prices."""

    source: Annotated[str, about("Where they were read.")] = ""
    date: Annotated[str, about("When they were read, as YYYY-MM-DD.")] = ""
    currency: Annotated[str, about("Currency of all amounts.")] = "USD"


class CostRow(Answer, frozen=True):
    """The cost of one tenant, user, run, namespace, day, node or machine type."""

    name: Annotated[
        str,
        about(
            "Group that the money belongs to; (idle), (system), (reserved) and (others) belong to no single one."
        ),
    ]
    total: Annotated[str, about("Allocated and idle.")]
    allocated: Annotated[str, about("Used, unused, not measured and reserved.")]
    used: Annotated[str, about("Of pods with GPUs: as far as their GPUs were busy.")]
    unused: Annotated[str, about("Of pods with GPUs: as far as their GPUs were not.")]
    not_measured: Annotated[str, about("Of pods without GPUs, or without samples.")]
    reserved: Annotated[str, about("Of places reserved for machines.")]
    idle: Annotated[str, about("Of capacity that no pod requested.")]
    gpu_hours: Annotated[float, about("Whole GPUs × hours that pods held.")] = 0.0
    pods: Annotated[int, about("Pods within the window.")] = 0


class UnpricedNodes(Answer, frozen=True):
    """Nodes without a price in the price file; rows do not include them."""

    name: Annotated[str, about("Their machine type, region and market.")]
    node_hours: Annotated[float, about("Nodes × hours.")]


class Costs(Answer, frozen=True):
    """The costs of a window of time. The rows add up to the total."""

    since: Annotated[Time, about("Start of the window, or when nodes were recorded first.")]
    until: Annotated[Time, about("End of the window.")]
    by: Annotated[str, _BY] = "user"
    prices: Annotated[PriceSource, about("Where the prices are from.")] = PriceSource()
    rows: Annotated[
        tuple[CostRow, ...],
        about("The largest first; (idle), (system), (reserved) and (others) last; days in their order."),
    ] = ()
    total: Annotated[CostRow | None, about("The sum of all rows.")] = None
    unpriced: Annotated[tuple[UnpricedNodes, ...], about("Nodes without a price.")] = ()
    notes: Annotated[tuple[str, ...], about("Remarks for the reader.")] = ()


class DailyCost(Answer, frozen=True):
    """The cost of one tenant or user, day by day."""

    name: str
    money: Annotated[tuple[str, ...], about("One amount for each day.")] = ()


class DailyCosts(Answer, frozen=True):
    """For a chart."""

    days: Annotated[tuple[str, ...], about("The days, as YYYY-MM-DD.")] = ()
    by: Annotated[str, _BY] = "tenant"
    prices: Annotated[PriceSource, about("Where the prices are from.")] = PriceSource()
    rows: Annotated[tuple[DailyCost, ...], about("The largest first.")] = ()


class CompareJob(Request):
    """Work of a sample: requests of a pod, its duration, and its number of runs in a month."""

    name: Annotated[Text, about("Its name.")]
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e9), about("How long a pod of it takes.")]
    cpu: Annotated[Text, about("CPUs that it asks for, as 500m; empty: none.")] = ""
    memory: Annotated[Text, about("Memory that it asks for, as 4Gi; empty: none.")] = ""
    storage: Annotated[Text, about("Scratch disk that it asks for; empty: none.")] = ""
    gpus: Annotated[float, msgspec.Meta(ge=0, le=10_000), about("GPUs; parts of one for slices.")] = 0
    gpu_type: Annotated[Text, about("Type of the GPUs.")] = ""
    times: Annotated[float, msgspec.Meta(ge=0, le=1e9), about("How often it runs in a month.")] = 1
    region: Annotated[Text, about("Where; empty: the only region of the price file.")] = ""
    spot: Annotated[bool, about("Whether on spot capacity.")] = False


class CompareRequest(Request):
    """A request to compare costs by node with costs by pod, for a period or for sampled work per month."""

    since: Annotated[Text, _SINCE] = "30d"
    until: Annotated[Text | None, _UNTIL] = None
    node_prices: Annotated[Prices, about("Price file of nodes; empty: the one that is installed.")] = ""
    pod_prices: Annotated[Prices, about("Price file with prices of pods; empty: that of nodes.")] = ""
    sample: Annotated[
        tuple[Text, ...], msgspec.Meta(max_length=1000), about("Runs of the window, as NAMESPACE/NAME.")
    ] = ()
    times: Annotated[
        float, msgspec.Meta(gt=0, le=1e9), about("How often each run of the sample runs in a month.")
    ] = 1
    jobs: Annotated[
        tuple[CompareJob, ...], msgspec.Meta(max_length=10_000), about("Work that is described, not recorded.")
    ] = ()


class ComparedJob(Answer, frozen=True):
    """The cost of work under pod billing."""

    name: str
    times: Annotated[float, about("Pods, or how often a month.")]
    money: Annotated[str, about("Money for all of them.")]


class Compared(Answer, frozen=True):
    """Two ways of billing. Amounts are for the window, or, with a sample, for a month of 30 days."""

    since: Annotated[Time, about("Start of the window.")]
    until: Annotated[Time, about("End of the window.")]
    is_month: Annotated[bool, about("Whether amounts are of a month of 30 days, not of the window.")]
    node_prices: PriceSource
    pod_prices: PriceSource
    nodes: Annotated[str, about("Money by nodes.")]
    idle: Annotated[str, about("Part of it for capacity that no pod requested.")]
    pods: Annotated[str, about("Money by pods.")]
    saved_percent: Annotated[
        float | None, about("Percent that pod billing saves; less than 0: it costs more.")
    ] = None
    jobs: Annotated[tuple[ComparedJob, ...], about("Work by its money where pods are billed.")] = ()
    unpriced: Annotated[tuple[str, ...], about("Nodes without a price.")] = ()
    notes: Annotated[tuple[str, ...], about("Remarks for the reader.")] = ()


class InstalledPrices(Answer, frozen=True):
    """The price file of this installation."""

    text: Annotated[str, about("The file; empty: none is installed.")] = ""
    prices: Annotated[PriceSource, about("Where its prices are from.")] = PriceSource()
