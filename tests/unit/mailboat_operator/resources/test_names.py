"""Names and addresses."""

import pytest

from mailboat_operator.crds.common import NAME_MAX_LENGTH
from mailboat_operator.crds.user import USER_NAME_MAX_LENGTH
from mailboat_operator.resources.names import (
    claim_name,
    group_index,
    group_name,
    join_addresses,
    name_server_addresses,
    pod_name,
)
from mailboat_operator.resources.users import (
    file_key,
    name_server_file_key,
    own_secret_name,
    rotated_key,
)


def test_names_of_a_group():
    """As Kubernetes makes them up from the StatefulSet's name."""
    assert group_name("orders", 3) == "orders-g3"
    assert pod_name("orders-g3") == "orders-g3-0"
    assert claim_name("orders-g3-0") == "data-orders-g3-0"


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("orders-g0", 0),
        ("orders-g63", 63),
        ("orders-g01", None),
        ("orders-g", None),
        ("orders", None),
        ("orders-g1-g2", None),
        ("other-g1", None),
        ("orders-brokers", None),
    ],
)
def test_a_group_is_known_by_its_name(name, index):
    """Only what this Broker's groups are called; a Broker orders-g1 has its own."""
    assert group_index("orders", name) == index


def test_name_servers_are_found_by_names_that_outlive_their_pods():
    """One address per replica, joined as namesrvAddr takes them."""
    found = name_server_addresses("ns", "shop", 2)
    assert join_addresses(found) == ("ns-0.ns-nodes.shop.svc:9876;ns-1.ns-nodes.shop.svc:9876")


def test_the_longest_names_fit_into_keys_of_secrets() -> None:
    """Kubernetes takes names and keys of 253 characters."""
    user, broker = "u" * USER_NAME_MAX_LENGTH, "b" * NAME_MAX_LENGTH
    assert len(name_server_file_key(broker, user)) == 253
    others = (file_key(user), rotated_key(user), own_secret_name(user))
    assert max(map(len, others)) <= 253
