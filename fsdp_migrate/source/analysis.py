"""One source, looked at by every rule."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.finding_codes import FINDING_CODES
from fsdp_migrate.source import catalog
from fsdp_migrate.source.handing_on import with_inner
from fsdp_migrate.source.left_whole import is_left_whole, left_as_it_is
from fsdp_migrate.source.python import mentions
from fsdp_migrate.source.python.branches import fsdp1_branch, gathers_state, is_fsdp1s_function, is_fsdp2s
from fsdp_migrate.source.python.links import NOTHING
from fsdp_migrate.source.python.nodes import short, walk
from fsdp_migrate.source.python.other_engines import is_in_other_engines_branch
from fsdp_migrate.source.python.text import Source
from fsdp_migrate.source.python.torchrec import torchrecs_model
from fsdp_migrate.source.rules import (
    OF_MODELS,
    OF_PARAMETERS,
    RULES,
    class_checks,
    leftovers,
    unfollowed,
    unread,
    unused_imports,
)
from fsdp_migrate.source.unreached import with_questions
from fsdp_migrate.source.uses import Found, Use


if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from fsdp_migrate.source.python.links import Links


HINTS = (
    *("fsdp", "FSDP", "FullyShardedDataParallel", "ShardedGradScaler", "_fpw_module", "TrainingArguments"),
    *("parallelism_config", ".summon_full_params(", "state_dict_type(", "optim_state_dict"),
    "utilities.consolidate_checkpoint",
)
PRIVATES = re.compile(
    r"\b_(?:is_)?flat_param\b|\b_handle\.flat_param\b|\b_fully_sharded_module_to_handle\b"
    r"|\b_unsharded_flat_param_names\b|\b_exec_order_data\b"
)
"""A source without any of these and of :data:`HINTS` has nothing that a rule finds, and is not parsed."""

_BRANCH = (
    "this branch is FSDP1's, and another one is FSDP2's: choose that one, take this one out, and give FSDP2 "
    "what it is given here."
)
_NEVER_RUN = "stays: this never runs with FSDP1"
_IN_BRANCH = "stays: in a branch for FSDP1, beside one for FSDP2"
_TORCHREC = (
    "torchrec's DistributedModelParallel, or its shard(), shards embeddings here, which FSDP must leave "
    "alone, and a full state would gather whole: shard what is dense, or name the rest by ignored_modules=. "
    "Then it is {}."
)
_BY_FRAMEWORK = "where the framework shards this model: "
_PATCHED = (
    "this puts another thing in the place of torch's, which rewritten sources ask for no more: replace what "
    "they ask for."
)
_AMBIGUOUS = "this name may stand for something other than torch's FSDP here"


def has_anything(code: str, links: Links = NOTHING) -> bool:
    """Tell whether a rule may find something in a source: else it need not be parsed."""
    return links.is_near or _has_uses(code, links)


def _has_uses(code: str, links: Links) -> bool:
    # Plain words first, one by one: a pattern of many takes ten times as long.
    return links.is_linked or any(hint in code for hint in HINTS) or PRIVATES.search(code) is not None


def analyse(code: str, path: str, links: Links = NOTHING) -> tuple[Source, list[tuple[str, Found]]]:
    """Parse a source and return what each rule finds in it, with the rule's name, in no order.

    Args:
        code: The text.
        path: Its name, for messages.
        links: What other files of the project say of it.

    Raises:
        SourceError: The text is no Python.
        RecursionError: Its expressions are nested too deeply.
    """
    source = Source(code, path, links)
    # What no other rule has anything to say of is looked at for models that could not be followed alone.
    found = with_questions(source, list(_find(source))) if _has_uses(code, links) else []
    near = (use for use in unfollowed.find(source, found) if not _never_comes(source, use.node))
    found += [(unfollowed.NAME, use) for use in near]
    beyond = (use for use in unread.find(source, found) if not _never_comes(source, use.node))
    beyond = (_where_sharded(source, use) for use in beyond if not _is_of_others(source, use))
    found += [(unread.NAME, use) for use in beyond]
    is_left = links.is_left_whole
    if is_left_whole(code, found) if is_left is None else is_left:
        found = left_as_it_is(found)
    return source, [*found, *((unused_imports.NAME, use) for use in unused_imports.find(source, found))]


def _never_comes(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether no sharded model comes to a place: it never runs with FSDP, or is another engine's."""
    return source.models.never.holds(node) or is_in_other_engines_branch(source, node)


