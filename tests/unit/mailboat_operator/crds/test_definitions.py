"""The CustomResourceDefinitions as a whole."""

import kubernetes_validate
import pytest

from mailboat_operator.crds.definitions import custom_resource_definitions

OLDEST_AND_NEWEST = ("1.29", "1.37")


@pytest.fixture
def definitions():
    """The definitions by kind."""
    return {item["spec"]["names"]["kind"]: item for item in custom_resource_definitions()}


@pytest.mark.parametrize("version", OLDEST_AND_NEWEST)
def test_definitions_are_valid_kubernetes(definitions, version):
    """The oldest and the newest Kubernetes that is supported know every field of a definition."""
    for definition in definitions.values():
        kubernetes_validate.validate(definition, version, strict=True)


def test_names(definitions):
    """Kinds are found by plural, short name and category."""
    names = {kind: item["spec"]["names"] for kind, item in definitions.items()}
    assert {kind: item["plural"] for kind, item in names.items()} == {
        "Broker": "brokers",
        "NameServer": "nameservers",
        "Topic": "topics",
        "User": "users",
    }
    assert {kind: item["shortNames"] for kind, item in names.items()} == {
        "Broker": ["brk"],
        "NameServer": ["mqns"],
        "Topic": ["mqt"],
        "User": ["mqu"],
    }
    assert all(item["categories"] == ["messaging"] for item in names.values())
    assert all(
        item["metadata"]["name"] == f"{item['spec']['names']['plural']}.mailboat.dev"
        and item["spec"]["scope"] == "Namespaced"
        for item in definitions.values()
    )


def test_columns(definitions):
    """`kubectl get broker` shows what one wants to know first."""
    (version,) = definitions["Broker"]["spec"]["versions"]
    shown = [
        column["name"].upper()
        for column in version["additionalPrinterColumns"]
        if "priority" not in column
    ]
    assert shown == ["READY", "GROUPS", "VERSION", "DISK", "RETENTION", "AGE"]


def test_columns_and_scale_read_fields_that_exist(definitions, schemas):
    """No column stays empty, and no scale is lost, for a wrong path."""
    for kind, definition in definitions.items():
        (version,) = definition["spec"]["versions"]
        scale = version["subresources"].get("scale", {})
        paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
        for path in [*paths, *scale.values()]:
            first, *rest = path.removeprefix(".").split("[")[0].split(".")
            node = schemas[kind]["properties"][first]
            for part in rest if first != "metadata" else ():
                node = node["properties"][part]


def test_scale(definitions):
    """`kubectl scale` sets the groups of a Broker and the replicas of a NameServer."""
    scales = {
        kind: item["spec"]["versions"][0]["subresources"].get("scale")
        for kind, item in definitions.items()
    }
    assert scales == {
        "Broker": {
            "specReplicasPath": ".spec.groups",
            "statusReplicasPath": ".status.groups",
            "labelSelectorPath": ".status.selector",
        },
        "NameServer": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
        "Topic": None,
        "User": None,
    }


def test_uninstalling_the_chart_keeps_the_data(definitions):
    """Helm leaves the definitions, and with them every Broker, when the release goes."""
    for definition in definitions.values():
        assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
