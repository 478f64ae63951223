"""Which messages a consumer wants: subscriptions parsed and evaluated.

Belongs here: pure functions from an expression to a decision. Never here: input or output.
"""
