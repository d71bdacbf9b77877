"""Parameters of FSDP1 were flat, so that ``p.ndim >= 2`` was never true; FSDP2's have their own shapes.

What is decided by it after wrapping, such as which parameters are decayed, comes out differently.
"""

from __future__ import annotations

import functools
import operator
import re
from typing import TYPE_CHECKING

import libcst as cst

from fsdp_migrate.source.parameter_values import ParameterValues
from fsdp_migrate.source.python.chosen_by_size import size_asked
from fsdp_migrate.source.python.held import FLAT, has_model
from fsdp_migrate.source.python.last_values import last_value
from fsdp_migrate.source.python.loops import loops_around
from fsdp_migrate.source.python.nodes import dotted, text_of, walk_for
from fsdp_migrate.source.python.shown_alone import is_asked_to_show
from fsdp_migrate.source.python.strategies import keep_shapes
from fsdp_migrate.source.python.summoned_functions import summoned_around
from fsdp_migrate.source.rules.own_optimizers import classes_given_parameters, is_prepared_with_its_model
from fsdp_migrate.source.sharded_parts import whole_of
from fsdp_migrate.source.uses import Found


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fsdp_migrate.source.python.scopes import Binding
    from fsdp_migrate.source.python.text import Source


NAME = "parameter-shapes"
CODES = ("FM318",)

_MEANT = (
    "FSDP1's parameters were flat here, of one dimension, with `use_orig_params` true or false; FSDP2's have "
    "their own shapes, so this decides differently, without an error. Decide which is meant; a checkpoint of "
    "FSDP1 has the old groups."
)
_SIZES = (
    "FSDP1's parameters had the size of this rank's part here, another on each rank; FSDP2's say the whole "
    "size. So this chooses others, without an error. Decide which is meant; a checkpoint of FSDP1 has the "
    "old groups."
)
_SQUEEZED = "And squeeze() itself raises where FSDP2 shards over a dimension of one element."
_SAME = frozenset({"clone", "contiguous", "detach", "squeeze"})
_GROUPED = f"{{}} groups parameters by their dimensions. {_MEANT}"
_GROUPING = re.compile(
    r"^(?:(timm)\.optim\.(?:\w+\.)?"
    r"(?:add_weight_decay|create_optimizer(?:_v2)?|param_groups_(?:weight|layer)_decay)"
    r"|(peft)\.optimizers\.(?:\w+\.)?create_loraplus_optimizer)$"
)
_OWN = ("data.ndim", "dim", "grad.ndim", "ndim", "ndimension", "nelement", "numel", "shape", "size")
_COMPARED: Mapping[type[cst.BaseCompOp], Callable[[int, int], bool]] = {
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
}
# A weight of a convolution over volumes has five.
_MOST_DIMENSIONS = 8
_OVER = frozenset({"enumerate", "iter", "list", "reversed", "tqdm", "zip"})
_DATA = re.compile(r"(?:batch(?:es)?|dataset|loader|samples)(?![a-z])", re.IGNORECASE)
_GENERATES = frozenset({"batch_decode", "decode", "forward", "generate", "sample"})
_DEEPEST = 8
_LISTS = frozenset({"named_parameters", "parameters"})
_HELD = (cst.Attribute, cst.Name, cst.Subscript)


def find(source: Source) -> Iterator[Found]:
    """Find tests of dimensions in functions that go through a sharded model's parameters."""
    if keep_shapes(source.models):
        return
    functions = {function for call in source.calls for function in _going_through(source, call)}
    values = ParameterValues(source)
    for kind in (cst.For, cst.CompFor):
        for loop in source.index.by_kind.get(kind, ()):
            assert isinstance(loop, (cst.For, cst.CompFor))
            if isinstance(loop.iter, _HELD) and (
                source.models.is_parameters(loop.iter) or values.is_many(loop.iter)
            ):
                functions.add(source.index.function(loop) or source.module)
    functions.update(_asked_elsewhere(source))
    given = {called for function in functions for called in _asked(values, function)}
    going = functions - given
    functions |= given
    functions.update(classes_given_parameters(source))
    seen: set[cst.CSTNode] = set()
    for function in functions:
        for test in walk_for(function, cst.Comparison):
            size = size_asked(source.index, test)
            is_about = size is not None or _is_of_dimensions(source, test)
            if test in seen or not is_about or _is_of_wholes(source, function, test):
                continue
            # What the function itself is given, which goes through parameters too, is none of them.
            asked = size if size is not None else _asked_of(test)
            if _is_of_loop(source, asked, or_given=source.index.function(test) not in going):
                seen.add(test)
                if size is not None:
                    yield Found("FM318", test, _SIZES, "commented")
                    continue
                said = f"{_MEANT} {_SQUEEZED}" if ".squeeze(" in text_of(test) else _MEANT
                yield Found("FM318", test, said, "commented")
    in_lambdas = (test for test in _in_lambdas(source, values) if test not in seen)
    yield from (Found("FM318", test, _MEANT, "commented") for test in in_lambdas)
    yield from _of_packages(source)


