"""Schemas of the pieces of a pod that are handed to Kubernetes as they are written.

Their names are those of Kubernetes' own pod; unlike there, each is bounded, because the API server
wants to know how long checking takes. What is deep and seldom used keeps unknown fields: Kubernetes
checks it when the pod is made.
"""

from typing import Any, Final

_NAME: Final = 253
_KEY: Final = 317


def _text(description: str, maximum: int, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, "maxLength": maximum, **more}


def _free(description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "x-kubernetes-preserve-unknown-fields": True,
    }


def _amounts(description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "maxProperties": 16,
        "additionalProperties": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
            "maxLength": 32,
        },
    }


def _selector(description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": {
            "matchLabels": {
                "type": "object",
                "description": "Labels that must be so.",
                "maxProperties": 32,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "description": "What else must be so of the labels.",
                "maxItems": 32,
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": _text("Label that is compared.", _KEY),
                        "operator": {
                            "type": "string",
                            "description": "How it is compared with the values.",
                            "enum": ["In", "NotIn", "Exists", "DoesNotExist"],
                        },
                        "values": {
                            "type": "array",
                            "x-kubernetes-list-type": "atomic",
                            "description": "Values of In and NotIn.",
                            "maxItems": 64,
                            "items": {"type": "string", "maxLength": 63},
                        },
                    },
                },
            },
        },
    }


RESOURCES: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "requests": _amounts("What is reserved for the container, such as cpu: 500m, memory: 1Gi."),
        "limits": _amounts("The most that the container gets."),
    },
}

ENV: Final[dict[str, Any]] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": _text("Name of the variable.", _NAME, minLength=1),
            "value": _text("Value of the variable. Default: empty.", 32_768),
            "valueFrom": _free("Where the value comes from: a Secret, a ConfigMap or the pod."),
        },
    },
}

TOLERATIONS: Final[dict[str, Any]] = {
    "type": "array",
    "x-kubernetes-list-type": "atomic",
    "items": {
        "type": "object",
        "properties": {
            "key": _text("Key of the taint. Default: every key.", _KEY),
            "operator": {
                "type": "string",
                "description": "How key and value compare with the taint's. Default: Equal.",
                "enum": ["Exists", "Equal"],
            },
            "value": _text("Value of the taint.", 63),
            "effect": {
                "type": "string",
                "description": "Effect of the taint. Default: every effect.",
                "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
            },
            "tolerationSeconds": {
                "type": "integer",
                "format": "int64",
                "description": "How long a NoExecute taint is put up with. Default: for ever.",
            },
        },
    },
}

AFFINITY: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "nodeAffinity": _free("Which nodes the pods want."),
        "podAffinity": _free("Near which pods they want to be."),
        "podAntiAffinity": _free("Which pods they avoid."),
    },
}

TOPOLOGY_SPREAD_CONSTRAINTS: Final[dict[str, Any]] = {
    "type": "array",
    "x-kubernetes-list-type": "atomic",
    "items": {
        "type": "object",
        "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {
            "maxSkew": {
                "type": "integer",
                "format": "int32",
                "minimum": 1,
                "description": "Largest difference of pods between two places.",
            },
            "topologyKey": _text("Label of the nodes that says which place they are in.", _KEY),
            "whenUnsatisfiable": {
                "type": "string",
                "enum": ["DoNotSchedule", "ScheduleAnyway"],
                "description": "Whether a pod waits when it cannot be met.",
            },
            "labelSelector": _free("Which pods are counted."),
        },
    },
}

IMAGE_PULL_SECRETS: Final[dict[str, Any]] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["name"],
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": _text("Name of the Secret.", _NAME, minLength=1)},
    },
}

NETWORK_POLICY_PEERS: Final[dict[str, Any]] = {
    "type": "array",
    "x-kubernetes-list-type": "atomic",
    "items": {
        "type": "object",
        "minProperties": 1,
        "properties": {
            "podSelector": _selector("Labels of the pods. Default, with namespaceSelector: all."),
            "namespaceSelector": _selector("Labels of the namespaces. Default: this one."),
            "ipBlock": {
                "type": "object",
                "description": "Addresses, instead of pods.",
                "required": ["cidr"],
                "properties": {
                    "cidr": _text("Such as 10.0.0.0/8.", 64),
                    "except": {
                        "type": "array",
                        "x-kubernetes-list-type": "atomic",
                        "description": "Parts of it that are not meant.",
                        "maxItems": 64,
                        "items": {"type": "string", "maxLength": 64},
                    },
                },
            },
        },
    },
}
"""NetworkPolicyPeers of Kubernetes."""
