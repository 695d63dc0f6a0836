"""Damage the files of an index, and ask a damaged one every question. Run as a program, a crash ends only itself."""

import json
import os
import random
import sys
import zlib
from pathlib import Path

import numpy as np
import torch

from tuplet import models
from tuplet.search import Index, files

ROWS, DIM = 600, 16


def vectors(seed=0):
    return np.random.default_rng(seed).normal(size=(ROWS, DIM)).astype(np.float32)


def make_index(folder, kind):
    """Make an index with a model, deleted items, thumbnails and an approximate index; return its folder."""
    torch.manual_seed(0)
    index = Index.create(folder, embedder=models.create("convnet", dim=DIM))
    metadata = [{"label": "abc"[i % 3]} for i in range(ROWS)]
    index.add(vectors(), range(ROWS), metadata, thumbnails=[str(i).encode() * (i % 50) for i in range(ROWS)])
    index.delete(range(0, ROWS, 10))
    index.build_approximate(kind, recall=0.3)
    index.delete(["11"])
    return index.folder


def flip_bits(folder, count, seed=0):
    """Flip one bit at a time: `verify` finds each; reading finds each too, or gives the same answers."""
    truth, rng = answers(folder), random.Random(seed)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != files.LOCK)
    assert len(paths) == 9
    for number in range(count):
        path = paths[number % len(paths)]
        good = path.read_bytes()
        bit = rng.randrange(8 * len(good))
        content = bytearray(good)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        told = []
        found = sentence(lambda: Index.open(folder).verify())
        read = sentence(lambda told=told: told.extend(answers(folder)))
        path.write_bytes(good)
        assert found is not None, (path, bit)
        assert path.name in found
        assert found.endswith(("restore it from a copy", "or index again", "build_approximate again", "a newer one"))
        assert read is not None or told == truth, (path, bit)
    assert answers(folder) == truth


def answers(folder):
    """Return what an index answers to questions that read all of its files."""
    index = Index.open(folder)
    told = [len(index), index.counts()]
    for options in ({}, {"exact": True}, {"where": {"label": "b"}}, {"distinct": -0.5}):
        found = index.search(vectors(1)[:5], **options)
        told += [found.scores.tolist(), found.rows.tolist(), list(found)]
    names = [str(i) for i in range(12, ROWS, 50)]
    told += [index.vectors(names).tolist(), [index.thumbnail(name) for name in names]]
    if index.has_model:
        told.append(index.embedder.fingerprint())
    return told


def sentence(call):
    """Return the message of the one kind of error that damage may cause, or None."""
    try:
        call()
    except ValueError as error:
        said = str(error)
    else:
        return None
    assert "\n" not in said
    assert len(said) < 500
    return said


def seal(folder, content=None):
    """Write the checksums anew, as somebody would who changes an index with a program: `content` is the manifest's."""
    path = Path(folder, files.MANIFEST)
    if content is None:
        content = json.loads(path.read_text())
        for name in files.FILES:
            file = Path(folder, name)
            counted = file.read_bytes()[: content["bytes"][name]] if file.exists() else b""
            content["crc32"][name] = zlib.crc32(counted)
    content.pop("checksum", None)
    content["checksum"] = zlib.crc32(json.dumps(content).encode())
    path.write_text(json.dumps(content, indent=1) + "\n")


def mutated(content, rng):
    """Return bytes with one of the usual kinds of damage."""
    content, place = bytearray(content), rng.randrange(len(content))
    kind = rng.choice(["bit", "byte", "head", "block", "zeros", "cut", "gone", "twice"])
    if kind == "bit":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        content[place] = (content[place] + rng.randrange(1, 256)) % 256
    elif kind == "head":
        content[rng.randrange(min(200, len(content)))] ^= 0xFF
    elif kind == "block":
        content[place : place + 64] = rng.randbytes(len(content[place : place + 64]))
    elif kind == "zeros":
        content[place : place + 4096] = bytes(len(content[place : place + 4096]))
        content[place] ^= 1
    elif kind == "cut":
        del content[place:]
    elif kind == "gone":
        del content[place : place + rng.randrange(1, 100)]
    else:
        content[place:place] = rng.randbytes(8)
    return bytes(content)


def mutate_approximate(folder, count):
    """Damage the approximate index in many ways; each is refused, or is no damage to what counts."""
    path, rng = Path(folder, Index.open(folder).approximate.file), random.Random(0)
    good, truth, refused = path.read_bytes(), answers(folder), 0
    for _ in range(count):
        path.write_bytes(mutated(good, rng))
        told = []
        why = sentence(lambda told=told: told.extend(answers(folder)))
        assert told == truth if why is None else "call build_approximate again" in why, why
        refused += why is not None
    path.write_bytes(good)
    assert answers(folder) == truth
    print(f"{refused} of {count} refused")


def shorten_under_reader(folder, is_mapped):
    """Cut each file of an index while it is open.

    One in memory is not needed any more. What needs a mapped one is refused, in a sentence.
    """
    files.IN_MEMORY = 0 if is_mapped else 1 << 26
    manifest = files.read_manifest(Path(folder))
    for name in (files.VECTORS, files.ITEMS, files.ROWS, files.THUMBNAILS, manifest.approximate.file):
        index, path = Index.open(folder), Path(folder, name)
        good = path.read_bytes()
        questions = [
            lambda index=index: list(index.search(vectors(1)[:5])),
            lambda index=index: list(index.search(vectors(1)[:5], exact=True)),
            lambda index=index: index.vectors(["501"]).tolist(),
            lambda index=index: index.thumbnail("501"),
            lambda index=index: [items.ids for items in index.batches()],
        ]
        truth = [ask() for ask in questions]
        searched = index.snapshot.vectors  # as a search that has begun
        os.truncate(path, 100)
        if is_mapped:
            why = [each for each in map(sentence, questions) if each]
            assert why, name
            assert all(f"{name} has 100 bytes of" in each for each in why), why
        else:
            assert np.isfinite(searched).all()
            assert [ask() for ask in questions] == truth
        path.write_bytes(good)
        assert [ask() for ask in questions] == truth
        print(name)


if __name__ == "__main__":
    if sys.argv[1] == "mutate":
        mutate_approximate(sys.argv[2], int(sys.argv[3]))
    else:
        for is_mapped in (False, True):
            shorten_under_reader(sys.argv[2], is_mapped)
