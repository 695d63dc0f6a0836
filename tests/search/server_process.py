"""Run the server in its own process, as users do, or in a thread, which starts sooner."""

import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx
from PIL import Image, ImageDraw

from tuplet import search

COLOURS = {"red": (190, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 190)}
SCRIPT = """
import resource, sys, torch
torch.set_num_threads(1)
from tuplet import search
from tuplet.search.server import Limits, serve
if int(sys.argv[4]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[4]),) * 2)
index = search.open(sys.argv[1])
exec(sys.argv[6])
serve(index, port=int(sys.argv[2]), token=sys.argv[3] or None, limits=Limits(seconds=float(sys.argv[5])))
"""


def draw_image(label, number):
    image = Image.new("RGB", (120, 90), COLOURS[label])
    ImageDraw.Draw(image).ellipse((5 * number, 10, 5 * number + 40, 70), fill=(250, 240, 200))
    return image


@contextmanager
def server(folder, token="", files=0, seconds=10.0, prepare="", log=subprocess.PIPE):
    """Start a server; yield its address and process; stop it afterwards.

    `files` is how many files it may open, `seconds` its limit of time, and `prepare` code that may change its `index`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SCRIPT, str(folder), str(port), token, str(files), str(seconds), prepare]
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, process.stdout and process.stdout.read()
            try:
                httpx.get(f"{address}/health")
                break
            except httpx.ConnectError:
                time.sleep(0.1)
        yield address, process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)
        if process.stdout:
            process.stdout.close()


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
