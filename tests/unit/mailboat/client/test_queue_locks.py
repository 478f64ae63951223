import pytest

from mailboat.client.instance import ClientInstance
from mailboat.client.queue_locks import QueueLocks
from mailboat.errors import RemotingError
from mailboat.model.message_queue import MessageQueue
from mailboat.protocol.codes import RequestCode
from mailboat.protocol.command import RemotingCommand
from mailboat.protocol.lock_batch import decode_lock_batch, encode_locked
from mailboat.testing.virtual_time import VirtualTime

LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
QUEUES = [MessageQueue("T", "a", queue_id) for queue_id in range(3)]


class Locks:
    """A scripted broker, a clock, and the locks under test."""

    def __init__(self, peer, instance: ClientInstance) -> None:
        """Grant everything that is asked for."""
        self.refused: set[MessageQueue] = set()
        self.peer = peer
        self.clock = VirtualTime()
        self.lost: list[MessageQueue] = []
        self.client_id = instance.client_id
        self.locks = QueueLocks(instance, "G", clock=self.clock.monotonic)
        self.locks.on_lost.append(self.lost.append)
        peer.answer(LOCK, self._lock)
        peer.answer(UNLOCK, lambda command: command.response(0))

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        queues = decode_lock_batch(command.body).queues
        return command.response(0, body=encode_locked(queues - self.refused))


@pytest.fixture
async def under_test(make_peer, name_server):
    """Return locks of topic T's queues."""
    peer = await make_peer()
    name_server.set_route("T", {"a": peer.address}, queues=3)
    instance = ClientInstance(name_server.address)
    await instance.start()
    await instance.routes.read_queues("T")
    yield Locks(peer, instance)
    await instance.close()


async def test_lock_names_group_client_and_queue(under_test: Locks):
    """A granted lock is held, and the broker was asked for it in the client's name."""
    assert await under_test.locks.acquire(QUEUES[0])
    assert under_test.locks.is_held(QUEUES[0])
    (request,) = under_test.peer.asked(LOCK)
    batch = decode_lock_batch(request.body)
    assert (batch.consumer_group, batch.queues) == ("G", {QUEUES[0]})
    assert batch.client_id == under_test.client_id


async def test_lock_of_another_member_is_not_held(under_test: Locks):
    """A queue that is missing from the answer belongs to somebody else."""
    under_test.refused = {QUEUES[0]}
    assert not await under_test.locks.acquire(QUEUES[0])
    assert not under_test.locks.is_held(QUEUES[0])


async def test_lock_is_good_for_thirty_seconds(under_test: Locks):
    """Without a renewal it is held for 30 s and no longer; a renewal begins them anew."""
    await under_test.locks.acquire(QUEUES[0])
    under_test.clock.advance(29.9)
    assert under_test.locks.is_held(QUEUES[0])
    await under_test.locks.renew()
    under_test.clock.advance(29.9)
    assert under_test.locks.is_held(QUEUES[0])
    under_test.clock.advance(0.1)
    assert not under_test.locks.is_held(QUEUES[0])


async def test_renewal_asks_once_for_all_queues_of_a_broker(under_test: Locks):
    """Locks are renewed together, and one that went to another member is lost."""
    for queue in QUEUES:
        await under_test.locks.acquire(queue)
    under_test.refused = {QUEUES[1]}
    await under_test.locks.renew()
    assert decode_lock_batch(under_test.peer.asked(LOCK)[-1].body).queues == set(QUEUES)
    assert len(under_test.peer.asked(LOCK)) == 4
    assert under_test.lost == [QUEUES[1]]
    assert [under_test.locks.is_held(queue) for queue in QUEUES] == [True, False, True]


async def test_renewal_after_the_broker_forgot_is_a_loss(under_test: Locks):
    """After 60 s another member may have had the lock: a grant then does not go on with the old."""
    await under_test.locks.acquire(QUEUES[0])
    under_test.clock.advance(60.0)
    await under_test.locks.renew()
    assert under_test.lost == [QUEUES[0]]
    assert not under_test.locks.is_held(QUEUES[0])


async def test_renewal_in_the_gap_keeps_the_lock(under_test: Locks):
    """Between 30 s and 60 s the broker has given the lock to nobody, so nothing is lost."""
    await under_test.locks.acquire(QUEUES[0])
    under_test.clock.advance(45.0)
    await under_test.locks.renew()
    assert under_test.lost == []
    assert under_test.locks.is_held(QUEUES[0])


async def test_silent_broker_takes_no_lock_away(under_test: Locks):
    """A renewal without an answer neither renews nor loses a lock."""
    await under_test.locks.acquire(QUEUES[0])
    await under_test.peer.close()
    under_test.clock.advance(20.0)
    await under_test.locks.renew()
    assert under_test.lost == []
    assert under_test.locks.is_held(QUEUES[0])
    under_test.clock.advance(10.0)
    assert not under_test.locks.is_held(QUEUES[0])
    with pytest.raises(RemotingError):
        await under_test.locks.acquire(QUEUES[1])


async def test_released_locks_go_back_to_the_broker(under_test: Locks):
    """A released queue is unlocked at the broker and held no more, even if it never was."""
    await under_test.locks.acquire(QUEUES[0])
    await under_test.locks.release(QUEUES[:2])
    (request,) = under_test.peer.asked(UNLOCK)
    assert decode_lock_batch(request.body).queues == set(QUEUES[:2])
    assert not under_test.locks.is_held(QUEUES[0])
    await under_test.locks.renew()
    assert len(under_test.peer.asked(LOCK)) == 1
