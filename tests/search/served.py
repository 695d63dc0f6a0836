"""A server in a process of its own, as users run it."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
from PIL import Image, ImageDraw

COLOURS = {"red": (190, 40, 40), "green": (40, 160, 60), "blue": (50, 70, 190)}
SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from tuplet import search
from tuplet.search.server import serve
serve(search.open(sys.argv[1]), port=int(sys.argv[2]), token=sys.argv[3] or None)
"""


def photograph(label, number):
    image = Image.new("RGB", (120, 90), COLOURS[label])
    ImageDraw.Draw(image).ellipse((5 * number, 10, 5 * number + 40, 70), fill=(250, 240, 200))
    return image


@contextmanager
def server(folder, token=""):
    """Its address and its process; ended at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SCRIPT, str(folder), str(port), token]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None, process.stdout.read()
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
        process.stdout.close()
