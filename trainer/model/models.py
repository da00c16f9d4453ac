"""Creates the model of a spec."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from torch import nn

from ..data.sources import Batch
from ..errors import UserError
from ..parts import parts
from ..user_code import call, is_user_code, load
from .networks import fitted_mini_resnet, fitted_mlp
from .objectives import DataFacts

BUILT_IN = {"mini_resnet": fitted_mini_resnet, "mlp": fitted_mlp}


def create(data: DataFacts, example: Batch, is_overwritten: bool = False) -> nn.Module:
    """Return the model of `train.model`: a built-in one, or `package.module:callable`.

    A built-in one is fitted to the data and to a batch, as the objective gets it.
    is_overwritten: whether nothing sees the weights before a checkpoint is loaded. The model of a
        plugin then has no initial weights. One of the user does: its code may use them.
    Raises UserError where the name, the arguments or the data do not fit.
    """
    name, is_own = data.train.model, is_user_code(data.train.model)
    function = load("train.model", name, {**BUILT_IN, **parts("model")})
    if not is_own:
        function = function(data, example)
    with _without_initial_weights() if is_overwritten and not is_own else nullcontext():
        model = call("train.model", function, data.train.model_args)
    if not isinstance(model, nn.Module):
        raise UserError(f"train.model: {name} returns a {type(model).__name__}, not a torch module")
    return model


@contextmanager
def _without_initial_weights() -> Iterator[None]:
    """Let the functions of torch.nn.init, which all models of a plugin use, change nothing."""
    functions = {
        name: value
        for name, value in vars(nn.init).items()
        if name.endswith("_") and not name.startswith("_")
    }
    try:
        vars(nn.init).update(dict.fromkeys(functions, lambda tensor, *_, **__: tensor))
        yield
    finally:
        vars(nn.init).update(functions)
