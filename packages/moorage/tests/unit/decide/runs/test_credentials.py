"""Which files hold credentials."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from moorage.actions.directoryarchive import Ignore
from moorage.decide.runs.credentials import PATHS, credential_in, is_credential, is_of_many_projects

A36 = "a1" * 18


@pytest.mark.parametrize(
    "path",
    [
        ".ssh/config", "x/.ssh/id", "id_ed25519", "a/id_rsa.old", "certs/a.p12", ".kube/config", "kubeconfig",
        "team.kubeconfig", ".config/moorage/logins.json", "home/.config/moorage/proofs.json", ".aws/credentials",
        ".azure/msal.json", ".config/gcloud/credentials.db", "application_default_credentials.json",
        ".docker/config.json", ".netrc", ".git-credentials", ".npmrc", "pkg/.npmrc", ".pypirc",
        ".huggingface/token", ".cache/huggingface/token", ".kaggle/kaggle.json", ".config/wandb/settings", ".env",
        ".env.production", ".pgpass", ".bash_history", ".local/share/moorage/kubeconfig", ".gnupg/secring.gpg",
    ],
)  # fmt: skip
def test_a_file_with_the_name_of_a_login_is_found(path):
    assert Ignore(PATHS).leaves_out(path, is_folder=False)


@pytest.mark.parametrize(
    "path",
    [
        "train.py", "id_rsa.pub", ".env.example", "env.py", "config.json", "docker/config.json", "ca.pem", "token",
        "tokens/train.txt", ".config/app.yaml", "history.csv", "data/keys.csv", "aws.py", "ssh/run.sh",
    ],
)  # fmt: skip
def test_a_file_of_a_project_is_not(path):
    assert not Ignore(PATHS).leaves_out(path, is_folder=False)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", "a private key"),
        ("-----BEGIN PRIVATE KEY-----", "a private key"),
        ('{"private_key": "-----BEGIN RSA PRIVATE KEY-----\\nMII"}', "a private key"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", "a private key"),
        (f"TOKEN = 'ghp_{A36}'", "a token of GitHub"),
        ("mrs_" + "x" * 43, "a token of Moorage"),
        ("key=AKIAABCDEFGHIJKLMNOP", "a key of AWS"),
        ("aws_secret_access_key = " + "x" * 40, "a key of AWS"),
        (f"login(token='hf_{A36}')", "a token of Hugging Face"),
        ("sk-ant-" + "x" * 40, "a key of Anthropic or OpenAI"),
        ("users:\n- user:\n    client-key-data: " + "x" * 40, "a kubeconfig"),
        ("token: eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJl.c2lnbmF0dXJl", "a token"),
        ('{"auths": {"r.io": {"auth": "dXNlcjpwYXNz"}}}', "a login of Docker"),
        ("-----BEGIN CERTIFICATE-----", None),
        ("-----BEGIN PUBLIC KEY-----", None),
        ("hf_model = load('hf_hub')", None),
        ("sk-learn ask-me-anything-about-it-and-more", None),
        ("AKIAshort", None),
        ("", None),
    ],
)
def test_a_key_or_token_is_found_by_its_prefix(content, what):
    assert credential_in(content.encode()) == what


@pytest.mark.parametrize(
    "text", ["eyJ-", "eyJaaaaaaaaaa.eyJ ", "eyJa" * 80, "-----BEGIN A ", "ghp_", "client-key-data: ", "AKIA"]
)
def test_a_long_file_of_beginnings_is_read_in_steps_that_grow_with_its_length(text):
    assert credential_in((text * 2**20)[: 2**20].encode()) is None


@pytest.mark.parametrize(
    ("folder", "is_refused"),
    [("/home/ada", True), ("/home", True), ("/", True), ("/tmp", True), ("/root", True), ("/etc", True),
     ("/home/ada/project", False), ("/tmp/x", False), ("/app", False), ("/home/adam", False)],
)  # fmt: skip
def test_home_folders_and_those_of_the_system_are_told_from_projects(folder, is_refused):
    assert is_of_many_projects(PurePosixPath(folder), PurePosixPath("/home/ada")) is is_refused


@pytest.mark.parametrize(
    "variable",
    [
        "HF_TOKEN=x", "token=x", "DB_PASSWORD=x", "WANDB_API_KEY=x", "AWS_SECRET_ACCESS_KEY=x", "SECRET=x",
        "api-key=x", "OPENAI_APIKEY=x", "DB_PASSWORD_PROD=x", f"X=hf_{A36}", f"X=ghp_{A36}",
        "X=AKIAABCDEFGHIJKLMNOP", "X=sk-abcdefghijklmnop", "DATABASE_URL=postgres://ada:pass@db/x",
        "K=-----BEGIN RSA PRIVATE KEY-----\nMII",
    ],
)  # fmt: skip
def test_a_variable_looks_like_a_credential(variable):
    name, _, value = variable.partition("=")
    assert is_credential(name, value)


@pytest.mark.parametrize(
    "variable",
    [
        "MAX_TOKENS=4096", "TOKENIZERS_PARALLELISM=false", "TOKEN_LIMIT=9", "PASSWORD_FILE=/run/p",
        "SECRET_NAME=hf", "KEY=value", "KEYBOARD=us", "MONKEY=1", "HF_TOKEN=", "X=sk-learn", "X=hf_hub", "URL=https://ada@host/a:b",
        "URL=https://host/@x:y", "X=sk-learn is a library of ours", "K=-----BEGIN CERTIFICATE-----", "LR=0.1",
    ],
)  # fmt: skip
def test_another_variable_does_not(variable):
    name, _, value = variable.partition("=")
    assert not is_credential(name, value)
