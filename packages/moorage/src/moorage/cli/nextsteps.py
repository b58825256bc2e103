"""The administrator's next commands, after an account or a team was created."""

from __future__ import annotations

from collections.abc import Sequence

NO_ADDRESS = "https://HOST"  # where the cluster names no address that people reach


def after_account(person: str, teams: Sequence[str], *, address: str) -> list[str]:
    """Lines to print after an account was created: its team, if it has none, and how the person logs in."""
    lines = []
    if not teams:
        lines.append(f"put {person} in a team: moor tenant add TEAM --user {person}")
    url = address or NO_ADDRESS
    lines.append(f"{person} logs in: moor login {url} --username {person}; in a browser: {url}")
    return lines


def after_team(
    name: str, people: Sequence[str], groups: Sequence[str], *, without_account: Sequence[str], address: str
) -> list[str]:
    """Lines to print after a team was created: missing accounts, members if it has none, how they log in."""
    lines = [
        f"{person} has no account yet: moor user create {person} (not needed with a login provider)"
        for person in without_account
    ]
    if not people and not groups:
        lines.append(f"add a member: moor user create NAME, then: moor tenant add {name} --user NAME")
    lines.append(f"its people log in: moor login {address or NO_ADDRESS}")
    return lines
