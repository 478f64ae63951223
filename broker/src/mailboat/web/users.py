"""The part of the JSON API that tells which state of a user counts in this process.

GET /api/v1/users/{user}    its revision, as the file of the user has it, and its quotas; never a
                            secret or a rule

Whoever writes the files learns from it whether a change, or the end of a user, is in force.
"""

from typing import Final

import msgspec
from aiohttp import web

from mailboat.security.quotas import quotas_body
from mailboat.web.context import WebContext
from mailboat.web.replies import reply

_NOT_KNOWN: Final = "there is no such user"


class UserBody(msgspec.Struct):
    """A user that counts; `revision` is empty where its source has none.

    `quotas` are those that it has, by their names in files.
    """

    user: str
    revision: str
    is_enabled: bool
    quotas: dict[str, int]


def add_routes(app: web.Application, context: WebContext) -> None:
    """Serve this part of the API."""

    async def user(request: web.Request) -> web.Response:
        name, users = request.match_info["user"], context.users
        found = users.get(name) if users is not None else None
        if found is None:
            raise web.HTTPNotFound(text=_NOT_KNOWN)
        quotas = {} if found.quotas is None else quotas_body(found.quotas)
        return reply(UserBody(found.name, found.revision, found.is_enabled, quotas))

    app.router.add_get("/api/v1/users/{user}", user)
