"""Files that hold credentials: they are left out when a folder is sent anywhere.

Paths first, as patterns of a .gitignore file: the usual names of files with logins. Then contents: private keys
and tokens that begin with a fixed prefix. This module is the only list; `pack` of `moor run` and
`moor map create`, `moor volume cp` and the functions of the SDK use it.

https://git-scm.com/docs/gitignore#_pattern_format
"""

from __future__ import annotations

import re
from pathlib import PurePath

SCANNED_BYTES = 1024 * 1024  # of each file, from its start: keys and settings are smaller

PATHS = (
    # keys of ssh and PGP, stores of keys
    ".ssh/", ".gnupg/", ".password-store/",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!*.pub",
    "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    # Kubernetes and Moorage
    ".kube/", "kubeconfig", "*.kubeconfig", "**/.config/moorage/", "**/.local/share/moorage/",
    # clouds and stores of objects
    ".aws/", ".azure/", ".oci/", "**/.config/gcloud/", "application_default_credentials.json", ".boto", ".s3cfg",
    "**/.mc/config.json", "**/.config/rclone/", ".databrickscfg", "**/.terraform.d/credentials.tfrc.json",
    ".vault-token", ".modal.toml",
    # registries, code hosts, package indexes
    "**/.docker/config.json", ".dockercfg", "**/.config/containers/auth.json", ".netrc", "_netrc",
    ".git-credentials", "**/.config/git/credentials", "**/.config/gh/", "**/.config/hub", ".npmrc", ".yarnrc.yml",
    ".pypirc", "**/.cargo/credentials*", "**/.gem/credentials", "**/.m2/settings.xml",
    # hubs of models and data
    "**/.huggingface/token", "**/huggingface/token", "**/huggingface/stored_tokens", "kaggle.json",
    "**/.config/wandb/", "**/.streamlit/secrets.toml", "**/.dvc/config.local",
    # databases, environments, histories of shells
    ".pgpass", ".my.cnf", ".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", ".Renviron",
    ".*_history",
)  # fmt: skip

_CONTENTS = (
    ("a private key", rb"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY"),
    ("a private key", rb"PuTTY-User-Key-File-"),
    ("a token of Moorage", rb"\bmr[ps]_[\w-]{20,}"),
    ("a token of GitHub", rb"\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{22,}"),
    ("a token of GitLab", rb"\bglpat-[\w-]{20,}"),
    (
        "a key of AWS",
        rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\baws_secret_access_key[\"']?\s{0,4}[=:]\s{0,4}[\"']?\S{30,}",
    ),
    ("a key of Google", rb"\bAIza[\w-]{35}|\bya29\.[\w-]{20,}"),
    ("a token of Hugging Face", rb"\bhf_[A-Za-z0-9]{30,}"),
    ("a key of Anthropic or OpenAI", rb"\bsk-(?:ant|proj|svcacct)-[\w-]{20,}|\bsk-[A-Za-z0-9]{40,}"),
    ("a key of Weights & Biases", rb"\bwandb_v1_\w{20,}"),
    ("a token of Slack", rb"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("a token of npm or PyPI", rb"\bnpm_[A-Za-z0-9]{36}|\bpypi-AgE[\w-]{20,}"),
    ("a token", rb"\beyJ[\w-]{10,300}\.eyJ[\w-]{10,4000}\.[\w-]{10}"),  # JSON Web Token, of service accounts too
    ("a kubeconfig", rb"\bclient-key-data[\"']?:\s{0,4}\S{20,}"),
    ("a login of Docker", rb"\"auth\":\s{0,4}\"[A-Za-z0-9+/=]{8,}\""),
)
_CONTENT = re.compile(b"|".join(b"(?P<g%d>%s)" % (number, text) for number, (_, text) in enumerate(_CONTENTS)))

_SYSTEM = frozenset(
    f"/{name}"
    for name in (
        "bin", "boot", "dev", "etc", "home", "lib", "lib64", "private", "proc", "root", "run", "sbin", "sys",
        "tmp", "usr", "var", "var/tmp", "private/tmp", "private/var", "System", "Library", "Users", "Volumes",
    )
)  # fmt: skip


def credential_in(content: bytes) -> str | None:
    """The kind of credential in the beginning of a file, such as "a private key". None: no known kind."""
    match = _CONTENT.search(content)
    return _CONTENTS[int(str(match.lastgroup)[1:])][0] if match else None


_WORDS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY")
_PAIRS = tuple(
    f"_{kind}_KEY" for kind in ("API", "ACCESS", "AUTH", "ACCOUNT", "ENCRYPTION", "PRIVATE", "SECRET", "SIGNING")
)
_ABOUT = (
    "COUNT",
    "DIR",
    "FILE",
    "ID",
    "LENGTH",
    "LIMIT",
    "MAX",
    "MIN",
    "NAME",
    "PATH",
    "SIZE",
    "TYPE",
)  # their last word
_PREFIXES = (
    "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "AKIA", "ASIA", "AIza", "ya29.",
    "xoxb-", "xoxp-", "xoxa-", "npm_", "pypi-AgE", "wandb_v1_", "mrs_", "mrp_", "eyJ", "dckr_pat_", "nvapi-",
)  # fmt: skip
_LEAST = 16  # characters of a value with such a prefix; "sk-learn" is shorter
SECRET_ADVICE = "keep it in a secret: `moor secret create NAME KEY`, then `moor run --secret NAME`"


def is_credential(name: str, value: str) -> bool:
    """Whether an environment variable looks like a credential: by its name, or by the beginning of its value.

    `HF_TOKEN` and `DB_PASSWORD` do; `MAX_TOKENS`, `TOKEN_LIMIT` and `PASSWORD_FILE` do not.
    """
    words = name.upper().replace("-", "_").replace(".", "_").split("_")
    is_named = any(word in _WORDS for word in words) or f"_{'_'.join(words)}".endswith(_PAIRS)
    if is_named and words[-1] not in _ABOUT:
        return bool(value)
    value = value.strip()
    if value.startswith("-----BEGIN ") and "PRIVATE KEY" in value[:64]:
        return True
    login, at, _ = value.partition("://")[2].partition("/")[0].rpartition("@")
    if at and login.partition(":")[2]:  # https://user:password@host
        return True
    return len(value) >= _LEAST and value.startswith(_PREFIXES) and not any(char.isspace() for char in value)


def credential_note(name: str) -> str:
    """The note about a variable that looks like a credential: its value is in the pod's spec."""
    return f"variable {name} looks like a credential: all users of the namespace can read it; {SECRET_ADVICE}"


def is_of_many_projects(folder: PurePath, home: PurePath) -> bool:
    """Whether a folder is a home folder, contains one, or belongs to the system.

    Paths are absolute, without links.
    """
    return home.is_relative_to(folder) or str(folder) in _SYSTEM
