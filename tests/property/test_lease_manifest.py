"""A group's lease as a Kubernetes object: every one comes back, and nothing odd is believed."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.lease_manifest import (
    LARGEST_NUMBER,
    LARGEST_ORDINAL,
    LONGEST_LEASE_S,
    MOST_MEMBERS,
    LeaseFormatError,
    decode_lease,
    encode_lease,
    identity,
)

_NOW = datetime(2026, 11, 23, 22, 15, 24, 123456, tzinfo=UTC)
_NUMBER = st.integers(0, LARGEST_NUMBER)
_NAME = st.from_regex(r"[0-9A-Za-z-]{1,36}", fullmatch=True)
_MEMBERS = st.dictionaries(
    st.integers(0, LARGEST_ORDINAL), _NAME, min_size=1, max_size=MOST_MEMBERS
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@st.composite
def _leases(draw: st.DrawFn) -> Lease:
    members = draw(_MEMBERS)
    in_sync = frozenset(Member(ordinal, store) for ordinal, store in members.items())
    holder = None
    if draw(st.booleans()):
        ordinal = draw(st.sampled_from(sorted(members)))
        boot = identity(f"mq-g1-{ordinal}", draw(_NAME), draw(_NAME))
        holder = Holder(ordinal, members[ordinal], boot)
    version = draw(st.integers(1, 10**18))
    least = draw(st.integers(1, MOST_MEMBERS))
    renewals, is_sole = draw(_NUMBER), draw(st.booleans())
    lease_s = draw(st.integers(1, LONGEST_LEASE_S))
    return Lease(version, holder, draw(_NUMBER), in_sync, least, renewals, is_sole, lease_s)


def _manifest(lease: Lease, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what a server that has stored the lease answers."""
    manifest = encode_lease(lease, "mq-g1", before or {}, now=_NOW)
    manifest["metadata"]["resourceVersion"] = str(lease.version)
    found: dict[str, Any] = json.loads(json.dumps(manifest))
    return found


def _example() -> dict[str, Any]:
    in_sync = frozenset({Member(0, "a1"), Member(2, "c3")})
    boot = identity("mq-g1-2", "uid-2", "b0")
    return _manifest(Lease(7, Holder(2, "c3", boot), 5, in_sync, 2, 40, True, 9))


@given(_leases(), _leases())
def test_a_lease_comes_back(lease: Lease, before: Lease) -> None:
    """What is written is read again, whatever was there before."""
    assert decode_lease(_manifest(lease)) == lease
    assert decode_lease(_manifest(lease, _manifest(before))) == lease


def test_the_object_is_as_documented() -> None:
    """The bytes are those that the operator and people rely on."""
    assert _example() == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "mq-g1",
            "resourceVersion": "7",
            "annotations": {
                "mailboat.dev/epoch": "5",
                "mailboat.dev/in-sync": "0:a1,2:c3",
                "mailboat.dev/min-in-sync": "2",
                "mailboat.dev/renewals": "40",
                "mailboat.dev/sole": "true",
            },
        },
        "spec": {
            "holderIdentity": "mq-g1-2/uid-2/b0",
            "leaseDurationSeconds": 9,
            "acquireTime": "2026-11-23T22:15:24.123456Z",
            "renewTime": "2026-11-23T22:15:24.123456Z",
            "leaseTransitions": 5,
        },
    }


def test_what_is_not_the_leases_stays() -> None:
    """Owners, labels and other annotations outlive a write; what the server keeps is left to it."""
    before = _example()
    before["metadata"] |= {
        "uid": "u1",
        "labels": {"app": "mq"},
        "ownerReferences": [{"name": "mq"}],
        "creationTimestamp": "2026-11-23T22:00:00Z",
        "managedFields": [{}],
    }
    before["metadata"]["annotations"]["people.example/note"] = "kept"
    before["spec"]["acquireTime"] = "2026-11-23T22:00:00.000000Z"
    after = encode_lease(decode_lease(before), "mq-g1", before, now=_NOW)
    metadata = after["metadata"]
    assert metadata["annotations"]["people.example/note"] == "kept"
    kept = {key: metadata[key] for key in ("uid", "resourceVersion", "labels", "ownerReferences")}
    assert kept == {key: before["metadata"][key] for key in kept}
    assert not {"creationTimestamp", "managedFields"} & metadata.keys()
    # The same holder: acquired when it was, renewed now.
    assert after["spec"]["acquireTime"] == "2026-11-23T22:00:00.000000Z"
    assert after["spec"]["renewTime"] == "2026-11-23T22:15:24.123456Z"


