"""Lists that an optimizer is made of above the sharding, and that are clipped below it, made anywhere.

``AdamW(self.params)`` in a class whose base, of another package, fills ``self.params``: nothing shows whose
parameters these are, but an optimizer that is prepared with a model steps that model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.assigned_names import Made
from fsdp_migrate.source.framework_words import stepped_before
from fsdp_migrate.source.ignored_states import ignored_names
from fsdp_migrate.source.kept_lists import Sharding, made_before, names_given, taken_after
from fsdp_migrate.source.python.last_values import value_in_class, values_set
from fsdp_migrate.source.python.nodes import dotted, last_name, text_of, walk_for
from fsdp_migrate.source.python.optimizers import is_optimizer, stepped
from fsdp_migrate.source.python.parameter_lists import named_as_parameters, shares
from fsdp_migrate.source.python.parameters import SAME_PARAMETERS, is_torchs_optimizer
from fsdp_migrate.source.python.returned_parameters import returned_shares
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.source.python.text import Source


_BY: Final = frozenset({"", "accelerate", "fabric"})
"""Who shards by a call that optimizers are made above."""
_DEEPEST: Final = 4
_SETTINGS: Final = re.compile(r"(?:^|[._])(?:args?|cfg|conf|config|hparams|options?|self)$")
"""What a function may be given that is no model: ``get_params(cfg)``."""
_ASKED: Final = frozenset({"copy_", "data", "grad"})


def stepped_lists(source: Source, sharding: Sharding) -> Iterator[Found]:
    """Find where such a list is clipped or gone through below a call that shards.

    Of which model it is, an optimizer tells that a framework is given with the model. torch's own class is
    given none: there it has to be all that optimizers are made of in the function.

    Args:
        source: The source.
        sharding: The call, and who shards.
    """
    if sharding.by not in _BY:
        return
    made = list(_made_above(source, sharding))
    lists = [(each, name) for one, call in made for each, name in _lists_of(one, call)]
    if not sharding.by and (len({text_of(name) for _, name in lists}) != 1 or len(lists) != len(made)):
        return
    left_alone = {*ignored_names(source, sharding.call)}  # these stay in place
    for one, name in lists:
        if text_of(name) not in left_alone and _is_unseen(source, name):
            taken = taken_after(source, one, sharding.call)
            lines = [source.index.statement(node) for node in taken if _is_changed(source, node)]
            said = stepped_before(text_of(name), sharding.by)
            yield from (Found("FM446", each, said, "commented") for each in dict.fromkeys(lines))


def _made_above(source: Source, sharding: Sharding) -> Iterator[tuple[Made, cst.Call]]:
    """Yield the calls that make optimizers above a call that shards, or within it, with their names."""
    call, given = sharding.call, names_given(source, sharding.call)
    for made in made_before(source, call):
        is_prepared = made.name in given or not sharding.by
        value = made.value
        is_its = is_prepared and not made.is_one_of
        if is_its and isinstance(value, cst.Call) and _makes_one(source, value, made.name):
            yield made, value
    line = source.index.parents[call]
    if isinstance(line, (cst.Assign, cst.Expr)):
        made_here = [each.value for each in call.args if isinstance(each.value, cst.Call)]
        yield from ((Made(line, "", each), each) for each in made_here if _makes_one(source, each, ""))


def _makes_one(source: Source, call: cst.Call, name: str) -> bool:
    is_named = is_optimizer(name.rpartition(".")[2].lower()) and last_name(call.func)[:1].isupper()
    return is_named or any(map(is_torchs_optimizer, source.index.qualified(call.func)))


def _lists_of(made: Made, call: cst.Call) -> Iterator[tuple[Made, cst.Name | cst.Attribute]]:
    """Yield the names of the lists that an optimizer is made of, also of ``[{"params": a}]``."""
    for given in stepped(call):
        for node in _names_in(given):
            yield Made(made.assign, text_of(node), node), node


def _names_in(node: cst.BaseExpression) -> Iterator[cst.Name | cst.Attribute]:
    if isinstance(node, (cst.Name, cst.Attribute)):
        yield node
    elif isinstance(node, cst.Call) and last_name(node.func) in SAME_PARAMETERS:
        for arg in node.args:
            yield from _names_in(arg.value)
    elif isinstance(node, (cst.List, cst.Tuple)):
        for each in node.elements:
            yield from _names_in(each.value)
    elif isinstance(node, cst.Dict):
        for part in node.elements:
            is_list = isinstance(part, cst.DictElement) and text_of(part.key).strip("'\"") == "params"
            yield from _names_in(part.value) if is_list else ()


def _is_unseen(source: Source, node: cst.BaseExpression, depth: int = 0) -> bool:
    """Tell whether nothing here shows whose parameters a list has: it is given, inherited, or another's."""
    if depth > _DEEPEST or shares(source.index, node):
        return False
    if isinstance(node, cst.Call):
        if last_name(node.func) in SAME_PARAMETERS:
            return any(_is_unseen(source, each, depth + 1) for each in (arg.value for arg in node.args))
        is_seen = any(source.models.guards.functions(node.func)) or any(returned_shares(source, node))
        return not is_seen and not last_name(node.func)[:1].isupper()
    if isinstance(node, cst.Attribute):
        values = values_set(source.index, node)
        return value_in_class(source.index, node) is None and all(
            _is_unseen_value(source, each, text_of(node), depth) for each in values
        )
    if not isinstance(node, cst.Name) or node not in source.index.scopes:
        return False
    above = {node, *source.index.ancestors(node)}
    bound = [each for each in source.index.scopes[node].lookup(node.value) if each.value not in above]
    return bool(bound) and all(
        each.kind == "param"
        if each.value is None
        else _is_unseen_value(source, each.value, node.value, depth)
        for each in bound
    )


def _is_unseen_value(source: Source, value: cst.BaseExpression, name: str, depth: int) -> bool:
    """Tell the same of a value that a name is given: of ``trainable(net)`` the name shows whose they are."""
    is_same = isinstance(value, cst.Call) and last_name(value.func) in SAME_PARAMETERS
    named = None if is_same else named_as_parameters(value, name)
    is_seen = named is not None and not _SETTINGS.search(text_of(named))
    return not is_seen and _is_unseen(source, value, depth + 1)


def _is_changed(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether what takes a list asks for its gradients or values: no loop that prints shapes."""
    above = source.index.parents[node]
    if not isinstance(above, (cst.For, cst.CompFor)):
        return True
    region: cst.CSTNode = above.body if isinstance(above, cst.For) else source.index.parents[above]
    names = {each.value for each in walk_for(above.target, cst.Name)}
    asked = (each for each in walk_for(region, cst.Attribute) if dotted(each.value) in names)
    return any(each.attr.value in _ASKED or each.attr.value.endswith("_") for each in asked)
