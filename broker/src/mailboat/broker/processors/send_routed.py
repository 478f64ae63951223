"""The answer to a send that made its topic: it leaves when the name servers know the topic.

Release 4.9 registers such a topic one-way and acknowledges the send meanwhile, so that whoever asks
for the route right after its first send may be told that there is none. Here, as in release 5, the
answer waits: at most `CHANGE_TIMEOUT_S`, and for no name server that failed last time.

Source: apache/rocketmq broker/topic/TopicConfigManager.java (createTopicInSendMessageMethod) @
rocketmq-all-5.3.3.
"""

from mailboat.broker.dispatcher import Asker


class AnswerWhenRouted:
    """Stands in for who sent the message, and holds back what is written to it."""

    __slots__ = ("_asker", "_held", "_is_routed", "peer_host")

    def __init__(self, asker: Asker) -> None:
        """Hold the answers to `asker` until `release`."""
        self.peer_host = asker.peer_host
        self._asker = asker
        self._held: list[bytes] = []
        self._is_routed = False

    def write(self, data: bytes) -> None:
        """Send bytes, now or when the topic has its route."""
        if self._is_routed:
            self._asker.write(data)
        else:
            self._held.append(data)

    def release(self) -> None:
        """Send what was held back, and what comes from now on at once."""
        self._is_routed = True
        if self._held:
            self._asker.write(b"".join(self._held))
