"""A Broker that has cert-manager make its certificate; the test is cert-manager."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
import trustme
from e2e_kube import Namespace, kubectl, wait_until
from e2e_resources import BROKER, READY_S, broker_spec, start_name_server

pytestmark = pytest.mark.timeout(600)

_CRD: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "certificates.cert-manager.io"},
    "spec": {
        "group": "cert-manager.io",
        "scope": "Namespaced",
        "names": {"kind": "Certificate", "plural": "certificates", "singular": "certificate"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@pytest.fixture
def no_cert_manager() -> Iterator[None]:
    """See that the cluster is without the kind of cert-manager, and leave it so."""
    kind = ("customresourcedefinition", _CRD["metadata"]["name"], "--ignore-not-found")
    if kubectl("get", *kind).strip():
        pytest.skip("this cluster has cert-manager, whose Certificates the test would delete")
    yield
    kubectl("delete", *kind)


def _secret(name: str, names: list[str]) -> dict[str, Any]:
    authority = trustme.CA()
    pair = authority.issue_cert(*names)
    texts = {
        "tls.crt": b"".join(blob.bytes() for blob in pair.cert_chain_pems),
        "tls.key": pair.private_key_pem.bytes(),
        "ca.crt": authority.cert_pem.bytes(),
    }
    data = {key: text.decode() for key, text in texts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "kubernetes.io/tls",
        "stringData": data,
    }


@pytest.mark.alone  # The kind comes to the whole cluster, and goes.
def test_cert_manager_comes_and_makes_the_certificate(
    no_cert_manager: None, namespace: Namespace
) -> None:
    """Until it is there the Broker says so; then its pods start with what it has made."""
    start_name_server(namespace)
    tls = {"secretRef": {"name": "orders-tls"}, "issuerRef": {"name": "ca"}, "mode": "Permissive"}
    namespace.create("Broker", BROKER, broker_spec(tls=tls))
    namespace.wait_condition(
        "broker",
        BROKER,
        "CertificateExpiring",
        status="True",
        reason="CertManagerMissing",
        timeout_s=READY_S,
    )
    kubectl("apply", "--filename=-", text=json.dumps(_CRD))
    kubectl("wait", "--for=condition=Established", f"crd/{_CRD['metadata']['name']}")
    name = f"mailboat-broker-{BROKER}"
    certificate = wait_until(
        "the Certificate", lambda: namespace.find("certificates.cert-manager.io", name), 90
    )
    assert certificate["spec"]["secretName"] == "orders-tls"
    secret = _secret("orders-tls", certificate["spec"]["dnsNames"])
    secret["metadata"]["namespace"] = namespace.name
    namespace.apply(secret)
    namespace.wait_ready("broker", BROKER, READY_S)
    namespace.wait_condition(
        "broker",
        BROKER,
        "CertificateExpiring",
        status="False",
        reason="CertificateValid",
        timeout_s=READY_S,
    )
