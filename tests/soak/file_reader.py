"""Read files of every kind, one per line of standard input, and tell the outcome of each in a line of JSON.

Run as a program, so that a crash or a file that takes without end is seen from outside.
"""

import json
import resource
import sys
import time
import traceback
from pathlib import Path

import torch

import tuplet
from search.damage import answers
from training_tools import QUICK, vectors
from tuplet import data, models, reports, training
from tuplet.search import Index

#: Errors that the command line prints as one sentence.
EXPECTED = (OSError, ValueError, TypeError, ImportError, FloatingPointError)
PACKAGE = str(Path(tuplet.__file__).parent)


def read_data(path):
    """Open a dataset and decode its images."""
    dataset = data.open(path, complete=False)
    return dataset.labels.tolist(), None if dataset.images is None else data.load(dataset, size=8).values


def read_index(folder):
    Index.open(folder).verify()
    return answers(folder)


def resume(folder):
    return training.train(vectors(), folder, **{**QUICK, "steps": 8}).metrics["recall_at_1"]


def read_image(path):
    return EMBEDDER.embed(path).tolist()


READERS = {
    "data": read_data,
    "image": read_image,
    "index": read_index,
    "model": lambda folder: models.load(folder).fingerprint(),
    "report": lambda folder: reports.write(folder),
    "run": resume,
}


def outcome(reader, path):
    """Return "result" or "sentence", or what is wrong with how the reading ended."""
    try:
        READERS[reader](path)
    except EXPECTED as error:
        frames = traceback.extract_tb(error.__traceback__)
        text, by = str(error), f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        if not frames[-1].filename.startswith(PACKAGE):
            return f"an error of another library, from {by}: {type(error).__name__}: {text[:200]}"
        if "\n" in text or len(text) > 600:
            return f"{len(text)} characters from {by}: {text[:200]!r}"
        return "sentence"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        by = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        return f"a traceback from {by}: {type(error).__name__}: {str(error)[:200]}"
    return "result"


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    EMBEDDER = models.create("convnet", dim=4)
    print("ready", flush=True)
    for line in sys.stdin:
        reader, path = line.rstrip("\n").split("\t")
        begun = time.monotonic()
        told = outcome(reader, Path(path))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        sys.stdout.flush()
        print(json.dumps([told, time.monotonic() - begun, peak]), flush=True)
