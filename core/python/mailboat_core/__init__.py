"""The compiled core: the hot path of the mailboat broker, and nothing it cannot do without."""

from mailboat_core._native import Round, SendRounds, body_crc

__all__ = ["Round", "SendRounds", "body_crc"]
