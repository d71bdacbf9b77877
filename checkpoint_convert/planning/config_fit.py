"""Does an output for Hugging Face fit the ``config.json`` beside it? ``from_pretrained`` says little."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from fsdp_migrate.checkpoint_convert.manifest.planned import PlannedTensor
from fsdp_migrate.checkpoint_convert.maps.config_model import ConfigModel, UnknownModel, model_of_config
from fsdp_migrate.checkpoint_convert.targets.safetensors import HUGGINGFACE_ATTRIBUTE
from fsdp_migrate.findings import Finding, counted, make_finding, named


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.checkpoint_convert.planning.plan import ConversionPlan


# Under the older name it is `torch_dtype`.
_DTYPE_KEYS: Final = ("dtype", "torch_dtype")
_VOCABULARY: Final = "vocab_size"
_WIDE: Final = ("float64", "float32")


def config_findings(plan: ConversionPlan, config: bytes) -> list[Finding]:
    """Hold the tensors that a plan writes against the ``config.json`` that will lie beside them.

    Args:
        plan: A plan for Hugging Face.
        config: What the file holds.
    """
    tensors = [entry for entry in plan.planned if isinstance(entry, PlannedTensor)]
    # PEFT looks for the names of an adapter by itself, and loads it in a dtype of its own.
    if not tensors or any(each.code == "FM278" for each in plan.findings) or all(map(_is_adapters, tensors)):
        return []
    found = list(_dtype_findings(tensors, config))
    model = model_of_config(config)
    if isinstance(model, UnknownModel):
        text = f"`from_pretrained` may look for other names than those of the weights: {model.why}."
        return [*found, make_finding("FM268", "config.json", text, model.hint)]
    found += _name_findings(model, [entry.key for entry in tensors], plan)
    return [*found, *_shape_findings(model, tensors, config)]


def rename_for(plan: ConversionPlan, stored: Iterable[str]) -> str | None:
    """Return the ``--rename`` by which all of a model's stored weights are in the output of a plan.

    Args:
        plan: A plan for Hugging Face.
        stored: The names of the weights that lie beside the model's ``config.json``.

    Returns:
        It, empty where the names are these already; None where none is found that leaves nothing out.
    """
    needed = frozenset(stored)
    model = ConfigModel("", is_guess=False, names=needed, needed=tuple(frozenset({each}) for each in needed))
    names = [entry.key for entry in plan.planned if isinstance(entry, PlannedTensor)]
    lacking = model.lacking(model.found(names))
    if not lacking:
        return ""
    rename = _rename_that_fits(model, names, len(lacking))
    return None if rename is None or rename[2] else _rule(plan, rename)


def _rule(plan: ConversionPlan, rename: tuple[str, str, int]) -> str:
    return f"^{re.escape(_came_off(plan)) + rename[0]}={rename[1]}"


def _came_off(plan: ConversionPlan) -> str:
    """Return what is taken off names by itself, and stays on once a ``--rename`` is given."""
    return HUGGINGFACE_ATTRIBUTE if any(each.code == "FM276" for each in plan.findings) else ""


def _is_adapters(tensor: PlannedTensor) -> bool:
    return ".lora_" in tensor.key or ".modules_to_save." in tensor.key


def _name_findings(model: ConfigModel, names: list[str], plan: ConversionPlan) -> Iterator[Finding]:
    found = model.found(names)
    lacking = model.lacking(found)
    fits = [name for name in names if found[name]]
    # A model with a head may lack what the one without has, such as BERT's pooler.
    if not lacking or (fits and model.is_guess):
        return
    what = (
        f"{counted(len(fits), 'name')} of {len(names)} in the output {'is' if len(fits) == 1 else 'are'} of "
        f"{model.title}, by `config.json`, and {len(lacking)} of its parameters "
        f"{'is' if len(lacking) == 1 else 'are'} not there: {named(lacking)}."
        if fits
        else f"no name in the output ({named(names)}) is one of {model.title}, by `config.json` "
        f"({named(lacking)})."
    )
    text = f"{what} `from_pretrained` gives them random values."
    rename = _rename_that_fits(model, names, len(lacking))
    if rename is None:
        hint = "Is it the same model? `--rename` changes names, `--hf-config` gives another `config.json`."
    else:
        left = rename[2]
        hint = (
            f"Convert again with `--rename '{_rule(plan, rename)}'`, and `--overwrite` where the output is "
        )
        hint += "there already"
        hint += f"; it leaves {counted(left, 'parameter')} without values." if left else "."
    yield make_finding("FM266", lacking[0], text, hint)


def _shape_findings(model: ConfigModel, tensors: list[PlannedTensor], config: bytes) -> Iterator[Finding]:
    """Tell of weights whose sizes are not those of the model: of a vocabulary that was enlarged, mostly."""
    pairs = [(each.key, tuple(each.source.shape), model.shape_of(each.key)) for each in tensors]
    others = [(name, stored, own) for name, stored, own in pairs if own is not None and own != stored]
    if not others:
        return
    name, stored, own = others[0]
    text = (
        f"{counted(len(others), 'weight')} of the output {'has' if len(others) == 1 else 'have'} other sizes "
        f"than in {model.title}, by `config.json`: {named([each for each, _, _ in others])}. `{name}` has "
        f"{list(stored)}, and the model {list(own)}: `from_pretrained` raises."
    )
    said, rows = json.loads(config), {(each[:1], its[:1]) for _, each, its in others}
    is_vocabulary = len(rows) == 1 and said.get(_VOCABULARY) == own[0] and stored[1:] == own[1:]
    hint = "Give the `config.json` of the model that was trained, `--hf-config DIR`."
    if is_vocabulary:
        new = f'"{_VOCABULARY}": {stored[0]}'
        hint = f"Its vocabulary was resized: write `{new}` into `config.json` of the output."
    yield make_finding("FM269", name, text, hint)


def _rename_that_fits(model: ConfigModel, names: list[str], lacking: int) -> tuple[str, str, int] | None:
    """Return what comes off all names, what is put before them, and how many parameters stay without."""
    best: tuple[str, str, int] | None = None
    for off, on in _steps(model, names):
        renamed = [on + name.removeprefix(off) if name.startswith(off) else name for name in names]
        left = len(model.lacking(model.found(renamed)))
        if left < (lacking if best is None else best[2]):
            best = (re.escape(off), on, left)
    return best


def _steps(model: ConfigModel, names: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the likely ones: a wrapper's attribute comes off, or that of the model goes on."""
    # The last parts of a name tell most; many modules have a `weight`.
    ends: dict[str, set[str]] = {}
    for own in model.names:
        for end, head in _split(own):
            ends.setdefault(end, set()).add(head)
    off: Counter[str] = Counter()
    for name in names:
        for end, head in _split(name):
            if head and ("" in ends.get(end, ()) or model.found([end])[end]):
                off[head] += 1
                break
    on = Counter(head for name in names for head in ends.get(name, ()) if head)
    yield from ((head, "") for head, _ in off.most_common(3))
    yield from (("", head) for head, _ in on.most_common(3))


