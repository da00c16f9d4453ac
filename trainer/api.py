"""All that your own model, data set and transform import from the kit; see configs/own_parts.py.

- Samples: a data set in memory, indexed by whole batches on the device. `train.dataset` returns
  two of them, (train, test).
- SampleRandom: type of a transform's second argument; its `uniform(k)` returns float32 [n, k] that
  depend on (seed, step, sample) only, so a resume draws the same numbers.

A script of your own (`launch.script`) imports nothing from the kit: copy kit_stop.py from
configs/own_script. Every other module of the kit may change without notice.
"""

from trainer.data.sample_rng import SampleRandom
from trainer.data.sources import Samples

__all__ = ["SampleRandom", "Samples"]
