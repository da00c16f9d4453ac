"""All that your own parts of a training import from the kit; see configs/own_*.py for examples.

- Samples: a data set in memory, indexed by whole batches on the device. `train.dataset` returns
  a pair (train, held-out). Each is such an object, or any torch Dataset with __len__ and
  __getitem__; the held-out part may be None, and the training part a stream.
- Stream: the protocol of a stream whose position can be saved.
- Sums: what an objective returns for one batch. `train.objective` names a callable that gets the
  model and a batch, of the structure that your data set and collate give it, on the device:
    loss       a floating-point tensor [], the sum (not the mean) of the losses of all items
    num_items  how many items that is; an int if it is the same for every training batch on every
               rank, else a tensor []. An item is what the mean is over: a sample, a pixel, a token
    metrics    {name: tensor []}, sums over the items; the same names each time
  The kit divides loss and metrics by the number of items of all micro batches of all ranks, so the
  gradient is the mean over the items at any number of ranks. Losses have the unit of the objective
  (nats for the built-in cross-entropies).
  With several ranks the model is in training inside DDP: call it as `model(...)` and use no other
  method of it. In an evaluation it is the model itself, `model.training` is false, and the loss
  needs no graph.
- SampleRandom: type of a transform's second argument; its `uniform(k)` returns float32 [n, k] that
  depend on (seed, step, sample) only, so a resume draws the same numbers.

A script of your own (`launch.script`) imports nothing from the kit: copy kit_stop.py from
configs/examples. Every other module of the kit may change without notice.
"""

from .data.sources import Samples, Stream
from .model.objectives import Sums
from .seeds import SampleRandom

__all__ = ["SampleRandom", "Samples", "Stream", "Sums"]
