import random

import pytest

from mailboat.cli.sent_lines import Fate, SentLines, name_lines

STORED, DOUBTFUL, NOT_STORED = Fate.STORED, Fate.DOUBTFUL, Fate.NOT_STORED


@pytest.mark.parametrize(
    ("fates", "summary", "is_exact"),
    [
        ([], "none is stored, line 1 is the first that is not", True),
        ([(1, 1, STORED)], "line 1 is stored, line 2 is the first that is not", True),
        (
            [(5, 9, STORED), (1, 4, STORED)],
            "lines 1 to 9 are stored, line 10 is the first that is not",
            True,
        ),
        (
            [(1, 4, STORED), (5, 9, NOT_STORED)],
            "lines 1 to 4 are stored, line 5 is the first that is not",
            True,
        ),
        (
            [(7, 9, STORED), (1, 4, STORED), (12, 12, STORED)],
            "lines 1 to 4 are stored, line 5 is the first that is not; "
            "lines 7 to 9, 12 behind it are stored too",
            False,
        ),
        (
            [(1, 4, STORED), (5, 9, DOUBTFUL), (10, 20, STORED)],
            "lines 1 to 4 are stored, line 5 is the first that may or may not be; "
            "lines 10 to 20 behind it are stored too; lines 5 to 9 may or may not be stored",
            False,
        ),
        (
            [(1, 4, STORED), (5, 9, NOT_STORED), (10, 20, DOUBTFUL)],
            "lines 1 to 4 are stored, line 5 is the first that is not; "
            "lines 10 to 20 may or may not be stored",
            False,
        ),
        (
            [(1, 1, DOUBTFUL)],
            "none is stored, line 1 is the first that may or may not be",
            False,
        ),
    ],
)
def test_summary_says_what_is_certain(fates, summary: str, is_exact: bool):
    """Which lines are stored, which is the first that is not, and what is behind it."""
    sent = SentLines()
    for fate in fates:
        sent.add(*fate)
    assert (sent.summary(), sent.is_exact) == (summary, is_exact)


def test_any_order_gives_the_same():
    """Stretches join whatever order they come in."""
    fates = [STORED, STORED, DOUBTFUL, STORED, NOT_STORED, STORED, STORED, DOUBTFUL, DOUBTFUL]
    stretches = [(10 * i + 1, 10 * i + 10, fate) for i, fate in enumerate(fates)]
    for seed in range(50):
        sent = SentLines()
        for stretch in random.Random(seed).sample(stretches, len(stretches)):
            sent.add(*stretch)
        assert sent.stored_to == 20
        assert sent.doubtful == [(21, 30), (71, 90)]
        assert sent.stored_behind == [(31, 40), (51, 70)]


def test_many_stretches_are_not_all_named():
    """A sentence stays a sentence."""
    named = name_lines([(10 * i, 10 * i + 1) for i in range(1, 31)])
    assert named.startswith("lines 10 to 11, 20 to 21, ")
    assert named.endswith(", 100 to 101, and 20 more stretches")
