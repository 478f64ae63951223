"""The grammar of expressions, for an LALR(1) parser that lark builds from it.

NOT binds tighter than any comparison, as in RocketMQ: `NOT a = 1` is `(NOT a) = 1`, which is never
true. Unlike RocketMQ's parser, which ignores what stands behind a complete expression, this one
takes the whole text or refuses it.

Source: apache/rocketmq filter/parser/SelectorParser.jj.
"""

from typing import Final

GRAMMAR: Final = """
?selector: any_of
?any_of: all_of (OR all_of)*
?all_of: equality (AND equality)*
?equality: comparison
    | equality EQUAL comparison -> equal
    | equality UNEQUAL comparison -> not_equal
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null
?comparison: unary
    | comparison COMPARE unary -> compare
    | comparison (CONTAINS | STARTSWITH | ENDSWITH) STRING -> text_match
    | comparison NOT (CONTAINS | STARTSWITH | ENDSWITH) STRING -> no_text_match
    | comparison BETWEEN unary AND unary -> between
    | comparison NOT BETWEEN unary AND unary -> not_between
    | comparison IN texts -> contained
    | comparison NOT IN texts -> not_contained
texts: LEFT STRING (COMMA STRING)* RIGHT
?unary: primary
    | PLUS unary -> plus
    | MINUS unary -> negate
    | NOT unary -> negation
?primary: STRING -> string
    | WHOLE -> whole
    | DECIMAL -> decimal
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | NAME -> name
    | LEFT any_of RIGHT -> group
%declare AND OR NOT BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH
%declare EQUAL UNEQUAL COMPARE LEFT RIGHT COMMA PLUS MINUS STRING WHOLE DECIMAL NAME
"""
