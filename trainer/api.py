"""What your own model, data set, transform and script may import from the kit.

- Samples: a data set that is indexed by whole batches, on the device.
- SampleRandom: random numbers for a transform; the same ones after a resume.
"""

from trainer.data.sample_rng import SampleRandom
from trainer.data.sources import Samples

__all__ = ["SampleRandom", "Samples"]
