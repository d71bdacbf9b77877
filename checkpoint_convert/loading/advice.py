"""What one types to load a checkpoint without converting it, and when converting is better. Text only."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fsdp_migrate.checkpoint_convert.formats.file_names import SIDE_FILE
from fsdp_migrate.checkpoint_convert.manifest.classify import MODEL_NAMES
from fsdp_migrate.checkpoint_convert.manifest.keys import strip_wrappers
from fsdp_migrate.checkpoint_convert.sources.lightning import FABRICS
from fsdp_migrate.checkpoint_convert.sources.optimizer_names import FLAT_REFUSALS
from fsdp_migrate.checkpoint_convert.sources.rank_files import find_counted, stem_of
from fsdp_migrate.checkpoint_convert.storage.compressed import is_packed
from fsdp_migrate.checkpoint_convert.storage.folders import is_url
from fsdp_migrate.checkpoint_convert.targets.frameworks import TARGETS
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fsdp_migrate.checkpoint_convert.manifest.manifest import Manifest


LIGHTNINGS_WAY: Final = "with `ModelParallelStrategy` and `ckpt_path`"
# The HF Trainer has words of its own for what Accelerate's config says.
_TRAINERS: Final = "trainer_state.json"
_ACCELERATES_FULL: Final = "pytorch_model_fsdp.bin"
# What a script calls for a full state, by layout.
_READ_BY: Final = {"file": "torch.load or fabric.load", "safetensors": "load_file or from_pretrained"}
# What converting does not settle: the groups of the optimizer, and who has no state in them.
BEFORE_LOADING: Final = frozenset({"FM226", "FM227"})
"""What is to be done before a framework can go on from a checkpoint that it reads itself."""
WITHOUT_OPTIMIZER: Final = (
    "There is no optimizer in it: it is weights alone, or what a run left that died while it saved. A run "
    "with an optimizer cannot go on from it."
)
"""What is said of what :func:`lacks_optimizer` tells."""
_MOST_EXTRA: Final = 6
# What is written for a number and for anything else, which come back.
_STANDING_IN: Final = ("0", "None")
_COMES_BACK: Final = (
    "All that was saved by a name in `extra` comes back in `.values` of the report that it returns{}. An "
    "object with a `load_state_dict`, such as a scheduler, is loaded instead."
)
_OF_ADAPTERS: Final = re.compile(r"(?:\A|[._])(?:lora|adapter|ia3|dora)(?:[._]|\Z)", re.IGNORECASE)
_OF_TORCH: Final = re.compile(r"\.(?:bin|ckpt|pt|pth|tar)\Z")
_NUMBERS: Final = frozenset({"step", "steps", "global_step", "epoch", "epochs", "iteration", "iter", "batch"})


@dataclass(frozen=True, slots=True)
class LoadAdvice:
    """How a checkpoint is loaded as it is.

    Attributes:
        call: The line of Python; of several models one line for each.
        better_converted: When converting it first is better.
        trainer: The line for the framework's Trainer that loads it, where there is one.
        by_framework: How the framework's own FSDP2, or a script of plain torch, loads it as it is, where one
            does.
        others: Who reads the files beside it, where there are some.
        given_back: What comes back of what `extra` asks for, where it asks for something.
    """

    call: str
    better_converted: tuple[str, ...]
    trainer: str | None = None
    by_framework: str | None = None
    others: str | None = None
    given_back: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "call": self.call,
            "trainer": self.trainer,
            "by_framework": self.by_framework,
            "better_converted": list(self.better_converted),
            "others": self.others,
            "given_back": self.given_back,
        }


def advise_loading(manifest: Manifest) -> LoadAdvice:
    """Say what one types to load a checkpoint, and when converting it is still better.

    Example:
        >>> from fsdp_migrate.checkpoint_convert import inspect_checkpoint
        >>> advise_loading(inspect_checkpoint("tests/checkpoint/data/torch-2.13.0/plain.dcp")).call
        "load_checkpoint('tests/checkpoint/data/torch-2.13.0/plain.dcp', model, optimizer)"
    """
    trainer = None
    if manifest.framework == "composer":
        trainer = f"Trainer(..., callbacks=[FSDP2Migration()], load_path={manifest.source!r})"
    by_framework = _by_framework(manifest)
    better = tuple(_better_converted(manifest, loads_itself=by_framework is not None))
    others, given_back = _others(manifest), _given_back(manifest)
    return LoadAdvice(_call(manifest), better, trainer, by_framework, others, given_back)


def _call(manifest: Manifest) -> str:
    kinds = [part.kind for part in manifest.parts]
    optimizers = kinds.count("optimizer")
    if kinds.count("model") > 1:
        return "\n".join(_lines(manifest))
    arguments = [repr(manifest.source), "model"]
    if optimizers == 1:
        arguments.append("optimizer")
    elif optimizers:
        arguments.append(f"[{', '.join(f'optimizer{number}' for number in range(optimizers))}]")
    arguments += _extra(manifest)
    if (optimizers and "model" not in kinds) or _is_an_adapter(manifest):
        arguments.append("strict=False")
    return f"load_checkpoint({', '.join(arguments)})"


def _is_an_adapter(manifest: Manifest) -> bool:
    """Tell whether the model in it is an adapter's weights alone, so that the model has more than these."""
    keys = [key for part in manifest.parts if part.kind == "model" for key in part.keys]
    return bool(keys) and all(map(_OF_ADAPTERS.search, keys))


