"""Wait for what another process or another thread does, instead of a time in which it should have done it."""

import time


def wait_for(condition, seconds=120):
    """Return as soon as the condition is true; fail where it is still false after a time that only a hang takes."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.01)
