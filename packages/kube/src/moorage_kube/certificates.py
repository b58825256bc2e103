"""X.509 certificates for an API server: an authority, and the server certificates that it signs.

Keys use the curve P-256. Certificates are valid from an hour before `now`, for clocks that are behind.
`cryptography` takes 140 ms to import: import this module in the function that creates a certificate, not at the
top of a file.

https://www.rfc-editor.org/rfc/rfc5280
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

BACKDATED = timedelta(hours=1)
USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key as PKCS 8, not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def certificate_end(pem: bytes) -> datetime:
    """Return the expiry date of the first certificate in a PEM file. Raises ValueError."""
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def make_authority(name: str, *, now: datetime, lifetime: timedelta) -> Certificate:
    """Create an authority that signs server certificates but not other authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = (
        _builder(_common_name(name), _common_name(name), key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Certificate(certificate=builder.sign(key, hashes.SHA256()), key=key)


def make_server_certificate(
    authority: Certificate,
    name: str,
    *,
    dns_names: Sequence[str],
    addresses: Sequence[str] = (),
    now: datetime,
    lifetime: timedelta,
) -> Certificate:
    """Create a server certificate for these DNS names and IP addresses; `name` is for display only."""
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.DNSName(dns_name) for dns_name in dns_names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = (
        _builder(_common_name(name), authority.certificate.subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
    )
    return Certificate(certificate=builder.sign(authority.key, hashes.SHA256()), key=key)


def make_client_certificate(
    authority: Certificate, name: str, *, groups: Sequence[str] = (), now: datetime, lifetime: timedelta
) -> Certificate:
    """Create a client certificate.

    The API server reads the user from the common name, a group from each organization.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    organizations = [x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*organizations, x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = (
        _builder(subject, authority.certificate.subject, key, now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    )
    return Certificate(certificate=builder.sign(authority.key, hashes.SHA256()), key=key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in allowed for usage in USAGES})