def _lines(manifest: Manifest) -> Iterator[str]:
    """Yield a line for each of several models; what else there is comes with the first."""
    models = [part.name for part in manifest.parts if part.kind == "model"]
    has_optimizer = any(part.kind == "optimizer" for part in manifest.parts)
    more = _extra(manifest)
    for name in models:
        # `ae.model` is `ae`'s, and `actor` has the name of its own.
        above, _, last = name.rpartition(".")
        own = (above or last) if last in MODEL_NAMES or not last.isidentifier() else last
        own = own.replace(".", "_") or last
        variable = own if own.isidentifier() and own not in MODEL_NAMES else "model"
        if last.isdigit():
            variable = f"model{last}"
        optimizer = [f"{variable}_optimizer"] if has_optimizer else []
        arguments = [repr(manifest.source), variable, *optimizer, f"part={name!r}", *more]
        more = []
        yield f"load_checkpoint({', '.join(arguments)})"


def _asked_for(manifest: Manifest) -> list[str]:
    """Return the names of what is neither a model nor an optimizer."""
    names = [part.name for part in manifest.parts]
    # A name above others stands for them, too.
    return [
        part.name
        for part in manifest.parts
        if part.kind == "other" and not any(name.startswith(f"{part.name}.") for name in names)
    ]


def _given_back(manifest: Manifest) -> str | None:
    """Say what comes back of what :func:`_extra` asks for, with the first name that is no object's."""
    asked = _asked_for(manifest)[:_MOST_EXTRA]
    values = [name for name in asked if _variable(name) in _STANDING_IN]
    shown = f": `report.values[{values[0]!r}]`" if values else ""
    return _COMES_BACK.format(shown) if asked else None


def _extra(manifest: Manifest) -> list[str]:
    """Return the argument that asks for what is neither a model nor an optimizer."""
    others = _asked_for(manifest)
    if not others:
        return []
    asked = ", ".join(f"{name!r}: {_variable(name)}" for name in others[:_MOST_EXTRA])
    more = ", ..." if len(others) > _MOST_EXTRA else ""
    return [f"extra={{{asked}{more}}}"]


def loads_unconverted(manifest: Manifest, refused: Iterable[str]) -> bool:
    """Tell whether what a conversion refuses loads into a model of ``prepare_fully_shard`` as it is.

    That knows how FSDP1 flattened it, which a conversion has to be told.

    Args:
        manifest: What the checkpoint holds.
        refused: The codes of what a conversion refuses.
    """
    codes = set(refused)
    return bool(codes) and codes <= FLAT_REFUSALS and manifest.layout != "file"


def lacks_optimizer(manifest: Manifest) -> bool:
    """Tell whether a framework that saves an optimizer beside its model has saved none here.

    So weights alone lie there, and what a run left that died while it saved.
    """
    return manifest.framework == "accelerate" and [part.kind for part in manifest.parts] == ["model"]


def _others(manifest: Manifest) -> str | None:
    """Say who reads the files beside a checkpoint, which ``load_checkpoint`` does not."""
    if not manifest.extra_files:
        return None
    loader = TARGETS[manifest.framework].loader
    if FABRICS in manifest.evidence and SIDE_FILE in manifest.extra_files:
        more = " It reads no other file named above." if len(manifest.extra_files) > 1 else ""
        return (
            f"What `{SIDE_FILE}` holds, such as a scheduler's state and the step, it loads if asked for "
            f'by its names there: `extra={{"scheduler": scheduler, "step": 0}}`.{more}'
            + _of_ranks(manifest.extra_files)
        )
    if not loader:
        return (
            "It reads none of the other files named above: what your script needs of them, such as a "
            "scheduler's state, it loads as it does now." + _of_ranks(manifest.extra_files)
        )
    return (
        f"It reads none of the other files named above, which {loader} does: with `load_checkpoint` you load "
        "what you need of them yourself, such as the scheduler's state."
    )


