"""A small network with three levels, and images for it."""

import torch
from torch import nn

from tuplet import models


def random_images(count, size=28, seed=0):
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.manual_seed(seed))


class Stages(nn.Module):
    """Three maps from low to high, quick to run."""

    def __init__(self):
        super().__init__()
        self.low, self.mid, self.high = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Conv2d(5, 6, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        low = self.norm(self.low(x))
        mid = self.mid(low.relu())
        return [low, mid, self.high(mid.relu())]


GREY = models.Preprocessing(28, 28, "square", (127.5,) * 3, (64.0,) * 3)


def staged(**options):
    torch.manual_seed(0)
    return models.create(Stages(), preprocessing=GREY, **{"dim": 7, "levels": "LMH", **options})
