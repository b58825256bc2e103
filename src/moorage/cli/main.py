"""`moor`: the table of commands, and the way into each.

The table is data and the help is drawn from it by hand, so that `moor --help` imports neither click nor
anything of ours. A command's module is imported when it is called, and brings its own click command.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import click

# (section, name, module:attribute, help in one line)
COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("Runs", "run", "moorage.cli.run:run", "Run a command as a guarded job"),
    ("Runs", "jobs", "moorage.cli.jobs:jobs", "List runs and how they stand"),
    ("Runs", "show", "moorage.cli.jobs:show", "Show all there is to know of a run"),
    ("Runs", "logs", "moorage.cli.logs:logs", "Print or follow the logs of a run, all its pods in one view"),
    ("Runs", "explain", "moorage.cli.explain:explain", "Say why a run waits, and who holds what it needs"),
    ("Runs", "cancel", "moorage.cli.jobs:cancel", "Stop runs, and start them no more"),
    ("Runs", "docker", "moorage.cli.docker:docker", "Run Docker's own commands on the cluster"),
    ("Maps", "map", "moorage.cli.map:map", "Run a command or a function once for each of many items"),
    ("Maps", "plan", "moorage.cli.plan:plan", "Say what a map will take: nodes, time, money"),
    ("Maps", "notify", "moorage.cli.notify:notify", "Send a trial notice, to see that it arrives"),
    ("GPUs", "gpus", "moorage.cli.gpus:gpus", "Show every GPU: free, or whose"),
    ("GPUs", "top", "moorage.cli.gpus:top", "Show GPU-hours by user, run, type or GPU"),
    ("GPUs", "machines", "moorage.cli.machines:machines", "Show machines by type: held, used, waited for"),
    ("GPUs", "reserve", "moorage.cli.reserve:reserve", "Keep machines from one moment to another"),
    ("GPUs", "simulate", "moorage.cli.simulate:simulate", "Try packing policies on a trace of pods"),
    (
        "Workspaces",
        "workspace",
        "moorage.cli.workspace:workspace",
        "JupyterLab, code-server and others in a browser",
    ),
    ("Storage", "volume", "moorage.cli.volume:volume", "Create, list and delete volumes"),
    ("Storage", "dataset", "moorage.cli.dataset:dataset", "Fill volumes once, read them everywhere"),
    ("Nodes", "drain", "moorage.cli.drain:drain", "Empty a node; what it ran is started again elsewhere"),
    ("Nodes", "cordon", "moorage.cli.drain:cordon", "Let nothing new start on a node"),
    ("Nodes", "uncordon", "moorage.cli.drain:uncordon", "Open a node again"),
    ("Nodes", "doctor", "moorage.cli.doctor:doctor", "Say why a node stays although it costs"),
    ("People", "login", "moorage.cli.login:login", "Log in to a Moorage server"),
    ("People", "logout", "moorage.cli.login:logout", "Log out: session and tokens end"),
    ("People", "whoami", "moorage.cli.login:whoami", "Show who you are to the server"),
    ("People", "token", "moorage.cli.login:token", "Print a token for the cluster, as kubectl's plugins do"),
    ("People", "kubeconfig", "moorage.cli.login:kubeconfig", "Write a kubeconfig whose user is you"),
    ("People", "user", "moorage.cli.users:user", "Make, list, shut and forget people's accounts"),
    ("People", "tenant", "moorage.cli.tenants:tenant", "Make, list, change and delete teams"),
    ("People", "audit", "moorage.cli.users:audit", "Show who changed what"),
    ("Manifests", "lint", "moorage.cli.lint:lint", "Say what in manifests breaks the guardrails"),
    ("This machine", "up", "moorage.cli.up:up", "Start the local cluster and Moorage's services"),
    ("This machine", "down", "moorage.cli.up:down", "Stop the local cluster"),
    ("This machine", "status", "moorage.cli.up:status", "Show whether the local cluster runs, and where"),
    ("This machine", "restore", "moorage.cli.restore:restore", "Bring back damaged files of the local cluster"),
    ("On a cluster", "manifests", "moorage.cli.manifests:manifests", "Print what a cluster needs to run Moorage"),
    ("On a cluster", "operator", "moorage.cli.service_commands:operator", "Run the operator"),
    ("On a cluster", "webhook", "moorage.cli.service_commands:webhook", "Run the admission webhook"),
    ("On a cluster", "extender", "moorage.cli.service_commands:extender", "Run the scheduler extender"),
    ("On a cluster", "server", "moorage.cli.service_commands:server", "Run the REST API and the web page"),
    (
        "The command line",
        "completion",
        "moorage.cli.completion:completion",
        "Print a completion script for your shell",
    ),
)

HEAD = """\
moor: an ML platform on Kubernetes for teams that share GPUs

