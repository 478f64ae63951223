"""The way of a pod to the API server: its own token, mounted only where it asks for something."""

from typing import Any, Final

KUBE_API_FOLDER: Final = "/var/run/secrets/mailboat/kube-api"
"""Where brokers and name servers look by default."""

_TOKEN_S: Final = 3600


def kube_api_volume() -> dict[str, Any]:
    """Return a volume with the pod's token, the authority of the API server, and the namespace."""
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_S}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    return {"name": "kube-api", "projected": {"sources": sources}}
