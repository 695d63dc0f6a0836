"""A real browser for pages: what it makes of them, what it complains of, and whom it asks."""

import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    # Nothing outside is reached even if the page tries: the log of requests shows the attempt.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"),
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


class Visit:
    """A page as the browser has it once its scripts have run."""

    def __init__(self, page, profile, *flags):
        log = profile / "requests.json"
        command = [
            CHROMIUM,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--log-net-log={log}",
            *flags,
            "--dump-dom",
            f"file://{page}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        self.dom = done.stdout
        self.complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.requests = sorted(_of_the_page(json.loads(log.read_text())["events"]))

    def value(self, name):
        """What a script of the test left in `data-NAME` of the body, as JSON."""
        found = re.search(rf'data-{name}="([^"]*)"', self.dom)
        return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))


def _of_the_page(events):
    """What pages asked for over the network; the browser's own requests have no origin."""
    for event in events:
        about = event.get("params", {})
        if about.get("initiator", "not an origin") != "not an origin" and about.get("url", "").startswith("http"):
            yield about["url"]
