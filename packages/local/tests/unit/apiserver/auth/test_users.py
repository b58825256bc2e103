"""Whom a client certificate names."""

from __future__ import annotations

import pytest

from moorage_local.apiserver.auth.users import User, certificate_user


def subject(*parts: tuple[str, str]) -> dict[str, object]:
    """As `ssl.SSLSocket.getpeercert` gives it."""
    return {"subject": tuple((part,) for part in parts)}


@pytest.mark.parametrize(
    ("certificate", "want"),
    [
        pytest.param(
            subject(("organizationName", "system:masters"), ("organizationName", "ops"), ("commonName", "root")),
            User(name="root", groups=("system:masters", "ops", "system:authenticated")),
            id="each organization is a group",
        ),
        pytest.param(
            subject(("commonName", "ada")), User(name="ada", groups=("system:authenticated",)), id="no group"
        ),
        pytest.param(subject(("organizationName", "system:masters")), None, id="a group without a name"),
        pytest.param({}, None, id="nothing"),
    ],
)
def test_whom_a_client_certificate_names(certificate: dict[str, object], want: User | None) -> None:
    assert certificate_user(certificate) == want
