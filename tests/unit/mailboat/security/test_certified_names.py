"""The user that a certificate names, in the words of `ssl.SSLObject.getpeercert`."""

from typing import Any

import pytest

from mailboat.security.certified_names import certified_name

CERTIFICATE: dict[str, Any] = {
    "subject": (
        (("countryName", "CH"),),
        (("organizationName", "CN=root"), ("commonName", "orders")),
    ),
    "subjectAltName": (
        ("DNS", "orders.example"),
        ("URI", "spiffe://shop/orders"),
        ("IP Address", "10.0.0.1"),
    ),
}


@pytest.mark.parametrize(
    ("identity", "name"),
    [("CN", "orders"), ("DNS", "orders.example"), ("URI", "spiffe://shop/orders"), ("none", "")],
)
def test_the_configured_place_names_the_user(identity: str, name: str) -> None:
    """Its whole value, and nothing of what stands elsewhere."""
    assert certified_name(CERTIFICATE, identity) == name


@pytest.mark.parametrize("certificate", [None, {}, {"subject": ()}, {"subject": ((),)}])
@pytest.mark.parametrize("identity", ["CN", "DNS", "URI"])
def test_without_a_name_there_it_is_nobody(
    certificate: dict[str, Any] | None, identity: str
) -> None:
    """No certificate, one that was not checked, one without such a name."""
    assert certified_name(certificate, identity) == ""


@pytest.mark.parametrize(
    "subject",
    [
        ((("commonName", "orders"),), (("commonName", "root"),)),
        ((("commonName", "orders"), ("commonName", "orders")),),
    ],
)
def test_several_names_are_none(subject: Any) -> None:
    """Which one was meant would be for whoever asked for the certificate to choose."""
    assert certified_name({"subject": subject}, "CN") == ""
    names = {"subjectAltName": (("DNS", "a"), ("DNS", "b"), ("URI", "u"))}
    assert certified_name(names, "DNS") == ""
    assert certified_name(names, "URI") == "u"
