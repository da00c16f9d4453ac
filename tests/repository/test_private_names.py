"""Private names of torch and others, which may go without notice: all that the product uses."""

import ast
import inspect
import re
from importlib.util import find_spec
from pkgutil import resolve_name

import pytest

from tests.core.test_layout import FILES, nodes

ELASTIC = "torch.distributed.elastic"
# The names of each module, class or value.
PRIVATE = {
    "torch": ["_dynamo", "_foreach_mul_", "_foreach_norm", "_inductor"],
    "torch.nn.Module": ["_buffers", "_modules", "_parameters"],
    "torch.utils": ["_pytree"],
    "torch.utils.data.dataloader": ["_BaseDataLoaderIter"],
    "torch.distributed": ["_broadcast_coalesced"],
    "torch.distributed.distributed_c10d": [
        *("_get_default_group", "_get_default_store", "_new_process_group_helper")
    ],
    f"{ELASTIC}.agent.server.api.SimpleElasticAgent": ["_exit_barrier", "_exit_barrier_timeout"],
    f"{ELASTIC}.multiprocessing.api.SubprocessContext": [
        *("_failures", "_poll", "_running_local_ranks")
    ],
    f"{ELASTIC}.rendezvous.dynamic_rendezvous.DynamicRendezvousHandler": [
        "_shared_tcp_store_server"
    ],
    "submitit.SlurmExecutor": ["_submit_command"],
    "multiprocessing.forkserver": ["_forkserver"],
    "multiprocessing.forkserver._forkserver": [
        *("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid")
    ],
    "multiprocessing.process": ["_parent_process"],
    "multiprocessing.util": ["_run_finalizers"],
}
# Python documents them, transformers the last but one; the last is in an annotation only.
DOCUMENTED = {"_asdict", "_current_frames", "_exit", "_replace", "_init_weights", "_Hash"}


def test_the_list_has_each_private_name_that_the_product_uses_and_no_other():
    own, of_self, used = (set[tuple[str, str]]() for _ in range(3))
    for module, node in ((each, node) for each in FILES for node in nodes(each)):
        match node:
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.Name(name, ast.Store()):
                own.add((module, name))
            case ast.Attribute(ast.Name("self"), name, context):
                (own if isinstance(context, ast.Store) else of_self).add((module, name))
            case ast.Attribute(_, name) | ast.Call(_, [_, ast.Constant(str(name)), *_]):  # getattr
                used.add((module, name))
            case ast.alias(text) | ast.ImportFrom(str(text)):
                used |= {(module, name) for name in text.split(".")}
            case ast.Constant(str(text)) if text.startswith("torch."):
                used |= {(module, name) for name in text.split(".")}
    own_names = {name for _, name in own}  # of classes that others inherit from
    used = used - own | {each for each in of_self if each[1] not in own_names}
    private = {(module, name) for module, name in used if re.match("_[^_]", name)}
    listed = {*sum(PRIVATE.values(), [])}
    assert {each for each in private if each[1] not in listed | DOCUMENTED} == set()
    assert listed <= {name for _, name in private}


@pytest.mark.parametrize("path", PRIVATE)
def test_the_installed_version_has_the_names_of(path):
    """A class: itself, or its instances. A package's module is found: to import it takes long."""
    owner = resolve_name(path)
    classes = owner.__mro__[:-1] if isinstance(owner, type) else ()
    source = "\n".join(map(inspect.getsource, classes))
    missing = [
        name
        for name in PRIVATE[path]
        if name not in dir(owner) and f"self.{name}" not in source
        if not (hasattr(owner, "__path__") and find_spec(f"{path}.{name}"))
    ]
    assert missing == []
