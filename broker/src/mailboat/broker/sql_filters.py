"""The SQL92 expressions that consumers have asked for, compiled.

An expression is compiled on a worker thread, one at a time, so that neither a long one nor the
first one, for which the parser is loaded, stops the event loop; after a long one the worker rests
four times as long, since it takes the interpreter from the loop while it works. Those who ask take
turns by address, and one address has a quarter of all places to wait in. The last used expressions
are kept, as are the refusals of wrong ones, which clients ask for again every second; where there
are too many, the address that has the most kept loses what it has used least recently. So nobody
pushes out what consumers at other addresses use.
What is held on behalf of a waiting pull is the text, never the compiled form: memory is bounded by
the limits below.

Source: apache/rocketmq broker/filter/ConsumerFilterManager.java and the cache of
filter/parser/SelectorParser.java.
"""

import asyncio
import importlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Final, NamedTuple, TypeAlias

from mailboat.config import BrokerConfig
from mailboat.errors import BrokerError, FilterSyntaxError
from mailboat.filtering.property_filter import PropertyFilter
from mailboat.filtering.sql.limits import check_length
from mailboat.model.subscription import EXPRESSION_SQL92, EXPRESSION_TAG
from mailboat.protocol.codes import ResponseCode
from mailboat.remoting.shares import Shares

_log = logging.getLogger(__name__)

MAX_EXPRESSIONS: Final = 1024
# A compiled expression takes 10 to 40 bytes for each character.
MAX_CHARACTERS: Final = 262_144
# Expressions that wait for the worker; one address has a quarter.
MAX_WAITING: Final = 1024
# Ordinary expressions take less than a millisecond.
_LONG_S: Final = 0.005
_REST_FACTOR: Final = 4
_TOLD_TOGETHER: Final = 64
_MODULE: Final = "mailboat.filtering.sql.sql_filter"

_Compiled: TypeAlias = PropertyFilter | BrokerError


class _Outcome(NamedTuple):
    """What a compilation came to, and how many seconds of the processor it took."""

    compiled: _Compiled
    took_s: float


class _Kept(NamedTuple):
    """What an expression was compiled to, and for which address."""

    compiled: _Compiled
    host: str


