"""Sends: codes 10, 310 and 320.

The sends of one round go through three stages: `_store_all` makes messages of requests, the store
takes them, `SendAnswers` words the answers. A client batch is stored by itself (`_store_batch`).
What is rare (a new topic, a refusal) leaves at the check and takes its time: a send whose topic is
not there waits until it is made (`send_parked`), and who made it is answered when it has a route
(`send_routed`).

Source: apache/rocketmq broker/processor/SendMessageProcessor.java and
AbstractSendMessageProcessor.java (msgCheck) @ rocketmq-all-5.3.3.
"""

from collections import defaultdict
from typing import Final

from mailboat.broker.context import BrokerContext
from mailboat.broker.dispatcher import Asker, Send
from mailboat.broker.flush_service import FlushService
from mailboat.broker.processors.checks import require_own_name
from mailboat.broker.processors.send_answers import Answers, SendAnswers
from mailboat.broker.processors.send_parked import ParkedSends
from mailboat.broker.processors.send_routed import AnswerWhenRouted
from mailboat.broker.processors.send_rules import (
    MAX_STORED_PROPERTIES_BYTES,
    RARE_PROPERTIES,
    ROOMY_BATCH_BYTES,
    SERVER_OWNED,
    UNSUPPORTED,
    TagsCodes,
    chosen_queue_id,
    created_topic,
    refuse_many_keys,
    refuse_many_properties,
    refuse_topic,
)
from mailboat.broker.topic_creation import TopicCreation
from mailboat.config import MessageStoreConfig
from mailboat.errors import BrokerError, IllegalMessageError
from mailboat.model.batch import decode_batch
from mailboat.model.message_id import UniqKeyGenerator
from mailboat.model.names import (
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SEND_FORBIDDEN_TOPICS,
    dlq_topic,
)
from mailboat.model.properties import MAX_PROPERTIES_BYTES, PropertyName, decode_properties
from mailboat.model.sys_flag import CLIENT_BITS, MULTI_TAGS
from mailboat.model.topic import Perm, TopicConfig
from mailboat.protocol.codes import RequestCode, ResponseCode
from mailboat.protocol.command import parse_decimal
from mailboat.protocol.send_header import SendFields, SendRequest
from mailboat.store.message_inner import MessageInner, PutStatus

