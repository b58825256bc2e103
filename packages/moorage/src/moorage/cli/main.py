"""`moor`: reads the first word and calls that command.

The help is written from the table of commands without click, so that `moor --help` imports neither click nor other
modules of Moorage.
"""

from __future__ import annotations

import os
import sys

from moorage.cli.commands import ALIASES, COMMANDS, MEANT, TYPED, find_command, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import click

HEAD = """\
moor: an ML platform on Kubernetes for teams that share GPUs

Usage: moor COMMAND [OPTIONS]
"""
TAIL = """\
`moor COMMAND --help` explains a command; `moor --version` prints the version.
"""
MEANT_OPTIONS = {
    ("moor jobs", "--failed"): "--state failed",
    ("moor jobs", "--running"): "--state running",
    ("moor jobs", "--waiting"): "--state waiting",
    ("moor jobs", "--all"): "--all-namespaces",
    ("moor run", "--gpu"): "--gpus",
    ("moor run", "--mem"): "--memory",
    ("moor run", "--cpus"): "--cpu",
    ("moor run", "--timeout"): "--time",
    ("moor run", "--detach"): "nothing: `moor run` returns at once, and --follow waits",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(argv: Sequence[str] | None = None, *, opener: Any = None) -> int:
    """Run one command line and return its exit code: 0 success, 1 failure, 2 invalid usage, 130 interrupted.

    If the reader of stdout closes it early, the exit code is 0.
    `opener` replaces `moorage.cli.session.open_session`, for tests.
    """
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv), opener)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return 0  # the reader has closed the pipe, as `moor jobs | head` does
    except OSError as error:
        import errno

        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            raise
        _drop_output()
        _say_error(
            f"cannot write {error.filename or 'the output'}: {os.strerror(error.errno).lower()}",
            "free some space, or write to another place",
        )
        return 1
    return code


def _drop_output() -> None:
    """Discard the buffered rest of stdout, so that the exit does not report the same error again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _run(words: list[str], opener: Any) -> int:
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
    match = find_command(first)
    if match is None:
        return _unknown(first)
    return _call(*match, words[1:], opener)


def help_text() -> str:
    """The help text of `moor`, built from the table of commands."""
    width = max(len(name) for _, name, _, _ in COMMANDS)
    lines, section = [HEAD], ""
    for here, name, _, text in COMMANDS:
        if here != section:
            lines.append(f"{here}:" if not section else f"\n{here}:")
            section = here
        lines.append(f"  {name:<{width}}  {text}")
    also: dict[str, list[str]] = {}
    for word, name in ALIASES.items():
        also.setdefault(name, []).append(word)
    lines.append("\nOther words:")
    lines += [f"  {', '.join(aliases):<16}the same as {name}" for name, aliases in also.items()]
    return "\n".join(lines) + "\n\n" + TAIL


def _unknown(word: str) -> int:
    if word.startswith("-"):
        _say_error(
            f"moor has no option {word}", "options follow the command: moor run --gpus 1 -- python train.py"
        )
        return 2
    if word in MEANT:
        _say_error(f"moor has no command {word!r}", f"did you mean `{MEANT[word]}`?")
        return 2
    from difflib import get_close_matches

    near = get_close_matches(word, [*(name for _, name, _, _ in COMMANDS), *ALIASES], n=1)
    _say_error(
        f"moor has no command {word!r}",
        f"did you mean `moor {near[0]}`?" if near else "`moor --help` lists them all",
    )
    return 2


def _call(name: str, target: str, words: Sequence[str], opener: Any) -> int:
    import click

    from moorage_kube.errors import MoorageError

    try:
        code = _invoke(load(target), name, words, opener)
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
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return code if isinstance(code, int) else 0


def _invoke(command: click.Command, name: str, words: Sequence[str], opener: Any) -> Any:
    """Run a command. Like click's `main`, but an error of a closed pipe is raised unchanged."""
    import click

    try:
        with command.make_context(f"moor {name}", list(words), obj=opener) as context:
            context.meta[TYPED] = tuple(words)
            return command.invoke(context)
    except click.exceptions.Exit as done:
        return done.exit_code


def _in_our_words(error: click.UsageError) -> tuple[str, str]:
    """Return click's message in our form: no capital, no full stop. Similar names become the hint."""
    import click

    message = error.format_message().replace(". Did you mean", " (Did you mean").partition(" (Did you mean")[0]
    message = message.rstrip(".").replace("\n", " ")
    message = message[:1].lower() + message[1:]
    if option := MEANT_OPTIONS.get(
        ((error.ctx.info_name if error.ctx else "") or "", getattr(error, "option_name", ""))
    ):
        return message, f"did you mean {option}? Or "
    example = next(iter(getattr(error.ctx.command, "examples", ())), "") if error.ctx else ""
    if isinstance(error, click.MissingParameter) and example:
        return message, f"such as: {example}   Or "
    meant = " or ".join(getattr(error, "possibilities", None) or ())
    return message, f"did you mean {meant}? Or " if meant else ""


def _say_error(message: str, hint: str | None) -> None:
    from moorage.cli.console import has_colour
    from moorage.cli.hints import as_typed
    from moorage_kube.texts import visible, visible_lines

    red, cyan, plain = ("\x1b[1;31m", "\x1b[1;36m", "\x1b[0m") if has_colour(sys.stderr) else ("", "", "")
    sys.stderr.write(f"{red}error:{plain} {visible(message)}\n")
    if hint:
        sys.stderr.write(f"{cyan}hint:{plain} {visible_lines(as_typed(hint))}\n")


if __name__ == "__main__":
    sys.exit(main())
