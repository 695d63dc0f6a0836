"""Run the server in its own process, as users do, or in a thread, which starts sooner."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext

import httpx
from PIL import Image, ImageDraw

from tuplet import search

COLOURS = {"red": (190, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 190)}
SCRIPT = """
import resource, sys, torch
torch.set_num_threads(1)
from tuplet import search
from tuplet.search.server import Limits, serve
if int(sys.argv[3]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
index = search.open(sys.argv[1])
exec(sys.argv[5])
serve(index, port=0, token=sys.argv[2] or None, limits=Limits(seconds=float(sys.argv[4])))
"""


def draw_image(label, number):
    image = Image.new("RGB", (120, 90), COLOURS[label])
    ImageDraw.Draw(image).ellipse((5 * number, 10, 5 * number + 40, 70), fill=(250, 240, 200))
    return image


@contextmanager
def server(folder, token="", files=0, seconds=60.0, prepare="", log=None):
    """Start a server; yield its address and process; stop it afterwards.

    `files` is how many files it may open, `seconds` its limit of time, `prepare` code that may change its `index`, and
    `log` the file for what it prints.
    """
    command = [sys.executable, "-c", SCRIPT, str(folder), token, str(files), str(seconds), prepare]
    with tempfile.TemporaryFile() if log is None else nullcontext(log) as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

        def printed():
            return os.pread(log.fileno(), 10_000, 0).decode()

        try:
            # The system chooses the port: one that was free a moment ago may be another process's now.
            while (found := re.search(r"vectors at (http://\S+) ", printed())) is None:
                assert process.poll() is None, printed()
                time.sleep(0.05)
            httpx.get(f"{found[1]}/health", timeout=60)
            yield found[1], process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


@contextmanager
def server_in_thread(folder, token=None):
    """Serve an index to this machine in a thread; yield its address."""
    from tuplet.search.server.app import app_of  # fastapi and uvicorn may be missing
    from tuplet.search.server.connections import Server
    from tuplet.search.server.limits import Limits
    from tuplet.search.server.run import LOOPBACK
    from tuplet.search.server.service import Service

    limits = Limits()
    service = Service(search.open(folder), limits, originals=True)
    running = Server(app_of(service, token, LOOPBACK), limits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=running.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.should_exit = True
            thread.join(30)
            service.close()