# A well-formed text holds nothing but 0x01 and 0x02 in turn once everything else is taken out.
_NOT_SEPARATORS: Final = bytes(code for code in range(256) if code not in (1, 2))
_SEPARATORS: Final = b"\x01\x02" * (MAX_PROPERTIES_BYTES // 2)
_PROPERTY_END: Final = 2
_EMPTY_VALUE: Final = b"\x01\x02"
_WAIT_TRUE: Final = b"WAIT\x01true\x02"
# As a plain number: an enumeration takes longer to compare.
_BATCH_CODE: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class SendMessageProcessor:
    """Checks, stores and answers sends."""

    def __init__(self, broker: BrokerContext, flush: FlushService) -> None:
        """Work for one broker."""
        self._broker = broker
        self._store = broker.store
        self._topics = broker.topics.table
        self._stats = broker.stats
        config = broker.settings.broker
        self._max_body_bytes = broker.settings.store.max_message_size
        # None first: it is what most clients send.
        self._own_names = (None, config.broker_name)
        self._answers = SendAnswers(broker, flush)
        self.suffix = (
            f"MSG_REGION\x01{config.region_id}\x02TRACE_ON\x01{self._answers.trace_on}\x02"
            f"CLUSTER\x01{config.broker_cluster_name}\x02"
        ).encode()
        """The properties that each message gets."""

        self._tags_codes = TagsCodes()
        self._has_delayed = False
        self._waiting_sends = ParkedSends(self._store_parked, self._refuse_parked)
        self._new_topic: TopicConfig | None = None
        self._unique_keys = UniqKeyGenerator(self._store.commit_log.store_host[:-4])

    @property
    def has_plain_answers(self) -> bool:
        """Whether region and trace are the ones that an answer of the short form has."""
        return self._answers.are_plain

    def configure(self, config: MessageStoreConfig) -> None:
        """Follow other settings."""
        self._max_body_bytes = self._answers.max_body_bytes = config.max_message_size

    def send(self, sends: list[Send]) -> None:
        """Check, store and answer sends; the answers of one connection leave with one write."""
        answers: Answers = defaultdict(list)
        self._store_all(sends, answers)
        for connection, parts in answers.items():
            connection.write(b"".join(parts))

    # -- check ----------------------------------------------------------------------------------

    def _store_all(self, sends: list[Send], answers: Answers) -> None:
        """Make messages of requests and store them; what ends before is answered and left out."""
        if self._store.refuses():
            self._refuse_all(sends, answers)
            return
        topics = self._topics
        max_body_bytes = self._max_body_bytes
        may_write = bool(self._broker.settings.broker.broker_permission & Perm.WRITE)
        accepted: list[Send] = []
        messages: list[MessageInner] = []
        for send in sends:
            connection, request, body = send
            fields = request.fields
            topic = fields.topic
            config = topics.get(topic)
            if (
                config is None
                or topic[0] == "%"
                or topic in SEND_FORBIDDEN_TOPICS
                or fields.batch
                or request.code == _BATCH_CODE
                or not 0 <= fields.queue_id < config.write_queue_nums
                or not 0 < len(body) <= max_body_bytes
                or config.topic_filter_type != "SINGLE_TAG"
                or fields.broker_name not in self._own_names
                or not may_write
            ):
                if config is None or topic[0] == "%":
                    if self._waits_for_topic(send, answers):
                        continue
                if request.code == _BATCH_CODE or fields.batch:
                    if messages:
                        self._store_messages(accepted, messages, answers)
                        accepted, messages = [], []
                    answer = self._store_batch(connection, request, body)
                    if answer is not None:
                        answers[connection].append(answer)
                    continue
                checked = self._check_rare(connection, request, body)
                if config is None and topic in topics:
                    held = AnswerWhenRouted(connection)
                    self._broker.registration.announce(held.release)
                    send = held, request, body
            else:
                try:
                    text = fields.properties
                    if text and text[-1] != "\x02":
                        text += "\x02"
                    checked = self._message(
                        connection.peer_host,
                        fields,
                        body,
                        fields.queue_id,
                        fields.message_flag,
                        text.encode(),
                        text,
                    )
                except BrokerError as error:
                    checked = self._answers.refusal(request, error)
                except Exception as error:
                    checked = self._answers.broken(request, error)
            if isinstance(checked, MessageInner):
                accepted.append(send)
                messages.append(checked)
            elif checked is not None:
                answers[connection].append(checked)
        if messages:
            self._store_messages(accepted, messages, answers)

    def _refuse_all(self, sends: list[Send], answers: Answers) -> None:
        """Refuse sends before anything is written or made: this replica may store nothing."""
        try:
            self._broker.refuse_messages()
        except BrokerError as error:
            for connection, request, _ in sends:
                self._stats.record_put_failed()
                if answer := self._answers.refusal(request, error):
                    answers[connection].append(answer)

    # -- topics that are made -------------------------------------------------------------------

    def _waits_for_topic(self, send: Send, answers: Answers) -> bool:
        """Keep a send until the topic that it needs is made, or refuse it; else return False."""
        asker, request, body = send
        try:
            creation = self._missing_topic(request)
            if creation is None:
                return False
            is_maker = creation.guest is None and creation.config.topic_name == request.fields.topic
            if is_maker:
                asker = self._answered_when_made(asker, creation)
            self._waiting_sends.park(creation, (asker, request, body))
        except BrokerError as error:
            answer = self._answers.refusal(request, error)
            if answer is not None:
                answers[send[0]].append(answer)
        return True

    def _missing_topic(self, request: SendRequest) -> TopicCreation | None:
        """Begin to make the topic that a send needs; None where it is there.

        Raises:
            BrokerError: it may not be made.
        """
        fields = request.fields
        require_own_name(self._broker, fields.broker_name)
        topic, new = fields.topic, self._new_topic
        if not topic.startswith(RETRY_PREFIX):
            if topic in self._topics or (new is not None and new.topic_name == topic):
                return None
            refuse_topic(topic)
            return created_topic(self._broker.topics, fields)
        retry = self._broker.retry
        is_batch = request.code == _BATCH_CODE or fields.batch
        if is_batch or not retry.is_dead(
            topic, fields.reconsume_times, request.version, fields.max_reconsume_times
        ):
            return None
        group = topic.removeprefix(RETRY_PREFIX)
        if new is not None and new.topic_name == dlq_topic(group):
            return None
        return retry.make_dead_letter_topic(group)

    def _answered_when_made(self, asker: Asker, creation: TopicCreation) -> Asker:
        held = AnswerWhenRouted(asker)

        def made(error: BrokerError | None) -> None:
            if error is None:
                self._broker.registration.announce(held.release)
            else:
                held.release()

        creation.on_end.append(made)
        return held

    def _store_parked(self, sends: list[Send], config: TopicConfig) -> None:
        """Store and answer sends whose topic is durable, and in the table once all are stored."""
        self._new_topic = config
        try:
            self.send(sends)
        finally:
            self._new_topic = None

    def _refuse_parked(self, sends: list[Send], error: BrokerError) -> None:
        for asker, request, _ in sends:
            answer = self._answers.refusal(request, error)
            if answer is not None:
                asker.write(answer)

    def _store_messages(
        self, accepted: list[Send], messages: list[MessageInner], answers: Answers
    ) -> None:
        if self._has_delayed:
            self._has_delayed = False
            for message in messages:
                if message.topic == SCHEDULE_TOPIC:
                    self._broker.schedule.begin_delay(message)
        self._store.put_messages(messages)
        self._answers.answer_all(accepted, messages, answers)

    def _message(
        self,
        born_host: bytes,
        fields: SendFields,
        body: bytes,
        queue_id: int,
        flag: int,
        stored: bytes,
        text: str,
    ) -> MessageInner:
        """Make the message to store.

        `stored` and `text` are its properties as bytes and as text, with a closing separator.

        Raises:
            BrokerError: the properties ask for what this broker does not do, or are too long.
        """
        separators = stored.translate(None, _NOT_SEPARATORS)
        if separators == _SEPARATORS[: len(separators)] and not len(separators) & 1:
            parts = iter(text.replace("\x02", "\x01").split("\x01"))
            properties = dict(zip(parts, parts, strict=False))
            if _EMPTY_VALUE in stored:
                # An empty one hides no earlier one, as whoever reads the record will see it.
                properties = decode_properties(text)
        else:
            properties = decode_properties(text)
            stored = _encode(properties)
        is_rare = not RARE_PROPERTIES.isdisjoint(properties)
        if is_rare:
            stored = _clean(properties)
        wait = properties.get("WAIT")
        if wait == "true":
            if stored.startswith(_WAIT_TRUE):
                stored = stored[len(_WAIT_TRUE) :]
            else:
                stored = stored.replace(b"\x02" + _WAIT_TRUE, b"\x02", 1)
        elif wait is not None:
            stored = _without(stored, f"WAIT\x01{wait}\x02".encode())
        unique_key = properties.get("UNIQ_KEY")
        if not unique_key:
            unique_key = self._unique_keys.next()
            stored += f"UNIQ_KEY\x01{unique_key}\x02".encode()
        stored += self.suffix
        if len(stored) > MAX_STORED_PROPERTIES_BYTES:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its properties take {len(stored)} bytes, at most "
                f"{MAX_STORED_PROPERTIES_BYTES} are allowed",
            )
        tag = properties.get("TAGS")
        code = self._tags_codes[tag] if tag else 0
        message = MessageInner(
            fields.topic,
            queue_id,
            body,
            stored,
            code,
            unique_key,
            properties.get("KEYS"),
            flag,
            fields.sys_flag & CLIENT_BITS,
            fields.born_timestamp_ms,
            born_host,
            fields.reconsume_times,
            0,
            wait != "false",
        )
        return self._parked(message, wait) if is_rare else message

    def _parked(self, message: MessageInner, wait: str | None) -> MessageInner:
        """Give a delayed or half message to the service that keeps it."""
        properties = decode_properties(message.properties.decode())
        level = _delay_level(properties)
        # A client's own retry waits for its time, whatever it was at first.
        is_retry = message.reconsume_times > 0 and level > 0
        if not is_retry and _is_half(properties):
            return self._broker.transactions.prepare(message, properties)
        if level <= 0:
            return message
        if wait:
            # RocketMQ keeps it in what is parked, and so in what is delivered.
            properties[PropertyName.WAIT] = wait
        self._has_delayed = True
        return self._broker.schedule.park(message, properties, level)

    # -- rare requests --------------------------------------------------------------------------

    def _check_rare(
        self, connection: Asker, request: SendRequest, body: bytes
    ) -> MessageInner | bytes | None:
        fields = request.fields
        try:
            config, queue_id = self._check_request(request, body)
            # The answer names this queue, even where the message is parked in another one.
            fields.queue_id = queue_id
            text = fields.properties
            if text and text[-1] != "\x02":
                text += "\x02"
            if fields.topic.startswith(RETRY_PREFIX):
                queue_id, text = self._place_retry(request, queue_id, text)
            message = self._message(
                connection.peer_host,
                fields,
                body,
                queue_id,
                fields.message_flag,
                text.encode(),
                text,
            )
            if config.topic_filter_type == "MULTI_TAG":
                message.sys_flag |= MULTI_TAGS
            return message
        except BrokerError as error:
            return self._answers.refusal(request, error)
        except IllegalMessageError as error:
            illegal = BrokerError(ResponseCode.MESSAGE_ILLEGAL, str(error))
            return self._answers.refusal(request, illegal)
        except Exception as error:
            return self._answers.broken(request, error)

    def _place_retry(self, request: SendRequest, queue_id: int, text: str) -> tuple[int, str]:
        """Return queue and properties for a client's own send to a retry topic.

        A message that was tried too often goes to the dead letters instead, at once.
        """
        fields = request.fields
        place = self._broker.retry.place_of_direct_send(
            fields.topic, fields.reconsume_times, request.version, fields.max_reconsume_times
        )
        if place is None:
            return queue_id, text
        fields.topic, queue_id = place
        properties = decode_properties(text)
        properties[PropertyName.DELAY] = "-1"
        return queue_id, _encode(properties).decode()

    def _check_request(self, request: SendRequest, body: bytes) -> tuple[TopicConfig, int]:
        """Return the topic and the queue for a request; raise BrokerError where there are none."""
        require_own_name(self._broker, request.fields.broker_name)
        config = self._topic(request)
        queue_id = chosen_queue_id(request.fields, config)
        if not body:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: its body is empty"
            )
        if len(body) > self._max_body_bytes:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message is illegal: its body has {len(body)} bytes, at most "
                f"{self._max_body_bytes} are allowed",
            )
        return config, queue_id

    def _topic(self, request: SendRequest) -> TopicConfig:
        fields = request.fields
        topic = fields.topic
        refuse_topic(topic)
        config = self._topics.get(topic)
        if config is None and topic.startswith(RETRY_PREFIX):
            retry = self._broker.retry
            # The sender has its queue from the route of another topic, as there was none of this.
            _, fields.queue_id = retry.retry_queue(retry.group(topic.removeprefix(RETRY_PREFIX)))
            config = self._topics.get(topic)
        if config is None:
            # Whatever else is missing waits to be made, or was refused before.
            assert self._new_topic is not None
            config = self._new_topic
        permission = self._broker.settings.broker.broker_permission
        if not permission & Perm.WRITE and config.order:
            raise BrokerError(
                ResponseCode.NO_PERMISSION,
                f"the broker {self._broker.settings.broker.broker_name} sending message is "
                "forbidden: its brokerPermission does not include write",
            )
        return config

    # -- client batches -------------------------------------------------------------------------

    def _store_batch(self, connection: Asker, request: SendRequest, body: bytes) -> bytes | None:
        """Store a client batch; return its answer, None where there is none or it comes later."""
        fields = request.fields
        try:
            if fields.topic.startswith(RETRY_PREFIX):
                raise BrokerError(
                    ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be sent to a retry topic"
                )
            _, queue_id = self._check_request(request, body)
            messages = self._messages(connection.peer_host, fields, body, queue_id)
        except BrokerError as error:
            return self._answers.refusal(request, error)
        except IllegalMessageError as error:
            illegal = BrokerError(ResponseCode.MESSAGE_ILLEGAL, str(error))
            return self._answers.refusal(request, illegal)
        self._store.put_batch(messages)
        count, status = len(messages), messages[0].status
        if status != PutStatus.PUT_OK:
            self._stats.record_put_failed(count)
            return self._answers.failed(request, status, queue_id)
        size_bytes = sum([message.size_bytes for message in messages])
        self._stats.record_put(fields.topic, count, size_bytes)
        return self._answers.answer_batch(connection, request, messages)

    def _messages(
        self, born_host: bytes, fields: SendFields, body: bytes, queue_id: int
    ) -> list[MessageInner]:
        """Make the messages of a client batch.

        Raises:
            BrokerError: one of them may not be stored, or not with the others.
            IllegalMessageError: the body is no batch.
        """
        items = decode_batch(body)
        if len(body) > ROOMY_BATCH_BYTES:
            refuse_many_properties(items)
        messages: list[MessageInner] = []
        try:
            for flag, item_body, properties in items:
                if properties and properties[-1] != _PROPERTY_END:
                    properties += b"\x02"
                text = properties.decode()
                if "DELAY\x01" in text or "TRAN_MSG\x01" in text:
                    _refuse_parked(text, len(messages))
                messages.append(
                    self._message(born_host, fields, item_body, queue_id, flag, properties, text)
                )
        except UnicodeDecodeError as error:
            raise BrokerError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"item {len(messages)} of the batch has properties that are not UTF-8",
            ) from error
        refuse_many_keys(messages)
        return messages


