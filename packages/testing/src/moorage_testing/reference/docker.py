"""The page about Docker's API: the options of `docker run` and the routes, with their effect or refusal."""

from __future__ import annotations

import inspect

from moorage.decide.docker.fields import FIELDS, UNSET, Field
from moorage.decide.docker.unsupported import UNSUPPORTED
from moorage.server.docker.feature import ENDPOINTS
from moorage_testing.reference.kinds import cell


def docker_page(note: str) -> str:
    out = [note, "# Docker's API\n"]
    out.append(
        "[Use the cluster as if it were Docker](../howto/use-docker.md) shows the commands. This page lists the"
        " fields of `POST /containers/create`. A field without an effect is refused with status 400, unless it has"
        " the default value of Docker's command line. A field that is not in the table is refused too.\n"
    )
    out += ["## Options of a container\n", "| option | field | effect |", "|---|---|---|"]
    for path, field in FIELDS.items():
        option = f"`{field.option}`" if field.option else ""
        out.append(f"| {option} | `{path}` | {cell(_effect(field))} |".replace("|  |", "| |"))
    out.append("\n## Routes\n")
    out.append(
        "Docker's clients put the version in front: `/v1.41/…`. Paths of containers also work without a version."
        " An unsupported route answers with status 501 and the reason.\n"
    )
    out += ["| route | effect |", "|---|---|"]
    routes = {
        f"{endpoint.method} {endpoint.dockers}": " ".join(
            (inspect.getdoc(endpoint.handler) or "").split("\n\n")[0].split()
        )
        for endpoint in ENDPOINTS
        if endpoint.dockers
    }
    routes |= {route: f"Not supported: {reason}." for route, reason in UNSUPPORTED.items()}
    for route in sorted(routes, key=lambda route: route.partition(" ")[2]):
        out.append(f"| `{route.replace(':path', '')}` | {cell(routes[route])} |")
    return "\n".join(out) + "\n"


def _effect(field: Field) -> str:
    if field.does:
        return field.does
    usual = " or ".join(f"`{value}`" for value in field.usual if value not in UNSET)
    return f"Refused{f', except {usual}' if usual else ''}: {field.instead}."
