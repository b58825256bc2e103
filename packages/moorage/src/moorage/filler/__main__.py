"""`python -m moorage.filler fill …`: the command of the containers of fill Jobs.

Exit codes: 0 done; 3 failed for good; 1 failed for now; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from moorage.filler.errors import EXIT_FINAL, FillError
from moorage.filler.progress import Progress


def main(argv: list[str] | None = None) -> int:
    """Run one command; the last line of standard output is its result as JSON."""
    given = _parser().parse_args(argv)
    progress = Progress()
    try:
        result = given.work(given, progress)
    except FillError as error:
        document = {"phase": "failed", "reason": error.reason, "message": error.message, "final": error.final}
        progress.end(document | ({"hint": error.hint} if error.hint else {}))
        return EXIT_FINAL if error.final else 1
    except Exception as error:
        progress.end(
            {
                "phase": "failed",
                "reason": "Unexpected",
                "message": f"{type(error).__name__}: {error}",
                "final": False,
            }
        )
        raise
    if result is not None:
        progress.end(result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m moorage.filler", description="Move data into and out of volumes."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    # datasets
    command = commands.add_parser("fill", help="fill a volume once from a source")
    command.add_argument("--source", required=True, help="https://, s3://, gs://, or folder:/path")
    command.add_argument("--root", type=Path, required=True, help="where the volume is mounted")
    command.add_argument("--revision", required=True, help="of the dataset")
    command.add_argument("--most-bytes", type=int, default=None)
    command.add_argument("--most-files", type=int, default=None)
    command.add_argument("--unpack", action="store_true")
    command.add_argument("--anonymous", action="store_true")
    command.add_argument("--workers", type=int, default=None, help="files under way at once")
    command.set_defaults(work=_fill)
    # volume backups
    command = commands.add_parser("backup", help="write a backup of a volume")
    command.add_argument("--root", type=Path, required=True, help="where the volume is mounted")
    command.add_argument("--target", required=True, help="s3://, gs://, or folder:/path")
    command.add_argument("--name", required=True)
    command.add_argument("--series", required=True, help="how the names of this volume's backups begin")
    command.add_argument("--keep", type=int, required=True)
    command.set_defaults(work=_backup)
    command = commands.add_parser("restore", help="bring a backup onto a volume")
    command.add_argument("--root", type=Path, required=True, help="where the volume is mounted")
    command.add_argument("--target", required=True, help="s3://, gs://, or folder:/path")
    command.add_argument("--name", required=True)
    command.add_argument("--force", action="store_true")
    command.set_defaults(work=_restore)
    # copies between a volume and a user's machine
    command = commands.add_parser("send", help="send files to the other end of standard input and output")
    command.add_argument("--root", type=Path, required=True)
    command.add_argument("--path", default="")
    command.set_defaults(work=_send)
    command = commands.add_parser("receive", help="take files from the other end of standard input and output")
    command.add_argument("--root", type=Path, required=True)
    command.add_argument("--base", default="")
    command.add_argument("--single-folder", default="")
    command.add_argument("--single-name", default="")
    command.set_defaults(work=_receive)
    # the files of a volume on the web page
    for name in ("list", "read", "write", "delete"):
        command = commands.add_parser(name, help=f"{name} a file or folder, for the web page")
        command.add_argument("--root", type=Path, required=True)
        command.add_argument("--path", default="")
        command.add_argument("--first", type=int, default=0)
        command.add_argument("--most", type=int, default=None)
        command.set_defaults(work=_browse, name=name)
    command = commands.add_parser("wait", help="do nothing, while a command is run in the container")
    command.set_defaults(work=_wait)
    return parser


def _send(given: argparse.Namespace, _progress: Progress) -> None:
    from moorage.filler.tree import Tree
    from moorage.filler.wire import send

    with contextlib.suppress(FillError):  # the other end reports it
        send(Tree(given.root), given.path, sys.stdin.buffer, sys.stdout.buffer)


def _receive(given: argparse.Namespace, _progress: Progress) -> None:
    from moorage.filler.tree import Tree
    from moorage.filler.wire import receive

    single = (given.single_folder, given.single_name)
    with contextlib.suppress(FillError):
        receive(Tree(given.root), given.base, sys.stdin.buffer, sys.stdout.buffer, single=single)


def _browse(given: argparse.Namespace, _progress: Progress) -> dict[str, Any] | None:
    from moorage.filler import browse
    from moorage.filler.tree import Tree

    tree = Tree(given.root)
    match given.name:
        case "list":
            return browse.list_folder(tree, given.path, first=given.first, most=given.most or 1000)
        case "read":
            browse.read_file(tree, given.path, sys.stdout.buffer, most=given.most)
            return None
        case "write":
            return browse.write_file(tree, given.path, sys.stdin.buffer)
        case _:
            return browse.delete(tree, given.path)


def _wait(_given: argparse.Namespace, _progress: Progress) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


def _backup(given: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    from moorage.filler.backup import backup, open_target

    target = open_target(given.target)
    return backup(given.root, target, given.name, progress, series=given.series, keep=given.keep)


def _restore(given: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    from moorage.filler.backup import open_target, restore

    return restore(given.root, open_target(given.target), given.name, progress, force=given.force)


def _fill(given: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    from moorage.filler.fill import MAX_FILES, WORKERS, Order, fill
    from moorage.filler.sources import open_source

    order = Order(
        revision=given.revision,
        unpack=given.unpack,
        most_bytes=given.most_bytes,
        most_files=given.most_files or MAX_FILES,
        workers=given.workers or WORKERS,
    )
    source = open_source(given.source, anonymous=given.anonymous)
    return asyncio.run(fill(source, given.root, order, progress))


if __name__ == "__main__":
    sys.exit(main())