def _clean(properties: dict[str, str]) -> bytes:
    """Return the text of a message's properties without those that only the broker sets."""
    for name in UNSUPPORTED & properties.keys():
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer messages are not supported by this broker (property {name}); use a delay level",
        )
    for name in SERVER_OWNED:
        properties.pop(name, None)
    return _encode(properties)


def _delay_level(properties: dict[str, str]) -> int:
    """Return the delay level that a message asks for, 0 for none.

    Raises:
        BrokerError: it is not a number as Java reads it, who gets the message may.
    """
    text = properties.get(PropertyName.DELAY, "0")
    level = parse_decimal(text, 31)
    if level is None:
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL, f"the delay level DELAY={text[:40]!r} is not a number"
        )
    return level


def _is_half(properties: dict[str, str]) -> bool:
    return properties.get(PropertyName.TRANSACTION_PREPARED, "").lower() == "true"


def _refuse_parked(text: str, item: int) -> None:
    """Refuse an item of a batch that would take another way than the rest of it.

    Raises:
        BrokerError: it is a delayed or half message.
    """
    properties = decode_properties(text)
    if _is_half(properties) or _delay_level(properties) > 0:
        kind = "half" if _is_half(properties) else "delayed"
        raise BrokerError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"item {item} of the batch is a {kind} message; send delayed and half messages one by "
            "one",
        )


def _without(stored: bytes, entry: bytes) -> bytes:
    """Remove one whole entry from a properties text."""
    if stored.startswith(entry):
        return stored[len(entry) :]
    return stored.replace(b"\x02" + entry, b"\x02", 1)


def _encode(properties: dict[str, str]) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
