"""Add and delete until killed, and print each change. Usage: endless_writer.py FOLDER FIRST."""

import sys

import numpy as np

from tuplet.search import Index

BATCH = 7


def vector(number: int) -> np.ndarray:
    """Return the vector of an item: a function of its number, so that readers can check it."""
    return np.random.default_rng(number).normal(size=16).astype(np.float32)


def main() -> None:
    index = Index.open(sys.argv[1])
    start = int(sys.argv[2])
    while True:
        numbers = range(start, start + BATCH)
        about = [{"label": f"label {number}"} for number in numbers]
        thumbnails = [str(number).encode() * (number % 5) for number in numbers]
        index.add(np.stack([vector(n) for n in numbers]), [str(n) for n in numbers], about, thumbnails=thumbnails)
        print("added", start, flush=True)
        index.delete([str(start + 1), str(start + 2)])
        print("deleted", start, flush=True)
        start += BATCH


if __name__ == "__main__":
    main()
