"""Start pods: write an order for the shim, and start the shim."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from moorage_kube.clock import parse_rfc3339
from moorage_kube.resources import Obj
from moorage_local.nodeagent.context import Context, uid_of
from moorage_local.nodeagent.environment import ConfigError
from moorage_local.nodeagent.launcher import Fence, Launcher
from moorage_local.nodeagent.podfolder import LaunchError, PodFolder
from moorage_local.nodeagent.podvolumes import PodVolumes, with_address
from moorage_local.nodeagent.problems import DEADLINE_MESSAGE, DEADLINE_REASON, not_written
from moorage_local.nodeagent.shim.private import TMP
from moorage_local.nodeagent.shimspec import Place, make_shim_spec, unrunnable
from moorage_local.nodeagent.volumes import VolumeError
from moorage_local.podspecs import containers_of

LAUNCHES = 4  # shims starting at once: each costs some 40 ms of a processor
_BASE = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TMPDIR", "TZ")


class Starting:
    """Starts admitted pods, or records why they cannot start yet."""

    def __init__(
        self,
        context: Context,
        pod_volumes: PodVolumes,
        launcher: Launcher,
        *,
        base_env: Mapping[str, str],
        hidden: Path | None,
    ) -> None:
        """`hidden`: the folder that pods do not see if the kernel allows it."""
        self._context = context
        self._volumes = pod_volumes
        self._launcher = launcher
        self._base_env = base_env
        self._hidden = None if hidden is None else hidden.resolve()
        self._hidden_inode = _inode(self._hidden)
        self._installation = installation_in_tmp()
        self._launching = asyncio.Semaphore(LAUNCHES)

    async def try_fence(self) -> None:
        """Test whether this machine can hide folders, before the first pod needs it.

        A failure is reported when that pod starts, after another try.
        """
        if self._hidden is not None:
            with contextlib.suppress(LaunchError):
                await self._launcher.fence(self._hidden)

    async def start(self, pod: Obj, folder: PodFolder) -> None:
        """Write the order and start the shim, or record why this is not possible yet."""
        uid = uid_of(pod)
        admission = self._context.admission_of(uid)
        if admission is None or admission.rejected:
            return
        # a pod whose deadline has passed is not started
        active = pod["spec"].get("activeDeadlineSeconds")
        if active is not None and self._context.clock.now() >= parse_rfc3339(admission.at) + timedelta(
            seconds=int(active)
        ):
            rejected = (DEADLINE_REASON, DEADLINE_MESSAGE)
            admission = replace(admission, rejected=rejected)
            folder.write_admission(admission)
            self._context.state_of(uid).admission = admission
            return
        # make volumes and order ready, then launch; record problems
        state = self._context.state_of(uid)
        addressed = with_address(pod, admission.address)
        problems = unrunnable(pod, self._context.node.images)
        failed = ""
        if not problems:
            try:
                lookup = await self._volumes.lookup(pod)
                where = await self._volumes.make_ready(addressed, folder, lookup)
                fence = Fence(hides=False, gap="")
                if self._hidden is not None:
                    fence = await self._launcher.fence(self._hidden)
                order = make_shim_spec(
                    addressed,
                    place=self._place(folder, fence),
                    lookup=lookup,
                    volumes=where,
                    gpu_indices=admission.gpus,
                    admitted_at=admission.at,
                )
                folder.write_order(order)
                async with self._launching:
                    await self._launcher.launch(folder.path)
            except ConfigError as error:
                problems = {
                    container["name"]: (error.reason, error.message) for container in containers_of(pod["spec"])
                }
            except VolumeError as error:
                failed = error.message
            except OSError as error:
                problems = not_written(pod, error)
            except LaunchError as error:
                problems = {
                    container["name"]: ("RunContainerError", error.message)
                    for container in pod["spec"]["containers"]
                }
        # started, or to be tried again
        if not problems and not failed:
            state.started(folder.state_mark(), self._context.clock.monotonic())
            return
        if failed and state.is_news(failed, self._context.clock.monotonic()):
            self._context.event(pod, "Warning", "FailedMount", failed)
        self._context.retry_later(uid, problems)

    def _place(self, folder: PodFolder, fence: Fence) -> Place:
        return Place(
            node=self._context.node.name,
            folder=str(folder.path),
            socket=str(self._context.folder / "agent.sock"),
            base_env=self._base_env,
            allocatable=self._context.offers(),
            real_gpu_uuids=self._context.node.real_gpu_uuids,
            hidden=str(self._hidden) if fence.hides else "",
            hidden_inode=self._hidden_inode if fence.hides else None,
            images=self._context.node.images,
            fence_error=fence.gap,
            installation=self._installation,
        )


def installation_in_tmp(tmp: str = TMP) -> tuple[str, ...]:
    """Folders of this Python and of Moorage that lie in `tmp`; empty if they are elsewhere.

    Those behind symbolic links are left out: the check for the hidden folder compares paths.
    """
    folders = {Path(sys.prefix), Path(sys.base_prefix), *map(Path, filter(None, sys.path))}
    within = {folder for folder in folders if Path(tmp) in folder.parents and folder == folder.resolve()}
    return tuple(sorted(str(folder) for folder in within if not within & set(folder.parents)))


def _inode(folder: Path | None) -> tuple[int, int] | None:
    """Return the device and inode of a folder; None if it does not exist."""
    try:
        status = None if folder is None else folder.stat()
    except OSError:
        return None
    return None if status is None else (status.st_dev, status.st_ino)


def base_environment(server_url: str | None) -> dict[str, str]:
    """Return the few variables of this process that pods get, and the address of the API."""
    env = {name: os.environ[name] for name in _BASE if name in os.environ}
    env.setdefault("PATH", os.defpath)
    if server_url:
        parts = urlsplit(server_url)
        port = str(parts.port or (443 if parts.scheme == "https" else 80))
        env |= {
            "KUBERNETES_SERVICE_HOST": parts.hostname or "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }
    return env
