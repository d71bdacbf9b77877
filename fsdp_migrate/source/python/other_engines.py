"""Branches of engines that FSDP excludes: apex's, DeepSpeed's, SageMaker's model parallelism, fairscale's.

And those that Accelerate's FSDP does not come to: ``if state.distributed_type != DistributedType.FSDP``.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

import libcst as cst

from fsdp_migrate.source.python.accelerate_models import fsdp_said
from fsdp_migrate.source.python.known_parts import known_parts
from fsdp_migrate.source.python.nodes import as_ast, dotted, text_of


if TYPE_CHECKING:
    from fsdp_migrate.source.python.text import Source


_AMP: Final = re.compile(r"(?:^|\.)amp\.(?:initialize|scale_loss|master_params)$")
_WORDS: Final = ("use_apex", "is_sagemaker_mp_enabled", "sharded_ddp")
_ENGINE: Final = re.compile(
    r"(?:\w+\.)*(?:_?use_apex|is_sagemaker_mp_enabled\(\)"
    r"|_?sharded_ddp(?:isnotNone|!=None|(?:==|in)[\w\[(.\"',\])]+)?)"
)
_DEEPSPEED: Final = re.compile(
    r"(?:\w+\.)*(?:is|use|using|with|enable)_deepspeed(?:_zero3)?(?:_enabled)?(?:\(\))?"
    r"|(?:\w+\.)+deepspeed(?:_(?:config|config_file|enabled|plugin))?(?:isnotNone|!=None)?"
    r"|[\w.()]+==['\"]deepspeed\w*['\"]|['\"]deepspeed\w*['\"](?:==|in)[\w.()]+"
    r"|[\w.()]+\.startswith\(['\"]deepspeed\w*['\"]\)|[\w.()]+(?:==|is)(?:\w+\.)*DEEPSPEED"
    r"|isinstance\(.+,(?:\w+\.)*DeepSpeed\w*\)",
    re.IGNORECASE,
)
_NO_DEEPSPEED: Final = re.compile(
    r"[\w.()]+!=['\"]deepspeed\w*['\"]|['\"]deepspeed\w*['\"]notin[\w.()]+", re.IGNORECASE
)
_DISTRIBUTED: Final = re.compile(r"\bdistributed_?type\b", re.IGNORECASE)
_QUANTIZED: Final = "BitsandbytesPrecision"
_QUANTIZE: Final = re.compile(r"(?:\w+\.)*_?quanti[sz]\w*(?:isnotNone)?$")
_IS_QUANTIZERS: Final = re.compile(
    rf"(?:\w+\.)*_?quanti[sz]\w*\.startswith\(.*\)|isinstance\(.*\b{_QUANTIZED}\)"
)
_NONE: Final = re.compile(r"(?:\w+\.)*_?sharded_ddp(?:==|is)None")


def is_other_engines(test: cst.BaseExpression, *, truth: bool) -> bool:
    """Tell whether another engine runs where a test has come out as ``truth``, with which FSDP never does.

    Example:
        >>> test = cst.parse_expression("self.use_apex and training")
        >>> is_other_engines(test, truth=True), is_other_engines(test, truth=False)
        (True, False)
        >>> is_other_engines(cst.parse_expression("self.sharded_ddp is None"), truth=True)
        False
        >>> is_other_engines(cst.parse_expression("args.strategy == 'deepspeed'"), truth=True)
        True
    """
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return is_other_engines(test.expression, truth=not truth)
    if isinstance(test, cst.BooleanOperation):
        sides = [is_other_engines(each, truth=truth) for each in (test.left, test.right)]
        # Of `a and b` that is true both are; of `a or b` one of them is.
        return any(sides) if isinstance(test.operator, cst.And) is truth else all(sides)
    text = text_of(test.with_changes(lpar=(), rpar=()) if test.lpar else test)
    if _NONE.fullmatch(text) or _NO_DEEPSPEED.fullmatch(text):
        return not truth
    return truth and (_ENGINE.fullmatch(text) or _DEEPSPEED.fullmatch(text)) is not None


def is_in_other_engines_branch(source: Source, node: cst.CSTNode) -> bool:
    """Tell whether a place is reached only where such an engine runs, or quantization that shuts FSDP out."""
    guards, code = source.guards, source.code
    named = {word for word in _WORDS if word in code}
    # apex's optimizers run with FSDP, too: its mixed precision does not, of HF's Trainer and elsewhere.
    if "use_apex" in named and not _uses_amp(source):
        named.remove("use_apex")
    asks_type = "istributed" in code and _DISTRIBUTED.search(code) is not None
    is_named = bool(named) or asks_type or "deepspeed" in code.lower()
    is_quantized = source.links.shuts_out_quantizers or (_QUANTIZED in code and _is_fsdp_shut_out(source))
    place: cst.CSTNode | None = node if is_named or is_quantized else None
    while place is not None:  # a hook that is defined in the branch runs for that engine alone
        for test, truth in guards.facts(place):
            if is_other_engines(test, truth=truth) or (is_quantized and _is_quantized(test, truth=truth)):
                return True
            if asks_type and _asks_type(test) and fsdp_said(test, truth=truth) is False:
                return True
        place = source.index.function(place)
        if isinstance(place, cst.FunctionDef) and place.name.value in source.links.for_quantizers:
            return True
    return False


def _asks_type(test: cst.BaseExpression) -> bool:
    return _DISTRIBUTED.search(text_of(test)) is not None


def _uses_amp(source: Source) -> bool:
    """Tell whether a source calls apex's mixed precision, or imports transformers, whose Trainer does."""
    modules = (name for node in source.index.by_kind.get(cst.Import, ()) for name in _modules(node))
    others = (name for node in source.index.by_kind.get(cst.ImportFrom, ()) for name in _modules(node))
    if any(name.split(".")[0] == "transformers" for name in (*modules, *others)):
        return True
    return any(_AMP.search(dotted(node) or "") for node in source.attributes)


def _modules(node: cst.CSTNode) -> list[str]:
    """Return the modules that an import names: those of the own package, ``from .x import y``, have none."""
    if isinstance(node, cst.Import):
        return [dotted(each.name) or "" for each in node.names]
    if not isinstance(node, cst.ImportFrom) or node.module is None or node.relative:
        return []
    return [dotted(node.module) or ""]


def _is_quantized(test: cst.BaseExpression, *, truth: bool) -> bool:
    return asks_for_quantized(as_ast(test), truth=truth)


def asks_for_quantized(test: ast.expr, *, truth: bool) -> bool:
    """Tell whether weights are quantized where a test has come out as ``truth``.

    Example:
        >>> test = ast.parse("quantize and quantize.startswith('bnb.')", mode="eval").body
        >>> asks_for_quantized(test, truth=True), asks_for_quantized(test, truth=False)
        (True, False)
    """
    texts = (ast.unparse(part).replace(" ", "") for part, said in known_parts(test, truth=truth) if said)
    return any(_QUANTIZE.match(text) or _IS_QUANTIZERS.fullmatch(text) for text in texts)


def _is_fsdp_shut_out(source: Source) -> bool:
    """Tell whether FSDP's strategy is made only behind ``if quantize: raise``."""
    made = [call for call in source.calls if text_of(call.func).endswith("FSDPStrategy")]
    facts = ([*source.guards.facts(call)] for call in made)
    return bool(made) and all(
        any(_is_quantized(test, truth=not truth) for test, truth in each) for each in facts
    )