def _in_lambdas(source: Source, values: ParameterValues) -> Iterator[cst.Comparison]:
    """Yield the tests of dimensions in functions without a name: ``filter(lambda p: p.ndim > 1, params)``."""
    for function in source.index.by_kind.get(cst.Lambda, ()):
        home = source.index.function(function) or source.module
        for test in walk_for(function, cst.Comparison):
            if _is_of_dimensions(source, test) and not _is_of_wholes(source, home, test):
                name = _name_asked(_root(source, _held(source, _asked_of(test))))
                if name is not None and values.is_one(name):
                    yield test


def _of_packages(source: Source) -> Iterator[Found]:
    """Find functions of packages that group parameters by their dimensions."""
    for call in source.calls:
        named = [found for each in source.index.qualified(call.func) if (found := _GROUPING.match(each))]
        if not named or source.contexts.is_summoned(call):
            continue
        # FSDP1's parameters were flat in `create_optimizer` of Hugging Face's Trainer, too.
        models = source.models
        if any(models.certainty(arg.value) or FLAT in models.kinds(arg.value) for arg in call.args):
            package = named[0].group(1) or named[0].group(2)
            yield Found("FM318", call, _GROUPED.format(package), "commented")


def _is_of_wholes(source: Source, owner: cst.CSTNode, test: cst.Comparison) -> bool:
    """Tell whether a test is about whole parameters: before sharding, or where they are summoned.

    Or decides on what is printed alone. Also in an optimizer's constructor that runs before sharding.
    """
    if _is_before_wrapping(source, test) or _is_called_above_sharding(source, test):
        return True
    if _is_of_summoned(source, test) or is_asked_to_show(source, test):
        return True
    if not isinstance(owner, cst.ClassDef):
        return False
    methods = (each for each in source.index.ancestors(test) if isinstance(each, cst.FunctionDef))
    if not any(each.name.value == "__init__" and source.index.class_of(each) is owner for each in methods):
        return False
    made = [call for call in source.calls if dotted(call.func) == owner.name.value]
    is_told = owner.name.value in source.links.whole_optimizers
    return (bool(made) or is_told) and all(is_prepared_with_its_model(source, each) for each in made)


