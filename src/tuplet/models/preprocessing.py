"""How pictures must be prepared for a set of weights: the size, the mean and the deviation they were trained with."""

from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from tuplet.data.decode import Fit, Source, fit_centre, read_image, to_tensor


@dataclass(frozen=True)
class Preprocessing:
    """Resize to `resize` as `how` says, crop the central `size` × `size`, then (x − mean) / std with x in 0 … 255.

    The first two happen where a file is read, the last inside the network, which takes images in 0 … 255 as they
    are. `mean` and `std` have one number a channel: three for RGB, one for a network that sees grey.

    >>> IMAGENET.size, IMAGENET.resize, IMAGENET.how
    (224, 256, 'shorter')
    """

    size: int
    resize: int
    how: Fit
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(m) for m in self.mean))
        object.__setattr__(self, "std", tuple(float(s) for s in self.std))
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}; give three each, or one for grey"
            )
        if self.how not in get_args(Fit):
            raise ValueError(f"how is {self.how!r}; it must be one of {get_args(Fit)}")
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; it must be above zero")
        if 0 < max(self.mean) <= 1 or max(self.mean) > 255:
            raise ValueError(f"mean is {self.mean}; it must be in units of 0 … 255: multiply mean and std by 255")
        if self.size < 1 or self.resize < 1:
            raise ValueError(f"size is {self.size} and resize {self.resize}; both must be positive")

    def image(self, source: Source) -> Tensor:
        """Read, resize and crop one picture: uint8 RGB (3, size, size).

        A photograph of many times the size is read at a fraction of its own, as in training: see `read_image`.
        """
        return to_tensor(fit_centre(read_image(source, least=2 * self.resize), self.resize, self.size, self.how))


#: torchvision's and most of timm's.
IMAGENET = Preprocessing(224, 256, "shorter", mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
#: Google's networks: 0 … 255 becomes −1 … 1. torchvision's GoogLeNet weights are of this kind.
INCEPTION = Preprocessing(224, 256, "shorter", mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5))
#: The EfficientNet-Lite weights.
LITE = Preprocessing(224, 256, "shorter", mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0))
#: The ResNets of 2015, trained in Caffe: the mean is taken off, nothing is divided.
CAFFE = Preprocessing(224, 256, "shorter", mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0))
#: BN-Inception, trained in Caffe.
BN_INCEPTION = Preprocessing(224, 256, "shorter", mean=(128.0, 117.0, 104.0), std=(1.0, 1.0, 1.0))
