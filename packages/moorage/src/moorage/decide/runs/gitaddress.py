"""The address of a git repository as users write it: URL, or URL@REF. The server never opens it."""

from __future__ import annotations

import re

from msgspec import Struct

from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import RunRequest

URL_MAX = 2048
REF_MAX = 250
TOKEN_ENV = "GIT_TOKEN"  # read by our runner, for https
USAGE = (
    "write https://HOST/PATH, ssh://git@HOST/PATH, git@HOST:PATH or http://127.0.0.1:PORT/PATH,"
    " with @BRANCH, @TAG or @COMMIT at its end"
)
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]"
_PATH = r"[^\s\\'\"`$;|&<>()]+"
_WEB = re.compile(rf"(https?)://({_HOST})(:[0-9]{{1,5}})?/({_PATH})")
_SSH = re.compile(rf"ssh://(?:([A-Za-z0-9._-]+)@)?({_HOST})(:[0-9]{{1,5}})?/({_PATH})")
_SHORT = re.compile(rf"([A-Za-z0-9._]+)@({_HOST}):(?![-/])({_PATH})")
_REF = re.compile(r"(?![-/.])[A-Za-z0-9._/+@#=-]*[A-Za-z0-9_+#=-]")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")  # for http, which protects nothing on its way


class GitAddress(Struct, frozen=True):
    """A repository, and the branch, tag or commit to check out; an empty `ref` is the default branch."""

    url: str
    ref: str = ""


def git_of_request(request: RunRequest, remarks: Remarks) -> GitAddress | None:
    """The repository of a run; None if it names none, or a wrong one: then a fault is added to `remarks`."""
    if request.git is None:
        return None
    if request.working_dir is not None:
        remarks.refuse("git", "two places for the code: git and workingDir", "leave out one of them")
        return None
    address, problem, hint = parse_git(request.git)
    if problem:
        remarks.refuse("git", problem, hint)
    return address


def parse_git(text: str) -> tuple[GitAddress | None, str, str]:
    """The address; or None, the problem and a hint."""
    url, ref = _split(text)
    if len(url) > URL_MAX or len(ref) > REF_MAX:
        return None, f"the git address {text[:60]!r}… is too long: at most {URL_MAX} characters", USAGE
    scheme, _, rest = url.partition("://")
    user = rest.partition("/")[0].rpartition("@")[0]
    if user and (scheme != "ssh" or ":" in user):
        hint = f"leave it out, and put a token into a secret: moor secret create git {TOKEN_ENV}"
        return None, "the git address contains a user or token, which the namespace could read", hint
    web = _WEB.fullmatch(url)
    if web is None and _SSH.fullmatch(url) is None and _SHORT.fullmatch(url) is None:
        return None, f"invalid git address {text!r}", USAGE
    if web is not None and web[1] == "http" and web[2] not in LOCAL_HOSTS:
        return None, f"invalid git address {text!r}: http is allowed for localhost only", "use https"
    if ref and (_REF.fullmatch(ref) is None or ".." in ref or "//" in ref or "@{" in ref):
        return None, f"invalid branch, tag or commit {ref!r} in the git address", USAGE
    return GitAddress(url, ref), "", ""


def pinned(address: str, commit: str) -> str:
    """The address of a run with its commit in place of the branch or tag."""
    return f"{_split(address)[0]}@{commit}"


def _split(text: str) -> tuple[str, str]:
    """URL and REF. The `@` of a user is before the host, so only one after the first part of the path counts."""
    at = text.find("://")
    start = text.find("/", at + 3) if at >= 0 else text.find(":")
    if start < 0:
        return text, ""
    path, sign, ref = text[start + 1 :].partition(".git@")
    if sign:
        return text[: start + 1] + path + ".git", ref
    path, sign, ref = text[start + 1 :].rpartition("@")
    return (text[: start + 1] + path, ref) if sign and path else (text, "")