def _find(source: Source) -> Iterator[tuple[str, Found]]:
    covered: set[cst.CSTNode] = set()
    edited: set[cst.CSTNode] = set()
    branches: set[cst.CSTNode] = set()
    gone: set[cst.CSTNode] = set()
    checks: set[cst.CSTNode] = set()
    has_torchrec = torchrecs_model(source.index)
    has_own = not source.uses_fsdp1 and _defines_the_class(source)
    never = source.models.never
    for rule in _in_order():
        for each in rule.find(source):
            if never.holds(each.node):
                covered.update(each.covers)
                if each.covers:
                    yield rule.NAME, Found(each.code, each.node, _NEVER_RUN, "kept", covers=each.covers)
                continue
            if each.action == "commented" and is_in_other_engines_branch(source, each.node):
                covered.update(each.covers)
                continue
            if each.edits and has_own:
                continue  # a copy of torch's file, whose attributes are its own
            # The first edit of a node counts. And what another rule takes away is not said to stay.
            if each.node in edited or (each.action == "kept" and each.node in gone):
                continue
            is_of_model = each.action == "commented" and not each.covers and rule in OF_MODELS
            if is_of_model and _is_of_others(source, each):
                continue
            found = _left_alone(source, each, branches) or _below(source, each, checks) or each
            found = with_inner(source, _put_in_its_place(source, found))
            checks.update([found.node] if found.code in {"FM335", "FM420"} and rule is class_checks else [])
            edited.update([found.node] if found.edits else [])
            covered.update(found.covers)
            gone.update(found.covers if found.action == "rewritten" else ())
            found = _certain(source, _where_sharded(source, found) if rule in OF_PARAMETERS else found)
            yield rule.NAME, _beside_torchrec(found) if has_torchrec else found
    for found in leftovers.find(source, covered):
        is_left = found.action == "commented" and never.holds(found.node)
        yield leftovers.NAME, replace(found, action="kept", becomes=_NEVER_RUN) if is_left else found


def _is_of_others(source: Source, found: Found) -> bool:
    """Tell whether a use of a model comes to no model that is FSDP1's, or is written for FSDP2's."""
    index, guards, node = source.index, source.models.guards, found.node
    if source.links.without_group or guards.is_without_fsdp(node) or guards.is_of_others(node):
        return True
    return is_fsdp2s(index, node) or (found.code == "FM333" and gathers_state(index, node))


def _put_in_its_place(source: Source, found: Found) -> Found:
    """Return a comment where a name of FSDP1's is set to something else, which renames nothing."""
    is_set = found.node in source.references and isinstance(
        source.index.parents[found.node], cst.AssignTarget
    )
    if not is_set or not found.edits:
        return found
    return replace(found, action="commented", becomes=_PATCHED, edits=(), needs=())


def _defines_the_class(source: Source) -> bool:
    """Tell whether a source has a class of its own that is called as FSDP1's is."""
    nodes = source.index.by_kind.get(cst.ClassDef, ())
    return any(cst.ensure_type(node, cst.ClassDef).name.value == catalog.FSDP for node in nodes)


def _in_order() -> list[ModuleType]:
    """Return the rules, that of checks first: what it leaves to a person decides on what is below them."""
    return [class_checks, *(rule for rule in RULES if rule is not class_checks)]


