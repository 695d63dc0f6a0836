"""Vectors of large sets of images, written to disk in shards, so that an interrupted call goes on where it was."""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tuplet.atomic import explain_write_errors, write_atomic
from tuplet.data.store import Unreadable
from tuplet.embedding.pipeline import Embedded, embed_files
from tuplet.models import Embedder

#: Images of a shard: what an interrupted call has to do again at most.
SHARD = 8192


def embed_in_shards(
    embedder: Embedder,
    paths: Sequence[str],
    folder: Path,
    unreadable: Unreadable = "stop",
    shard: int = SHARD,
    pixels: Callable[[str], Tensor] | None = None,
) -> Embedded[str]:
    """Embed image files as `embed_files` does, and keep every `shard` of them in `folder` as soon as they are done.

    A second call with the same embedder and the same paths reads what the first one wrote. Any other call begins anew.
    The caller deletes the folder. Sets of a single shard are not written.

    Args:
        embedder: the embedder.
        paths: the names of the images.
        folder: where the shards are written.
        unreadable: stop with an error at an image that cannot be read, or skip it.
        shard: the number of images of a shard.
        pixels: returns the pixels of a name, where names are not paths of files.
    """
    if len(paths) <= shard:
        return embed_files(embedder, paths, unreadable, pixels)
    listed = hashlib.sha256(json.dumps([embedder.fingerprint(), unreadable, shard, list(paths)]).encode()).hexdigest()
    identity = folder / "identity"
    if not identity.is_file() or identity.read_text() != listed:
        shutil.rmtree(folder, ignore_errors=True)
        with explain_write_errors(folder):
            folder.mkdir(parents=True)
        write_atomic(identity, lambda part: part.write_text(listed))
    found = []
    for start in range(0, len(paths), shard):
        path = folder / f"{start:09}.safetensors"
        if not path.is_file():
            _write(path, embed_files(embedder, paths[start : start + shard], unreadable, pixels))
        found.append(_read(path))
    vectors = torch.cat([each.vectors for each in found])
    items = [item for each in found for item in each.items]
    return Embedded(vectors, items, [problem for each in found for problem in each.problems])


def _write(path: Path, found: Embedded[str]) -> None:
    about = {"paths": json.dumps(found.items), "problems": json.dumps(found.problems)}
    write_atomic(path, lambda part: save_file({"embeddings": found.vectors}, part, metadata=about))


def _read(path: Path) -> Embedded[str]:
    with safe_open(path, "pt") as file:
        about = file.metadata()
        return Embedded(file.get_tensor("embeddings"), json.loads(about["paths"]), json.loads(about["problems"]))
