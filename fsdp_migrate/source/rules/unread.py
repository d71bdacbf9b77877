"""Where what is sharded goes into code that is not read, or is asked for what is not known of DTensors.

Nothing is done to these places. They are named, so that what no other rule speaks of is not passed over in
silence.
"""

from __future__ import annotations

import builtins
import re
import sys
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.nodes import dotted
from fsdp_migrate.source.python.tensor_words import STATISTICS, gives_its_kind
from fsdp_migrate.source.rules.foreign_functions import has_model, in_packages
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.source.python.text import Source


NAME = "unread"
CODES = ("FM454",)

_MODEL: Final = (
    "the sharded model goes into `{}`, whose code is not read here. To call the model is as before; its "
    "parameters are DTensors now: see that this does not read, copy or change them, or takes DTensors."
)
_PARAMETERS: Final = (
    "parameters or gradients of the sharded model go into `{}`, whose code is not read here: they are "
    "DTensors now, where FSDP1's were one rank's plain parts. See that this takes them."
)
_TORCHS: Final = (
    "the sharded model goes into torch's `{}`, of which nothing is known here for FSDP2's models: try it in "
    "a short run, on every rank."
)
_ASKED: Final = (
    "nothing is known here of `{}` of a DTensor, which this is now, where FSDP1's was one rank's plain part: "
    "try it in a short run, or take .to_local() for this rank's part."
)
# What shows a value, or goes through many, does nothing with them.
_HARMLESS: Final = re.compile(
    r"^(?:critical|debug|echo|error|exception|i?print|info|log|log_\w+|pformat|pprint|rprint|secho|success|"
    r"progress|t?range|tqdm|track|trange|warn|warning)$"
)
_TAKES_MODELS: Final = re.compile(
    r"^torch\.(?:compile$|save$|distributed\.(?!tensor\.parallel|_tensor|pipelining)|optim\.(?!swa_utils)|"
    r"_dynamo\.|nn\.(?:Module(?:Dict|List)?|Sequential|parallel\.DistributedDataParallel)$|nn\.utils\.clip_grad|"
    r"utils\.(?:checkpoint|data)\.|cuda\.|is_)"
)
"""Functions of torch's that other rules speak of, or that leave a model's parameters alone."""
_OTHERS: Final = re.compile(r"optim|^opt_|_opt$|sched|^(?:has|is|register)_|^Dummy", re.IGNORECASE)
_SAID: Final = frozenset({"commented", "kept", "unclear"})
_KNOWN: Final = frozenset(
    {
        # Of lists, dicts and texts.
        *("add", "append", "count", "discard", "extend", "format", "get", "index", "insert", "join", "put"),
        *("remove", "setdefault", "update"),
        # Of transformers' Trainer, whose FSDP2 is its own affair, where a class derives from it.
        *("_inner_training_loop", "_load_best_model", "_load_from_checkpoint", "_maybe_log_save_evaluate"),
        *("_prepare_context_parallel_inputs", "_save", "_save_checkpoint", "_wrap_model", "compute_loss"),
        *("create_optimizer", "evaluation_loop", "prediction_step", "training_step"),
        # Of Accelerator, Fabric and Trainers, of which other rules speak.
        *("accumulate", "backward", "call", "clear", "clip_grad_norm_", "clip_grad_value_"),
        *("clip_gradients", "fit", "free_memory", "get_state_dict", "load", "load_raw"),
        *("load_state", "no_backward_sync", "no_sync", "prepare", "prepare_model"),
        *("register_for_checkpointing", "save", "save_model", "save_state", "setup"),
        *("setup_module", "setup_optimizers", "unwrap_model", "watch"),
    }
)
_MADE_ALIKE: Final = re.compile(
    r"^torch\.(?:nn\.init|optim|distributed|utils\.data|cuda|Tensor)\.|^torch\.is_"
)
_NOT_KNOWN: Final = frozenset(
    {
        *("addmm", "addmv", "addr", "adjoint", "argwhere", "as_strided", "as_subclass"),
        *("baddbmm", "bernoulli", "bmm", "cholesky", "cholesky_inverse", "corrcoef", "cov"),
        *("cross", "cummax", "cummin", "det", "diag", "diag_embed", "diagflat", "diagonal"),
        *("dsplit", "eig", "flipud", "gather", "ger", "hash_tensor", "hsplit", "index_add"),
        *("index_copy", "index_fill", "index_put", "index_select", "inner", "inverse"),
        *("is_set_to", "kron", "logcumsumexp", "logdet", "lstsq", "lu", "masked_scatter"),
        *("matmul", "matrix_exp", "matrix_power", "mm", "mode", "moveaxis", "msort"),
        *("multinomial", "mv", "narrow_copy", "outer", "pinverse", "put", "qr", "rot90"),
        *("scatter", "scatter_add", "scatter_reduce", "select_scatter", "slice_scatter"),
        *("slogdet", "sparse_mask", "split_with_sizes", "stft", "storage", "svd", "swapdims"),
        *("take_along_dim", "to_sparse", "to_sparse_coo", "to_sparse_csr", "trace"),
        *("triangular_solve", "unbind", "unflatten", "unfold", "unsafe_chunk", "unsafe_split"),
        *("untyped_storage", "vsplit"),
    }
)
"""What is asked of tensors, and is not done for each element of a DTensor as for a plain tensor's."""