def _below(source: Source, found: Found, checks: set[cst.CSTNode]) -> Found | None:
    """Return what is said of a use that is reached only where a check that is left found FSDP1's model."""
    if not checks or not found.edits or found.node in checks:
        return None
    for test, truth in source.models.guards.facts(found.node):
        negated = isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not)
        if truth is not negated and any(part in checks for part in walk(test)):
            return Found("FM420", found.node, _IN_BRANCH, "kept", covers=found.covers)
    return None


def _left_alone(source: Source, found: Found, branches: set[cst.CSTNode]) -> Found | None:
    """Return what is said of a use in a branch for FSDP1, beside one for FSDP2: once for each branch."""
    branch = None if found.action == "kept" else fsdp1_branch(source.index, found.node)
    if branch is None:
        return None
    above = source.index.parents.get(branch)
    is_chosen = isinstance(above, cst.FunctionDef) and is_fsdp1s_function(source.index, above)
    if branch in branches or is_chosen:
        return Found("FM420", found.node, _IN_BRANCH, "kept", covers=found.covers)
    branches.add(branch)
    return Found("FM420", found.node, _BRANCH, "commented", covers=found.covers)


def _beside_torchrec(found: Found) -> Found:
    """Return a use as it was found, or for a comment only: what shards tables itself is in the model."""
    if found.action != "rewritten":
        return found
    said = _TORCHREC.format(found.becomes.rstrip("."))
    return Found(found.code, found.node, said, "commented", covers=found.covers)


def _where_sharded(source: Source, found: Found) -> Found:
    """Return a comment as it holds of a framework's models, which another strategy may leave whole."""
    if (
        found.action not in {"commented", "unclear"}
        or source.uses_fsdp1
        or not source.models.are_by_frameworks
    ):
        return found
    is_said = found.becomes.startswith(("this may be", "where "))
    return found if is_said else replace(found, becomes=f"{_BY_FRAMEWORK}{found.becomes}")


def _certain(source: Source, found: Found) -> Found:
    """Return a use as it was found, or for a comment only where its name may stand for something else."""
    if (found.edits or found.action == "commented") and any(
        source.index.is_ambiguous(node) for node in found.covers if node in source.references
    ):
        becomes = f"{_AMBIGUOUS}: where it is torch's, {found.becomes.rstrip('.')}."
        return Found(found.code, found.node, becomes, "commented", covers=found.covers)
    return found


def report(path: str, source: Source, found: list[tuple[str, Found]], cell: int | None = None) -> list[Use]:
    """Return what was found as it is reported: with its place, in the order of the source."""
    left = list(mentions.find_left(source.code))
    marked = {line for line, *_ in left}
    uses, statements = [], set()
    for name, item in found:
        line = source.position(source.index.statement(item.node))[0]
        is_commented = item.action == "commented"
        if is_commented:
            statements.add((item.code, line))
        where, text = source.position(item.node), short(item.node)
        use = Use(path, *where, name, item.code, text, item.becomes, item.action, cell)
        note = item.note if item.action == "rewritten" else ""
        uses.append(replace(use, is_marked=is_commented and line in marked, note=note))
    # A comment of an earlier rewriting is to be settled also where no rule finds anything below it any more.
    for line, text, code, becomes in left:
        if code in FINDING_CODES and (code, line) not in statements:
            use = Use(path, line, 1, mentions.NAME, code, text[:60], becomes, "commented", cell)
            uses.append(replace(use, is_marked=True))
    known = {use.line for use in uses if use.rule == "wrapped-names"}
    for line, column, text in mentions.find_mentions(source.code):
        if line not in known:
            becomes = "nothing is done to comments and strings"
            uses.append(
                Use(path, line, column, mentions.NAME, "FM325", text[:60], becomes, "mentioned", cell)
            )
    return sorted(uses, key=lambda use: (use.cell or 0, use.line, use.column, use.rule))
