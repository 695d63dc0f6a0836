"""The preprocessing of a set of weights: the image size, mean and standard deviation they were trained with."""

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from tuplet.images.crop import CentreCrop, ResizeMode, check_crop
from tuplet.images.decode import ImageSource


@dataclass(frozen=True)
class Preprocessing:
    """Resize to `resize`, crop the central `size` × `size`, then (x − mean) / std with x from 0 to 255.

    Resizing and cropping happen when a file is read, the last step inside the embedder, which takes images from 0 to
    255.

    Attributes:
        size: the side of the crop.
        resize: the side that images are resized to before.
        resize_mode: the side that `resize` sets, as in `data.CentreCrop`.
        mean: one number per channel: three for RGB, one for a network that sees grey.
        std: the standard deviation of each channel.

    >>> IMAGENET.size, IMAGENET.resize, IMAGENET.resize_mode
    (224, 256, 'shorter')
    """

    size: int
    resize: int
    resize_mode: ResizeMode
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(m) for m in self.mean))
        object.__setattr__(self, "std", tuple(float(s) for s in self.std))
        if len(self.mean) not in (1, 3) or len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}; give three each, or one for grey"
            )
        check_crop(self.size, self.resize, self.resize_mode)
        if min(self.std) <= 0:
            raise ValueError(f"std is {self.std}; it must be above zero")
        if 0 < max(self.mean) <= 1 or max(self.mean) > 255:
            raise ValueError(f"mean is {self.mean}; it must be in units of 0 … 255: multiply mean and std by 255")

    @property
    def crop(self) -> CentreCrop:
        """The resizing and cropping, without mean and standard deviation."""
        return CentreCrop(self.size, self.resize, self.resize_mode)

    def at(self, size: int) -> Self:
        """Return the preprocessing for crops of another size, with `resize` in proportion.

        >>> IMAGENET.at(336).resize
        384
        """
        return replace(self, size=size, resize=round(self.resize * size / self.size))

    def image(self, source: ImageSource, aspect: float | None = None) -> Tensor:
        """Decode, resize and crop one image: uint8 RGB (3, size, size).

        Args:
            source: a path, the bytes of a file, an open binary file or a PIL image.
            aspect: the true width / height, if the pixels have other proportions.
        """
        return self.crop(source, aspect)


#: torchvision and most models of timm.
IMAGENET = Preprocessing(224, 256, "shorter", mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
#: Google's networks, among them torchvision's GoogLeNet: 0 … 255 becomes −1 … 1.
INCEPTION = Preprocessing(224, 256, "shorter", mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5))
#: Google's vision transformers.
AUGREG = Preprocessing(224, 248, "shorter", mean=INCEPTION.mean, std=INCEPTION.std)
#: CLIP, of OpenAI and of OpenCLIP.
CLIP = Preprocessing(224, 224, "shorter", mean=(122.7709, 116.7460, 104.0937), std=(68.5005, 66.6322, 70.3232))
#: The EfficientNet-Lite weights.
LITE = Preprocessing(224, 256, "shorter", mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0))
#: The ResNets of 2015, trained in Caffe: the mean is subtracted, nothing is divided.
CAFFE = Preprocessing(224, 256, "shorter", mean=(123.68, 116.779, 103.939), std=(1.0, 1.0, 1.0))
#: BN-Inception, trained in Caffe.
BN_INCEPTION = Preprocessing(224, 256, "shorter", mean=(128.0, 117.0, 104.0), std=(1.0, 1.0, 1.0))
#: dlib's face network: aligned faces of 150 × 150 pixels.
DLIB = Preprocessing(150, 150, "shorter", mean=(122.782, 117.001, 104.298), std=(256.0, 256.0, 256.0))
