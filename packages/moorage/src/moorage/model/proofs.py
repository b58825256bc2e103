"""How a user without a token proves their name to the server, by the API server.

See docs/design/0014-server-from-outside.md.
"""

from __future__ import annotations

import re
from datetime import timedelta

from moorage.model.names import GROUP
from moorage_kube.resources import Resource

SIGNING_REQUESTS = Resource(
    "certificates.k8s.io", "v1", "certificatesigningrequests", "CertificateSigningRequest", namespaced=False
)
SIGNER = f"{GROUP}/login"  # requests for it are never signed
PROOF_NAME = "moorage-login-"  # of such a request; 32 random hex digits follow
PROOF_NAMES = re.compile(rf"{PROOF_NAME}[0-9a-f]{{32}}")
PROOF_ROLE = "moorage-login-proof"  # ClusterRole; may create such requests
FRESH = timedelta(minutes=5)  # so old may a request be; the clocks of API server and server differ by less
LIFETIME = timedelta(hours=8)  # of the token; a certificate holds for a year and cannot be revoked


def proof_text(name: str, audience: str) -> bytes:
    """The text to sign: the request, and the one server that the proof is for."""
    return f"moorage login\n{name}\n{audience}\n".encode()
