"""The lease of a group in an API server that does what API servers do on their bad days."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kube_stub import NAMESPACE, KubeStub

from mailboat.broker.replicas.kubernetes.api import KubeApi
from mailboat.broker.replicas.kubernetes.kube_lease import KubeLease
from mailboat.broker.replicas.lease_keeper import HolderWatch
from mailboat.broker.replicas.lease_store import LeaseStoreError
from mailboat.errors import ConfigError
from mailboat.replication.events import Outcome
from mailboat.replication.lease import Holder, Lease, Member
from mailboat.replication.lease_manifest import decode_lease, encode_lease

KEY = "leases/mq-g1"
TIMEOUT_S = 0.3
_FIRST = Lease(0, None, 0, frozenset({Member(0, "s0"), Member(1, "s1")}), 2, lease_s=9)
_HELD = _FIRST._replace(holder=Holder(0, "s0", "mq-g1-0/u0/b0"), epoch=1, renewals=1)


@pytest.fixture
async def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeStub]:
    """Run an API server."""
    async with KubeStub(tmp_path, monkeypatch) as stub:
        yield stub


@pytest.fixture
async def store(stub: KubeStub) -> AsyncIterator[KubeLease]:
    """Make the store of a pod."""
    store = _store(stub, "mq-g1-0")
    yield store
    await store.close()


def _store(stub: KubeStub, pod: str) -> KubeLease:
    return KubeLease(KubeApi(stub.pod(pod), TIMEOUT_S), "mq-g1", 9)


def _make_first(stub: KubeStub) -> None:
    """Do what the operator does with a new group."""
    manifest = encode_lease(_FIRST, "mq-g1", {}, now=datetime.now(UTC))
    manifest["metadata"] |= {"labels": {"app": "mq"}, "ownerReferences": [{"name": "mq"}]}
    stub.put(KEY, manifest)


async def _take(store: KubeLease) -> Lease:
    """Take the lease as a first leader does."""
    first = await store.read()
    assert first is not None
    outcome, held = await store.write(first.version, _HELD)
    assert outcome is Outcome.APPLIED
    assert held is not None
    return held


async def test_a_lease_is_read_and_replaced(stub: KubeStub, store: KubeLease) -> None:
    """A write has the version that it replaced, and keeps what the operator has put there."""
    _make_first(stub)
    first = await store.read()
    assert first is not None
    assert first._replace(version=0) == _FIRST
    held = await _take(store)
    assert held == _HELD._replace(version=first.version + 1)
    assert await store.read() == held
    metadata = stub.objects[KEY]["metadata"]
    assert metadata["labels"] == {"app": "mq"}
    assert metadata["ownerReferences"] == [{"name": "mq"}]
    assert store.trouble == store.alarm == ""


async def test_one_of_two_wins(stub: KubeStub, store: KubeLease) -> None:
    """Who names a version that is not there any more changes nothing."""
    _make_first(stub)
    other = _store(stub, "mq-g1-1")
    first = await other.read()
    assert first is not None
    held = await _take(store)
    theirs = _HELD._replace(holder=Holder(1, "s1", "mq-g1-1/u1/b1"))
    assert await other.write(first.version, theirs) == (Outcome.CONFLICT, None)
    assert await store.read() == held
    # A conflict is no trouble with the API server.
    assert other.trouble == ""
    await other.close()


async def test_a_lost_answer_is_neither_done_nor_not(stub: KubeStub, store: KubeLease) -> None:
    """The write is there, and only a read tells."""
    _make_first(stub)
    first = await store.read()
    assert first is not None
    stub.loses_answers = True
    assert await store.write(first.version, _HELD) == (Outcome.UNKNOWN, None)
    assert "no answer of the API server to: update leases/mq-g1" in store.trouble
    stub.loses_answers = False
    found = await store.read()
    assert found is not None
    assert found._replace(version=0) == _HELD
    assert store.trouble == ""


async def test_a_write_may_come_late(stub: KubeStub, store: KubeLease) -> None:
    """It was given up, and is applied all the same; the next one of that version is not."""
    _make_first(stub)
    first = await store.read()
    assert first is not None
    stub.late_s = TIMEOUT_S + 0.2
    began_s = asyncio.get_running_loop().time()
    assert await store.write(first.version, _HELD) == (Outcome.UNKNOWN, None)
    assert TIMEOUT_S <= asyncio.get_running_loop().time() - began_s < 2 * TIMEOUT_S
    assert "answer of the API server within 0.3 s" in store.trouble
    assert await store.read() == first
    async with asyncio.timeout(5):
        while await store.read() == first:  # noqa: ASYNC110 - the object is the event
            await asyncio.sleep(0.02)
    stub.late_s = 0
    assert await store.write(first.version, _HELD) == (Outcome.CONFLICT, None)


async def test_a_late_write_makes_nothing_anew(stub: KubeStub, store: KubeLease) -> None:
    """A renewal that comes after the Lease was deleted does not bring it back."""
    _make_first(stub)
    held = await _take(store)
    del stub.objects[KEY]
    assert await store.write(held.version, _HELD) == (Outcome.CONFLICT, None)
    assert await store.read() is None
    assert KEY not in stub.objects
    assert "there is no Lease mq-g1 in namespace mq" in store.trouble


async def test_who_leads_makes_a_deleted_lease_anew(stub: KubeStub, store: KubeLease) -> None:
    """It has the labels and owners that it had; where another one is there by now, it wins."""
    _make_first(stub)
    await _take(store)
    uid = stub.objects.pop(KEY)["metadata"]["uid"]
    assert await store.read() is None
    anew = _HELD._replace(epoch=2)
    outcome, made = await store.write(None, anew)
    assert (outcome, made and made._replace(version=0)) == (Outcome.APPLIED, anew)
    metadata = stub.objects[KEY]["metadata"]
    assert metadata["ownerReferences"] == [{"name": "mq"}]
    assert metadata["uid"] != uid
    del stub.objects[KEY]
    assert await store.read() is None
    _make_first(stub)
    outcome, _ = await store.write(None, anew)
    assert outcome is Outcome.CONFLICT
    assert decode_lease(stub.objects[KEY])._replace(version=0) == _FIRST


async def test_what_is_no_lease_counts_as_none(stub: KubeStub, store: KubeLease) -> None:
    """It is said once what is wrong with it, and whoever leads may write a lease over it."""
    _make_first(stub)
    await _take(store)
    odd = stub.objects[KEY]
    odd["metadata"]["annotations"]["mailboat.dev/epoch"] = "many"
    stub.put(KEY, odd)
    assert await store.read() is None
    assert "the annotation mailboat.dev/epoch is 'many'" in store.alarm
    outcome, _ = await store.write(None, _HELD)
    assert outcome is Outcome.APPLIED
    assert store.alarm == ""
    # Nothing but what could not be read is written over: by now it is a lease.
    assert await store.write(None, _HELD._replace(epoch=2)) == (Outcome.CONFLICT, None)


@pytest.mark.parametrize(
    ("status", "sentence"), [(500, "answered 500 to: get leases/mq-g1"), (429, "answered 429")]
)
async def test_a_refusal_says_nothing_of_the_lease(
    stub: KubeStub, store: KubeLease, status: int, sentence: str
) -> None:
    """Nobody concludes from it that there is none."""
    _make_first(stub)
    stub.answers = status
    with pytest.raises(LeaseStoreError, match=sentence):
        await store.read()
    assert await store.write(101, _HELD) == (Outcome.UNKNOWN, None)


async def test_a_missing_right_is_named(
    stub: KubeStub, store: KubeLease, caplog: pytest.LogCaptureFixture
) -> None:
    """The status says which verb the Role lacks, for what."""
    _make_first(stub)
    stub.denied_verbs = {"update"}
    first = await store.read()
    assert first is not None
    assert await store.write(first.version, _HELD) == (Outcome.REFUSED, None)
    assert 'ServiceAccount lacks the verb "update" for leases named mq-g1' in store.trouble
    # A read that is answered does not mend that, and it is said once.
    assert await store.read() is not None
    assert 'lacks the verb "update"' in store.trouble
    assert await store.write(first.version, _HELD) == (Outcome.REFUSED, None)
    assert sum('lacks the verb "update"' in text for text in caplog.messages) == 1
    stub.denied_verbs = {"get"}
    with pytest.raises(LeaseStoreError, match='lacks the verb "get"'):
        await store.read()
    assert 'lacks the verb "update"' in store.trouble


async def test_a_token_is_replaced(stub: KubeStub, store: KubeLease) -> None:
    """Kubernetes writes another one into the same file, and the former one expires."""
    _make_first(stub)
    assert await store.read() is not None
    path = Path(stub.pod("mq-g1-0")) / "token"
    stub.give_token("mq-g1-0", "the-next")
    path.write_text("token-of-mq-g1-0")
    with pytest.raises(LeaseStoreError, match=r"the token in .* is not valid"):
        await store.read()
    path.write_text("the-next\n")
    assert await store.read() is not None


async def test_it_goes_away_and_comes_back(stub: KubeStub, store: KubeLease) -> None:
    """Connections that it has ended are made again."""
    _make_first(stub)
    assert await store.read() is not None
    await stub.go_away()
    with pytest.raises(LeaseStoreError, match="no answer of the API server to: get leases/mq-g1"):
        await store.read()
    await stub.come_back()
    assert await store.read() is not None
    assert store.trouble == ""


async def test_a_server_of_another_authority_is_not_believed(
    stub: KubeStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the address and not the certificate gets no token."""
    async with KubeStub(tmp_path / "stranger", monkeypatch) as stranger:
        store = KubeLease(KubeApi(stub.pod("mq-g1-0"), TIMEOUT_S), "mq-g1", 9)
        with pytest.raises(LeaseStoreError, match="certificate verify failed"):
            await store.read()
        await store.close()
        assert stranger.requests == []


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("token", "", "token is empty"),
        ("token", None, "token cannot be read: .*No such file"),
        ("namespace", None, "namespace cannot be read"),
        ("ca.crt", "nothing", "ca.crt holds no certificate"),
    ],
)
def test_a_pod_without_credentials_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, sentence: str
) -> None:
    """The error names the key, the folder and what it lacks."""
    folder = Path(KubeStub(tmp_path, monkeypatch).pod("mq-g1-0"))
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text)
    with pytest.raises(ConfigError, match=f"kubeApiFolder={folder}: {sentence}"):
        KubeApi(str(folder), TIMEOUT_S)


