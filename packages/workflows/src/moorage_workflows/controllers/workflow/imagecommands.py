"""Look up the commands of images for steps that name none, once for each image, outside the loop.

A step waits meanwhile, as for a quota. A registry that does not answer delays only the steps with its
images.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import Clock
from moorage_kube.errors import ApiError, DocumentError, MoorageError, NotFound
from moorage_kube.images import parse_reference
from moorage_kube.meta import labels_of
from moorage_kube.resources import SECRETS, SERVICEACCOUNTS, Obj
from moorage_workflows.controllers.workflow.registry import Command, Credentials, RegistryError, credentials_of

KEEP_SECONDS = 600.0  # a tag may lead to another image then
FAILURE_SECONDS = 60.0  # until a registry that failed is asked again
ANSWERS = 4096
AT_ONCE = 4  # look-ups of one namespace
ARCHITECTURE_LABEL = "kubernetes.io/arch"  # on a node
PULL_SECRETS = 20  # that are read for one image


class Source(Protocol):
    async def command_of(
        self, image: str, credentials: Credentials | None = None, architectures: Sequence[str] = ()
    ) -> Command:
        """Return the command of an image. `architectures`: those of the nodes, most likely first.

        Raises RegistryError.
        """
        ...


class Asked(Struct, frozen=True):
    """An image of a step, the pull secrets of its pod, and the result of `architectures_of`."""

    namespace: str
    image: str
    pull_secrets: tuple[str, ...] = ()
    service_account: str = "default"
    architectures: tuple[str, ...] = ()


class ImageCommands:
    """The known commands of images, and the look-ups in progress."""

    def __init__(self, api: Api, source: Source, *, clock: Clock) -> None:
        self._api, self._source = api, source
        self._known: BoundedCache[Asked, Command] = BoundedCache(ANSWERS, keep_seconds=KEEP_SECONDS, clock=clock)
        self._failures: BoundedCache[Asked, str] = BoundedCache(ANSWERS, keep_seconds=FAILURE_SECONDS, clock=clock)
        self._tasks: dict[Asked, asyncio.Task[None]] = {}
        self._waiting: dict[Asked, list[Callable[[], None]]] = {}
        self._gates: dict[str, asyncio.Semaphore] = {}

    def ask(self, asked: Asked, when_known: Callable[[], None]) -> Command | str | None:
        """Return the command, or why it is unknown; None while it is looked up.

        `when_known` is called afterwards.
        """
        answer = self._known.get(asked) or self._failures.get(asked)
        if answer is not None:
            return answer
        self._waiting.setdefault(asked, []).append(when_known)
        if asked not in self._tasks:
            self._tasks[asked] = asyncio.create_task(self._look_up(asked), name=f"command of {asked.image}")
        return None

    async def aclose(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_up(self, asked: Asked) -> None:
        gate = self._gates.setdefault(asked.namespace, asyncio.Semaphore(AT_ONCE))
        unread: list[str] = []
        try:
            async with gate:
                credentials = credentials_of(await self._configs(asked, unread), parse_reference(asked.image))
                command = await self._source.command_of(asked.image, credentials, asked.architectures)
                self._known.put(asked, command)
        except (MoorageError, DocumentError) as error:
            reason = error.message
            if unread and isinstance(error, RegistryError):
                reason += (
                    f"; the operator may not read the Secret {', '.join(unread)}: a Role in the namespace can let"
                    " the ServiceAccount moorage-operator `get` it"
                )
            self._failures.put(asked, reason)
        finally:
            del self._tasks[asked]
        for call in self._waiting.pop(asked, ()):
            call()

    async def _configs(self, asked: Asked, unread: list[str]) -> list[Mapping[str, Any]]:
        """Return pull secrets of the workflow and its service account. Unreadable ones are added to `unread`."""
        names = list(asked.pull_secrets)
        try:
            account = await self._api.get(SERVICEACCOUNTS, asked.service_account, asked.namespace)
            names += [str(entry.get("name")) for entry in account.get("imagePullSecrets") or ()]
        except ApiError:
            pass  # the pod is refused without it; then that is said
        configs = []
        for name in list(dict.fromkeys(names))[:PULL_SECRETS]:
            try:
                secret = await self._api.get(SECRETS, name, asked.namespace)
            except NotFound:
                continue  # kubelets pass over it too
            except ApiError:
                unread.append(name)
                continue
            if (config := _docker_config(secret)) is not None:
                configs.append(config)
        return configs


def architectures_of(nodes: Iterable[Obj], selector: Mapping[str, Any]) -> tuple[str, ...]:
    """Architectures of the nodes that a pod with this nodeSelector may run on, the most frequent first.

    Without such a node, the architecture in the selector, or else those of all nodes: a node may be added
    soon.
    """
    all_nodes = list(nodes)
    wanted = {key: str(value) for key, value in selector.items()}
    fitting = [node for node in all_nodes if wanted.items() <= labels_of(node).items()]
    if not fitting and (named := wanted.get(ARCHITECTURE_LABEL)):
        return (named,)
    counts = Counter(filter(None, map(_architecture, fitting or all_nodes)))
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


def _architecture(node: Obj) -> str:
    info = (node.get("status") or {}).get("nodeInfo") or {}
    return str(labels_of(node).get(ARCHITECTURE_LABEL) or info.get("architecture") or "")


def _docker_config(secret: Mapping[str, Any]) -> Mapping[str, Any] | None:
    data = secret.get("data") or {}
    try:
        if ".dockerconfigjson" in data:
            config = json.loads(base64.b64decode(data[".dockerconfigjson"]))
        else:
            config = {"auths": json.loads(base64.b64decode(data[".dockercfg"]))}
    except (KeyError, ValueError, binascii.Error, RecursionError):
        return None
    return config if isinstance(config, Mapping) else None


def names_of(references: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the names in a list of references, such as `imagePullSecrets`."""
    return tuple(str(reference["name"]) for reference in references if reference.get("name"))