def _of_ranks(names: Iterable[str]) -> str:
    """Say what does not fit of files that ranks saved by themselves, by their names, or nothing."""
    beside = list(names)
    found = [name for name in beside if stem_of(name) is not None]
    found += [name for family in find_counted(beside) for name in family.files.values()]
    if not found:
        return ""
    return (
        " But not an optimizer's state that each rank of FSDP1 saved by itself, where "
        f"{named(sorted(found))} hold one: its flat parts do not fit. `fsdp-migrate explain FM425` says "
        "how it is brought over."
    )


def _by_framework(manifest: Manifest) -> str | None:
    """Say how the framework's FSDP2 reads FSDP1's checkpoint itself: a full one, by the model's own names."""
    if any(finding.fidelity == "refused" for finding in manifest.findings):
        return None
    if any(strip_wrappers(key) != key for key in manifest.entries):
        return None
    command = shlex.join(["fsdp-migrate", "convert", manifest.source, "OUT"])
    if manifest.framework == "accelerate" and _ACCELERATES_FULL in manifest.files:
        is_trainers = any(name.rpartition("/")[2] == _TRAINERS for name in manifest.extra_files)
        key = "state_dict_type" if is_trainers else "fsdp_state_dict_type"
        where = " in the HF Trainer's `fsdp_config`" if is_trainers else ""
        return (
            f"{TARGETS['accelerate'].loader} loads it as it is, {_but_for(manifest)}under FSDP2 with "
            f"`{key}: FULL_STATE_DICT`{where}, from Accelerate 1.7 on. For SHARDED_STATE_DICT: "
            f"`{command} --state-dict-type sharded`."
        )
    if manifest.framework == "lightning" and manifest.layout == "file":
        return f"Lightning's Trainer loads it as it is, {LIGHTNINGS_WAY}."
    if manifest.layout == "dcp" and FABRICS in manifest.evidence:
        return _by_its_script(manifest)
    read = None if _is_packed(manifest) else _READ_BY.get(manifest.layout)
    if manifest.framework == "torch" and (read is not None or _is_files_of_torch(manifest)):
        what = f"it with {read}" if read is not None else "these files with torch.load"
        return (
            f"A script that reads {what} goes on from it as it is, once `rewrite` has turned the "
            f"script. For one that reads a folder with dcp.load: `{command}`."
        )
    return None


def _but_for(manifest: Manifest) -> str:
    """Say what has to be done first, by the codes of the findings that say it, or nothing."""
    codes = sorted({found.code for found in manifest.findings} & BEFORE_LOADING)
    return f"once what {' and '.join(codes)} says below is done, " if codes else ""


def _by_its_script(manifest: Manifest) -> str:
    """Say what reads a folder with a ``meta.pt`` that Fabric or a script wrote, by the names that it gave."""
    own = "a script of your own loads it by `dcp.load`, and `meta.pt` by `torch.load`"
    kinds = [part.kind for part in manifest.parts]
    # All that is neither the one model nor an optimizer Fabric keeps in that file.
    if kinds.count("model") != 1 or "other" in kinds:
        return f"It is loaded as it is: {own}, under the names that were saved."
    return (
        "It is loaded as it is, under the names that were saved: Fabric loads it with "
        f"`ModelParallelStrategy` and `fabric.load`, {own}."
    )


def _is_files_of_torch(manifest: Manifest) -> bool:
    """Tell whether it is a folder of a model's and an optimizer's full states, each in a file of its own."""
    of_ranks = (name for name in manifest.files if stem_of(name) is not None)
    is_one = manifest.layout == "olmo" or (manifest.layout == "states" and not any(of_ranks))
    return is_one and all(_OF_TORCH.search(name) and "/" not in name for name in manifest.files)


def _is_packed(manifest: Manifest) -> bool:
    name = manifest.source.rstrip("/").rpartition("/")[2]
    return is_packed(name) and name not in manifest.files  # what was in it has another name


def _variable(name: str) -> str:
    """Return what to write for a thing that is asked for: an object's name, or what stands for a value."""
    last = name.rpartition(".")[2]
    # Several are a list, as Lightning saves them: it has no `load_state_dict`.
    if "sched" in last.lower() and last.isidentifier() and not last.endswith("s"):
        return last
    number, value = _STANDING_IN
    return number if last.lower() in _NUMBERS else value


def _better_converted(manifest: Manifest, *, loads_itself: bool) -> list[str]:
    found = []
    if _is_packed(manifest):
        found.append("it is packed, and each start unpacks it on every rank")
    if is_url(manifest.source):
        found.append("each start of the run fetches it over the network")
    if manifest.layout == "ranks":
        found.append("each start looks into the file of every rank")
    loader = TARGETS[manifest.framework].loader
    if loader and not loads_itself:
        found.append(f"{loader} is to load it by itself")
    if not loads_itself:  # what is converted is the same file then
        found.append("the run is started many times from it")
    return found