def find(source: Source, found: Iterable[tuple[str, Found]]) -> Iterator[Found]:
    """Find what the other rules have said nothing of."""
    said = {source.index.statement(each.node) for _, each in found if each.action in _SAID}
    for node, becomes in _find(source):
        statement = source.index.statement(node)
        if statement not in said and not source.contexts.is_summoned(node):
            said.add(statement)
            yield Found("FM454", node, becomes, "unclear")


def _find(source: Source) -> Iterator[tuple[cst.CSTNode, str]]:
    values = ParameterValues(source)
    for call in source.calls:
        if said := _of_package(values, call) or _of_torch(values, call) or _of_unknown(values, call):
            yield call, said
    for node in source.attributes:
        name = node.attr.value
        if name in _NOT_KNOWN and values.is_one(node.value):
            yield node, _ASKED.format(f".{name}")


def _of_package(values: ParameterValues, call: cst.Call) -> str:
    """Return what is said of another package's function, class, or object of such a class."""
    name = next((names[-1] for names in in_packages(values.source, call.func)), "")
    return "" if not name or _HARMLESS.match(name) else _given(values, call, name)


def _of_torch(values: ParameterValues, call: cst.Call) -> str:
    """Return what is said of a function of torch's that is given a model, or parameters of it."""
    names = [each for each in values.source.index.qualified(call.func) if each.startswith("torch.")]
    if not names or not call.args:
        return ""
    given = [arg.value for arg in call.args]
    name = (dotted(call.func) or names[0]).rpartition(".")[2]
    if not any(map(_TAKES_MODELS.match, names)) and any(has_model(values.source, each) for each in given):
        return _TORCHS.format(name)
    is_asked = name in _NOT_KNOWN and not any(map(_MADE_ALIKE.match, names))
    return _ASKED.format(name) if is_asked and any(map(values.is_one, given)) else ""


def _of_unknown(values: ParameterValues, call: cst.Call) -> str:
    """Return what is said of what is called by a name that nothing in the project defines."""
    source, func = values.source, call.func
    name = func.attr.value if isinstance(func, cst.Attribute) else (dotted(func) or "")
    if not name or not source.links.defined or name in source.links.defined | _KNOWN or _HARMLESS.match(name):
        return ""
    # A tensor's methods, optimizers, and what asks or notes alone.
    if gives_its_kind(name) or name in STATISTICS or _OTHERS.search(name) is not None:
        return ""
    # What a function is given by a name is the project's own, and looked into where it stands.
    is_given = isinstance(func, cst.Name) and not source.index.qualified(func)
    if is_given and (hasattr(builtins, name) or any(has_model(source, arg.value) for arg in call.args)):
        return ""
    tops = {known.partition(".")[0] for known in source.index.qualified(func)}
    return "" if tops & ({"torch"} | sys.stdlib_module_names) else _given(values, call, name)


def _given(values: ParameterValues, call: cst.Call, name: str) -> str:
    """Return what is said of a call that is given a sharded model, its parameters or gradients."""
    given = [arg.value for arg in call.args]
    if any(has_model(values.source, each) for each in given):
        return _MODEL.format(name)
    is_its = any(values.is_many(each) or values.is_one(each) for each in given)
    return _PARAMETERS.format(name) if is_its else ""