@pytest.mark.parametrize("odd", [0, -9, LONGEST_LEASE_S + 1, 1 << 70, 9.5, "9", True, None, [9]])
def test_an_odd_duration_says_nothing(odd: object) -> None:
    """A person may have edited it: nobody waits for that."""
    manifest = _example()
    manifest["spec"]["leaseDurationSeconds"] = odd
    assert decode_lease(manifest) == decode_lease(_example())._replace(lease_s=0)


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("epoch", None, "the annotation mailboat.dev/epoch is missing"),
        ("epoch", "", "it must be a number from 0 to"),
        ("epoch", "-1", "it must be a number from 0 to"),
        ("epoch", "07", "it must be a number from 0 to"),
        ("epoch", "\N{ARABIC-INDIC DIGIT SEVEN}", "it must be a number from 0 to"),
        ("epoch", str(LARGEST_NUMBER + 1), "it must be a number from 0 to"),
        ("renewals", "1e3", "it must be a number from 0 to"),
        ("min-in-sync", "0", "it must be a number from 1 to 8"),
        ("min-in-sync", "9", "it must be a number from 1 to 8"),
        ("sole", "True", "it must be true or false"),
        ("in-sync", "", "it must be ordinal:storeId"),
        ("in-sync", "2:c3,0:a1", "it must be ordinal:storeId, by ordinal"),
        ("in-sync", "2:c3,2:a1", "it must be ordinal:storeId, by ordinal"),
        ("in-sync", "2:c3,", "it must be ordinal:storeId"),
        ("in-sync", "2:", "it must be ordinal:storeId"),
        ("in-sync", "1000:c3", "it must be ordinal:storeId"),
        ("in-sync", "0:a1", "has no replica 2"),
        ("in-sync", ",".join(f"{n}:s" for n in range(9)), "must not have more than 8 members"),
    ],
)
def test_an_odd_annotation_is_refused(key: str, text: str | None, sentence: str) -> None:
    """One sentence names the annotation and what is wrong with it."""
    manifest = _example()
    annotations = manifest["metadata"]["annotations"]
    annotations.pop(f"mailboat.dev/{key}")
    if text is not None:
        annotations[f"mailboat.dev/{key}"] = text
    with pytest.raises(LeaseFormatError, match=sentence) as caught:
        decode_lease(manifest)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "holder", ["mq-g1-2", "mq-g1-2/uid-2", "mq-g1-2/uid-2/b0/x", "mq/uid-2/b0", "-2/u/b", 7, {}]
)
def test_an_odd_holder_is_refused(holder: object) -> None:
    """Who holds it is a run of a pod of the group, or nobody."""
    manifest = _example()
    manifest["spec"]["holderIdentity"] = holder
    with pytest.raises(LeaseFormatError, match=r"spec\.holderIdentity is"):
        decode_lease(manifest)


@pytest.mark.parametrize("pod", [("mq", "u", "b"), ("mq-0", "", "b"), ("mq-0", "a/b", "c")])
def test_no_identity_is_made_that_nobody_could_read(pod: tuple[str, str, str]) -> None:
    """A pod without an ordinal, or with another uid than Kubernetes gives, cannot hold a lease."""
    with pytest.raises(LeaseFormatError, match="cannot hold a lease"):
        identity(*pod)


@given(st.data())
def test_odd_input_is_a_lease_or_refused(data: st.DataObject) -> None:
    """Whatever is put at any place of an object, it is read in one way or refused in words."""
    manifest = _example()
    paths = [(top, key) for top in ("metadata", "spec") for key in manifest[top]]
    top, key = data.draw(st.sampled_from([("", name) for name in manifest] + paths))
    at = manifest if not top else manifest[top]
    at[key] = data.draw(_JSON)
    try:
        lease = decode_lease(manifest)
    except LeaseFormatError as error:
        assert "\n" not in str(error)
        return
    assert decode_lease(_manifest(lease)) == lease


@given(st.dictionaries(st.text(max_size=3) | st.sampled_from(["metadata", "spec"]), _JSON))
def test_no_object_of_another_kind_is_a_lease(manifest: dict[str, Any]) -> None:
    """What has none of it is refused."""
    with pytest.raises(LeaseFormatError):
        decode_lease(manifest)
