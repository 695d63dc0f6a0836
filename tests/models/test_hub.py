"""Models go to a hub and come back, through a server on this machine that speaks the hub's protocol."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tuplet import models
from tuplet.models.card import write_card
from tuplet.models.hub import find_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = """
import torch, tuplet
from tuplet import models
torch.manual_seed(0)
embedder = models.create("mlp", features=4, dim=2)
embedder.push_to_hub("tester/points", private=True)
again = tuplet.load("tester/points")
assert again.fingerprint() == embedder.fingerprint()
try:
    tuplet.load("tester/nothing")
except FileNotFoundError as error:
    print(error)
"""


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's interface that sending and fetching use; files are kept in memory."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    created: list[dict] = []  # noqa: RUF012

    def log_message(self, *_):
        pass

    def answer(self, body, status=200, **headers):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            self.answer(
                {"url": f"http://{self.headers['Host']}/tester/points", "name": "tester/points", "id": "tester/points"}
            )
        elif self.path == "/api/validate-yaml":  # of the card
            self.answer({"errors": [], "warnings": []})
        elif self.path.endswith("/preupload/main"):
            files = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(
                {
                    "commitUrl": f"http://{self.headers['Host']}/tester/points/commit/{COMMIT}",
                    "commitOid": COMMIT,
                    "success": True,
                }
            )
        else:
            self.answer({}, 404)

    def do_GET(self):
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/tester/points/tree/"):
            self.answer(
                [
                    {"type": "file", "path": n, "size": len(x), "oid": hashlib.sha1(x).hexdigest()}
                    for n, x in self.files.items()
                ]
            )
        elif path.startswith("/api/models/tester/points"):
            siblings = [{"rfilename": name} for name in self.files]
            self.answer({"id": "tester/points", "sha": COMMIT, "siblings": siblings, "private": True})
        elif path.startswith("/tester/points/resolve/") and name in self.files:
            digest = hashlib.sha1(self.files[name]).hexdigest()
            self.answer(self.files[name], X_Repo_Commit=COMMIT, ETag=f'"{digest}"')
        else:
            self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET  # noqa: N815


def test_a_model_goes_to_a_hub_and_comes_back(tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": "hf_x",
    }
    environment = {
        **os.environ,
        **settings,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    server.shutdown()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tester/nothing is neither a folder here nor a model of the hub that can be fetched")
    assert {*Hub.files} == {"README.md", "embedder.json", "model.safetensors"}
    asked = Hub.created[0]
    assert asked.get("visibility", asked.get("private")) in ("private", True), asked  # the older name is "private"
    assert Hub.files["README.md"].startswith(b"---\nlibrary_name: tuplet\n")


@pytest.mark.parametrize("name", ["here", "runs/a/best", "/absolute/path", "a b/c"])
def test_paths_are_not_looked_up_on_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(find_model(name)) == name


def test_a_card_tells_what_the_model_is(tmp_path):
    embedder = models.create("convnet", dim=4)
    run = {
        "data": "/home/me/photos",
        "recipe": None,
        "settings": {"loss": "raw", "steps": 40, "batch_size": 8, "seed": 0},
    }
    metrics = {"recall_at_1": 0.875, "split": "test", "classes": 8, "trained_classes": 0}
    write_card(tmp_path, embedder, run, metrics)
    text = (tmp_path / "README.md").read_text()
    for part in ("| data | photos |", "| loss | raw |", "| Recall@1 | 87.50 % |", "Licence", "Intended use", "28 × 28"):
        assert part in text
    assert "Measured on the test split: classes that the training has not seen." in text
    assert "/home/me" not in text
    assert embedder.fingerprint() in text
    for trained, sentence in (
        (8, "test split: new examples of the training classes."),
        (3, "test split: 8 classes, 3 of them trained on."),
        (None, "test split.\n"),
    ):
        write_card(tmp_path, embedder, run, {**metrics, "trained_classes": trained})
        assert f"Measured on the {sentence}" in (tmp_path / "README.md").read_text()
