"""A ServiceAccount comes in over HTTP by its own token, as the User that it stands for."""

from __future__ import annotations

from typing import Any, Final

import pytest
from e2e_kube import Namespace, kubectl, wait_until
from e2e_resources import BROKER, READY_S, broker_spec, start_name_server

pytestmark = pytest.mark.timeout(600)

_POD: Final = f"{BROKER}-g0-0"
_KUBELET_S: Final = 240.0
_ASK: Final = """
import sys, urllib.error, urllib.request
request = urllib.request.Request("http://127.0.0.1:8080/api/v1/topics")
request.add_header("Authorization", "Bearer " + sys.argv[1])
try:
    print(urllib.request.urlopen(request).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def _secret(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def _status(namespace: Namespace, token: str) -> int:
    """Ask the broker for its topics by a token, and return the status."""
    return int(namespace.kubectl("exec", _POD, "--", "python", "-c", _ASK, token))


def _token(namespace: Namespace, account: str, *more: str) -> str:
    return namespace.kubectl("create", "token", account, *more).strip()


def test_a_service_account_is_the_user_of_its_name(namespace: Namespace) -> None:
    """With a token that was made for the broker; no other account, and no other token of it."""
    secrets = [
        _secret("orders-admin", {"username": "admin", "password": "planted-0123456789"}),
        _secret("orders-http", {"token": "planted-token-0123456789"}),
    ]
    for secret in secrets:
        secret["metadata"]["namespace"] = namespace.name
    namespace.apply(*secrets)
    for account in ("dashboard", "other"):
        namespace.kubectl("create", "serviceaccount", account)
    binding = f"reviews-{namespace.name}"
    start_name_server(namespace)
    spec = broker_spec(
        authentication={"superUserSecretRef": {"name": "orders-admin"}},
        authorization={"enabled": True},
        http={"tokenSecretRef": {"name": "orders-http"}, "tokenReview": {}},
    )
    namespace.create("Broker", BROKER, spec)
    name = f"system.serviceaccount.{namespace.name}.dashboard"
    acls = [{"resource": {"type": "Topic", "pattern": "Any"}, "actions": ["List"]}]
    namespace.create(
        "User",
        "dashboard",
        {"brokerRef": BROKER, "acls": acls, "authentication": {"accessKey": name}},
    )
    namespace.wait_ready("broker", BROKER, READY_S)
    namespace.wait_ready("user", "dashboard", _KUBELET_S)
    made_for = ("--audience", "mailboat")
    # Without the right to ask the pods know nobody.
    assert _status(namespace, _token(namespace, "dashboard", *made_for)) == 503
    kubectl(
        "create",
        "clusterrolebinding",
        binding,
        "--clusterrole=system:auth-delegator",
        f"--serviceaccount={namespace.name}:{BROKER}",
    )
    try:
        token = _token(namespace, "dashboard", *made_for)
        wait_until("the account to be let in", lambda: _status(namespace, token) == 200, 60)
        assert _status(namespace, _token(namespace, "other", *made_for)) == 401
        assert _status(namespace, _token(namespace, "dashboard")) == 401
        assert _status(namespace, token[:-4] + "AAAA") == 401
    finally:
        kubectl("delete", "clusterrolebinding", binding)
