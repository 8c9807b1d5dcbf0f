import io
import logging

from common.process import FieldFormatter, JsonFormatter


def test_fields_follow_the_message() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(FieldFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.Logger("a.b")
    logger.addHandler(handler)
    logger.warning("pod %s", "left", extra={"pod": "p-1", "after_s": 2.5})
    assert stream.getvalue() == "WARNING a.b: pod left pod=p-1 after_s=2.5\n"


def test_colours_of_libraries_are_left_out() -> None:
    record = logging.makeLogRecord({"msg": "started", "color_message": "\x1b[36mstarted\x1b[0m"})
    assert FieldFormatter("%(message)s").format(record) == "started"
    assert "color" not in JsonFormatter().format(record)
