"""What was committed at a follower, as it tells its leader."""

import msgspec
import pytest

from mailboat.broker.offsets import SharedOffsets
from mailboat.broker.replicas.tables import decode_commits, encode_commits


def test_commits_are_told_some_at_a_time() -> None:
    """A group of ten thousand queues and a thousand groups: each frame has some, all have all."""
    long = "t" * 127 + "@" + "g" * 255
    taken = [SharedOffsets("t@g", 7, {n: n + 1 for n in range(10_000)}, {})]
    taken += [SharedOffsets(f"{long}{n}", 0, {0: 1 << 40, 1: 5}, {}) for n in range(1000)]
    found: dict[tuple[str, int], dict[int, int]] = {}
    frames = 0
    for body in encode_commits(taken):
        frames += 1
        for key, generation, queues, resets in decode_commits(body):
            found.setdefault((key, generation), {}).update(queues)
            assert not resets
    assert frames == 12
    assert found == {(key, generation): queues for key, generation, queues, _ in taken}


@pytest.mark.parametrize(
    "entries",
    [
        [("t@g", 0, dict.fromkeys(range(1001), 0), {})],
        [("t@g", 0, {}, dict.fromkeys(range(1001), 0))],
        [("t@g", 0, {0: 0}, {})] * 1001,
        [("t" * 600_000, 0, {0: 0}, {})],
    ],
)
def test_more_than_a_follower_says_at_once_is_refused(entries: object) -> None:
    """It would hold up the leader."""
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        decode_commits(msgspec.msgpack.encode(entries))
