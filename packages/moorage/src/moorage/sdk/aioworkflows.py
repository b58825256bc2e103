"""`client.workflows` and `client.workflow_templates`: workflows in Argo's format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from moorage.api.explain import WorkflowExplanation
from moorage.api.reading import read
from moorage.api.workflows import LogLine, Workflow, WorkflowList, WorkflowTemplate, WorkflowTemplateList
from moorage.sdk.group import Group, lines_of, new_key

LOOKS = (0.2, 2.0)  # first and longest pause between two checks while waiting


class StepLine(Struct, frozen=True):
    """A line that a step printed. `step`: the name of the step, without the name of the workflow."""

    step: str
    pod: str
    text: str


class AsyncWorkflows(Group):
    """Workflows in Argo's format. The name `@latest` means the newest workflow."""

    async def submit(
        self,
        workflow: Mapping[str, Any] | None = None,
        *,
        from_: str | None = None,
        parameters: Mapping[str, str] | Sequence[str] = (),
        name: str | None = None,
        generate_name: str | None = None,
        labels: Mapping[str, str] | None = None,
        entrypoint: str | None = None,
        service_account: str | None = None,
        priority: int | None = None,
        priority_class: str | None = None,
        host_env: bool = False,
        namespace: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> Workflow:
        """Submit a manifest, or a workflow from a template.

        `from_`: workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME; `parameters`: a
        mapping, or strings NAME=VALUE; `key`: an idempotency key: a second call with the same key returns the
        same workflow. Raises Invalid, AlreadyExists.
        """
        # parameters and labels are sent as NAME=VALUE
        pairs = parameters.items() if isinstance(parameters, Mapping) else None
        wanted: dict[str, Any] = {
            "workflow": None if workflow is None else dict(workflow),
            "from": from_,
            "parameters": [*parameters] if pairs is None else [f"{each}={value}" for each, value in pairs],
            "name": name,
            "generateName": generate_name,
            "labels": [f"{each}={value}" for each, value in (labels or {}).items()],
            "entrypoint": entrypoint,
            "serviceAccount": service_account,
            "priority": priority,
            "priorityClass": priority_class,
            "hostEnv": host_env,
            "dryRun": dry_run,
        }
        # the key makes a repeated request return the same workflow
        body = {field: value for field, value in wanted.items() if value is not None}
        path = f"/api/v1/workflows/{quote(await self._in(namespace), safe='')}"
        return read(Workflow, await self._json("POST", path, body=body, key=key or new_key()))

    async def list(
        self,
        *,
        status: Sequence[str] = (),
        running: bool = False,
        completed: bool = False,
        prefix: str = "",
        cron: str = "",
        since: str | None = None,
        selector: str | None = None,
        limit: int | None = None,
        namespace: str | None = None,
        all_namespaces: bool = False,
    ) -> AsyncIterator[Workflow]:
        """Workflows, newest first, without their nodes; including deleted ones that the server stores.

        `status`: such as Failed; `since`: 2h or 7d ago, a day, or an RFC 3339 time.
        """
        path = "/api/v1/workflows"
        if not all_namespaces:
            path += f"/{quote(await self._in(namespace), safe='')}"
        params = {
            "status": [*status],
            "running": running or None,
            "completed": completed or None,
            "prefix": prefix or None,
            "cron": cron or None,
            "since": since,
            "selector": selector,
            "limit": limit,
        }
        for item in read(WorkflowList, await self._json("GET", path, params=params)).items:
            yield item

    async def get(self, name: str, *, namespace: str | None = None) -> Workflow:
        """Return a workflow with its nodes in `status["nodes"]`. Raises NotFound."""
        return read(Workflow, await self._json("GET", await self._path("workflows", namespace, name)))

    async def explain(
        self, name: str, *, step: str | None = None, namespace: str | None = None
    ) -> WorkflowExplanation:
        """The running steps, and the reasons why others wait; `step`: only one step. Raises NotFound."""
        path = await self._path("workflows", namespace, name, "explain")
        return read(WorkflowExplanation, await self._json("GET", path, params={"step": step}))

    async def wait(self, name: str, *, timeout: float | None = None, namespace: str | None = None) -> Workflow:
        """Wait until the workflow ends, and return it. Raises TimeoutError after `timeout` seconds.

        Without `timeout` it waits without a limit.
        """
        began, pause = self._clock.monotonic(), LOOKS[0]
        while True:
            workflow = await self.get(name, namespace=namespace)
            if workflow.has_ended:
                return workflow
            if timeout is not None and self._clock.monotonic() - began > timeout:
                raise TimeoutError(f"the workflow {name} is {workflow.phase} after {timeout:g} s")
            await self._clock.sleep(pause)
            pause = min(pause * 1.5, LOOKS[1])

    async def logs(
        self,
        name: str,
        *,
        follow: bool = False,
        step: str = "",
        tail: int | None = None,
        since_seconds: int | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[StepLine]:
        """The output of its steps; `follow`: until it has ended; `step`: one step; `tail`: of each pod."""
        path = await self._path("workflows", namespace, name, "log")
        params = {"follow": follow or None, "step": step or None, "tail": tail, "sinceSeconds": since_seconds}
        async with self._connection.stream("GET", path, params=params) as parts:
            async for line in lines_of(parts):
                entry = read(LogLine, json.loads(line)).result
                yield StepLine(entry.step, entry.pod_name, entry.content)

    async def stop(
        self, name: str, *, node_field_selector: str = "", message: str = "", namespace: str | None = None
    ) -> Workflow:
        """Stop a workflow; its exit handler runs.

        With a selector, let the selected suspended nodes fail instead.
        """
        body = {"nodeFieldSelector": node_field_selector, "message": message}
        return await self._put(name, "stop", namespace, body)

    async def terminate(self, name: str, *, namespace: str | None = None) -> Workflow:
        """Stop a workflow at once; its exit handler does not run."""
        return await self._put(name, "terminate", namespace, {})

    async def suspend(self, name: str, *, namespace: str | None = None) -> Workflow:
        """Suspend a workflow: no more steps start."""
        return await self._put(name, "suspend", namespace, {})

    async def resume(
        self, name: str, *, node_field_selector: str = "", message: str = "", namespace: str | None = None
    ) -> Workflow:
        """Resume a suspended workflow and its suspended nodes."""
        body = {"nodeFieldSelector": node_field_selector, "message": message}
        return await self._put(name, "resume", namespace, body)

    async def set_node(
        self,
        name: str,
        *,
        output_parameters: Mapping[str, str] | None = None,
        node_field_selector: str = "",
        message: str = "",
        phase: str = "Succeeded",
        namespace: str | None = None,
    ) -> Workflow:
        """Set the outputs of a suspended node, and let the node succeed or fail (`phase` Failed)."""
        body = {
            "outputParameters": dict(output_parameters or {}),
            "nodeFieldSelector": node_field_selector,
            "message": message,
            "phase": phase,
        }
        return await self._put(name, "set", namespace, body)

    async def retry(
        self,
        name: str,
        *,
        restart_successful: bool = False,
        node_field_selector: str = "",
        namespace: str | None = None,
    ) -> Workflow:
        """Run the failed steps and their successors again. Raises Conflict for a workflow that has not ended."""
        body = {"restartSuccessful": restart_successful, "nodeFieldSelector": node_field_selector}
        return await self._put(name, "retry", namespace, body)

    async def resubmit(
        self,
        name: str,
        *,
        parameters: Mapping[str, str] | None = None,
        memoized: bool = False,
        namespace: str | None = None,
        key: str | None = None,
    ) -> Workflow:
        """Submit its spec again, as a new workflow; also that of a deleted one. `key`: as with `submit`.

        `memoized`: reuse the steps that succeeded, with their outputs. Raises Conflict for a workflow that
        has not failed.
        """
        body = {
            "parameters": [f"{each}={value}" for each, value in (parameters or {}).items()],
            "memoized": memoized,
        }
        path = await self._path("workflows", namespace, name, "resubmit")
        return read(Workflow, await self._json("PUT", path, body=body, key=key or new_key()))

    async def delete(self, name: str, *, namespace: str | None = None) -> None:
        """Delete it with its pods. The server stores its record until that expires."""
        await self._json("DELETE", await self._path("workflows", namespace, name))

    async def _put(self, name: str, verb: str, namespace: str | None, body: Mapping[str, Any]) -> Workflow:
        path = await self._path("workflows", namespace, name, verb)
        return read(Workflow, await self._json("PUT", path, body=body))


class AsyncWorkflowTemplates(Group):
    """WorkflowTemplates; with `cluster=True`, ClusterWorkflowTemplates."""

    async def create(
        self,
        template: Mapping[str, Any],
        *,
        replace: bool = False,
        cluster: bool = False,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> WorkflowTemplate:
        """Create a template from its manifest. `replace`: change it if it exists.

        Otherwise raises AlreadyExists.
        """
        path = await self._base(namespace, cluster=cluster)
        if replace:
            name = str((template.get("metadata") or {}).get("name") or "")
            stored = [each.name async for each in self.list(cluster=cluster, namespace=namespace)]
            if name in stored:
                changed = await self._json(
                    "PUT", f"{path}/{quote(name, safe='')}", body={"template": dict(template)}
                )
                return read(WorkflowTemplate, changed)
        options = {"createOptions": {"dryRun": ["All"]}} if dry_run else {}
        made = await self._json("POST", path, body={"template": dict(template), **options})
        return read(WorkflowTemplate, made)

    async def list(
        self, *, cluster: bool = False, namespace: str | None = None, all_namespaces: bool = False
    ) -> AsyncIterator[WorkflowTemplate]:
        """List templates, sorted by name."""
        base = await self._base(namespace, cluster=cluster)
        path = "/api/v1/workflow-templates" if all_namespaces and not cluster else base
        for item in read(WorkflowTemplateList, await self._json("GET", path)).items:
            yield item

    async def get(self, name: str, *, cluster: bool = False, namespace: str | None = None) -> WorkflowTemplate:
        """Raises NotFound."""
        base = await self._base(namespace, cluster=cluster)
        return read(WorkflowTemplate, await self._json("GET", f"{base}/{quote(name, safe='')}"))

    async def delete(self, name: str, *, cluster: bool = False, namespace: str | None = None) -> None:
        """Delete it. Running workflows continue with their copy of it. Raises NotFound."""
        base = await self._base(namespace, cluster=cluster)
        await self._json("DELETE", f"{base}/{quote(name, safe='')}")

    async def _base(self, namespace: str | None, *, cluster: bool) -> str:
        if cluster:
            return "/api/v1/cluster-workflow-templates"
        return f"/api/v1/workflow-templates/{quote(await self._in(namespace), safe='')}"
