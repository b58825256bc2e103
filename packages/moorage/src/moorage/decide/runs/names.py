"""Names of runs and of their objects."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from msgspec import Struct

_SUFFIX_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"


def base_name(command: Sequence[str]) -> str:
    """A readable DNS label from the command: `python train.py` → "train", `python -m my.tool` → "tool"."""
    words = [word.rsplit("/", 1)[-1] for word in command]
    chosen = words[0] if words else "run"
    if re.fullmatch(r"(python[\d.]*|bash|sh|zsh|torchrun|accelerate|uv|node|perl|Rscript|julia)", chosen):
        rest = list(command[1:])
        if "-m" in rest and rest.index("-m") + 1 < len(rest):
            chosen = rest[rest.index("-m") + 1].rsplit(".", 1)[-1]
        elif "-c" not in rest:
            script = next((word for word in rest if re.search(r"\.(py|sh|pl|R|jl|js|mjs)$", word)), None)
            chosen = script.rsplit("/", 1)[-1] if script else chosen
    chosen = re.sub(r"\.(py|sh|pl|R|jl|js|mjs)$", "", chosen).lower()
    return re.sub(r"[^a-z0-9]+", "-", chosen).strip("-")[:40].strip("-") or "run"


def generated_name(command: Sequence[str], salt: str, taken: frozenset[str]) -> str:
    """`base_name` with four more characters that make it unique: "train-x7k2"."""
    for count in range(1000):
        digest = hashlib.sha256(f"{salt}/{count}".encode()).digest()
        name = f"{base_name(command)}-" + "".join(
            _SUFFIX_LETTERS[byte % len(_SUFFIX_LETTERS)] for byte in digest[:4]
        )
        if name not in taken:
            return name
    raise AssertionError("a thousand names in a row are taken")


_OWNED = re.compile(r"(?P<run>[a-z0-9-]+)\.of-(?P<owner>[0-9a-f]{16})-[0-9a-f]{8}")


def secret_name(run: str, owner: str, token: str) -> str:
    """Name of the Secret with the files for a run or map of this owner: runner, token, directory.

    The name includes the owner, so that admission can judge who mounts it and need not read it. `token`: the run's
    own, random: it makes the name unique.
    """
    return f"{run}.of-{_digest(owner, 16)}-{_digest(token, 8)}"


class OwnedSecret(Struct, frozen=True):
    """A Secret with a name from `secret_name`."""

    run: str
    owner_digest: str

    def is_of(self, owner: str) -> bool:
        return self.owner_digest == _digest(owner, 16)


def owned_secret(name: str) -> OwnedSecret | None:
    """Parse the name of a Secret that `secret_name` made; None for any other."""
    match = _OWNED.fullmatch(name)
    return OwnedSecret(match["run"], match["owner"]) if match else None


def _digest(text: str, characters: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:characters]
