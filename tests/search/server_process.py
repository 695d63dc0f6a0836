"""Run the server in its own process, as users do."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
from PIL import Image, ImageDraw

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
