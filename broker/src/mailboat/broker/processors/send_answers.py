"""The answers to sends: of what is stored, what waits for a flush or for replicas, what is refused.

Source: apache/rocketmq broker/processor/SendMessageProcessor.java @ rocketmq-all-5.3.3.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from mailboat.broker.context import BrokerContext
from mailboat.broker.dispatcher import Asker, Send
from mailboat.broker.flush_service import FlushService
from mailboat.errors import BrokerError
from mailboat.model.names import HALF_TOPIC
from mailboat.protocol.codes import ResponseCode
from mailboat.protocol.command import ExtValue, RemotingCommand
from mailboat.protocol.frame import SERIALIZE_JSON
from mailboat.protocol.send_header import SendRequest, encode_send_response
from mailboat.remoting.dispatcher import answer_error
from mailboat.store.message_inner import MessageInner, PutStatus

_ONEWAY_BIT: Final = 2

Answers = defaultdict[Asker, list[bytes]]
"""What is to be written to whom."""


class _Asked(NamedTuple):
    """What an answer needs of its request: the rest is not to wait for a flush in memory."""

    code: int
    opaque: int
    flag: int
    serialize_type: int


class _Stored(NamedTuple):
    """What the answer to one stored request says."""

    connection: Asker
    request: _Asked
    message_id: bytes
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None


class SendAnswers:
    """Words answers; those of one connection leave with one write."""

    def __init__(self, broker: BrokerContext, flush: FlushService) -> None:
        """Answer for one broker."""
        self._store = broker.store
        self._stats = broker.stats
        self._flush = flush
        self._holds_back = broker.store.holds_back
        config = broker.settings.broker
        self._region = config.region_id
        self.trace_on = "true" if config.trace_on else "false"
        self.are_plain = self._region == "DefaultRegion" and config.trace_on
        """Region and trace are the ones that an answer of the short form has."""

        self.max_body_bytes = broker.settings.store.max_message_size

    def answer_all(
        self, accepted: list[Send], messages: list[MessageInner], answers: Answers
    ) -> None:
        """Word the answers to what was stored, or leave them to the flush that is waited for."""
        host = self._store.commit_log.store_host.hex().upper().encode()
        waiting: list[_Stored] = []
        holds_back = self._holds_back
        is_plain = self.are_plain
        topic = messages[0].topic
        count = size_bytes = 0
        for (connection, request, _), message in zip(accepted, messages, strict=True):
            if message.status:
                self._stats.record_put_failed()
                failed = self.failed(request, message.status, request.fields.queue_id)
                if failed is not None:
                    answers[connection].append(failed)
                continue
            if message.topic != topic:
                self._stats.record_put(topic, count, size_bytes)
                topic = message.topic
                count = size_bytes = 0
            count += 1
            size_bytes += message.size_bytes
            message_id = b"%b%016X" % (host, message.physical_offset)
            is_half = topic == HALF_TOPIC
            if (
                not holds_back
                and is_plain
                and not request.flag
                and not request.serialize_type
                and not is_half
            ):
                answers[connection].append(
                    encode_send_response(
                        request.opaque, message_id, request.fields.queue_id, message.queue_offset
                    )
                )
                continue
            stored = _Stored(
                connection,
                _asked(request),
                message_id,
                request.fields.queue_id,
                message.queue_offset,
                message.unique_key if is_half else None,
            )
            if holds_back and message.wait_store_ok:
                waiting.append(stored)
                continue
            if holds_back:
                self._stats.put_without_wait += 1
            if _wants_answer(request):
                answers[connection].append(self._encode(stored, ResponseCode.SUCCESS))
        if count:
            self._stats.record_put(topic, count, size_bytes)
        if waiting:
            self._answer_settled(waiting)
        elif holds_back:
            self._flush.settle_soon()

    def answer_batch(
        self, connection: Asker, request: SendRequest, messages: Sequence[MessageInner]
    ) -> bytes | None:
        """Word the answer to a client batch that is stored; None where there is none, or where the
        flush is waited for."""
        host = self._store.commit_log.store_host.hex().upper().encode()
        ids = b",".join([b"%b%016X" % (host, message.physical_offset) for message in messages])
        first = messages[0]
        stored = _Stored(connection, _asked(request), ids, first.queue_id, first.queue_offset)
        if self._holds_back:
            if all(message.wait_store_ok for message in messages):
                self._answer_settled([stored])
                return None
            self._stats.put_without_wait += len(messages)
            self._flush.settle_soon()
        return self._encode(stored, ResponseCode.SUCCESS) if _wants_answer(request) else None

    def _answer_settled(self, stored: list[_Stored]) -> None:
        """Write answers once everything written so far is as safe as was asked for."""

        def settled(code: int) -> None:
            answers: Answers = defaultdict(list)
            for item in stored:
                if _wants_answer(item.request):
                    answers[item.connection].append(self._encode(item, code))
            for connection, parts in answers.items():
                connection.write(b"".join(parts))

        self._flush.wait_settled(self._store.commit_log.end, settled)

    def _timed_out(self, request: SendRequest, queue_id: int) -> bytes:
        code = ResponseCode.FLUSH_DISK_TIMEOUT
        return self._full_answer(_asked(request), b"", queue_id, 0, code)

    def _encode(self, stored: _Stored, code: int) -> bytes:
        return self._full_answer(*stored[1:5], code, stored.transaction_id)

    def _full_answer(
        self,
        request: _Asked,
        message_id: bytes,
        queue_id: int,
        queue_offset: int,
        code: int,
        transaction_id: str | None = None,
    ) -> bytes:
        is_plain = self.are_plain and request.serialize_type == SERIALIZE_JSON
        if is_plain and transaction_id is None:
            return encode_send_response(request.opaque, message_id, queue_id, queue_offset, code)
        ext_fields: dict[str, ExtValue] = {
            "msgId": message_id.decode(),
            "queueId": queue_id,
            "queueOffset": queue_offset,
            "MSG_REGION": self._region,
            "TRACE_ON": self.trace_on,
        }
        if transaction_id is not None:
            ext_fields["transactionId"] = transaction_id
        return _command(request).response(code, ext_fields=ext_fields).encode()

    def failed(self, request: SendRequest, status: int, queue_id: int) -> bytes | None:
        """Word the answer to what the store has not taken, None where nobody wants one."""
        if status == PutStatus.FLUSH_DISK_TIMEOUT:
            if not _wants_answer(request):
                return None
            return self._timed_out(request, queue_id)
        if status == PutStatus.MESSAGE_ILLEGAL:
            error = BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal: it does not fit a CommitLog segment or breaks a limit "
                f"(topic 127 bytes, body {self.max_body_bytes} bytes, properties 32 KB)",
            )
        else:
            reason = self._store.why_refused()
            error = BrokerError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {reason}"
            )
        return self.refusal(request, error)

    def broken(self, request: SendRequest, error: Exception) -> bytes | None:
        """Log and answer what is our fault; the other sends of the run go on."""
        response = answer_error(_command(request), error)
        return response.encode() if _wants_answer(request) else None

    def refusal(self, request: SendRequest, error: BrokerError) -> bytes | None:
        """Word the answer to what is refused, None where nobody wants one."""
        if not _wants_answer(request):
            return None
        response = _command(request).response(
            error.code,
            error.remark,
            {"MSG_REGION": self._region, "TRACE_ON": self.trace_on},
        )
        return response.encode()


def _asked(request: SendRequest) -> _Asked:
    return _Asked(request.code, request.opaque, request.flag, request.serialize_type)


def _wants_answer(request: SendRequest | _Asked) -> bool:
    return not request.flag & _ONEWAY_BIT


def _command(request: SendRequest | _Asked) -> RemotingCommand:
    command = RemotingCommand.request(request.code)
    command.opaque = request.opaque
    command.serialize_type = request.serialize_type
    return command
