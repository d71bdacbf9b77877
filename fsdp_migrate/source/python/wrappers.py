"""What makes a model in a wrapper, by its name, and what gives back the model that it is given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source import catalog
from fsdp_migrate.source.python.held import COMPILED, MODEL, UNSHARDED, put


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from fsdp_migrate.source.python.scopes import Index


# What makes, or is the class of, a model that FSDP2 has sharded already.
FSDP2 = frozenset(
    {
        "fsdp_migrate.prepare_fully_shard",
        "fsdp_migrate.sharding.prepare.prepare_fully_shard",
        "torch.distributed._composable.fsdp.fully_shard",
        "torch.distributed.fsdp.fully_shard",
        *catalog.FSDP2_CLASSES,
    }
)
DDP = frozenset(
    {
        "deepspeed.DeepSpeedEngine",
        "deepspeed.runtime.engine.DeepSpeedEngine",
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.data_parallel.DataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
    }
)
# Other packages' wrappers, which keep the model as `.module` too, and what gives one before all else.
_OTHERS = re.compile(
    r"^(?:apex|colossalai|deepspeed|fairscale|horovod|megatron|smdistributed|torch_xla)\."
    r"(?:\w+\.)*(?:\w*DataParallel|\w*DistributedModel|DeepSpeedEngine|init_inference)$"
)
_GIVES_ONE = re.compile(r"^deepspeed\.(?:\w+\.)*initialize$|(?:^|[._])booster\.boost$", re.IGNORECASE)
WRAPPERS = re.compile(r"(FSDP|DDP|DataParallel)$")
"""How classes are called that wrap a model, a project's own among them: ``ManualFSDP``."""
# What gives back the model that it is called on, or with.
INNERS = {"_forward_module": frozenset({"by:fabric"}), "_orig_mod": frozenset({COMPILED})}
"""Attributes with the model that `torch.compile` or Fabric holds, and what that is no more."""
SAME_MODEL = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "to", "train"})
MAKES = "makes:fsdp"
"""What the class, a partial of it, and what returns one of them are: calling them makes a model."""
AROUND_MODEL = {
    # They take FSDP1's wrapper off, which leaves its flat parameters; what FSDP2 has sharded they give back.
    "accelerate.utils.extract_model_from_parallel": 0,
    "accelerate.utils.other.extract_model_from_parallel": 0,
    "torch.compile": 0,
    "transformers.modeling_utils.unwrap_model": 0,
    "typing.cast": 1,
    "typing_extensions.cast": 1,
    "weakref.proxy": 0,
}
"""What gives back the model that is its argument, and the place of that."""


def compiled(known: Collection[str], kinds: set[str]) -> set[str]:
    """Return what ``torch.compile``, or what else gives back the model that it is given, gives of one.

    Example:
        >>> sorted(compiled({"torch.compile"}, {"fsdp"})), compiled({"typing.cast"}, {"fsdp"})
        (['._compiled>sharded', 'fsdp'], {'fsdp'})
    """
    if "torch.compile" not in known:
        return kinds
    return kinds | {COMPILED if MODEL in kinds else UNSHARDED}


def made_by(known: str) -> set[str]:
    """Return what calling a thing of a known name makes, if it is a model in a wrapper."""
    if (name := catalog.fsdp1_name(known)) in {catalog.FSDP, "wrap"}:
        # Outside of `enable_wrap` torch's `wrap` gives back what it is given.
        return {"fsdp"} if name == catalog.FSDP else {"fsdp", "other"}
    return {"fsdp2"} if known in FSDP2 else of_others(known)


def of_others(known: str) -> set[str]:
    """Return what calling a thing makes that wraps a model by no FSDP: ``ddp``, by itself or before all else.

    Example:
        >>> of_others("apex.parallel.DistributedDataParallel"), of_others("deepspeed.initialize")
        ({'ddp'}, {'0>ddp'})
    """
    if known in DDP or _OTHERS.match(known) is not None:
        return {"ddp"}
    return put("0", {"ddp"}) if _GIVES_ONE.search(known) is not None else set()


def around_model(call: cst.Call, names: Collection[str]) -> cst.BaseExpression | None:
    """Return the model that a call gives back, if it is one of what does."""
    place = next((AROUND_MODEL[name] for name in names if name in AROUND_MODEL), None)
    is_given = place is not None and place < len(call.args) and not call.args[place].star
    return call.args[place].value if place is not None and is_given else None


def given_to_fsdp2(index: Index, makes_fsdp1: Callable[[cst.CSTNode], bool]) -> Iterator[cst.BaseExpression]:
    """Yield what ``fully_shard(model)`` is given, as a statement, in a source that makes no FSDP1 model."""
    calls = [cst.ensure_type(node, cst.Call) for node in index.by_kind.get(cst.Call, ())]
    if any(makes_fsdp1(call.func) for call in calls):
        return
    for call in calls:
        if call.args and isinstance(index.parents[call], cst.Expr) and index.qualified(call.func) & FSDP2:
            yield call.args[0].value
