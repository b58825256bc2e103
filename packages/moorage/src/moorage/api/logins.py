"""API types of logins and sessions: `/api/v1/login`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.budgets import BudgetRow
from moorage.api.fields import Answer, Request, Text, Time, about

TOKEN_SECONDS = 900  # lifetime of a token for the cluster by default


class ByPassword(Request):
    """A login with name and password."""

    username: Text
    password: Text
    client: Annotated[Text, about("Name of the program that logs in; shown in the list of sessions.")] = ""


class ByCode(Request):
    """A login with a code from /login/cli and its PKCE verifier."""

    code: Annotated[Text, about("One-time code that the page /login/cli gave.")]
    verifier: Annotated[Text, about("PKCE code verifier (RFC 7636) of the login that was started.")]
    client: Annotated[Text, about("Name of the program that logs in; shown in the list of sessions.")] = ""


class ByProof(Request):
    """A proof by a CertificateSigningRequest that the person made; see docs/design/0014-server-from-outside.md."""

    name: Annotated[Text, about("Name of the CertificateSigningRequest: moorage-login- and 32 hex digits.")]
    audience: Annotated[Text, about("URL of the server that the proof is for.")]
    signature: Annotated[
        Text,
        about("ECDSA signature (P-256, SHA-256; base64) of `moorage login`, name and audience, a line each."),
    ]


class Proved(Answer, frozen=True):
    """A token for the user that the API server named."""

    name: Annotated[str, about("Name of the user, as the API server says it.")]
    token: Annotated[str, about("Bearer token; it is shown only here.")]
    expires: Annotated[Time, about("When the token expires.")]


class TokenRequest(Request):
    """A request for a token for the Kubernetes API."""

    expiration_seconds: Annotated[
        int,
        msgspec.Meta(ge=1, le=366 * 24 * 3600),
        about("Lifetime of the token in seconds; the server keeps it between 600 and 604800."),
    ] = TOKEN_SECONDS


class PasswordChange(Request):
    """A new password for a local account."""

    old: Annotated[Text, about("Present password.")]
    new: Annotated[Text, about("New password; other sessions end.")]


class LoginSession(Answer, frozen=True):
    """A person's session."""

    name: Annotated[str, about("Name of the person.")]
    session: Annotated[str, about("Id of the session.")]
    created: Annotated[Time, about("When the person logged in.")]
    used: Annotated[Time, about("When the session was last used.")]
    expires: Annotated[Time, about("When the session ends, at the latest; unused, it ends after 7 days.")]
    client: Annotated[str, about("Program of the login: a browser, or the command line and its machine.")] = ""
    address: Annotated[str, about("IP address that the login came from.")] = ""
    current: Annotated[bool, about("Whether the request came with this session.")] = False


class LoginSessionList(Answer, frozen=True):
    sessions: tuple[LoginSession, ...] = ()


class LoggedIn(Answer, frozen=True):
    """A new session."""

    name: Annotated[str, about("Name of the person.")]
    session: Annotated[str, about("Id of the session.")]
    token: Annotated[str, about("Bearer token of the session; it is shown only here.")]
    created: Annotated[Time, about("When the person logged in.")]
    used: Annotated[Time, about("When the session was last used.")]
    expires: Annotated[Time, about("When the session ends, at the latest; unused, it ends after 7 days.")]
    client: Annotated[str, about("Program of the login: a browser, or the command line and its machine.")] = ""
    address: Annotated[str, about("IP address that the login came from.")] = ""


class PersonTenant(Answer, frozen=True, omit_defaults=True):
    """A tenant to which the user belongs."""

    name: Annotated[str, about("Name of the tenant.")]
    namespace: Annotated[str, about("Its namespace.")]
    role: Annotated[str, about("Highest role of the person in it: admin, member or viewer.")]
    admins: Annotated[tuple[str, ...], about("Users whom the tenant names as its administrators.")] = ()


class Person(Answer, frozen=True, omit_defaults=True):
    """The caller. Without a session, the fields `session` to `expires` are left out."""

    name: Annotated[str, about("Name of the person.")]
    account: Annotated[str, about("ServiceAccount that the person acts as; empty: none.")] = ""
    groups: Annotated[tuple[str, ...], about("Groups of the person.")] = ()
    source: Annotated[str, about("Where the person logs in: oidc (the identity provider) or local.")] = ""
    session: Annotated[str, about("Id of the session; left out: the request came without a session.")] = ""
    client: Annotated[str, about("Program of the login: a browser, or the command line and its machine.")] = ""
    address: Annotated[str, about("IP address that the login came from.")] = ""
    created: Annotated[Time | None, about("When the person logged in.")] = None
    used: Annotated[Time | None, about("When the session was last used.")] = None
    expires: Annotated[
        Time | None, about("When the session ends, at the latest; unused, it ends after 7 days.")
    ] = None
    tenants: Annotated[
        tuple[PersonTenant, ...], about("Tenants that name the person, or a group of the person, by name.")
    ] = ()
    budgets: Annotated[
        tuple[BudgetRow, ...], about("Use of each budget that applies to the person or those tenants.")
    ] = ()


class ClusterAddress(Answer, frozen=True, omit_defaults=True):
    """The address of the Kubernetes API for a kubeconfig."""

    server: Annotated[str, about("URL of the Kubernetes API; left out: not known.")] = ""
    name: Annotated[str, about("Name of the cluster in the kubeconfig.")] = ""
    ca_data: Annotated[
        str, about("Certificate of its authority, PEM in base64; left out: the system's authorities.")
    ] = ""
    insecure: Annotated[bool, about("Whether clients skip the check of the certificate.")] = False
    internal: Annotated[bool, about("Whether only pods reach this URL, because kubernetesUrl is not set.")] = False


class ClusterToken(Answer, frozen=True):
    """A token for the Kubernetes API."""

    token: Annotated[str, about("Bearer token for the Kubernetes API; it is shown only here.")]
    expires: Annotated[Time, about("When the token expires; it ends with the session too.")]
