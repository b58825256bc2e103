"""Convert a CronJob to a CronWorkflow that does the same, and list the differences.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/cron-job-v1/
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
https://argo-workflows.readthedocs.io/en/latest/cron-workflows/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from moorage.decide.admission.fields import Path, at, field_of, mapping, sequence
from moorage.decide.admission.shape import misshapen
from moorage.model.argo import CRON_WORKFLOWS
from moorage.model.schedule import problem_of_zone
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.argosubmit import NotConverted, Submit, parse_submit
from moorage_workflows.decide.workflows.changes import Converted, Fields, Ledger
from moorage_workflows.decide.workflows.schedules import ScheduleError, parse_schedule
from moorage_workflows.model.workflow import CRON_NAME_MAX

API_VERSIONS = ("batch/v1", "batch/v1beta1", "batch/v2alpha1")
BACKOFF_LIMIT = 6  # of a Job that states none
# of a Job's failed pods: 10 s, then twice as long each time, at most 6 min
# https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy
BACKOFF: Mapping[str, str] = {"duration": "10s", "factor": "2", "cap": "6m"}
ENTRY = "main"
WORKER = "pod"  # the template of one pod, where a Job has several
INDEX = "index"  # the input parameter that carries a pod's index

_SERVERS = (
    "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
    "managedFields", "selfLink",
)  # fmt: skip
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_CRON_FIELDS = ("concurrencyPolicy", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
# fields of a pod spec → where they stand for the workflow, under the same name
_WORKFLOW_FIELDS = ("serviceAccountName", "imagePullSecrets", "dnsPolicy", "dnsConfig", "hostNetwork")
_TEMPLATE_FIELDS = (
    "nodeSelector", "affinity", "tolerations", "priorityClassName", "schedulerName", "securityContext",
    "automountServiceAccountToken", "hostAliases", "volumes",
)  # fmt: skip
_PATCH_FIELDS = (
    "hostPID", "hostIPC", "hostname", "subdomain", "hostUsers", "nodeName", "runtimeClassName", "preemptionPolicy",
    "terminationGracePeriodSeconds", "topologySpreadConstraints", "enableServiceLinks", "shareProcessNamespace",
    "setHostnameAsFQDN", "readinessGates", "os", "overhead", "resources", "resourceClaims",
)  # fmt: skip
_JOB_LABELS = ("job-name", "controller-uid", "batch.kubernetes.io/", "job_name")
_TAGS_OPEN = "{{"


def convert_cronjob(obj: Obj, *, time_zone: str = "") -> Converted:
    """Convert one CronJob. Never raises: a document that cannot be converted is refused.

    `time_zone`: an IANA name for a CronJob that states none; empty: none is written.
    """
    ledger = Ledger()
    name = str(mapping(obj.get("metadata")).get("name") or "")
    for finding in misshapen("CronJob", obj):
        value = f" (found {finding.value})" if finding.value else ""
        ledger.refused(finding.path, finding.message + value)
    document = None
    if not ledger.is_refused:
        document = _Conversion(obj, ledger, time_zone).document()
    return Converted(
        kind="CronJob",
        name=name,
        document=None if ledger.is_refused else document,
        changes=tuple(ledger.changes),
    )


class _Conversion:
    """The conversion of one CronJob: the values that the parts of the result share."""

    def __init__(self, obj: Obj, ledger: Ledger, time_zone: str) -> None:
        self._obj = obj
        self._ledger = ledger
        self._time_zone = time_zone
        self._workflow: dict[str, Any] = {}  # workflowSpec
        self._runs: dict[str, Any] = {}  # workflowMetadata
        self._namespace = str(mapping(obj.get("metadata")).get("namespace") or "")

    def document(self) -> Obj:
        ledger = self._ledger
        top = Fields(self._obj, ())
        old = f"{top.take('apiVersion')} {top.take('kind')}"
        made = CRON_WORKFLOWS
        ledger.kept(("kind",), "kind", f"{old} becomes {made.group}/{made.version} {made.kind}")
        metadata = self._metadata(Fields(mapping(top.take("metadata")), ("metadata",)))
        spec = self._spec(Fields(mapping(top.take("spec")), ("spec",)))
        if top.take("status") is not None:
            ledger.dropped(("status",), "written by the controller")
        self._unknown(top)
        return {
            "apiVersion": f"{made.group}/{made.version}",
            "kind": made.kind,
            "metadata": metadata,
            "spec": spec,
        }

    # --- the object

    def _metadata(self, fields: Fields) -> dict[str, Any]:
        ledger, metadata = self._ledger, dict[str, Any]()
        name = fields.take("name")
        if not isinstance(name, str) or not name:
            ledger.refused(fields.at("name"), "is missing: a CronWorkflow needs a name")
        elif len(name) > CRON_NAME_MAX:
            ledger.refused(
                fields.at("name"),
                f"{name!r} has {len(name)} characters; a CronWorkflow has at most {CRON_NAME_MAX}: its runs add"
                f" a dash and ten digits. Shorten it, such as to {name[:CRON_NAME_MAX].rstrip('-.')!r}",
            )
        else:
            metadata["name"] = name
            ledger.kept(fields.at("name"), "metadata.name")
        for key, value in fields.taken(("namespace", "labels")):
            metadata[key] = value
            ledger.kept(fields.at(key), f"metadata.{key}")
        annotations = fields.take("annotations")
        if isinstance(annotations, dict):
            own = {key: value for key, value in annotations.items() if key != _APPLIED}
            if own:
                metadata["annotations"] = own
                ledger.kept(fields.at("annotations"), "metadata.annotations")
            if _APPLIED in annotations:
                ledger.dropped((*fields.at("annotations"), _APPLIED), "kubectl writes it again")
        for key, _ in fields.taken(_SERVERS):
            ledger.dropped(fields.at(key), "written by the API server")
        for key, _ in fields.taken(("ownerReferences", "finalizers")):
            ledger.lost(fields.at(key), "belongs to the CronJob; its owner must set it again")
        self._unknown(fields)
        return metadata

    def _spec(self, fields: Fields) -> dict[str, Any]:
        ledger = self._ledger
        spec: dict[str, Any] = {}
        zone = self._schedule(fields, spec)
        if zone:
            spec["timezone"] = zone
        for key, value in fields.taken(_CRON_FIELDS):
            spec[key] = value
            ledger.kept(fields.at(key), f"spec.{key}", _CRON_NOTES.get((key, value), ""))
        deadline = fields.take("startingDeadlineSeconds")
        if deadline is None:
            ledger.changed(
                fields.at("startingDeadlineSeconds"),
                "",
                "is not set: a CronJob starts the latest missed slot however late it is, a CronWorkflow none."
                " Set it to start a missed slot late",
            )
        else:
            spec["startingDeadlineSeconds"] = deadline
            ledger.kept(
                fields.at("startingDeadlineSeconds"),
                "spec.startingDeadlineSeconds",
                "of the slots that were missed, the latest is started, as with a CronJob",
            )
        if (suspend := fields.take("suspend")) is not None:
            spec["suspend"] = suspend
            ledger.kept(fields.at("suspend"), "spec.suspend")
        job_template = Fields(mapping(fields.take("jobTemplate")), fields.at("jobTemplate"))
        self._job_metadata(job_template)
        job = Fields(mapping(job_template.take("spec")), job_template.at("spec"))
        self._job(job, spec)
        self._unknown(job_template)
        self._unknown(fields)
        if self._runs:
            spec["workflowMetadata"] = self._runs
        spec["workflowSpec"] = self._workflow
        return spec

    def _schedule(self, fields: Fields, spec: dict[str, Any]) -> str:
        """Write the schedule into the spec. Returns the time zone."""
        ledger = self._ledger
        schedule, zone = fields.take("schedule"), fields.take("timeZone")
        path = fields.at("schedule")
        if not isinstance(schedule, str) or not schedule.strip():
            ledger.refused(path, f"must be a schedule such as '0 19 * * *' (found {schedule!r})")
            return ""
        text = schedule.strip()
        head, _, rest = text.partition(" ")
        if head.startswith(("TZ=", "CRON_TZ=")):
            inside = head.partition("=")[2]
            ledger.kept(path, "spec.timezone", f"{head} becomes the time zone {inside}")
            text, zone = rest.strip(), zone or inside
        try:
            parse_schedule(text)
        except ScheduleError as error:
            ledger.refused(path, error.message)
        spec["schedules"] = [text]
        ledger.kept(path, "spec.schedules[0]", "a list: several schedules are allowed")
        if zone is not None and not isinstance(zone, str):
            ledger.refused(fields.at("timeZone"), f"must be a name such as Asia/Tokyo (found {zone!r})")
            return ""
        if zone:
            if problem := problem_of_zone(zone):
                ledger.refused(fields.at("timeZone"), f"{problem} (found {zone!r})")
            ledger.kept(fields.at("timeZone"), "spec.timezone")
            return zone
        if self._time_zone:
            ledger.changed(fields.at("timeZone"), "spec.timezone", f"was not set; {self._time_zone} was asked for")
            return self._time_zone
        ledger.changed(
            fields.at("timeZone"),
            "",
            "is not set: a CronJob uses the zone of kube-controller-manager, a CronWorkflow UTC (under Argo, the"
            " zone of its controller). Set spec.timezone, such as with --time-zone Asia/Tokyo",
        )
        return ""

    # --- the Job

    def _job_metadata(self, fields: Fields) -> None:
        metadata = Fields(mapping(fields.take("metadata")), fields.at("metadata"))
        for key, value in metadata.taken(("labels", "annotations")):
            self._runs[key] = value
            self._ledger.kept(metadata.at(key), f"spec.workflowMetadata.{key}")
        for key, _ in metadata.taken(("name", "generateName")):
            self._ledger.lost(metadata.at(key), "runs are named after the CronWorkflow and their slot")
        for key, _ in metadata.taken(("namespace", *_SERVERS)):
            self._ledger.dropped(metadata.at(key), "has no effect there")
        self._unknown(metadata)

    def _job(self, job: Fields, spec: dict[str, Any]) -> None:
        template = Fields(mapping(job.take("template")), job.at("template"))
        pod = Fields(mapping(template.take("spec")), template.at("spec"))
        containers = [item for item in sequence(pod.take("containers")) if isinstance(item, dict)]
        submit = self._submit(pod, containers)
        if submit is not None:
            self._by_reference(job, template, pod, submit)
            return
        leaf: dict[str, Any] = {"name": ENTRY}
        self._pod_metadata(template, leaf)
        self._pod(pod, leaf)
        self._containers(pod, containers, leaf)
        self._retries(job, pod, leaf, containers)
        self._parallel(job, spec, leaf)
        self._ends(job)
        self._warn_of_texts(pod)
        self._unknown(pod)
        self._unknown(template)
        self._unknown(job)

    def _ends(self, job: Fields) -> None:
        """The fields that end a Job, and that delete it."""
        ledger, workflow = self._ledger, self._workflow
        if (seconds := job.take("activeDeadlineSeconds")) is not None:
            workflow["activeDeadlineSeconds"] = seconds
            ledger.kept(
                job.at("activeDeadlineSeconds"),
                "spec.workflowSpec.activeDeadlineSeconds",
                "of the whole run, its retries among it",
            )
        if (seconds := job.take("ttlSecondsAfterFinished")) is not None:
            workflow["ttlStrategy"] = {"secondsAfterCompletion": seconds}
            ledger.kept(
                job.at("ttlSecondsAfterFinished"),
                "spec.workflowSpec.ttlStrategy.secondsAfterCompletion",
                "the history limits hold too: the earlier of both deletes the run",
            )
        if (suspend := job.take("suspend")) is not None:
            workflow["suspend"] = suspend
            ledger.kept(job.at("suspend"), "spec.workflowSpec.suspend", "each run waits until it is resumed")
        for key, value in job.taken(("podReplacementPolicy",)):
            if value == "Failed":
                ledger.dropped(job.at(key), "a retry always waits for the end of the pod before it")
            else:
                ledger.changed(job.at(key), "", "a retry always waits for the end of the pod before it")
        if job.take("successPolicy") is not None:
            ledger.lost(job.at("successPolicy"), "a run has succeeded when all of its pods have")
        if (manager := job.take("managedBy")) is not None:
            ledger.lost(job.at("managedBy"), f"{manager} does not see workflows")
        for key, _ in job.taken(("selector", "manualSelector")):
            ledger.dropped(job.at(key), "a run knows its pods by their owner")

    def _retries(self, job: Fields, pod: Fields, leaf: dict[str, Any], containers: list[Obj]) -> None:
        ledger, place = self._ledger, "retryStrategy"
        # limits for each index count before the limit of the Job
        limit, per_index = job.take("backoffLimit"), job.take("backoffLimitPerIndex")
        path = job.at("backoffLimit")
        if per_index is not None:
            if limit is not None:
                ledger.lost(path, "retries are counted for each index separately")
            limit, path = per_index, job.at("backoffLimitPerIndex")
        if (failed := job.take("maxFailedIndexes")) is not None:
            ledger.lost(
                job.at("maxFailedIndexes"), f"all other indexes run to their end, also after {failed} failures"
            )
        # without a limit, a Job has a default
        is_stated = limit is not None
        if limit is None:
            limit = BACKOFF_LIMIT
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            ledger.refused(path, f"must be a whole number from 0 (found {limit!r})")
            return
        # a workflow never restarts a container in its pod
        policy = pod.take("restartPolicy")
        if policy not in ("Never", "OnFailure", None):
            ledger.refused(pod.at("restartPolicy"), f"must be Never or OnFailure in a CronJob (found {policy!r})")
        if policy == "Never" or (policy == "OnFailure" and limit == 0):
            ledger.kept(pod.at("restartPolicy"), "", "pods of a workflow never restart a container")
        if limit == 0:
            ledger.kept(path, "", "one attempt: retryStrategy is left out")
            if job.take("podFailurePolicy") is not None:
                ledger.dropped(job.at("podFailurePolicy"), "without retries it decides nothing")
            return
        # the limit, and pauses like those of a Job
        leaf[place] = {"limit": str(limit), "retryPolicy": "Always", "backoff": dict(BACKOFF)}
        text = "" if is_stated else f"is not set: a Job's default of {BACKOFF_LIMIT} is written. "
        ledger.kept(path, f"{place}.limit", text + "the pauses are those of a Job: 10 s to 6 min")
        if policy == "OnFailure":
            ledger.changed(
                pod.at("restartPolicy"),
                place,
                "OnFailure restarts the container in its pod; a workflow starts a new pod, perhaps on another"
                " node. Files of the container in emptyDir volumes are lost",
            )
        # rules by exit code become an expression
        failures = job.take("podFailurePolicy")
        rules = mapping(failures).get("rules")
        if failures is not None and not rules:
            ledger.dropped(job.at("podFailurePolicy"), "has no rules")
        main = {str(container.get("name")) for container in containers} if len(containers) == 1 else set()
        if rules:
            self._failure_rules(sequence(rules), (*job.at("podFailurePolicy"), "rules"), main, leaf[place])

    def _failure_rules(self, rules: Any, path: Path, main: set[str], strategy: dict[str, Any]) -> None:
        """Convert the rules of a pod failure policy. As in a Job, the first matching rule decides."""
        ledger = self._ledger
        # each rule with exit codes becomes a condition; all others are reported
        choices: list[tuple[str, bool]] = []  # (condition, whether it is tried again)
        for index, rule in enumerate(rules):
            rule, where = mapping(rule), (*path, index)
            action, codes = rule.get("action"), mapping(rule.get("onExitCodes"))
            if rule.get("onPodConditions"):
                message = "conditions of pods are not asked for; attempts that a node lost are started again"
                ledger.lost((*where, "onPodConditions"), message)
            if not codes:
                continue
            named = codes.get("containerName")
            values = [value for value in sequence(codes.get("values")) if type(value) is int]
            if named is not None and named not in main:
                ledger.lost(
                    (*where, "onExitCodes"), f"only the exit code of the main container counts, not {named}'s"
                )
                continue
            if action not in ("FailJob", "FailIndex", "Ignore", "Count") or not values:
                ledger.refused(where, "must have an action and exit codes as the API server takes them")
                continue
            word = "in" if codes.get("operator") == "In" else "not in"
            listed = ", ".join(str(value) for value in values)
            choices.append((f"asInt(lastRetry.exitCode) {word} [{listed}]", action in ("Ignore", "Count")))
            if action == "Ignore":
                ledger.changed(where, "retryStrategy.expression", "such a failure counts against the limit")
            elif action == "FailJob" and self._is_parallel():
                ledger.changed(where, "retryStrategy.expression", "pods of other indexes run to their end")
            else:
                ledger.kept(where, "retryStrategy.expression")
        # the last rules may be dropped if they only repeat the default
        while choices and choices[-1][1]:
            choices.pop()  # other exit codes are tried again anyway
        expression = ""
        # from the last rule to the first, so that the first match decides
        for condition, is_retried in reversed(choices):
            if not expression:
                expression = f"!({condition})"
            else:
                expression = (
                    f"({condition}) || ({expression})" if is_retried else f"!({condition}) && ({expression})"
                )
        if expression:
            strategy["expression"] = expression

    def _is_parallel(self) -> bool:
        job = mapping(at(self._obj, ("spec", "jobTemplate", "spec")))
        return job.get("completions") not in (None, 1) or job.get("parallelism") not in (None, 0, 1)

    def _parallel(self, job: Fields, spec: dict[str, Any], leaf: dict[str, Any]) -> None:
        """Convert a Job with several pods to a step with a loop over numbers."""
        ledger = self._ledger
        # invalid numbers are refused before anything is written
        parallelism, completions = job.take("parallelism"), job.take("completions")
        mode = job.take("completionMode")
        for key, value in (("parallelism", parallelism), ("completions", completions)):
            if value is not None and (type(value) is not int or value < 0):
                ledger.refused(job.at(key), f"must be a whole number from 0 (found {value!r})")
                return
        is_indexed = mode == "Indexed"
        # the number of pods: completions, or as many as run at a time
        if parallelism == 0:
            spec["suspend"] = True
            ledger.changed(job.at("parallelism"), "spec.suspend", "0 runs no pods: the CronWorkflow is suspended")
            parallelism = None
        count, at_once = completions, 1 if parallelism is None else parallelism
        if count is None:
            count = at_once
            if at_once > 1:
                ledger.changed(
                    job.at("parallelism"),
                    "",
                    f"{at_once} pods share a queue, and the Job is done when any has succeeded; here all"
                    f" {at_once} must succeed, and each is tried again for itself",
                )
        if count == 0:
            ledger.refused(job.at("completions"), "0 completions: the Job runs nothing, and nothing is converted")
            return
        workflow = self._workflow
        # one pod needs no loop
        if mode is not None and not is_indexed:
            ledger.dropped(job.at("completionMode"), "the default")
        if count == 1 and not is_indexed:
            for key, value in (("completions", completions), ("parallelism", parallelism)):
                if value is not None:
                    ledger.kept(job.at(key), "", "one pod")
            workflow["entrypoint"] = ENTRY
            workflow["templates"] = [leaf]
            return
        # several pods are a step with a sequence
        leaf["name"] = WORKER
        step: dict[str, Any] = {"name": WORKER, "template": WORKER, "withSequence": {"count": str(count)}}
        if is_indexed:
            step["arguments"] = {"parameters": [{"name": INDEX, "value": "{{item}}"}]}
            leaf["inputs"] = {"parameters": [{"name": INDEX}]}
            self._index_variable(leaf)
            ledger.changed(
                job.at("completionMode"),
                f"inputs.parameters.{INDEX}",
                "JOB_COMPLETION_INDEX is set as before; the annotation job-completion-index and the host name"
                " with the index are not",
            )
        # the entry template limits how many run at a time
        entry = {"name": ENTRY, "parallelism": min(at_once, count), "steps": [[step]]}
        if completions is not None:
            ledger.kept(job.at("completions"), "steps[0][0].withSequence.count")
        if parallelism is not None:
            ledger.kept(job.at("parallelism"), "parallelism of the template main")
        # limits of retries differ: the ledger says so
        if (
            "retryStrategy" in leaf
            and at(self._obj, ("spec", "jobTemplate", "spec", "backoffLimitPerIndex")) is None
        ):
            ledger.changed(
                job.at("backoffLimit"),
                "retryStrategy.limit",
                "counts for each pod separately; a Job counts all of its pods, and stops them when it fails",
            )
        workflow["entrypoint"] = ENTRY
        workflow["templates"] = [entry, leaf]

    def _index_variable(self, leaf: dict[str, Any]) -> None:
        variable = {"name": "JOB_COMPLETION_INDEX", "value": f"{{{{inputs.parameters.{INDEX}}}}}"}
        parts = [leaf.get("container"), *sequence(mapping(leaf.get("containerSet")).get("containers"))]
        parts += [*sequence(leaf.get("initContainers")), *sequence(leaf.get("sidecars"))]
        for part in parts:
            if isinstance(part, dict):
                given = [*sequence(part.get("env"))]
                if not any(mapping(env).get("name") == variable["name"] for env in given):
                    part["env"] = [variable, *given]

    # --- the pod

    def _pod_metadata(self, template: Fields, leaf: dict[str, Any]) -> None:
        metadata = Fields(mapping(template.take("metadata")), template.at("metadata"))
        held: dict[str, Any] = {}
        for key, value in metadata.taken(("labels", "annotations")):
            held[key] = value
            self._ledger.kept(metadata.at(key), f"metadata.{key} of the template")
        for key, _ in metadata.taken(("name", "generateName")):
            self._ledger.lost(metadata.at(key), "pods are named after their run and step")
        for key, _ in metadata.taken(("namespace", *_SERVERS)):
            self._ledger.dropped(metadata.at(key), "has no effect there")
        if held:
            leaf["metadata"] = held
        self._unknown(metadata)

    def _pod(self, pod: Fields, leaf: dict[str, Any]) -> None:
        ledger = self._ledger
        account = pod.take("serviceAccount")
        for key, value in pod.taken(_WORKFLOW_FIELDS):
            self._workflow[key] = value
            ledger.kept(pod.at(key), f"spec.workflowSpec.{key}")
        if account is not None:
            if "serviceAccountName" not in self._workflow:
                self._workflow["serviceAccountName"] = account
                ledger.kept(pod.at("serviceAccount"), "spec.workflowSpec.serviceAccountName")
            else:
                ledger.dropped(pod.at("serviceAccount"), "serviceAccountName has the same value")
        if "serviceAccountName" in self._workflow:
            ledger.advice(
                pod.at("serviceAccountName"),
                "under Argo's own controller the account also needs the right to create and patch"
                " workflowtaskresults; under Moorage it needs none",
            )
        for key, value in pod.taken(_TEMPLATE_FIELDS):
            leaf[key] = value
            ledger.kept(pod.at(key), f"{key} of the template")
        if (seconds := pod.take("activeDeadlineSeconds")) is not None:
            leaf["activeDeadlineSeconds"] = seconds
            ledger.kept(pod.at("activeDeadlineSeconds"), "activeDeadlineSeconds of the template")
        patch: dict[str, Any] = {}
        for key, value in pod.taken(_PATCH_FIELDS):
            patch[key] = value
            ledger.kept(
                pod.at(key), "podSpecPatch of the template", "templates have no such field; the patch sets it"
            )
        if patch:
            leaf["podSpecPatch"] = json.dumps(patch, separators=(",", ":"), ensure_ascii=False)
        if pod.take("ephemeralContainers") is not None:
            ledger.lost(pod.at("ephemeralContainers"), "only a running pod has them")

    def _containers(self, pod: Fields, containers: list[Obj], leaf: dict[str, Any]) -> None:
        ledger = self._ledger
        # init containers with restartPolicy Always become sidecars
        first: list[Obj] = []
        beside: list[Obj] = []
        for index, container in enumerate(sequence(pod.take("initContainers"))):
            path = (*pod.at("initContainers"), index)
            if mapping(container).get("restartPolicy") == "Always":
                beside.append({key: value for key, value in container.items() if key != "restartPolicy"})
                ledger.changed(
                    path,
                    "sidecars",
                    "starts together with the main container, not before it; it is ended after it",
                )
            else:
                first.append(dict(container))
                ledger.kept(path, "initContainers of the template")
        if first:
            leaf["initContainers"] = first
        # one container is a container template; its command may come from the image
        if len(containers) == 1:
            container = dict(containers[0])
            name = container.pop("name", None)
            path = (*pod.at("containers"), 0)
            called = f"the container is called main in the pod, not {name}" if name not in (None, "main") else ""
            ledger.kept(path, "container of the template", called)
            if container.pop("restartPolicy", None) is not None:
                ledger.lost((*path, "restartPolicy"), "pods of a workflow never restart a container")
            if container.pop("restartPolicyRules", None) is not None:
                ledger.lost((*path, "restartPolicyRules"), "pods of a workflow never restart a container")
            if not container.get("command"):
                ledger.advice(
                    (*path, "command"),
                    "is not set: the image's own is run. Argo looks it up in the registry, and fails where it"
                    " cannot; write it down before you add outputs",
                )
            leaf["container"] = container
        # several containers are a container set, which needs every command
        else:
            held = []
            for index, container in enumerate(containers):
                held.append(dict(container))
                path = (*pod.at("containers"), index)
                ledger.kept(path, f"containerSet.containers[{index}]")
                if not container.get("command"):
                    ledger.refused(
                        (*path, "command"),
                        "is not set: a container of a set needs its command. Write the image's ENTRYPOINT and CMD",
                    )
            leaf["containerSet"] = {"containers": held}
            ledger.changed(
                pod.at("containers"),
                "containerSet",
                f"{len(held)} containers become a set: all start together, and all must succeed",
            )
        if beside:
            leaf["sidecars"] = beside

    def _warn_of_texts(self, pod: Fields) -> None:
        """Warn of strings that have another meaning in a workflow."""
        value = at(self._obj, pod.path)
        for path, text in _texts(value, pod.path):
            if _TAGS_OPEN in text:
                message = (
                    "has {{: a workflow puts values there. If it is not meant so, move it into the image or a file"
                )
                self._ledger.changed(path, "", message)
            if any(label in text for label in _JOB_LABELS):
                self._ledger.changed(path, "", "names a label of a Job's pods; pods of a workflow have"
                                     " workflows.argoproj.io/workflow instead")  # fmt: skip

    # --- a CronJob that only submits a workflow

    def _submit(self, pod: Fields, containers: list[Obj]) -> Submit | None:
        if len(containers) != 1 or sequence(mapping(at(self._obj, pod.path)).get("initContainers")):
            return None
        container = containers[0]
        words = [*sequence(container.get("command")), *sequence(container.get("args"))]
        if not all(isinstance(word, str) for word in words):
            return None
        submit = parse_submit(words, self._namespace)
        path = (*pod.at("containers"), 0)
        if isinstance(submit, NotConverted):
            self._ledger.advice(
                path,
                f"calls `argo submit`, and stays a container: {submit.reason}. Each slot is then two workflows; to"
                " start the inner one alone, use workflowSpec.workflowTemplateRef",
            )
            return None
        return submit

    def _by_reference(self, job: Fields, template: Fields, pod: Fields, submit: Submit) -> None:
        """Let the CronWorkflow start the WorkflowTemplate itself: there is no pod that submits it and waits."""
        ledger, workflow = self._ledger, self._workflow
        # the reference replaces the pod that ran `argo submit`
        path = (*pod.at("containers"), 0)
        reference: dict[str, Any] = {"name": submit.template}
        if submit.is_cluster:
            reference["clusterScope"] = True
        workflow["workflowTemplateRef"] = reference
        ledger.changed(
            path,
            "spec.workflowSpec.workflowTemplateRef",
            f"`argo submit --from` becomes a reference to {submit.template}: no pod submits it and waits. A pod"
            " that is evicted while it waits cannot start the work twice any more",
        )
        # options of the command line become fields of the spec
        if submit.parameters:
            workflow["arguments"] = {
                "parameters": [{"name": key, "value": value} for key, value in submit.parameters.items()]
            }
            ledger.kept(path, "spec.workflowSpec.arguments.parameters", "from -p")
        if submit.has_dates:
            ledger.changed(
                path,
                "spec.workflowSpec.arguments.parameters",
                "`date` becomes the moment at which the run is created, in UTC. For the slot itself, use"
                " {{workflow.scheduledTime}}",
            )
        if submit.name:
            ledger.changed(
                path,
                "",
                f"the name {submit.name} is not used: runs are named after the CronWorkflow and the seconds of"
                " their slot, so that a slot is never run twice",
            )
        for key, value in (("entrypoint", submit.entrypoint), ("serviceAccountName", submit.service_account)):
            if value:
                workflow[key] = value
                ledger.kept(path, f"spec.workflowSpec.{key}")
        if submit.priority is not None:
            workflow["priority"] = submit.priority
            ledger.kept(path, "spec.workflowSpec.priority")
        if submit.labels:
            self._runs["labels"] = {**mapping(self._runs.get("labels")), **submit.labels}
            ledger.kept(path, "spec.workflowMetadata.labels")
        # Cronitor's wrapper becomes an annotation, which needs the user's key
        if submit.monitor:
            ledger.advice(
                path,
                f"`cronitor exec {submit.monitor}` reported the start and the end. Add the annotation"
                f" moorage.dev/monitor: https://cronitor.link/p/API-KEY/{submit.monitor} to the CronWorkflow",
            )
        # fields of the submitting pod have no meaning any more
        for key, _ in template.taken(("metadata",)):
            ledger.lost(template.at(key), "belonged to the pod that submitted; set it in the WorkflowTemplate")
        if pod.take("restartPolicy") is not None:
            ledger.dropped(pod.at("restartPolicy"), "the submitting pod does not exist")
        for where in list(pod.rest()):
            ledger.lost(where, "belonged to the pod that submitted; set it in the WorkflowTemplate")
        held = mapping(at(self._obj, path))
        for key in held:
            if key not in ("name", "image", "command", "args"):
                ledger.lost((*path, key), "belonged to the container that submitted")
        if mapping(at(self._obj, job.path)).get("backoffLimit") == 0:
            job.take("backoffLimit")
            ledger.dropped(job.at("backoffLimit"), "the submission was never tried again")
        for where in list(job.rest()):
            key = str(where[-1])
            ledger.lost(where, _SUBMIT_NOTES.get(key, "belonged to the Job that submitted"))

    def _unknown(self, fields: Fields) -> None:
        for path in fields.rest():
            self._ledger.lost(path, f"{field_of(path[-1:])} is not a field that is known here")


_CRON_NOTES: Mapping[tuple[str, Any], str] = {
    ("concurrencyPolicy", "Replace"): "the run that is active is terminated; its exit handler does not run",
    ("concurrencyPolicy", "Forbid"): "a slot is skipped while a run is active; with startingDeadlineSeconds it is"
    " started when that run has ended in time",
}
_SUBMIT_NOTES: Mapping[str, str] = {
    "backoffLimit": "retried the submission. Set retryStrategy in the WorkflowTemplate to retry its steps",
    "activeDeadlineSeconds": "ended the waiting, not the workflow. Set it in the WorkflowTemplate",
    "ttlSecondsAfterFinished": "removed the Job. Set ttlStrategy in the WorkflowTemplate; the history limits hold",
}


def _texts(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield every string in a value, except keys, with its path."""
    waiting: list[tuple[Path, Any]] = [(path, value)]
    while waiting:
        where, held = waiting.pop()
        if isinstance(held, str):
            yield where, held
        elif isinstance(held, dict):
            waiting += [((*where, str(key)), inner) for key, inner in held.items()]
        elif isinstance(held, list):
            waiting += [((*where, index), inner) for index, inner in enumerate(held)]
