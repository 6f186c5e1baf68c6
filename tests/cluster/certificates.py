"""A certificate authority and what the cluster's parts show each other; files in one folder, gone with it."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
LIFETIME = datetime.timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates into its folder."""

    folder: Path
    certificate: x509.Certificate
    key: Key

    @classmethod
    def made_in(cls, folder: Path) -> Authority:
        """A new one: ca.crt, and sa.key for service accounts."""
        folder.mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("exegpt-tests")
        certificate = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        made = cls(folder, certificate, key)
        _write(folder / "ca.crt", certificate)
        _write_key(folder / "ca.key", key)
        account = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / "sa.key", account)
        (folder / "sa.pub").write_bytes(
            account.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
        return made

    def issue(
        self, file: str, user: str, *, groups: Sequence[str] = (), names: Sequence[str] = ()
    ) -> None:
        """`file`.crt and `file`.key for a user of these groups, or a server of these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = _builder(_name(user, groups), self.certificate.subject, key).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general(each) for each in names]), critical=False
            )
        _write(self.folder / f"{file}.crt", builder.sign(self.key, hashes.SHA256()))
        _write_key(self.folder / f"{file}.key", key)

    def kubeconfig(self, file: str, server: str) -> Path:
        """A kubeconfig of what was issued as `file`."""
        path = self.folder / f"{file}.kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "c",
                    "cluster": {
                        "server": server,
                        "certificate-authority": str(self.folder / "ca.crt"),
                    },
                }
            ],
            "users": [
                {
                    "name": "u",
                    "user": {
                        "client-certificate": str(self.folder / f"{file}.crt"),
                        "client-key": str(self.folder / f"{file}.key"),
                    },
                }
            ],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(yaml.safe_dump(config))
        return path


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _write(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _write_key(path: Path, key: Key) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
