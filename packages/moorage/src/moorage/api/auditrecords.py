"""Records of changes in the Kubernetes API, from the admission webhook to the server: `/api/v1/audit/records`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Request, Time, about
from moorage.api.people import Count

RECORDS_PATH = "/api/v1/audit/records"
RECORDS_MAX = 500  # in one request; 700 bytes each at most, some 300 usually
TEXT_MAX = 300  # characters

Short = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]


class AuditRecord(Request):
    """A change, or an attempted change, that reached the Kubernetes API."""

    at: Annotated[Time, about("When the API server asked about it.")]
    account: Annotated[Short, about("User as the API server names it.")]
    verb: Annotated[Short, about("create, update, delete or connect.")]
    path: Annotated[Annotated[str, msgspec.Meta(max_length=1000)], about("Path of the object.")]
    action: Annotated[Short, about("Action, such as delete pod team/a1.")]
    target: Annotated[Short, about("Object that was changed, such as pod team/a1.")]
    client: Annotated[Short, about("Program that sent it, as it names itself; empty: not known.")] = ""
    status: Annotated[Count, about("200: admitted; 422 or 500: refused by a guardrail.")] = 200


class AuditRecords(Request):
    """A batch of records from a webhook."""

    records: Annotated[
        Annotated[tuple[AuditRecord, ...], msgspec.Meta(max_length=RECORDS_MAX)], about("Records, oldest first.")
    ] = ()
    lost: Annotated[Count, about("Records that had no room while the server was away.")] = 0
