"""Tests of the operator's settings."""

import pytest

from mailboat.errors import ConfigError
from mailboat_operator.settings import load_settings

_LEAST = {"MAILBOAT_OPERATOR_IMAGE": "mailboat:1", "MAILBOAT_OPERATOR_POD_NAMESPACE": "system"}


def test_defaults() -> None:
    """With the image and the namespace given, everything else has a value."""
    settings = load_settings({**_LEAST, "PATH": "/bin"})
    assert settings.is_cluster_wide
    assert (settings.http_port, settings.collect_seconds, settings.resync_seconds) == (
        8090,
        15,
        300,
    )
    assert settings.pod_name


def test_the_kubelet_is_asked_unless_told_otherwise() -> None:
    """The switch takes the two words that Helm writes."""
    assert load_settings(_LEAST).kubelet_stats
    for text, wanted in (("true", True), ("false", False)):
        settings = load_settings({**_LEAST, "MAILBOAT_OPERATOR_KUBELET_STATS": text})
        assert settings.kubelet_stats is wanted


def test_namespaces() -> None:
    """The namespaces are a list with commas; each counts once."""
    settings = load_settings({**_LEAST, "MAILBOAT_OPERATOR_NAMESPACES": "shop, bank,shop,"})
    assert settings.namespaces == ("shop", "bank")
    assert not settings.is_cluster_wide


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("HTTP_PRT", "1", "did you mean MAILBOAT_OPERATOR_HTTP_PORT"),
        ("HTTP_PORT", "70000", "from 0 to 65535"),
        ("HTTP_PORT", "-1", "whole number"),
        ("COLLECT_SECONDS", "soon", "must be a number"),
        ("COLLECT_SECONDS", "nan", "must be a number"),
        ("LOG_LEVEL", "LOUD", "one of DEBUG"),
        ("NAMESPACES", "Shop", "'Shop' is not the name of a namespace"),
        ("LEASE_NAME", "", "must not be empty"),
        ("KUBELET_STATS", "maybe", "must be true or false"),
        ("DEAF_SECONDS", "45", "must be more than WATCH_SECONDS"),
    ],
)
def test_refuses(name: str, text: str, said: str) -> None:
    """A name that is unknown and a value that is wrong are one clear sentence."""
    with pytest.raises(ConfigError, match=said):
        load_settings({**_LEAST, f"MAILBOAT_OPERATOR_{name}": text})


def test_image_must_be_given() -> None:
    """There is no image that could be right by itself."""
    with pytest.raises(ConfigError, match="MAILBOAT_OPERATOR_IMAGE"):
        load_settings({"MAILBOAT_OPERATOR_POD_NAMESPACE": "system"})


def test_service_links_are_no_settings() -> None:
    """Variables that Kubernetes makes for a Service called mailboat-operator are passed over."""
    links = {
        "MAILBOAT_OPERATOR_SERVICE_HOST": "10.0.0.1",
        "MAILBOAT_OPERATOR_SERVICE_PORT": "8090",
        "MAILBOAT_OPERATOR_SERVICE_PORT_METRICS": "8090",
        "MAILBOAT_OPERATOR_PORT": "tcp://10.0.0.1:8090",
        "MAILBOAT_OPERATOR_PORT_8090_TCP": "tcp://10.0.0.1:8090",
        "MAILBOAT_OPERATOR_PORT_8090_TCP_ADDR": "10.0.0.1",
        "MAILBOAT_OPERATOR_METRICS_SERVICE_HOST": "10.0.0.2",
    }
    assert load_settings({**_LEAST, **links}).http_port == 8090
