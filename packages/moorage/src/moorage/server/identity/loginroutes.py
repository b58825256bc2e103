"""/api/v1/login: routes by which programs log in and out, and read their sessions."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec

from moorage.api.budgets import BudgetRow
from moorage.api.errors import ErrorCode
from moorage.api.logins import (
    ByCode,
    ByPassword,
    ByProof,
    ClusterAddress,
    ClusterToken,
    LoggedIn,
    LoginSession,
    LoginSessionList,
    PasswordChange,
    Person,
    PersonTenant,
    Proved,
    TokenRequest,
)
from moorage.model.people import GROUP_PREFIX, SOURCE_ANNOTATION, groups_in
from moorage.model.tenant import memberships
from moorage.server.budgets.use import budgets_for
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import User
from moorage.server.identity.proofs import expires
from moorage.server.identity.sessions import Session
from moorage.server.problems import Problem
from moorage_kube.errors import ApiError
from moorage_kube.meta import annotations_of
from moorage_kube.texts import visible

log = logging.getLogger(__name__)

HERE = "/api/v1/login"


async def log_in(call: Call[ByPassword, None]) -> LoggedIn:
    """Log in with a name and a password. 429 after too many wrong passwords."""
    state = call.request.state
    state.audit_person = visible(call.body.username)
    token, session = await call.context.logins.by_password(
        call.body.username, call.body.password, address=state.address, client=call.body.client or "program"
    )
    return logged_in(token, session)


async def exchange(call: Call[ByCode, None]) -> LoggedIn:
    """Log in with a code from /login/cli and its PKCE verifier."""
    state = call.request.state
    token, session = await call.context.logins.redeem(
        call.body.code, call.body.verifier, address=state.address, client=call.body.client or "program"
    )
    state.audit_person = session.person
    return logged_in(token, session)


async def prove(call: Call[ByProof, None]) -> Proved:
    """Get a token for a user whom the Kubernetes API knows by a client certificate."""
    body = call.body
    token, identity = await call.context.logins.proofs.take(body.name, body.audience, body.signature)
    call.request.state.audit_person = identity.name
    return Proved(name=identity.name, token=token, expires=expires(identity))


async def who(call: Call[None, None]) -> Person:
    """Show the user who asks: name, groups and the end of the session."""
    user: User | None = call.user
    if user is None:
        raise Problem(401, ErrorCode.UNAUTHORIZED, "you are not logged in", "moor login URL")
    session = user.session
    if session is None:
        groups = tuple(group.removeprefix(GROUP_PREFIX) for group in user.groups)
        return Person(
            name=user.name,
            account=user.account,
            groups=user.groups,
            tenants=await _tenants(call.context, user.name, groups),
            budgets=await _budgets(call.context, user),
        )
    account = await call.context.logins.account_of(session) or {"metadata": {}}
    return Person(
        name=session.person,
        account=user.account,
        groups=groups_in(account),
        source=annotations_of(account).get(SOURCE_ANNOTATION, ""),
        session=session.id,
        client=session.client,
        address=session.address,
        created=_seconds(session.created),
        used=_seconds(session.used),
        expires=_seconds(session.expires),
        tenants=await _tenants(call.context, session.person, groups_in(account)),
        budgets=await _budgets(call.context, user),
    )


async def log_out(call: Call[None, None]) -> None:
    """Log out: end the session and revoke all its tokens."""
    await call.context.logins.end(session_of(call.user), "logged out")


async def cluster_token(call: Call[TokenRequest, None]) -> ClusterToken:
    """Create a token for the Kubernetes API. It ends with the session."""
    call.audit("take", "a token for the cluster")
    token = await call.context.logins.cluster_token(session_of(call.user), call.body.expiration_seconds)
    return ClusterToken(token=token.token, expires=_seconds(token.expires))


async def change_password(call: Call[PasswordChange, None]) -> None:
    """Change your password. Your other sessions end."""
    await call.context.logins.change_password(session_of(call.user), call.body.old, call.body.new)


async def cluster_address(call: Call[None, None]) -> ClusterAddress:
    """Show the address and the certificate of the Kubernetes API, for a kubeconfig."""
    return msgspec.convert(dict(call.context.logins.addresses.cluster()), ClusterAddress)


async def list_sessions(call: Call[None, None]) -> LoginSessionList:
    """List your sessions: device, address and last use."""
    mine = session_of(call.user)
    sessions = await call.context.logins.sessions(mine.person)
    return LoginSessionList(
        sessions=tuple(
            LoginSession(
                name=session.person,
                session=session.id,
                client=session.client,
                address=session.address,
                created=_seconds(session.created),
                used=_seconds(session.used),
                expires=_seconds(session.expires),
                current=session.id == mine.id,
            )
            for session in sessions
        )
    )


async def end_session(call: Call[None, None]) -> None:
    """End one of your sessions."""
    logins, chosen = call.context.logins, call.path["session"]
    for session in await logins.sessions(session_of(call.user).person):
        if session.id == chosen:
            await logins.end(session, "ended by its person")
            return
    raise Problem(404, ErrorCode.NOT_FOUND, f"you have no session {chosen}", None, "session")


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=HERE, handler=who, answer=Person),
    Endpoint(method="POST", path=HERE, handler=log_in, body=ByPassword, answer=LoggedIn, status=201),
    Endpoint(method="DELETE", path=HERE, handler=log_out),
    Endpoint(method="POST", path=f"{HERE}/exchange", handler=exchange, body=ByCode, answer=LoggedIn, status=201),
    Endpoint(method="POST", path=f"{HERE}/proof", handler=prove, body=ByProof, answer=Proved, status=201),
    Endpoint(
        method="POST",
        path=f"{HERE}/token",
        handler=cluster_token,
        body=TokenRequest,
        answer=ClusterToken,
        status=201,
    ),
    Endpoint(method="POST", path=f"{HERE}/password", handler=change_password, body=PasswordChange),
    Endpoint(method="GET", path=f"{HERE}/cluster", handler=cluster_address, answer=ClusterAddress),
    Endpoint(method="GET", path=f"{HERE}/sessions", handler=list_sessions, answer=LoginSessionList),
    Endpoint(method="DELETE", path=f"{HERE}/sessions/{{session}}", handler=end_session),
)


async def _tenants(context: Context, person: str, groups: Collection[str]) -> tuple[PersonTenant, ...]:
    return tuple(
        PersonTenant(name=place.tenant, namespace=place.namespace, role=place.role, admins=place.admins)
        for place in memberships(person, groups, await context.tenants.all(anew=True))
    )


async def _budgets(context: Context, user: User) -> tuple[BudgetRow, ...]:
    """Use of the user's budgets; empty if they cannot be read, since the login does not depend on them."""
    try:
        return (await budgets_for(context, user, own=True)).budgets
    except ApiError as error:
        log.warning("budgets cannot be read", extra={"error": error.message})
        return ()


def session_of(user: User | None) -> Session:
    """The session of a request. Raises Problem 403 if the user has no session."""
    if user is None or user.session is None:
        raise Problem(
            403, ErrorCode.NO_SESSION, "this needs a session; another token does not do", "moor login URL"
        )
    return user.session


def logged_in(token: str, session: Session) -> LoggedIn:
    return LoggedIn(
        name=session.person,
        session=session.id,
        token=token,
        client=session.client,
        address=session.address,
        created=_seconds(session.created),
        used=_seconds(session.used),
        expires=_seconds(session.expires),
    )


def _seconds(at: datetime) -> datetime:
    """A time in whole seconds, like `metav1.Time`."""
    return at.replace(microsecond=0)
