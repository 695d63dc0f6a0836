"""Vectors of large sets are written in shards, and an interrupted call goes on where it was."""

import pytest
import torch
from PIL import Image

from tuplet import models
from tuplet.data import UnreadableImageError
from tuplet.embedding import embed_files, embed_in_shards


@pytest.fixture
def paths(tmp_path):
    for i in range(7):
        Image.new("RGB", (20, 20), (30 * i, 200 - 20 * i, 90)).save(tmp_path / f"{i}.png")
    return [str(tmp_path / f"{i}.png") for i in range(7)]


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return models.create("convnet", dim=3, size=16, channels=3)


def test_an_interrupted_call_reads_its_shards_again(paths, tmp_path, embedder, monkeypatch):
    expected = embed_files(embedder, paths)
    done = []

    def killed(embedder, some, unreadable, pixels):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(some)
        return embed_files(embedder, some, unreadable, pixels)

    monkeypatch.setattr("tuplet.embedding.shards.embed_files", killed)
    with pytest.raises(KeyboardInterrupt):
        embed_in_shards(embedder, paths, tmp_path / "shards", shard=3)
    done.clear()
    found = embed_in_shards(embedder, paths, tmp_path / "shards", shard=3)
    assert done == [paths[6:]]
    assert (found.items, found.problems) == (paths, [])
    torch.testing.assert_close(found.vectors, expected.vectors)
    other = models.create("convnet", dim=3, size=16, channels=3)
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        embed_in_shards(other, paths, tmp_path / "shards", shard=3)
    assert done == [paths[:3], paths[3:6]]  # another model begins anew


def test_unreadable_files_are_skipped_in_their_shard(paths, tmp_path, embedder):
    (tmp_path / "4.png").write_bytes(b"not an image")
    with pytest.raises(UnreadableImageError, match=r"4\.png cannot be read"):
        embed_in_shards(embedder, paths, tmp_path / "shards", shard=3)
    found = embed_in_shards(embedder, paths, tmp_path / "shards", "skip", shard=3)
    assert found.items == [path for path in paths if "4.png" not in path]
    assert len(found.vectors) == 6
    assert "4.png cannot be read" in found.problems[0]


def test_a_single_shard_is_not_written(paths, tmp_path, embedder):
    assert len(embed_in_shards(embedder, paths, tmp_path / "shards").items) == 7
    assert not (tmp_path / "shards").exists()
