"""Open pages in chromium: their DOM, their console messages and their network requests."""

import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    # No host can be reached; the log of requests shows attempts.
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"),
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")


class Visit:
    """A page after its scripts have run."""

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
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        self.dom = done.stdout
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.requests = sorted(_requests_of_page(json.loads(log.read_text())["events"]))

    def value(self, name):
        """Return the JSON that a script of the test wrote to `data-NAME` of the body."""
        found = re.search(rf'data-{name}="([^"]*)"', self.dom)
        return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))


def _requests_of_page(events):
    """Yield the URLs that the page requested; requests of the browser itself have no origin."""
    for event in events:
        about = event.get("params", {})
        if about.get("initiator", "not an origin") != "not an origin" and about.get("url", "").startswith("http"):
            yield about["url"]
