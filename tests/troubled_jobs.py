"""Jobs of the performance benchmark, some of which come to grief, each in its own way."""

import sys
import time


def fine(name):
    yield None
    yield 0, {"first": name}
    yield None
    yield 1, {"second": name}


def slow_start():
    time.sleep(60)
    yield None


def stuck():
    yield None
    yield 0, {"found": 1}
    time.sleep(60)


def broken():
    yield None
    raise ValueError("no such thing")


def dying():
    yield None
    sys.exit(3)
