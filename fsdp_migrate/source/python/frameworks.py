"""The models that frameworks shard: Accelerate, Fabric, Lightning and Hugging Face's Trainer.

What one of these gives may be a sharded model, ``fsdp``, beside which stands by whom: ``by:fabric``.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import (
    ACCELERATE,
    asks_by_switch,
    asks_for_fsdp,
    clipped,
    fsdp_may_run,
    fsdp_said,
    hands_to_fsdp1,
    is_list_of_models,
    prepared,
    shards_by_accelerate,
)
from fsdp_migrate.source.python.accelerators import UNWRAPS, method
from fsdp_migrate.source.python.fabric_models import FABRIC, is_of_other_strategy, set_up, shards_by_fabric
from fsdp_migrate.source.python.held import BY, EACH, put
from fsdp_migrate.source.python.lightning_models import (
    LIGHTNING,
    SHARDED,
    UNITS,
    fitted,
    is_in_a_step,
    is_part_within,
    is_trainers_model,
    is_within_a_module,
    run_in,
    trains_by_fsdp1,
)
from fsdp_migrate.source.python.nodes import as_ast, placed_parameters, text_of
from fsdp_migrate.source.python.numbers_of_ranks import says_several
from fsdp_migrate.source.python.trainer_models import (
    COMPOSED,
    COMPOSERS_MODEL,
    OF_COMPOSERS_MODEL,
    TRAINER,
    HFTrainers,
    given_to_composer,
    is_composers_ddp,
    is_composers_model,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from fsdp_migrate.source.python.guards import Guards
    from fsdp_migrate.source.python.links import Links
    from fsdp_migrate.source.python.scopes import Index
    from fsdp_migrate.source.python.trained_names import TrainedNames


# Those of loading are given none of the models that FSDP has sharded.
_SAVE_HOOK = "register_save_state_pre_hook"
# As text_of gives it, without spaces.
_NOT_FSDPS = re.compile(r"^(state_dictisNone|notstate_dict|(self\.)?(is_)?deepspeed(_enabled)?)$")


def by_whom(kinds: Collection[str]) -> str:
    """Return the framework that shards a model, or nothing where the source does.

    Example:
        >>> by_whom({"fsdp", "other", "by:fabric"}), by_whom({"fsdp"})
        ('fabric', '')
    """
    return next((kind.removeprefix(BY) for kind in sorted(kinds) if kind.startswith(BY)), "")


def _is_not_fsdps(test: str, *, truth: bool) -> bool:
    """Tell whether what is known of a test in a Trainer's class shows that FSDP does not come there.

    ``save_model`` gives ``_save`` the state that it gathered: ``state_dict`` is something then.
    """
    return _NOT_FSDPS.search(test) is not None if truth else test == "state_dict"


@dataclass(eq=False)
class Frameworks:
    """Answers for one source what the frameworks that it uses shard. Reads only."""

    index: Index
    links: Links
    guards: Guards

    @functools.cached_property
    def _accelerate(self) -> bool:
        is_told = "accelerate" in self.links.frameworks
        return is_told or shards_by_accelerate(self.index) or hands_to_fsdp1(self.index)

    @functools.cached_property
    def _asks_accelerate(self) -> bool:
        return asks_for_fsdp(self.index) or asks_by_switch(self.index, self.guards)

    @functools.cached_property
    def _told(self) -> bool:
        """Whether another file gives this one what an Accelerator has prepared, or a Trainer's model."""
        given = (*self.links.is_given.values(), *self.links.gives.values())
        return any(kind.endswith((ACCELERATE, f"{BY}transformers")) for kinds in given for kind in kinds)

    @functools.cached_property
    def _fabric(self) -> bool:
        return "fabric" in self.links.frameworks or shards_by_fabric(self.index)

    @functools.cached_property
    def _lightning(self) -> bool:
        return trains_by_fsdp1(self.index, is_told=self.links.is_trained)

    @functools.cached_property
    def has_units(self) -> bool:
        """Whether a policy of Lightning's FSDP1 strategy wraps parts of modules, too."""
        return self.links.has_units or UNITS.search(self.index.module.code) is not None

    @property
    def sets_up_by_fabric(self) -> bool:
        """Whether a Fabric of FSDP1's strategy sets up what the source has."""
        return self._fabric

    @property
    def trains_by_lightning(self) -> bool:
        """Whether Lightning's FSDP1 strategy trains what the source has."""
        return self._lightning

    @functools.cached_property
    def trainers(self) -> HFTrainers:
        """Hugging Face's Trainers of the source."""
        is_told = "transformers" in self.links.frameworks
        run, own = self.links.run_by_trainer, self.links.own_hooks
        return HFTrainers(self.index, is_told=is_told, run_by_trainer=run, own_hooks=own)

    @property
    def are_used(self) -> bool:
        """Whether a framework shards models of this source without a name that is known."""
        return self._lightning or self._fabric or bool(self.links.run_by_trainer)

    def _is_in_a_trainer(self, node: cst.CSTNode) -> bool:
        """Tell whether it stands in a class of Hugging Face's Trainers, whose Accelerator shards."""
        return self.trainers.kind_around(node) == TRAINER

    def of_call(self, call: cst.Call) -> set[str]:
        """Return what a call of a framework's function gives."""
        is_used = self._accelerate or self._is_in_a_trainer(call)
        found = prepared(self.index, call) if is_used or self._asks_accelerate else set()
        found = found or (clipped(self.index, call) if is_used else set())
        found = found or self.trainers.wrapped(call)
        return found or (set_up(self.index, call) if self._fabric else set())

    def of_name(self, node: cst.Name | cst.Attribute) -> set[str]:
        """Return what a name is of which the source itself says nothing: the model of a Trainer."""
        if type(node) is cst.Attribute and is_list_of_models(self.index, node):
            kinds = {"fsdp", "other", ACCELERATE}
            is_asked = self._accelerate or self._asks_accelerate
            return put(EACH, kinds) if is_asked and not self.is_elsewhere(kinds, node) else set()
        if self._lightning:
            if isinstance(node, cst.Attribute) and is_trainers_model(text_of(node)):
                return {"fsdp", "other"}
            if is_within_a_module(self.index, node, self.links.mixins, self.links.own_hooks):
                return set(SHARDED)
            if self.has_units and is_in_a_step(self.index, node):
                return set(SHARDED)
            if self._fits.is_sharded(node):
                return set(SHARDED)
        if self._composed.is_sharded(node) or self._is_composers(node):
            return set(COMPOSED)
        return self.trainers.of_name(node)

    def given_to_hooks(self) -> Iterator[tuple[cst.FunctionDef, str, set[str]]]:
        """Yield what hooks are given that Accelerate calls before it saves: the models that it prepared."""
        if not (self._accelerate or self._asks_accelerate):
            return
        for node in self.index.by_kind.get(cst.Call, ()):
            call = cst.ensure_type(node, cst.Call)
            is_hooked = isinstance(call.func, cst.Attribute) and call.func.attr.value == _SAVE_HOOK
            for function in self.guards.functions(call.args[0].value) if is_hooked and call.args else ():
                for parameter in placed_parameters(function)[:1]:
                    yield function, parameter.name.value, put(EACH, {"fsdp", "other", ACCELERATE})

    @functools.cached_property
    def _fits(self) -> TrainedNames:
        return fitted(self.index)

    @functools.cached_property
    def _composed(self) -> TrainedNames:
        return given_to_composer(self.index, is_told="composer" in self.links.frameworks)

    def _is_composers(self, node: cst.Name | cst.Attribute) -> bool:
        """Tell whether it is the model of Composer's Trainer, or a part of a ComposerModel in its methods."""
        if "composer" not in self.links.frameworks:
            return False
        if isinstance(node, cst.Attribute) and is_composers_model(text_of(node)):
            return True
        owner = self.index.class_of(node)
        if owner is None:
            return False
        return is_part_within(self.index, node, COMPOSERS_MODEL, run_in(owner, OF_COMPOSERS_MODEL))

    def is_trained(self, node: cst.BaseExpression) -> bool:
        """Tell whether it is what a framework's Trainer was given, below where that shards it."""
        if not isinstance(node, (cst.Name, cst.Attribute)):
            return False
        if self.trainers.of_name(node) or self._composed.is_sharded(node):
            return True
        return self._lightning and self._fits.is_sharded(node)

    def may_be_trained(self, node: cst.BaseExpression) -> bool:
        """Tell whether a Trainer was given it, and it is not seen whether that has sharded it before."""
        if self.trainers.may_be_sharded(node) or self._composed.may_be_sharded(node):
            return True
        return self._lightning and self._fits.may_be_sharded(node)

    def is_elsewhere(self, kinds: set[str], node: cst.CSTNode) -> bool:
        """Tell whether a model of Accelerate's is asked about, and stands where none of FSDP's comes."""
        if f"{BY}transformers" in kinds:
            facts = list(self.guards.facts(node))
            if any(fsdp_said(test, truth=truth, index=self.index) is False for test, truth in facts):
                return True
            return any(_is_not_fsdps(text_of(test), truth=truth) for test, truth in facts)
        if kinds >= COMPOSED and any(is_composers_ddp(*each) for each in self.guards.facts(node)):
            return True
        if FABRIC in kinds or LIGHTNING in kinds:
            return any(self._is_of_no_strategy(test, truth=truth) for test, truth in self.guards.facts(node))
        if ACCELERATE not in kinds:
            return False
        if self.is_launched_otherwise(kinds, node):
            return True
        known = list(self.guards.facts(node))
        if self._accelerate or self._is_in_a_trainer(node):
            return False
        if self._told and not self._asks_accelerate:
            return False
        return not any(fsdp_may_run(test, truth=truth, index=self.index) for test, truth in known)

    def is_launched_otherwise(self, kinds: set[str], node: cst.CSTNode) -> bool:
        """Tell whether a model of Accelerate's stands where a test says that FSDP does not run."""
        facts = self.guards.facts(node) if ACCELERATE in kinds else ()
        return any(fsdp_said(test, truth=truth, index=self.index) is False for test, truth in facts)

    def _is_of_no_strategy(self, test: cst.BaseExpression, *, truth: bool) -> bool:
        """Tell whether Fabric or Lightning's Trainer has no FSDP1 strategy where a test came out so."""
        if is_of_other_strategy(test, truth=truth):
            return True
        return self.links.shards_on_several and says_several(as_ast(test), truth=truth) is False

    def unwraps(self, call: cst.Call) -> cst.BaseExpression | None:
        """Return the model that ``accelerator.unwrap_model(model)`` gives back."""
        func = method(self.index, call.func)
        is_unwrapped = func is not None and func.attr.value == UNWRAPS
        return call.args[0].value if is_unwrapped and call.args else None
