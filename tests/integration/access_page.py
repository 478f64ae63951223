"""docs/access-matrix.md, written from the matrices that the tests prove: `make access-matrix`.

What a request needs is read out of it by the table that judges requests; what is answered is what
the tests expect and get.
"""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from access_matrix import (
    ALLOWED,
    BROKER,
    NAME_SERVER,
    NOT_ASKED,
    NOTES,
    REFUSED,
    SOMEBODIES,
    Row,
    filled,
)
from aiohttp.test_utils import make_mocked_request
from http_matrix import ASKS, PRODUCE

from mailboat.config import Settings
from mailboat.errors import BrokerError
from mailboat.model.hosts import encode_host
from mailboat.model.message_id import encode_offset_message_id
from mailboat.protocol.codes import request_code_name
from mailboat.protocol.command import RemotingCommand, decode_command
from mailboat.protocol.frame import FrameDecoder
from mailboat.security import needs
from mailboat.security.access import Need
from mailboat.web.permissions import ROWS, Open

PAGE: Final = Path(__file__).parents[2] / "docs" / "access-matrix.md"

_INTRODUCTION: Final = """\
# Who may do what

Every request that a broker or a name server answers, what it needs, and what those get who send it.
This page is written by `make access-matrix` from what the tests send and get, each request by each
of them, plainly and by TLS (`tests/integration/test_guard.py`, `test_guarded_namesrv.py`,
`test_http_permissions.py`). Nothing that is refused leaves a trace.

| who | is |
|---|---|
| stranger | no signature, a wrong one, that of a user who is unknown or disabled: all the same |
| no rules | a user without any |
| producer | a user with `Topic:T` `Pub` |
| consumer | a user with `Topic:T` `Sub` and `Group:G` `Sub` |
| Super | a user of type Super; to a name server brokers as well, by their inner credentials |

**no** is code 16 (HTTP: 401 for strangers, 403). **yes** is success; with a number it is another
answer to whoever may ask, such as that there is no such message in the test. What is needed is
shown for the request of the test, about topic `T` or `U` and group `G` or `X`: "Sub or Get" is any
of them, "and" is all of them, `*` is the name of all. Rules and their words:
[security](security.md).
"""
_BROKER: Final = """
## Requests of a broker

The last column says where RocketMQ 5.5.0 with authentication and authorization answers otherwise.
"""
_NAME_SERVER: Final = """
## Requests of a name server

RocketMQ's name servers ask nobody who they are.
"""
_HTTP: Final = """
## HTTP

A bearer token may do what Super may. `HEAD` needs what `GET` does.
"""
_OPEN_TEXTS: Final = {
    Open.TO_ALL: "open to all",
    Open.PROBE: "open to all; strangers hear the status alone",
    Open.METRICS: "somebody who is known, no rule; `httpMetricsOpen=true` opens it",
}
_OFFSETS: Final = {1: ("T", "T"), 2: ("U", "U")}


def page() -> str:
    """Return the whole page."""
    rows_of_broker = needs.broker_rows("DefaultCluster", _OFFSETS.get)
    lines = [_INTRODUCTION, _BROKER]
    lines += _table(BROKER, rows_of_broker, NOTES)
    lines.append(_NAME_SERVER)
    lines += _table(NAME_SERVER, needs.namesrv_rows(), None)
    lines.append(_HTTP)
    lines += asyncio.run(_http_table())
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _table(
    matrix: Iterable[Row], rows: Mapping[int, needs.Row], notes: Mapping[int, str] | None
) -> list[str]:
    names = ["code", "request", "needs", "stranger", "no rules", "producer", "consumer", "Super"]
    names += ["RocketMQ 5.5.0"] if notes is not None else []
    lines = [_line(names), _line(["---"] * len(names))]
    seen = set()
    for row in sorted(matrix, key=lambda row: row.code):
        cells = [str(row.code), request_code_name(row.code), _needs_of(row, rows), "no"]
        cells += [_answer(getattr(row, who)) for who in SOMEBODIES]
        if row.code not in rows:
            cells[1] = "any other code"
        if notes is not None:
            cells.append(notes.get(row.code, ""))
        line = _line(cells)
        if line not in seen:
            lines.append(line)
        seen.add(line)
    return lines


def _needs_of(row: Row, rows: Mapping[int, needs.Row]) -> str:
    ids = {
        topic: encode_offset_message_id(encode_host("127.0.0.1", 10911), physical_offset)
        for physical_offset, (topic, _) in _OFFSETS.items()
    }
    command = RemotingCommand.request(row.code, filled(row, ids), row.body)
    [frame] = FrameDecoder().feed(command.encode())
    of_code = rows.get(row.code)
    if of_code is None:
        return "a valid signature"
    try:
        return _text(needs.needs_of(of_code, decode_command(frame)))
    except BrokerError:
        return "it does not say what it is about: Super"


def _text(needed: Iterable[Need]) -> str:
    texts = []
    for need in needed:
        actions = " or ".join(sorted(action.value for action in need.actions))
        texts.append(f"{actions} of `{need.kind.value}:{need.name}`")
    return " and ".join(texts) or "a valid signature"


def _answer(code: int) -> str:
    if code == REFUSED:
        return "no"
    if code in (0, ALLOWED, NOT_ASKED):
        return "yes"
    return f"yes, {code}"


async def _http_table() -> list[str]:
    names = ["route", "needs", "stranger", "no rules", "producer", "consumer", "Super"]
    lines = [_line(names), _line(["---"] * len(names))]
    for (method, path), row in ROWS.items():
        if isinstance(row, Open):
            stranger = "no" if row is Open.METRICS else "yes"
            lines.append(_line([f"{method} {path}", _OPEN_TEXTS[row], stranger, *["yes"] * 4]))
            continue
        if path == "/api/v1/declarations":
            needed = "Create of each topic and each group"
        else:
            request = make_mocked_request(method, "/", match_info={"topic": "T", "group": "G"})
            needed = _text(await row(request, Settings()))
        ask = ASKS[method, path]
        is_producers = (method, path) == PRODUCE
        root = "yes" if ask.answered == 200 else f"yes, {ask.answered}"
        cells: list[Any] = ["no", "no", "yes" if is_producers else "no", "no", root]
        lines.append(_line([f"{method} {path}", needed, *cells]))
    return lines


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
