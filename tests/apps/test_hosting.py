"""What a host says of others, and in its log: nobody's name looks like another line."""

import io
import logging

import pytest

from tupelo.apps.hosting import IN_INTERVAL, INTERVAL_SECONDS, OneLine, RateLimit
from tupelo.values.text import one_line

FORGED = "ben\n2026-01-01 INFO tupelo: root was let in\r\x1b[2K\u2028\x85\x00"


@pytest.mark.parametrize("text", ["ben", "caf\N{LATIN SMALL LETTER E WITH ACUTE} #3", "a 'b' \\c"])
def test_what_can_be_shown_is_shown_as_it_is(text):
    assert one_line(text) == text


def test_what_could_look_like_another_line_is_escaped():
    line = one_line(FORGED)
    assert len(line.splitlines()) == 1 and line.isprintable()
    assert line.startswith("ben\\n2026-01-01 INFO")


def test_no_client_forges_a_line_of_the_log():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("%s showed a wrong password", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("a call of %s failed", FORGED)
    first, second, *others = stream.getvalue().splitlines()
    assert first.startswith("WARNING ben\\n2026") and first.endswith("showed a wrong password")
    assert second.startswith("ERROR a call of ben\\n2026")
    assert others and all(line.startswith("    ") for line in others)


def test_no_line_of_the_log_shows_the_password_of_a_url():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError("postgresql://ada:pa55word@db/work")
    except ValueError as error:
        logger.exception("a job has failed: %s", error)
    first, *_, last = stream.getvalue().splitlines()
    assert first == "a job has failed: postgresql://ada:***@db/work"
    assert last.endswith("ValueError: postgresql://ada:***@db/work")
    assert "pa55word" not in first + last


def test_repeated_warnings_are_counted_and_not_repeated():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(RateLimit())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    for number in range(3 * IN_INTERVAL):
        _log(logger, logging.WARNING, "%s was refused", f"a{number}", at=number)
        _log(logger, logging.ERROR, "%s failed", f"e{number}", at=number)
    _log(logger, logging.WARNING, "%s was refused", "b", at=INTERVAL_SECONDS)
    said = stream.getvalue().splitlines()
    refused = [line for line in said if "refused" in line]
    assert refused[:-1] == [f"a{number} was refused" for number in range(IN_INTERVAL)]
    assert refused[-1] == f"b was refused ({2 * IN_INTERVAL} more like this before)"
    assert sum("failed" in line for line in said) == 3 * IN_INTERVAL


def _log(logger: logging.Logger, level: int, text: str, who: str, at: float) -> None:
    record = logger.makeRecord("test", level, "", 0, text, (who,), None)
    record.created = at
    logger.handle(record)