def _asked(values: ParameterValues, function: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the functions of this source that are given what a loop goes through, as ``is_matrix(p)`` is."""
    source = values.source
    for call in walk_for(function, cst.Call):
        if not isinstance(call.func, cst.Name) or call.func not in source.index.scopes:
            continue
        given = [arg.value for arg in call.args if isinstance(arg.value, cst.Name)]
        if any(_is_of_a_loop(values, name) for name in given):
            for binding in source.index.scopes[call.func].lookup(call.func.value):
                if isinstance(binding.node, cst.FunctionDef):
                    yield binding.node


def _is_of_a_loop(values: ParameterValues, name: cst.Name) -> bool:
    source = values.source
    loops = (
        above
        for binding in source.index.scopes[name].lookup(name.value)
        for above in _two_above(source, binding)
        if isinstance(above, (cst.For, cst.CompFor))
    )
    return any("param" in text_of(each.iter) for each in loops) or values.is_one(name)


def _going_through(source: Source, call: cst.Call) -> Iterator[cst.CSTNode]:
    """Yield the functions that a call shows to go through an FSDP1 model's parameters."""
    if not isinstance(call.func, cst.Attribute):
        return
    model = call.func.value
    name = call.func.attr.value
    if name not in _LISTS and name not in _going(source):
        return
    is_known = whole_of(source, model) is not None or FLAT in source.models.kinds(model)
    if not is_known and not (name in _LISTS and source.models.is_parameters(call)):
        return
    if name in _LISTS:
        yield source.index.function(call) or source.module
        return
    yield from _methods(source, {name})


@functools.lru_cache(maxsize=1)
def _going(source: Source) -> frozenset[str]:
    """Return the names of the methods here that go through their own parameters."""
    functions = source.index.by_kind.get(cst.FunctionDef, ())
    names = {each.name.value for each in functions if isinstance(each, cst.FunctionDef)}
    return frozenset(each.name.value for each in _methods(source, names))


def _asked_elsewhere(source: Source) -> Iterator[cst.FunctionDef]:
    """Yield the methods that other files of the project call on sharded models."""
    if source.models.links.methods:
        yield from _methods(source, source.models.links.methods)


def _methods(source: Source, names: Collection[str]) -> Iterator[cst.FunctionDef]:
    """Yield methods of the model's own class, which see the flat parameters as ``self.parameters()``."""
    for node in source.index.by_kind.get(cst.FunctionDef, ()):
        assert isinstance(node, cst.FunctionDef)
        if node.name.value in names and source.index.class_of(node) is not None:
            own = (dotted(inner.func) for inner in walk_for(node, cst.Call))
            if {"self.named_parameters", "self.parameters"} & set(own):
                yield node


def _is_of_loop(source: Source, asked: cst.BaseExpression, *, or_given: bool) -> bool:
    """Tell whether what is tested is what a loop goes through, or, if ``or_given``, a function is given."""
    root = _root(source, _held(source, asked))
    below = _name_asked(root)
    if below is None:
        return False
    bindings = source.index.scopes[below].lookup(below.value)
    loops = (cst.For, cst.CompFor)
    # Of what a function is given, its own dimensions: not those of `self.device_mesh`.
    is_whole = (
        or_given
        and root is not None
        and dotted(root) in {f"{below.value}.{name}" for name in _OWN}
        and "mesh" not in below.value
    )
    return any(
        (binding.kind == "param" and is_whole)
        or any(
            isinstance(a, loops) and not _is_of_a_state(a) and not _is_of_others(source, a)
            for a in (binding.node, *_two_above(source, binding))
        )
        for binding in bindings
    )


def _name_asked(below: cst.CSTNode | None) -> cst.Name | None:
    """Return the name whose dimensions are asked: ``p`` of ``p.data.squeeze().ndim``."""
    while isinstance(below, cst.Attribute) or _is_same_tensor(below):
        below = below.func if isinstance(below, cst.Call) else cst.ensure_type(below, cst.Attribute).value
    return below if isinstance(below, cst.Name) else None


def _is_same_tensor(node: cst.CSTNode | None) -> bool:
    """Tell whether it is what a method gives of a parameter that is asked as one: ``p.squeeze()``."""
    return (
        isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _SAME
    )


def _is_before_wrapping(source: Source, test: cst.Comparison) -> bool:
    """Tell whether a test stands in a loop over the parameters of what the same function wraps below it."""
    order, function = source.index.order, source.index.function(test)
    below = [
        text_of(call.args[0].value)
        for call in source.calls
        if order[call] > order[test] and call.args and source.index.function(call) is function
        if source.models.is_constructor(call.func) or "fsdp" in source.models.kinds(call)
    ]
    for loop in loops_around(source.index, test) if below else ():
        for call in walk_for(loop.iter, cst.Call):
            if isinstance(call.func, cst.Attribute) and call.func.attr.value in _LISTS:
                model = call.func.value
                return text_of(model) in below and source.models.certainty(model) is None
    return False


def _is_of_summoned(source: Source, test: cst.Comparison) -> bool:
    """Tell whether a test stands where FSDP1 gave parameters their shapes, and is about no other model's."""
    if not source.contexts.is_summoned(test):
        return False
    around = (each for each in source.index.ancestors(test) if isinstance(each, cst.With))
    texts = [text_of(each) for block in around for each in block.items]
    if not any("summon_full_params" in each for each in texts):
        return True  # a function that such a block calls
    summoned = [*summoned_around(source, test)]
    asked = (
        call.func.value
        for loop in loops_around(source.index, test)
        for call in walk_for(loop.iter, cst.Call)
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in _LISTS
    )
    return all(f"{text_of(each)}.".startswith(tuple(f"{model}." for model in summoned)) for each in asked)


def _is_called_above_sharding(source: Source, test: cst.Comparison) -> bool:
    """Tell whether a method is called only above the calls that shard: ``self.optim = self.configure()``."""
    function = source.index.function(test)
    if function is None or source.index.class_of(function) is None:
        return False
    name = function.name.value
    calls = source.index.calls_of_method(name)
    is_elsewhere = name in source.links.methods | source.links.optimizer_methods
    return bool(calls) and not is_elsewhere and all(_is_above_sharding(source, each) for each in calls)


def _is_above_sharding(source: Source, call: cst.Call) -> bool:
    index, order = source.index, source.index.order
    home = index.function(call)
    sharding = [
        each
        for each in source.calls
        if index.function(each) is home
        if source.models.is_constructor(each.func) or has_model(source.models.frameworks.of_call(each))
    ]
    # What a call is given is made before it runs: `prepare(self.model, self.configure())`.
    given = {*index.ancestors(call)}
    return bool(sharding) and all(order[each] > order[call] or each in given for each in sharding)


def _is_of_a_state(loop: cst.For | cst.CompFor) -> bool:
    """Tell whether a loop goes through a state that was saved: ``for key, value in state.items()``."""
    over = loop.iter
    if not isinstance(over, cst.Call) or not isinstance(over.func, cst.Attribute):
        return False
    return over.func.attr.value in {"items", "values"} and "state" in text_of(over.func.value).lower()


def _is_of_others(source: Source, loop: cst.For | cst.CompFor) -> bool:
    """Tell whether a loop goes through numbers, data, or what a model has computed.

    ``for i, batch in enumerate(train_loader)``, ``for ids in model.generate(x)``.
    """
    over: cst.BaseExpression | None = loop.iter
    for _ in range(_DEEPEST):
        if over is not None and _DATA.search(dotted(over) or ""):
            return True
        if isinstance(over, cst.Call):
            name = dotted(over.func) or text_of(over.func)
            if name == "range":
                return True
            if name in _OVER and over.args:
                over = over.args[0].value
                continue
            is_made = isinstance(over.func, cst.Attribute) and over.func.attr.value in _GENERATES
            return is_made or source.models.certainty(over.func) is not None
        if isinstance(over, (cst.Attribute, cst.Subscript)):
            over = over.value
        elif isinstance(over, cst.Name) and over in source.index.scopes:
            over = last_value(source.index, over)
        else:
            return False
    return False


def _two_above(source: Source, binding: Binding) -> list[cst.CSTNode]:
    """Return what a target stands in: the loop itself, or the tuple of its targets and then the loop."""
    return list(source.index.ancestors(binding.node))[:3]


def _asked_of(test: cst.Comparison) -> cst.BaseExpression:
    """Return the side of a comparison that is no number."""
    other = test.comparisons[0].comparator
    return other if isinstance(test.left, cst.Integer) else test.left


def _is_always_the_same(test: cst.Comparison) -> bool:
    """Tell whether it decides the same of every parameter: no scalar is sharded, under FSDP1 or FSDP2."""
    return len({_answer(test, dimensions) for dimensions in range(1, _MOST_DIMENSIONS)} - {None}) == 1


def _answer(test: cst.Comparison, dimensions: int) -> bool | None:
    """Return what it says of a parameter of so many dimensions; None where that is not seen."""
    asked = _asked_of(test)
    sides = [test.left, *(item.comparator for item in test.comparisons)]
    values = [int(side.value, 0) if isinstance(side, cst.Integer) else dimensions for side in sides]
    known = [_COMPARED.get(type(item.operator)) for item in test.comparisons]
    if None in known or not all(side is asked or isinstance(side, cst.Integer) for side in sides):
        return None
    return all(
        compare(left, right)
        for compare, left, right in zip(filter(None, known), values[:-1], values[1:], strict=True)
    )


def _is_of_dimensions(source: Source, test: cst.Comparison) -> bool:
    numbers = [test.left, *(item.comparator for item in test.comparisons)]
    if not any(isinstance(number, cst.Integer) for number in numbers) or _is_always_the_same(test):
        return False
    left = _held(source, _asked_of(test))
    if isinstance(left, cst.Attribute):
        return left.attr.value == "ndim"
    if not isinstance(left, cst.Call):
        return False
    if isinstance(left.func, cst.Attribute):
        return left.func.attr.value in {"dim", "ndimension"}
    if dotted(left.func) != "len" or not left.args:
        return False
    what = _held(source, left.args[0].value)
    if isinstance(what, cst.Call):
        return isinstance(what.func, cst.Attribute) and what.func.attr.value == "size" and not what.args
    return isinstance(what, cst.Attribute) and what.attr.value == "shape"


def _held(source: Source, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return what a name holds, ``shape = p.shape``, or an item of a dict, ``{n: p.ndim for ...}``."""
    name = node.value if isinstance(node, cst.Subscript) else node
    if not isinstance(name, cst.Name) or name not in source.index.scopes:
        return node
    value = last_value(source.index, name)
    if isinstance(node, cst.Subscript):
        is_its = isinstance(value, cst.DictComp) and "parameters(" in text_of(value.for_in.iter)
        return value.value if is_its and isinstance(value, cst.DictComp) else node
    return node if value is None else value


def _root(source: Source, node: cst.BaseExpression) -> cst.Attribute | None:
    """Return the attribute that is asked, ``p.ndim``, also by way of a name."""
    while isinstance(node, cst.Call) and dotted(node.func) == "len" and node.args:
        node = node.args[0].value
    return next(walk_for(_held(source, node), cst.Attribute), None)
