"""`moor lint`: the guardrails over manifests, before they are applied."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.client.files import replacing
from moorage_kube.errors import DocumentError, MoorageError, UsageError

if TYPE_CHECKING:
    from moorage.decide.admission.gpufacts import Facts
    from moorage.decide.tools.lint import Report
    from moorage.model.policy import Policy
    from moorage_kube.resources import Obj

READY_MADE = "gpu-cluster"


@console.command(
    examples={
        "moor lint job.yaml": "check a manifest",
        "moor lint deploy/ --policy gpu-cluster": "check a folder against a policy",
        "kubectl get job train -o yaml | moor lint -": "check a manifest from stdin",
        "moor lint --target gke-autopilot --write jobs/": "make manifests ready for another kind of cluster",
    }
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--policy", "policy_name", default=None, metavar=f"FILE|{READY_MADE}",
    help="GuardrailPolicy to check against (default: each rule's default level; with --cluster, the cluster's).",
)  # fmt: skip
@click.option(
    "--target", "targets", multiple=True, metavar="NAME[:VERSION]",
    help="Check against the rules of gke-autopilot or eks-fargate, instead of the guardrails. Repeatable.",
)  # fmt: skip
@click.option("--history", is_flag=True, help="With --target: ask the cluster how much memory earlier runs used.")
@click.option(
    "--write",
    is_flag=True,
    help="With --target: write the fields that it would set into the files, and print the changes.",
)
@click.option("--cluster", "ask", is_flag=True, help="Ask the cluster for its GPUs and its policies.")
@click.option(
    "--pod-security", "pod_security", type=click.Choice(["privileged", "baseline", "restricted"]),
    default="baseline", show_default=True,
    help="Pod Security level of the namespace that the pods are for; a tenant's is baseline.",
)  # fmt: skip
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@target_options
def lint(
    target: Target,
    files: tuple[Path, ...],
    policy_name: str | None,
    targets: tuple[str, ...],
    history: bool,
    write: bool,
    ask: bool,
    pod_security: str,
    output: str,
) -> int:
    """Check manifests against the guardrails, by file and line.

    FILE is a YAML or JSON file with any number of documents, a folder (all such files in it), or - for stdin.
    Pods with more rights than a tenant's namespace allows, such as privileged ones or host paths, are denied.
    With --target, they are checked against the rules of another kind of cluster; --policy and --cluster add the
    guardrails. --write changes only fields that the target would set itself or refuse, and preserves comments.
    The exit code is 1 if something is denied or a file cannot be read.
    """
    from moorage.cli.linttext import report_json, report_text
    from moorage.decide.tools.lint import lint as judged
    from moorage.decide.tools.targets import parse_target

    # check the options before anything is read
    places = [parse_target(text) for text in targets]
    _check_options(files, places=bool(places), history=history, write=write)
    policy = None if policy_name is None else _policy(policy_name)
    # facts of the cluster only on request: linting works offline
    facts: Facts | None = None
    away: tuple[Obj, ...] = ()
    if ask:

        async def work(session: Session) -> tuple[Facts, tuple[Obj, ...], Policy | None]:
            return await _ask(session)

        facts, away, held = in_session(target, work)
        policy = held if policy is None else policy
    # stdin can be read only once
    texts = list(texts_in(files))
    peaks = None
    if history:
        from moorage.cli.linthistory import peaks_for

        peaks = peaks_for(target, texts)

    # with --target only, the guardrails do not apply
    def judge(texts: list[tuple[str, str]]) -> Report:
        return judged(
            texts,
            policy,
            facts=facts,
            away=away,
            pod_security=pod_security,
            places=places,
            peaks=peaks,
            has_guardrails=not places or policy_name is not None or ask,
        )

    # judge again after the edits, so that the report shows the files as they are now
    report = judge(texts)
    if write:
        texts = _written(texts, report)
        report = judge(texts)
    if output == "json":
        console.print_document(report_json(report), "json")
    else:
        for line in report_text(report):
            console.show(line)
        console.say(_summary(report))
    return 1 if report.denied else 0


def _summary(report: Any) -> str:
    counts = {
        level: sum(finding.level == level for finding in report.findings) for level in ("deny", "warn", "fill")
    }
    parts = [f"{report.judged} with pods judged", f"{report.skipped} others skipped"]
    parts += [f"{count} {level}" for level, count in counts.items() if count]
    return ", ".join(parts)


def _check_options(files: Sequence[Path], *, places: bool, history: bool, write: bool) -> None:
    if not places:
        for name, is_given in (("--write", write), ("--history", history)):
            if is_given:
                raise UsageError(f"{name} needs --target", hint=f"such as --target gke-autopilot {name}")
    if write and any(str(file) == "-" for file in files):
        raise UsageError("--write needs files: stdin cannot be written", hint="save it to a file first")


def _written(texts: list[tuple[str, str]], report: Report) -> list[tuple[str, str]]:
    """Write the edits of the findings into the files, print the changes, and return the new texts."""
    import difflib

    from moorage.decide.tools.fixes import fixed_text

    after: list[tuple[str, str]] = []
    for name, text in texts:
        fixed = fixed_text(text, [finding for finding in report.findings if finding.file == name])
        if fixed != text:
            _replace(Path(name), fixed)
            lines = difflib.unified_diff(
                text.splitlines(), fixed.splitlines(), f"{name} before", f"{name} after", lineterm=""
            )
            for line in lines:
                console.say(line)
        after.append((name, fixed))
    return after


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all, with the same permissions and byte order mark. Raises UsageError."""
    try:
        mark = b"\xef\xbb\xbf" if path.read_bytes()[:3] == b"\xef\xbb\xbf" else b""
        with replacing(path) as file:
            file.write(mark + text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def texts_in(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """The names and contents of files, of all manifests in folders, and of stdin ("-"). Raises UsageError."""
    for path in files:
        if path.is_dir():
            from moorage.decide.tools.lint import EXTENSIONS

            paths = sorted(path for path in path.rglob("*") if path.suffix in EXTENSIONS and path.is_file())
            if not paths:
                raise UsageError(f"{path} has no manifests", hint=f"use files that end in {', '.join(EXTENSIONS)}")
            for file in paths:
                yield read_text(file)
        else:
            yield read_text(path)


def read_text(path: Path) -> tuple[str, str]:
    """Read a file; return its name and content. "-" is stdin. Raises UsageError."""
    if str(path) == "-":
        return "-", _decoded("-", sys.stdin.buffer.read())
    return str(path), _read(path)


def _read(path: Path) -> str:
    try:
        return _decoded(str(path), path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text: byte {error.start} is invalid") from error


def _policy(name: str) -> Policy:
    """Return the policy of a file, or a built-in one.

    Raises UsageError for a policy that the API server would refuse.
    """
    from moorage.model.policy import Policy, gpu_cluster_policy
    from moorage_kube.yamldocuments import parse_yaml_documents

    if name == READY_MADE and not Path(name).exists():
        return Policy(gpu_cluster_policy()["spec"]["rules"])
    try:
        documents = [document for document in parse_yaml_documents(_read(Path(name))) if document is not None]
    except DocumentError as error:
        raise UsageError(f"--policy: {name} is not valid YAML: {error.located}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict) or documents[0].get("kind") != "GuardrailPolicy":
        raise UsageError(
            f"--policy: {name} does not have exactly one GuardrailPolicy",
            hint=f"give a file with one, or the ready-made policy {READY_MADE}",
        )
    return _checked(name, documents[0])


def _checked(name: str, document: dict[str, Any]) -> Policy:
    import msgspec

    from moorage.decide.admission.rulebook import RULES
    from moorage.model.policy import GuardrailPolicy, Policy, expected_of

    rules = (document.get("spec") or {}).get("rules") if isinstance(document.get("spec"), dict) else None
    if isinstance(rules, dict):
        for settings in rules.values():
            if isinstance(settings, dict) and settings.get("level") is False:
                settings["level"] = "off"  # YAML reads a bare off as false
        unknown = sorted(str(rule) for rule in set(rules) - {rule.name for rule in RULES})
        if unknown:
            known = ", ".join(rule.name for rule in RULES)
            raise UsageError(
                f"--policy: {name} has unknown rules: {', '.join(unknown)}", hint=f"available: {known}"
            )
    try:
        msgspec.convert(document, GuardrailPolicy)
    except msgspec.ValidationError as error:
        raise UsageError(f"--policy: {name}: {error}") from error
    assert isinstance(rules, dict)
    return Policy(rules, expected_of([document]))


async def _ask(session: Session) -> tuple[Facts, tuple[Obj, ...], Policy | None]:
    """Return the cluster's GPUs, and the policies of the namespace. Raises the API's errors for nodes."""
    from moorage.decide.admission.gpufacts import facts_of
    from moorage.decide.admission.gpunodes import away_from_gpus
    from moorage.decide.admission.tenancy import own_selector
    from moorage.model.policy import POLICIES, policy_for
    from moorage.model.tenant import TENANTS, tenant_of
    from moorage.present.forbidden import plain
    from moorage_kube.errors import ApiError, Forbidden, NotFound
    from moorage_kube.resources import NAMESPACES, NODES
    from moorage_kube.scheduling import parse_node

    try:
        nodes = [parse_node(obj) for obj in (await session.api.list(NODES)).items]
    except Forbidden as error:
        raise MoorageError(
            "--cluster needs the right to list nodes",
            hint=f"{plain(error.message)}; without --cluster, GPUs and policies are left out",
        ) from error
    try:
        policies = (await session.api.list(POLICIES)).items
        space = await session.api.get(NAMESPACES, session.namespace)
        held = policy_for(space["metadata"].get("labels") or {}, policies)
    except NotFound:
        held = None
    except ApiError as error:
        console.note(f"the cluster's policies cannot be read: {plain(error.message)}")
        held = None
    try:
        tenant = tenant_of(session.namespace, (await session.api.list(TENANTS)).items)
    except (Forbidden, NotFound):
        tenant = None
    return facts_of(nodes), away_from_gpus(nodes, own=own_selector(tenant)), held