Usage: moor COMMAND [OPTIONS]
"""
TAIL = """\
`moor COMMAND --help` explains a command; `moor --version` prints the version.
"""
INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(argv: Sequence[str] | None = None, *, opener: Any = None) -> int:
    """Run one command line and return its exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

    `opener` replaces `moorage.cli.session.open_session`, for tests.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "_MOOR_COMPLETE" in os.environ:
        from moorage.cli.completion import complete

        return int(complete())
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    first = words[0] if words else "--help"
    if first in ("--help", "-h"):
        sys.stdout.write(help_text())
        return 0
    if first in ("--version", "-V"):
        from moorage import __version__

        sys.stdout.write(f"moor {__version__}\n")
        return 0
    target = next((target for _, name, target, _ in COMMANDS if name == first), None)
    if target is None:
        return _unknown(first)
    return _call(first, target, words[1:], opener)


def help_text() -> str:
    """The help of `moor` itself, drawn from the table."""
    width = max(len(name) for _, name, _, _ in COMMANDS)
    lines, section = [HEAD], ""
    for here, name, _, text in COMMANDS:
        if here != section:
            lines.append(f"{here}:" if not section else f"\n{here}:")
            section = here
        lines.append(f"  {name:<{width}}  {text}")
    return "\n".join(lines) + "\n\n" + TAIL


def load(target: str) -> click.Command:
    """Import the click command behind "module:attribute"."""
    from importlib import import_module

    module, _, attribute = target.partition(":")
    found: click.Command = getattr(import_module(module), attribute)
    return found


def _unknown(word: str) -> int:
    if word.startswith("-"):
        _say_error(
            f"moor has no option {word}", "options follow the command: moor run --gpus 1 -- python train.py"
        )
        return 2
    from difflib import get_close_matches

    near = get_close_matches(word, [name for _, name, _, _ in COMMANDS], n=1)
    _say_error(
        f"moor has no command {word!r}",
        f"did you mean `moor {near[0]}`?" if near else "`moor --help` lists them all",
    )
    return 2


def _call(name: str, target: str, words: Sequence[str], opener: Any) -> int:
    import click

    from moorage.errors import MoorageError

    try:
        code = load(target).main(args=list(words), prog_name=f"moor {name}", standalone_mode=False, obj=opener)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(error.format_message() + "\n")
        return 2
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else f"moor {name}"
        message, hint = _in_our_words(error)
        _say_error(message, f"{hint}see `{where} --help`")
        return 2
    except click.ClickException as error:
        _say_error(error.format_message(), None)
        return 1
    except (click.exceptions.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except MoorageError as error:
        for message, hint in getattr(error, "problems", None) or [(error.message, error.hint)]:
            _say_error(message, hint)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second complaint at exit
        return 141  # 128 + SIGPIPE: the reader has gone, as with `moor jobs | head`
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return code if isinstance(code, int) else 0


def _in_our_words(error: click.UsageError) -> tuple[str, str]:
    """click's message as ours look: no capital, no full stop; what may have been meant goes into the hint."""
    message = error.format_message().partition(" (Did you mean")[0].rstrip(".").replace("\n", " ")
    meant = " or ".join(getattr(error, "possibilities", None) or ())
    return message[:1].lower() + message[1:], f"did you mean {meant}? Or " if meant else ""


def _say_error(message: str, hint: str | None) -> None:
    from moorage.apimachinery.texts import visible_lines

    sys.stderr.write(f"error: {visible_lines(message)}\n")
    if hint:
        sys.stderr.write(f"hint: {visible_lines(hint)}\n")


if __name__ == "__main__":
    sys.exit(main())