def test_outside_a_cluster_there_is_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the variables that every pod has nobody knows where the API server is."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    folder = KubeStub(tmp_path, monkeypatch).pod("mq-g1-0")
    with pytest.raises(ConfigError, match="only a pod of Kubernetes has an API server"):
        KubeApi(folder, TIMEOUT_S)


def test_a_broker_without_a_lease_brings_no_http_client() -> None:
    """It would take longer to start, and more memory."""
    code = (
        "import sys, mailboat.broker.controller;"
        "print([name for name in sys.modules if name == 'aiohttp' or 'kubernetes' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_namespace_is_the_pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read from the same folder."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    assert KubeApi(KubeStub(tmp_path, monkeypatch).pod("p-0"), 1).namespace == NAMESPACE


async def test_a_port_that_closes_late_is_a_dead_one() -> None:
    """A process that dies takes connections for a moment after its links have ended."""
    holder = Holder(0, "s0", "mq-g1-0/u0/b0")
    dead = asyncio.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    async def died(found: Holder) -> None:
        assert found == holder
        dead.set()

    watch = HolderWatch(lambda _: not dead.is_set(), died)
    watch.suspect(holder, f"127.0.0.1:{port}")
    accepted, _ = await asyncio.to_thread(listening.accept)
    accepted.close()
    assert not dead.is_set()
    listening.close()
    async with asyncio.timeout(5):
        await dead.wait()
    await watch.close()
