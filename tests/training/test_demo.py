"""The demo's recipe learns to tell apart characters that it has never seen."""

from tuplet import data, evaluation, models, training


def test_the_demo_beats_pixels_and_an_untrained_network_by_far(tmp_path):
    """A quarter of its steps on half of the drawings; all of them give some twenty points more."""
    glyphs = data.glyphs(per_font=1)
    run = training.train(glyphs, tmp_path, recipe="demo", steps=100)
    _, test = glyphs.split()
    pixels = evaluation.recall_at_k(test.images.flatten(1).float(), test.labels, ks=[1])[1]
    untrained = models.create("convnet", size=32, channels=3, dim=64).embed(test.images)
    start = evaluation.recall_at_k(untrained, test.labels, ks=[1])[1]
    assert run.metrics["recall_at_1"] > max(pixels, start) + 0.2