class SqlFilters:
    """Compiled expressions by text."""

    def __init__(self) -> None:
        """Know none."""
        # The least recently used first.
        self._compiled: dict[str, _Kept] = {}
        self._characters = 0
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        # What waits by address, both in the order of their turns. Several may wait for one text.
        self._turns: dict[str, dict[str, None]] = {}
        self._places = Shares(MAX_WAITING)
        self._is_running = False
        self._text: str | None = None
        """What is being compiled."""

    def __len__(self) -> int:
        """Return how many expressions are kept."""
        return len(self._compiled)

    def find(self, text: str) -> PropertyFilter | None:
        """Return a compiled expression, None when it must be compiled first.

        Raises:
            BrokerError: the expression is wrong.
        """
        kept = self._compiled.get(text)
        if kept is None:
            _check_length(text)
            return None
        del self._compiled[text]
        self._compiled[text] = kept
        compiled = kept.compiled
        if isinstance(compiled, BrokerError):
            raise BrokerError(compiled.code, compiled.remark)
        return compiled

    def compile(self, text: str, done: Callable[[], None], host: str = "") -> None:
        """Compile an expression on the worker thread, then call `done`, where `find` knows it.

        It has its turn among what the address `host` asks for.

        Raises:
            BrokerError: too many expressions wait already.
        """
        if text != self._text and text not in self._turns.get(host, ()):
            excess = self._places.excess(host, 1)
            if excess is not None:
                raise BrokerError(
                    ResponseCode.SYSTEM_BUSY,
                    "as many filter expressions wait to be compiled as may, "
                    f"{excess}; try again later",
                )
            self._places.take(host, 1)
            self._turns.setdefault(host, {})[text] = None
        self._waiting.setdefault(text, []).append(done)
        if not self._is_running:
            self._run_next()

    def is_waiting(self, text: str) -> bool:
        """Tell whether an expression is being compiled or waits for it."""
        return text in self._waiting

    async def check(self, text: str, host: str = "") -> None:
        """Compile an expression for an address unless it is known.

        Raises:
            BrokerError: the expression is wrong, or too many wait already.
        """
        if self.find(text) is None:
            ended = asyncio.Event()
            self.compile(text, ended.set, host)
            await ended.wait()
            self.find(text)

    def _run_next(self) -> None:
        while self._turns:
            host, text = self._take_turn()
            # Another address may have asked for it as well, and have had it by now.
            if text in self._waiting:
                self._is_running, self._text = True, text
                loop = asyncio.get_running_loop()
                compiling = loop.run_in_executor(None, _compile, text)
                compiling.add_done_callback(partial(self._finish, text, host))
                return
        self._is_running = False

    def _take_turn(self) -> tuple[str, str]:
        """Return the address whose turn it is and its first text; others come before its next."""
        host = next(iter(self._turns))
        texts = self._turns.pop(host)
        text = next(iter(texts))
        del texts[text]
        self._places.give(host, 1)
        if texts:
            self._turns[host] = texts
        return host, text

    def _finish(self, text: str, host: str, ended: "asyncio.Future[_Outcome]") -> None:
        if ended.cancelled():
            return
        self._text = None
        loop, rest_s = asyncio.get_running_loop(), 0.0
        error = ended.exception()
        if error is not None:
            _log.error("an SQL92 expression could not be compiled: %r", text, exc_info=error)
            remark = "the SQL92 expression could not be compiled; the broker's log says why"
            self._keep(text, BrokerError(ResponseCode.SYSTEM_ERROR, remark), host)
        else:
            compiled, took_s = ended.result()
            self._keep(text, compiled, host)
            rest_s = _REST_FACTOR * took_s if took_s > _LONG_S else 0.0
        _tell(loop, iter(self._waiting.pop(text)))
        loop.call_later(rest_s, self._run_next)

    def _keep(self, text: str, compiled: _Compiled, host: str = "") -> None:
        if self._compiled.pop(text, None) is None:
            self._characters += len(text)
        if len(self._compiled) >= MAX_EXPRESSIONS:
            self._make_room(lambda _: 1, len(self._compiled) + 1 - MAX_EXPRESSIONS)
        if self._characters > MAX_CHARACTERS:
            self._make_room(len, self._characters - MAX_CHARACTERS)
        self._compiled[text] = _Kept(compiled, host)

    def _make_room(self, weigh: Callable[[str], int], too_much: int) -> None:
        """Forget so much, each time of the address that has the most."""
        by_host: dict[str, list[str]] = {}
        weights: Counter[str] = Counter()
        for text, kept in reversed(self._compiled.items()):
            by_host.setdefault(kept.host, []).append(text)
            weights[kept.host] += weigh(text)
        while too_much > 0:
            host = max(weights, key=weights.__getitem__)
            oldest = by_host[host].pop()
            weights[host] -= weigh(oldest)
            del self._compiled[oldest]
            self._characters -= len(oldest)
            too_much -= weigh(oldest)


def _tell(loop: asyncio.AbstractEventLoop, waiting: Iterator[Callable[[], None]]) -> None:
    """Call those who waited, a few in each round of the loop: a pull may find much to read."""
    for done in islice(waiting, _TOLD_TOGETHER):
        loop.call_soon(done)
    if length_hint(waiting):
        loop.call_soon(_tell, loop, waiting)


def check_expression_type(kind: str, config: BrokerConfig) -> None:
    """Refuse a subscription by anything but tags or, where the broker may, SQL92.

    Raises:
        BrokerError: it is refused.
    """
    if not config.enable_property_filter:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind}",
        )
    if kind != EXPRESSION_SQL92:
        raise BrokerError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"unknown expression type {kind!r}; use {EXPRESSION_TAG} or {EXPRESSION_SQL92}",
        )


def _check_length(text: str) -> None:
    """Refuse at once what is too long to be kept, even as a refusal."""
    try:
        check_length(text)
    except FilterSyntaxError as error:
        raise BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error


def _compile(text: str) -> _Outcome:
    module = importlib.import_module(_MODULE)
    begin_s = time.thread_time()
    compiled: _Compiled
    try:
        compiled = module.compile_sql(text)
    except FilterSyntaxError as error:
        compiled = BrokerError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    return _Outcome(compiled, time.thread_time() - begin_s)
