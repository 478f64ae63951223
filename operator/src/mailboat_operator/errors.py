"""Errors of the operator; they belong to mailboat's one tree (`mailboat.errors`).

MailboatError
  InvalidResourceError                a custom resource cannot be acted on as it is written
"""

from mailboat.errors import MailboatError


class InvalidResourceError(MailboatError):
    """A custom resource cannot be acted on as it is written; the text says what to change."""

    def __init__(self, resource: str, field: str, reason: str) -> None:
        """Name the resource (`Broker shop/orders`), the field's path, and what to do about it."""
        super().__init__(f"{resource}: {field}: {reason}")
        self.resource = resource
        self.field = field
        self.reason = reason
