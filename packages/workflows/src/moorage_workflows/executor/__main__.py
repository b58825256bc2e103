"""`python -m moorage_workflows.executor init|wait|http|data|resource|delete`: the program in containers of
steps.

`init` and `wait` are the containers of these names; `http`, `data` and `resource` are the container main
of templates without an image of the user's.

Exit codes: 0 done; 1 the last line of standard error has the reason; 2 wrong usage. `wait` reports
problems of a step's outputs to the server, and ends with 1 then too; so does `http` with a request that
failed. `delete` runs in a separate pod, without the server.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from moorage_workflows.executor.deleting import TRY_SECONDS as DELETE_SECONDS
from moorage_workflows.executor.deleting import delete_all
from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.fetching import VOLUMES, fetch_all, prepare
from moorage_workflows.executor.order import Order, read_order
from moorage_workflows.executor.retrying import TRY_SECONDS, Retrying
from moorage_workflows.executor.saving import save, wait_for_end
from moorage_workflows.executor.stores import Stores
from moorage_workflows.executor.web import Server

API_TRY_SECONDS = 900.0  # an API server that is updated is back by then; an error that stays is one


def main(argv: list[str] | None = None, env: Mapping[str, str] = os.environ) -> int:
    """Run one part of the executor. Returns the exit code."""
    program = "python -m moorage_workflows.executor"
    parser = argparse.ArgumentParser(prog=program, description="The executor in a step's pod.")
    parser.add_argument("part", choices=("init", "wait", "http", "data", "resource", "delete"))
    parser.add_argument("--step", type=Path, default=Path("."), help="the folder that the pod's containers share")
    parser.add_argument("--order", type=Path, required=True, help="the file with the order")
    parser.add_argument("--volumes", type=Path, default=Path(VOLUMES), help="where volumes of main are mounted")
    parser.add_argument("--try-seconds", type=float, help="how long to wait for a server")
    parser.add_argument("--account", type=Path, default=Path(), help="the folder with the pod's token and CA")
    given = parser.parse_args(argv)
    # SIGTERM: a fetch ends; a report is still made, for as long as the pod's grace period lasts
    ending = threading.Event()
    if given.part == "wait":
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limit = API_TRY_SECONDS if given.part == "resource" else TRY_SECONDS
    retrying = Retrying(ending, seconds=limit if given.try_seconds is None else given.try_seconds)
    try:
        if given.part == "resource":
            _resource(given.order, given.account, env, retrying)
            return 0
        if given.part == "delete":
            patience = Retrying(ending, seconds=DELETE_SECONDS if given.try_seconds is None else given.try_seconds)
            return 0 if delete_all(given.order, Stores(env, given.step), patience) else 1
        order = read_order(given.order)
        if given.part == "init":
            _init(given.step, order, env, retrying, given.volumes)
            return 0
        if given.part == "http":
            return _http(given.step, order, env, retrying, ending)
        if given.part == "data":
            return _data(given.step, order, env, retrying)
        return _wait(given.step, order, env, retrying, ending)
    except StepError as error:
        print(f"moorage: {error.message}", file=sys.stderr, flush=True)
        return 1


def _init(step: Path, order: Order, env: Mapping[str, str], retrying: Retrying, volumes: Path) -> None:
    prepare(step, order)
    stores = Stores(env, step / "tmp")
    fetch_all(step, order, lambda: _server(order, env), stores, retrying, volumes=volumes)


def _wait(step: Path, order: Order, env: Mapping[str, str], retrying: Retrying, ending: threading.Event) -> int:
    code = wait_for_end(step, ending)
    report = save(step, order, code, lambda: _server(order, env), Stores(env, step / "tmp"), retrying)
    server = _server(order, env)
    retrying.call("the report", lambda: server.report(report.document))
    return 1 if report.problems else 0


def _http(step: Path, order: Order, env: Mapping[str, str], retrying: Retrying, ending: threading.Event) -> int:
    from moorage_workflows.executor.requests import request_report  # the other parts need no expressions

    (step / "tmp").mkdir(exist_ok=True)
    report = request_report(order, env)
    signal.signal(signal.SIGTERM, lambda *_: ending.set())  # from here on there is something to report
    server = _server(order, env)
    retrying.call("the report", lambda: server.report(report))
    return 1 if report.get("error") else 0


def _resource(order: Path, account: Path, env: Mapping[str, str], retrying: Retrying) -> None:
    from moorage.decide.evaluation import TextError
    from moorage_workflows.executor.resource.actions import Actions
    from moorage_workflows.executor.resource.cluster import Cluster
    from moorage_workflows.executor.resource.step import carry_out, read_resource_order

    def say(text: str) -> None:
        print(f"moorage: {text}", flush=True)

    try:
        actions = Actions(Cluster(env, account), retrying, say=say, pause=time.sleep)
        carry_out(read_resource_order(order), actions, say=say, pause=time.sleep)
    except TextError as error:
        raise StepError(error.message) from error


def _data(step: Path, order: Order, env: Mapping[str, str], retrying: Retrying) -> int:
    from moorage_workflows.executor.listing import data_report

    (step / "tmp").mkdir(exist_ok=True)
    report = data_report(order, lambda: _server(order, env), Stores(env, step / "tmp"), retrying)
    server = _server(order, env)
    retrying.call("the report", lambda: server.report(report))
    return 0


def _server(order: Order, env: Mapping[str, str]) -> Server:
    token = env.get("MOORAGE_STEP_TOKEN") or ""
    if not token:
        raise StepError("MOORAGE_STEP_TOKEN is not set: this pod cannot reach the server")
    return Server(env.get("MOORAGE_SERVER") or "", token, order, ca=env.get("MOORAGE_SERVER_CA") or "")


if __name__ == "__main__":
    sys.exit(main())
