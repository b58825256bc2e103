"""The options of a run, for `moor run` and `moor rerun`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from moorage.cli.names import complete
from moorage.decide.runs.request import RunRequest

R = TypeVar("R")

OPTIONS = (
    click.option("--name", default=None, help="Name of the run (default: made from the command)."),
    click.option("--gpus", type=int, default=0, help="Number of GPUs."),
    click.option("--gpu-type", default=None, help="GPU type, such as a100; `moor gpus` lists them."),
    click.option(
        "--gpu-resource",
        default=None,
        help="Resource that counts as a GPU, such as a slice: nvidia.com/mig-1g.10gb, or mig-1g.10gb.",
    ),
    click.option(
        "--gpu-claim",
        default=None,
        metavar="TEMPLATE",
        help="Claim GPUs by this ResourceClaimTemplate, not by number.",
    ),
    click.option(
        "--machine",
        default=None,
        metavar="GROUP/TYPE",
        help="Run on a machine, as `moor machines` lists them; it has its size.",
        shell_complete=complete("machines"),
    ),
    click.option("--cpu", default=None, help="CPUs, such as 4 or 500m (default: the tenant's, or 1)."),
    click.option(
        "--memory",
        default=None,
        help="Memory limit, such as 8Gi (default: the tenant's, or 2Gi); `none`: no limit, and no restarts.",
    ),
    click.option("--time", "time", default=None, help="Longest running time: 2h, 90m, 1d12h."),
    click.option(
        "--volume", "volumes", multiple=True, metavar="NAME:/PATH[:ro]", help="Mount a volume. Repeatable."
    ),
    click.option(
        "--dataset",
        "datasets",
        multiple=True,
        metavar="[NAMESPACE/]NAME:/PATH",
        help="Mount a dataset, read-only. Repeatable.",
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set an environment variable, or pass on your value. Repeatable.",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="[VARIABLE=]NAME[:KEY]",
        help="Set variables from a secret: all its keys, or one. NAME:/PATH: mount it as files. Repeatable.",
    ),
    click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Label the run, its Jobs and pods; `moor jobs -l` finds it. Repeatable.",
    ),
    click.option(
        "--checkpoint",
        default=None,
        metavar="NAME[:SIZE]",
        help="Keep $MOORAGE_CHECKPOINT_DIR on this volume, created if missing (10Gi); restarts reuse it.",
    ),
    click.option(
        "--live",
        is_flag=True,
        help="On a local cluster: start in this folder itself, not in a copy, and see later changes.",
    ),
    click.option("--working-dir", default=None, metavar="NAME:PATH", help="Start in this folder of a volume."),
    click.option(
        "--git",
        default=None,
        metavar="URL[@REF]",
        help="Clone this repository in the pod, and start in it; REF is a branch, tag or commit.",
    ),
    click.option(
        "--image", default=None, help="Container image (default: the tenant's; a local cluster needs none)."
    ),
    click.option(
        "--user",
        default=None,
        metavar="UID[:GID]",
        help="User and group of the command, as numbers (default: the image's, or the namespace's).",
    ),
    click.option(
        "--host-env",
        is_flag=True,
        help="On a local cluster: run an image's command in this machine's environment.",
    ),
    click.option(
        "--grace-period",
        "grace_period_seconds",
        type=int,
        default=None,
        metavar="SECONDS",
        help="Seconds between SIGTERM and SIGKILL (30; 120 with --checkpoint).",
    ),
    click.option("--priority-class", default=None, help="PriorityClass of the pods."),
    click.option("--queue", default=None, metavar="NAME", help="Queue of Kueue (a LocalQueue) to wait in."),
    click.option(
        "--retries",
        type=int,
        default=0,
        show_default=True,
        help="Further tries after the command fails; none after a kill for memory.",
    ),
    click.option(
        "--restart-limit",
        type=int,
        default=None,
        help="Restarts after preemption, drain or node loss (default 20).",
    ),
    click.option(
        "--share/--no-share",
        default=None,
        help="Take turns on GPUs, where the tenant shares them by time (default: as the tenant has it).",
    ),
    click.option(
        "--follow", is_flag=True, help="Print the logs, and exit with the job's exit code. Ctrl-C detaches."
    ),
    click.option(
        "--dry-run", is_flag=True, help="Print the manifest and the node it would run on; create nothing."
    ),
)


def run_options(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command with the options of a run; it gets them by the names of `RunRequest`'s fields."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def request_from(base: RunRequest | None, given: dict[str, Any], command: tuple[str, ...]) -> RunRequest:
    """The request from the typed options; options that were not typed come from `base`.

    Variables and labels are merged with those of `base` by name; all other options replace those of `base`.
    """
    if base is None:
        return RunRequest(command=command, shown=command, **given)
    context = click.get_current_context()
    typed = {
        name: value
        for name, value in given.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    for option in {"env", "labels"} & set(typed):
        names = {text.partition("=")[0] for text in typed[option]}
        before = (text for text in getattr(base, option) if text.partition("=")[0] not in names)
        typed[option] = (*before, *typed[option])
    if command:
        typed |= {"command": command, "shown": command}
    return replace(base, **typed)
