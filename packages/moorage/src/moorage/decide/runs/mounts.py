"""The mounts of a run: volumes, datasets, its checkpoint volume and its working directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from moorage.decide.runs.claims import make_claim
from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import Caller, CheckpointUse, ClusterFacts, RunRequest
from moorage.decide.runs.secrets import SecretRef
from moorage.model.dataset import DATA_FOLDER, READY, claim_name, reader_claim_name
from moorage.model.names import CHECKPOINT_PATH, RUN_LABEL, is_dns_label, label_value
from moorage_kube.moments import rfc3339
from moorage_kube.quantity import parse_quantity
from moorage_kube.resources import Obj

DEFAULT_CHECKPOINT_SIZE = "10Gi"
WORK_PATH = "/moorage/work"  # where `--working-dir volume:path` mounts the volume


class Mounts:
    """Collects the volumes, mounts and claims of one run; faults are added to `remarks`."""

    def __init__(self, request: RunRequest, caller: Caller, facts: ClusterFacts, remarks: Remarks) -> None:
        self._request = request
        self._caller = caller
        self._facts = facts
        self._remarks = remarks
        self._paths: set[str] = set()  # mounted at already
        self.volumes: list[Obj] = []
        self.mounts: list[Obj] = []
        self.claims: list[Obj] = []  # to be created
        self.continued = ""  # the run whose checkpoint this one continues
        self.datasets: dict[str, str] = {}  # dataset → its namespace

    def add_volumes(self) -> None:
        for text in self._request.volumes:
            claim, _, rest = text.partition(":")
            path, _, mode = rest.partition(":")
            if not claim or not path.startswith("/") or mode not in ("", "ro", "rw"):
                hint = "write VOLUME:/PATH or VOLUME:/PATH:ro"
                self._remarks.refuse("volumes", f"invalid volume mount {text!r}", hint)
                continue
            path = path.rstrip("/") or "/"
            if self._may_mount("volumes", text, path) and self._claim_exists("volumes", claim):
                self._mount(claim, path, read_only=mode == "ro")

    def add_datasets(self) -> None:
        """Mount the datasets read-only: those of this namespace, and shared ones that its tenant may read."""
        for text in self._request.datasets:
            full, _, path = text.partition(":")
            namespace, _, name = full.rpartition("/")
            namespace = namespace or self._request.namespace
            if not is_dns_label(name) or not is_dns_label(namespace) or not path.startswith("/") or ":" in path:
                self._remarks.refuse("datasets", f"invalid dataset mount {text!r}", "write DATASET:/PATH")
                continue
            if self.datasets.get(name, namespace) != namespace:
                self._remarks.refuse("datasets", f"two datasets are named {name!r}: mount only one of them")
                continue
            path = path.rstrip("/") or "/"
            if not self._may_mount("datasets", text, path):
                continue
            claim = self._dataset_claim(namespace, name)
            if claim is None:
                continue
            self.datasets[name] = namespace
            volume = f"dataset-{len(self.volumes)}"
            source = {"claimName": claim, "readOnly": True}
            self.volumes.append({"name": volume, "persistentVolumeClaim": source})
            self.mounts.append({"name": volume, "mountPath": path, "subPath": DATA_FOLDER, "readOnly": True})

    def add_checkpoint(self) -> str | None:
        """Mount the checkpoint volume, and create it if it is missing. Returns its claim; None: no checkpoint."""
        text = self._request.checkpoint
        if text is None:
            return None
        claim, _, size = text.partition(":")
        if not is_dns_label(claim):
            self._remarks.refuse(
                "checkpoint",
                f"invalid checkpoint volume {claim!r}: use at most 63 of a-z, 0-9 and '-'",
                "write NAME or NAME:20Gi",
            )
            return None
        if size and self._remarks.quantity("checkpoint", "memory", size, noun="checkpoint size") is None:
            return None
        claims = self._facts.claims
        if claims is not None and claim in claims:
            self._note_existing_checkpoint(claim, claims[claim], size)
        elif claims is not None:
            self._create_checkpoint(claim, size or DEFAULT_CHECKPOINT_SIZE)
        self._mount(claim, CHECKPOINT_PATH)
        return claim

    def add_working_directory(self) -> str | None:
        """Mount the volume of `--working-dir`. Returns the directory to start in. None: the image's directory."""
        text = self._request.working_dir
        if self._request.git is not None:
            return None
        if text is None:
            return (self._caller.cwd or None) if self._facts.process_runtime else None
        claim, colon, path = text.partition(":")
        path = path.strip("/")
        if not claim or not colon or ".." in path.split("/"):
            hint = "write VOLUME:PATH, such as code:project"
            self._remarks.refuse("workingDir", f"invalid working directory {text!r}", hint)
            return None
        if not self._claim_exists("workingDir", claim):
            return None
        self._mount(claim, WORK_PATH)
        return f"{WORK_PATH}/{path}" if path else WORK_PATH

    def may_hold(self, program: str) -> bool:
        """Whether a volume of the run may have the program. Names without a path are searched in PATH."""
        if not program.startswith("/"):
            return "/" in program and (self._request.working_dir or self._request.git) is not None
        return any(PurePosixPath(program).is_relative_to(mount["mountPath"]) for mount in self.mounts)

    def add_secret(self, name: str, path: str, *, volume: str = "moorage-run") -> None:
        self.volumes.append({"name": volume, "secret": {"secretName": name}})
        self.mounts.append({"name": volume, "mountPath": path, "readOnly": True})

    def add_user_secrets(self, refs: Iterable[SecretRef]) -> None:
        """Mount the secrets that the run gets as files."""
        for number, ref in enumerate(ref for ref in refs if ref.path):
            if self._may_mount("secrets", f"{ref.name}:{ref.path}", ref.path):
                self.add_secret(ref.name, ref.path, volume=f"secret-{number}")

    # -- the parts

    def _may_mount(self, field: str, text: str, path: str) -> bool:
        if path == "/" or path == "/moorage" or path.startswith("/moorage/") or ".." in path.split("/"):
            self._remarks.refuse(field, f"{text!r} cannot be mounted at {path}", "choose a path such as /data")
            return False
        if path in self._paths:
            self._remarks.refuse(field, f"two volumes are to be mounted at {path}")
            return False
        self._paths.add(path)
        return True

    def _claim_exists(self, field: str, claim: str) -> bool:
        claims = self._facts.claims
        if claims is None or claim in claims:
            return True
        known = ", ".join(sorted(claims))
        self._remarks.refuse(
            field,
            f"volume {claim!r} not found in namespace {self._request.namespace}",
            f"available: {known}" if known else f"create it first: moor volume create {claim} --size 10Gi",
        )
        return False

    def _dataset_claim(self, namespace: str, name: str) -> str | None:
        """The claim to mount. None, and a problem, if it may not be mounted."""
        here = self._request.namespace
        if namespace != here:
            claim = reader_claim_name(namespace, name)
            if self._facts.claims is not None and claim not in self._facts.claims:
                self._remarks.refuse(
                    "datasets",
                    f"the dataset {namespace}/{name} is not shared with namespace {here}",
                    f"its owner may share it: moor dataset share {name} --with TENANT",
                )
                return None
            return claim
        known = self._facts.datasets
        if known is None:
            return claim_name(name)
        if name not in known:
            names = ", ".join(sorted(known))
            self._remarks.refuse(
                "datasets",
                f"dataset {name!r} not found in namespace {namespace}",
                f"available: {names}" if names else f"create it first: moor dataset create {name} --source SOURCE",
            )
            return None
        phase, claim = known[name]
        if phase != READY:
            self._remarks.refuse(
                "datasets",
                f"the dataset {name!r} is not ready: it is {phase or 'Pending'}",
                f"`moor dataset show {name}` shows its progress",
            )
            return None
        return claim or claim_name(name)

    def _note_existing_checkpoint(self, claim: str, has: str, asked: str) -> None:
        if asked and has and parse_quantity(has) < parse_quantity(asked):
            self._remarks.note(f"the volume {claim} exists with {has}; it is not enlarged to {asked}")
        uses = self._facts.checkpoints.get(claim, ())
        if newest := newest_checkpoint(uses):
            self.continued = newest.run
            is_mine = newest.owner in (self._caller.user, label_value(self._caller.user))
            maker = f"your run {newest.run}" if is_mine else f"run {newest.run} of {newest.owner}"
            volume = f"volume {claim} ({has})" if has else f"volume {claim}"
            if newest.at is not None:
                written = f"written {rfc3339(newest.at)}"
                self._remarks.note(f"continues the checkpoint of {maker}, on {volume}, {written}")
            else:
                self._remarks.note(
                    f"uses the same checkpoint volume as {maker}: {volume}; a checkpoint is not known there yet"
                )
            if not is_mine:
                self._remarks.note(
                    f"the checkpoint on volume {claim} is {newest.owner}'s: your run writes over it;"
                    " to start from the beginning, use another name after --checkpoint"
                )
        else:
            self._remarks.note(f"the volume {claim} exists: its files are used as the checkpoint")
        users = sorted(
            {
                pod.labels.get(RUN_LABEL, pod.name)
                for pod in self._facts.pods
                if claim in pod.claims and not pod.finished and pod.namespace == self._request.namespace
            }
            | {use.run for use in uses if not use.has_ended}
        )
        if users:
            self._remarks.note(
                f"the checkpoint volume {claim} is in use by {', '.join(users)}: two runs that write the same"
                " checkpoint corrupt it"
            )

    def _create_checkpoint(self, claim: str, size: str) -> None:
        self.claims.append(make_claim(claim, self._request.namespace, size, self._caller.user))
        self._remarks.note(f"creating the checkpoint volume {claim} ({size})")
        if self._facts.has_default_class is False:
            self._remarks.note(
                f"this cluster has no default StorageClass: the run waits until {claim} gets its storage;"
                f" `moor volume create {claim} --storage-class CLASS` names one"
            )

    def _mount(self, claim: str, path: str, *, read_only: bool = False) -> None:
        """Mount a claim. Only this mount is read-only: the pod may mount the same claim writable elsewhere."""
        volume = next(
            (volume for volume in self.volumes if volume["persistentVolumeClaim"]["claimName"] == claim), None
        )
        if volume is None:
            volume = {"name": f"volume-{len(self.volumes)}", "persistentVolumeClaim": {"claimName": claim}}
            self.volumes.append(volume)
        mount: Obj = {"name": volume["name"], "mountPath": path}
        if read_only:
            mount["readOnly"] = True
        self.mounts.append(mount)


def newest_checkpoint(uses: Sequence[CheckpointUse]) -> CheckpointUse | None:
    """The last writer of the checkpoint on a volume: the run that wrote last, else the newest that might have
    written.
    """
    written = [(use.at, use) for use in uses if use.at is not None]
    if written:
        return max(written, key=lambda pair: pair[0])[1]
    return uses[-1] if uses else None
