"""Write small run folders in the format of training, from real files."""

import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save_file

import tuplet
from tuplet import data as datasets
from tuplet import evaluation
from tuplet.training.split import query_mask

SETTINGS = {"loss": "multi_similarity", "loss_options": {}, "model": "convnet", "dim": 8, "steps": 40, "seed": 0}


def draw_folder(folder, names, each=6, size=(40, 32)):
    """Draw a folder of images per class: polygons in random colours and rotations."""
    random = np.random.default_rng(0)
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            image = Image.new("RGB", size, tuple(random.integers(0, 255, 3).tolist()))
            middle, fill = (size[0] // 2, size[1] // 2, 11), tuple(random.integers(0, 255, 3).tolist())
            ImageDraw.Draw(image).regular_polygon(middle, 3 + number % 6, rotation=int(random.integers(30)), fill=fill)
            image.save(folder / name / f"{i}.png")
    return folder


def vectors_for(labels, dim=8, noise=0.5, seed=0):
    """Return unit vectors around one centre per class; larger noise confuses the classes."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(int(labels.max()) + 1, dim, generator=draw)
    scattered = centres[labels] + noise * torch.randn(len(labels), dim, generator=draw)
    return torch.nn.functional.normalize(scattered, dim=1)


def write_run(folder, data, source, *, noise=0.5, rows=None, **settings):
    """Write a finished run whose test split is the whole dataset or the given rows."""
    folder.mkdir(parents=True, exist_ok=True)
    indices = torch.arange(len(data)) if rows is None else torch.tensor(rows)
    labels = data.labels[indices]
    embeddings = vectors_for(labels, noise=noise)
    tensors = {"embeddings": embeddings, "labels": labels, "indices": indices}
    if (is_query := query_mask(data.select(indices))) is not None:
        tensors["is_query"] = is_query
    save_file(tensors, folder / "vectors.safetensors")
    about = {
        "tuplet": tuplet.__version__,
        "data": str(source),
        "recipe": "demo",
        "settings": {**SETTINGS, **settings},
        "versions": {"python": "3.11.7", "torch": torch.__version__},
    }
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "evaluation.json").write_text(json.dumps(evaluation.evaluate(embeddings, labels, runs=2)))
    events = [{"event": "train", "step": 2 * i, "loss": 2 / (i + 1), "seconds": i / 4} for i in range(1, 21)]
    events += [{"event": "evaluation", "step": 20 * i, "recall_at_1": 0.3 * i} for i in (1, 2)]
    events += [{"event": "end", "step": 40, "seconds": 5.0}]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return folder


def image_run(place, names=("ant", "bee", "cat", "dog", "elk", "fox"), **options):
    """Write a run over a folder of images."""
    photos = draw_folder(Path(place) / "photos", names)
    return write_run(Path(place) / "run", datasets.open(photos), photos, **options)
