"""The memory use of earlier runs of the same workloads, read from the cluster and Moorage's server."""

from __future__ import annotations

from collections.abc import Iterable

from moorage.cli import console
from moorage.cli.session import Session, Target, in_session
from moorage.cli.storedrecords import RecordsOfServer
from moorage.decide.tools.lint import BYTES_MAX
from moorage.decide.tools.peaks import peaks_of
from moorage.decide.tools.runfiles import is_run_file
from moorage.decide.tools.targetrules import Peaks
from moorage_kube.errors import DocumentError
from moorage_kube.resources import PODS
from moorage_kube.yamldocuments import parse_yaml_documents

NAMES_MAX = 500  # runs that the server is asked for, one question each


def peaks_for(target: Target, texts: Iterable[tuple[str, str]]) -> Peaks:
    """Return peaks of pods of the namespace, and of recorded runs. Raises the API's errors for pods."""
    names = sorted(set(_runs_in(texts)))

    async def work(session: Session) -> Peaks:
        pods = (await session.api.list(PODS, namespace=session.namespace)).items
        kept = RecordsOfServer(session)
        records = [pod for name in names[:NAMES_MAX] for pod in (await kept.run(session.namespace, name)).pods]
        return peaks_of(pods, records)

    peaks = in_session(target, work)
    if not peaks.bytes_by_pod:
        console.note("the cluster has no memory measurements of earlier runs in this namespace")
    return peaks


def _runs_in(texts: Iterable[tuple[str, str]]) -> Iterable[str]:
    """The names of Jobs and runs in files."""
    for _, text in texts:
        try:
            documents = parse_yaml_documents(text, bytes_max=BYTES_MAX)
        except DocumentError:
            continue  # the lint says it
        for document in documents:
            if not isinstance(document, dict):
                continue
            metadata = document.get("metadata")
            if document.get("kind") == "Job" and isinstance(metadata, dict) and metadata.get("name"):
                yield str(metadata["name"])
            elif is_run_file(document) and document.get("name"):
                yield str(document["name"])
