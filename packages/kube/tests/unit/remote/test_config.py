"""Which cluster, as whom: every form of kubeconfig, and what is said of those that are wrong."""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.clock import rfc3339
from moorage_kube.errors import MoorageError, NotReady, UsageError
from moorage_kube.remote.config import Connection, ExecPlugin, load_connection
from moorage_kube.remote.credentials import Credentials, make_tls_context
from moorage_kube.testing.clock import NOON, FakeClock


def write(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def a_kubeconfig(
    name: str = "lab", *, user: Any = None, cluster: Any = None, context: Any = None, current: str | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name if current is None else current,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443"} | (cluster or {})}],
        "users": [{"name": f"{name}-user", "user": {"token": "t"} if user is None else user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": f"{name}-user"} | (context or {})}],
    }


def load(tmp_path: Path, document: Any, **options: Any) -> Connection:
    return load_connection(write(tmp_path / "config", document), env={}, **options)


def test_the_current_context_is_taken(tmp_path: Path) -> None:
    found = load(tmp_path, a_kubeconfig(context={"namespace": "team"}))
    assert found == Connection(
        server="https://lab.example:6443",
        namespace="team",
        context="lab",
        source=str(tmp_path / "config"),
        token="t",
    )


def test_another_context_can_be_asked_for(tmp_path: Path) -> None:
    one, two = a_kubeconfig("one"), a_kubeconfig("two")
    both = one | {key: one[key] + two[key] for key in ("clusters", "users", "contexts")}
    assert load(tmp_path, both, context="two").server == "https://two.example:6443"


def test_a_lone_context_needs_no_current_one(tmp_path: Path) -> None:
    assert load(tmp_path, a_kubeconfig(current="")).context == "lab"


def test_every_setting_of_cluster_and_user_is_read(tmp_path: Path) -> None:
    data = base64.b64encode(b"PEM").decode()
    cluster = {
        "certificate-authority-data": data,
        "insecure-skip-tls-verify": True,
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
    }
    user = {
        "client-certificate-data": data,
        "client-key-data": data,
        "username": "ada",
        "password": "pw",
        "as": "bob",
        "as-groups": ["red"],
    }
    found = load(tmp_path, a_kubeconfig(cluster=cluster, user=user))
    assert found == Connection(
        server="https://lab.example:6443",
        context="lab",
        source=str(tmp_path / "config"),
        ca_pem=b"PEM",
        insecure=True,
        tls_server_name="kubernetes",
        proxy_url="http://proxy:3128",
        client_cert_pem=b"PEM",
        client_key_pem=b"PEM",
        username="ada",
        password="pw",
        impersonate_user="bob",
        impersonate_groups=("red",),
    )


def test_files_are_found_beside_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    write(tmp_path / "pki" / "ca.crt", "CA")
    write(tmp_path / "pki" / "me.crt", "CERT")
    write(tmp_path / "pki" / "me.key", "KEY")
    user = {
        "client-certificate": "pki/me.crt",
        "client-key": str(tmp_path / "pki/me.key"),
        "tokenFile": "pki/token",
    }
    found = load(tmp_path, a_kubeconfig(cluster={"certificate-authority": "pki/ca.crt"}, user=user))
    assert (found.ca_pem, found.client_cert_pem, found.client_key_pem) == (b"CA", b"CERT", b"KEY")
    assert found.token_file == tmp_path / "pki" / "token"


def test_several_files_are_merged_and_the_first_to_name_a_thing_wins(tmp_path: Path) -> None:
    one = write(tmp_path / "one", a_kubeconfig("lab", current=""))
    two = write(tmp_path / "two", a_kubeconfig("lab", user={"token": "other"}))
    three = write(tmp_path / "three", a_kubeconfig("farm"))
    env = {"KUBECONFIG": os.pathsep.join([str(one), str(tmp_path / "missing"), str(two), str(three)])}
    connection = load_connection(env=env)
    assert (connection.context, connection.token) == ("lab", "t")
    assert load_connection(env=env, context="farm").server == "https://farm.example:6443"


def test_our_own_variable_goes_before_kubectls(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one", a_kubeconfig("one")), write(tmp_path / "two", a_kubeconfig("two"))
    assert load_connection(env={"MOORAGE_KUBECONFIG": str(one), "KUBECONFIG": str(two)}).context == "one"


def test_the_file_in_the_home_folder_is_the_default(tmp_path: Path) -> None:
    write(tmp_path / ".kube" / "config", a_kubeconfig())
    assert load_connection(env={"HOME": str(tmp_path)}).context == "lab"


def test_inside_a_pod_its_service_account_is_used(tmp_path: Path) -> None:
    for name, text in (("namespace", "team\n"), ("ca.crt", "CA"), ("token", "T")):
        write(tmp_path / "sa" / name, text)
    env = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    connection = load_connection(env=env, service_account=tmp_path / "sa")
    assert connection == Connection(
        server="https://[fd00::1]:443",
        namespace="team",
        source="the pod's service account",
        ca_pem=b"CA",
        token_file=tmp_path / "sa" / "token",
    )


def test_a_pod_without_its_token_is_told_so(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(NotReady, match="service account cannot be read"):
        load_connection(env=env, service_account=tmp_path / "none")


def test_without_any_configuration_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=r"\.kube/config does not exist") as caught:
        load_connection(env={"HOME": str(tmp_path)})
    assert caught.value.hint is not None
    assert "moor up" in caught.value.hint


def broken(**changes: Any) -> dict[str, Any]:
    return a_kubeconfig() | changes


@pytest.mark.parametrize(
    ("document", "message"),
    [
        pytest.param("{", "is not valid YAML", id="not YAML"),
        pytest.param("just text", "holds a str, not a mapping", id="no mapping"),
        pytest.param(broken(**{"current-context": "gone"}), "has no context 'gone'", id="context missing"),
        pytest.param(broken(clusters=[]), "cluster 'lab' is not defined", id="cluster missing"),
        pytest.param(broken(users=[]), "user 'lab-user' is not defined", id="user missing"),
        pytest.param(broken(users=[{"user": {}}]), "an entry of users has no name", id="entry without name"),
        pytest.param(a_kubeconfig(cluster={"server": "lab:6443"}), "invalid server 'lab:6443'", id="address"),
        pytest.param(
            a_kubeconfig(cluster={"certificate-authority-data": "%%"}),
            "certificate-authority-data is not base64",
            id="base64",
        ),
        pytest.param(
            a_kubeconfig(cluster={"certificate-authority": "nope.crt"}), "nope.crt cannot be read", id="CA file"
        ),
        pytest.param(
            a_kubeconfig(user={"auth-provider": {"name": "gcp"}}),
            "auth-provider is not supported",
            id="old plugin",
        ),
        pytest.param(
            a_kubeconfig(user={"exec": {"apiVersion": "v0", "command": "x"}}),
            "exec apiVersion 'v0' is not supported",
            id="plugin version",
        ),
        pytest.param(
            a_kubeconfig(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}),
            "exec has no command",
            id="plugin without command",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, document: Any, message: str) -> None:
    with pytest.raises(UsageError, match="kubeconfig") as caught:
        load(tmp_path, document)
    assert message in caught.value.message
    assert str(tmp_path) in caught.value.message


def test_a_file_asked_for_by_name_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_connection(tmp_path / "nope", env={})


def test_secrets_do_not_show_when_a_connection_is_printed() -> None:
    shown = repr(Connection(server="https://x", token="SECRET", password="SECRET", client_key_pem=b"SECRET"))
    assert "SECRET" not in shown


# --- credentials


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("connection", "want"),
    [
        pytest.param(Connection(server="https://x", token="t"), "Bearer t", id="token"),
        pytest.param(
            Connection(server="https://x", username="ada", password="pw"),
            "Basic " + base64.b64encode(b"ada:pw").decode(),
            id="password",
        ),
        pytest.param(Connection(server="https://x"), None, id="none"),
    ],
)
async def test_who_we_are_is_said_in_a_header(connection: Connection, want: str | None, clock: FakeClock) -> None:
    assert await Credentials(connection, clock).authorization() == want


@pytest.mark.anyio
async def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path, clock: FakeClock) -> None:
    path = write(tmp_path / "token", "one\n")
    credentials = Credentials(Connection(server="https://x", token_file=path, token="ignored"), clock)
    assert await credentials.authorization() == "Bearer one"
    path.write_text("two")
    assert await credentials.authorization() == "Bearer one"
    clock.advance(61)
    assert await credentials.authorization() == "Bearer two"
    path.unlink()
    clock.advance(61)
    assert await credentials.authorization() == "Bearer two", "a file that is away for a moment costs nothing"


@pytest.mark.anyio
async def test_a_token_file_that_was_never_there_is_an_error(tmp_path: Path, clock: FakeClock) -> None:
    credentials = Credentials(Connection(server="https://x", token_file=tmp_path / "none"), clock)
    with pytest.raises(UsageError, match="token file .* cannot be read"):
        await credentials.authorization()


def a_plugin(tmp_path: Path, body: str) -> ExecPlugin:
    path = write(tmp_path / "plugin", f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return ExecPlugin(command=str(path), args=("get", "token"), env={"REGION": "eu"}, install_hint="get it")


@pytest.mark.anyio
async def test_a_plugin_is_run_and_its_answer_kept_until_shortly_before_it_expires(
    tmp_path: Path, clock: FakeClock
) -> None:
    expires = rfc3339(NOON + timedelta(minutes=10))
    body = (
        'n=$(cat "$0.count" 2>/dev/null || echo 0); n=$((n+1)); echo $n > "$0.count"\n'
        'test "$1 $2 $REGION" = "get token eu" || exit 9\n'
        'case "$KUBERNETES_EXEC_INFO" in *\'"interactive": false\'*) ;; *) exit 8;; esac\n'
        f'echo \'{{"kind":"ExecCredential","status":{{"token":"t\'$n\'","expirationTimestamp":"{expires}"}}}}\''
    )
    connection = Connection(server="https://x", exec_plugin=a_plugin(tmp_path, body))
    credentials = Credentials(connection, clock)
    assert await credentials.authorization() == "Bearer t1"
    assert await credentials.authorization() == "Bearer t1"
    clock.advance(timedelta(minutes=9, seconds=31))
    assert await credentials.authorization() == "Bearer t2"
    credentials.forget()
    assert await credentials.authorization() == "Bearer t3"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param("echo no login >&2; exit 3", "failed with exit code 3: no login", id="fails"),
        pytest.param("echo hello", "printed no ExecCredential", id="prints something else"),
    ],
)
async def test_a_plugin_that_fails_is_told(tmp_path: Path, body: str, message: str, clock: FakeClock) -> None:
    connection = Connection(server="https://x", source="f", context="c", exec_plugin=a_plugin(tmp_path, body))
    with pytest.raises(NotReady, match=message):
        await Credentials(connection, clock).authorization()


@pytest.mark.anyio
@pytest.mark.parametrize("colour", ["", "\\033[1;31m"])
async def test_after_a_logout_the_error_is_that_of_moor_token_alone(
    tmp_path: Path, clock: FakeClock, colour: str
) -> None:
    end = "\\033[0m" if colour else ""
    lines = f"{colour}error:{end} you are not logged in to https://h\\n{colour}hint:{end} log in: moor login\\n"
    body = f"printf '{lines}' >&2\nexit 1"
    plugin = replace(a_plugin(tmp_path, body), args=("token", "--server", "https://h"))
    connection = Connection(server="https://x", source="f", context="c", exec_plugin=plugin)
    with pytest.raises(NotReady) as caught:
        await Credentials(connection, clock).authorization()
    assert (caught.value.message, caught.value.hint) == (
        "you are not logged in to https://h",
        "log in: moor login",
    )


@pytest.mark.anyio
async def test_a_plugin_that_is_not_installed_is_told_with_its_hint(clock: FakeClock) -> None:
    plugin = ExecPlugin(command="/nowhere/plugin", install_hint="apt install plugin")
    with pytest.raises(UsageError, match="cannot be run") as caught:
        await Credentials(Connection(server="https://x", exec_plugin=plugin), clock).authorization()
    assert caught.value.hint == "apt install plugin"


@pytest.mark.parametrize(
    "connection",
    [Connection(server="https://x", ca_pem=b"no PEM"), Connection(server="https://x", ca_pem=b"\xff")],
)
def test_an_authority_that_is_none_is_refused(connection: Connection) -> None:
    with pytest.raises(MoorageError, match="certificate authority"):
        make_tls_context(connection)


def test_without_verification_no_name_is_checked() -> None:
    context = make_tls_context(Connection(server="https://x", insecure=True))
    assert context.verify_mode is ssl.CERT_NONE
    assert make_tls_context(Connection(server="https://x")).verify_mode is ssl.CERT_REQUIRED


@pytest.mark.anyio
async def test_a_client_certificate_that_is_none_is_refused(clock: FakeClock) -> None:
    connection = Connection(server="https://x", client_cert_pem=b"nope", client_key_pem=b"nope")
    with pytest.raises(UsageError, match="client certificate"):
        await Credentials(connection, clock).tls()


@pytest.mark.anyio
async def test_plain_http_needs_no_tls(clock: FakeClock) -> None:
    assert await Credentials(Connection(server="http://127.0.0.1:8001"), clock).tls() is None
