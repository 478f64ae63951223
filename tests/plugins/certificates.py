"""Certificates for tests, each authority and each key made anew."""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme


class Pair(NamedTuple):
    """Files of one certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into a folder, where `trust` is its own one."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Make the key and the certificate of the authority."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.trust = folder / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.trust)

    def issue(
        self,
        *names: str,
        file: str = "server",
        valid_from_days: float = -1,
        valid_to_days: float = 30,
        common_name: str | None = None,
    ) -> Pair:
        """Write a certificate for hosts or addresses; days count from now."""
        now = datetime.now(UTC)
        issued = self._ca.issue_cert(
            *names,
            common_name=common_name,
            not_before=now + timedelta(days=valid_from_days),
            not_after=now + timedelta(days=valid_to_days),
        )
        pair = Pair(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair

    def issue_version_1(self, name: str, *, file: str) -> Pair:
        """Write a certificate as RocketMQ's documentation tells: version 1, no names but CN."""
        pair = Pair(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        request, ca_key = self._folder / f"{file}.csr", self._folder / f"{file}-ca.key"
        self._ca.private_key_pem.write_to_path(ca_key)
        for words in (
            f"req -newkey rsa:2048 -nodes -keyout {pair.key} -out {request} -subj /CN={name}",
            f"x509 -req -days 10 -in {request} -CA {self.trust} -CAkey {ca_key} -set_serial 7"
            f" -out {pair.certificate}",
        ):
            subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
        return pair


def encrypt_key(pair: Pair, password: str) -> Pair:
    """Write the key of a pair anew, encrypted."""
    return _pkcs8(pair, f"-passout pass:{password}")


def for_java(pair: Pair) -> Pair:
    """Write the key of a pair anew as Java reads it: PKCS#8."""
    return _pkcs8(pair, "-nocrypt")


def _pkcs8(pair: Pair, how: str) -> Pair:
    key = pair.key.with_suffix(".pkcs8.key")
    words = f"pkcs8 -topk8 -in {pair.key} -out {key} {how}"
    subprocess.run(["openssl", *words.split()], check=True, capture_output=True)
    return Pair(pair.certificate, key)
