"""Cuts an expression into tokens, as RocketMQ's generated scanner does.

Keywords are ASCII in any case. `--` begins a comment when a line end follows it, or when it stands
behind a complete expression; elsewhere it is two signs. Blanks are space, tab, line feed, carriage
return and form feed, nothing else.

Source: apache/rocketmq filter/parser/SelectorParser.jj.
"""

import re
from collections.abc import Iterator
from typing import Final

from lark import Token
from lark.lexer import Lexer

from mailboat.errors import FilterSyntaxError
from mailboat.filtering.sql.limits import MAX_TOKENS

KEYWORDS: Final = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()
)
_SYMBOLS: Final = {
    "=": "EQUAL",
    "<>": "UNEQUAL",
    ">": "COMPARE",
    ">=": "COMPARE",
    "<": "COMPARE",
    "<=": "COMPARE",
    "(": "LEFT",
    ")": "RIGHT",
    ",": "COMMA",
    "+": "PLUS",
    "-": "MINUS",
}
_OPERAND_ENDS: Final = frozenset(
    ("NAME", "STRING", "WHOLE", "DECIMAL", "TRUE", "FALSE", "NULL", "RIGHT")
)
_BLANKS: Final = " \t\n\r\f"
_SPACE: Final = re.compile(f"[{_BLANKS}]++")
_TOKEN: Final = re.compile(
    r"(?P<DECIMAL>[0-9]++\.[0-9]*+(?:[eE][+-]?[0-9]++)?"
    r"|\.[0-9]++(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++)"
    r"|(?P<WHOLE>0|[1-9][0-9]*+[lL]?)"
    r"|(?P<STRING>'(?:[^']++|'')*+')"
    r"|(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*+)"
    r"|(?P<SYMBOL><>|>=|<=|[=<>(),+-])"
)


class SqlLexer(Lexer):
    """The lexer that the grammar is used with."""

    def __init__(self, lexer_conf: object) -> None:
        """Take nothing from the grammar: it only declares the tokens."""

    def lex(self, text: str) -> Iterator[Token]:  # type: ignore[override]
        """Yield the tokens of a text.

        Raises:
            FilterSyntaxError: there is a character that no token has, or too many tokens.
        """
        at, previous, count = 0, "", 0
        while (at := _skip(text, at, previous)) < len(text):
            count += 1
            if count > MAX_TOKENS:
                raise FilterSyntaxError(
                    f"there are more than {MAX_TOKENS} words, literals and signs; shorten it"
                )
            match = _TOKEN.match(text, at)
            if match is None:
                raise FilterSyntaxError(_bad_character(text, at))
            image = match.group()
            kind = match.lastgroup or ""
            if kind == "NAME" and image.upper() in KEYWORDS:
                kind = image.upper()
            elif kind == "SYMBOL":
                kind = _SYMBOLS[image]
            yield Token(kind, image, start_pos=at)
            previous, at = kind, match.end()


def _skip(text: str, at: int, previous: str) -> int:
    """Return the position after blanks and comments."""
    while at < len(text):
        if text[at] in _BLANKS:
            match = _SPACE.match(text, at)
            assert match is not None
            at = match.end()
        elif text.startswith("--", at):
            ends = [end for end in (text.find("\n", at), text.find("\r", at)) if end >= 0]
            if ends:
                at = min(ends)
            elif previous in _OPERAND_ENDS:
                at = len(text)
            else:
                break
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            if end < 0:
                raise FilterSyntaxError(f"the comment at position {at + 1} has no end; close it")
            at = end + 2
        else:
            break
    return at


def _bad_character(text: str, at: int) -> str:
    if text[at] == "'":
        return f"the text that begins at position {at + 1} has no closing '"
    return f"unexpected character {text[at]!r} at position {at + 1}"