def _split(name: str) -> Iterable[tuple[str, str]]:
    """Yield the ends of a name, the longest first, with what stands before each."""
    parts = name.split(".")
    for at in range(len(parts)):
        yield ".".join(parts[at:]), "".join(f"{part}." for part in parts[:at])


def _dtype_findings(tensors: list[PlannedTensor], config: bytes) -> Iterator[Finding]:
    try:
        said = json.loads(config)
    except (ValueError, RecursionError):
        return
    key = next(
        (key for key in _DTYPE_KEYS if isinstance(said, dict) and isinstance(said.get(key), str)), None
    )
    if key is None:
        return
    wanted = said[key].removeprefix("torch.")
    stored = sorted({entry.dtype for entry in tensors if entry.source.is_float})
    if not stored or wanted in stored or wanted == "auto":
        return
    # One dtype is for all of them: the widest rounds nothing.
    widest = next((dtype for dtype in _WIDE if dtype in stored), stored[0])
    yield make_finding(
        "FM267",
        "config.json",
        f"`{key}` is {wanted}, and the weights are {' and '.join(stored)}. transformers 5 loads them as "
        f"{wanted}, and so does 4 with `torch_dtype='auto'`.",
        f"To lose nothing of what is stored, write {widest} there in the output, or give "
        f"`from_pretrained(..., dtype=torch.{widest})`.",
    )
