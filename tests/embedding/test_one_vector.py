"""One image has one vector, whichever way it goes from a file to the embedder."""

import asyncio
import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file

from commands import typed
from search.asgi_client import client
from tuplet import data, models, search, training
from tuplet.embedding import embed_store
from tuplet.search.ingest import add_images
from tuplet.search.listing import list_images

#: The class folder and the name of each image.
NAMES = ["rotated.jpg", "tall.png", "wide.jpg", "grey.jpg", "deep.png", "transparent.png"]


def scene(width, height, seed):
    """Return a smooth image with edges and grain, as a camera takes it."""
    rng = np.random.default_rng(seed)
    blobs = Image.fromarray(rng.integers(0, 256, (9, 12, 3), np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    grain = rng.normal(0, 8, (height, width, 1))
    y, x = np.mgrid[:height, :width]
    stripes = 40 * ((x // 37 + y // 53) % 2)[..., None]
    return Image.fromarray((np.asarray(blobs) * 0.8 + grain + stripes).clip(0, 255).astype(np.uint8))


def write_images(folder):
    """Write a 12-megapixel JPEG with an EXIF rotation, a tall, a wide, a grey, a 16-bit and a transparent image."""
    exif = Image.Exif()
    exif[0x0112] = 6
    folder.mkdir(parents=True)
    scene(4001, 3001, 0).save(folder / NAMES[0], quality=90, exif=exif)
    scene(90, 700, 1).save(folder / NAMES[1])
    scene(1501, 300, 2).save(folder / NAMES[2], quality=90)
    scene(640, 480, 3).convert("L").save(folder / NAMES[3], quality=90)
    deep = np.asarray(scene(500, 400, 4).convert("L")).astype(np.uint16) * 257 + 5
    Image.fromarray(deep).save(folder / NAMES[4])
    transparent = scene(333, 444, 5)
    transparent.putalpha(Image.linear_gradient("L").resize(transparent.size))
    transparent.save(folder / NAMES[5])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose test split is the six images twice, in two classes, and an index of that folder."""
    place = tmp_path_factory.mktemp("one")
    for part, name, seed in (("train", "a", 10), ("train", "b", 20)):
        (place / "set" / part / name).mkdir(parents=True)
        for i in range(4):
            scene(70, 50, seed + i).save(place / "set" / part / name / f"{i}.png")
    write_images(place / "set/test/c")
    (place / "set/test/d").mkdir()
    for i in range(2):
        scene(70, 50, 30 + i).save(place / "set/test/d" / f"{i}.png")
    options = {"model": "convnet", "model_options": {"size": 48, "channels": 3}, "dim": 16, "device": "cpu"}
    sizes = {"resize": 56, "resize_mode": "shorter", "batch_size": 4, "per_class": 2, "steps": 2}
    run = training.train(place / "set", place / "run", loss="raw", **options, **sizes)
    succeeded_in(place, "index", "run", "set", "--split", "test", "--out", "index")
    folder = place / "set/test/c"
    reference = run.embedder.embed([folder / name for name in NAMES])
    return SimpleNamespace(place=place, embedder=run.embedder, folder=folder, reference=reference)


def succeeded_in(place, *words):
    done = typed(*words, cwd=place)
    assert done.exit_code == 0, done.output
    return done.output


def by_name(run, vectors, paths):
    found = {str(path).rpartition("/")[2]: vector for path, vector in zip(paths, vectors, strict=True)}
    return torch.stack([torch.as_tensor(found[name]) for name in NAMES])


def of_training(run):
    saved = load_file(run.place / "run/vectors.safetensors")
    opened = data.open(run.place / "set")
    return by_name(run, saved["embeddings"], [opened.path(i) for i in saved["indices"].tolist()])


def of_evaluate(run, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "tuplet.training.evaluate.all_metrics",
        lambda vectors, part, *_, **__: seen.append((vectors, part)) or {"classes": 2, "intervals": {}},
    )
    monkeypatch.setattr("tuplet.cli.evaluate.print_metrics", lambda _: None)
    succeeded_in(run.place, "evaluate", "run", "--device", "cpu")
    vectors, part = seen[0]
    return by_name(run, vectors, part.images)


def of_compare(run):
    """The images that a comparison decodes once for all its runs."""
    opened = data.open(run.place / "set")
    crop = run.embedder.preprocessing.crop
    held = data.hold(opened, 56, crop=crop).part("test")
    vectors = embed_store(run.embedder, data.load(held, crop=crop))
    return by_name(
        run, vectors, [path for path, split in zip(opened.images, opened.splits, strict=True) if split == "test"]
    )


def of_command(run):
    succeeded_in(run.place, "embed", "run", "set/test/c", "--out", "vectors.npz", "--device", "cpu")
    with np.load(run.place / "vectors.npz") as saved:
        return by_name(run, saved["embeddings"], saved["paths"])


def of_index(run):
    index = search.open(run.place / "index")
    return torch.from_numpy(np.asarray(index.vectors([f"test/c/{name}" for name in NAMES])))


def of_query(run):
    """A query is compared with the vectors of the index: its nearest is itself, at a score of 1."""
    index = search.open(run.place / "index")
    hits = index.search([str(run.folder / name) for name in NAMES], 1)
    assert [hit[0].id for hit in hits] == [f"test/c/{name}" for name in NAMES]
    assert min(hit[0].score for hit in hits) > 0.99999
    return run.reference


def of_server(run, monkeypatch):
    from tuplet.search.server import create_app  # not where fastapi is missing
    from tuplet.search.server.service import Service

    seen, embed = [], Service._embed
    monkeypatch.setattr(
        Service,
        "_embed",
        lambda self, images, wanted: seen.extend(embed(self, images, wanted)) or seen[-len(images) :],
    )

    app = create_app(search.open(run.place / "index"))

    async def ask():
        async with client(app) as connection:
            for name in NAMES:
                answer = await connection.post("/api/search/image?k=1", content=(run.folder / name).read_bytes())
                assert answer.status_code == 200, answer.text

    asyncio.run(ask())
    return torch.from_numpy(np.stack(seen))


def of_onnx(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    models.export_onnx(run.embedder, tmp_path / "model.onnx")
    images = torch.stack([run.embedder.preprocessing.image(run.folder / name) for name in NAMES])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    return torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def embedded(run, make):
    return run.embedder.embed([make(run.folder / name) for name in NAMES])


def upright(path):
    return ImageOps.exif_transpose(Image.open(path))


def loaded(path):
    image = Image.open(path)
    image.load()
    return image


WAYS = {
    "training": lambda run, **_: of_training(run),
    "tuplet evaluate": lambda run, monkeypatch, **_: of_evaluate(run, monkeypatch),
    "compare": lambda run, **_: of_compare(run),
    "bytes": lambda run, **_: embedded(run, lambda path: path.read_bytes()),
    "PIL image": lambda run, **_: embedded(run, Image.open),
    "PIL image of bytes": lambda run, **_: embedded(run, lambda path: Image.open(io.BytesIO(path.read_bytes()))),
    "PIL image, loaded": lambda run, **_: embedded(run, loaded),
    "PIL image, upright": lambda run, **_: embedded(run, upright),
    "tuplet embed": lambda run, **_: of_command(run),
    "tuplet index": lambda run, **_: of_index(run),
    "query": lambda run, **_: of_query(run),
    "server": lambda run, monkeypatch, **_: of_server(run, monkeypatch),
    "onnx": lambda run, tmp_path, **_: of_onnx(run, tmp_path),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_from_a_file_gives_the_same_vector(run, way, monkeypatch, tmp_path):
    vectors = WAYS[way](run, monkeypatch=monkeypatch, tmp_path=tmp_path)
    cosines = torch.nn.functional.cosine_similarity(vectors.double(), run.reference.double())
    assert cosines.min() >= 0.99999, dict(zip(NAMES, cosines.tolist(), strict=True))


def test_a_pil_image_that_was_given_stays_lazy_in_size_and_mode(run):
    image = Image.open(run.folder / NAMES[0])
    run.embedder.embed(image)
    assert (image.size, image.mode) == ((4001, 3001), "RGB")


def test_a_table_with_true_sizes_goes_the_same_way(run, tmp_path):
    """Images that were squashed into squares: their proportions are restored by the same function."""
    table = ["path,label,width,height,split"]
    for i in range(4):
        scene(120, 120, i).save(tmp_path / f"{i}.png")
        table.append(f"{i}.png,{i // 2},{150 + 40 * i},100,test")
    (tmp_path / "set.csv").write_text("\n".join(table))
    opened, crop = data.open(tmp_path / "set.csv"), run.embedder.preprocessing.crop
    store = data.load(opened, crop=crop)
    expected = torch.stack([crop(tmp_path / f"{i}.png", (150 + 40 * i) / 100) for i in range(4)])
    assert torch.equal(store.values, expected)
    index = search.create(tmp_path / "i", embedder=run.embedder)
    add_images(index, list_images(tmp_path / "set.csv"))
    assert np.allclose(index.vectors([f"{i}.png" for i in range(4)]), run.embedder.embed(expected), atol=1e-6)
