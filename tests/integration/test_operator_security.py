"""What the operator mounts and writes, in a real process; and how the operator gets in there."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority

from mailboat.config import load_settings
from mailboat.node import Node
from mailboat_operator.broker_api import BrokerApi, BrokerApiError, http_url
from mailboat_operator.cache import ObjectCache
from mailboat_operator.crds.name_server import parse_name_server
from mailboat_operator.crds.user import parse_user
from mailboat_operator.metrics import OperatorMetrics
from mailboat_operator.planner.snapshot import Manifest
from mailboat_operator.pod_access import PodAccess
from mailboat_operator.resources.security import SECRETS_FOLDER, name_server_security
from mailboat_operator.resources.users import spelled, user_file

TOKEN = "a-token-of-at-least-16"
NAME = "ns-0.ns-nodes.shop.svc"
SPEC: dict[str, Any] = {
    "tls": {"secretRef": {"name": "tls"}},
    "authentication": {"superUserSecretRef": {"name": "admin"}},
    "authorization": {},
    "http": {"tokenSecretRef": {"name": "http"}},
}


def metadata(name: str) -> dict[str, str]:
    """Return what tells an object from others."""
    return {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": "1"}


def put_user(folder: Path, generation: str, files: dict[str, str]) -> None:
    """Mount users as a kubelet does: a folder of one generation behind a link that is swapped."""
    made = folder / generation
    made.mkdir(parents=True)
    for name, text in files.items():
        (made / name).write_text(text, encoding="ascii")
    (folder / "new").symlink_to(generation)
    os.replace(folder / "new", folder / "..data")


async def test_a_locked_process_takes_what_is_mounted(tmp_path: Path) -> None:
    """By TLS and token it says which state of a user counts; a user who leaves the mount is gone;
    without the token, or with a certificate of another pod, nobody is asked."""
    authority = Authority(tmp_path / "certificates")
    pair = authority.issue(NAME)
    mounted = tmp_path / "mounted"
    (mounted / "tls").mkdir(parents=True)
    (mounted / "http").mkdir()
    for key, source in (
        ("tls.crt", pair.certificate),
        ("tls.key", pair.key),
        ("ca.crt", authority.trust),
    ):
        (mounted / "tls" / key).write_bytes(source.read_bytes())
    (mounted / "http" / "token").write_text(f"{TOKEN}\n", encoding="ascii")
    user = parse_user({"metadata": metadata("till"), "spec": {"brokerRef": "orders"}})
    file = {**user_file(user, "secret-key", None), "revision": "uid-till.7"}
    put_user(mounted / "users", "..1", {"orders.till.json": spelled(file), "till.rotated": ""})

    security = name_server_security(parse_name_server({"metadata": metadata("ns"), "spec": SPEC}))
    settings = {
        key: value.replace(SECRETS_FOLDER, str(mounted)) for key, value in security.settings.items()
    }
    environ = {
        item["name"]: item["value"]
        .replace("$(INNER_USERNAME)", "admin")
        .replace("$(INNER_PASSWORD)", "admin-secret")
        for item in security.env
        if "value" in item
    }
    ports = {"httpPort": "0", "listenPort": "0", "bindAddress": "127.0.0.1"}
    node = Node(load_settings("namesrv", environ=environ, overrides=settings | ports))
    await node.start()
    secrets = {"tls": {"ca.crt": authority.trust.read_bytes()}, "http": {"token": TOKEN.encode()}}

    async def get(_: Any, __: str, name: str) -> Manifest:
        data = secrets[name]
        return {"data": {key: base64.b64encode(text).decode() for key, text in data.items()}}

    cache = ObjectCache()
    api = BrokerApi(OperatorMetrics(), access=PodAccess(get, cache).of)
    stranger = BrokerApi(OperatorMetrics())
    try:
        await node.wait_http()
        port = int(node.addresses()["https"].rpartition(":")[2])
        pod = _pod(port)
        cache.update(pod)
        url = http_url(pod)
        assert url is not None
        assert url.startswith("https://")
        assert await api.user_revision(url, "till") == "uid-till.7"
        assert await api.user_revision(url, "admin") == ""
        assert await api.user_revision(url, "nobody") is None
        with pytest.raises(BrokerApiError):
            await stranger.user_revision(url, "till")

        put_user(mounted / "users", "..2", {})
        async with asyncio.timeout(30):
            while await api.user_revision(url, "till") is not None:
                pass
        other = _pod(port)
        other["metadata"] |= {"resourceVersion": "2"}
        other["spec"]["hostname"] = "ns-1"
        cache.update(other)
        fresh = BrokerApi(OperatorMetrics(), access=PodAccess(get, cache).of)
        with pytest.raises(BrokerApiError, match="certificate"):
            await fresh.user_revision(url, "till")
        await fresh.close()
    finally:
        await api.close()
        await stranger.close()
        await node.shutdown()


def _pod(port: int) -> Manifest:
    return {
        "kind": "Pod",
        "metadata": metadata("ns-0"),
        "spec": {
            "hostname": "ns-0",
            "subdomain": "ns-nodes",
            "volumes": [
                {"name": "tls", "secret": {"secretName": "tls"}},
                {"name": "http-token", "secret": {"secretName": "http"}},
            ],
            "containers": [
                {
                    "ports": [{"name": "http", "containerPort": port}],
                    "readinessProbe": {"httpGet": {"path": "/readyz", "scheme": "HTTPS"}},
                }
            ],
        },
        "status": {"podIP": "127.0.0.1"},
    }
