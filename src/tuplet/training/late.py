"""Numbers of a step that are read when the next one is under way, so that the device never waits for the host."""

import torch
from torch import Tensor


class Late:
    """Scalars of a device on their way to the host.

    >>> Late(torch.tensor(1.5), torch.tensor(2.0)).read()
    [1.5, 2.0]
    """

    def __init__(self, *scalars: Tensor) -> None:
        self.on_device = torch.stack([x.detach().double() for x in scalars])
        self._on_host, self._copied = self.on_device, None
        if self.on_device.is_cuda:
            # Only pinned memory is filled behind the host's back.
            self._on_host = torch.empty_like(self.on_device, device="cpu", pin_memory=True)
            self._on_host.copy_(self.on_device, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[float]:
        """Their values: waits for what was launched before they were made, and for nothing since."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._on_host.tolist()
