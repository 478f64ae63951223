"""The SQL92 expressions that consumers have asked for, compiled.

An expression is compiled on a worker thread, one at a time, so that neither a long one nor the
first one, for which the parser is loaded, stops the event loop; after a long one the worker rests
four times as long, since it takes the interpreter from the loop while it works. The last used
expressions are kept, as are the refusals of wrong ones, which clients ask for again every second.
What is held on behalf of a waiting pull is the text, never the compiled form: memory is bounded by
the limits below.

Source: apache/rocketmq broker/filter/ConsumerFilterManager.java and the cache of
filter/parser/SelectorParser.java.
"""

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Iterator
from itertools import islice
from operator import length_hint
from typing import Final, NamedTuple, TypeAlias

from mailboat.config import BrokerConfig
from mailboat.errors import BrokerError, FilterSyntaxError
from mailboat.filtering.property_filter import PropertyFilter
from mailboat.filtering.sql.limits import check_length
from mailboat.model.subscription import EXPRESSION_SQL92, EXPRESSION_TAG
from mailboat.protocol.codes import ResponseCode

_log = logging.getLogger(__name__)

MAX_EXPRESSIONS: Final = 1024
# A compiled expression takes 10 to 40 bytes for each character.
MAX_CHARACTERS: Final = 262_144
# Expressions that wait for the worker.
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


class SqlFilters:
    """Compiled expressions by text."""

    def __init__(self) -> None:
        """Know none."""
        # The least recently used first.
        self._compiled: dict[str, _Compiled] = {}
        self._characters = 0
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._is_running = False

    def __len__(self) -> int:
        """Return how many expressions are kept."""
        return len(self._compiled)

    def find(self, text: str) -> PropertyFilter | None:
        """Return a compiled expression, None when it must be compiled first.

        Raises:
            BrokerError: the expression is wrong.
        """
        compiled = self._compiled.get(text)
        if compiled is None:
            _check_length(text)
            return None
        del self._compiled[text]
        self._compiled[text] = compiled
        if isinstance(compiled, BrokerError):
            raise BrokerError(compiled.code, compiled.remark)
        return compiled

    def compile(self, text: str, done: Callable[[], None]) -> None:
        """Compile an expression on the worker thread, then call `done`, where `find` knows it.

        Raises:
            BrokerError: too many expressions wait already.
        """
        if text not in self._waiting and len(self._waiting) >= MAX_WAITING:
            raise BrokerError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_WAITING} filter expressions wait to be compiled; try again later",
            )
        self._waiting.setdefault(text, []).append(done)
        if not self._is_running:
            self._run_next()

    def is_waiting(self, text: str) -> bool:
        """Tell whether an expression is being compiled or waits for it."""
        return text in self._waiting

    async def check(self, text: str) -> None:
        """Compile an expression unless it is known.

        Raises:
            BrokerError: the expression is wrong, or too many wait already.
        """
        if self.find(text) is None:
            ended = asyncio.Event()
            self.compile(text, ended.set)
            await ended.wait()
            self.find(text)

    def _run_next(self) -> None:
        self._is_running = bool(self._waiting)
        if not self._waiting:
            return
        text = next(iter(self._waiting))
        loop = asyncio.get_running_loop()
        compiling = loop.run_in_executor(None, _compile, text)
        compiling.add_done_callback(lambda ended: self._finish(text, ended))

    def _finish(self, text: str, ended: "asyncio.Future[_Outcome]") -> None:
        if ended.cancelled():
            return
        loop, rest_s = asyncio.get_running_loop(), 0.0
        error = ended.exception()
        if error is not None:
            _log.error("an SQL92 expression could not be compiled: %r", text, exc_info=error)
            remark = "the SQL92 expression could not be compiled; the broker's log says why"
            self._keep(text, BrokerError(ResponseCode.SYSTEM_ERROR, remark))
        else:
            compiled, took_s = ended.result()
            self._keep(text, compiled)
            rest_s = _REST_FACTOR * took_s if took_s > _LONG_S else 0.0
        _tell(loop, iter(self._waiting.pop(text)))
        loop.call_later(rest_s, self._run_next)

    def _keep(self, text: str, compiled: _Compiled) -> None:
        if self._compiled.pop(text, None) is None:
            self._characters += len(text)
        self._compiled[text] = compiled
        while len(self._compiled) > MAX_EXPRESSIONS or self._characters > MAX_CHARACTERS:
            oldest = next(iter(self._compiled))
            del self._compiled[oldest]
            self._characters -= len(oldest)


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
